"""Speculation changes no token of quantised targets either, with the drafter of the bf16 one."""

import pytest
import torch

from peagle import LLM, SamplingParams
from tests.engine.test_lossless import DRAFTS, PROMPTS, SAMPLINGS, drafted, plainly

LENGTH = 14


@pytest.fixture(params=["int8", "int4"])
def llm(request: pytest.FixtureRequest) -> LLM:
    loaded: LLM = request.getfixturevalue(f"smollm2_{request.param}")
    assert loaded.target.quantization == request.param
    return loaded


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafts_give_quantised_targets_the_tokens_of_plain_decoding(
    llm: LLM, sampling: str
) -> None:
    params = SamplingParams(max_tokens=LENGTH, **SAMPLINGS[sampling])
    # int4 is slow in torch: one prompt of it does, together with a copy of itself.
    prompts = PROMPTS[:2] if llm.target.quantization == "int8" else PROMPTS[:1] * 2
    expected = [plainly(llm, prompt, params) for prompt in prompts]
    for drafts in ("none", "all sources", "corrupted oracle"):
        oracles = expected if "oracle" in drafts else None
        together = drafted(llm, prompts, params, DRAFTS[drafts], oracles, corrupted=(3,))
        assert [result.token_ids for result in together] == expected, drafts
    assert sum(result.statistics.accepted_tokens for result in together) > LENGTH / 2


def test_the_shipped_drafter_fits_quantised_targets(llm: LLM) -> None:
    assert llm.target.dtype == torch.bfloat16
    assert llm.engine.drafter is not None
    params = SamplingParams(max_tokens=24)
    spec = {"method": "peagle", "lookup": False, "corpus": False, "adaptive": False}
    result = drafted(llm, PROMPTS[2:3], params, spec)[0]
    length = result.statistics.acceptance_length
    assert length is not None
    assert length > 1.5
