import pytest

from peagle import LLM, SamplingParams
from peagle.cli.chat import Conversation
from tests.cli.conftest import Run


def test_a_conversation_remembers_and_can_be_reset(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(["Say hello.", "/help", "/stats", "Again.", "/reset", "/colour", "Again.", "/exit"])
    params = SamplingParams(max_tokens=12)
    conversation = Conversation(smollm2, params, system=None, colour=False, stats=False)
    monkeypatch.setattr(conversation._console, "input", lambda _prompt: next(said))
    conversation.run()
    out = capsys.readouterr().out

    def answer(*messages: tuple[str, str]) -> str:
        return smollm2.generate([{"role": r, "content": c} for r, c in messages], params)[0].text

    first = answer(("user", "Say hello."))
    second = answer(("user", "Say hello."), ("assistant", first), ("user", "Again."))
    fresh = answer(("user", "Again."))
    assert second != fresh
    places = [out.index(first), out.index(second), out.rindex(fresh)]
    assert places == sorted(places)
    assert "/reset" in out
    assert "tokens per target pass" in out


def test_chat_ends_with_its_input(peagle: Run) -> None:
    ran = peagle("chat", "--max-tokens", "5", stdin="Say hello.\n")
    assert ran.code == 0
    assert "Hello" in ran.out


def test_an_impossible_message_does_not_end_the_chat(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(["x " * 9000, "Say hello.", "/exit"])
    params = SamplingParams(max_tokens=6)
    conversation = Conversation(smollm2, params, system=None, colour=False, stats=False)
    monkeypatch.setattr(conversation._console, "input", lambda _prompt: next(said))
    conversation.run()
    out = capsys.readouterr().out
    assert "Shorten the prompt" in out
    assert "Hello" in out
