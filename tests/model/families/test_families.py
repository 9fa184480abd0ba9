"""Every family equals transformers, and its rows do not depend on one another."""

import random
from dataclasses import replace

import pytest
import torch

from peagle.model.config import DecoderConfig
from peagle.model.rows import SequenceRows
from peagle.quantization import Quantization
from tests.model.random_models import (
    FAMILIES,
    GEMMA3,
    OTHER_FAMILIES,
    PHI4_MINI,
    PHI4_MINI_LONG,
    QWEN2_WINDOWED,
    QWEN3_MOE,
    SMOLLM3,
    random_target,
    reference_model,
    target_from,
)
from tests.model.readings import (
    BUDGET,
    among_siblings,
    assert_tree_rows_equal_plain_decoding,
    read_in_chunks,
    read_plainly,
    tokens_of,
)

EVERY = {**FAMILIES, **OTHER_FAMILIES, "phi4-mini-long": PHI4_MINI_LONG}
LOGIT_BOUND = 1e-4


def logits_of(config: DecoderConfig, tokens: list[int]) -> torch.Tensor:
    target = random_target(config)
    cache = target.new_cache(BUDGET)
    return target.forward(cache, [SequenceRows(cache.open(len(tokens)), tokens)]).logits[0]


# 200 tokens are more than any of their windows, and than the long one's original context.
@pytest.mark.parametrize("name", EVERY)
def test_logits_equal_transformers(name: str) -> None:
    config = EVERY[name]
    reference = reference_model(config)
    target = target_from(reference, config)
    tokens = tokens_of(200, seed=1)
    with torch.no_grad():
        theirs = reference(torch.tensor([tokens])).logits[0]
    assert theirs.abs().max() > 1, "the comparison must not be between near-zero logits"
    cache = target.new_cache(BUDGET)
    for sizes in ([200], [90, 1, 64, 45]):
        ours = read_in_chunks(target, cache, tokens, sizes)
        torch.testing.assert_close(ours, theirs, atol=LOGIT_BOUND, rtol=0)


@pytest.mark.parametrize("name", OTHER_FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        (torch.float32, "none"),
        (torch.bfloat16, "none"),
        (torch.float32, "int8"),
        (torch.float32, "int4"),
    ],
)
def test_chunks_and_trees_change_no_bit(
    name: str, dtype: torch.dtype, quantization: Quantization
) -> None:
    target = random_target(OTHER_FAMILIES[name], dtype, quantization=quantization)
    cache = target.new_cache(BUDGET)
    # Beyond every window, and from one page into the next.
    context, path = tokens_of(62, seed=3), tokens_of(4, seed=5)
    plain = read_plainly(target, cache, context + path)
    for sizes in ([66], [29, 2, 35]):
        assert torch.equal(read_in_chunks(target, cache, context + path, sizes), plain), sizes
    other = tokens_of(40, seed=7)
    for siblings in (0, 9, 26):
        tokens, parents, places = among_siblings(path, siblings, random.Random(siblings))
        sequence, beside = cache.open(200), cache.open(40)
        target.forward(cache, [SequenceRows(sequence, context)]).commit([range(62)])
        rows = [SequenceRows(beside, other), SequenceRows(sequence, tokens, parents)]
        logits = target.forward(cache, rows).logits[1]
        assert torch.equal(logits[places], plain[62:]), siblings
        cache.close(sequence)
        cache.close(beside)


def test_a_window_by_absolute_position_ends_within_a_tree() -> None:
    """A row deep in a tree no longer sees what the root still saw."""
    config = replace(GEMMA3, sliding_window=5, windowed_layers=(0, 1, 2, 3))
    target = random_target(config)
    cache = target.new_cache(BUDGET)
    assert_tree_rows_equal_plain_decoding(target, cache, 61, (0, 5, 20))


@pytest.mark.parametrize(
    ("config", "without"),
    [
        (QWEN2_WINDOWED, {"sliding_window": None, "windowed_layers": None}),
        (QWEN2_WINDOWED, {"windowed_layers": None}),
        (GEMMA3, {"window_rope_theta": None}),
        (GEMMA3, {"rope_scaling": None}),
        (GEMMA3, {"attention_scale": None}),
        (SMOLLM3, {"unturned_layers": ()}),
        (PHI4_MINI, {"rope_scaling": None}),
        (PHI4_MINI, {"context_length": 257}),
    ],
)
def test_each_trait_changes_the_logits(config: DecoderConfig, without: dict[str, object]) -> None:
    """What the comparison with transformers covers is not without effect."""
    tokens = tokens_of(120, seed=1)
    other = replace(config, **without)
    target = target_from(reference_model(config), other)
    cache = target.new_cache(BUDGET)
    ours = target.forward(cache, [SequenceRows(cache.open(120), tokens)]).logits[0]
    assert (ours - logits_of(config, tokens)).abs().max() > 100 * LOGIT_BOUND


@pytest.mark.parametrize("most", [1, 3])
def test_what_other_rows_choose_among_experts_changes_no_bit(most: int) -> None:
    assert QWEN3_MOE.experts is not None
    config = replace(QWEN3_MOE, experts=replace(QWEN3_MOE.experts, active=most))
    target = random_target(config)
    cache = target.new_cache(BUDGET)
    contexts = [tokens_of(length, seed=length) for length in (3, 40, 64)]
    plain = [read_plainly(target, cache, [*context, 7])[-1] for context in contexts]
    step = []
    for context in contexts:
        sequence = cache.open(len(context) + 1)
        target.forward(cache, [SequenceRows(sequence, context)]).commit([range(len(context))])
        step.append(SequenceRows(sequence, [7]))
    for order in ([0, 1, 2], [2, 0], [1]):
        together = target.forward(cache, [step[index] for index in order]).logits
        for index, logits in zip(order, together, strict=True):
            assert torch.equal(logits[0], plain[index]), order


@pytest.mark.parametrize("name", OTHER_FAMILIES)
@pytest.mark.parametrize(("quantization", "bound"), [("int8", 0.1), ("int4", 0.6)])
def test_quantised_logits_stay_near(name: str, quantization: Quantization, bound: float) -> None:
    config = OTHER_FAMILIES[name]
    tokens = tokens_of(60, seed=5)
    target = random_target(config, quantization=quantization)
    cache = target.new_cache(BUDGET)
    ours = target.forward(cache, [SequenceRows(cache.open(60), tokens)]).logits[0]
    exact = logits_of(config, tokens)
    error = (ours - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 0 < error < bound
