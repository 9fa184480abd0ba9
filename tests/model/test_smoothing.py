"""Large channels move into the weights, and no number that the model computes changes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from peagle.model.config import DecoderConfig
from peagle.model.decoder import DecoderWeights
from peagle.model.quantized_linear import QuantizedWeight
from peagle.model.rope import pair_neighbours
from peagle.model.rows import SequenceRows
from peagle.model.smoothing import smoothed_weights
from peagle.model.torch_target import TorchTarget
from tests.model.random_models import CPU, GROUPED, WINDOWED, quantised, reference_model

TEXT = [11 * token % 320 for token in range(90)]


def tensors_of(config: DecoderConfig, loud: float = 1.0) -> dict[str, torch.Tensor]:
    """A random model's tensors, in which some channels are louder than the others."""
    found = {}
    for name, weight in reference_model(config).state_dict().items():
        kept = weight.detach().clone()
        if name.endswith("q_proj.weight"):
            kept = pair_neighbours(kept, config.num_heads)
        if name.endswith("k_proj.weight"):
            kept = pair_neighbours(kept, config.num_kv_heads)
        if name.endswith("norm.weight"):
            kept[5::30] *= loud
        elif name.endswith(("q_proj.weight", "gate_proj.weight")):
            kept[:, 5::30] /= loud
        found[name] = kept
    if config.tied_embeddings:
        found["lm_head.weight"] = found["model.embed_tokens.weight"].clone()
    return found


def smoothed(
    config: DecoderConfig,
    tensors: dict[str, torch.Tensor],
    fixed: Callable[[str], bool] = lambda _: False,
) -> dict[str, torch.Tensor]:
    return dict(smoothed_weights(config, tensors.__getitem__, TEXT, fixed=fixed))


def logits(config: DecoderConfig, tensors: dict[str, torch.Tensor], *, int8: bool) -> torch.Tensor:
    made: dict[str, torch.Tensor | QuantizedWeight] = {
        name: quantised(name, weight, "int8") if int8 else weight
        for name, weight in tensors.items()
    }
    weights = DecoderWeights.prepare(config, made, torch.float32, CPU)
    target = TorchTarget(config, weights, torch.float32, CPU)
    cache = target.new_cache(1 << 22)
    return target.forward(cache, [SequenceRows(cache.open(len(TEXT)), TEXT)]).logits[0]


@pytest.mark.parametrize("config", [GROUPED, WINDOWED], ids=["tied", "windowed"])
def test_smoothing_changes_no_bit_of_what_the_model_computes(config: DecoderConfig) -> None:
    untied = replace(config, tied_embeddings=False)
    tensors = tensors_of(config, loud=20)
    found = smoothed(config, tensors)
    assert set(found) == set(tensors)
    changed = {name for name in tensors if not torch.equal(found[name], tensors[name])}
    assert {name.split(".")[-2] for name in changed} == {
        "input_layernorm", "post_attention_layernorm", "norm", "lm_head",
        "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert torch.equal(logits(untied, found, int8=False), logits(untied, tensors, int8=False))


def test_int8_with_loud_channels_is_nearer_to_the_model_when_smoothed() -> None:
    untied = replace(GROUPED, tied_embeddings=False)
    tensors = tensors_of(GROUPED, loud=20)
    exact = logits(untied, tensors, int8=False)
    plain = (logits(untied, tensors, int8=True) - exact).square().mean()
    ours = (logits(untied, smoothed(GROUPED, tensors), int8=True) - exact).square().mean()
    assert ours < plain / 3


def test_nothing_moves_into_weights_that_must_stay() -> None:
    tensors = tensors_of(GROUPED, loud=20)
    found = smoothed(GROUPED, tensors, fixed=lambda name: name.endswith("_proj.weight"))
    changed = {name for name in tensors if not torch.equal(found[name], tensors[name])}
    assert changed == {"model.norm.weight", "lm_head.weight"}
    found = smoothed(GROUPED, tensors, fixed=lambda name: "down_proj" in name)
    for name, weight in tensors.items():
        assert "down_proj" not in name or torch.equal(found[name], weight)
