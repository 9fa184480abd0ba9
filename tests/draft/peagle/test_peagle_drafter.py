import random

import numpy as np
import pytest
import torch

from peagle.draft.untrained import random_drafter, random_tensors
from peagle.errors import OutOfMemoryBudgetError
from peagle.model.rows import SequenceRows
from tests.draft.straight_network import StraightNetwork
from tests.draft.tiny_drafter import (
    HIDDEN,
    VOCAB,
    decoder_config,
    draft,
    ids_of,
    peagle_config,
    probabilities_of,
)

K = 6


def assert_drafts(found, straight, tokens, features, *, depth=K, tolerance=1e-4):
    """Compare with the straight network run over all slots from the beginning."""
    _, probabilities = straight.draft(tokens, features, depth)
    logits = straight.logits(tokens, features, depth - 1)[len(tokens) - 1 :]
    every = torch.zeros(depth, VOCAB, dtype=torch.float64)
    every[:, straight.target_ids] = logits.softmax(-1)
    ids, drafted = ids_of(found), probabilities_of(found)
    assert ids.shape == drafted.shape == tuple(probabilities.shape)
    # The same probabilities rank for rank, and each is that of the token named.
    assert np.abs(drafted - probabilities.numpy()).max() < tolerance
    named = every.gather(1, torch.from_numpy(ids)).numpy()
    assert np.abs(drafted - named).max() < tolerance


def test_every_round_equals_drafting_from_scratch(build, slots):
    """Rounds with 0 to K accepted tokens, the KV cache cut back to the real slots each time."""
    drafter, straight = build()
    prompt, accepted = 70, [0, K, 1, 3, 0, 0, K, 5, 2, 4]
    tokens, features = slots(prompt + sum(accepted) + len(accepted))
    state = drafter.open(256)
    done = 0
    for new in [prompt, *(count + 1 for count in accepted)]:
        state.observe(tokens[done : done + new], features[done : done + new])
        done += new
        [found] = draft(drafter, [state], K)
        assert state.cache.length == done
        assert_drafts(found, straight, tokens[:done], features[:done])
    assert done == len(tokens)


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_rounds_of_every_depth_of_network_equal_drafting_from_scratch(
    build, slots, layers, norm_before_residual
):
    drafter, straight = build(
        peagle_config(
            decoder=decoder_config(num_layers=layers), norm_before_residual=norm_before_residual
        )
    )
    tokens, features = slots(90)
    state = drafter.open(256)
    done = 0
    for new in (61, 1, 7, 4):
        state.observe(tokens[done : done + new], features[done : done + new])
        done += new
        [found] = draft(drafter, [state], K)
        assert_drafts(found, straight, tokens[:done], features[:done])


def test_slots_wait_for_rounds_in_which_the_network_runs(build, slots):
    drafter, straight = build()
    tokens, features = slots(60)
    state = drafter.open(256)
    for first, last in [(0, 20), (20, 21), (21, 25), (25, 32), (32, 33)]:
        state.observe(tokens[first:last], features[first:last])
    assert (state.waiting, state.cache.length) == (33, 0)
    [found] = draft(drafter, [state], K)
    assert (state.waiting, state.cache.length) == (0, 33)
    assert_drafts(found, straight, tokens[:33], features[:33])
    state.observe(tokens[33:40], features[33:40])
    state.observe(tokens[40:41], features[40:41])
    [found] = draft(drafter, [state], K)
    assert_drafts(found, straight, tokens[:41], features[:41])


def test_sequences_of_a_batch_draft_as_each_alone(build, slots):
    drafter, straight = build()
    lengths = [1, 5, 64, 90, 17, 130]
    texts = [slots(length + 12, seed) for seed, length in enumerate(lengths)]
    together = [drafter.open(200) for _ in lengths]
    alone = [drafter.open(200) for _ in lengths]
    done = [0] * len(lengths)
    for new in (lengths, [1, 7, 2, 3, 1, 5], [4, 1, 1, 6, 2, 7]):
        for index, (tokens, features) in enumerate(texts):
            span = slice(done[index], done[index] + new[index])
            for state in (together[index], alone[index]):
                state.observe(tokens[span], features[span])
            done[index] += new[index]
        batch = draft(drafter, together, K)
        for index, found in enumerate(batch):
            [single] = draft(drafter, [alone[index]], K)
            assert np.array_equal(ids_of(found), ids_of(single))
            assert np.abs(probabilities_of(found) - probabilities_of(single)).max() < 1e-5
            tokens, features = texts[index]
            assert_drafts(found, straight, tokens[: done[index]], features[: done[index]])


def test_prefill_in_chunks_drafts_the_same(build, slots):
    drafter, straight = build()
    tokens, features = slots(230)
    state, chunked = drafter.open(240), drafter.open(240)
    for first in range(0, 230, 46):
        chunked.observe(tokens[first : first + 46], features[first : first + 46])
        drafter.prefill([chunked])
        assert chunked.waiting <= drafter.rows_per_pass
    assert chunked.cache.length >= 230 - drafter.rows_per_pass
    state.observe(tokens, features)
    whole, in_chunks = draft(drafter, [state, chunked], K)
    assert_drafts(whole, straight, tokens, features)
    assert_drafts(in_chunks, straight, tokens, features)


def test_memory_of_a_step_does_not_grow_with_the_prompt(build, slots, monkeypatch):
    drafter, _ = build()
    planner, rows = drafter.network.compute.planner, []
    plan = planner.plan

    def noted(cache, parts):
        rows.append(sum(len(part.tokens) for part in parts))
        return plan(cache, parts)

    monkeypatch.setattr(planner, "plan", noted)
    state = drafter.open(256)
    state.observe(*slots(230))
    draft(drafter, [state], K)
    assert sum(rows) == 230 + K - 1
    assert max(rows) <= drafter.rows_per_pass + K - 1


def test_mask_slots_see_the_prompt(build, slots):
    """A drafter whose prompt was not prefilled would propose other tokens at every depth."""
    drafter, straight = build()
    tokens, features = slots(50)
    state = drafter.open(64)
    state.observe(tokens, features)
    [found] = draft(drafter, [state], K)
    assert_drafts(found, straight, tokens, features)
    blind = torch.zeros(K, VOCAB, dtype=torch.float64)
    blind[:, straight.target_ids] = straight.logits(tokens[-1:], features[-1:], K - 1).softmax(-1)
    seen = blind.gather(1, torch.from_numpy(ids_of(found))).numpy()
    assert (np.abs(probabilities_of(found) - seen).max(-1) > 1e-2).all()


def test_mask_slots_left_in_the_cache_would_change_the_next_round(build, slots):
    """What the comparison with drafting from scratch finds if the cache is not cut back."""
    drafter, straight = build()
    tokens, features = slots(24)
    state = drafter.open(64)
    state.observe(tokens[:20], features[:20])
    rows = state.take(20)
    output = drafter.network.forward(drafter.cache, [rows], [K - 1], [K])
    output.step.commit([range(20 + K - 1)])
    state.observe(tokens[20:], features[20:])
    [stale] = draft(drafter, [state], K)
    with pytest.raises(AssertionError):
        assert_drafts(stale, straight, tokens, features)


def test_first_token_needs_no_mask_slot(build, slots):
    """With depth 1 the drafter is EAGLE-3's first step: the last slot's own prediction."""
    drafter, straight = build()
    tokens, features = slots(30)
    states = [drafter.open(64), drafter.open(64)]
    for state in states:
        state.observe(tokens, features)
    [one] = draft(drafter, states[:1], 1)
    [six] = draft(drafter, states[1:], K)
    assert ids_of(one).shape == (1, 32)
    assert np.array_equal(ids_of(one)[0], ids_of(six)[0])
    assert np.array_equal(probabilities_of(one)[0], probabilities_of(six)[0])
    assert_drafts(one, straight, tokens, features, depth=1)


@pytest.mark.parametrize("draft_vocab_size", [5, 32, 100, VOCAB])
def test_drafts_are_target_ids_of_the_draft_vocabulary(build, slots, draft_vocab_size):
    drafter, straight = build(peagle_config(draft_vocab_size=draft_vocab_size))
    kept = set(straight.target_ids.tolist())
    assert len(kept) == draft_vocab_size
    tokens, features = slots(10)
    state = drafter.open(64)
    state.observe(tokens, features)
    [found] = draft(drafter, [state], K)
    assert ids_of(found).shape == (K, min(draft_vocab_size, 32))
    assert set(ids_of(found).flatten().tolist()) <= kept
    assert (np.diff(probabilities_of(found), axis=1) <= 0).all()
    assert_drafts(found, straight, tokens, features)
    if draft_vocab_size <= 32:
        assert np.abs(probabilities_of(found).sum(1) - 1).max() < 1e-5


def test_drafts_end_where_the_drafters_context_ends(build, slots):
    drafter, straight = build(peagle_config(decoder=decoder_config(context_length=40)))
    tokens, features = slots(60)
    short_tokens, short_features = slots(9, seed=1)
    long, short = drafter.open(500), drafter.open(500)
    short.observe(short_tokens[:5], short_features[:5])
    long.observe(tokens[:36], features[:36])
    found, _ = draft(drafter, [long, short], K)
    assert_drafts(found, straight, tokens[:36], features[:36], depth=5)
    long.observe(tokens[36:40], features[36:40])
    [found] = draft(drafter, [long], K)
    assert_drafts(found, straight, tokens[:40], features[:40], depth=1)
    for first, last in [(40, 41), (41, 60)]:
        long.observe(tokens[first:last], features[first:last])
        short.observe(short_tokens[-1:], short_features[-1:])
        nothing, drafts = draft(drafter, [long, short], K)
        assert long.beyond_context
        assert nothing.levels == 0
        assert ids_of(drafts).shape == (K, 32)
        assert long.waiting == 0
    [nothing] = draft(drafter, [long], K)
    assert nothing.levels == 0


def test_prompt_longer_than_the_context_is_not_drafted_for(build, slots):
    drafter, _ = build(peagle_config(decoder=decoder_config(context_length=40)))
    tokens, features = slots(60)
    state = drafter.open(500)
    state.observe(tokens[:30], features[:30])
    state.observe(tokens[30:], features[30:])
    [nothing] = draft(drafter, [state], K)
    assert (nothing.levels, state.waiting, state.cache.length) == (0, 0, 0)


def test_drafts_end_where_the_sequence_ends(build, slots):
    drafter, straight = build()
    tokens, features = slots(62)
    state = drafter.open(64)
    state.observe(tokens, features)
    [found] = draft(drafter, [state], K)
    assert_drafts(found, straight, tokens, features, depth=3)


def test_a_sequence_without_new_slots_cannot_draft(build, slots):
    drafter, _ = build()
    state = drafter.open(64)
    with pytest.raises(ValueError, match="without a new slot"):
        draft(drafter, [state], K)
    tokens, features = slots(4)
    state.observe(tokens, features)
    draft(drafter, [state], K)
    with pytest.raises(ValueError, match="without a new slot"):
        draft(drafter, [state], K)


def test_features_of_another_width_or_count_are_refused(build, slots):
    state = build()[0].open(64)
    tokens, features = slots(4)
    for wrong in (features[:, :HIDDEN], features[:3]):
        with pytest.raises(ValueError, match="4 tokens with features"):
            state.observe(tokens, wrong)


def test_memory_is_bounded_and_given_back(build, slots):
    config = decoder_config()
    page = 2 * 2 * 2 * 16 * 64 * 4  # layers, keys and values, KV heads, width, positions, bytes
    drafter, _ = build(peagle_config(decoder=config), budget=4 * page + 1)
    assert drafter.bytes_per_position * 64 == page
    assert drafter.fits(256)
    assert drafter.fits(1000)  # the drafter's context has 256 positions
    first = drafter.open(65)
    assert drafter.fits(128)
    assert not drafter.fits(129)
    assert drafter.cache.used_bytes == 2 * page
    drafter.close(first)
    assert drafter.fits(256)
    with pytest.raises(OutOfMemoryBudgetError, match=f"kv_cache_bytes is {page - 1:,}"):
        build(budget=page - 1)


def test_parameters_leave_the_shared_embedding_out(build):
    hidden, wide, kv, inner, taps = 64, 64, 32, 96, 3 * 64
    first = 2 * hidden * (wide + 2 * kv) + wide * hidden + 3 * hidden * inner + 3 * hidden
    second = hidden * (wide + 2 * kv) + wide * hidden + 3 * hidden * inner + 2 * hidden
    own = first + second + taps * hidden + taps + hidden + hidden + 200 * hidden
    assert build()[0].network.parameters == own
    with_embedding = build(peagle_config(own_embedding=True))[0].network.parameters
    assert with_embedding == own + (VOCAB - 1) * hidden


def streams(llama, tokens, taps):
    with torch.no_grad():
        found = llama(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([found[tap][0] for tap in taps], -1)


def test_decoding_with_the_target_feeds_the_drafter_its_own_text(llama, make_target):
    """Target, verification and drafter together, against transformers and the straight network.

    The chain that is verified is the target's own continuation with one wrong token behind it, so
    that each number of accepted tokens comes up.
    """
    target = make_target()
    drafter = random_drafter(target, layers=2, draft_vocab_size=150, seed=4)
    network = drafter.network
    straight = StraightNetwork(network.config, random_tensors(network.config, 4), target.embedding)
    rng = random.Random(8)
    prompt = [rng.randrange(VOCAB) for _ in range(50)]
    rounds = [0, 4, 2, 1, 3, 0]
    with torch.no_grad():
        text = llama.generate(
            torch.tensor([prompt]), max_new_tokens=30, do_sample=False, eos_token_id=-1
        )[0].tolist()
    cache = target.new_cache(8 << 20)
    sequence, state = cache.open(128), drafter.open(128)
    output = target.forward(cache, [SequenceRows(sequence, prompt, logits="last")], features=True)
    output.commit([range(len(prompt))])
    decoded = [*prompt, int(output.logits[0][-1].argmax())]
    state.observe(decoded[1:], output.features[0])
    for accepted in rounds:
        [found] = draft(drafter, [state], K)
        known = len(decoded) - 1
        assert_drafts(
            found, straight, decoded[1:], streams(llama, decoded[:-1], target.taps), tolerance=1e-3
        )
        chain = [*text[known : known + accepted + 1], (text[known + accepted + 1] + 1) % VOCAB]
        output = target.forward(cache, [SequenceRows(sequence, chain)], features=True)
        choices = output.logits[0].argmax(-1).tolist()
        taken = 0
        while taken + 1 < len(chain) and choices[taken] == chain[taken + 1]:
            taken += 1
        assert taken == accepted
        output.commit([range(taken + 1)])
        new = choices[: taken + 1]
        decoded.extend(new)
        state.observe(new, output.features[0][: taken + 1])
    assert decoded == text[: len(decoded)]
    assert len(decoded) == len(prompt) + 1 + sum(rounds) + len(rounds)
