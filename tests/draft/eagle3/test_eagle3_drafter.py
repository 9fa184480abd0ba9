import numpy as np
import pytest
import torch

from peagle.draft.network.drafter import DraftLimits
from peagle.draft.network.torch_compute import TorchCompute
from peagle.draft.peagle.drafter import PEagleDrafter
from peagle.draft.peagle.network import PEagleNetwork
from peagle.draft.untrained import random_tensors
from tests.draft.tiny_drafter import (
    CPU,
    HIDDEN,
    VOCAB,
    decoder_config,
    draft,
    eagle3_config,
    peagle_config,
)

DEPTH = 5


def paths_of(found) -> list[tuple[int, ...]]:
    """All paths that the network was asked about, the empty one first."""
    paths = [()]
    for path in paths:
        ids, _ = found.children(len(path) + 1, path)
        paths += [(*path, token) for token in ids if found.children(0, (*path, token))[0]]
    return paths


def assert_drafts(found, straight, tokens, features, *, width, tolerance=1e-4):
    """Compare every path asked about with the straight network run from the beginning."""
    paths = paths_of(found)
    assert max(map(len, paths)) == found.levels - 1
    for path, expected in straight.tree(tokens, features, paths).items():
        ids, probabilities = found.children(len(path) + 1, path)
        assert len(ids) == width
        best = expected.topk(width).values
        assert np.abs(np.array(probabilities) - best.numpy()).max() < tolerance
        assert np.abs(np.array(probabilities) - expected[ids].numpy()).max() < tolerance
    return paths


FORMS = {
    "plain": eagle3_config(),
    "two layers": eagle3_config(decoder=decoder_config(num_layers=2)),
    "norm_output": eagle3_config(norm_output=True),
    "eagle 3.1": eagle3_config(norm_output=True, fc_norm=True, taps=(0, 1, 3, 4, 5)),
    "norm_before_residual": eagle3_config(norm_before_residual=True, norm_before_fc=True),
    "own embedding": eagle3_config(own_embedding=True, draft_vocab_size=VOCAB),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [1, 3])
def test_every_round_equals_drafting_from_scratch(build, slots, form, width):
    """A chain and a tree; the KV cache holds the real slots alone when a round ends."""
    config = FORMS[form]
    drafter, straight = build(config)
    tokens, features = slots(68, feature_size=config.feature_size)
    state = drafter.open(256)
    done = passes = 0
    for new in (63, 1, 4):
        state.observe(tokens[done : done + new], features[done : done + new])
        done += new
        [found] = draft(drafter, [state], DEPTH, nodes=40, roots=width)
        assert state.cache.length == done
        paths = assert_drafts(found, straight, tokens[:done], features[:done], width=width)
        assert found.levels == DEPTH
        assert len(paths) == 1 + (DEPTH - 1) * width
        passes += DEPTH
        assert state.passes == passes


def test_what_is_fed_back_matters(build, slots):
    tokens, features = slots(12)
    probabilities = []
    for norm_output in (False, True):
        drafter, _ = build(eagle3_config(norm_output=norm_output))
        state = drafter.open(64)
        state.observe(tokens, features)
        [found] = draft(drafter, [state], 2, roots=1)
        first = found.children(1, ())[0]
        probabilities.append((first, found.children(2, first)[1]))
    assert probabilities[0][0] == probabilities[1][0]
    assert abs(probabilities[0][1][0] - probabilities[1][1][0]) > 1e-2


def test_branches_do_not_see_one_another(build, slots):
    """A sibling's rows in the same pass would change a branch if they were seen."""
    drafter, _ = build()
    tokens, features = slots(30)
    wide, narrow = drafter.open(64), drafter.open(64)
    for state in (wide, narrow):
        state.observe(tokens, features)
    [tree] = draft(drafter, [wide], DEPTH, nodes=40, roots=6)
    [chain] = draft(drafter, [narrow], DEPTH, nodes=40, roots=1)
    shared = set(paths_of(tree)) & set(paths_of(chain))
    assert len(shared) > 2
    for path in shared:
        depth = len(path) + 1
        assert tree.children(depth, path)[0][0] == chain.children(depth, path)[0][0]
        assert tree.children(depth, path)[1][0] == chain.children(depth, path)[1][0]


def test_sequences_of_a_batch_draft_as_each_alone(build, slots):
    """With limits of their own, and trees that end at different levels."""
    drafter, straight = build()
    lengths = [1, 60, 64, 90]
    limits = [
        DraftLimits(5, 20, 3),
        DraftLimits(2, 9, 4),
        DraftLimits(7, 3, 1),
        DraftLimits(4, 7, 2),
    ]
    texts = [slots(length + 8, seed) for seed, length in enumerate(lengths)]
    together = [drafter.open(200) for _ in lengths]
    alone = [drafter.open(200) for _ in lengths]
    done = [0] * len(lengths)
    for new in (lengths, [1, 7, 2, 3]):
        for index, (tokens, features) in enumerate(texts):
            span = slice(done[index], done[index] + new[index])
            for state in (together[index], alone[index]):
                state.observe(tokens[span], features[span])
            done[index] += new[index]
        for index, found in enumerate(drafter.draft(together, limits)):
            [single] = drafter.draft([alone[index]], [limits[index]])
            tokens, features = texts[index]
            width = limits[index].roots
            paths = assert_drafts(
                found, straight, tokens[: done[index]], features[: done[index]], width=width
            )
            assert paths_of(single) == paths
            assert together[index].passes == alone[index].passes
            for path in paths:
                assert found.children(0, path) == single.children(0, path)


def test_a_tree_of_more_rows_than_a_pass_takes(build, slots):
    drafter, straight = build()
    texts = [slots(20 + seed, seed) for seed in range(6)]
    states = [drafter.open(64) for _ in texts]
    for state, text in zip(states, texts, strict=True):
        state.observe(*text)
    width = 8
    assert 6 * 3 * width > drafter.rows_per_pass
    found = draft(drafter, states, 4, nodes=200, roots=width)
    for one, (tokens, features) in list(zip(found, texts, strict=True))[::5]:
        assert len(paths_of(one)) == 1 + 3 * width
        assert_drafts(one, straight, tokens, features, width=width)


def test_one_level_of_p_eagle_is_the_first_level_of_eagle3(build, slots, embedding):
    """With the same weights, bit for bit (K = 1)."""
    config = peagle_config(decoder=decoder_config(num_layers=1))
    tensors = random_tensors(config, 3)
    shared = {"embedding": embedding, "dtype": torch.float32, "device": CPU}
    network = PEagleNetwork(
        config, tensors, TorchCompute(config, tensors, **shared), embedding=embedding
    )
    peagle = PEagleDrafter(network, budget=8 << 20, name="tiny")
    drafter, _ = build()
    same = {name: found for name, found in tensors.items() if "mask" not in name}
    eagle3 = type(drafter)(
        type(drafter.network)(eagle3_config(), same, TorchCompute(eagle3_config(), same, **shared)),
        budget=8 << 20,
        name="tiny",
    )
    tokens, features = slots(40)
    states = [peagle.open(64), eagle3.open(64)]
    for first, last in ((0, 30), (30, 31), (31, 40)):
        for state in states:
            state.observe(tokens[first:last], features[first:last])
        [one] = draft(peagle, states[:1], 1)
        [other] = draft(eagle3, states[1:], DEPTH, roots=32)
        assert one.children(1, ()) == other.children(1, ())
        assert other.levels > 1


def test_drafts_end_where_the_sequence_or_the_context_ends(build, slots):
    drafter, straight = build(
        eagle3_config(decoder=decoder_config(num_layers=1, context_length=64))
    )
    tokens, features = slots(70)
    short, long = drafter.open(30), drafter.open(500)
    short.observe(tokens[:28], features[:28])
    long.observe(tokens[:62], features[:62])
    found = draft(drafter, [short, long], DEPTH, roots=2)
    assert [one.levels for one in found] == [3, 3]
    assert_drafts(found[0], straight, tokens[:28], features[:28], width=2)
    assert_drafts(found[1], straight, tokens[:62], features[:62], width=2)
    long.observe(tokens[62:65], features[62:65])
    passes = long.passes
    [nothing] = draft(drafter, [long], DEPTH)
    assert nothing.levels == 0
    assert long.passes == passes


def test_a_network_that_gives_no_numbers_is_asked_nothing_more(build, slots):
    drafter, _ = build()
    state = drafter.open(64)
    tokens, features = slots(5)
    state.observe(tokens, torch.full_like(features, float("nan")))
    [found] = draft(drafter, [state], DEPTH)
    assert found.levels == state.passes == 1


def test_a_small_draft_vocabulary_has_fewer_children(build, slots):
    drafter, straight = build(eagle3_config(draft_vocab_size=3))
    state = drafter.open(64)
    state.observe(*slots(9))
    [found] = draft(drafter, [state], 3, roots=8)
    assert found.children(1, ())[0] != []
    assert set(found.children(1, ())[0]) == set(straight.target_ids.tolist())
    assert abs(sum(found.children(1, ())[1]) - 1) < 1e-6


def test_own_parameters_leave_masks_out(build):
    hidden, wide, kv, inner = HIDDEN, 64, 32, 96
    layer = 2 * hidden * (wide + 2 * kv) + wide * hidden + 3 * hidden * inner + 3 * hidden
    own = layer + 3 * hidden * hidden + hidden + 200 * hidden
    assert build()[0].network.parameters == own
