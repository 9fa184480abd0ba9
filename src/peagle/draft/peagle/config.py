"""What a P-EAGLE drafter is: the shape of its network and the target it was made for."""

from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class PEagleConfig:
    """The shape of a P-EAGLE network (arXiv 2602.01469).

    Attributes:
        decoder: Its layers: `vocab_size` is the target's, `hidden_size` its own, `context_length`
            the last position it drafts at plus one; its rotary embedding is its own too.
        draft_vocab_size: Tokens it can propose, rows of its output head.
        target_hidden_size: Width of the target's residual stream.
        taps: Target layers whose entering residual stream makes up a feature, in order. Id `k` is
            the stream entering layer `k`: what layer `k - 1` gave.
        mask_token_id: Id that stands for a mask slot in exported checkpoints.
        tokenizer_fingerprint: `Tokenizer.fingerprint` of the target.
        target_name: The target it was trained for, as a reader knows it.
        train_depth: Draft tokens per round that it was trained to predict.
        norm_before_residual: Whether layer 0 adds to the normed features instead of the features.
        norm_before_fc: Whether features are normed before they are fused.
        own_embedding: Whether it has an embedding of its own instead of the target's, with the
            mask embedding in row `mask_token_id`.
    """

    decoder: DecoderConfig
    draft_vocab_size: int
    target_hidden_size: int
    taps: tuple[int, ...]
    mask_token_id: int
    tokenizer_fingerprint: str
    target_name: str
    train_depth: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    own_embedding: bool = False

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    def __post_init__(self) -> None:
        """Check that the shape is possible.

        Raises:
            CheckpointError: A number lies outside what the others allow.
        """
        vocab = self.decoder.vocab_size
        if not 1 <= self.draft_vocab_size <= vocab:
            raise _wrong("draft_vocab_size", self.draft_vocab_size, f"from 1 to {vocab}")
        if not 0 <= self.mask_token_id < vocab:
            raise _wrong("mask_token_id", self.mask_token_id, f"from 0 to {vocab - 1}")
        if not self.taps or min(self.taps) < 0:
            raise _wrong("taps", list(self.taps), "one or more layer ids, none negative")
        for name in ("target_hidden_size", "train_depth"):
            if getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "a positive whole number")

    @property
    def feature_size(self) -> int:
        """Width of a feature: the tapped residual streams side by side."""
        return len(self.taps) * self.target_hidden_size

    def to_json(self) -> str:
        """Write the configuration as JSON."""
        return _JSON.dump_json(self).decode()

    @staticmethod
    def from_json(written: str) -> "PEagleConfig":
        """Read what `to_json` wrote.

        Raises:
            CheckpointError: It is not JSON, or a value is missing, unknown, mistyped or impossible.
        """
        try:
            return _JSON.validate_json(written)
        except ValidationError as found:
            first = found.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "JSON"
            raise CheckpointError(
                f"The drafter's configuration is wrong at {where}: {first['msg']}.",
                remedy="It was written by another version or is damaged; fetch the drafter again.",
                field=where,
            ) from None


_JSON: Final = TypeAdapter(PEagleConfig)


def _wrong(name: str, value: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"The drafter's configuration has {name} = {value!r}.",
        remedy=f"It must be {wanted}; fetch the drafter again.",
        field=name,
    )
