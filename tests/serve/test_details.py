"""Where each token of a stream came from, and the tree of each step."""

from typing import Any

import openai
import pytest

from tests.serve.conftest import Served

ASKED = [{"role": "user", "content": "Say the word bee ten times, then name a fish. 🐝"}]
SAID = {"speculation_details": True, "return_token_ids": True}


def stream(served: Served, *, skip: bool = True, **fields: Any) -> list[Any]:
    body = {"skip_special_tokens": skip, **SAID, **fields.pop("extra", {})}
    chunks = served.openai.chat.completions.create(
        model=served.llm.name, messages=ASKED, stream=True, extra_body=body, **fields
    )
    return [chunk.choices[0] for chunk in chunks if chunk.choices][1:]


@pytest.mark.parametrize("sampled", [{"temperature": 0}, {"temperature": 1.1, "seed": 4}])
def test_each_token_has_its_origin_and_each_step_its_tree(
    served: Served, sampled: dict[str, Any]
) -> None:
    choices = stream(served, max_tokens=60, **sampled)
    text = "".join(choice.delta.content or "" for choice in choices)
    tokens = [token for choice in choices for token in choice.speculation_details["tokens"]]
    assert "".join(token["text"] for token in tokens) == text
    assert [token["id"] for token in tokens] == [
        token for choice in choices for token in choice.token_ids
    ]
    assert choices[0].speculation_details["tree"] is None
    accepted = 0
    for choice in choices[1:]:
        details = choice.speculation_details
        tree = details["tree"]
        if tree is None:
            assert [token["origin"] for token in details["tokens"]] == ["target"]
            continue
        size = len(tree["tokens"])
        assert {len(tree[name]) for name in ("texts", "parents", "probabilities", "origins")} == {
            size
        }
        assert all(parent < place for place, parent in enumerate(tree["parents"]))
        before = -1
        for node, token in zip(tree["accepted"], details["tokens"], strict=False):
            assert tree["parents"][node] == before
            assert tree["tokens"][node] == token["id"]
            assert tree["origins"][node] == token["origin"] != "target"
            before = node
        rest = details["tokens"][len(tree["accepted"]) :]
        assert [token["origin"] for token in rest] == ["target"] * len(rest)
        accepted += len(tree["accepted"])
    assert accepted > 5
    assert {token["origin"] for token in tokens} >= {"target", "lookup"}


def test_details_change_no_token_and_are_none_without_speculation(served: Served) -> None:
    drafted = stream(served, max_tokens=40, temperature=0)
    plain = stream(
        served, max_tokens=40, temperature=0, extra={"parallel_drafting_spec": {"method": "none"}}
    )
    told = [[token for choice in some for token in choice.token_ids] for some in (drafted, plain)]
    assert told[0] == told[1]
    assert len(drafted) < len(plain) == len(told[1])
    for choice in plain:
        details = choice.speculation_details
        assert details["tree"] is None
        assert details["tokens"][0]["origin"] == "target"


def test_special_tokens_show_where_the_answer_shows_them(served: Served) -> None:
    eos = min(served.llm.tokenizer.eos_token_ids)
    spelt = served.llm.tokenizer.token_bytes(eos).decode()
    for skip in (True, False):
        # The answer ends as soon as it may.
        choices = stream(
            served, skip=skip, max_tokens=9, temperature=0, logit_bias={str(eos): 100},
            extra={"min_tokens": 5},
        )  # fmt: skip
        assert choices[-1].finish_reason == "stop"
        last = choices[-1].speculation_details["tokens"][-1]
        assert last["id"] == eos
        # What comes before it here ends within a character, which it ends.
        assert last["text"] == "\ufffd" + ("" if skip else spelt)


def test_details_are_left_out_where_nobody_asks_and_refused_without_a_stream(
    served: Served,
) -> None:
    chunks = list(
        served.openai.chat.completions.create(
            model=served.llm.name, messages=ASKED, stream=True, max_tokens=4  # type: ignore[arg-type]
        )
    )  # fmt: skip
    assert all("speculation_details" not in chunk.choices[0].to_dict() for chunk in chunks)
    with pytest.raises(openai.BadRequestError, match="speculation_details is given without stream"):
        served.openai.chat.completions.create(
            model=served.llm.name, messages=ASKED, extra_body={"speculation_details": True}  # type: ignore[arg-type]
        )  # fmt: skip
