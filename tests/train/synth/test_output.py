import gzip
import json
from pathlib import Path

import pytest

from peagle.errors import CheckpointError, InvalidRequestError, PeagleError
from peagle.train.conversations import Conversation, Progress, Sidecar
from peagle.train.synth.output import ConversationWriter

MADE = Sidecar(model="small", tokenizer_fingerprint="f" * 64, settings={"seed": 1, "turns": 3})
NAMES = pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])


def conversation(number: int) -> Conversation:
    return Conversation([number, 7, 8], [9] * (number + 1), "qa")


def written(path: Path, first: int, count: int) -> None:
    with ConversationWriter(path, MADE, 100) as writer:
        for number in range(first, first + count):
            writer.write(conversation(number), Progress(lines=number + 1, scenario=number))


def lines_of(path: Path) -> list[str]:
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return text.decode().splitlines(keepends=True)


@NAMES
def test_a_file_is_continued(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / name
    written(path, 0, 3)
    with ConversationWriter(path, MADE, 100) as writer:
        assert writer.progress == Progress(lines=3, scenario=2)
        assert writer.notes == []
        assert [list(each.prompt) for each in writer.written_before()] == [
            [0, 7, 8],
            [1, 7, 8],
            [2, 7, 8],
        ]
    written(path, 3, 2)
    assert lines_of(path) == [conversation(number).as_line() for number in range(5)]
    sidecar = json.loads((tmp_path / "new" / f"{name}.meta.json").read_text())
    assert sidecar == {
        "format": "peagle-conversations-1",
        "model": "small",
        "tokenizer_fingerprint": "f" * 64,
        "settings": {"seed": 1, "turns": 3},
        "progress": {"lines": 5, "scenario": 4, "records": 0},
    }
    assert sorted(each.name for each in path.parent.iterdir()) == [name, f"{name}.meta.json"]


@NAMES
def test_every_line_can_be_read_while_the_run_goes_on(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with ConversationWriter(path, MADE, 100) as writer:
        for number in range(3):
            writer.write(conversation(number), Progress(lines=number + 1))
            # What a run that is killed here leaves behind.
            copy = tmp_path / f"killed-{number}-{name}"
            copy.write_bytes(path.read_bytes())
            Sidecar.path_of(copy).write_bytes(Sidecar.path_of(path).read_bytes())
            with ConversationWriter(copy, MADE, 100) as after:
                assert after.progress.lines == number + 1
                assert after.notes == []
            assert lines_of(copy) == [conversation(each).as_line() for each in range(number + 1)]


@NAMES
@pytest.mark.parametrize("last", [conversation(3).as_line()[:-20], conversation(3).as_line()])
def test_what_a_killed_run_did_not_finish_is_dropped(tmp_path: Path, name: str, last: str) -> None:
    path = tmp_path / name
    written(path, 0, 3)
    with path.open("ab") as file:
        unfinished = gzip.compress(last.encode())[:-8] if name.endswith("gz") else last.encode()
        file.write(unfinished)
    with ConversationWriter(path, MADE, 100) as writer:
        (note,) = writer.notes
        assert "was not finished when the run broke off; it was dropped" in note
        writer.write(conversation(3), Progress(lines=4))
    assert lines_of(path) == [conversation(number).as_line() for number in range(4)]


def test_only_a_run_with_the_same_settings_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    written(path, 0, 1)
    before = path.read_bytes(), Sidecar.path_of(path).read_bytes()
    for change, message in (
        ({"settings": {"seed": 2, "turns": 3}}, "was made with seed 1, not 2"),
        ({"settings": {"seed": 1}}, "was made with turns 3, not None"),
        ({"model": "other"}, "was made with model small, not other"),
        ({"tokenizer_fingerprint": "0" * 64}, "with tokenizer ffffffffffff…, this model has 0000"),
    ):
        with pytest.raises(PeagleError, match=message):
            ConversationWriter(path, MADE.model_copy(update=change), 100)
    assert (path.read_bytes(), Sidecar.path_of(path).read_bytes()) == before


def test_a_file_that_others_made_or_changed_is_left_alone(tmp_path: Path) -> None:
    strange = tmp_path / "strange.jsonl"
    strange.write_text(conversation(1).as_line())
    with pytest.raises(InvalidRequestError, match=r"strange\.jsonl\.meta\.json, which would say"):
        ConversationWriter(strange, MADE, 100)
    for number, (content, message) in enumerate(
        (
            ("", "has 0 lines, but its sidecar counts 2"),
            ("".join(conversation(each).as_line() for each in range(4)), "has 4 lines"),
        )
    ):
        path = tmp_path / f"{number}.jsonl"
        written(path, 0, 2)
        path.write_text(content)
        with pytest.raises(CheckpointError, match=message):
            ConversationWriter(path, MADE, 100)
        assert path.read_text() == content
    gone = tmp_path / "gone.jsonl"
    written(gone, 0, 2)
    gone.unlink()
    with pytest.raises(CheckpointError, match="has 0 lines"):
        ConversationWriter(gone, MADE, 100)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "data.jsonl", tmp_path):
        with pytest.raises(PeagleError):
            ConversationWriter(path, MADE, 100)


def test_two_runs_do_not_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    with (
        ConversationWriter(path, MADE, 100),
        pytest.raises(InvalidRequestError, match="Another process is writing"),
    ):
        ConversationWriter(path, MADE, 100)
    written(path, 0, 1)
