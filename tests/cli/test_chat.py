import pytest

from peagle import LLM, SamplingParams
from peagle.cli.chat import Conversation
from tests.cli.conftest import Run


def converse(
    llm: LLM,
    params: SamplingParams,
    messages: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    said = iter([*messages, "/exit"])
    conversation = Conversation(llm, params, system=None, colour=False, stats=False)
    monkeypatch.setattr(conversation._console, "input", lambda _prompt: next(said))
    conversation.run()
    return " ".join(capsys.readouterr().out.split())


def test_a_conversation_remembers_and_can_be_reset(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["Say hello.", "/help", "/stats", "Again.", "/reset", "/colour", "Again."]
    params = SamplingParams(max_tokens=12)
    out = converse(smollm2, params, said, monkeypatch, capsys)

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
    ran = peagle("chat", "--max-tokens", "5", "--dtype", "bfloat16", stdin="Say hello.\n")
    assert ran.code == 0
    assert "Hello" in ran.out


def test_an_impossible_message_does_not_end_the_chat(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    params = SamplingParams(max_tokens=6)
    out = converse(smollm2, params, ["x " * 9000, "Say hello."], monkeypatch, capsys)
    assert "Shorten the prompt" in out
    assert "Hello" in out


def test_the_last_answer_gets_what_the_context_leaves_and_reset_goes_on(
    cramped: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = ["Repeat the word yes twenty times.", "Go on.", "/reset", "Say hello."]
    out = converse(cramped, SamplingParams(), messages, monkeypatch, capsys)
    long = cramped.generate("Repeat the word yes twenty times.")[0]
    assert len(long.prompt_token_ids) + len(long.token_ids) == 128
    assert (
        " ".join(long.text.split()) + " (the context is full; /reset begins a new conversation)"
        in out
    )
    tokens = len(
        cramped.encode(
            [
                {"role": "user", "content": "Repeat the word yes twenty times."},
                {"role": "assistant", "content": long.text},
                {"role": "user", "content": "Go on."},
            ]
        )
    )
    assert f"Error: With this message the conversation has {tokens} tokens, but" in out
    assert "takes 128 of conversation and answer together here. Type /reset to begin" in out
    assert out.index("A new conversation.") < out.index("Hello")


def test_a_told_length_that_no_longer_fits_is_named(
    cramped: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    params = SamplingParams(max_tokens=85)
    out = converse(
        cramped, params, ["Say hello.", "Again.", "/reset", "Say hello."], monkeypatch, capsys
    )
    assert "tokens and its answer may have 85, but" in out
    assert "Type /reset to begin a new conversation, or write a shorter message." in out
    assert out.count("Hello") == 2
