"""What this machine is: its processor, its memory, and how fast it reads it."""

import time
from dataclasses import dataclass

import psutil
import torch

from peagle.engine.processor import processor_name


@dataclass(frozen=True, slots=True)
class Machine:
    """What runs the engine.

    Attributes:
        processor: Its name as the system gives it.
        cores: Physical cores.
        threads: Threads that torch computes with.
        memory_bytes: Memory of the machine.
        instructions: Best instruction set that torch found.
        torch_version: Release of torch.
        gpus: Names of CUDA devices.
    """

    processor: str
    cores: int
    threads: int
    memory_bytes: int
    instructions: str
    torch_version: str
    gpus: list[str]


def describe_machine() -> Machine:
    """Say what this machine is."""
    return Machine(
        processor=processor_name(),
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_bytes=psutil.virtual_memory().total,
        instructions=torch.backends.cpu.get_cpu_capability(),
        torch_version=torch.__version__,
        gpus=[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    )


def memory_bandwidth() -> float:
    """Bytes per second that all threads together read from memory, best of three."""
    values = torch.ones(128 << 20, dtype=torch.float32)
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        values.sum()
        best = max(best, values.numel() * values.itemsize / (time.perf_counter() - started))
    return best
