"""The families of decoders that run: each a description of how it differs from Llama."""

from typing import Final

from peagle.model.families.family import Experts, Family
from peagle.model.families.gemma3 import GEMMA3
from peagle.model.families.llama import LLAMA
from peagle.model.families.mistral import MISTRAL
from peagle.model.families.phi3 import PHI3
from peagle.model.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from peagle.model.families.smollm3 import SMOLLM3

__all__ = ["BY_ARCHITECTURE", "BY_NAME", "FAMILIES", "Experts", "Family"]

FAMILIES: Final = (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, PHI3, SMOLLM3, GEMMA3)
BY_NAME: Final = {family.name: family for family in FAMILIES}
BY_ARCHITECTURE: Final = {family.architecture: family for family in FAMILIES} | {
    family.vision: family for family in FAMILIES if family.vision is not None
}
