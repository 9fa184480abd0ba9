"""Notice when a text has fallen into a loop, and say where to cut it.

Small models loop: an answer then goes on in circles up to the length limit. A loop teaches nothing
that its first turns do not, and costs as much to write as any other text.
"""

from typing import Final

import numpy as np

LONGEST_CYCLE: Final = 128
"""Tokens of the longest cycle that is looked for."""
CYCLES: Final = 3
"""So many turns of the same cycle, one after another, are a loop,"""
LEAST_TOKENS: Final = 48
"""if they also have at least so many tokens: a row of dashes or zeros is none."""
KEPT_CYCLES: Final = 2


class LoopDetector:
    """Reads a text token by token and tells when it has begun to loop.

    Whether and where it says so depends on the tokens up to there alone, so an answer may be ended
    as soon as it is noticed without changing what is kept of it.
    """

    def __init__(self) -> None:
        self._recent = np.full(LONGEST_CYCLE, -1, dtype=np.int64)
        # For each length of a cycle: tokens in a row that equal the one a cycle before.
        self._same = np.zeros(LONGEST_CYCLE, dtype=np.int64)
        lengths = np.arange(1, LONGEST_CYCLE + 1)
        self._needed = np.maximum((CYCLES - 1) * lengths, LEAST_TOKENS - lengths)
        self._read = 0

    def push(self, token: int) -> int | None:
        """Read the next token.

        Returns:
            How many tokens of the text to keep: up to the end of the cycle's second turn. None
            while the text does not loop.
        """
        # The newest comes first: entry k - 1 is the token k places before.
        self._same = np.where(self._recent == token, self._same + 1, 0)
        self._recent[1:] = self._recent[:-1].copy()
        self._recent[0] = token
        self._read += 1
        looping = self._same >= self._needed
        if not looping.any():
            return None
        shortest = int(np.argmax(looping))
        begins = self._read - int(self._same[shortest]) - (shortest + 1)
        return begins + KEPT_CYCLES * (shortest + 1)
