"""A drafter is trained for targets of several families, which accept what it drafts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from peagle import LLM, SamplingParams
from peagle.model.loading import load_torch_target
from peagle.train.features import Document
from peagle.train.recipe import Recipe
from peagle.train.run import Data, begin_from_target, finish, open_run
from peagle.train.trainer import Limits
from tests.model.random_models import GEMMA3, GROUPED, QWEN3
from tests.model.readings import tokens_of
from tests.model.tiny_folders import write_tiny_folder

# A random target answers without rules, so what can be learnt is what was shown.
PROMPTS = [{"prompt_token_ids": tokens_of(7, seed=seed)} for seed in range(4)]
ANSWER = SamplingParams(max_tokens=20, ignore_eos=True)
TARGETS = {"llama": GROUPED, "qwen3": QWEN3, "gemma3": GEMMA3}
ALONE = {"method": "peagle", "lookup": False, "corpus": False, "adaptive": False}
RECIPE = Recipe(draft_vocab_size=320, depths=4, markov_rank=8, rows_per_step=300, warmup_steps=5,
                decay_share=0.0)  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_acceptance_rises_and_what_was_trained_drafts(tmp_path: Path, name: str) -> None:
    # With a tied head, a random Gemma repeats its last token, which there is no need to learn.
    config = replace(TARGETS[name], tied_embeddings=False)
    folder = write_tiny_folder(tmp_path / "model", config)
    plain = LLM(str(folder), dtype="float32", parallel_drafting=False, kv_cache_bytes=32 << 20)
    answers = [result.token_ids for result in plain.generate(PROMPTS, ANSWER)]
    documents = [
        Document(torch.tensor([*prompt["prompt_token_ids"], *answer]), 7)
        for prompt, answer in zip(PROMPTS, answers, strict=True)
    ] * 10
    data = Data(documents, list(range(4, 40)), list(range(4)), "0" * 64)
    target = load_torch_target(folder, dtype="float32")
    beginning = begin_from_target(target, name, RECIPE, data)
    run = tmp_path / "run"
    run.mkdir()
    trainer = open_run(
        run, target=target, files=folder, name=name, beginning=beginning, data=data,
        cache_features=False, resume=False,
    )  # fmt: skip
    before = trainer.measure()
    trainer.train(Limits(tokens=9_000))
    after = trainer.measure()
    assert before.acceptance_length < 1.3
    assert after.acceptance_length > before.acceptance_length + 0.5

    drafter = finish(trainer, run, beginning, data, corpus=None)
    drafting = LLM(str(folder), drafter, ALONE, dtype="float32", kv_cache_bytes=32 << 20)
    results = drafting.generate(PROMPTS, ANSWER)
    assert [result.token_ids for result in results] == answers
    lengths = [result.statistics.acceptance_length for result in results]
    assert min(lengths) > 1.3, lengths
