"""The engine's step: admit, draft, verify, commit."""

import time
from collections import deque
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from peagle.draft.network.drafter import Drafter
from peagle.draft.network.native_compute import NativeCompute
from peagle.engine.arranging import TreeArranger
from peagle.engine.costs import StepCosts
from peagle.engine.observed_costs import ObservedCosts
from peagle.engine.sequence import Sequence
from peagle.engine.step_seconds import StepSeconds
from peagle.engine.verification import Walk, verify
from peagle.errors import OutOfMemoryBudgetError, PeagleError
from peagle.model.kv_cache import KVCache, pages_for
from peagle.model.native_target import NativeTarget
from peagle.model.rows import SequenceRows
from peagle.model.target import StepOutput, Target

DEFAULT_MAX_CONCURRENT: Final = 32


@dataclass(frozen=True, slots=True)
class _Decided:
    """What a step decided for an answer that writes.

    Attributes:
        sequence: The answer.
        walked: The walk through its tree; None where it failed.
        logits: `[1 + nodes, vocab]`.
        features: Features of its rows, if a network drafts.
    """

    sequence: Sequence
    walked: Walk | None
    logits: Tensor
    features: Tensor | None


class Engine:
    """Runs answers together, one round of drafting and one target step at a time.

    Args:
        target: The model that writes.
        kv_cache: Where the running answers' keys and values are kept.
        drafter: The drafter network, if the model has one.
        max_concurrent: Most answers that run at once; others wait.

    Attributes:
        costs: What steps cost, for adaptive trees, corrected step by step where they are
            `ObservedCosts`; None pins the shape of every tree.
        seconds: Where the time of all steps so far went.
    """

    def __init__(
        self,
        target: Target,
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
        self.costs: StepCosts | ObservedCosts | None = None
        self.seconds = StepSeconds()
        self._arranger = TreeArranger(self.seconds)
        self._native = isinstance(target, NativeTarget) and (
            drafter is None or isinstance(drafter.network.compute, NativeCompute)
        )

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
        if not self._native:
            return self._step()
        # Choosing and joining features would wake torch's threads, which then keep a core from the
        # native ones.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._step()
        finally:
            torch.set_num_threads(threads)

    def _step(self) -> list[Sequence]:
        self._admit()
        if not self.running:
            return []
        seconds = self.seconds
        began = time.perf_counter()
        arranging = seconds.drafting
        rows = self._schedule()
        contexts = _contexts(rows)
        reading = any(sequence.prefilling for sequence, _ in rows)
        scheduled = time.perf_counter()
        output = self.target.forward(
            self.kv_cache,
            [part for _, part in rows],
            features=any(sequence.drafter is not None for sequence, _ in rows),
        )
        verified = time.perf_counter()
        decided, kept = self._decide(rows, output)
        chosen = time.perf_counter()
        output.commit(kept)
        committed = time.perf_counter()
        for one in decided:
            if one.walked is not None:
                one.sequence.take(one.walked, one.logits, one.features)
            if one.sequence.finished:
                self._close(one.sequence)
        seconds.steps += 1
        seconds.scheduling += scheduled - began - (seconds.drafting - arranging)
        seconds.planning += output.planning_s
        seconds.target += verified - scheduled - output.planning_s
        seconds.choosing += chosen - verified
        seconds.committing += committed - chosen
        ended = time.perf_counter()
        seconds.learning += ended - committed
        # A prompt's rows ask for few logits: they tell little of what a tree costs.
        if isinstance(self.costs, ObservedCosts) and not reading:
            self.costs.observe(contexts, ended - scheduled)
        return [one.sequence for one in decided]

    def _decide(
        self, rows: SequenceOf[tuple[Sequence, SequenceRows]], output: StepOutput
    ) -> tuple[list[_Decided], list[SequenceOf[int]]]:
        """Walk every tree.

        Returns:
            What was decided for the answers that write, and for every sequence the rows to commit.
        """
        decided: list[_Decided] = []
        kept: list[SequenceOf[int]] = []
        features: SequenceOf[Tensor | None] = output.features or [None] * len(rows)
        for (sequence, part), logits, own in zip(rows, output.logits, features, strict=True):
            prefilling = sequence.prefilling
            if prefilling and own is not None:
                sequence.read_prompt(part, own)
            if part.logits == "none":
                kept.append(range(len(part.tokens)))
                continue
            walked = None
            try:
                walked = verify(sequence.tree, logits, sequence.chooser, sequence.stops)
            except PeagleError as error:
                # One answer that cannot go on must not take the others with it.
                sequence.error = error
            decided.append(_Decided(sequence, walked, logits, own))
            if walked is None:
                kept.append([])
            else:
                kept.append(range(len(part.tokens)) if prefilling else walked.rows)
        return decided, kept

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
        writing: list[Sequence] = []
        prompts: list[tuple[Sequence, SequenceRows]] = []
        room = self.target.rows_per_pass
        for sequence in self.running:
            if not sequence.prefilling:
                writing.append(sequence)
            elif room > 0:
                part = sequence.prompt_rows(room)
                room -= len(part.tokens)
                prompts.append((sequence, part))
        self._arranger.arrange(
            writing,
            _contexts(prompts),
            drafter=self.drafter,
            costs=self.costs,
        )
        return [*((sequence, sequence.tree_rows()) for sequence in writing), *prompts]


def _contexts(rows: SequenceOf[tuple[Sequence, SequenceRows]]) -> list[tuple[int, int]]:
    """Give committed positions and rows of each sequence."""
    return [(part.cache.length, len(part.tokens)) for _, part in rows]


def _too_long(positions: int, cache: KVCache, what: str) -> OutOfMemoryBudgetError:
    return OutOfMemoryBudgetError(
        f"The request may come to {positions} tokens, but the {what} holds "
        f"{cache.total_positions}.",
        remedy="Lower max_tokens, shorten the prompt, or set kv_cache_bytes to "
        f"{cache.bytes_for(positions):,} or more.",
        field="max_tokens",
    )
