"""Measure what the parts of a step cost, in a second or so."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final

import torch

from peagle.draft.corpus import Corpus
from peagle.draft.mixture import MixturePrior
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.proposer import new_proposer
from peagle.engine.costs import BASE_CONTEXT, CostCurve, StepCosts
from peagle.model.kv_cache import KVCache, SequenceCache, page_bytes, pages_for
from peagle.model.rows import SequenceRows
from peagle.model.target import Target
from peagle.spec import ParallelDraftingSpec

Measurements = dict[str, list[float]]

BUDGET_S: Final = 1.0
"""Seconds after which nothing is measured again. A slow model takes longer for its first round."""

# Both sides of the counts at which kernels change their tiles; what matters most comes first, as
# a slow model gets to no more than that.
_ROWS: Final = (8, 9, 17, 64, 2, 5, 33)
_FIRST_ROWS: Final = (1, 16, 4, 32)
_MOST_ROUNDS: Final = 7
_FAR: Final = 1280
# Kept costs are measured anew where a pass takes so many times as long, or as short.
_ALIKE: Final = 1.6
_CHECK_S: Final = 0.1
_SEQUENCES: Final = 16
_FAR_ROWS: Final = 16
_TEXT_TOKENS: Final = 300
_TEXT_NODES: Final = 15
_NETWORK_ROWS: Final = (1, 16, 4, 8, 32)
_NETWORK_DEPTH: Final = 4


def measure_step_costs(
    target: Target,
    drafter: Drafter | None,
    *,
    corpus: Corpus | None,
    prior: MixturePrior,
    budget_s: float = BUDGET_S,
) -> StepCosts:
    """Measure the parts of a step, target passes first.

    Args:
        target: The model that writes.
        drafter: The drafter network, if there is one.
        corpus: What the text sources are asked about, beside a made-up text.
        prior: How their evidence is mixed.
        budget_s: Seconds for repetitions of target passes; the network gets a quarter more.
    """
    target_costs = measure_target(target, budget_s)
    return target_costs.model_copy(
        update={
            "per_text_node": _text_node_seconds(corpus, prior, target.config.vocab_size),
            "network": None if drafter is None else measure_network(drafter, budget_s / 4),
        }
    )


def measure_target(target: Target, budget_s: float = BUDGET_S) -> StepCosts:
    """Measure target passes over more and more rows, longer contexts and more sequences.

    They read a cache of their own, full of zeros: what keys and values hold changes no time.

    Args:
        target: The model.
        budget_s: Seconds for repetitions.
    """
    most = target.rows_per_pass
    near = max(0, min(BASE_CONTEXT, target.config.context_length - most))
    far = max(near, min(_FAR, target.config.context_length - _FAR_ROWS))
    pages = pages_for(near + most) + pages_for(far + _FAR_ROWS)
    kv_cache = target.new_cache(pages * page_bytes(target.config, target.kv_dtype))
    one, long = _opened(kv_cache, near, most), _opened(kv_cache, far, _FAR_ROWS)
    first = [rows for rows in _FIRST_ROWS if rows < most] + [most]
    counts = first + [rows for rows in _ROWS if rows < most]
    passes: dict[str, Callable[[], None]] = {
        f"{rows}": _pass(target, kv_cache, [_branches(one, rows)]) for rows in counts
    }
    if far > near:
        for rows in (_FAR_ROWS, 1):
            passes[f"far {rows}"] = _pass(target, kv_cache, [_branches(long, rows)])
    # The same cache many times over: each is read and planned as a sequence of its own.
    together = [SequenceRows(one, [1]) for _ in range(_SEQUENCES)]
    passes["together"] = _pass(target, kv_cache, together)
    found = _measured(passes, budget_s, len(first))
    curve = CostCurve.measured({rows: found[f"{rows}"] for rows in counts if f"{rows}" in found})
    per_key, per_row_key = _context_costs(found, far - near)
    per_sequence = 0.0
    if "together" in found:
        per_sequence = (median(found["together"]) - curve.at(_SEQUENCES)) / (_SEQUENCES - 1)
    return StepCosts(
        target=curve,
        per_sequence=max(0.0, per_sequence),
        per_key=per_key,
        per_row_key=per_row_key,
    )


def target_costs_hold(target: Target, costs: StepCosts) -> bool:
    """Whether a few passes take about as long as the curve says.

    Args:
        target: The model.
        costs: What was measured before.
    """
    kv_cache = target.new_cache(
        pages_for(BASE_CONTEXT + _FAR_ROWS) * page_bytes(target.config, target.kv_dtype)
    )
    near = max(0, min(BASE_CONTEXT, target.config.context_length - _FAR_ROWS))
    sequence = _opened(kv_cache, near, _FAR_ROWS)
    passes = {
        f"{rows}": _pass(target, kv_cache, [_branches(sequence, rows)]) for rows in (1, _FAR_ROWS)
    }
    found = _measured(passes, _CHECK_S, len(passes))
    return all(
        costs.target.at(int(rows)) < _ALIKE * min(times)
        and min(times) < _ALIKE * costs.target.at(int(rows))
        for rows, times in found.items()
    )


def measure_network(drafter: Drafter, budget_s: float) -> CostCurve | None:
    """Measure passes of a drafter network over more and more rows.

    Args:
        drafter: The drafter; pages that it takes of its cache are given back.
        budget_s: Seconds for repetitions.

    Returns:
        The curve; None where the cache is full.
    """
    chain = DraftLimits(_NETWORK_DEPTH, _NETWORK_DEPTH, 1)
    depth = _NETWORK_DEPTH if len(drafter.pass_rows([1], [chain])) == 1 else 1
    feature = torch.zeros(
        1, drafter.network.config.feature_size, device=drafter.network.compute.device
    )
    positions = _MOST_ROUNDS + 2

    def draft(states: Sequence[DrafterState], levels: int) -> None:
        for state in states:
            state.observe([1], feature)
        limits = DraftLimits(levels, levels, 1)
        for predicted in drafter.draft(states, [limits] * len(states)):
            # Asked about a path, as a tree asks: a deep level may be worked out only then.
            path: tuple[int, ...] = ()
            for depth in range(1, predicted.levels + 1):
                ids, _ = predicted.children(depth, path)
                if not ids:
                    break
                path = (*path, ids[0])

    opened: list[DrafterState] = []
    passes: dict[str, Callable[[], None]] = {}
    try:
        for rows in _NETWORK_ROWS:
            levels = min(rows, depth)
            if not drafter.cache.fits(positions * (rows // levels)):
                continue
            states = [drafter.open(positions) for _ in range(rows // levels)]
            opened += states
            passes[f"{rows}"] = partial(draft, states, levels)
        found = _measured(passes, budget_s, len(passes))
    finally:
        for state in opened:
            drafter.close(state)
    if "1" not in found:
        return None
    return CostCurve.measured({int(rows): times for rows, times in found.items()})


def _measured(
    passes: Mapping[str, Callable[[], None]], budget_s: float, needed: int
) -> Measurements:
    """Time passes in rounds, so that a disturbance does not meet all repetitions of one of them.

    Args:
        passes: What to run; each is run once before it is timed.
        budget_s: Seconds after which no further round begins.
        needed: So many of them are measured in any case, the others where half the budget is left
            for their turn.
    """
    found: Measurements = {}
    began = time.perf_counter()
    deadline = began + budget_s
    for place, (name, run) in enumerate(passes.items()):
        if place >= needed and time.perf_counter() > began + budget_s / 2:
            break
        run()
        found[name] = []
    # At least three rounds of what was warmed up, whatever the budget says.
    for turn in range(_MOST_ROUNDS):
        if turn > 2 and time.perf_counter() > deadline:
            break
        for name, times in found.items():
            started = time.perf_counter()
            passes[name]()
            times.append(time.perf_counter() - started)
    return found


def _pass(target: Target, kv_cache: KVCache, rows: Sequence[SequenceRows]) -> Callable[[], None]:
    """A step over some rows that is never committed, waited for to its end."""

    def run() -> None:
        output = target.forward(kv_cache, rows)
        output.logits[-1][-1, 0].item()

    return run


def _branches(cache: SequenceCache, rows: int) -> SequenceRows:
    """A tree with branches of four, as candidate trees have them."""
    parents = [-1, *(0 if place % 4 == 0 else place for place in range(rows - 1))]
    return SequenceRows(cache, [1] * rows, parents)


def _opened(kv_cache: KVCache, context: int, rows: int) -> SequenceCache:
    """Make a sequence with so many committed positions and room for rows behind them."""
    sequence = kv_cache.open(context + rows)
    kv_cache.take_pages(sequence, context)
    sequence.length = context
    return sequence


def _context_costs(found: Measurements, keys: int) -> tuple[float, float]:
    """Seconds for each further position of a context: for its sequence, and for each row."""
    needed = ("1", "far 1", f"{_FAR_ROWS}", f"far {_FAR_ROWS}")
    if keys <= 0 or not all(name in found for name in needed):
        return 0.0, 0.0
    one, one_far, many, many_far = (median(found[name]) for name in needed)
    single, several = max(0.0, one_far - one) / keys, max(0.0, many_far - many) / keys
    each = min(max(0.0, (several - single) / (_FAR_ROWS - 1)), single)
    return single - each, each


def _text_node_seconds(corpus: Corpus | None, prior: MixturePrior, vocab_size: int) -> float:
    """Seconds for a node that the text sources propose, in a text that repeats itself at times."""
    chance = random.Random(1)  # noqa: S311  (a made-up text, no secret)
    if corpus is not None:
        vocab_size = min(vocab_size, corpus.description.vocab_size)
    words = [chance.randrange(vocab_size) for _ in range(math.isqrt(_TEXT_TOKENS))]
    text = [chance.choice(words) for _ in range(_TEXT_TOKENS)]
    proposer = new_proposer(
        text,
        spec=ParallelDraftingSpec(max_tree_nodes=_TEXT_NODES),
        corpus=corpus,
        prior=prior,
    )
    times = []
    for _ in range(_MOST_ROUNDS):
        began = time.perf_counter()
        tree = proposer.propose()
        times.append((time.perf_counter() - began) / max(1, len(tree)))
    return median(times)
