"""What speculation did for an answer, counted so that the figures cannot flatter."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SpeculationStatistics:
    """Counts of decode steps; steps over the prompt are not among them.

    Attributes:
        target_passes: Steps in which the target verified drafts or wrote a token. A step over
            more rows than one pass takes counts once.
        draft_passes: Passes of the drafter network that predicted tokens for the answer: one a step
            for P-EAGLE, one a level for EAGLE-3. Passes shared with other answers count in full.
        drafted_tokens: Nodes of all candidate trees.
        accepted_tokens: Of these, tokens that the target chose too.
        emitted_tokens: Tokens written by these steps: all but the answer's first.
        accepted_depths: How many steps accepted exactly so many draft tokens.
    """

    target_passes: int = 0
    draft_passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    accepted_depths: Counter[int] = field(default_factory=Counter)

    def count_step(self, *, drafted: int, accepted: int, emitted: int) -> None:
        """Count one decode step."""
        self.target_passes += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self.emitted_tokens += emitted
        self.accepted_depths[accepted] += 1

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per target pass, the target's own included; None without a decode step.

        Tokens after the first, divided by the passes that emitted them. What a stop or a limit
        cut off was never emitted and does not count.
        """
        return self.emitted_tokens / self.target_passes if self.target_passes else None

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Share of steps in which the draft token at depth 1, 2, … was accepted (cumulative)."""
        deepest = max(self.accepted_depths, default=0)
        return [
            sum(count for depth, count in self.accepted_depths.items() if depth >= d)
            / self.target_passes
            for d in range(1, deepest + 1)
        ]

    def as_object(self, method: str) -> dict[str, Any]:
        """Give the counts as users see them in JSON.

        Args:
            method: How drafts were made.
        """
        return {
            "method": method,
            "target_passes": self.target_passes,
            "draft_passes": self.draft_passes,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance_length": self.acceptance_length,
            "acceptance_by_depth": self.acceptance_by_depth,
        }


def pooled(parts: Iterable[SpeculationStatistics]) -> SpeculationStatistics:
    """Add up the counts of several answers."""
    total = SpeculationStatistics()
    for part in parts:
        total.target_passes += part.target_passes
        total.draft_passes += part.draft_passes
        total.drafted_tokens += part.drafted_tokens
        total.accepted_tokens += part.accepted_tokens
        total.emitted_tokens += part.emitted_tokens
        total.accepted_depths += part.accepted_depths
    return total
