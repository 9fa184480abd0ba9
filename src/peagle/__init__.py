"""Self-hosted P-EAGLE: parallel speculative decoding whose output is the target's own.

from peagle import LLM, SamplingParams

llm = LLM("smollm2-135m-instruct")
print(llm.generate("Why is the sky blue?", SamplingParams(max_tokens=100))[0].text)
"""

import os
from typing import TYPE_CHECKING, Any

from peagle.errors import PeagleError
from peagle.sampling_params import SamplingParams
from peagle.spec import ParallelDraftingSpec

# How long an idle thread of torch's pool spins before it sleeps; read when torch is first imported.
# By default it spins for milliseconds, which starves its own partners as soon as any other program
# wants a core: a pass was measured to take 2 s instead of 40 ms on two cores with one busy.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# Large tensors in huge pages: filling a fresh one of 120 MB was measured to be 2 to 3 times faster.
# Read when torch first allocates.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from peagle.llm import LLM

__all__ = ["LLM", "ParallelDraftingSpec", "PeagleError", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Import the model code only where it is used: listing the catalog needs none of it."""
    if name == "LLM":
        from peagle.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
