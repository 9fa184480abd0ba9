"""What followed the last tokens earlier in the same request's prompt and output."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

_RECENT: Final = 32
"""Earlier occurrences of a token that can begin a match; older ones rarely say anything new."""

_RUN: Final = 4
"""So many equal tokens tell that a text repeats itself."""

Matches = dict[int, int]
"""Length of the match that ends just before a position, by the position of what followed."""


class Lookup:
    """The text of one request, indexed by token.

    A match is an earlier place whose preceding tokens equal the last ones of a branch. Matches
    are followed token by token, so that a branch costs as much as it has matches, and grow as
    long as the text agrees.

    Args:
        token_ids: Prompt and, where a request is taken up again, output so far.
        max_length: Longest match that is told apart from longer ones.

    Attributes:
        repeats: Whether the last few tokens stood in the text before.
    """

    def __init__(self, token_ids: Sequence[int], max_length: int) -> None:
        self._text: list[int] = []
        self._following: defaultdict[int, list[int]] = defaultdict(list)
        self._max_length = max_length
        self._matches: Matches = {}
        self._followed = 0
        self._runs: set[tuple[int, ...]] = set()
        self.repeats = False
        self.extend(token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append committed tokens."""
        text, following, runs = self._text, self._following, self._runs
        for token in token_ids:
            text.append(token)
            following[token].append(len(text))
            run = tuple(text[-_RUN:])
            self.repeats = run in runs
            runs.add(run)

    @property
    def matches(self) -> Matches:
        """Matches of the end of the text; tokens appended since are followed only now."""
        text = self._text
        if self._followed < len(text):
            # Older matches cannot be longer than `max_length`: a long prompt need not be followed.
            begin = max(self._followed, len(text) - self._max_length)
            matches = self._matches if begin == self._followed else {}
            for token in text[begin:]:
                matches = self.follow(matches, token)
            self._matches, self._followed = matches, len(text)
        return self._matches

    def follow(self, matches: Matches, token: int) -> Matches:
        """Return the matches of a branch that continues one having `matches` with `token`."""
        text = self._text
        occurrences = self._following.get(token)
        if occurrences is None:
            return {}
        longer = dict.fromkeys(occurrences[-_RECENT:], 1)
        end = len(text)
        for position, length in matches.items():
            if position < end and text[position] == token:
                longer[position + 1] = length + 1
        # The text's end matches itself, and nothing followed it yet.
        longer.pop(end, None)
        return longer

    def evidence(self, matches: Matches, weights: Sequence[float]) -> dict[int, float]:
        """Add up what followed the matches.

        Args:
            matches: The matches of a branch.
            weights: What one occurrence counts, by the length of its match up to `max_length`.

        Returns:
            The evidence for each token that followed.
        """
        text = self._text
        end = len(text)
        longest = self._max_length
        found: dict[int, float] = {}
        for position, length in matches.items():
            if position < end:
                token = text[position]
                weight = weights[length if length < longest else longest]
                found[token] = found.get(token, 0.0) + weight
        return found
