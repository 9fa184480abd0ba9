"""Acceptance of drafts on answers that are already written, drafter networks included.

The target's tokens do not depend on the drafts: greedy or sampled, verification accepts a draft
token where it is the very token that the target chooses there (`engine.verification`,
`engine.uniform`). So one recorded answer serves every drafter, every tree and every mix of
sources, and what is run again is the drafting alone.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from peagle.draft.corpus import Corpus
from peagle.draft.distributions import LevelDistributions
from peagle.draft.mixture import MixturePrior
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.proposer import Proposer
from peagle.draft.replay import walk
from peagle.draft.tree import CandidateTree
from peagle.engine.statistics import SpeculationStatistics
from peagle.errors import OutOfMemoryBudgetError
from peagle.evaluate.acceptance import Answered
from peagle.model.kv_cache import page_bytes, pages_for
from peagle.model.rows import SequenceRows
from peagle.model.target import TargetModel
from peagle.spec import MAX_DEPTH, ParallelDraftingSpec

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


def read_features(
    target: TargetModel, recorded: Recorded, on_read: Callable[[], None] = lambda: None
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
    spec: ParallelDraftingSpec,
    sources: Sources,
    *,
    features: Sequence[Features] | None = None,
    chain: bool = False,
    on_answered: Callable[[], None] = lambda: None,
) -> list[Answered]:
    """Decode recorded answers again with other drafts, all at the same time.

    Args:
        answers: What the target wrote.
        spec: Shape of the trees, and which text sources to ask; the network is asked if there is
            one. What `adaptive` would take away is not.
        sources: What drafts are made from.
        features: What the target gave at the tokens of each answer, at the drafter's taps.
        chain: Whether the network gives only its most probable token at each depth.
        on_answered: Told whenever an answer is complete.

    Returns:
        Each answer with what its drafts were worth.

    Raises:
        OutOfMemoryBudgetError: An answer does not fit in the drafter's KV cache.
    """
    known: Sequence[Features] = features or [{}] * len(answers)
    replays = [
        _Replay(answer, own, Proposer(answer.prompt, spec=spec, corpus=sources.corpus,
                                      prior=sources.prior))
        for answer, own in zip(answers, known, strict=True)
    ]  # fmt: skip
    waiting = deque(replays)
    running: list[_Replay] = []
    while waiting or running:
        while waiting and waiting[0].begin(sources.drafter):
            running.append(waiting.popleft())
        if not running:
            raise _too_long(waiting[0], sources.drafter)
        _step([one for one in running if one.left], spec, sources.drafter, chain=chain)
        for one in running:
            if not one.left:
                one.end(sources.drafter)
                on_answered()
        running = [one for one in running if one.left]
    return [Answered(one.recorded.category, one.recorded.answer, one.statistics)
            for one in replays]  # fmt: skip


@dataclass(slots=True)
class _Replay:
    """One answer on its way; its first token comes from the pass over the prompt."""

    recorded: Recorded
    features: Features
    proposer: Proposer
    state: DrafterState | None = None
    written: int = 1
    statistics: SpeculationStatistics = field(default_factory=SpeculationStatistics)

    @property
    def left(self) -> int:
        """Tokens of the answer still to be written."""
        return len(self.recorded.answer) - self.written

    @property
    def depth_limit(self) -> int:
        """Most draft tokens that the engine can still accept before the length limit."""
        return self.recorded.limit - self.written - 1

    @property
    def positions(self) -> int:
        """Positions to reserve: what the engine would, as far as any depth can feel it."""
        answer = min(self.recorded.limit, len(self.recorded.answer) + MAX_DEPTH)
        return len(self.recorded.prompt) + answer

    def begin(self, drafter: Drafter | None) -> bool:
        """Read the prompt and the first token; False where the drafter has no room yet."""
        if drafter is not None:
            if not drafter.fits(self.positions):
                return False
            self.state = drafter.open(self.positions)
            self._observe(drafter, [*self.recorded.prompt[1:], self.recorded.answer[0]], 0)
        self.proposer.extend(self.recorded.answer[:1])
        return True

    def advance(self, tree: CandidateTree, drafter: Drafter | None) -> None:
        """Follow what the answer says through a tree, as verification does."""
        recorded, written = self.recorded, self.written
        # The token that ends an answer is never an accepted draft.
        accepted = walk(tree, recorded.answer[written:-1])
        emitted = recorded.answer[written : written + len(accepted) + 1]
        self.statistics.count_step(drafted=len(tree), accepted=len(accepted), emitted=len(emitted))
        self.proposer.observe(tree, accepted)
        self.proposer.extend(emitted)
        self.written += len(emitted)
        if drafter is not None and self.left:
            self._observe(drafter, emitted, len(recorded.prompt) + written - 1)

    def end(self, drafter: Drafter | None) -> None:
        """Give the drafter's memory back."""
        if self.state is not None and drafter is not None:
            self.statistics.draft_passes = self.state.passes
            drafter.close(self.state)
            self.state = None

    def _observe(self, drafter: Drafter, following: Sequence[int], first: int) -> None:
        assert self.state is not None
        taps = drafter.network.config.taps
        rows = slice(first, first + len(following))
        self.state.observe(following, torch.cat([self.features[tap][rows] for tap in taps], -1))


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
    writing: Sequence[_Replay],
    spec: ParallelDraftingSpec,
    drafter: Drafter | None,
    *,
    chain: bool,
) -> None:
    """Draft for all answers at once, and follow what each of them says."""
    # As in the engine, nothing is drafted for a last token.
    drafting = [one for one in writing if one.depth_limit > 0]
    networks: dict[int, LevelDistributions] = {}
    if drafter is not None and drafting:
        limits = [
            DraftLimits(
                min(spec.prediction_depth, one.depth_limit),
                spec.max_tree_nodes,
                spec.num_parallel_trees,
            )
            for one in drafting
        ]
        states = [one.state for one in drafting if one.state is not None]
        for one, network in zip(drafting, drafter.draft(states, limits), strict=True):
            networks[id(one)] = _MostProbable(network) if chain else network
    for one in writing:
        tree = CandidateTree()
        if one.depth_limit > 0:
            tree = one.proposer.propose(networks.get(id(one)), depth_limit=one.depth_limit)
        one.advance(tree, drafter)


def _too_long(replay: _Replay, drafter: Drafter | None) -> OutOfMemoryBudgetError:
    assert drafter is not None
    return OutOfMemoryBudgetError(
        f"Prompt and answer {replay.recorded.id!r} come to {replay.positions} positions, but the "
        f"drafter's KV cache holds {drafter.cache.total_positions}.",
        remedy="Leave that prompt out.",
        field="prompts",
    )
