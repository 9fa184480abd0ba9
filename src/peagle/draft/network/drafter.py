"""The drafter of an engine: one network, one KV cache, one state per sequence."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from peagle.draft.distributions import LevelDistributions, NetworkDistributions
from peagle.draft.network.state import DrafterState
from peagle.draft.network.trunk import DraftNetwork, SlotRows, keep_slots
from peagle.model.kv_cache import PAGE_POSITIONS, pages_for
from peagle.model.prefix_index import CachedPage
from peagle.spec import NetworkMethod

_NOTHING: Final = NetworkDistributions([])


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How much of a candidate tree a network is asked for.

    Attributes:
        depth: Most levels.
        nodes: Most nodes that the tree can have.
        roots: Most nodes that the tree can have at depth 1.
        price: Tokens that asking for another level must promise; a level that shares its pass with
            all others is free.
    """

    depth: int
    nodes: int
    roots: int
    price: float = 0.0


class Drafter(ABC):
    """Proposes draft tokens for all sequences of an engine.

    Args:
        network: The network.
        budget: Most bytes its KV cache may take.
        name: What reports call it.
        most_pages: Most pages that its KV cache has, where the target's has no more.

    Attributes:
        network: As given.
        name: As given.
        cache: Its KV cache.

    Raises:
        OutOfMemoryBudgetError: Not even one page of the KV cache fits in the budget.
    """

    def __init__(
        self, network: DraftNetwork, *, budget: int, name: str, most_pages: int | None = None
    ) -> None:
        self.network = network
        self.name = name
        self.cache = network.compute.new_cache(budget, most_pages)

    @property
    def method(self) -> NetworkMethod:
        """The method that the network was trained for."""
        return self.network.config.method

    @property
    def bytes_per_position(self) -> int:
        """Memory of one position of a sequence in the drafter's KV cache."""
        return self.cache.bytes_per_page // PAGE_POSITIONS

    @property
    def rows_per_pass(self) -> int:
        """Most rows one pass over the weights takes."""
        return self.network.compute.rows_per_pass

    def pages_for(self, positions: int) -> int:
        """Pages that a sequence of so many positions takes."""
        return pages_for(self._limit(positions))

    def reads(self, prompt: int) -> bool:
        """Whether a prompt of so many tokens is within the drafter's context."""
        return prompt <= self.network.config.decoder.context_length

    def fits(self, positions: int) -> bool:
        """Whether a sequence of so many positions can be opened now."""
        return self.cache.fits(self._limit(positions))

    def open(self, positions: int) -> DrafterState:
        """Reserve memory for a sequence of so many positions, which must fit.

        Positions behind the drafter's context take no memory: once the sequence gets there,
        nothing more is drafted for it. Draft tokens take none either: the last of them would
        predict a token behind the sequence's end, so depths are cut there.
        """
        limit = self._limit(positions)
        return DrafterState(self.cache.open(limit), limit, self.network.config.feature_size)

    def adopt(self, state: DrafterState, pages: Sequence[CachedPage]) -> None:
        """Begin a sequence with slots that were just found in the KV cache."""
        self.cache.adopt(state.cache, pages)
        state.observed = state.cache.length

    def fill_pages(self, state: DrafterState, *, goes_on: bool) -> None:
        """Compute waiting slots of a sequence as far as they fill pages of the KV cache.

        Args:
            state: The sequence.
            goes_on: Whether it will be drafted for: the last slot then waits, to draft from.
        """
        ready = state.observed - goes_on
        while state.waiting:
            behind = ready // PAGE_POSITIONS * PAGE_POSITIONS - state.cache.length
            if behind <= 0:
                return
            slots = [state.take(min(behind, self.rows_per_pass))]
            keep_slots(self.network.read(self.cache, slots, [0]), slots)

    def close(self, state: DrafterState) -> None:
        """Give a sequence's memory back."""
        self.cache.close(state.cache)

    def prefill(self, states: Sequence[DrafterState]) -> None:
        """Compute waiting slots until no sequence has more than one pass of them.

        `draft` does so by itself; an engine that calls it while a long prompt is computed spreads
        the work and frees the waiting features. Slots are committed pass by pass, so memory does
        not grow with the prompt.
        """
        most = self.rows_per_pass
        while behind := [state for state in states if state.waiting > most]:
            slots = [state.take(most) for state in behind]
            keep_slots(self.network.read(self.cache, slots, [0] * len(slots)), slots)

    @torch.inference_mode()
    def draft(
        self, states: Sequence[DrafterState], limits: Sequence[DraftLimits]
    ) -> list[LevelDistributions]:
        """Predict the next tokens of some sequences.

        Args:
            states: Sequences, each with a slot observed since it last drafted.
            limits: What each may be asked for; fewer levels where it or the drafter's context
                ends.

        Returns:
            For each sequence its distributions, the first for the token behind the last one
            observed; none where the sequence has outgrown the drafter's context.
        """
        for state in states:
            if not (state.waiting or state.beyond_context):
                raise ValueError("a sequence without a new slot has nothing to draft from")
        self.prefill(states)
        drafting: list[DrafterState] = []
        within: list[DraftLimits] = []
        for state, limit in zip(states, limits, strict=True):
            if not state.beyond_context:
                drafting.append(state)
                room = state.limit - state.observed + 1
                within.append(replace(limit, depth=min(limit.depth, room)))
        if not drafting:
            return [_NOTHING] * len(states)
        slots = [state.take(state.waiting) for state in drafting]
        drafts = iter(self._predict(drafting, slots, within))
        return [_NOTHING if state.beyond_context else next(drafts) for state in states]

    @abstractmethod
    def pass_rows(self, waiting: Sequence[int], limits: Sequence[DraftLimits]) -> list[int]:
        """Rows of each pass that drafting for some sequences takes at most.

        Args:
            waiting: New slots of each sequence.
            limits: What each is asked for.
        """

    @abstractmethod
    def _predict(
        self,
        states: Sequence[DrafterState],
        slots: Sequence[SlotRows],
        limits: Sequence[DraftLimits],
    ) -> Sequence[LevelDistributions]:
        """Commit the new slots of some sequences and predict from the last of each."""

    def _limit(self, positions: int) -> int:
        return min(positions, self.network.config.decoder.context_length)
