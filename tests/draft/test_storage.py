import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle.draft.loading import open_drafter
from peagle.draft.mixture import NetworkWeights
from peagle.draft.network.tensors import tensor_shapes
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.storage import (
    file_format,
    load_drafter,
    read_config,
    read_network_weights,
    save_drafter,
)
from peagle.draft.untrained import random_tensors
from peagle.errors import CheckpointError
from peagle.model.config import RopeScaling
from tests.draft.tiny_drafter import (
    FINGERPRINT,
    HIDDEN,
    TAPS,
    VOCAB,
    decoder_config,
    draft,
    eagle3_config,
    ids_of,
    peagle_config,
)

EVERY_FORM = [
    peagle_config(),
    peagle_config(norm_before_residual=True, norm_before_fc=True, taps=(0, 4)),
    peagle_config(own_embedding=True, draft_vocab_size=VOCAB),
    peagle_config(
        decoder=decoder_config(
            num_layers=4, rope_theta=500_000.0, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 128)
        )
    ),
    eagle3_config(),
    eagle3_config(fc_norm=True, norm_output=True, tokenizer_fingerprint=None),
    eagle3_config(own_embedding=True, decoder=decoder_config(num_layers=2)),
]


@pytest.fixture
def stored(tmp_path):
    """Write a file as another program might: any tensors under any header."""

    def write(tensors, config: PEagleConfig | None = None, metadata=None):
        path = tmp_path / "tiny.safetensors"
        config = config or peagle_config()
        if metadata is None:
            metadata = {"format": file_format(config), "config": config.to_json()}
        save_file(tensors, path, metadata)
        return path

    return write


@pytest.fixture
def tensors():
    return random_tensors(peagle_config(), 3)


@pytest.mark.parametrize("config", EVERY_FORM)
def test_what_is_saved_is_loaded(tmp_path, config):
    path, tensors = tmp_path / "tiny.safetensors", random_tensors(config, 3)
    save_drafter(path, config, tensors)
    found, weights = load_drafter(path)
    assert found == config == read_config(path)
    assert weights.keys() == tensors.keys() == tensor_shapes(config).keys()
    assert all(torch.equal(weights[name], tensors[name]) for name in tensors)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.safetensors"]


def test_half_precision_weights_stay_so(tmp_path, tensors):
    halved = {name: found if name == "d2t" else found.bfloat16() for name, found in tensors.items()}
    save_drafter(tmp_path / "tiny.safetensors", peagle_config(), halved)
    _, weights = load_drafter(tmp_path / "tiny.safetensors")
    assert {name for name, found in weights.items() if found.dtype != torch.bfloat16} == {"d2t"}
    assert all(torch.equal(weights[name], halved[name]) for name in halved)


WEIGHTS = NetworkWeights(
    match_bounds=(2, 4),
    weights=(
        ((0.75,) * 6, (0.5,) * 6, (0.25,) * 6),
        ((0.125,) * 6, (0.0,) * 6, (0.5,) * 5 + (1.0,)),
    ),
    provenance={"places": 30, "nats_per_token": {"both": 1.5}},
)


def test_network_weights_come_with_the_drafter(tmp_path, tensors):
    path = tmp_path / "tiny.safetensors"
    save_drafter(path, peagle_config(), tensors, WEIGHTS)
    assert read_network_weights(path) == WEIGHTS
    assert read_network_weights(path).at(3, 4, 5) == 1.0
    assert read_config(path) == load_drafter(path)[0] == peagle_config()
    save_drafter(path, peagle_config(), tensors)
    assert read_network_weights(path) is None


def test_a_public_folder_has_no_network_weights(tmp_path):
    assert read_network_weights(tmp_path) is None
    with pytest.raises(CheckpointError, match="There is no drafter file"):
        read_network_weights(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        {"weights": [[[0.5] * 6, [0.5] * 6]]},
        {"weights": [[[0.5] * 6, [0.5] * 6, [1.5] * 6]]},
        {"weights": [[[0.5] * 5, [0.5] * 5, [0.5] * 5]]},
        {"weights": [[[0.5] * 6, [0.5] * 6, [float("nan")] * 6]]},
        {"weights": []},
        {"match_bounds": [2]},
        {"match_bounds": [4, 2]},
        {"more": 1},
    ],
)
def test_impossible_network_weights_are_refused(stored, tensors, change):
    config = peagle_config()
    written = json.dumps(WEIGHTS.model_dump() | change)
    header = {"format": file_format(config), "config": config.to_json()}
    path = stored(tensors, metadata=header | {"network_weights": written})
    with pytest.raises(CheckpointError, match="has wrong network_weights") as refusal:
        read_network_weights(path)
    assert refusal.value.field == "drafter"
    path = stored(tensors, metadata=header | {"network_weights": written[:-1]})
    with pytest.raises(CheckpointError, match="has wrong network_weights"):
        read_network_weights(path)


def test_an_opened_drafter_drafts_as_before(tmp_path, make_target, slots):
    target = make_target()
    tensors = random_tensors(peagle_config(), 3)
    save_drafter(tmp_path / "tiny.safetensors", peagle_config(), tensors)
    drafts = []
    for _ in range(2):
        drafter = open_drafter(tmp_path / "tiny.safetensors", target, FINGERPRINT, budget=1 << 20)
        assert drafter.name == "tiny"
        state = drafter.open(64)
        state.observe(*slots(20))
        drafts += draft(drafter, [state], 5)
    assert np.array_equal(ids_of(drafts[0]), ids_of(drafts[1]))
    changed = {**tensors, "mask_hidden": tensors["mask_hidden"] + 1}
    save_drafter(tmp_path / "tiny.safetensors", peagle_config(), changed)
    drafter = open_drafter(tmp_path / "tiny.safetensors", target, FINGERPRINT, budget=1 << 20)
    state = drafter.open(64)
    state.observe(*slots(20))
    [other] = draft(drafter, [state], 5)
    assert np.array_equal(ids_of(other)[0], ids_of(drafts[0])[0])
    assert not np.array_equal(ids_of(other)[1], ids_of(drafts[0])[1])


@pytest.mark.parametrize(
    "name", ["mask_hidden", "mask_embedding", "layers.1.mlp.up_proj.weight", "d2t", "norm.weight"]
)
def test_a_missing_tensor_is_refused(stored, tensors, name):
    path = stored({key: found for key, found in tensors.items() if key != name})
    with pytest.raises(CheckpointError) as refusal:
        load_drafter(path)
    assert refusal.value.problem == f"{path} lacks the tensor {name!r}."
    assert refusal.value.field == name


@pytest.mark.parametrize(
    "name", ["layers.2.mlp.up_proj.weight", "embed_tokens.weight", "input_norm.weight", "w1"]
)
def test_an_unexpected_tensor_is_refused(stored, tensors, name):
    path = stored({**tensors, name: torch.ones(4)})
    with pytest.raises(CheckpointError) as refusal:
        load_drafter(path)
    assert refusal.value.problem == f"{path} holds the tensor {name!r}, which its network has not."


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("fc.weight", [HIDDEN, 2 * HIDDEN], [HIDDEN, 3 * HIDDEN]),
        ("mask_hidden", [3 * HIDDEN], [1, 1, 3 * HIDDEN]),
        ("layers.0.self_attn.k_proj.weight", [32, HIDDEN], [32, 2 * HIDDEN]),
        ("lm_head.weight", [VOCAB, HIDDEN], [200, HIDDEN]),
    ],
)
def test_another_shape_is_refused_with_both_shapes(stored, tensors, name, shape, expected):
    path = stored({**tensors, name: torch.zeros(shape)})
    with pytest.raises(CheckpointError) as refusal:
        load_drafter(path)
    assert refusal.value.problem == (
        f"The tensor {name!r} of {path} has the shape {shape}, "
        f"but its configuration says {expected}."
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["mask_hidden", "layers.1.self_attn.v_proj.weight"])
def test_unusable_numbers_are_refused(tmp_path, stored, tensors, name, value):
    tensors[name].view(-1)[17] = value
    path = stored(tensors)
    with pytest.raises(CheckpointError) as refusal:
        load_drafter(path)
    assert refusal.value.problem == f"The tensor {name!r} of {path} holds NaN or infinity."
    unwritten = tmp_path / "spoiled.safetensors"
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        save_drafter(unwritten, peagle_config(), tensors)
    assert not unwritten.exists()


def test_weights_that_are_no_floats_are_refused(stored, tensors):
    path = stored({**tensors, "fc.weight": tensors["fc.weight"].to(torch.int32)})
    with pytest.raises(CheckpointError, match=r"holds torch\.int32, not floats"):
        load_drafter(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d2t: d2t.int(), "holds torch.int32, not int64"),
        (lambda d2t: d2t + VOCAB, r"leads to token \d+, but the vocabulary has 320 tokens"),
        (lambda d2t: d2t - VOCAB, r"leads to token -\d+, but the vocabulary has 320 tokens"),
        (lambda d2t: torch.cat([d2t[:1], d2t[:1] - 1, d2t[2:]]), "names a token twice"),
    ],
)
def test_a_wrong_draft_vocabulary_is_refused(stored, tensors, change, problem):
    path = stored({**tensors, "d2t": change(tensors["d2t"])})
    with pytest.raises(CheckpointError, match=problem):
        load_drafter(path)


@pytest.mark.parametrize("kept", [0, 4, 100, 3000, -1])
def test_a_truncated_file_is_refused(stored, tensors, kept):
    path = stored(tensors)
    path.write_bytes(path.read_bytes()[:kept])
    for read in (load_drafter, read_config):
        with pytest.raises(CheckpointError, match="cannot be read as safetensors") as refusal:
            read(path)
        assert str(path) in refusal.value.problem


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="There is no drafter file"):
        load_drafter(tmp_path / "absent.safetensors")
    with pytest.raises(CheckpointError, match="There is no drafter file"):
        load_drafter(tmp_path)


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}, {"format": "peagle-drafter-1"}])
def test_weights_of_something_else_are_refused(stored, tensors, metadata):
    with pytest.raises(CheckpointError, match="is not a drafter of this program"):
        load_drafter(stored(tensors, metadata=metadata))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda read: read.pop("taps"), "taps"),
        (lambda read: read.update(depth=3), "depth"),
        (lambda read: read["decoder"].update(hidden_size="64"), "decoder.hidden_size"),
        (lambda read: read.update(norm_before_residual=1), "norm_before_residual"),
        (lambda read: read.update(draft_vocab_size=321), "draft_vocab_size"),
        (lambda read: read.update(mask_token_id=320), "mask_token_id"),
        (lambda read: read.update(taps=[]), "taps"),
        (lambda read: read.update(taps=[-1, 2]), "taps"),
        (lambda read: read.update(train_depth=0), "train_depth"),
        (lambda read: read.update(norm_before_fc=True, fc_norm=True), "fc_norm"),
        (lambda read: read["decoder"].update(num_heads=3), "num_kv_heads"),
    ],
)
def test_an_impossible_configuration_is_refused(stored, tensors, change, field):
    written = json.loads(peagle_config().to_json())
    change(written)
    path = stored(tensors, metadata={"format": "peagle-drafter-1", "config": json.dumps(written)})
    with pytest.raises(CheckpointError) as refusal:
        load_drafter(path)
    assert refusal.value.field == field


def test_a_damaged_configuration_is_refused(stored, tensors):
    path = stored(tensors, metadata={"format": "peagle-drafter-1", "config": "{"})
    with pytest.raises(CheckpointError, match="wrong at JSON"):
        read_config(path)


@pytest.mark.parametrize(
    ("config", "field", "difference"),
    [
        (
            peagle_config(decoder=decoder_config(vocab_size=400)),
            "vocab_size",
            "vocabulary: the drafter has 400, the target has 320",
        ),
        (
            peagle_config(target_hidden_size=96),
            "target_hidden_size",
            "hidden size: the drafter has 96, the target has 64",
        ),
        (
            peagle_config(decoder=decoder_config(hidden_size=96)),
            "hidden_size",
            "embedding width: the drafter has 96, the target has 64",
        ),
        (
            peagle_config(taps=(2, 3, 6)),
            "taps",
            "the drafter reads what enters layers [2, 3, 6], the target has layers 0 to 5",
        ),
        (
            peagle_config(tokenizer_fingerprint="fedcba9876543210"),
            "tokenizer_fingerprint",
            "the drafter has tokenizer fedcba987654, the target has 0123456789ab",
        ),
    ],
)
def test_a_drafter_of_another_target_is_refused_naming_both(
    tmp_path, make_target, config, field, difference
):
    path = tmp_path / "tiny.safetensors"
    save_drafter(path, config, random_tensors(config, 3))
    with pytest.raises(CheckpointError) as refusal:
        open_drafter(path, make_target(), FINGERPRINT, budget=1 << 20)
    assert refusal.value.problem == f"The drafter does not fit this target, {difference}."
    assert "'tiny'" in refusal.value.remedy
    assert refusal.value.field == field


def test_a_drafter_with_its_own_embedding_may_be_wider_than_the_target(
    tmp_path, make_target, slots
):
    config = peagle_config(decoder=decoder_config(hidden_size=96), own_embedding=True)
    path = tmp_path / "tiny.safetensors"
    save_drafter(path, config, random_tensors(config, 3))
    drafter = open_drafter(path, make_target(), FINGERPRINT, budget=1 << 20)
    state = drafter.open(64)
    state.observe(*slots(20))
    [found] = draft(drafter, [state], 3)
    assert ids_of(found).shape == (3, 32)


def test_a_file_decides_what_kind_of_drafter_it_is(tmp_path, make_target, slots):
    path = tmp_path / "tiny.safetensors"
    for config in (peagle_config(), eagle3_config()):
        save_drafter(path, config, random_tensors(config, 3))
        drafter = open_drafter(path, make_target(), FINGERPRINT, budget=1 << 20)
        assert drafter.method == config.method
        state = drafter.open(64)
        state.observe(*slots(20))
        [found] = draft(drafter, [state], 3)
        assert found.levels == 3
    written = json.loads(peagle_config().to_json())
    header = {"format": file_format(eagle3_config()), "config": json.dumps(written)}
    save_file(random_tensors(peagle_config(), 3), path, header)
    with pytest.raises(CheckpointError, match="wrong at mask_token_id"):
        read_config(path)


def test_a_drafter_that_names_no_tokenizer_fits_by_its_shape(tmp_path, make_target):
    config = peagle_config(tokenizer_fingerprint=None)
    path = tmp_path / "tiny.safetensors"
    save_drafter(path, config, random_tensors(config, 3))
    assert open_drafter(path, make_target(), FINGERPRINT, budget=1 << 20).name == "tiny"


def test_features_of_other_layers_are_never_mixed_up(tmp_path, make_target):
    path = tmp_path / "tiny.safetensors"
    save_drafter(path, peagle_config(), random_tensors(peagle_config(), 3))
    other = tuple(tap - 1 for tap in TAPS)
    with pytest.raises(ValueError, match="taps"):
        open_drafter(path, make_target(other), FINGERPRINT, budget=1 << 20)


def test_an_interrupted_save_leaves_the_old_file(tmp_path, tensors, monkeypatch):
    path = tmp_path / "tiny.safetensors"
    save_drafter(path, peagle_config(), tensors)
    before = path.read_bytes()

    def break_off(weights, unfinished, metadata):
        unfinished.write_bytes(struct.pack("<Q", 10))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("peagle.draft.storage.save_file", break_off)
    with pytest.raises(CheckpointError, match=r"cannot be written .*No space left"):
        save_drafter(path, replace(peagle_config(), train_depth=9), tensors)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.safetensors"]


def test_a_folder_that_does_not_exist_is_named(tmp_path, tensors):
    path = tmp_path / "absent" / "tiny.safetensors"
    with pytest.raises(CheckpointError, match="cannot be written") as refusal:
        save_drafter(path, peagle_config(), tensors)
    assert str(path) in refusal.value.problem


def test_the_file_holds_public_names(tmp_path, tensors):
    """Names a public P-EAGLE checkpoint has, apart from the mask row of the shared embedding."""
    path = tmp_path / "tiny.safetensors"
    save_drafter(path, peagle_config(), tensors)
    layer = [
        "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    ]  # fmt: skip
    expected = {f"layers.{index}.{part}.weight" for index in (0, 1) for part in layer}
    expected |= {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight", "lm_head.weight"}
    expected |= {"mask_hidden", "d2t", "mask_embedding"}
    assert load_file(path).keys() == expected
