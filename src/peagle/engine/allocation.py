"""Share a pass out: draft tokens for all answers together, as long as they pay for themselves."""

import heapq
from collections.abc import Sequence

from peagle import native
from peagle.draft.native_proposer import NativeGrowingTree
from peagle.draft.tree import GrowingTree
from peagle.engine.expectation import Calibration


def allocate(
    trees: Sequence[GrowingTree | NativeGrowingTree],
    calibrations: Sequence[Calibration],
    seconds: Sequence[float],
    certain: float,
    rate: float,
) -> tuple[list[int], float]:
    """Choose how many nodes of each tree a step verifies.

    Nodes are taken in the order of falling probability, whosever they are. The number of nodes is
    the one that leaves most tokens, `certain` and the nodes' probabilities, after paying for the
    step's seconds at `rate`: over many steps that gives most tokens a second where `rate` is what
    they come to (renewal-reward theorem; Dinkelbach 1967), while the best rate of every single step
    would give too few nodes where much is predictable. As a pass may cost the same for 9 rows as
    for 16, the sum may fall before it rises again; nodes are taken on until no number of further
    ones, were they all as probable as the next can be, could be better than the best so far.

    The choice depends on these arguments alone. Trees grow no further than the decision needs.

    Args:
        trees: The trees, all of one kind, of which nothing is taken yet; what is taken beyond the
            chosen nodes is to be cut off.
        calibrations: What corrects the probabilities of each.
        seconds: Seconds of the step with 0, 1, … nodes; they never fall. No more nodes are taken
            than it has entries for.
        certain: Tokens that the step writes without any draft.
        rate: Tokens that a second is worth.

    Returns:
        How many nodes of each tree to verify, and the tokens that the step then writes, expected.
    """
    python = [tree for tree in trees if isinstance(tree, GrowingTree)]
    if len(python) == len(trees):
        return _allocate(python, calibrations, seconds, certain, rate)
    grown = [tree.grown for tree in trees if isinstance(tree, NativeGrowingTree)]
    counts, expected = native.library.allocate(
        grown, [one.odds for one in calibrations], seconds, certain, rate
    )
    return counts, expected


def _allocate(
    trees: Sequence[GrowingTree],
    calibrations: Sequence[Calibration],
    seconds: Sequence[float],
    certain: float,
    rate: float,
) -> tuple[list[int], float]:
    """Share out among trees that grow in Python, as the native module does among its own."""
    most = len(seconds) - 1
    expected = best_expected = certain
    count, best = 0, certain - rate * seconds[0]
    taken: list[int] = []
    # Of equally probable nodes the first answer's come first.
    corrected = [one.corrected for one in calibrations]
    queue = [(-corrected[place](tree.bound), place) for place, tree in enumerate(trees)]
    heapq.heapify(queue)
    while queue and len(taken) < most:
        negative, place = queue[0]
        if not _may_pay(best - expected, -negative, seconds, len(taken), rate):
            break
        tree = trees[place]
        if not tree.settled:
            tree.settle()
            heapq.heapreplace(queue, (-corrected[place](tree.bound), place))
            continue
        if negative == 0:
            break
        expected += corrected[place](tree.take())
        taken.append(place)
        heapq.heapreplace(queue, (-corrected[place](tree.bound), place))
        worth = expected - rate * seconds[len(taken)]
        if worth > best:
            count, best, best_expected = len(taken), worth, expected
    counts = [0] * len(trees)
    for place in taken[:count]:
        counts[place] += 1
    return counts, best_expected


def _may_pay(
    missing: float, probability: float, seconds: Sequence[float], taken: int, rate: float
) -> bool:
    """Whether some number of further nodes of at most this probability could beat the best.

    Their tokens, after paying for the whole step, then exceed those `missing` to it so far.
    """
    gained = 0.0
    for after in range(taken + 1, len(seconds)):
        gained += probability
        if gained - rate * seconds[after] > missing:
            return True
    return False
