"""What runs here, family by family: `peagle models --supported` and docs/models.md show it."""

from dataclasses import dataclass
from typing import Any, Final

from peagle.model.config import DecoderConfig
from peagle.model.families import FAMILIES, Check, Family
from peagle.model.native_target import missing_piece
from peagle.quantization import QUANTIZATIONS

# A decoder with nothing but what every `config.json` must say; other families' keys are not read.
_SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
}


@dataclass(frozen=True, slots=True)
class SupportedFamily:
    """One family of decoders, as a person reads it.

    Attributes:
        title: What a person calls it.
        architectures: Names in the `architectures` of its `config.json`.
        sources: What its weights may lie in; a GGUF file with what llama.cpp calls the family.
        native: Whether the native step runs it on a processor; torch runs all.
        not_native: What the native step lacks for it, if anything.
        quantisations: What its weights can be quantised to at load.
        checks: How it is tested (`families.CHECKS`).
    """

    title: str
    architectures: tuple[str, ...]
    sources: tuple[str, ...]
    native: bool
    not_native: str | None
    quantisations: tuple[str, ...]
    checks: tuple[Check, ...]


def supported_families() -> list[SupportedFamily]:
    """List the families that run, from the registry that loading goes by."""
    return [_described(family) for family in FAMILIES]


def _described(family: Family) -> SupportedFamily:
    config = DecoderConfig.from_hugging_face({"architectures": [family.architecture], **_SHAPE})
    lacking = missing_piece(config)
    vision = () if family.vision is None else (family.vision,)
    return SupportedFamily(
        title=family.title,
        architectures=(family.architecture, *vision),
        sources=("safetensors", f"GGUF {family.gguf}"),
        native=lacking is None,
        not_native=lacking,
        quantisations=tuple(kind for kind in QUANTIZATIONS if kind != "none"),
        checks=family.checks,
    )
