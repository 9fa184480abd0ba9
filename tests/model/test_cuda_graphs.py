"""What runs on a GPU, on a processor: shapes from a small set, and passes in lasting memory."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from peagle import LLM
from peagle.model.kv_cache import KVCache, SequenceCache
from peagle.model.page_products import CUDA_JOBS
from peagle.model.rows import SequenceRows
from peagle.model.target import StepOutput
from peagle.model.torch_target import TorchTarget
from peagle.quantization import Quantization
from tests.model.random_models import CPU, FAMILIES, GROUPED, random_target
from tests.model.readings import (
    BUDGET,
    among_siblings,
    assert_tree_rows_equal_plain_decoding,
    tokens_of,
)


class Repeats:
    """Stands for a capture: runs the body over the same memory again."""

    def __init__(self) -> None:
        self.captured = 0

    def __call__(self, body: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        body()
        return body


def with_graphs(target: TorchTarget) -> tuple[TorchTarget, Repeats]:
    """Give a target the passes that it would have on a GPU: one block, few shapes, graphs."""
    repeats = Repeats()
    weights, dtype = target.weights, target.dtype
    return TorchTarget(target.config, weights, dtype, CPU, target.taps, capture=repeats), repeats


def bfloat16_cache(target: TorchTarget) -> KVCache:
    """Make a KV cache as a GPU has it."""
    return KVCache(target.config, budget=BUDGET, dtype=torch.bfloat16, device=CPU)


def opened(target: TorchTarget, cache: KVCache, lengths: list[int]) -> list[SequenceCache]:
    sequences = []
    for length in lengths:
        sequence = cache.open(length + 60)
        rows = [SequenceRows(sequence, tokens_of(length, seed=length), logits="none")]
        target.forward(cache, rows).commit([range(length)])
        sequences.append(sequence)
    return sequences


def random_step(sequences: list[SequenceCache], chance: random.Random) -> list[SequenceRows]:
    step = []
    for sequence in chance.sample(sequences, chance.randrange(1, len(sequences) + 1)):
        nodes = chance.randrange(0, 24)
        tokens = [chance.randrange(320) for _ in range(nodes + 1)]
        step.append(
            SequenceRows(sequence, tokens, [-1, *(chance.randrange(n + 1) for n in range(nodes))])
        )
    return step


def same(left: StepOutput, right: StepOutput) -> bool:
    pairs = [*zip(left.logits, right.logits, strict=True)]
    pairs += zip(left.features, right.features, strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["grouped", "windowed"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_passes_in_lasting_memory_give_the_bits_of_those_without(
    name: str, quantization: Quantization
) -> None:
    target, repeats = with_graphs(
        random_target(FAMILIES[name], torch.bfloat16, quantization=quantization)
    )
    graphs = target.graphs
    cache = bfloat16_cache(target)
    sequences = opened(target, cache, [5, 64, 100, 1, 130, 700])
    chance = random.Random(1)
    for _ in range(12):
        step = random_step(sequences, chance)
        target.graphs = None
        expected = target.forward(cache, step, features=True)
        target.graphs = graphs
        output = target.forward(cache, step, features=True)
        assert same(output, expected)
        total = expected.step.total
        assert torch.equal(
            output.step.uncommitted[:, :, :total], expected.step.uncommitted[:, :, :total]
        )
        output.commit([[0]] * len(step))
    captured = repeats.captured
    for _ in range(3):
        target.forward(cache, step, features=True)
    assert repeats.captured == captured


def test_shapes_of_passes_are_few() -> None:
    target, repeats = with_graphs(random_target())
    cache = target.new_cache(BUDGET)
    sequence = cache.open(400)
    shapes: Counter[tuple[object, ...]] = Counter()
    chance = random.Random(2)
    while sequence.length < 300:
        tokens, parents, places = among_siblings(tokens_of(3, seed=1), chance.randrange(9), chance)
        output = target.forward(cache, [SequenceRows(sequence, tokens, parents)])
        shapes.update(one.plan.shape for one in output.step.passes)
        output.commit([places])
    assert shapes.total() == 100
    assert len(shapes) == repeats.captured <= 16
    jobs = {group[0] for shape in shapes for group in shape[3:]}
    assert jobs <= set(CUDA_JOBS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_of_a_small_set_change_no_bit(dtype: torch.dtype) -> None:
    """Neither do more jobs than one product takes."""
    target = random_target(dtype=dtype)
    cache = target.new_cache(96 << 20)
    sequences = opened(target, cache, [5, 130, *[900] * 20])
    step = [SequenceRows(one, [1, 2], [-1, 0]) for one in sequences]
    expected = target.forward(cache, step)
    output = with_graphs(target)[0].forward(cache, step)
    (one,) = output.step.passes
    assert [group[0] for group in one.plan.shape[3:]] == [CUDA_JOBS[-1]] * 2
    assert all(torch.equal(a, b) for a, b in zip(output.logits, expected.logits, strict=True))


@pytest.mark.parametrize("prefix", [1, 63, 130])
def test_a_tree_row_equals_plain_decoding_over_a_bfloat16_cache(
    prefix: int,
) -> None:
    """Ancestors that are not committed yet are read as rounded as committed ones."""
    target, _ = with_graphs(random_target(dtype=torch.bfloat16))
    cache = bfloat16_cache(target)
    assert_tree_rows_equal_plain_decoding(target, cache, prefix, (0, 3, 26, 90))


def test_the_real_model_writes_the_same_with_lasting_memory(smollm2_torch: LLM) -> None:
    plain = smollm2_torch.target
    assert isinstance(plain, TorchTarget)
    target, _ = with_graphs(plain)
    context = smollm2_torch.encode("Name three colours of the rainbow.")
    tokens, parents = [28, 30, 2, 198, 7], [-1, 0, 0, 1, 2]

    def read(target: TorchTarget) -> list[torch.Tensor]:
        cache = target.new_cache(BUDGET)
        sequence = cache.open(100)
        logits = []
        for first in range(0, len(context), 12):
            chunk = context[first : first + 12]
            output = target.forward(cache, [SequenceRows(sequence, chunk)], features=True)
            output.commit([range(len(chunk))])
            logits += [*output.logits, *output.features]
        output = target.forward(cache, [SequenceRows(sequence, tokens, parents)], features=True)
        return [*logits, *output.logits, *output.features]

    expected, lasting = read(plain), read(target)
    target.graphs = None
    without = read(target)
    assert len(expected) == len(lasting) > 8
    assert all(torch.equal(a, b) for a, b in zip(without, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(lasting, expected, strict=True))


def test_the_graph_unused_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.model.cuda_graphs.MOST_SHAPES", 1)
    target, repeats = with_graphs(random_target())
    cache = target.new_cache(BUDGET)
    short, long = opened(target, cache, [5, 300])
    seen = []
    for sequence in (short, long, long, short):
        captured = repeats.captured
        target.forward(cache, [SequenceRows(sequence, [7])])
        seen.append(repeats.captured - captured)
    assert seen == [1, 1, 0, 1]


class Operations(TorchDispatchMode):
    """Notes which operations run, over tensors of which shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[torch.Size]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [arg.shape for arg in args if isinstance(arg, torch.Tensor)]
        self.seen.append((str(func), shapes))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_graph_neither_asks_what_is_in_a_pass_nor_changes_with_it(
    quantization: Quantization,
) -> None:
    target, _ = with_graphs(random_target(GROUPED, torch.bfloat16, quantization=quantization))
    cache = bfloat16_cache(target)
    sequences = opened(target, cache, [70, 100])
    found = []
    for step in (
        [SequenceRows(sequences[0], [5, 6, 7], [-1, 0, 0])],
        [SequenceRows(one, [8, 9], [-1, 0]) for one in sequences],
    ):
        planned = target.planner.plan(cache, step)
        with torch.inference_mode(), Operations() as operations:
            target.run_layers(planned.passes[0])
        found.append((planned.passes[0].plan.shape, operations.seen))
    (shape, first), (other, second) = found
    names = {name for name, _ in first}
    assert len(first) > 100
    assert names.isdisjoint({"aten._local_scalar_dense.default", "aten.nonzero.default",
                             "aten.equal.default", "aten.lift_fresh.default",
                             "aten.is_nonzero.default"})  # fmt: skip
    assert shape == other
    assert first == second
