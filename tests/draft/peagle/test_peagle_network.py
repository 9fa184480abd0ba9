from dataclasses import replace

import pytest
import torch

from peagle.draft.network.trunk import SlotRows
from peagle.model.rows import SequenceRows
from tests.draft.tiny_drafter import HIDDEN, TAPS, VOCAB, decoder_config, peagle_config


def all_logits(drafter, tokens, features, masks):
    state = drafter.open(len(tokens) + masks)
    slots = [SlotRows(state.cache, tokens, features)]
    output = drafter.network.forward(drafter.cache, slots, [masks], [len(tokens) + masks])
    drafter.close(state)
    return output.logits[0]


def assert_same(found, expected, tolerance=1e-4):
    assert found.shape == expected.shape
    assert float((found.double() - expected).abs().max()) < tolerance


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_one_pass_equals_the_straight_computation(build, slots, layers, norm_before_residual):
    config = peagle_config(
        decoder=decoder_config(num_layers=layers), norm_before_residual=norm_before_residual
    )
    drafter, straight = build(config)
    tokens, features = slots(40)
    assert_same(all_logits(drafter, tokens, features, 6), straight.logits(tokens, features, 6))


@pytest.mark.parametrize(
    "config",
    [
        peagle_config(norm_before_fc=True),
        peagle_config(own_embedding=True),
        peagle_config(decoder=decoder_config(num_kv_heads=4)),
        peagle_config(decoder=decoder_config(num_kv_heads=1)),
        peagle_config(decoder=decoder_config(head_dim=32, num_heads=6)),
        peagle_config(draft_vocab_size=VOCAB),
        peagle_config(taps=(5,)),
        peagle_config(taps=(0, 1, 2, 3, 4)),
    ],
    ids=["norm_before_fc", "own_embedding", "no_gqa", "one_kv_head", "wide_heads",
         "full_vocabulary", "one_tap", "five_taps"],
)  # fmt: skip
def test_every_form_equals_the_straight_computation(build, slots, config):
    drafter, straight = build(config)
    tokens, features = slots(23, feature_size=config.feature_size)
    tokens[5] = config.mask_token_id
    assert_same(all_logits(drafter, tokens, features, 4), straight.logits(tokens, features, 4))


def test_prompt_of_many_passes_equals_the_straight_computation(build, slots):
    drafter, straight = build()
    tokens, features = slots(drafter.rows_per_pass * 2 + 51)
    assert len(tokens) > 128
    assert_same(all_logits(drafter, tokens, features, 7), straight.logits(tokens, features, 7))


def test_bfloat16_stays_near_float32(build, slots):
    drafter, straight = build(dtype=torch.bfloat16)
    tokens, features = slots(30)
    found = all_logits(drafter, tokens, features, 6)
    expected = straight.logits(tokens, features, 6)
    assert float((found.double() - expected).std() / expected.std()) < 0.03


def test_norm_before_residual_matters(build, slots):
    tokens, features = slots(12)
    plain = all_logits(build()[0], tokens, features, 3)
    normed = all_logits(build(peagle_config(norm_before_residual=True))[0], tokens, features, 3)
    assert float((plain - normed).abs().max()) > 0.1


def test_deeper_drafting_leaves_shallower_depths_unchanged(build, slots):
    drafter, _ = build()
    tokens, features = slots(12)
    shallow = all_logits(drafter, tokens, features, 2)
    deep = all_logits(drafter, tokens, features, 9)
    assert torch.equal(deep[: len(shallow)], shallow)


def test_each_mask_slot_sees_those_before_it(build, slots):
    """Blinding the last mask slot to its fellows gives another result than the network's."""
    drafter, straight = build()
    tokens, features = slots(6)
    causal = torch.tril(torch.ones(10, 10, dtype=torch.bool))
    blind = causal.clone()
    blind[9, 6:9] = False
    found = all_logits(drafter, tokens, features, 4)
    assert_same(found, straight.logits(tokens, features, 4, causal))
    apart = straight.logits(tokens, features, 4, blind)
    assert float((found[9].double() - apart[9]).abs().max()) > 1e-2


def test_the_mask_token_in_a_text_is_the_token(build, slots, embedding):
    """With a shared embedding the mask slots' row is not the row of `mask_token_id`."""
    config = peagle_config()
    _, straight = build()
    assert not torch.allclose(
        straight.weights["mask_embedding"].float(), embedding[config.mask_token_id], atol=0.1
    )
    moved, _ = build(replace(config, mask_token_id=7))
    tokens, features = slots(9)
    tokens[-1] = 7
    assert_same(all_logits(moved, tokens, features, 2), straight.logits(tokens, features, 2))


def target_features(target, tokens):
    cache = target.new_cache(8 << 20)
    sequence = cache.open(len(tokens))
    output = target.forward(cache, [SequenceRows(sequence, tokens)], features=True)
    return output.features[0]


def test_each_chunk_of_fc_reads_the_stream_entering_its_layer(build, slots, llama, make_target):
    tokens, _ = slots(70)
    features = target_features(make_target(), tokens)
    with torch.no_grad():
        streams = llama(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    _, straight = build()
    for weight, chunk, tap in zip(
        straight.weights["fc.weight"].split(HIDDEN, 1), features.split(HIDDEN, 1), TAPS, strict=True
    ):
        read = chunk.double() @ weight.T

        def cosine(layer, read=read, weight=weight):
            there = streams[layer][0].double() @ weight.T
            return torch.nn.functional.cosine_similarity(read, there).min().item()

        assert cosine(tap) > 1 - 1e-6
        assert cosine(tap - 1) < 0.99
        assert tap + 1 == llama.config.num_hidden_layers or cosine(tap + 1) < 0.99


def test_taps_off_by_one_change_the_drafts(build, slots, make_target):
    drafter, straight = build()
    tokens, _ = slots(30)
    right = target_features(make_target(), tokens[:-1])
    shifted = target_features(make_target(tuple(tap - 1 for tap in TAPS)), tokens[:-1])
    found = all_logits(drafter, tokens[1:], right, 3)
    assert_same(found, straight.logits(tokens[1:], right, 3))
    wrong = straight.logits(tokens[1:], shifted, 3)
    assert float((found.double() - wrong).abs().max()) > 0.1
