"""What a drafter network predicts for the next levels of the candidate tree."""

from collections.abc import Sequence
from typing import Protocol

Children = tuple[list[int], list[float]]
"""Token ids of the target's vocabulary and their probabilities, falling."""


class LevelDistributions(Protocol):
    """Predictions of a network, level by level, perhaps depending on the branch."""

    @property
    def levels(self) -> int:
        """Number of levels predicted."""
        ...

    def children(self, depth: int, path: Sequence[int]) -> Children:
        """Predict the token at `depth` (1 is the first) after the draft tokens of `path`.

        Returns:
            Token ids of the target's vocabulary and their probabilities, falling; none where the
            network was not asked about this path.
        """
        ...


class NetworkDistributions:
    """The marginals of one P-EAGLE pass: each level is predicted without knowing the branch.

    Args:
        levels: Most probable tokens of each level.
    """

    def __init__(self, levels: Sequence[Children]) -> None:
        self._levels = levels

    @property
    def levels(self) -> int:
        """Number of levels predicted."""
        return len(self._levels)

    def children(self, depth: int, path: Sequence[int]) -> Children:  # noqa: ARG002
        """Return the level's marginal, whatever the path."""
        return self._levels[depth - 1]
