import json
from dataclasses import replace
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from peagle.draft.formats.reading import load_folder
from peagle.draft.formats.writing import export_drafter
from peagle.draft.loading import open_drafter
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.storage import load_drafter, save_drafter
from peagle.draft.untrained import random_tensors
from peagle.errors import CheckpointError, UnsupportedError
from peagle.model.config import RopeScaling
from tests.draft.formats.public_folders import raw_config, speculators_config, weights, with_masks
from tests.draft.tiny_drafter import (
    FINGERPRINT,
    HIDDEN,
    TAPS,
    VOCAB,
    decoder_config,
    draft,
    eagle3_config,
    peagle_config,
)

FORMS = ["vllm", "speculators"]
SCALED = RopeScaling(8.0, 1.0, 4.0, 128)
CONFIGS = {
    "peagle": peagle_config(),
    "peagle, full vocabulary": peagle_config(draft_vocab_size=VOCAB, norm_before_residual=True),
    "peagle, own embedding": peagle_config(own_embedding=True, norm_before_fc=True),
    "peagle, wide": peagle_config(
        own_embedding=True, decoder=decoder_config(hidden_size=96, rope_scaling=SCALED)
    ),
    "eagle3": eagle3_config(),
    "eagle 3.1": eagle3_config(fc_norm=True, norm_output=True, taps=(0, 1, 2, 4, 5)),
    "eagle3, own embedding": eagle3_config(own_embedding=True, norm_before_residual=True),
}


@pytest.fixture
def target(make_target):
    return make_target()


@pytest.fixture
def export(tmp_path, target):
    def write(config, tensors, form, name="out"):
        folder = tmp_path / name
        export_drafter(
            config, tensors, folder, form, target=target.config, embedding=target.embedding
        )
        return folder, json.loads((folder / "config.json").read_text())

    return write


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CONFIGS)
def test_what_is_written_is_read_back(export, target, form, case):
    """All but the tokenizer's fingerprint, and what only speculators' form has room for."""
    config = CONFIGS[case]
    tensors = random_tensors(config, 3)
    folder, _ = export(config, tensors, form)
    found, read = load_folder(folder, target.config, target.embedding)
    unsaid = {"target_name": "the target of out", "train_depth": None} if form == "vllm" else {}
    assert found == replace(config, tokenizer_fingerprint=None, **unsaid)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_written_again_is_the_same(export, target, form):
    folder, first = export(peagle_config(), random_tensors(peagle_config(), 3), form)
    again, second = export(*load_folder(folder, target.config, target.embedding), form, "b")
    one, two = load_file(folder / "model.safetensors"), load_file(again / "model.safetensors")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    if form == "speculators":
        assert first == second


def test_the_raw_form_has_the_names_of_amazons_checkpoints(export, target):
    config = peagle_config(norm_before_residual=True)
    tensors = random_tensors(config, 3)
    folder, written = export(config, tensors, "vllm")
    stored = load_file(folder / "model.safetensors")
    expected = with_masks(weights(), target.embedding)
    assert stored.keys() == {name.replace("layers.0.", "midlayer.") for name in expected}
    for name, weight in expected.items():
        assert stored[name.replace("layers.0.", "midlayer.")].shape == weight.shape
    assert raw_config().keys() - {"attention_bias", "mlp_bias", "rope_scaling"} <= written.keys()
    assert written["architectures"] == ["LlamaForCausalLMEagle3"]
    mask = config.mask_token_id
    assert [written[key] for key in ("ptd_token_id", "pard_token", "mask_token_id")] == [mask] * 3
    assert written["norm_before_residual"] is True
    assert written["eagle_aux_hidden_state_layer_ids"] == list(TAPS)
    assert written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(TAPS)
    assert (written["vocab_size"], written["draft_vocab_size"]) == (VOCAB, 200)
    embedded = stored["embed_tokens.weight"]
    assert torch.equal(embedded[mask], tensors["mask_embedding"])
    assert torch.equal(embedded[:mask], target.embedding[:mask])
    kept = tensors["d2t"] + torch.arange(200)
    assert stored["t2d"].dtype == torch.bool
    assert stored["t2d"].nonzero().flatten().tolist() == kept.tolist()
    assert stored["mask_hidden"].shape == (1, 1, 3 * HIDDEN)


def test_the_speculators_form_has_the_names_of_red_hats_checkpoints(export, target):
    config = peagle_config()
    folder, written = export(config, random_tensors(config, 3), "speculators")
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == with_masks(weights(), target.embedding).keys()
    library = {"auto_map", "has_no_defaults_at_init", "speculators_version", "transformers_version"}
    assert speculators_config("peagle").keys() - library <= written.keys()
    assert written["speculators_config"] == {
        "algorithm": "peagle",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": 8,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "verifier": {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]},
    }
    layers = written["transformer_layer_config"]
    assert (layers["model_type"], layers["num_hidden_layers"]) == ("llama", 2)
    assert written["mask_token_id"] == config.mask_token_id
    full = peagle_config(draft_vocab_size=VOCAB)
    folder, _ = export(full, random_tensors(full, 3), "speculators", "full")
    assert not {"d2t", "t2d"} & load_file(folder / "model.safetensors").keys()
    _, written = export(eagle3_config(), random_tensors(eagle3_config(), 3), "speculators", "e")
    assert written["architectures"] == ["Eagle3Speculator"]
    assert written["speculators_model_type"] == "eagle3"
    assert not {"mask_token_id", "ptd_token_id", "pard_token"} & written.keys()


def without_markov(config, tensors):
    if not isinstance(config, PEagleConfig):
        return config, tensors
    kept = {name: found for name, found in tensors.items() if not name.startswith("markov.")}
    return replace(config, markov_rank=0), kept


def drafted(path, target, tokens, features):
    """Tokens and probabilities along the most probable branch, level after level."""
    drafter = open_drafter(path, target, FINGERPRINT, budget=1 << 22)
    state = drafter.open(64)
    state.observe(tokens, features)
    # One root, so that EAGLE-3 goes on with the most probable branch at each level.
    [found] = draft(drafter, [state], 4, roots=1)
    branch, levels = [], []
    for depth in range(1, 5):
        ids, probabilities = found.children(depth, branch)
        levels.append((list(ids), list(probabilities)))
        branch.append(ids[0])
    return levels


ROUND_TRIPS = CONFIGS | {"peagle, Markov head": peagle_config(markov_rank=8)}


@pytest.mark.parametrize("round_trip", list(product(ROUND_TRIPS, FORMS)), ids=", ".join)
def test_an_exported_drafter_drafts_as_our_own_without_its_markov_head(
    export, tmp_path, make_target, slots, round_trip
):
    """From our file, through the folder, to the same probabilities of the same tokens."""
    case, form = round_trip
    config, tensors = ROUND_TRIPS[case], random_tensors(ROUND_TRIPS[case], 3)
    file, plain = tmp_path / "ours.safetensors", tmp_path / "plain.safetensors"
    save_drafter(file, config, tensors)
    save_drafter(plain, *without_markov(config, tensors))
    folder, _ = export(*load_drafter(file), form)
    assert not any("markov" in name for name in load_file(folder / "model.safetensors"))
    target = make_target(config.taps)
    tokens, features = slots(30, feature_size=config.feature_size)
    expected = drafted(plain, target, tokens, features)
    assert drafted(folder, target, tokens, features) == expected
    assert all(0 < probability < 1 for _, level in expected for probability in level)


def test_a_mapping_of_the_whole_vocabulary_is_kept_unless_it_is_the_identity(export, target):
    config = peagle_config(draft_vocab_size=VOCAB)
    tensors = random_tensors(config, 3)
    tensors["d2t"][:2] = torch.tensor([1, -1])
    folder, _ = export(config, tensors, "speculators")
    _, read = load_folder(folder, target.config, target.embedding)
    assert torch.equal(read["d2t"], tensors["d2t"])


def test_half_precision_is_written_as_it_is(export, target):
    halved = {
        name: found if name == "d2t" else found.bfloat16()
        for name, found in random_tensors(peagle_config(), 3).items()
    }
    folder, written = export(peagle_config(), halved, "vllm")
    assert written["torch_dtype"] == "bfloat16"
    stored = load_file(folder / "model.safetensors")
    assert {str(found.dtype) for found in stored.values()} == {
        "torch.bfloat16", "torch.int64", "torch.bool"
    }  # fmt: skip
    _, read = load_folder(folder, target.config, target.embedding)
    assert all(torch.equal(read[name], halved[name]) for name in halved)


def test_nothing_is_written_over(export, tmp_path):
    tensors = random_tensors(peagle_config(), 3)
    (tmp_path / "out").mkdir()
    export(peagle_config(), tensors, "vllm")
    before = sorted(entry.name for entry in tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        export(peagle_config(), tensors, "speculators")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == before
    with pytest.raises(CheckpointError, match="cannot be written"):
        export(peagle_config(), tensors, "vllm", "out/config.json/inner")


def test_a_sliding_window_is_refused(export):
    config = peagle_config(decoder=decoder_config(sliding_window=16))
    with pytest.raises(UnsupportedError, match="sliding window of 16"):
        export(config, random_tensors(config, 3), "vllm")
