"""The engine's step: admit, draft, verify, commit."""

from collections import deque
from collections.abc import Collection, Sequence as SequenceOf
from typing import Final

import torch

from peagle.draft.peagle import PEagleDrafter
from peagle.draft.tree import EMPTY_TREE, CandidateTree, NetworkDistributions
from peagle.engine.sequence import Sequence
from peagle.engine.verification import verify
from peagle.errors import OutOfMemoryBudgetError
from peagle.model.kv_cache import KVCache, pages_for
from peagle.model.rows import SequenceRows
from peagle.model.target import TargetModel

DEFAULT_MAX_CONCURRENT: Final = 32


class Engine:
    """Runs answers together, one drafter pass and one target step at a time.

    Args:
        target: The model that writes.
        kv_cache: Where the running answers' keys and values are kept.
        drafter: The P-EAGLE network, if the model has one.
        max_concurrent: Most answers that run at once; others wait.
    """

    def __init__(
        self,
        target: TargetModel,
        kv_cache: KVCache,
        drafter: PEagleDrafter | None = None,
        max_concurrent: int = DEFAULT_MAX_CONCURRENT,
    ) -> None:
        self.target = target
        self.kv_cache = kv_cache
        self.drafter = drafter
        self.max_concurrent = max_concurrent
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Queue an answer.

        Raises:
            OutOfMemoryBudgetError: It could never fit in the KV cache.
        """
        if pages_for(sequence.positions) > self.kv_cache.total_pages:
            raise OutOfMemoryBudgetError(
                f"The request may come to {sequence.positions} tokens, but the KV cache holds "
                f"{self.kv_cache.total_positions}.",
                remedy="Lower max_tokens, shorten the prompt, or raise kv_cache_bytes.",
                field="max_tokens",
            )
        self.waiting.append(sequence)

    def step(self) -> list[Sequence]:
        """Advance every running answer, and give those that wrote something.

        An answer whose end is reached is closed and its memory freed.
        """
        self._admit()
        if not self.running:
            return []
        rows = self._schedule()
        wants_features = any(sequence.drafter is not None for sequence, _ in rows)
        output = self.target.forward(
            self.kv_cache, [part for _, part in rows], features=wants_features
        )
        features = output.features or [None] * len(rows)
        kept, written = [], []
        for (sequence, part), logits, own in zip(rows, output.logits, features, strict=True):
            if part.logits == "all":
                walked = verify(sequence.tree, logits, sequence.chooser, sequence.stops)
                kept.append(walked.rows)
                sequence.take(walked, logits, own)
                written.append(sequence)
                continue
            kept.append(list(range(len(part.tokens))))
            if part.logits == "last":
                if own is not None:
                    sequence.read(part.tokens[1:], own[:-1])
                walked = verify(EMPTY_TREE, logits, sequence.chooser, sequence.stops)
                sequence.take(walked, logits, own if own is None else own[-1:])
                written.append(sequence)
            elif own is not None:
                end = part.cache.length + len(part.tokens)
                sequence.read(sequence.prompt_ids[end - len(part.tokens) + 1 : end + 1], own)
        output.commit(kept)
        for sequence in written:
            if sequence.finished:
                self._close(sequence)
        return written

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
            if not self.kv_cache.fits(self.waiting[0].positions):
                return
            sequence = self.waiting.popleft()
            sequence.cache = self.kv_cache.open(sequence.positions)
            if self.drafter is not None and sequence.spec.method == "peagle":
                sequence.drafter = self.drafter.open(sequence.positions)
            self.running.append(sequence)

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
        """Arrange the candidate tree of each answer, from one drafter pass over all of them."""
        drafting = [s for s in writing if s.proposer is not None and s.depth_limit > 0]
        distributions = self._network(drafting)
        # An adaptive tree leaves the others their rows: all trees together fit in one pass.
        share = self.target.rows_per_pass // max(1, len(writing)) - 1
        for sequence in writing:
            sequence.tree = EMPTY_TREE
        for sequence, network in zip(drafting, distributions, strict=True):
            assert sequence.proposer is not None
            nodes = min(share, sequence.spec.max_tree_nodes)
            if not sequence.spec.adaptive:
                nodes = sequence.spec.max_tree_nodes
            if nodes > 0:
                sequence.tree = sequence.proposer.propose(
                    network, depth_limit=sequence.depth_limit, node_limit=nodes
                )

    def _network(self, drafting: SequenceOf[Sequence]) -> list[NetworkDistributions | None]:
        """Ask the network about the answers that it drafts for."""
        asked = [s for s in drafting if s.drafter is not None]
        if not asked or self.drafter is None:
            return [None] * len(drafting)
        depth = max(s.spec.prediction_depth for s in asked)
        states = [s.drafter for s in asked if s.drafter is not None]
        found = dict(zip(map(id, asked), self.drafter.draft(states, depth), strict=True))
        for sequence in asked:
            sequence.statistics.draft_passes += 1
        return [found.get(id(sequence)) for sequence in drafting]
