"""What a drafter network knows of one sequence: its committed slots and those that wait."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from peagle.draft.network.trunk import SlotRows
from peagle.model.kv_cache import SequenceCache


@dataclass(slots=True, eq=False)
class DrafterState:
    """What the drafter knows of one sequence: its committed slots and those that wait.

    Slots wait in rounds in which the network is not run.

    Attributes:
        cache: The committed slots.
        limit: Positions at which slots may stand.
        feature_size: Width of a feature.
        observed: Slots so far, committed and waiting.
        passes: Passes so far that predicted tokens; those that only read text are not among them.
    """

    cache: SequenceCache
    limit: int
    feature_size: int
    observed: int = 0
    passes: int = 0
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
            features: What the target gave there, `[len(tokens), taps * target hidden]`; kept, so
                no view into a larger tensor.
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
        self._features.append(features)

    def take(self, count: int) -> SlotRows:
        """Take the `count` oldest waiting slots."""
        features = torch.cat(self._features) if len(self._features) > 1 else self._features[0]
        tokens = self._tokens
        if count >= len(tokens):
            self._tokens, self._features = [], []
            return SlotRows(self.cache, tokens, features)
        self._tokens, self._features = tokens[count:], [features[count:]]
        return SlotRows(self.cache, tokens[:count], features[:count])
