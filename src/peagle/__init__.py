"""Self-hosted P-EAGLE: parallel speculative decoding whose output is the target's own.

from peagle import LLM, SamplingParams

llm = LLM("smollm2-135m-instruct")
print(llm.generate("Why is the sky blue?", SamplingParams(max_tokens=100))[0].text)
"""

from typing import TYPE_CHECKING, Any

from peagle.errors import PeagleError
from peagle.sampling_params import SamplingParams
from peagle.spec import ParallelDraftingSpec

if TYPE_CHECKING:
    from peagle.llm import LLM

__all__ = ["LLM", "ParallelDraftingSpec", "PeagleError", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Import the model code only where it is used: listing the catalog needs none of it."""
    if name == "LLM":
        from peagle.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
