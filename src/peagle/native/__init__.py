"""The native CPU step: C++ kernels and a whole decoder pass in one call, if they were built.

`library` is the extension module; it is there where `absence` says None.
"""

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peagle.native import _native as library

_absence: str | None = None
try:
    library = importlib.import_module("peagle.native._native")
except ModuleNotFoundError:
    _absence = "it was not built (no C++ compiler was found when peagle was installed)"
except ImportError as error:
    _absence = f"it cannot be loaded ({error})"


def absence() -> str | None:
    """Say why there is no native step here; None if there is one."""
    return _absence


def instruction_sets() -> list[str]:
    """Instruction sets that this processor runs, the best first; none if nothing was built."""
    return library.instruction_sets() if _absence is None else []


@functools.cache
def thread_pool(threads: int) -> "library.ThreadPool":
    """Give the pool that all native decoders of so many threads share, the caller among them."""
    return library.ThreadPool(threads)
