"""Speculation changes no token of any family, from its safetensors to the answer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle import LLM, SamplingParams
from peagle.draft.untrained import random_drafter
from peagle.evaluate.oracle import OracleProposer
from peagle.evaluate.plain import PlainDecoder
from peagle.llm import Generation
from tests.model.random_models import GROUPED, OTHER_FAMILIES, WINDOWED
from tests.model.readings import tokens_of
from tests.model.tiny_folders import write_tiny_folder

# A random model with a tied head mostly repeats its last token: all have a head of their own.
FAMILIES = {
    name: replace(config, tied_embeddings=False)
    for name, config in {
        "llama": GROUPED, "mistral": replace(WINDOWED, sliding_window=50), **OTHER_FAMILIES
    }.items()
}  # fmt: skip
# The answer to the first is written beyond every window, and from one page into the next.
PROMPTS = [tokens_of(54, seed=1), tokens_of(12, seed=2)]
LENGTH = 14
SAMPLINGS = [
    SamplingParams(max_tokens=LENGTH, ignore_eos=True),
    SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=1.0, seed=5),
]
TREE = {"adaptive": False}
WEIGHTS = {
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
# Of those that differ in their windows or their experts' shares alone, one is quantised.
QUANTISED = [name for name in FAMILIES if name not in ("qwen2", "qwen3-moe-shares")]
CASES = [("float32", name) for name in FAMILIES] + [
    (kind, name) for kind in ("int8", "int4") for name in QUANTISED
]


def oracle(llm: LLM, generation: Generation, answer: Sequence[int], wrong: Sequence[int]) -> None:
    (sequence,) = generation.sequences
    sequence.proposer = OracleProposer(
        answer, corrupted=wrong, vocab_size=llm.target.config.vocab_size
    )


@pytest.mark.parametrize(("weights", "name"), CASES)
def test_trees_give_the_tokens_of_plain_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, name: str
) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    folder = write_tiny_folder(tmp_path / "model", FAMILIES[name])
    options: dict[str, Any] = WEIGHTS[weights]
    llm = LLM(
        str(folder), parallel_drafting_spec={"method": "lookup", **TREE},
        device="cpu", kv_cache_bytes=32 << 20, **options,
    )  # fmt: skip
    assert llm.target.config == FAMILIES[name]
    llm.engine.drafter = random_drafter(llm.target, layers=1)
    expected = {}
    for prompt, ids in enumerate(PROMPTS):
        plain = PlainDecoder(llm, ids, LENGTH)
        for sampling, params in enumerate(SAMPLINGS):
            expected[prompt, sampling] = plain.write(params, seed=params.seed or 0)
    generations = {}
    for (prompt, sampling), answer in expected.items():
        for drafts in ("none", "peagle", "oracle"):
            method = "lookup" if drafts == "oracle" else drafts
            generation = llm.stream(
                {"prompt_token_ids": PROMPTS[prompt]},
                SAMPLINGS[sampling],
                parallel_drafting_spec={"method": method, **TREE},
            )
            if drafts == "oracle":
                oracle(llm, generation, answer, (2, 5) if sampling else ())
            generations[prompt, sampling, drafts] = generation
    while not all(generation.finished for generation in generations.values()):
        llm.step()
    for (prompt, sampling, drafts), generation in generations.items():
        result = generation.result
        assert result.token_ids == expected[prompt, sampling], (prompt, sampling, drafts)
        if drafts == "oracle" and not sampling:
            # Seven draft tokens a step, so the answer takes two steps.
            assert result.statistics.accepted_tokens == LENGTH - 1 - 2
        if drafts == "peagle":
            assert result.statistics.draft_passes > 0
    assert len({tuple(answer) for answer in expected.values()}) == len(expected)
