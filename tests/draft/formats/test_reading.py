import pytest
import torch

from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.formats.reading import load_folder
from peagle.draft.loading import open_drafter, read_taps
from peagle.draft.peagle.config import PEagleConfig
from peagle.errors import CheckpointError, PeagleError, UnsupportedError
from peagle.model.config import RopeScaling
from tests.draft.formats.public_folders import (
    DRAFT_VOCAB,
    MASK,
    as_amazon,
    raw_config,
    speculators_config,
    weights,
    with_masks,
    write,
)
from tests.draft.straight_network import StraightEagle3, StraightNetwork
from tests.draft.tiny_drafter import HIDDEN, TAPS, VOCAB, draft, ids_of


@pytest.fixture
def target(make_target):
    return make_target()


@pytest.fixture
def load(target):
    return lambda folder: load_folder(folder, target.config, target.embedding)


@pytest.fixture
def peagle_weights(target):
    return with_masks(weights(), target.embedding)


def assert_peagle(config, tensors, stored):
    """The weights are those of the file; the mask row is kept apart from the embedding."""
    assert isinstance(config, PEagleConfig)
    assert (config.mask_token_id, config.own_embedding) == (MASK, False)
    assert torch.equal(tensors["mask_embedding"], stored["embed_tokens.weight"][MASK])
    same = stored.keys() - {"embed_tokens.weight", "t2d"}
    assert tensors.keys() == same | {"mask_embedding"}
    assert all(torch.equal(tensors[name], stored[name]) for name in same)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_raw_p_eagle_folder_is_read(tmp_path, load, peagle_weights, shards, prefix):
    stored = {prefix + name: weight for name, weight in as_amazon(peagle_weights).items()}
    config, tensors = load(write(tmp_path / "x-p-eagle", raw_config(), stored, shards=shards))
    assert_peagle(config, tensors, peagle_weights)
    assert config.taps == (2, 3, 3)
    assert (config.norm_before_residual, config.norm_before_fc, config.fc_norm) == (False,) * 3
    assert (config.target_name, config.train_depth) == ("the target of x-p-eagle", None)
    assert (config.decoder.num_layers, config.decoder.rope_theta) == (2, 1000.0)


def test_a_folder_of_the_shape_of_amazons_is_read(tmp_path, load, target):
    """Four layers, the whole vocabulary with an identity mapping, llama3's scaling, bfloat16."""
    stored = with_masks(weights(layers=4, draft_vocab=VOCAB), target.embedding)
    halved = {name: weight.bfloat16() for name, weight in stored.items()}
    maps = {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.ones(VOCAB).bool()}
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    written = raw_config(4, draft_vocab_size=VOCAB, rope_scaling=scaling)
    config, tensors = load(write(tmp_path, written, as_amazon(halved) | maps, shards=2))
    assert (config.decoder.num_layers, config.draft_vocab_size) == (4, VOCAB)
    assert config.decoder.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 128)
    assert torch.equal(tensors["d2t"], maps["d2t"])
    assert_peagle(config, tensors, halved | maps)


def test_a_speculators_p_eagle_folder_is_read(tmp_path, load, peagle_weights):
    config, tensors = load(write(tmp_path, speculators_config("peagle"), peagle_weights))
    assert_peagle(config, tensors, peagle_weights)
    assert (config.taps, config.norm_before_residual) == (TAPS, False)
    assert (config.target_name, config.train_depth) == ("acme/tiny", 3)
    assert config.tokenizer_fingerprint is None


@pytest.mark.parametrize("embedded", [False, True])
def test_a_speculators_eagle3_folder_is_read(tmp_path, load, target, embedded):
    stored = weights(layers=1)
    if embedded:
        stored["embed_tokens.weight"] = target.embedding.clone()
    config, tensors = load(write(tmp_path, speculators_config("eagle3", 1), stored))
    assert isinstance(config, Eagle3Config)
    assert (config.norm_before_residual, config.norm_output) == (True, False)
    assert not config.own_embedding
    assert tensors.keys() == stored.keys() - {"t2d", "embed_tokens.weight"}


def test_a_raw_eagle3_folder_is_read(tmp_path, load):
    stored = as_amazon(weights(layers=1))
    written = raw_config(1, ptd_token_id=None, eagle_config={
        "use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(TAPS),
    })  # fmt: skip
    config, _ = load(write(tmp_path, written, stored))
    assert isinstance(config, Eagle3Config)
    assert (config.taps, config.norm_before_residual) == (TAPS, False)


def test_eagle_31_with_more_taps_is_read(tmp_path, load):
    taps = [0, 1, 2, 4, 5]
    stored = weights(layers=1, taps=5) | {
        f"fc_norm.{i}.weight": torch.ones(HIDDEN) for i in range(5)
    }
    changes = {"eagle_aux_hidden_state_layer_ids": taps, "fc_norm": True, "norm_output": True}
    config, _ = load(write(tmp_path, speculators_config("eagle3", 1, **changes), stored))
    assert isinstance(config, Eagle3Config)
    assert config.taps == tuple(taps)
    assert (config.fc_norm, config.norm_output) == (True, True)
    stored = weights(layers=1) | {"input_norm.weight": torch.ones(3 * HIDDEN)}
    changes = {"norm_before_fc": True, "norm_output": True, "fc_norm": False}
    config, _ = load(write(tmp_path / "b", speculators_config("eagle3", 1, **changes), stored))
    assert config.norm_before_fc


@pytest.mark.parametrize(
    "keys",
    [
        {"pard_token": MASK},
        {"mask_token_id": MASK},
        {"dspark_noise_token_id": MASK},
        {"dflash_config": {"mask_token_id": MASK}},
        {"ptd_token_id": MASK, "pard_token": MASK, "mask_token_id": MASK},
    ],
)
def test_the_mask_token_has_many_names(tmp_path, load, peagle_weights, keys):
    written = raw_config(**{"ptd_token_id": None, **keys})
    assert load(write(tmp_path, written, as_amazon(peagle_weights)))[0].mask_token_id == MASK


@pytest.mark.parametrize("told", [None, False, True])
def test_norm_before_residual_is_read_or_has_the_default_of_the_format(
    tmp_path, load, peagle_weights, told
):
    for kind, written, default in (
        ("raw", raw_config(norm_before_residual=told), False),
        ("peagle", speculators_config("peagle", norm_before_residual=told), False),
    ):
        config, _ = load(write(tmp_path / kind, written, peagle_weights))
        assert config.norm_before_residual == (default if told is None else told)
    written = speculators_config("eagle3", norm_before_residual=told)
    config, _ = load(write(tmp_path / "eagle3", written, weights()))
    assert config.norm_before_residual == (True if told is None else told)


def test_without_d2t_the_draft_vocabulary_is_the_targets(tmp_path, load, target):
    stored = with_masks(weights(draft_vocab=VOCAB), target.embedding)
    written = raw_config(draft_vocab_size=None)
    config, tensors = load(write(tmp_path, written, as_amazon(stored)))
    assert config.draft_vocab_size == VOCAB
    assert torch.equal(tensors["d2t"], torch.zeros(VOCAB, dtype=torch.int64))
    del (small := weights())["d2t"]
    with pytest.raises(CheckpointError, match="lacks the tensor 'd2t'"):
        load(write(tmp_path / "small", speculators_config("eagle3"), small))


def test_an_embedding_of_its_own_is_kept(tmp_path, load, peagle_weights):
    peagle_weights["embed_tokens.weight"][5] += 1
    config, tensors = load(write(tmp_path, raw_config(), as_amazon(peagle_weights)))
    assert config.own_embedding
    assert torch.equal(tensors["embed_tokens.weight"], peagle_weights["embed_tokens.weight"])
    assert "mask_embedding" not in tensors


def test_an_embedding_rounded_to_bfloat16_is_still_the_targets(tmp_path, load, peagle_weights):
    halved = {
        name: weight.bfloat16() if weight.is_floating_point() else weight
        for name, weight in peagle_weights.items()
    }
    config, tensors = load(write(tmp_path, raw_config(), as_amazon(halved)))
    assert not config.own_embedding
    assert torch.equal(tensors["mask_embedding"], halved["embed_tokens.weight"][MASK])


REFUSED = {
    "no mask_hidden": ({}, ["mask_hidden"], "lacks the tensor 'mask_hidden'"),
    "no embedding": ({}, ["embed_tokens.weight"], "lacks the tensor 'embed_tokens.weight'"),
    "no fc": ({}, ["fc.weight"], "lacks the tensor 'fc.weight'"),
    "no mask token": ({"ptd_token_id": None}, [], "config.json names no mask token"),
    "two mask tokens": ({"pard_token": 3}, [], "pard_token is 3, ptd_token_id is 317"),
    "mask token of text": ({"ptd_token_id": "317"}, [], "ptd_token_id = '317'"),
    "mask token outside": ({"ptd_token_id": VOCAB}, [], "mask_token_id = 320"),
    "two lists of layers": (
        {
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]},
        },
        [],
        r"is \[1, 2, 3\], eagle_config.eagle_aux_hidden_state_layer_ids is \[2, 3, 4\]",
    ),
    "layers of text": ({"eagle_aux_hidden_state_layer_ids": "2,3"}, [], "a list of layer ids"),
    "another vocabulary": ({"vocab_size": 400}, [], "the drafter has 400, the target has 320"),
    "another width": ({"target_hidden_size": 96}, [], "the drafter has 96, the target has 64"),
    "another depth": (
        {"eagle_aux_hidden_state_layer_ids": [2, 3, 6]},
        [],
        r"reads what enters layers \[2, 3, 6\], the target has layers 0 to 5",
    ),
    "another draft vocabulary": (
        {"draft_vocab_size": 150}, [], r"has the shape \[200, 64\], but .* says \[150, 64\]"
    ),
    "more layers read than given": (
        {"eagle_aux_hidden_state_layer_ids": [2, 3]}, [], "'fc.weight' .* has the shape"
    ),
    "no width": ({"hidden_size": None}, [], "hidden_size = None"),
    "a layer too many": ({"num_hidden_layers": 3}, [], r"lacks the tensor 'layers\.2\."),
    "a list for an object": ({"eagle_config": [1]}, [], r"eagle_config = \[1\]"),
    "flag of text": ({"norm_before_residual": "yes"}, [], "norm_before_residual = 'yes'"),
    "attention bias": ({"attention_bias": True}, [], "has attention_bias"),
    "sliding window": (
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 128},
        [],
        "sliding window",
    ),
    "qwen3": ({"model_type": "qwen3"}, [], "of the type 'qwen3', which have query and key norms"),
    "gemma": ({"model_type": "gemma3"}, [], "of the type 'gemma3'"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, [], "'yarn'"),
    "last layer only": ({"eagle_config": {"use_aux_hidden_state": False}}, [], "is EAGLE, not"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, [], "'fp8'"),
    "scaled logits": ({"logit_scale": 0.5}, [], "logit_scale 0.5"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_is_refused_by_name(tmp_path, load, peagle_weights, case):
    changes, missing, message = REFUSED[case]
    for name in missing:
        del peagle_weights[name]
    folder = write(tmp_path, raw_config(**changes), as_amazon(peagle_weights))
    with pytest.raises(PeagleError, match=message) as refusal:
        load(folder)
    assert refusal.value.remedy
    assert refusal.value.field


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("midlayer.self_attn.q_norm.weight", "has query norms"),
        ("layers.1.self_attn.k_norm.weight", "has key norms"),
        ("layers.1.self_attn.q_proj.bias", "has biases"),
        ("medusa.weight", "holds the tensor 'medusa.weight'"),
    ],
)
def test_weights_of_other_networks_are_refused_by_name(
    tmp_path, load, peagle_weights, name, message
):
    stored = as_amazon(peagle_weights) | {name: torch.ones(4)}
    with pytest.raises(PeagleError, match=message):
        load(write(tmp_path, raw_config(), stored))


def test_other_kinds_of_speculators_are_refused_by_name(tmp_path, load):
    with pytest.raises(UnsupportedError, match="of the kind 'dflash'"):
        load(write(tmp_path, speculators_config("dflash"), weights()))
    folder = write(tmp_path / "b", speculators_config("peagle", mask_token_id=None), weights())
    with pytest.raises(CheckpointError, match="names no mask token"):
        load(folder)
    for wrong in (
        {"proposal_methods": "greedy"},
        {"proposal_methods": ["greedy"]},
        {"verifier": 3},
    ):
        folder = write(tmp_path / "c", speculators_config("eagle3", speculators_config=wrong), {})
        with pytest.raises(CheckpointError, match=next(iter(wrong))):
            load(folder)


def test_layers_that_are_not_named_are_not_guessed(tmp_path, load, target):
    """EAGLE-3's default is three layers; five could be any."""
    stored = as_amazon(with_masks(weights(taps=5), target.embedding))
    with pytest.raises(CheckpointError, match="reads 320 values of the target, not three layers"):
        load(write(tmp_path, raw_config(), stored))
    folder = write(tmp_path, raw_config(), as_amazon(with_masks(weights(), target.embedding)))
    assert read_taps(folder) is None
    assert load(folder)[0].taps == target.config.default_taps


def test_public_drafters_draft_as_the_straight_network(tmp_path, target, peagle_weights, slots):
    """From the file to the draft tokens, with a shared and with an own embedding."""
    tokens, features = slots(30)
    for change in (0, 1):
        peagle_weights["embed_tokens.weight"][5] += change
        written = raw_config(eagle_aux_hidden_state_layer_ids=list(TAPS))
        folder = write(tmp_path / f"{change}-p-eagle", written, as_amazon(peagle_weights))
        assert read_taps(folder) == TAPS
        drafter = open_drafter(folder, target, "any", budget=1 << 20)
        assert (drafter.name, drafter.method) == (f"{change}-p-eagle", "peagle")
        config, tensors = load_folder(folder, target.config, target.embedding)
        straight = StraightNetwork(config, tensors, target.embedding)
        state = drafter.open(64)
        state.observe(tokens, features)
        [found] = draft(drafter, [state], 4)
        ids, _ = straight.draft(tokens, features, 4, top=1)
        assert ids_of(found)[:, 0].tolist() == ids[:, 0].tolist()
    folder = write(tmp_path / "eagle3", speculators_config("eagle3", 1), weights(layers=1))
    drafter = open_drafter(folder, target, "any", budget=1 << 20)
    config, tensors = load_folder(folder, target.config, target.embedding)
    straight3 = StraightEagle3(config, tensors, target.embedding)
    state = drafter.open(64)
    state.observe(tokens, features)
    [found] = draft(drafter, [state], 3, roots=1)
    path: tuple[int, ...] = ()
    for depth in (1, 2, 3):
        [token] = found.children(depth, path)[0]
        assert token == int(
            straight3.tree(tokens, features, [path[:i] for i in range(depth)])[path].argmax()
        )
        path = (*path, token)


def test_draft_vocabulary_of_32_bits_is_widened(tmp_path, load):
    stored = weights()
    stored["d2t"] = stored["d2t"].int()
    _, tensors = load(write(tmp_path, speculators_config("eagle3"), stored))
    assert tensors["d2t"].dtype == torch.int64
    assert len(tensors["d2t"]) == DRAFT_VOCAB
