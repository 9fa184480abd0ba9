"""What one request asks for: how tokens are chosen and when to stop."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, Self, runtime_checkable

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from peagle.structured_outputs import StructuredOutputs
from peagle.validation import request_error

_ALLOWED: Final = {
    "n": "a whole number from 1 to 128",
    "max_tokens": "a whole number of at least 1, or leave it out to stop at the context limit",
    "min_tokens": "a whole number of at least 0, not above max_tokens",
    "temperature": "a number from 0 (greedy) to 100",
    "top_p": "a number above 0, up to 1",
    "top_k": "a whole number of at least 1, or 0 for no limit",
    "min_p": "a number from 0 to 1",
    "seed": "a whole number from 0 to 2**64 - 1",
    "repetition_penalty": "a number from 0.01 to 100 (1 is none)",
    "presence_penalty": "a number from -2 to 2",
    "frequency_penalty": "a number from -2 to 2",
    "logit_bias": "token ids with a bias from -100 to 100 each",
    "stop": "up to 64 non-empty strings",
    "stop_token_ids": "token ids",
    "ignore_eos": "true or false",
    "include_stop_str_in_output": "true or false",
    "skip_special_tokens": "true or false",
    "logprobs": "a whole number from 0 to 20",
    "logits_mask": "an object with the method `allowed`",
    "structured_outputs": "an object with one of json, json_object, regex, choice, grammar",
}


@runtime_checkable
class LogitsMask(Protocol):
    """Forbids tokens after a path; a grammar is one. Evaluated along the tree, so keep it pure."""

    def allowed(self, output_ids: Sequence[int]) -> torch.Tensor | None:
        """Tell which tokens may follow `output_ids`.

        Args:
            output_ids: The tokens written so far and those of the path to the node.

        Returns:
            A boolean tensor `[vocab]`, true where allowed, or None where everything is.
        """
        ...


class SamplingParams(BaseModel):
    """How the target chooses tokens. The defaults are greedy.

    Attributes:
        n: Answers per prompt; answer `i` draws with choice index `i`.
        max_tokens: Most tokens to write; None writes until the model stops or its context ends.
        min_tokens: End-of-sequence and stop tokens are forbidden before this many tokens.
        temperature: 0 is greedy; above it, logits are divided by it.
        top_p: Keep the smallest set of most probable tokens whose sum reaches it.
        top_k: Keep the k most probable tokens; 0 keeps all.
        min_p: Drop tokens below this fraction of the most probable token's probability.
        seed: Makes sampling repeatable; None draws one and reports it in the result.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in the
            prompt or the output.
        presence_penalty: Subtracted once from the logit of each token in the output.
        frequency_penalty: Subtracted from it once per occurrence.
        logit_bias: Added to the logits of these token ids.
        stop: Strings that end the output; the text ends before the first of them.
        stop_token_ids: Tokens that end the output.
        ignore_eos: Write on after end-of-sequence.
        include_stop_str_in_output: Leave the stop string at the end of the text.
        skip_special_tokens: Leave special tokens out of the text.
        logprobs: Report the log-probabilities of each token and of this many most probable ones,
            from the model's own distribution before any of the settings above; with
            `structured_outputs` from that among the tokens that may come (vLLM's way).
        logits_mask: Forbids tokens along the path, as a grammar does.
        structured_outputs: The form of the answer, such as a JSON schema; the answer ends when
            nothing can be added to it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    n: int = Field(default=1, ge=1, le=128, strict=True)
    max_tokens: int | None = Field(default=None, ge=1, strict=True)
    min_tokens: int = Field(default=0, ge=0, strict=True)
    temperature: float = Field(default=0.0, ge=0, le=100, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0, strict=True)
    min_p: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, lt=2**64, strict=True)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: Mapping[int, float] | None = None
    stop: tuple[str, ...] = Field(default=(), max_length=64)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = Field(default=False, strict=True)
    include_stop_str_in_output: bool = Field(default=False, strict=True)
    skip_special_tokens: bool = Field(default=True, strict=True)
    logprobs: int | None = Field(default=None, ge=0, le=20, strict=True)
    logits_mask: LogitsMask | None = None
    structured_outputs: StructuredOutputs | None = None

    def __init__(self, **fields: Any) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: A field is unknown, of a wrong type or impossible.
        """
        try:
            super().__init__(**fields)
        except ValidationError as found:
            raise request_error(found, "sampling parameters", _ALLOWED) from None

    @field_validator("structured_outputs", mode="before")
    @classmethod
    def _read_form(cls, block: Any) -> Any:
        return StructuredOutputs.parse(block) if isinstance(block, Mapping) else block

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, stop: Any) -> Any:
        return (stop,) if isinstance(stop, str) else stop

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("an empty string stops everywhere")
        return stop

    @field_validator("logit_bias")
    @classmethod
    def _bias_in_range(cls, bias: Mapping[int, float] | None) -> Mapping[int, float] | None:
        if bias is not None and not all(
            token >= 0 and math.isfinite(value) and abs(value) <= 100
            for token, value in bias.items()
        ):
            raise ValueError("out of range")
        return bias

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken, without chance."""
        return self.temperature == 0

    def replaced(self, **fields: Any) -> Self:
        """Return a copy with some fields set anew, checked like the first."""
        current = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**current, **fields})
