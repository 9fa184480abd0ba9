"""The families of decoders that run: each a description of how it differs from Llama."""

from typing import Final

from peagle.model.families.family import CHECKS, Check, Experts, Family
from peagle.model.families.gemma3 import GEMMA3
from peagle.model.families.llama import LLAMA
from peagle.model.families.mistral import MISTRAL
from peagle.model.families.phi3 import PHI3
from peagle.model.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from peagle.model.families.smollm3 import SMOLLM3

__all__ = [
    "BY_ARCHITECTURE",
    "BY_GGUF",
    "BY_NAME",
    "CHECKS",
    "FAMILIES",
    "Check",
    "Experts",
    "Family",
]

FAMILIES: Final = (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, PHI3, SMOLLM3, GEMMA3)
BY_NAME: Final = {family.name: family for family in FAMILIES}
BY_ARCHITECTURE: Final = {family.architecture: family for family in FAMILIES} | {
    family.vision: family for family in FAMILIES if family.vision is not None
}
# Mistral's files say llama; what tells them apart is the window, which is read with the rest.
BY_GGUF: Final = {family.gguf: family for family in reversed(FAMILIES)}
