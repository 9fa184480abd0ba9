"""The engine's step: admit, draft, verify, commit."""

import time
from collections import deque
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from peagle.draft.distributions import LevelDistributions
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.tree import CandidateTree
from peagle.engine.sequence import Sequence
from peagle.engine.verification import verify
from peagle.errors import OutOfMemoryBudgetError, PeagleError
from peagle.model.kv_cache import KVCache, pages_for
from peagle.model.rows import SequenceRows
from peagle.model.target import StepOutput, TargetModel

DEFAULT_MAX_CONCURRENT: Final = 32


@dataclass(slots=True)
class StepSeconds:
    """Where the time of steps went.

    Attributes:
        drafting: Arranging candidate trees, the drafter network included.
        target: Target passes.
        deciding: The target's choices, stops, and committing.
    """

    drafting: float = 0.0
    target: float = 0.0
    deciding: float = 0.0


class Engine:
    """Runs answers together, one round of drafting and one target step at a time.

    Args:
        target: The model that writes.
        kv_cache: Where the running answers' keys and values are kept.
        drafter: The drafter network, if the model has one.
        max_concurrent: Most answers that run at once; others wait.
    """

    def __init__(
        self,
        target: TargetModel,
        kv_cache: KVCache,
        drafter: Drafter | None = None,
        max_concurrent: int = DEFAULT_MAX_CONCURRENT,
    ) -> None:
        self.target = target
        self.kv_cache = kv_cache
        self.drafter = drafter
        self.max_concurrent = max_concurrent
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.seconds = StepSeconds()

    def add(self, sequence: Sequence) -> None:
        """Queue an answer.

        Raises:
            OutOfMemoryBudgetError: It could never fit in the KV cache.
        """
        if pages_for(sequence.positions) > self.kv_cache.total_pages:
            raise _too_long(sequence.positions, self.kv_cache, "KV cache")
        drafter = self._drafter_of(sequence)
        if (
            drafter is not None
            and drafter.pages_for(sequence.positions) > drafter.cache.total_pages
        ):
            raise _too_long(sequence.positions, drafter.cache, "drafter's KV cache")
        self.waiting.append(sequence)

    def step(self) -> list[Sequence]:
        """Advance every running answer, and give those that wrote something or failed.

        An answer that has ended is closed and its memory freed.
        """
        self._admit()
        if not self.running:
            return []
        began = time.perf_counter()
        rows = self._schedule()
        drafted = time.perf_counter()
        output = self.target.forward(
            self.kv_cache,
            [part for _, part in rows],
            features=any(sequence.drafter is not None for sequence, _ in rows),
        )
        verified = time.perf_counter()
        advanced = self._decide(rows, output)
        self.seconds.drafting += drafted - began
        self.seconds.target += verified - drafted
        self.seconds.deciding += time.perf_counter() - verified
        return advanced

    def _decide(
        self, rows: SequenceOf[tuple[Sequence, SequenceRows]], output: StepOutput
    ) -> list[Sequence]:
        """Walk every tree, commit what was walked, and close the answers that ended."""
        kept: list[SequenceOf[int]] = []
        advanced = []
        features: SequenceOf[Tensor | None] = output.features or [None] * len(rows)
        for (sequence, part), logits, own in zip(rows, output.logits, features, strict=True):
            if sequence.prefilling and own is not None:
                sequence.read_prompt(part, own)
            if part.logits == "none":
                kept.append(range(len(part.tokens)))
                continue
            advanced.append(sequence)
            try:
                walked = verify(sequence.tree, logits, sequence.chooser, sequence.stops)
            except PeagleError as error:
                # One answer that cannot go on must not take the others with it.
                sequence.error = error
                kept.append([])
                continue
            kept.append(range(len(part.tokens)) if sequence.prefilling else walked.rows)
            sequence.take(walked, logits, own)
        output.commit(kept)
        for sequence in advanced:
            if sequence.finished:
                self._close(sequence)
        return advanced

    def abort(self, sequences: Collection[Sequence]) -> None:
        """Drop answers, wherever they are, and free their memory."""
        for sequence in sequences:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            elif sequence in self.running:
                self._close(sequence)

    def _admit(self) -> None:
        """Start waiting answers, first come first served, while there is room."""
        while self.waiting and len(self.running) < self.max_concurrent:
            sequence = self.waiting[0]
            drafter = self._drafter_of(sequence)
            if not self.kv_cache.fits(sequence.positions):
                return
            if drafter is not None and not drafter.fits(sequence.positions):
                return
            self.waiting.popleft()
            sequence.cache = self.kv_cache.open(sequence.positions)
            if drafter is not None:
                sequence.drafter = drafter.open(sequence.positions)
            self.running.append(sequence)

    def _drafter_of(self, sequence: Sequence) -> Drafter | None:
        """The network, if it drafts for this answer."""
        drafter = self.drafter
        return drafter if drafter is not None and sequence.spec.method == drafter.method else None

    def _close(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence.cache is not None:
            self.kv_cache.close(sequence.cache)
            sequence.cache = None
        if sequence.drafter is not None and self.drafter is not None:
            self.drafter.close(sequence.drafter)
            sequence.drafter = None

    def _schedule(self) -> list[tuple[Sequence, SequenceRows]]:
        """Choose this step's rows: the trees of those who write, a pass of prompts beside them."""
        writing = [sequence for sequence in self.running if not sequence.prefilling]
        self._draft(writing)
        rows = [(sequence, sequence.tree_rows()) for sequence in writing]
        room = self.target.rows_per_pass
        for sequence in self.running:
            if sequence.prefilling and room > 0:
                part = sequence.prompt_rows(room)
                room -= len(part.tokens)
                rows.append((sequence, part))
        return rows

    def _draft(self, writing: SequenceOf[Sequence]) -> None:
        """Arrange the candidate tree of each answer; the network drafts for all of them at once."""
        # An adaptive tree leaves the others their rows: all trees together fit in one block.
        share = self.target.rows_per_block // max(1, len(writing)) - 1
        drafting: list[tuple[Sequence, int]] = []
        for sequence in writing:
            sequence.tree = CandidateTree()
            most = sequence.spec.max_tree_nodes
            nodes = min(share, most) if sequence.spec.adaptive else most
            if sequence.proposer is not None and nodes > 0 and sequence.depth_limit > 0:
                drafting.append((sequence, nodes))
        networks = self._networks(drafting)
        for (sequence, nodes), network in zip(drafting, networks, strict=True):
            assert sequence.proposer is not None
            sequence.tree = sequence.proposer.propose(
                network,
                depth_limit=sequence.depth_limit,
                node_limit=nodes,
            )

    def _networks(
        self, drafting: SequenceOf[tuple[Sequence, int]]
    ) -> list[LevelDistributions | None]:
        """Ask the network about each of the answers; None for those it does not draft for.

        Args:
            drafting: Answers, each with the nodes that its tree may have.
        """
        states, limits = [], []
        for sequence, nodes in drafting:
            if sequence.drafter is not None:
                spec = sequence.spec
                depth = min(spec.prediction_depth, sequence.depth_limit)
                states.append(sequence.drafter)
                limits.append(DraftLimits(depth, nodes, spec.num_parallel_trees))
        if not states or self.drafter is None:
            return [None] * len(drafting)
        predicted = iter(self.drafter.draft(states, limits))
        for sequence, _ in drafting:
            if sequence.drafter is not None:
                sequence.statistics.draft_passes = sequence.drafter.passes
        return [None if one.drafter is None else next(predicted) for one, _ in drafting]


def _too_long(positions: int, cache: KVCache, what: str) -> OutOfMemoryBudgetError:
    return OutOfMemoryBudgetError(
        f"The request may come to {positions} tokens, but the {what} holds "
        f"{cache.total_positions}.",
        remedy="Lower max_tokens, shorten the prompt, or set kv_cache_bytes to "
        f"{cache.bytes_for(positions):,} or more.",
        field="max_tokens",
    )
