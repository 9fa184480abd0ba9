"""One process at a time on what a command writes."""

import hashlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from peagle.catalog.cache import cache_folder
from peagle.errors import InvalidRequestError


def lock_output(path: Path) -> FileLock:
    """Keep a second process away from a file or folder until the lock is released.

    The lock lies in the cache folder, so that nothing stands beside the output. The system drops
    the lock of a process that dies.

    Raises:
        InvalidRequestError: Another process has it.
    """
    key = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
    place = cache_folder() / "locks" / f"output-{key}.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InvalidRequestError(
            f"Another process is writing to {path}.",
            remedy="Wait until it is done, or give another --output.",
            field="output",
        ) from None
    return lock
