"""The native step against the straight network, and its rows against each other."""

import random

import pytest
import torch

from peagle import native
from peagle.draft.eagle3.drafter import Eagle3Drafter
from peagle.draft.eagle3.network import Eagle3Network
from peagle.draft.network.native_compute import NativeCompute
from peagle.draft.network.torch_compute import TorchCompute
from peagle.draft.peagle.drafter import PEagleDrafter
from peagle.draft.peagle.network import PEagleNetwork
from peagle.draft.untrained import random_drafter, random_tensors
from peagle.model.native_target import NativeTarget
from peagle.model.rows import SequenceRows
from tests.draft.straight_network import StraightEagle3, StraightNetwork
from tests.draft.tiny_drafter import (
    VOCAB,
    decoder_config,
    draft,
    eagle3_config,
    ids_of,
    peagle_config,
    probabilities_of,
)
from tests.model.random_models import GROUPED, random_target

K = 6


def rounded(tensors):
    """What the native step holds: all weights in bfloat16, so that only sums differ."""
    return {
        name: found.to(torch.bfloat16).float() if found.is_floating_point() else found
        for name, found in tensors.items()
    }


@pytest.fixture
def table(embedding):
    return embedding.to(torch.bfloat16)


def compute_of(config, table, instructions="", seed=3, quantised=False):
    tensors = rounded(random_tensors(config, seed))
    compute = NativeCompute(
        config, tensors, embedding=table, quantised=quantised, threads=1, instructions=instructions
    )
    return compute, tensors


def peagle(config, table, **changes):
    compute, tensors = compute_of(config, table, **changes)
    drafter = PEagleDrafter(
        PEagleNetwork(config, tensors, compute, embedding=table), budget=8 << 20, name="tiny"
    )
    return drafter, StraightNetwork(config, tensors, table)


def eagle3(config, table, **changes):
    compute, tensors = compute_of(config, table, **changes)
    drafter = Eagle3Drafter(Eagle3Network(config, tensors, compute), budget=8 << 20, name="tiny")
    return drafter, StraightEagle3(config, tensors, table)


def all_logits(drafter, tokens, features, masks):
    """Logits of all slots and mask slots, read through the drafter in one piece."""
    state = drafter.open(len(tokens) + masks)
    state.observe(tokens, features)
    slots = [state.take(len(tokens))]
    output = drafter.network.forward(drafter.cache, slots, [masks], [len(tokens) + masks])
    drafter.close(state)
    return output.logits[0]


def assert_near(found, expected, tolerance=1e-2):
    """Rows are rounded to bfloat16 before each product, sums are not."""
    assert found.shape == expected.shape
    assert float((found.double() - expected).std() / expected.std()) < tolerance


@pytest.mark.parametrize(
    "config",
    [
        peagle_config(),
        peagle_config(decoder=decoder_config(num_layers=1)),
        peagle_config(norm_before_residual=True),
        peagle_config(norm_before_fc=True),
        peagle_config(fc_norm=True),
        peagle_config(own_embedding=True),
        peagle_config(decoder=decoder_config(num_kv_heads=1)),
        peagle_config(decoder=decoder_config(head_dim=32, num_heads=6)),
        peagle_config(draft_vocab_size=VOCAB),
        peagle_config(taps=(5,)),
    ],
    ids=["plain", "one_layer", "norm_before_residual", "norm_before_fc", "fc_norm",
         "own_embedding", "one_kv_head", "wide_heads", "full_vocabulary", "one_tap"],
)  # fmt: skip
def test_every_form_equals_the_straight_computation(table, slots, config):
    drafter, straight = peagle(config, table)
    tokens, features = slots(40, feature_size=config.feature_size)
    tokens[5] = config.mask_token_id
    assert_near(all_logits(drafter, tokens, features, 6), straight.logits(tokens, features, 6))


@pytest.mark.parametrize("instructions", native.instruction_sets())
def test_every_instruction_set_equals_the_straight_computation(table, slots, instructions):
    drafter, straight = peagle(peagle_config(), table, instructions=instructions)
    tokens, features = slots(70)
    assert_near(all_logits(drafter, tokens, features, 6), straight.logits(tokens, features, 6))


@pytest.mark.parametrize("instructions", native.instruction_sets())
def test_a_quantised_network_is_near_the_straight_computation(table, slots, instructions):
    drafter, straight = peagle(peagle_config(), table, instructions=instructions, quantised=True)
    tokens, features = slots(70)
    found = all_logits(drafter, tokens, features, 6)
    exact = straight.logits(tokens, features, 6)
    with pytest.raises(AssertionError):
        assert_near(found, exact, tolerance=2e-3)
    assert_near(found, exact, tolerance=5e-2)


def test_features_are_read_in_any_float_type(table, slots):
    drafter, _ = peagle(peagle_config(), table)
    tokens, features = slots(9)
    features = features.to(torch.bfloat16)
    found = all_logits(drafter, tokens, features, 2)
    assert torch.equal(found, all_logits(drafter, tokens, features.float(), 2))


@pytest.mark.parametrize("quantised", [False, True])
def test_rows_do_not_depend_on_others(table, slots, quantised):
    """Alone, in a batch, in any order, in pieces, deeper: the same bits."""
    drafter, _ = peagle(peagle_config(), table, quantised=quantised)
    texts = [slots(count, seed) for seed, count in enumerate((3, 70, 1, 190, 64, 17))]

    def drafted(order, piece=None, depth=K):
        states = [drafter.open(230) for _ in order]
        for state, one in zip(states, order, strict=True):
            tokens, features = texts[one]
            for first in range(0, len(tokens), piece or len(tokens)):
                last = min(first + (piece or len(tokens)), len(tokens))
                state.observe(tokens[first:last], features[first:last])
                if piece and last < len(tokens):
                    draft(drafter, [state], 1)
        found = draft(drafter, states, depth)
        for state in states:
            drafter.close(state)
        return {
            one: (ids_of(own), probabilities_of(own)) for one, own in zip(order, found, strict=True)
        }

    alone = {one: drafted([one])[one] for one in range(len(texts))}
    shuffled = random.Random(4).sample(range(len(texts)), len(texts))
    for found in (
        drafted(list(alone)),
        drafted(shuffled),
        drafted(shuffled, 1),
        drafted([1, 3], 23),
    ):
        for one, (ids, probabilities) in found.items():
            assert (ids == alone[one][0]).all()
            assert (probabilities == alone[one][1]).all()
    for one, (ids, probabilities) in drafted(shuffled, depth=K + 3).items():
        assert (ids[:K] == alone[one][0]).all()
        assert (probabilities[:K] == alone[one][1]).all()


@pytest.mark.parametrize("vocab", [200, 900])
def test_a_markov_head_tells_what_torch_tells(slots, vocab):
    """The larger vocabulary has more tokens than are scored anew for each token before."""
    config = peagle_config(
        markov_rank=16, draft_vocab_size=vocab, decoder=decoder_config(vocab_size=1000)
    )
    table = torch.randn(1000, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    drafter, _ = peagle(config, table)
    _, tensors = compute_of(config, table)
    shared = {"embedding": table.float(), "dtype": torch.float32, "device": torch.device("cpu")}
    compute = TorchCompute(config, tensors, **shared)
    network = PEagleNetwork(config, tensors, compute, embedding=table.float())
    other = PEagleDrafter(network, budget=8 << 20, name="tiny")
    found = []
    for one in (drafter, other):
        state = one.open(64)
        state.observe(*slots(30))
        found += draft(one, [state], 5)
    native_branches, torch_branches = found
    assert (native_branches.levels, torch_branches.levels) == (5, 5)
    rng = random.Random(6)
    for depth in range(1, 6):
        for _ in range(4):
            path = [rng.randrange(1000) for _ in range(depth - 1)]
            told = dict(zip(*native_branches.children(depth, path), strict=True))
            expected = dict(zip(*torch_branches.children(depth, path), strict=True))
            assert list(told.values()) == sorted(told.values(), reverse=True)
            assert len(told) == len(expected) == 32
            both = told.keys() & expected.keys()
            assert len(both) > 24
            for token in both:
                assert told[token] == pytest.approx(expected[token], rel=0.1, abs=1e-4)


def test_a_prompt_of_many_passes_equals_the_straight_computation(table, slots):
    config = peagle_config(decoder=decoder_config(context_length=1024))
    drafter, straight = peagle(config, table)
    tokens, features = slots(2 * drafter.rows_per_pass + 51)
    state = drafter.open(len(tokens) + K)
    state.observe(tokens, features)
    [found] = draft(drafter, [state], K)
    expected = straight.logits(tokens, features, K - 1)[-K:].softmax(-1)
    full = torch.zeros(K, VOCAB, dtype=torch.float64)
    full[:, straight.target_ids] = expected
    seen = full.gather(1, torch.from_numpy(ids_of(found)))
    assert float((seen - torch.from_numpy(probabilities_of(found))).abs().max()) < 1e-2


@pytest.mark.parametrize("norm_output", [False, True])
def test_an_eagle3_tree_equals_the_straight_computation(table, slots, norm_output):
    drafter, straight = eagle3(eagle3_config(norm_output=norm_output), table)
    tokens, features = slots(30)
    state = drafter.open(64)
    state.observe(tokens, features)
    [found] = draft(drafter, [state], 4, nodes=20, roots=3)
    asked = [(), *(tuple(path) for path in found._children if path)]
    assert len(asked) > 3
    expected = straight.tree(tokens, features, sorted(asked, key=len))
    for path in asked:
        ids, probabilities = found.children(len(path) + 1, path)
        assert len(ids) == 3
        difference = expected[path][ids] - torch.tensor(probabilities, dtype=torch.float64)
        assert float(difference.abs().max()) < 1e-2


def test_tree_rows_do_not_depend_on_others(table, slots):
    drafter, _ = eagle3(eagle3_config(), table)
    tokens, features = slots(30)
    states = [drafter.open(64) for _ in range(3)]
    for state in states:
        state.observe(tokens, features)
    [alone] = draft(drafter, states[:1], 4, nodes=20, roots=3)
    for found in draft(drafter, states[1:], 4, nodes=20, roots=3):
        assert found._children == alone._children


def test_tokens_that_do_not_exist_are_refused(table):
    """A P-EAGLE network knows one token behind the vocabulary, an EAGLE-3 network none."""
    for drafter, token in (
        (peagle(peagle_config(), table)[0], VOCAB + 1),
        (eagle3(eagle3_config(), table)[0], VOCAB),
    ):
        compute, state = drafter.network.compute, drafter.open(8)
        entering = torch.zeros(1, compute.config.decoder.hidden_size)
        with pytest.raises(ValueError, match="not in the vocabulary"):
            compute.run(drafter.cache, [SequenceRows(state.cache, [token])], entering, [1])


@pytest.mark.parametrize("method", ["peagle", "eagle3"])
def test_a_drafter_computes_where_its_target_does(method):
    weights = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(2))
        for name, shape in GROUPED.tensor_shapes().items()
    }
    kinds = {NativeTarget(GROUPED, weights): NativeCompute, random_target(GROUPED): TorchCompute}
    for target, kind in kinds.items():
        assert type(random_drafter(target, method=method).network.compute) is kind
