"""scripts/check_cuda.sh on a processor: what it runs on a GPU, with tiny models."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "scripts" / "check_cuda.sh"), *arguments],
        env=os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_everything_runs_and_nothing_differs(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    ended = check("--device", "cpu", "--small", "--output", str(file))
    assert ended.returncode == 0, ended.stderr
    assert "0 rows or answers differ. 0 parts were skipped." in ended.stdout
    found = json.loads(file.read_text())
    assert (found["differing"], found["skipped"]) == (0, [])
    whats = {what for _, what, *_ in found["lines"]}
    assert whats >= {
        "rows mixed and one at a time",
        "rows as graphs and without",
        "answers with and without drafts",
        "target pass, rows",
        "step with full trees, streams",
    }
    assert len({model for model, *_ in found["lines"]}) == 7


def test_what_there_is_no_time_for_is_named_and_counted() -> None:
    ended = check("--device", "cpu", "--small", "--seconds", "0")
    assert ended.returncode == 0
    assert "Skipped: small, int8 (no time left)" in ended.stdout
    assert "0 rows or answers differ. 7 parts were skipped." in ended.stdout


def test_without_a_gpu_it_says_so() -> None:
    ended = check()
    assert ended.returncode == 2
    assert "0 CUDA devices" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_python_that_is_not_there_is_named() -> None:
    ended = check(PYTHON="no-such-python")
    assert ended.returncode == 2
    assert "There is no no-such-python" in ended.stderr
