"""A checkpoint's tensors by name, checked against what the configuration says."""

from collections.abc import Mapping

import torch

from peagle.model.config import DecoderConfig
from peagle.model.folder_checkpoint import missing_tensor, require_shape
from peagle.model.quantized_linear import QuantizedWeight, shape_of


class NamedWeights:
    """The weights of a decoder by Hugging Face name, query and key rows in neighbouring pairs.

    Args:
        config: The model's shape.
        tensors: By name. The weights of products may be quantised: then all of them are, and so is
            an `lm_head.weight`, even beside a tied embedding.
    """

    def __init__(
        self, config: DecoderConfig, tensors: Mapping[str, torch.Tensor | QuantizedWeight]
    ) -> None:
        self._tensors = tensors
        self._shapes = config.tensor_shapes()
        own_head = not isinstance(tensors.get("lm_head.weight"), torch.Tensor | None)
        self.tied_head = config.tied_embeddings and not own_head

    def weight(self, name: str) -> torch.Tensor | QuantizedWeight:
        """Give a weight as it is stored.

        Raises:
            CheckpointError: It is missing or has another shape than the configuration says.
        """
        if name not in self._tensors:
            raise missing_tensor(name)
        weight = self._tensors[name]
        has = weight.shape if isinstance(weight, torch.Tensor) else shape_of(weight)
        require_shape(name, has, self._shapes[name])
        return weight

    def tensor(self, name: str) -> torch.Tensor:
        """Give a tensor that is never quantised: an embedding or a norm.

        Raises:
            CheckpointError: As in `weight`.
        """
        weight = self.weight(name)
        assert isinstance(weight, torch.Tensor)
        return weight

    def fused(self, *names: str) -> torch.Tensor | list[QuantizedWeight]:
        """Give the weights of products that read the same rows: on top of one another, or a list.

        Raises:
            CheckpointError: As in `weight`.
        """
        weights = [self.weight(name) for name in names]
        quantised = [weight for weight in weights if not isinstance(weight, torch.Tensor)]
        if quantised:
            return quantised
        return torch.cat([weight for weight in weights if isinstance(weight, torch.Tensor)])


def layer_products(config: DecoderConfig, index: int) -> dict[str, tuple[str, ...]]:
    """Names of the weights that are fused in a layer's products, by the product's name.

    A layer with experts has no MLP of its own (`expert_products`).
    """
    at = f"model.layers.{index}."
    attention = at + "self_attn."
    products: dict[str, tuple[str, ...]] = {
        "query_key_value": tuple(attention + f"{part}_proj.weight" for part in ("q", "k", "v")),
        "attention_out": (attention + "o_proj.weight",),
    }
    return products if config.experts is not None else products | _mlp_products(at + "mlp.")


def expert_products(index: int, expert: int) -> dict[str, tuple[str, ...]]:
    """Give the same for one expert of a layer."""
    return _mlp_products(f"model.layers.{index}.mlp.experts.{expert}.")


def router_name(index: int) -> str:
    """Name of the weight that chooses a layer's experts."""
    return f"model.layers.{index}.mlp.gate.weight"


def layer_biases(config: DecoderConfig, index: int) -> tuple[str, ...]:
    """Names of the biases of a layer's queries, keys and values, in this order; none as a rule."""
    at = f"model.layers.{index}.self_attn."
    return tuple(at + f"{part}_proj.bias" for part in ("q", "k", "v")) if config.qkv_bias else ()


def layer_norms(config: DecoderConfig, index: int) -> dict[str, str]:
    """Names of a layer's norms, by what they are for."""
    at = f"model.layers.{index}."
    norms = {"attention_norm": at + "input_layernorm.weight"}
    if config.norms_after:
        norms |= {
            "norm_after_attention": at + "post_attention_layernorm.weight",
            "mlp_norm": at + "pre_feedforward_layernorm.weight",
            "norm_after_mlp": at + "post_feedforward_layernorm.weight",
        }
    else:
        norms["mlp_norm"] = at + "post_attention_layernorm.weight"
    if config.head_norms:
        norms |= {
            "query_norm": at + "self_attn.q_norm.weight",
            "key_norm": at + "self_attn.k_norm.weight",
        }
    return norms


def _mlp_products(at: str) -> dict[str, tuple[str, ...]]:
    return {
        "gate_up": (at + "gate_proj.weight", at + "up_proj.weight"),
        "down": (at + "down_proj.weight",),
    }
