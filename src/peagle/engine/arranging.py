"""Arrange the candidate trees of a step, as large as they pay for themselves."""

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Final

from peagle.draft.distributions import LevelDistributions
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.proposer import Proposer
from peagle.draft.tree import CandidateTree
from peagle.engine.allocation import allocate
from peagle.engine.constrained_tree import constrained
from peagle.engine.costs import StepCosts
from peagle.engine.observed_costs import ObservedCosts
from peagle.engine.sequence import Sequence
from peagle.engine.step_seconds import StepSeconds
from peagle.spec import MAX_DEPTH

_BACKLOG_STEPS: Final = 48
"""Steps over which slots that wait for the network are paid off, as they are read only once."""

_MOST_WAITING: Final = 512
"""Slots that may wait for a network that is not run; more would fill memory for little."""

_TRY_AGAIN: Final = 64
_TRIAL: Final = 2.0
"""Every so many steps the network is run where so many times its expected gain would pay."""

_REMEMBERED: Final = 0.95
"""What a step's tokens and seconds still count for in the rate after the next step."""

_DEEPER: Final = 3
"""Levels that the network is asked for beyond the deepest node of the tree before."""

_LONGEST_PAUSE: Final = 3
"""Where drafts did not pay, the text sources are asked every 2, 4, … up to 2 to this power steps
only, unless the text begins to repeat itself."""


@dataclass(slots=True, eq=False)
class _Draft:
    """An answer for which something may be drafted in this step.

    Attributes:
        sequence: The answer.
        proposer: Its text sources and mixture.
        match: Length of the longest match of its text; 0 where it is not needed.
        limits: What the network may be asked for.
        network: What the network predicted, where it ran.
    """

    sequence: Sequence
    proposer: Proposer
    match: int
    limits: DraftLimits
    network: LevelDistributions | None = None


class TreeArranger:
    """Arranges the trees of all answers that write; the network drafts for them at once.

    Args:
        seconds: Where the time goes is added up here.
    """

    def __init__(self, seconds: StepSeconds) -> None:
        self._seconds = seconds
        self._steps = 0
        # Tokens expected of the steps so far, and those that their seconds had written undrafted.
        self._expected = self._plain = 0.0

    def arrange(
        self,
        writing: SequenceOf[Sequence],
        prompts: SequenceOf[tuple[int, int]],
        *,
        drafter: Drafter | None,
        costs: StepCosts | ObservedCosts | None,
    ) -> None:
        """Give each answer its candidate tree.

        Trees depend on texts, predictions, what was accepted before, and costs: never on the
        numbers that sampling draws.

        Args:
            writing: The answers that write.
            prompts: Committed positions and rows of the prompts that are read in the same step.
            drafter: The drafter network, if there is one.
            costs: What steps cost; None pins the shape of every tree.
        """
        began = time.perf_counter()
        self._steps += 1
        pinned: list[_Draft] = []
        adaptive: list[_Draft] = []
        for sequence in writing:
            sequence.tree = CandidateTree()
            if sequence.proposer is None or sequence.depth_limit < 1:
                continue
            if costs is None or not sequence.spec.adaptive:
                pinned.append(_pinned(sequence, sequence.proposer))
            else:
                adaptive.append(_adaptive(sequence, sequence.proposer))
        network_s = 0.0
        if drafter is not None:
            asked = [one for one in pinned if one.sequence.drafter is not None]
            able = [one for one in adaptive if one.sequence.drafter is not None]
            if costs is not None and costs.network is not None and able:
                bare = costs.step(_rows(writing, prompts), 0)[0]
                rate = self._rate(len(writing) / bare)
                chosen, network_s = self._worth_running(drafter, asked, able, costs, rate)
                asked += chosen
            else:
                asked += able
            _run_network(drafter, asked, costs)
        drafted = time.perf_counter()
        for one in pinned:
            one.sequence.tree = one.proposer.propose(
                one.network,
                depth_limit=one.sequence.depth_limit,
                node_limit=one.limits.nodes,
            )
        if costs is not None and adaptive:
            self._share_out(writing, prompts, adaptive, costs, network_s)
        grown = time.perf_counter()
        networked = sum(one.network is not None for one in adaptive)
        if networked and not pinned and isinstance(costs, ObservedCosts):
            nodes = sum(len(one.sequence.tree) for one in adaptive)
            costs.observe_network_trees(networked, grown - drafted - nodes * costs.per_text_node)
        for one in (*pinned, *adaptive):
            _constrain(one.sequence)
        self._seconds.network += drafted - began
        self._seconds.trees += time.perf_counter() - drafted

    def _share_out(
        self,
        writing: SequenceOf[Sequence],
        prompts: SequenceOf[tuple[int, int]],
        adaptive: SequenceOf[_Draft],
        costs: StepCosts | ObservedCosts,
        network_s: float,
    ) -> None:
        """Grow the adaptive trees together."""
        for one in adaptive:
            one.sequence.expectation.with_network = one.network is not None
        asking = [one for one in adaptive if self._worth_asking(one)]
        trees = [
            one.proposer.growing(one.network, depth_limit=one.sequence.depth_limit)
            for one in asking
        ]
        certain = len(writing) + sum(sum(one.tree.probabilities) for one in writing)
        calibrations = [one.sequence.expectation.calibration for one in asking]
        most = sum(one.limits.nodes for one in asking)
        seconds = costs.step(_rows(writing, prompts), most)
        plain_rate = len(writing) / seconds[0]
        rate = self._rate(plain_rate)
        counts, expected = allocate(trees, calibrations, seconds, certain, rate)
        nodes = sum(counts)
        self._expected = _REMEMBERED * self._expected + expected
        self._plain = _REMEMBERED * self._plain + plain_rate * (network_s + seconds[nodes])
        row_s = (seconds[nodes] - seconds[0]) / max(1, nodes)
        for one, tree, count in zip(asking, trees, counts, strict=True):
            sequence = one.sequence
            expectation = sequence.expectation
            sequence.tree = tree.first(count)
            # Asking has to bring what it costs, the time of the rows and of the sources.
            asking_s = costs.per_text_node * (1 + tree.taken)
            surplus = expectation.calibration.promise(sequence.tree) - rate * (
                count * row_s + asking_s
            )
            expectation.idle = 0 if surplus > 0 else expectation.idle + 1
            if one.network is not None:
                expectation.network_depth = max(sequence.tree.depths, default=0)
                if expectation.comparison_due(one.match):
                    text = one.proposer.propose(depth_limit=sequence.depth_limit, node_limit=count)
                    expectation.compare(one.match, sequence.tree, text, price=rate * row_s)

    def _rate(self, plain_rate: float) -> float:
        """Give the tokens a second that time is worth: what steps have come to of late.

        Args:
            plain_rate: Tokens a second without drafts of the answers that write now; the rate
                keeps its proportion to it as answers come and go.
        """
        return plain_rate * max(1.0, self._expected / self._plain if self._plain else 1.0)

    def _worth_asking(self, one: _Draft) -> bool:
        """Whether to ask the text sources; where nothing paid before, only now and then."""
        idle = one.sequence.expectation.idle
        return (
            idle == 0
            or one.network is not None
            or self._steps % (1 << min(idle, _LONGEST_PAUSE)) == 0
            or one.proposer.repeats
        )

    def _worth_running(
        self,
        drafter: Drafter,
        asked: SequenceOf[_Draft],
        able: SequenceOf[_Draft],
        costs: StepCosts | ObservedCosts,
        rate: float,
    ) -> tuple[list[_Draft], float]:
        """Choose the answers that the network drafts for: those whose gain is worth its time.

        Args:
            drafter: The network.
            asked: Answers that it drafts for in any case.
            able: Answers to choose from.
            costs: What its passes cost, among others.
            rate: Expected tokens of a second, at which time is worth what it could write.

        Returns:
            The answers, and the seconds of the whole pass.
        """
        trial = _TRIAL if self._steps % _TRY_AGAIN == 0 else 1.0
        offers = []
        for one in able:
            state = _state(one)
            # A prompt waits whole for the first pass.
            first = 0 if state.passes else len(one.sequence.prompt_ids)
            if state.waiting > first + _MOST_WAITING:
                drafter.prefill([state])
            if not state.beyond_context:
                one.match = one.proposer.longest_match
                offers.append((trial * one.sequence.expectation.network_gain(one.match), one))
        # The most promising first; of equals the one that came first.
        offers.sort(key=lambda offer: -offer[0])
        base = _network_seconds(drafter, asked, costs)
        best: list[_Draft] = []
        best_worth, best_s = 0.0, base
        count = len(offers)
        while count:
            some = [one for _, one in offers[:count]]
            network_s = _network_seconds(drafter, [*asked, *some], costs)
            worth = sum(gain for gain, _ in offers[:count]) - rate * (network_s - base)
            if worth > best_worth:
                best, best_worth, best_s = some, worth, network_s
            count //= 2
        for one in best:
            # What one more level of an EAGLE-3 network has to bring.
            widths = [min(two.limits.roots, two.limits.nodes) for two in best]
            level = _pass_seconds(costs, sum(widths))
            one.limits = replace(one.limits, price=rate * level / len(best))
        return best, best_s


def _pass_seconds(costs: StepCosts | ObservedCosts, rows: int) -> float:
    """Seconds of a pass of the network."""
    assert costs.network is not None
    return costs.network_factor * costs.network.at(rows)


def _network_seconds(
    drafter: Drafter, drafts: SequenceOf[_Draft], costs: StepCosts | ObservedCosts
) -> float:
    """What drafting for some answers costs; slots that waited count over the coming steps."""
    if not drafts:
        return 0.0
    waiting = []
    for one in drafts:
        slots = _state(one).waiting
        new = min(slots, one.sequence.newest)
        waiting.append(new + (slots - new) // _BACKLOG_STEPS)
    rows = drafter.pass_rows(waiting, [one.limits for one in drafts])
    passes = sum(_pass_seconds(costs, count) for count in rows)
    return passes + len(drafts) * costs.per_network_tree


def _run_network(
    drafter: Drafter, asked: SequenceOf[_Draft], costs: StepCosts | ObservedCosts | None
) -> None:
    """Ask the network about some answers, all in the same passes."""
    if not asked:
        return
    states = [_state(one) for one in asked]
    limits = [one.limits for one in asked]
    rows = drafter.pass_rows([state.waiting for state in states], limits)
    began = time.perf_counter()
    predicted = drafter.draft(states, limits)
    if isinstance(costs, ObservedCosts) and costs.network is not None:
        expected = sum(costs.network.at(count) for count in rows)
        costs.observe_network(expected, time.perf_counter() - began)
    for one, state, network in zip(asked, states, predicted, strict=True):
        one.network = network
        one.sequence.statistics.draft_passes = state.passes


def _constrain(sequence: Sequence) -> None:
    """Fit the tree of an answer that follows a grammar to it."""
    grammar, spec = sequence.chooser.grammar, sequence.spec
    if grammar is not None:
        sequence.tree = constrained(
            sequence.tree,
            grammar,
            most_nodes=spec.max_tree_nodes,
            most_roots=spec.num_parallel_trees,
            most_depth=min(MAX_DEPTH, sequence.depth_limit),
        )


def _state(one: _Draft) -> DrafterState:
    assert one.sequence.drafter is not None
    return one.sequence.drafter


def _pinned(sequence: Sequence, proposer: Proposer) -> _Draft:
    spec = sequence.spec
    depth = min(spec.prediction_depth, sequence.depth_limit)
    limits = DraftLimits(depth, spec.max_tree_nodes, spec.num_parallel_trees)
    return _Draft(sequence, proposer, 0, limits)


def _adaptive(sequence: Sequence, proposer: Proposer) -> _Draft:
    spec = sequence.spec
    depth = min(
        spec.prediction_depth, sequence.depth_limit, sequence.expectation.network_depth + _DEEPER
    )
    limits = DraftLimits(depth, spec.max_tree_nodes, spec.num_parallel_trees)
    return _Draft(sequence, proposer, 0, limits)


def _rows(
    writing: SequenceOf[Sequence], prompts: SequenceOf[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Committed positions and rows of every sequence of the step, pinned trees included."""
    rows = list(prompts)
    for one in writing:
        assert one.cache is not None
        rows.append((one.cache.length, 1 + len(one.tree)))
    return rows
