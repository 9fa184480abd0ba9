"""What a drafter network predicts for the next levels of the candidate tree."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class LevelDistributions(Protocol):
    """Predictions of a network, level by level, perhaps depending on the branch."""

    @property
    def levels(self) -> int:
        """Number of levels predicted."""
        ...

    def children(self, depth: int, path: Sequence[int]) -> tuple[list[int], list[float]]:
        """Predict the token at `depth` (1 is the first) after the draft tokens of `path`.

        Returns:
            Token ids of the target's vocabulary and their probabilities, falling; none where the
            network was not asked about this path.
        """
        ...


class NetworkDistributions:
    """The marginals of one P-EAGLE pass: each level is predicted without knowing the branch.

    Args:
        ids: Most probable tokens of each level, in the target's vocabulary: `[levels, top]`.
        probabilities: Their probabilities, falling along each row: `[levels, top]`.
    """

    def __init__(
        self, ids: npt.NDArray[np.integer], probabilities: npt.NDArray[np.floating]
    ) -> None:
        self._levels: list[tuple[list[int], list[float]]] = list(
            zip(ids.tolist(), probabilities.tolist(), strict=True)
        )

    @property
    def levels(self) -> int:
        """Number of levels predicted."""
        return len(self._levels)

    def children(self, depth: int, path: Sequence[int]) -> tuple[list[int], list[float]]:  # noqa: ARG002
        """Return the level's marginal, whatever the path."""
        return self._levels[depth - 1]
