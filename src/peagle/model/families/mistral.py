"""Mistral: Llama with a sliding window in every layer, where the configuration has one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from peagle.model.families.family import Family
from peagle.model.families.reading import window

if TYPE_CHECKING:
    from peagle.model.config import DecoderConfig


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"sliding_window": window(config)}


def _write(config: "DecoderConfig") -> dict[str, Any]:
    return {"sliding_window": config.sliding_window}


MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    title="Mistral",
    gguf="llama",
    read=_read,
    write=_write,
)
