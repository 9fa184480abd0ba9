"""The native CPU step: C++ kernels and a whole decoder pass in one call, if they were built."""

import functools
from types import ModuleType

import torch

try:
    from peagle.native import _native

    library: ModuleType | None = _native
except ImportError:
    library = None


@functools.cache
def thread_pool(threads: int | None = None) -> object:
    """Give the pool that all native decoders of so many threads share.

    Args:
        threads: Its size, the caller included; torch's number of threads if None.
    """
    assert library is not None
    return library.ThreadPool(threads or torch.get_num_threads())
