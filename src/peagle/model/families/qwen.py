"""Qwen: biases of queries, keys and values in Qwen2, norms of query and key heads in Qwen3.

Qwen3-MoE has experts in place of the MLP. A sliding window is off unless `use_sliding_window`
turns it on for the layers from `max_window_layers` on.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from peagle.errors import UnsupportedError
from peagle.model.families.family import USUAL_CHECKS, Experts, Family, Tensors
from peagle.model.families.reading import layers_of_kind, whole, window

if TYPE_CHECKING:
    from peagle.model.config import DecoderConfig


def _windows(config: Mapping[str, Any]) -> dict[str, Any]:
    if not config.get("use_sliding_window") or window(config) is None:
        return {}
    layers = whole(config, "num_hidden_layers")
    first = whole(config, "max_window_layers", layers)
    windowed = layers_of_kind(config, "sliding_attention", tuple(range(first, layers)))
    return {"sliding_window": window(config), "windowed_layers": windowed} if windowed else {}


def _written_windows(config: "DecoderConfig") -> dict[str, Any]:
    written: dict[str, Any] = {"use_sliding_window": config.sliding_window is not None}
    if config.sliding_window is not None:
        written |= {"sliding_window": config.sliding_window, "layer_types": config.layer_types()}
    return written


def _read_qwen2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True, **_windows(config)}


def _read_qwen3(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"head_norms": True, **_windows(config)}


def _read_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("mlp_only_layers") or whole(config, "decoder_sparse_step", 1) != 1:
        raise UnsupportedError(
            "The model's configuration has layers without experts among those with experts "
            "(mlp_only_layers or decoder_sparse_step), which is not supported.",
            remedy="This engine runs Qwen3-MoE with experts in every layer.",
            field="mlp_only_layers",
        )
    # transformers 5 may write num_local_experts.
    count = whole(config, "num_experts", config.get("num_local_experts"))
    experts = Experts(
        count=count,
        active=whole(config, "num_experts_per_tok"),
        width=whole(config, "moe_intermediate_size"),
        normalised=bool(config.get("norm_topk_prob", False)),
    )
    # Unlike Qwen3, every layer has the window that is turned on.
    own = window(config) if config.get("use_sliding_window") else None
    return {"head_norms": True, "experts": experts, "sliding_window": own}


def _write_moe(config: "DecoderConfig") -> dict[str, Any]:
    assert config.experts is not None
    return {
        "num_experts": config.experts.count,
        "num_experts_per_tok": config.experts.active,
        "moe_intermediate_size": config.experts.width,
        "norm_topk_prob": config.experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
    }


def _named_moe(tensors: Tensors, _: "DecoderConfig") -> Tensors:
    """Give every expert tensors of its own; some releases stack them in one for a layer."""
    named: Tensors = {}
    for name, weight in tensors.items():
        at, stacked, part = name.partition(".mlp.experts.")
        if not stacked or part not in ("gate_up_proj", "down_proj"):
            named[name] = weight
            continue
        for expert, own in enumerate(weight):
            place = f"{at}{stacked}{expert}."
            if part == "down_proj":
                named[f"{place}down_proj.weight"] = own
            else:
                gate, up = own.chunk(2)
                named |= {f"{place}gate_proj.weight": gate, f"{place}up_proj.weight": up}
    return named


QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    title="Qwen2, Qwen2.5",
    gguf="qwen2",
    read=_read_qwen2,
    write=_written_windows,
)
QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    title="Qwen3",
    gguf="qwen3",
    read=_read_qwen3,
    write=_written_windows,
    defaults={"head_dim": 128},
    checks=(*USUAL_CHECKS, "training"),
)
QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    title="Qwen3-MoE, Qwen3-Coder",
    gguf="qwen3moe",
    read=_read_moe,
    write=_write_moe,
    named=_named_moe,
)
