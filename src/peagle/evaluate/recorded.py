"""Acceptance of drafts on answers that are already written, drafter networks included.

The target's tokens do not depend on the drafts: greedy or sampled, verification accepts a draft
token where it is the very token that the target chooses there (`engine.verification`,
`engine.uniform`). So one recorded answer serves every drafter, every tree and every mix of
sources, and what is run again is the drafting alone.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from peagle.draft.corpus import Corpus
from peagle.draft.distributions import LevelDistributions
from peagle.draft.mixture import MixturePrior
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.proposer import new_proposer
from peagle.draft.tree import CandidateTree
from peagle.engine.statistics import SpeculationStatistics
from peagle.errors import OutOfMemoryBudgetError
from peagle.evaluate.acceptance import Answered
from peagle.model.kv_cache import page_bytes, pages_for
from peagle.model.rows import SequenceRows
from peagle.model.target import Target
from peagle.spec import MAX_DEPTH, MAX_TREE_NODES, ParallelDraftingSpec

Features = Mapping[int, torch.Tensor]
"""Residual stream entering each tapped layer, for all tokens but the last, `[n - 1, hidden]`."""

# Passes over the weights that one step of reading takes; bounds the logits and planes held.
_PASSES_PER_STEP: Final = 4


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer of the target.

    Attributes:
        id: The prompt's name.
        category: The prompt's category.
        prompt: Tokens of the prompt.
        answer: Tokens of the answer, the one that ended it included.
        limit: Most tokens that it could have had; trees are not deeper than what was left of it.
        seed: What it was sampled with; None for a greedy one, or where it is not known.
    """

    id: str
    category: str
    prompt: Sequence[int]
    answer: Sequence[int]
    limit: int
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Sources:
    """What drafts are made from, as the engine has it.

    Attributes:
        prior: How much each source is believed at first.
        corpus: Text that the target wrote before; None without.
        drafter: The network; None without.
    """

    prior: MixturePrior
    corpus: Corpus | None = None
    drafter: Drafter | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One way of drafting from the sources.

    Attributes:
        spec: Shape of the trees, and which text sources to ask. What `adaptive` would take away
            is not.
        chain: Whether the network gives only its most probable token at each depth.
    """

    spec: ParallelDraftingSpec
    chain: bool = False

    @property
    def limits(self) -> DraftLimits:
        """What the network is asked for where an answer's end does not limit it."""
        spec = self.spec
        return DraftLimits(spec.prediction_depth, spec.max_tree_nodes, spec.num_parallel_trees)

    def question(self, drafter: Drafter) -> DraftLimits:
        """What a network's predictions depend on; P-EAGLE's do not on the size of the tree."""
        if drafter.method == "peagle":
            return DraftLimits(self.limits.depth, MAX_TREE_NODES, MAX_TREE_NODES)
        return self.limits


def read_features(
    target: Target, recorded: Recorded, on_read: Callable[[], None] = lambda: None
) -> Features:
    """Read what the target gave at every token of a prompt and its answer, bit for bit.

    Args:
        target: The model that wrote the answer, with the taps that are wanted.
        recorded: The answer.
        on_read: Told when it is read.
    """
    tokens = [*recorded.prompt, *recorded.answer[:-1]]
    budget = pages_for(len(tokens)) * page_bytes(target.config, target.kv_dtype)
    cache = target.new_cache(budget)
    sequence = cache.open(len(tokens))
    step = _PASSES_PER_STEP * target.rows_per_pass
    pieces = []
    for first in range(0, len(tokens), step):
        rows = SequenceRows(sequence, tokens[first : first + step], logits="none")
        output = target.forward(cache, [rows], features=True)
        output.commit([range(len(rows.tokens))])
        pieces.append(output.features[0])
    together = torch.split(torch.cat(pieces), target.config.hidden_size, -1)
    on_read()
    return dict(zip(target.taps, together, strict=True))


def replay_drafts(
    answers: Sequence[Recorded],
    ways: Sequence[Way],
    sources: Sources,
    *,
    features: Sequence[Features] | None = None,
    on_answered: Callable[[], None] = lambda: None,
) -> list[list[Answered]]:
    """Decode recorded answers again with other drafts, all at the same time.

    At each place of an answer the network is asked once, for all ways that get there.

    Args:
        answers: What the target wrote.
        ways: Ways of drafting that all ask the network the same (`Way.question`).
        sources: What drafts are made from; the network is asked if there is one.
        features: What the target gave at the tokens of each answer, at the drafter's taps.
        on_answered: Told whenever an answer is complete in one of the ways.

    Returns:
        For each way every answer with what its drafts were worth.

    Raises:
        OutOfMemoryBudgetError: An answer does not fit in the drafter's KV cache.
    """
    drafter = sources.drafter
    if drafter is not None and len({way.question(drafter) for way in ways}) > 1:
        raise ValueError("the ways ask the network different things")
    known: Sequence[Features] = features or [{}] * len(answers)
    replays = [
        _Replay(answer, own, [_Run(way, answer, sources) for way in ways])
        for answer, own in zip(answers, known, strict=True)
    ]
    waiting = deque(replays)
    running: list[_Replay] = []
    while waiting or running:
        while waiting and waiting[0].begin(drafter):
            running.append(waiting.popleft())
        if not running:
            raise _too_long(waiting[0], drafter)
        _step([one for one in running if one.writing], drafter, on_answered)
        for one in running:
            if not one.writing:
                one.end(drafter)
        running = [one for one in running if one.writing]
    return [[replay.runs[place].answered for replay in replays] for place in range(len(ways))]


class _Run:
    """One answer drafted in one way; its first token comes from the pass over the prompt."""

    def __init__(self, way: Way, recorded: Recorded, sources: Sources) -> None:
        self.way = way
        self.written = 1
        self._recorded = recorded
        self._statistics = SpeculationStatistics()
        self._proposer = new_proposer(
            recorded.prompt, spec=way.spec, corpus=sources.corpus, prior=sources.prior
        )
        self._proposer.extend(recorded.answer[:1])

    @property
    def answered(self) -> Answered:
        """The answer, with what its drafts were worth."""
        return Answered(self._recorded.category, self._recorded.answer, self._statistics)

    @property
    def ended(self) -> bool:
        """Whether the whole answer is written."""
        return self.written == len(self._recorded.answer)

    def advance(self, network: LevelDistributions | None, passes: int) -> None:
        """Draft, and follow what the answer says through the tree, as verification does.

        Args:
            network: What the network predicts here, if there is one.
            passes: Passes that it took for that.
        """
        recorded, written = self._recorded, self.written
        if network is not None and self.way.chain:
            network = _MostProbable(network)
        # As in the engine, nothing is drafted for a last token.
        depth_limit = recorded.limit - written - 1
        tree = CandidateTree()
        if depth_limit > 0:
            tree = self._proposer.propose(network, depth_limit=depth_limit)
            self._statistics.draft_passes += passes
        # The token that ends an answer is never an accepted draft.
        accepted = tree.walk(recorded.answer[written:-1])
        emitted = recorded.answer[written : written + len(accepted) + 1]
        self._statistics.count_step(drafted=len(tree), accepted=len(accepted), emitted=len(emitted))
        self._proposer.observe(tree, accepted)
        self._proposer.extend(emitted)
        self.written += len(emitted)


@dataclass(slots=True, eq=False)
class _Replay:
    """One answer in all ways, and what the network knows of it."""

    recorded: Recorded
    features: Features
    runs: list[_Run]
    state: DrafterState | None = None
    observed: int = 0

    @property
    def writing(self) -> list[_Run]:
        """Runs that have not written the whole answer."""
        return [run for run in self.runs if not run.ended]

    @property
    def place(self) -> int:
        """Tokens of the answer that the run least far has written."""
        return min(run.written for run in self.writing)

    @property
    def positions(self) -> int:
        """Positions to reserve: what the engine would, as far as any depth can feel it."""
        answer = min(self.recorded.limit, len(self.recorded.answer) + MAX_DEPTH)
        return len(self.recorded.prompt) + answer

    def begin(self, drafter: Drafter | None) -> bool:
        """Reserve memory; False where the drafter has no room yet."""
        if drafter is not None:
            if not drafter.fits(self.positions):
                return False
            self.state = drafter.open(self.positions)
        return True

    def ask(self, drafter: Drafter) -> DrafterState:
        """Let the network know what is written up to the place where it is asked."""
        assert self.state is not None
        text = [*self.recorded.prompt, *self.recorded.answer[: self.place]]
        rows = slice(self.observed, len(text) - 1)
        taps = drafter.network.config.taps
        tapped = torch.cat([self.features[tap][rows] for tap in taps], -1)
        self.state.observe(text[self.observed + 1 :], tapped)
        self.observed = len(text) - 1
        return self.state

    def end(self, drafter: Drafter | None) -> None:
        """Give the drafter's memory back."""
        if self.state is not None and drafter is not None:
            drafter.close(self.state)
            self.state = None


class _MostProbable:
    """A network's most probable token at each depth, and no other."""

    def __init__(self, network: LevelDistributions) -> None:
        self._network = network

    @property
    def levels(self) -> int:
        return self._network.levels

    def children(self, depth: int, path: Sequence[int]) -> tuple[list[int], list[float]]:
        ids, probabilities = self._network.children(depth, path)
        return ids[:1], probabilities[:1]


def _step(
    replays: Sequence[_Replay], drafter: Drafter | None, on_answered: Callable[[], None]
) -> None:
    """Draft for all answers at once, each where its slowest runs are, and let these go on."""
    places = [one.place for one in replays]
    depths = [one.recorded.limit - place - 1 for one, place in zip(replays, places, strict=True)]
    asking = [(one, depth) for one, depth in zip(replays, depths, strict=True) if depth > 0]
    predicted: dict[_Replay, tuple[LevelDistributions, int]] = {}
    if drafter is not None and asking:
        states = [one.ask(drafter) for one, _ in asking]
        before = [state.passes for state in states]
        limits = [one.runs[0].way.question(drafter) for one, _ in asking]
        found = drafter.draft(states, [
            replace(limit, depth=min(limit.depth, depth))
            for limit, (_, depth) in zip(limits, asking, strict=True)
        ])  # fmt: skip
        for place, (one, _) in enumerate(asking):
            predicted[one] = found[place], states[place].passes - before[place]
    for one, place in zip(replays, places, strict=True):
        network, passes = predicted.get(one, (None, 0))
        for run in one.writing:
            if run.written == place:
                run.advance(network, passes)
                if run.ended:
                    on_answered()


def _too_long(replay: _Replay, drafter: Drafter | None) -> OutOfMemoryBudgetError:
    assert drafter is not None
    return OutOfMemoryBudgetError(
        f"Prompt and answer {replay.recorded.id!r} come to {replay.positions} positions, but the "
        f"drafter's KV cache holds {drafter.cache.total_positions}.",
        remedy="Leave that prompt out.",
        field="prompts",
    )
