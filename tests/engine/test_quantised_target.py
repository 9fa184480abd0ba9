"""The drafter of the bf16 target serves the quantised ones."""

import pytest
import torch

from peagle import LLM, SamplingParams
from tests.engine.test_lossless import PROMPTS, drafted


@pytest.fixture(params=["int8", "int4"])
def llm(request: pytest.FixtureRequest) -> LLM:
    loaded: LLM = request.getfixturevalue(f"smollm2_{request.param}")
    assert loaded.target.quantization == request.param
    return loaded


def test_the_shipped_drafter_fits_quantised_targets(llm: LLM) -> None:
    assert llm.target.dtype == torch.bfloat16
    assert llm.engine.drafter is not None
    params = SamplingParams(max_tokens=24)
    spec = {"method": "peagle", "lookup": False, "corpus": False, "adaptive": False}
    result = drafted(llm, PROMPTS[2:3], params, spec)[0]
    length = result.statistics.acceptance_length
    assert length is not None
    assert length > 1.5
