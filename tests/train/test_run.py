"""What a run begins with, and the folder that it keeps to itself."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from peagle import LLM
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import DRAFT_TO_TARGET
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.storage import save_drafter
from peagle.draft.untrained import random_drafter, random_tensors
from peagle.errors import CheckpointError, InvalidRequestError
from peagle.model.loading import LoadedTarget
from peagle.train.conversations import Conversation
from peagle.train.initial import start_from_drafter
from peagle.train.networks.peagle import PEagleTraining
from peagle.train.recipe import Recipe
from peagle.train.run import begin_from_drafter, run_folder, split_data


@pytest.fixture(scope="module")
def target(smollm2: LLM) -> LoadedTarget:
    return LoadedTarget(smollm2.target, smollm2.tokenizer, 0)


@pytest.fixture(scope="module")
def config(target: LoadedTarget) -> PEagleConfig:
    found = random_drafter(
        target.model, layers=1, draft_vocab_size=50, fingerprint=target.tokenizer.fingerprint()
    ).network.config
    assert isinstance(found, PEagleConfig)
    return replace(found, markov_rank=4)


def stored(folder: Path, config: NetworkConfig) -> Path:
    path = folder / "drafter.safetensors"
    save_drafter(path, config, random_tensors(config, 3))
    return path


def test_a_drafter_is_gone_on_with_as_it_is(
    target: LoadedTarget, config: PEagleConfig, tmp_path: Path
) -> None:
    beginning = begin_from_drafter(stored(tmp_path, config), target, Recipe(depths=5, seed=7))
    assert beginning.config == replace(config, train_depth=5)
    recipe = beginning.recipe
    assert (recipe.layers, recipe.draft_vocab_size, recipe.markov_rank) == (1, 50, 4)
    assert (recipe.depths, recipe.seed) == (5, 7)
    tensors = random_tensors(config, 3)
    assert torch.equal(beginning.ids, tensors[DRAFT_TO_TARGET] + torch.arange(50))
    network = PEagleTraining(config, target.model.embedding)
    assert beginning.drafter is not None
    start_from_drafter(network, beginning.drafter)
    weights = dict(network.named_parameters())
    assert weights.keys() == tensors.keys() - {DRAFT_TO_TARGET}
    assert all(torch.equal(weight, tensors[name]) for name, weight in weights.items())


def test_another_shape_is_refused(
    target: LoadedTarget, config: PEagleConfig, tmp_path: Path
) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"has layers 2, but the drafter .* has 1"
    ) as told:
        begin_from_drafter(stored(tmp_path, config), target, Recipe(layers=2))
    assert told.value.field == "layers"


@pytest.mark.parametrize("part", ["norm_before_fc", "fc_norm"])
def test_parts_that_do_not_train_are_refused(
    target: LoadedTarget, config: PEagleConfig, tmp_path: Path, part: str
) -> None:
    path = stored(tmp_path, replace(config, **{part: True}))
    with pytest.raises(InvalidRequestError, match=f"has {part}") as told:
        begin_from_drafter(path, target, Recipe())
    assert told.value.field == "start"


def test_an_embedding_of_its_own_is_refused(
    target: LoadedTarget, config: PEagleConfig, tmp_path: Path
) -> None:
    path = stored(tmp_path, replace(config, own_embedding=True))
    with pytest.raises(InvalidRequestError, match="has own_embedding"):
        begin_from_drafter(path, target, Recipe())


def test_a_drafter_of_another_target_is_refused(
    target: LoadedTarget, config: PEagleConfig, tmp_path: Path
) -> None:
    path = stored(tmp_path, replace(config, tokenizer_fingerprint="f" * 64))
    with pytest.raises(CheckpointError, match="tokenizer"):
        begin_from_drafter(path, target, Recipe())


def conversations(count: int, *, answer: int) -> list[Conversation]:
    chance = torch.Generator().manual_seed(0)
    return [
        Conversation(*torch.randint(9, (2, answer), generator=chance).tolist())
        for _ in range(count)
    ]


def test_documents_are_cut_at_the_context_and_held_out() -> None:
    data = split_data(conversations(300, answer=20), context_length=30)
    assert {len(document) for document in data.documents} == {30}
    assert sorted([*data.training, *data.held_out]) == list(range(300))
    assert 2 < len(data.held_out) < 25


def test_too_little_data_is_said() -> None:
    with pytest.raises(InvalidRequestError, match="Of 2 conversations none is left to") as told:
        split_data(conversations(2, answer=20), context_length=100)
    assert told.value.field == "data"
    # An answer of one token has nothing to draft, and neither has a prompt that fills the context.
    for short in (conversations(300, answer=1), conversations(300, answer=30)):
        with pytest.raises(InvalidRequestError, match="none is left to train on"):
            split_data(short, context_length=30)


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    run = tmp_path / "new" / "run"
    with (
        run_folder(run, resume=False),
        pytest.raises(InvalidRequestError, match="Another process is writing to") as told,
        run_folder(tmp_path / "new" / ".." / "new" / "run", resume=False),
    ):
        pass
    assert told.value.field == "output"
    with run_folder(run, resume=False):
        assert not run.exists()


def test_a_run_is_neither_lost_nor_made_up(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidRequestError, match="holds no run to go on with"),
        run_folder(tmp_path, resume=True),
    ):
        pass
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state.json").touch()
    with (
        pytest.raises(InvalidRequestError, match="holds a run already"),
        run_folder(tmp_path, resume=False),
    ):
        pass
    with run_folder(tmp_path, resume=True):
        pass


def test_an_output_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    for run in (file, file / "run"):
        with (
            pytest.raises(InvalidRequestError, match="file is no folder"),
            run_folder(run, resume=False),
        ):
            pass
    (tmp_path / "loose").symlink_to(tmp_path / "nowhere")
    with (
        pytest.raises(InvalidRequestError, match="loose is no folder"),
        run_folder(tmp_path / "loose", resume=False),
    ):
        pass
    # The superuser may write anywhere, so what the system says is made up.
    monkeypatch.setattr("os.access", lambda place, _mode: place != tmp_path)
    with (
        pytest.raises(InvalidRequestError, match=f"{tmp_path} may not be written to"),
        run_folder(tmp_path / "new" / "run", resume=False),
    ):
        pass
