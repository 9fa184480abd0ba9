"""What target passes cost over more and more rows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peagle.model.kv_cache import page_bytes, pages_for
from peagle.model.rows import SequenceRows
from peagle.model.target import TargetModel

_REPETITIONS: Final = 5


@dataclass(frozen=True, slots=True)
class PassCost:
    """How long a target pass takes.

    Attributes:
        rows: Rows of the step.
        passes: Passes that they took.
        seconds: Median over repetitions.
    """

    rows: int
    passes: int
    seconds: float


def pass_costs(
    target: TargetModel, row_counts: Sequence[int] = (1, 4, 16, 64), context: int = 320
) -> list[PassCost]:
    """Time target passes over trees of so many rows behind `context` committed positions."""
    cache = target.new_cache(
        pages_for(context + max(row_counts)) * page_bytes(target.config, target.kv_dtype)
    )
    sequence = cache.open(context + max(row_counts))
    target.forward(cache, [SequenceRows(sequence, [1] * context, logits="none")]).commit(
        [range(context)]
    )
    costs = []
    for rows in row_counts:
        # Branches of four, as a candidate tree has them.
        parents = [-1, *(0 if place % 4 == 0 else place for place in range(rows - 1))]
        step = [SequenceRows(sequence, [1] * rows, parents)]
        times = []
        for _ in range(_REPETITIONS + 1):
            started = time.perf_counter()
            output = target.forward(cache, step)
            output.logits[0][0, 0].item()
            times.append(time.perf_counter() - started)
        costs.append(PassCost(rows, len(output.step.passes), sorted(times[1:])[_REPETITIONS // 2]))
    return costs
