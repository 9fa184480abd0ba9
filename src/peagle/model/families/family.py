"""What is told of a family: how its `config.json` and its weights' names differ from Llama's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

if TYPE_CHECKING:
    from peagle.model.config import DecoderConfig

Activation = Literal["silu", "gelu_tanh"]
Check = Literal["logits", "tokens", "quantised", "gguf", "training", "released"]
Tensors = dict[str, torch.Tensor]

CHECKS: Final[Mapping[Check, str]] = {
    "logits": "small random models give transformers' logits, float32, within 1e-4",
    "tokens": "their answers with trees of drafts have the tokens of plain decoding, greedy and "
    "seeded, in a batch",
    "quantised": "so they have in int8 and in int4",
    "gguf": "transformers computes the same logits from their GGUF files as read here",
    "training": "a drafter that is trained for one is accepted more often",
    "released": "a released model's answers have the tokens of plain decoding, in every precision",
}
USUAL_CHECKS: Final[tuple[Check, ...]] = ("logits", "tokens", "quantised", "gguf")


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the gated MLP.

    Attributes:
        count: Experts of a layer.
        active: How many of them a row goes through.
        width: Width of one expert.
        normalised: Whether the shares of a row's experts add up to one.
    """

    count: int
    active: int
    width: int
    normalised: bool


def as_llama(_: Mapping[str, Any]) -> dict[str, Any]:
    """Read nothing beyond what all families have."""
    return {}


def written_as_llama(_: "DecoderConfig") -> dict[str, Any]:
    """Write nothing beyond what all families have."""
    return {}


def named_as_llama(tensors: Tensors, _: "DecoderConfig") -> Tensors:
    """Give tensors that have Llama's names already."""
    return tensors


@dataclass(frozen=True, slots=True)
class Family:
    """One family of decoders, as it differs from Llama.

    Attributes:
        name: `model_type` of its `config.json`.
        architecture: The name in its `architectures`.
        title: What a person calls it.
        gguf: What llama.cpp calls it: `general.architecture` of its GGUF files.
        read: Gives the `DecoderConfig` fields that Llama has not, from a `config.json`.
        write: Gives the keys of a `config.json` that Llama has not.
        named: Gives tensors the names and the meaning that `NamedWeights` wants.
        activation: What the gate of an MLP goes through.
        activation_key: The key of `config.json` that tells it.
        activation_name: What that key says.
        defaults: Keys that its `config.json` may leave out.
        biases_told: Keys that turn on biases which the decoder does not have.
        vision: The architecture of the same decoder with an image encoder before it.
        checks: How it is tested.
    """

    name: str
    architecture: str
    title: str
    gguf: str
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = as_llama
    write: Callable[["DecoderConfig"], dict[str, Any]] = written_as_llama
    named: Callable[[Tensors, "DecoderConfig"], Tensors] = named_as_llama
    activation: Activation = "silu"
    activation_key: str = "hidden_act"
    activation_name: str = "silu"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    biases_told: tuple[str, ...] = ("attention_bias", "mlp_bias")
    vision: str | None = None
    checks: tuple[Check, ...] = USUAL_CHECKS
