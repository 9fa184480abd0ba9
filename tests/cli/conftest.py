"""Run the command line as a user does, in this process."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from peagle import LLM
from peagle.cli.main import main
from peagle.engine.engine import Engine
from tests.conftest import FREE


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def peagle(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["peagle", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        code = left.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture
def cramped(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The model with room for 128 tokens of prompt and answer."""
    page = smollm2.engine.kv_cache.bytes_per_page
    engine = Engine(smollm2.target, smollm2.target.new_cache(2 * page))
    engine.costs = FREE
    monkeypatch.setattr(smollm2, "engine", engine)
    return smollm2
