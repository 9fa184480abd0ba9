import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.errors import CheckpointError
from peagle.train.conversations import (
    Conversation,
    ConversationFile,
    Sidecar,
    read_conversations,
)

FINGERPRINT = "f" * 64
GOOD = {"category": "qa", "prompt_token_ids": [5, 6, 7], "response_token_ids": [8, 2]}


def read(path: Path, vocab_size: int = 100) -> ConversationFile:
    return read_conversations(path, vocab_size=vocab_size, tokenizer_fingerprint=FINGERPRINT)


def lines_of(*fields: object) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in fields).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_come_back_in_order_plain_and_compressed(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "data"
    path.write_bytes(
        pack(
            lines_of(GOOD)
            + b"\n"
            + lines_of({"prompt_token_ids": [1], "response_token_ids": [99], "id": "kept aside"})
        )
    )
    found = read(path)
    assert [
        (list(each.prompt), list(each.response), each.category) for each in found.conversations
    ] == [([5, 6, 7], [8, 2], "qa"), ([1], [99], "all")]
    assert found.path == path


def test_digest_is_that_of_the_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt_token_ids":[1],"response_token_ids":[2]}\n')
    # sha256sum data.jsonl
    assert read(path).sha256 == "ba08a056cc75012ec32f4ddab7dea57d2a279a44da8db5ad149aec7779012f0b"


def test_a_written_line_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    one = Conversation([1, 2], [3], "code")
    assert one.as_line() == (
        '{"category":"code","prompt_token_ids":[1,2],"response_token_ids":[3]}\n'
    )
    path.write_text(one.as_line())
    (found,) = read(path).conversations
    assert found.as_line() == one.as_line()


def test_members_appended_one_after_another_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(lines_of(GOOD)) + gzip.compress(lines_of(GOOD, GOOD)))
    assert len(read(path).conversations) == 3


def test_reading_tells_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(lines_of(*[GOOD] * 1200))
    told: list[tuple[int, int]] = []
    read_conversations(
        path,
        vocab_size=100,
        tokenizer_fingerprint=FINGERPRINT,
        progress=lambda done, total: told.append((done, total)),
    )
    size = path.stat().st_size
    assert len(told) == 3
    assert told[-1] == (size, size)
    assert all(0 < done <= total == size for done, total in told)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (b"{\n", "line 2: it is not valid JSON"),
        (b'{"prompt_token_ids": [1], "respon', "line 2: the file ends in the middle of this line"),
        (b"\xff\xfe\n", "line 2: it is not valid JSON"),
        (b"[1, 2]\n", "line 2: it is not a JSON object"),
        (lines_of({"response_token_ids": [1]}), "line 2: it has no prompt"),
        (lines_of(GOOD | {"prompt_token_ids": []}), "no prompt (prompt_token_ids is empty)"),
        (lines_of({"prompt_token_ids": [1]}), "no response (response_token_ids is missing)"),
        (lines_of(GOOD | {"prompt_token_ids": "Hi"}), 'prompt_token_ids is "Hi", not a list'),
        (lines_of(GOOD | {"response_token_ids": [1, 2.0]}), "holds 2.0, which is no token id"),
        (lines_of(GOOD | {"response_token_ids": [True]}), "holds true, which is no token id"),
        (lines_of(GOOD | {"response_token_ids": [100]}), "holds 100, but this model's vocabulary"),
        (lines_of(GOOD | {"prompt_token_ids": [-1]}), "holds -1, but this model's vocabulary"),
        (lines_of(GOOD | {"category": 3}), "category is 3, not a string"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, second: bytes, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(lines_of(GOOD) + second)
    with pytest.raises(CheckpointError) as raised:
        read(path)
    assert f"{path}, line 2" in raised.value.problem
    assert message in raised.value.problem


def test_blank_lines_count_in_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\n\n" + lines_of(GOOD) + b"no\n")
    with pytest.raises(CheckpointError, match="line 4"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"\n\n", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="holds no conversations"):
        read(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read(path)


def test_truncated_and_damaged_compression_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    whole = gzip.compress(lines_of(*[GOOD] * 50))
    path.write_bytes(whole[:-9])
    with pytest.raises(CheckpointError, match="is cut off: its compressed data"):
        read(path)
    path.write_bytes(whole[:-8] + b"\0" * 8)
    with pytest.raises(CheckpointError, match="is damaged"):
        read(path)


def test_a_sidecar_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(lines_of(GOOD))
    sidecar = Sidecar(model="other", tokenizer_fingerprint="0" * 64, settings={})
    Sidecar.path_of(path).write_text(sidecar.model_dump_json())
    with pytest.raises(CheckpointError, match="made by other with tokenizer 000000000000…"):
        read(path)
    same = sidecar.model_copy(update={"tokenizer_fingerprint": FINGERPRINT})
    Sidecar.path_of(path).write_text(same.model_dump_json())
    assert len(read(path).conversations) == 1


def test_a_damaged_sidecar_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(lines_of(GOOD))
    for content in ("{", "{}"):
        (tmp_path / "data.jsonl.meta.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"meta\.json is damaged"):
            read(path)
