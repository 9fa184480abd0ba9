"""The native CPU step: C++ kernels and a whole decoder pass in one call, if they were built."""

import functools
import importlib
from typing import Any

_library: Any
try:
    _library = importlib.import_module("peagle.native._native")
except ModuleNotFoundError:
    _library = None


def built() -> bool:
    """Whether the step was built when peagle was installed."""
    return _library is not None


def require() -> Any:
    """Give the library, which must have been built."""
    assert _library is not None
    return _library


def instruction_sets() -> list[str]:
    """Instruction sets that this processor runs, the best first; none if nothing was built."""
    return list(_library.instruction_sets()) if _library is not None else []


@functools.cache
def thread_pool(threads: int) -> Any:
    """Give the pool that all native decoders of so many threads share, the caller among them."""
    return require().ThreadPool(threads)
