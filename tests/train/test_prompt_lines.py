"""Lines of prompts: names, compressed files and files of another tokenizer."""

import gzip
from pathlib import Path

import pytest

from peagle import LLM
from peagle.errors import CheckpointError, InvalidRequestError
from peagle.train.conversations import Sidecar
from peagle.train.prompt_lines import read_content, read_entries

LINES = (
    b'{"prompt": "Hi", "id": "a", "category": "chat", "max_tokens": 9}\n\n'
    b'{"prompt_token_ids": [1, 2], "response_token_ids": [3]}\n'
)


def test_lines_are_read_plain_and_compressed(smollm2: LLM, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    compressed = list(read_entries(smollm2, path, read_content(path)))
    assert compressed == list(read_entries(smollm2, path, LINES))
    first, second = compressed
    assert (first.id, first.category, first.max_tokens) == ("a", "chat", 9)
    assert list(first.prompt) == smollm2.encode("Hi")
    assert first.response is None
    assert (second.id, second.category, second.max_tokens) == ("line-3", "all", None)
    assert (list(second.prompt), list(second.response)) == ([1, 2], [3])
    assert second.where == f"{path}, line 3"


def test_a_damaged_file_is_named(smollm2: LLM, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    with pytest.raises(InvalidRequestError, match=r"prompts\.jsonl\.gz is damaged"):
        list(read_entries(smollm2, path, gzip.compress(LINES)[:-12]))


def test_a_file_of_another_tokenizer_is_refused(smollm2: LLM, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    sidecar = Sidecar(model="other", tokenizer_fingerprint="0" * 64, settings={})
    Sidecar.path_of(path).write_text(sidecar.model_dump_json())
    with pytest.raises(CheckpointError, match="was made by other with tokenizer 0000"):
        list(read_entries(smollm2, path, LINES))
