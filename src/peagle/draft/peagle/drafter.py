"""The P-EAGLE drafter of an engine: one network, one KV cache, one state per sequence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from peagle.draft.distributions import NetworkDistributions
from peagle.draft.peagle.network import PEagleNetwork, SlotRows
from peagle.model.kv_cache import PAGE_POSITIONS, SequenceCache, pages_for

# Lower ranks are too improbable for a tree of some dozen nodes.
TOP_TOKENS: Final = 32


@dataclass(slots=True, eq=False)
class DrafterState:
    """What the drafter knows of one sequence: its committed slots and those that wait.

    Slots wait in rounds in which the network is not run.

    Attributes:
        cache: The committed slots.
        limit: Positions at which slots may stand.
        feature_size: Width of a feature.
        observed: Slots so far, committed and waiting.
    """

    cache: SequenceCache
    limit: int
    feature_size: int
    observed: int = 0
    _tokens: list[int] = field(default_factory=list)
    _features: list[torch.Tensor] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Slots that the network has not seen yet."""
        return len(self._tokens)

    @property
    def beyond_context(self) -> bool:
        """Whether the sequence has outgrown the drafter, which then proposes nothing more."""
        return self.observed > self.limit

    def observe(self, tokens: Sequence[int], features: torch.Tensor) -> None:
        """Queue the slots of target positions that have been committed.

        Args:
            tokens: The tokens that follow those positions.
            features: What the target gave there, `[len(tokens), taps * target hidden]`; copied.
        """
        if features.shape != (len(tokens), self.feature_size):
            raise ValueError(
                f"{len(tokens)} tokens with features {list(features.shape)}, "
                f"of {self.feature_size} values each"
            )
        self.observed += len(tokens)
        if self.beyond_context:
            self._tokens, self._features = [], []
            return
        self._tokens.extend(tokens)
        # Copied, for a view would keep the features of the whole target pass in memory.
        self._features.append(features.clone())

    def take(self, count: int, masks: int = 0) -> SlotRows:
        """Take the `count` oldest waiting slots, for a pass with `masks` mask slots."""
        features = torch.cat(self._features) if len(self._features) > 1 else self._features[0]
        tokens = self._tokens[:count]
        del self._tokens[:count]
        self._features = [features[count:]] if self._tokens else []
        return SlotRows(self.cache, tokens, features[:count], masks)


class PEagleDrafter:
    """Proposes draft tokens for all sequences of an engine.

    Args:
        network: The network.
        budget: Most bytes its KV cache may take.
        name: What reports call it.

    Attributes:
        network: As given.
        name: As given.
        cache: Its KV cache.

    Raises:
        OutOfMemoryBudgetError: Not even one page of the KV cache fits in the budget.
    """

    def __init__(self, network: PEagleNetwork, *, budget: int, name: str) -> None:
        self.network = network
        self.name = name
        self.cache = network.new_cache(budget)
        no_rows = torch.zeros(0, network.config.draft_vocab_size, device=network.device)
        self._nothing = self._distributions(no_rows)

    @property
    def bytes_per_position(self) -> int:
        """Memory of one position of a sequence in the drafter's KV cache."""
        return self.cache.bytes_per_page // PAGE_POSITIONS

    @property
    def rows_per_pass(self) -> int:
        """Most rows one pass over the weights takes."""
        return self.network.planner.ladder.largest

    def pages_for(self, positions: int) -> int:
        """Pages that a sequence of so many positions takes."""
        return pages_for(self._limit(positions))

    def fits(self, positions: int) -> bool:
        """Whether a sequence of so many positions can be opened now."""
        return self.cache.fits(self._limit(positions))

    def open(self, positions: int) -> DrafterState:
        """Reserve memory for a sequence of so many positions, which must fit.

        Positions behind the drafter's context take no memory: once the sequence gets there,
        nothing more is drafted for it. Mask slots take none either: the last of them would
        predict a token behind the sequence's end, so depths are cut there.
        """
        limit = self._limit(positions)
        return DrafterState(self.cache.open(limit), limit, self.network.config.feature_size)

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
            self.network.forward(self.cache, [state.take(most) for state in behind]).commit()

    @torch.inference_mode()
    def draft(self, states: Sequence[DrafterState], depth: int) -> list[NetworkDistributions]:
        """Predict the next tokens of some sequences, all depths in one pass.

        Args:
            states: Sequences, each with a slot observed since it last drafted.
            depth: Most draft tokens; fewer where the sequence or the drafter's context ends.

        Returns:
            For each sequence its distributions, the first for the token behind the last one
            observed; none where the sequence has outgrown the drafter's context.
        """
        for state in states:
            if not (state.waiting or state.beyond_context):
                raise ValueError("a sequence without a new slot has nothing to draft from")
        self.prefill(states)
        drafting = [state for state in states if not state.beyond_context]
        depths = [min(depth, state.limit - state.observed + 1) for state in drafting]
        rows = [
            state.take(state.waiting, masks=levels - 1)
            for state, levels in zip(drafting, depths, strict=True)
        ]
        if not rows:
            return [self._nothing] * len(states)
        output = self.network.forward(self.cache, rows)
        output.commit()
        # The last new slot predicts the first draft token, each mask slot one more.
        predicting = [
            residual[-levels:] for residual, levels in zip(output.residual, depths, strict=True)
        ]
        logits = torch.split(self.network.logits(torch.cat(predicting)), depths)
        drafts = map(self._distributions, logits)
        return [self._nothing if state.beyond_context else next(drafts) for state in states]

    def _limit(self, positions: int) -> int:
        return min(positions, self.network.config.decoder.context_length)

    def _distributions(self, logits: torch.Tensor) -> NetworkDistributions:
        """Give the most probable tokens of `logits` `[depths, draft vocab]`, by target id."""
        best, ids = logits.topk(min(TOP_TOKENS, logits.shape[1]))
        probabilities = (best - logits.logsumexp(-1, keepdim=True)).exp()
        return NetworkDistributions(
            self.network.target_ids[ids].cpu().numpy(), probabilities.cpu().numpy()
        )
