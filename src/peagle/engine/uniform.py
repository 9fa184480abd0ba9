"""The numbers that sampling draws, as a function of where they are used and nothing else."""

import hashlib
import struct
from typing import Final

_PLACE: Final = struct.Struct("<QQQ")
_DROPPED_BITS: Final = 64 - 53
_STEP: Final = 2.0**-53


def uniform(seed: int, choice: int, position: int) -> float:
    """Return the uniform number that decides one output token.

    It is a hash, so that it is the same on every machine, with every library version and in
    every batch, and so that no generator has to be kept in step with accepted drafts.

    Args:
        seed: The request's seed, 0 to 2**64 - 1.
        choice: Which of the request's `n` answers.
        position: Tokens of this answer before the one that is drawn.

    Returns:
        A multiple of 2**-53 in [0, 1).
    """
    place = _PLACE.pack(seed, choice, position)
    bits = int.from_bytes(hashlib.blake2b(place, digest_size=8).digest(), "little")
    return (bits >> _DROPPED_BITS) * _STEP
