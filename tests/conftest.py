"""The real small model, loaded once for all tests that need it."""

import signal

import pytest
import torch

from peagle import LLM
from peagle.engine.costs import CostCurve, StepCosts

MODEL = "smollm2-135m-instruct"

# Two threads on two cores, whatever else the machine believes it has.
torch.set_num_threads(min(2, torch.get_num_threads()))

# A job in the background of a shell ignores Ctrl-C, which some tests are about.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Where rows cost nothing, adaptive trees are as large as pinned ones: figures that tests assert do
# not depend on the time of day.
FREE = StepCosts(target=CostCurve(rows=(1, 128), seconds=(1.0, 1.0)))


@pytest.fixture(scope="session")
def smollm2() -> LLM:
    """SmolLM2-135M-Instruct in bfloat16."""
    llm = LLM(MODEL, dtype="bfloat16")
    llm.engine.costs = FREE
    return llm


@pytest.fixture(scope="session")
def smollm2_torch() -> LLM:
    """SmolLM2-135M-Instruct in bfloat16, in torch."""
    llm = LLM(MODEL, dtype="bfloat16", backend="torch")
    llm.engine.costs = FREE
    return llm


@pytest.fixture(scope="session")
def smollm2_int8() -> LLM:
    """SmolLM2-135M-Instruct in int8."""
    return LLM(MODEL, quantization="int8")


@pytest.fixture(scope="session")
def smollm2_int4() -> LLM:
    """SmolLM2-135M-Instruct in int4."""
    return LLM(MODEL, quantization="int4")


@pytest.fixture(scope="session")
def smollm2_float32() -> LLM:
    """SmolLM2-135M-Instruct in float32."""
    llm = LLM(MODEL, dtype="float32")
    llm.engine.costs = FREE
    return llm
