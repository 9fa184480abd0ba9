"""A training run from its parts: data, features, a network made of the target, a drafter file."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from peagle.draft.corpus import Corpus
from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.loading import load_weights
from peagle.draft.mixture import MixturePrior
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import DRAFT_TO_TARGET, offsets, target_ids
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.storage import save_drafter
from peagle.errors import CheckpointError, InvalidRequestError
from peagle.model.config import DecoderConfig
from peagle.model.loading import LoadedTarget
from peagle.model.prepared import open_checkpoint
from peagle.model.rope import in_pairs, split_pairs
from peagle.model.torch_target import TorchTarget
from peagle.train.checkpoint import has_checkpoint, require_same
from peagle.train.conversations import Conversation
from peagle.train.curve import draw_learning_curve
from peagle.train.exclusive import lock_output
from peagle.train.feature_cache import FeatureCache, FeaturesOnTheFly, FeatureSource
from peagle.train.features import Document, FeatureReader
from peagle.train.initial import (
    check_trainable,
    draft_vocabulary,
    start_from_drafter,
    start_from_target,
)
from peagle.train.mixture_fit import fit_network_weights, read_places
from peagle.train.networks.eagle3 import Eagle3Training
from peagle.train.networks.peagle import PEagleTraining
from peagle.train.networks.trunk import Trunk
from peagle.train.recipe import Recipe
from peagle.train.split import held_out as held_out_flags
from peagle.train.trainer import Trainer

DRAFTER_FILE = "drafter.safetensors"
_MEASURED: Final = 40
"""Held-out documents that are measured on during a run: a few thousand places of answers."""
_FITTED: Final = 120
"""Held-out documents that the mixture is fitted on."""


@dataclass(frozen=True, slots=True)
class Data:
    """Documents of a run, and which of them it may train on.

    Attributes:
        documents: All of them; longer ones than the target's context are cut there.
        training: Numbers of those to train on.
        held_out: Numbers of those to measure on.
        sha256: Of their tokens, in order.
    """

    documents: list[Document]
    training: list[int]
    held_out: list[int]
    sha256: str


def split_data(conversations: Sequence[Conversation], context_length: int) -> Data:
    """Turn conversations into documents and hold some out, as the corpus does (`train.split`).

    Raises:
        InvalidRequestError: Nothing is left to train on or to measure on.
    """
    digest = hashlib.sha256()
    documents, flags = [], []
    for conversation, out in zip(conversations, held_out_flags(conversations), strict=True):
        tokens = torch.tensor([*conversation.prompt, *conversation.response])[:context_length]
        document = Document(tokens, len(conversation.prompt))
        # The first answer token is the target's own; the second is the first that is drafted.
        if document.teachers < 1:
            continue
        digest.update(document.prompt_tokens.to_bytes(4, "little") + tokens.numpy().tobytes())
        documents.append(document)
        flags.append(out)
    training = [index for index, out in enumerate(flags) if not out]
    held = [index for index, out in enumerate(flags) if out]
    for what, found in (("train on", training), ("measure on", held)):
        if not found:
            raise InvalidRequestError(
                f"Of {len(conversations)} conversations none is left to {what}.",
                remedy="Give more of them: 3% of the documents are held out for measuring.",
                field="data",
            )
    return Data(documents, training, held, digest.hexdigest())


def drafter_config(target: LoadedTarget[TorchTarget], name: str, recipe: Recipe) -> NetworkConfig:
    """Shape a drafter for a target as a recipe says.

    Raises:
        InvalidRequestError: The recipe asks for more draft tokens than the target has tokens.
    """
    model = target.model.config
    if recipe.draft_vocab_size > model.vocab_size:
        raise InvalidRequestError(
            f"draft_vocab_size is {recipe.draft_vocab_size}, but the target has "
            f"{model.vocab_size} tokens.",
            remedy=f"Give at most {model.vocab_size}.",
            field="draft_vocab_size",
        )
    if recipe.method == "eagle3" and recipe.markov_rank:
        raise InvalidRequestError(
            f"markov_rank is {recipe.markov_rank}, but an EAGLE-3 drafter has no Markov head.",
            remedy="Set markov_rank to 0: it knows the token before anyway.",
            field="markov_rank",
        )
    decoder = model.plain(recipe.layers)
    shape: dict[str, Any] = {
        "decoder": decoder,
        "draft_vocab_size": recipe.draft_vocab_size,
        "target_hidden_size": model.hidden_size,
        "taps": target.model.taps,
        "tokenizer_fingerprint": target.tokenizer.fingerprint(),
        "target_name": name,
        "train_depth": recipe.depths,
    }
    if recipe.method == "eagle3":
        return Eagle3Config(**shape)
    return PEagleConfig(**shape, mask_token_id=model.vocab_size - 1, markov_rank=recipe.markov_rank)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run begins with.

    Attributes:
        recipe: How to train.
        config: The drafter's shape.
        drafter: Weights to go on with, by name; None to begin from the target.
        ids: Target id of each draft id, int64 `[draft vocab]`.
    """

    recipe: Recipe
    config: NetworkConfig
    drafter: dict[str, torch.Tensor] | None
    ids: torch.Tensor


def begin_from_target(
    target: LoadedTarget[TorchTarget], name: str, recipe: Recipe, data: Data
) -> Beginning:
    """Begin with a drafter made of the target's last layers.

    Raises:
        InvalidRequestError: The recipe does not fit the target.
    """
    answers = [
        data.documents[index].tokens[data.documents[index].prompt_tokens :]
        for index in data.training
    ]
    config = drafter_config(target, name, recipe)
    ids = draft_vocabulary(answers, recipe.draft_vocab_size, target.model.config.vocab_size)
    return Beginning(recipe, config, None, ids)


def begin_from_drafter(path: Path, target: LoadedTarget[TorchTarget], recipe: Recipe) -> Beginning:
    """Go on with a drafter; its shape is decided already.

    Args:
        path: A drafter file, or a folder with a public checkpoint.
        target: The target.
        recipe: How to train; what it was not told is as usual for the drafter's method.

    Raises:
        CheckpointError: It is no drafter, or made for another target.
        InvalidRequestError: The recipe asks for another shape, or it has parts that do not train.
    """
    model = target.model
    config, tensors = load_weights(
        path, model.config, model.embedding, target.tokenizer.fingerprint()
    )
    check_trainable(config)
    recipe = recipe.for_drafter(config)
    return Beginning(
        recipe,
        replace(config, train_depth=recipe.depths),
        tensors,
        target_ids(tensors[DRAFT_TO_TARGET]),
    )


def open_run(
    run: Path,
    *,
    target: LoadedTarget[TorchTarget],
    files: Path,
    name: str,
    beginning: Beginning,
    data: Data,
    cache_features: bool,
    resume: bool,
) -> Trainer:
    """Make everything that a run needs, and go back to its last checkpoint if it goes on.

    Args:
        run: The run's folder.
        target: The target, giving the drafter's taps.
        files: Its files.
        name: How the user calls it.
        beginning: Recipe, shape and first weights.
        data: What on.
        cache_features: Whether to keep the target's features on disk.
        resume: Whether the run goes on.

    Raises:
        CheckpointError: The run that should go on was begun with something else or is damaged,
            or there is no room for the features.
    """
    model, recipe, config, ids = target.model, beginning.recipe, beginning.config, beginning.ids
    model.taps = config.taps
    torch.manual_seed(recipe.seed)
    embedding = model.embedding
    network: Trunk = (
        PEagleTraining(config, embedding)
        if isinstance(config, PEagleConfig)
        else Eagle3Training(config, embedding)
    )
    tensors = _hugging_face_order(files, model.config)
    identity = {
        "model": f"{name} ({_digest(tensors)[:16]})",
        "recipe": hashlib.sha256(recipe.to_yaml().encode()).hexdigest()[:16],
        "data": data.sha256[:16],
    }
    if beginning.drafter is None:
        start_from_target(network, tensors, config, ids)
    else:
        start_from_drafter(network, beginning.drafter)
        identity["start"] = _digest(beginning.drafter)[:16]
    if resume:
        # Before the features on disk give way to those of other data.
        require_same(run, identity)
    network.to(model.device)
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])[ids]
    reader = FeatureReader(model)
    source: FeatureSource = FeaturesOnTheFly(data.documents, reader)
    if cache_features:
        source = FeatureCache(
            run / "features", data.documents, reader, key=_digest(tensors),
            config=model.config, taps=model.taps,
        )  # fmt: skip
    trainer = Trainer(
        network,
        teacher_head=head.to(model.device).bfloat16(),
        target_ids=ids.to(model.device),
        documents=data.documents,
        training=data.training,
        # Spread, because conversations of one kind may stand together.
        held_out=data.held_out[:: -(-len(data.held_out) // _MEASURED)],
        source=source,
        recipe=recipe,
        run=run,
        identity=identity,
    )
    if resume:
        trainer.resume()
    return trainer


def _hugging_face_order(files: Path, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """Read a target's tensors in float32, query and key rows in Hugging Face's order."""
    return {
        name: in_pairs(config, name, weight.float(), split_pairs)
        for name, weight in open_checkpoint(files, torch.bfloat16).tensors().items()
    }


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Name a model by its weights: a fine-tuned one has the tokenizer of its origin."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        weight = tensors[name].flatten()
        few = weight[:: max(1, len(weight) // 512)].float()
        digest.update(name.encode() + few.numpy().tobytes())
    return digest.hexdigest()


def read_log(run: Path) -> list[dict[str, object]]:
    """Read a run's log, one record a line."""
    with (run / "log.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@contextmanager
def run_folder(run: Path, *, resume: bool) -> Iterator[None]:
    """Keep a run's folder to this process, and refuse one that cannot be used.

    Raises:
        InvalidRequestError: It holds a run which would be lost, or none to go on with; another
            process uses it; or it cannot be written to.
    """
    place = run.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise InvalidRequestError(
            f"{place} is no folder.", remedy="Give another --output.", field="output"
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise InvalidRequestError(
            f"{place} may not be written to.",
            remedy="Change its permissions, or give another --output.",
            field="output",
        )
    with lock_output(run):
        if has_checkpoint(run) and not resume:
            raise InvalidRequestError(
                f"{run} holds a run already.",
                remedy="Add --resume to go on with it, or give another folder.",
                field="output",
            )
        if resume and not has_checkpoint(run):
            raise InvalidRequestError(
                f"{run} holds no run to go on with.",
                remedy="Leave --resume out to begin one there.",
                field="output",
            )
        yield


def open_corpus(path: Path, target: LoadedTarget[TorchTarget]) -> Corpus:
    """Open the corpus that a drafter will be mixed with.

    Raises:
        CheckpointError: It is missing, damaged, or another model's.
    """
    return Corpus.load(
        path,
        tokenizer_fingerprint=target.tokenizer.fingerprint(),
        vocab_size=target.model.config.vocab_size,
    )


def finish(
    trainer: Trainer, run: Path, beginning: Beginning, data: Data, corpus: Corpus | None
) -> Path:
    """Write what a run is for: the drafter with its share of the mixture, and its learning curve.

    Args:
        trainer: The run.
        run: Its folder.
        beginning: What it began with.
        data: What it was trained on.
        corpus: The corpus that the drafter will be mixed with, if there is any.

    Returns:
        The drafter's file.

    Raises:
        CheckpointError: A file cannot be written.
    """
    drafter = run / DRAFTER_FILE
    fitted = data.held_out[:: -(-len(data.held_out) // _FITTED)]
    places = read_places(
        [data.documents[index] for index in fitted],
        map(trainer.chains, fitted),
        corpus=corpus,
        prior=MixturePrior.load(),
    )
    tensors = {name: weight.bfloat16() for name, weight in trainer.average().items()}
    tensors[DRAFT_TO_TARGET] = offsets(beginning.ids.cpu())
    save_drafter(drafter, beginning.config, tensors, fit_network_weights(places))
    try:
        draw_learning_curve(read_log(run), run / "learning-curve.png")
    except OSError as error:
        raise CheckpointError(
            f"The learning curve cannot be written in {run} ({error.strerror or error}).",
            remedy="The drafter is there already: free some space, then repeat with --resume.",
            field="output",
        ) from None
    return drafter
