"""The target equals transformers, and its rows do not depend on one another."""

import random

import pytest
import torch

from peagle.model.rows import SequenceRows
from peagle.quantization import Quantization
from tests.model.random_models import FAMILIES, GROUPED, random_target, reference_model, target_from
from tests.model.readings import (
    BUDGET,
    assert_tree_rows_equal_plain_decoding,
    read_plainly,
    tokens_of,
)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name: str) -> None:
    config = FAMILIES[name]
    reference = reference_model(config)
    target = target_from(reference, config)
    tokens = tokens_of(200, seed=1)
    cache = target.new_cache(BUDGET)
    ours = target.forward(cache, [SequenceRows(cache.open(200), tokens)]).logits[0]
    with torch.no_grad():
        theirs = reference(torch.tensor([tokens])).logits[0]
    assert theirs.abs().max() > 1, "the comparison must not be between near-zero logits"
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("taps", [(0, 1, 3), (2,), (1, 2)])
def test_features_are_the_residual_stream_entering_the_tapped_layers(taps: tuple[int, ...]) -> None:
    reference = reference_model(GROUPED)
    target = target_from(reference, GROUPED, taps=taps)
    tokens = tokens_of(70, seed=2)
    cache = target.new_cache(BUDGET)
    output = target.forward(cache, [SequenceRows(cache.open(70), tokens)], features=True)
    with torch.no_grad():
        hidden = reference(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    theirs = torch.cat([hidden[tap][0] for tap in taps], -1)
    torch.testing.assert_close(output.features[0], theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "quantization"),
    [("grouped", "none"), ("windowed", "none"), ("grouped", "int8"), ("windowed", "int4")],
)
def test_chunking_changes_no_bit(name: str, quantization: Quantization, dtype: torch.dtype) -> None:
    target = random_target(FAMILIES[name], dtype, quantization=quantization)
    cache = target.new_cache(BUDGET)
    tokens = tokens_of(150, seed=3)
    plain = read_plainly(target, cache, tokens)
    for sizes in ([150], [1, 149], [64, 64, 22], [63, 2, 85], [17, 50, 3, 80], [149, 1]):
        sequence = cache.open(150)
        seen: list[torch.Tensor] = []
        for size in sizes:
            chunk = tokens[sequence.length : sequence.length + size]
            output = target.forward(cache, [SequenceRows(sequence, chunk)])
            output.commit([range(size)])
            seen.extend(output.logits[0])
        cache.close(sequence)
        assert all(torch.equal(a, b) for a, b in zip(seen, plain, strict=True)), sizes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prefix", [1, 60, 63, 64, 127, 130])
def test_a_tree_row_equals_plain_decoding_for_every_layout_of_siblings(
    dtype: torch.dtype, prefix: int
) -> None:
    target = random_target(dtype=dtype)
    cache = target.new_cache(BUDGET)
    assert_tree_rows_equal_plain_decoding(target, cache, prefix, (0, 1, 3, 9, 26))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_sequences_in_the_step_change_no_bit(dtype: torch.dtype) -> None:
    target = random_target(dtype=dtype)
    cache = target.new_cache(BUDGET)
    chance = random.Random(7)
    lengths = [5, 64, 100, 1, 130, 63, 200]
    contexts = [tokens_of(length, seed=length) for length in lengths]
    plain = [read_plainly(target, cache, [*context, 7])[-1] for context in contexts]
    sequences = []
    for context in contexts:
        sequence = cache.open(len(context) + 40)
        target.forward(cache, [SequenceRows(sequence, context)]).commit([range(len(context))])
        sequences.append(sequence)
    for _ in range(5):
        chosen = chance.sample(range(len(lengths)), chance.randrange(1, len(lengths) + 1))
        step = []
        for index in chosen:
            extra = chance.randrange(0, 30)
            tokens = [7, *(chance.randrange(GROUPED.vocab_size) for _ in range(extra))]
            parents = [-1, *(chance.randrange(0, 1 + place) for place in range(extra))]
            step.append(SequenceRows(sequences[index], tokens, parents))
        output = target.forward(cache, step)
        for index, logits in zip(chosen, output.logits, strict=True):
            assert torch.equal(logits[0], plain[index]), chosen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_read_in_place_and_pages_copied_together_give_equal_bits(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = random_target(GROUPED, dtype)
    cache = target.new_cache(BUDGET)
    sequences = [cache.open(400) for _ in range(4)]
    for _ in range(3):  # turn by turn, so that each sequence's pages lie apart
        for number, sequence in enumerate(sequences):
            rows = SequenceRows(sequence, tokens_of(64, seed=number), logits="none")
            target.forward(cache, [rows]).commit([range(64)])
    cache.close(sequences.pop(1))
    step = [SequenceRows(sequence, [5, 6, 7], [-1, 0, 0]) for sequence in sequences]
    in_place = target.forward(cache, step)
    monkeypatch.setattr("peagle.model.attention.MOST_IDLE_PAGES", -1.0)
    copied = target.forward(cache, step)
    kinds = [
        {type(group.pages) for one in output.step.passes for group in one.plan._groups}
        for output in (in_place, copied)
    ]
    assert kinds == [{slice, torch.Tensor}, {torch.Tensor}]
    assert all(torch.equal(a, b) for a, b in zip(in_place.logits, copied.logits, strict=True))


def test_committed_rows_continue_as_if_decoded_plainly() -> None:
    target = random_target()
    cache = target.new_cache(BUDGET)
    context, path, after = tokens_of(62, seed=8), tokens_of(4, seed=9), tokens_of(3, seed=10)
    plain = read_plainly(target, cache, context + path + after)
    sequence = cache.open(80)
    target.forward(cache, [SequenceRows(sequence, context)]).commit([range(62)])
    tokens = [path[0], 1, path[1], 2, path[2], path[3]]
    output = target.forward(cache, [SequenceRows(sequence, tokens, [-1, 0, 0, 1, 2, 4])])
    output.commit([[0, 2, 4, 5]])
    assert sequence.length == 66
    output = target.forward(cache, [SequenceRows(sequence, after)])
    assert all(torch.equal(a, b) for a, b in zip(output.logits[0], plain[66:], strict=True))


def test_swapping_two_committed_rows_is_noticed() -> None:
    """The comparison above would catch a compaction that stores rows in the wrong order."""
    target = random_target()
    cache = target.new_cache(BUDGET)
    context = tokens_of(62, seed=8)
    expected = read_plainly(target, cache, [*context, 7])[-1]
    sequence = cache.open(80)
    order = [*range(40), 41, 40, *range(42, 62)]
    target.forward(cache, [SequenceRows(sequence, context)]).commit([order])
    output = target.forward(cache, [SequenceRows(sequence, [7])])
    assert not torch.equal(output.logits[0][0], expected)


def test_dropping_an_ancestor_is_noticed() -> None:
    target = random_target()
    cache = target.new_cache(BUDGET)
    context, path = tokens_of(20, seed=8), tokens_of(3, seed=9)
    expected = read_plainly(target, cache, context + path)[-1]
    sequence = cache.open(80)
    target.forward(cache, [SequenceRows(sequence, context)]).commit([range(20)])
    right = target.forward(cache, [SequenceRows(sequence, path, [-1, 0, 1])]).logits[0][2]
    wrong = target.forward(cache, [SequenceRows(sequence, path, [-1, -1, 1])]).logits[0][2]
    assert torch.equal(right, expected)
    assert not torch.equal(wrong, expected)
