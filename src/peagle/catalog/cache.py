"""The folder where fetched models lie: whole and checked, or not there at all."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import platformdirs
from filelock import FileLock, Timeout
from rich.filesize import decimal

from peagle.catalog.progress import announce
from peagle.errors import DownloadError

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_FREE_OR_MOVE: Final = "Free some space, or point PEAGLE_CACHE at a folder on a larger disk."


def cache_folder() -> Path:
    """Where fetched models lie: `PEAGLE_CACHE`, or the user's cache folder."""
    told = os.environ.get("PEAGLE_CACHE")
    return (
        Path(told).expanduser().absolute() if told else Path(platformdirs.user_cache_dir("peagle"))
    )


@contextmanager
def exclusive(key: str, what: str) -> Iterator[None]:
    """Let one fetch of a thing run at a time; a second process waits for the first.

    The system drops the lock of a process that dies.

    Args:
        key: What is fetched, the same in every process.
        what: The same, as a person calls it.

    Raises:
        DownloadError: The disk is full, or the cache folder cannot be written.
    """
    with disk_errors():
        locks = cache_folder() / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(locks / f"{_slug(key)}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            announce(f"Another process is fetching {what}; waiting for it.")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def scratch_folder(key: str, what: str) -> Iterator[Path]:
    """Lend an empty folder on the cache's disk to one fetch at a time, as `exclusive` does.

    What a killed fetch left behind is removed by the next one of the same thing.
    """
    with exclusive(key, what):
        partial = cache_folder() / "partial" / _slug(key)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True, exist_ok=True)
        try:
            # A killed fetch's pip may live on for a moment; it must not meet our names.
            yield Path(tempfile.mkdtemp(dir=partial))
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _slug(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=@-]+", "-", key)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn what the disk refuses into a `DownloadError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise disk_full() from error
        raise DownloadError(
            f"The cache folder {cache_folder()} cannot be used: {error.strerror or error}.",
            remedy="Make it writable, or point PEAGLE_CACHE at another folder.",
            field="PEAGLE_CACHE",
        ) from error


def disk_full() -> DownloadError:
    """Describe a full disk."""
    return DownloadError(
        f"The disk that holds {cache_folder()} is full.",
        remedy=_FREE_OR_MOVE,
        field="PEAGLE_CACHE",
    )


def require_space(folder: Path, needed: int, what: str) -> None:
    """Refuse a fetch that cannot fit, before it begins.

    Args:
        folder: An existing folder on the disk in question.
        needed: Bytes.
        what: What is fetched.

    Raises:
        DownloadError: Less than `needed` is free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{what} needs {decimal(needed)} of disk at {folder}, where {decimal(free)} is free.",
            remedy=_FREE_OR_MOVE,
            field="PEAGLE_CACHE",
        )


def stamp_file(file: Path) -> Path:
    """The small file beside `file` that says it is whole and which hash it has."""
    return file.with_name(f"{file.name}.verified.json")


def write_stamp(file: Path, sha256: str) -> None:
    """Note that `file` was read to its end and has this hash."""
    write_json(stamp_file(file), {"sha256": sha256, "size": file.stat().st_size})


def is_verified(file: Path, sha256: str | None) -> bool:
    """Tell, without reading it, whether `file` is whole and the one wanted.

    Args:
        file: The file in the cache.
        sha256: The hash it must have; None accepts the one it had when it was fetched.
    """
    stamp = read_json(stamp_file(file))
    return (
        file.is_file()
        and stamp.get("size") == file.stat().st_size
        and sha256 in (None, stamp.get("sha256"))
    )


def reverify(file: Path, sha256: str | None) -> bool:
    """Read `file` and stamp it if it has the hash wanted, or else the one of its old stamp."""
    wanted = sha256 or read_json(stamp_file(file)).get("sha256")
    if wanted is None or not file.is_file():
        return False
    with file.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != wanted:
            return False
    write_stamp(file, wanted)
    return True


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Write a small file so that it is seen whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as part:
        json.dump(value, part)
    Path(part.name).replace(file)


def read_json(file: Path) -> dict[str, Any]:
    """Read a small file; one that is missing or unreadable says nothing."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
