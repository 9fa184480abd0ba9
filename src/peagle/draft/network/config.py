"""What a drafter network is: its shape and the target it was made for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig
from peagle.spec import NetworkMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The shape of a drafter network, as far as all methods share it.

    Attributes:
        decoder: Its layers: `vocab_size` is the target's, `hidden_size` its own, `context_length`
            the last position it drafts at plus one; its rotary embedding is its own too.
        draft_vocab_size: Tokens it can propose, rows of its output head.
        target_hidden_size: Width of the target's residual stream.
        taps: Target layers whose entering residual stream makes up a feature, in order. Id `k` is
            the stream entering layer `k`: what layer `k - 1` gave.
        tokenizer_fingerprint: `Tokenizer.fingerprint` of the target; None where the file that it
            comes from does not say.
        target_name: The target it was trained for, as a reader knows it.
        train_depth: Draft tokens per round that it was trained to predict; None where the file that
            it comes from does not say.
        norm_before_residual: Whether layer 0 adds to the normed features instead of the features.
        norm_before_fc: Whether features are normed before they are fused.
        fc_norm: Whether each tapped stream has a norm of its own instead (EAGLE-3.1).
        own_embedding: Whether it has an embedding of its own instead of the target's.
    """

    method: ClassVar[NetworkMethod]

    decoder: DecoderConfig
    draft_vocab_size: int
    target_hidden_size: int
    taps: tuple[int, ...]
    tokenizer_fingerprint: str | None
    target_name: str
    train_depth: int | None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    own_embedding: bool = False

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    def __post_init__(self) -> None:
        """Check that the shape is possible.

        Raises:
            CheckpointError: A number lies outside what the others allow.
        """
        vocab = self.decoder.vocab_size
        if not 1 <= self.draft_vocab_size <= vocab:
            raise wrong_value("draft_vocab_size", self.draft_vocab_size, f"from 1 to {vocab}")
        if not self.taps or min(self.taps) < 0:
            raise wrong_value("taps", list(self.taps), "one or more layer ids, none negative")
        for name in ("target_hidden_size", "train_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise wrong_value(name, value, "a positive whole number")
        if self.norm_before_fc and self.fc_norm:
            raise wrong_value("fc_norm", True, "false where norm_before_fc is true")

    @property
    def feature_size(self) -> int:
        """Width of a feature: the tapped residual streams side by side."""
        return len(self.taps) * self.target_hidden_size

    def method_shapes(self) -> dict[str, list[int]]:
        """Name the tensors that only networks of this method have, with their shapes."""
        return {}

    def mask_embedding(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:  # noqa: ARG002
        """Give the embedding `[hidden]` of mask slots, if the network has them.

        Args:
            tensors: Its weights by name.
        """
        return None

    def to_json(self) -> str:
        """Write the configuration as JSON."""
        return TypeAdapter(type(self)).dump_json(self).decode()

    @classmethod
    def from_json(cls, written: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            CheckpointError: It is not JSON, or a value is missing, unknown, mistyped or impossible.
        """
        try:
            return TypeAdapter(cls).validate_json(written)
        except ValidationError as found:
            first = found.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "JSON"
            raise CheckpointError(
                f"The drafter's configuration is wrong at {where}: {first['msg']}.",
                remedy="It was written by another version or is damaged; fetch the drafter again.",
                field=where,
            ) from None


def wrong_value(name: str, value: object, wanted: str) -> CheckpointError:
    """Describe a value of a drafter's configuration that cannot be."""
    return CheckpointError(
        f"The drafter's configuration has {name} = {value!r}.",
        remedy=f"It must be {wanted}; fetch the drafter again.",
        field=name,
    )
