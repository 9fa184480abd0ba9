import json
from pathlib import Path

import pytest

from peagle.errors import InvalidRequestError
from peagle.evaluate.bench.prompts import BUNDLED, read_prompts
from peagle.evaluate.workload import read_workload


def words(messages: object) -> list[int]:
    assert isinstance(messages, list)
    return list(range(len(messages[0]["content"].split())))


def test_bundled_prompts_are_six_of_each_kind_and_not_the_public_ones() -> None:
    bundled, public = read_workload(BUNDLED), read_workload()
    kinds = ["summarization", "code", "qa", "json", "chat", "long"]
    assert [one.category for one in bundled] == [kind for kind in kinds for _ in range(6)]
    mine = {one.messages[0]["content"] for one in bundled}
    assert len(mine) == 36
    assert mine.isdisjoint(one.messages[0]["content"] for one in public)


def test_categories_are_mixed_and_limited() -> None:
    found = read_prompts(BUNDLED, words, per_category=2, max_tokens=200, context_length=900)
    assert [one.id for one in found[5:8]] == ["long-1", "summarization-2", "code-2"]
    assert len(found) == 12
    # The file's own limit where it is lower.
    assert {one.category: one.max_tokens for one in found} == {
        "summarization": 160, "code": 200, "qa": 192, "json": 200, "chat": 192, "long": 200,
    }  # fmt: skip


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    def read(*lines: object) -> None:
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(json.dumps(line) for line in lines))
        read_prompts(path, words, per_category=None, max_tokens=None, context_length=260)

    with pytest.raises(InvalidRequestError, match="two prompts called 'a'"):
        read({"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"})
    with pytest.raises(InvalidRequestError, match="has 5 tokens and the answer up to 256"):
        read({"prompt": "a b c d e"})
    with pytest.raises(InvalidRequestError, match="line 1"):
        read({"promt": "x"})
