import json
from pathlib import Path

import pytest
import torch

from peagle.engine.costs import CostCurve, StepCosts
from peagle.engine.kept_costs import file_state, kept_costs

COSTS = StepCosts(
    target=CostCurve(rows=(1, 16), seconds=(0.1, 0.3)),
    per_key=1e-6,
    network=CostCurve(rows=(1, 4), seconds=(0.01, 0.02)),
)
OTHERS = StepCosts(target=CostCurve(rows=(1,), seconds=(7.0,)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "costs"


def never() -> StepCosts:
    raise AssertionError("measured again")


def always(_: StepCosts) -> bool:
    return True


def test_kept_costs_that_no_longer_hold_are_measured_anew() -> None:
    kept_costs({}, lambda: COSTS, always)
    asked: list[StepCosts] = []

    def never_alike(costs: StepCosts) -> bool:
        asked.append(costs)
        return False

    assert kept_costs({}, lambda: OTHERS, never_alike) == OTHERS
    assert asked == [COSTS]
    assert kept_costs({}, never, always) == OTHERS


def test_what_was_measured_is_kept_for_the_same_conditions() -> None:
    what = {"model": [("a.gguf", 10, 20)], "dtype": "bfloat16"}
    assert kept_costs(what, lambda: COSTS, always) == COSTS
    assert kept_costs(dict(reversed(what.items())), never, always) == COSTS


@pytest.mark.parametrize("changed", ["weights", "dtype", "threads", "processor"])
def test_other_conditions_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    kept_costs({"model": file_state(file), "dtype": "bfloat16"}, lambda: COSTS, always)
    dtype = "bfloat16"
    if changed == "weights":
        file.write_bytes(b"other weights")
    elif changed == "dtype":
        dtype = "int8"
    elif changed == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    else:
        monkeypatch.setattr("peagle.engine.kept_costs.processor_name", lambda: "another")
    assert kept_costs({"model": file_state(file), "dtype": dtype}, lambda: OTHERS, always) == OTHERS


def test_files_of_a_folder_count(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"22")
    assert [(Path(name).name, size) for name, size, _ in file_state(tmp_path)] == [
        ("a", 1),
        ("b", 2),
    ]
    assert file_state(None) == []


@pytest.mark.parametrize("content", ["", "{", '{"costs": {"target": {"rows": [2]}}}'])
def test_a_damaged_file_is_measured_and_written_anew(cache: Path, content: str) -> None:
    kept_costs({}, lambda: COSTS, always)
    (file,) = cache.iterdir()
    file.write_text(content, "utf-8")
    assert kept_costs({}, lambda: OTHERS, always) == OTHERS
    assert json.loads(file.read_text("utf-8"))["conditions"]["torch"] == torch.__version__
    assert kept_costs({}, never, always) == OTHERS


def test_a_cache_that_cannot_be_written_is_told_and_costs_are_used(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be", "utf-8")
    assert kept_costs({}, lambda: COSTS, always) == COSTS
    assert "cannot be kept" in capsys.readouterr().err
