"""The protocol with real processes: our own engine, and one that fails."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from peagle import LLM, SamplingParams
from peagle.catalog import resolve
from peagle.errors import PeerError
from peagle.evaluate.bench.answer import BenchPrompt
from peagle.evaluate.bench.process import ProcessService
from tests.conftest import MODEL

SETTINGS = {
    "model": MODEL, "drafter": None, "corpus": None, "threads": 1, "max_concurrent": 4,
    "precision": {"dtype": "bfloat16"},
}  # fmt: skip


def service(settings: dict[str, object], log: Path) -> ProcessService:
    return ProcessService("ours", Path(sys.executable), "run_peagle", settings,
                          environment={"OMP_NUM_THREADS": "1"}, log=log)  # fmt: skip


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessService]:
    one = service(SETTINGS, tmp_path_factory.mktemp("logs") / "ours.log")
    started = one.start()
    assert started.seconds is not None
    assert started.seconds > 0
    assert started.about["precision"] == "bfloat16"
    yield one
    one.stop()


@pytest.fixture(scope="module")
def prompts(smollm2: LLM) -> list[BenchPrompt]:
    return [
        BenchPrompt(f"p{place}", "qa", [], smollm2.encode(question), 6)
        for place, question in enumerate(("Name two colours.", "What is 2 + 2?", "Say hello."))
    ]


def test_our_engine_as_a_peer(
    ours: ProcessService, prompts: list[BenchPrompt], smollm2: LLM
) -> None:
    told: list[None] = []
    spec = {"method": "lookup"}
    batch = ours.answer(prompts, 2, {"spec": spec}, lambda: told.append(None))
    plain = ours.answer(prompts, 1, {"spec": None}, lambda: None)
    expected = smollm2.generate(
        [{"prompt_token_ids": one.token_ids} for one in prompts], SamplingParams(max_tokens=6)
    )
    assert len(told) == 3
    for answers in (batch.answers, plain.answers):
        assert [one.token_ids for one in answers] == [one.token_ids for one in expected]
        assert all(one.tokens == len(one.token_ids) for one in answers)
        assert all(one.sent < one.arrivals[0][0] for one in answers)
    assert [one.passes for one in plain.answers] == [
        len(one.token_ids) - 1 for one in plain.answers
    ]
    assert batch.peak_bytes is not None
    assert batch.peak_bytes > 100_000_000


def test_the_quantisation_and_the_drafter_that_were_named_are_loaded(
    prompts: list[BenchPrompt], tmp_path: Path
) -> None:
    drafter = str(resolve(MODEL).drafters["eagle3"])
    told = SETTINGS | {"drafter": drafter, "precision": {"quantization": "int8"}}
    one = service(told, tmp_path / "log")
    assert one.start().about["precision"].startswith("int8")
    spec = {"method": "eagle3", "lookup": False, "corpus": False}
    drafted, plain = (one.answer(prompts, 2, {"spec": way}, lambda: None) for way in (spec, None))
    one.stop()
    assert [each.token_ids for each in drafted.answers] == [
        each.token_ids for each in plain.answers
    ]
    passes = [sum(each.passes or 0 for each in batch.answers) for batch in (drafted, plain)]
    assert 0 < passes[0] < passes[1]


def test_a_paused_process_gets_no_time(ours: ProcessService) -> None:
    process = psutil.Process(ours._process.pid)  # type: ignore[union-attr]
    ours.pause()
    assert process.status() == psutil.STATUS_STOPPED
    ours.resume()
    assert process.status() != psutil.STATUS_STOPPED
    assert ours.held_bytes() > 100_000_000


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    broken = service(SETTINGS | {"model": "no-such-model"}, tmp_path / "log")
    with pytest.raises(PeerError, match=r"ours failed: ModelNotFoundError: .*no-such-model"):
        broken.start()
    assert "Traceback" in (tmp_path / "log").read_text()
    broken.stop()


def test_an_environment_without_the_program(tmp_path: Path) -> None:
    missing = ProcessService("vllm", Path(sys.executable), "run_vllm", {},
                             environment={}, log=tmp_path / "log")  # fmt: skip
    with pytest.raises(PeerError, match="vllm failed: it"):
        missing.start()
    assert "No module named 'vllm'" in (tmp_path / "log").read_text()
    missing.stop()
