"""The weights of a drafter network by name: which there are, and whether they are sound.

Names and shapes are those of public P-EAGLE and EAGLE-3 checkpoints, query and key rows in Hugging
Face's order, so that training and export need no renaming. `mask_embedding` `[hidden]` is ours: a
P-EAGLE drafter that shares the target's embedding keeps only the row that the target does not have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from peagle.draft.network.config import NetworkConfig
from peagle.errors import CheckpointError
from peagle.model.rope import pair_neighbours

EMBEDDING: Final = "embed_tokens.weight"
MASK_EMBEDDING: Final = "mask_embedding"
MASK_HIDDEN: Final = "mask_hidden"
DRAFT_TO_TARGET: Final = "d2t"
MARKOV_PREVIOUS: Final = "markov.previous.weight"
MARKOV_GATE: Final = "markov.gate.weight"
MARKOV_OUT: Final = "markov.out.weight"

_REMEDY: Final = "The file is damaged or not a drafter of this form; fetch it again."


def tensor_shapes(config: NetworkConfig) -> dict[str, list[int]]:
    """Name every tensor of a network with its shape."""
    decoder, hidden = config.decoder, config.decoder.hidden_size
    width = decoder.num_heads * decoder.head_dim
    kv_width = decoder.num_kv_heads * decoder.head_dim
    shapes = {
        "fc.weight": [hidden, config.feature_size],
        "norm.weight": [hidden],
        "lm_head.weight": [config.draft_vocab_size, hidden],
        DRAFT_TO_TARGET: [config.draft_vocab_size],
        "layers.0.hidden_norm.weight": [hidden],
    }
    if config.own_embedding:
        shapes[EMBEDDING] = [decoder.vocab_size, hidden]
    if config.norm_before_fc:
        shapes["input_norm.weight"] = [config.feature_size]
    if config.fc_norm:
        shapes |= {name: [config.target_hidden_size] for name in fc_norm_names(config)}
    for index in range(decoder.num_layers):
        layer = f"layers.{index}."
        attention, mlp = layer + "self_attn.", layer + "mlp."
        entering = hidden if index else 2 * hidden
        shapes |= {
            layer + "input_layernorm.weight": [hidden],
            layer + "post_attention_layernorm.weight": [hidden],
            attention + "q_proj.weight": [width, entering],
            attention + "k_proj.weight": [kv_width, entering],
            attention + "v_proj.weight": [kv_width, entering],
            attention + "o_proj.weight": [hidden, width],
            mlp + "gate_proj.weight": [decoder.intermediate_size, hidden],
            mlp + "up_proj.weight": [decoder.intermediate_size, hidden],
            mlp + "down_proj.weight": [hidden, decoder.intermediate_size],
        }
    return shapes | config.method_shapes()


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights, those that read the same rows on top of one another."""

    attention_norm: torch.Tensor
    query_key_value: torch.Tensor
    attention_out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def layer_weights(
    config: NetworkConfig, index: int, tensor: Callable[[str], torch.Tensor]
) -> LayerWeights:
    """Give one layer's weights, query and key rows in neighbouring pairs.

    Args:
        config: The network's shape.
        index: Which layer; layer 0 reads `[embedding | hidden]`.
        tensor: Gives a tensor by its name.
    """
    heads, kv_heads = config.decoder.num_heads, config.decoder.num_kv_heads
    at = f"layers.{index}."
    attention, mlp = at + "self_attn.", at + "mlp."
    return LayerWeights(
        attention_norm=tensor(at + "input_layernorm.weight"),
        query_key_value=torch.cat([
            pair_neighbours(tensor(attention + "q_proj.weight"), heads),
            pair_neighbours(tensor(attention + "k_proj.weight"), kv_heads),
            tensor(attention + "v_proj.weight"),
        ]),
        attention_out=tensor(attention + "o_proj.weight"),
        mlp_norm=tensor(at + "post_attention_layernorm.weight"),
        gate_up=torch.cat([tensor(mlp + "gate_proj.weight"), tensor(mlp + "up_proj.weight")]),
        down=tensor(mlp + "down_proj.weight"),
    )  # fmt: skip


def fc_norm_names(config: NetworkConfig) -> list[str]:
    """Names of the norms that each tapped stream has of its own, in the order of the taps."""
    return [f"fc_norm.{index}.weight" for index in range(len(config.taps))]


def check_tensors(config: NetworkConfig, tensors: Mapping[str, torch.Tensor], source: str) -> None:
    """Check that exactly the network's tensors are there and that every number is usable.

    Args:
        config: The network's shape.
        tensors: Its weights by name.
        source: Where they come from, for the message.

    Raises:
        CheckpointError: A tensor is missing or unexpected, has another shape or kind of number
            than it should, holds NaN or infinity, or `d2t` leads outside the target's vocabulary.
    """
    shapes = tensor_shapes(config)
    for name in sorted(shapes.keys() - tensors.keys()):
        raise _damaged(name, f"{source} lacks the tensor {name!r}.")
    for name in sorted(tensors.keys() - shapes.keys()):
        raise _damaged(name, f"{source} holds the tensor {name!r}, which its network has not.")
    for name, shape in shapes.items():
        found = tensors[name]
        if list(found.shape) != shape:
            raise _damaged(
                name,
                f"The tensor {name!r} of {source} has the shape {list(found.shape)}, "
                f"but its configuration says {shape}.",
            )
        if name == DRAFT_TO_TARGET:
            continue
        if not found.is_floating_point():
            raise _damaged(
                name, f"The tensor {name!r} of {source} holds {found.dtype}, not floats."
            )
        if not found.isfinite().all():
            raise _damaged(name, f"The tensor {name!r} of {source} holds NaN or infinity.")
    _check_mapping(tensors[DRAFT_TO_TARGET], config, source)


def target_ids(offsets: torch.Tensor) -> torch.Tensor:
    """Target id of each draft id, int64 `[draft vocab]`, from the offsets that `d2t` holds."""
    return offsets + torch.arange(len(offsets), device=offsets.device)


def offsets(ids: torch.Tensor) -> torch.Tensor:
    """Undo `target_ids`: the offsets that `d2t` holds, int64 `[draft vocab]`."""
    return ids - torch.arange(len(ids), device=ids.device)


def _check_mapping(d2t: torch.Tensor, config: NetworkConfig, source: str) -> None:
    if d2t.dtype != torch.int64:
        raise _damaged(
            DRAFT_TO_TARGET, f"The tensor 'd2t' of {source} holds {d2t.dtype}, not int64."
        )
    ids, vocab = target_ids(d2t), config.decoder.vocab_size
    outside = ids[(ids < 0) | (ids >= vocab)]
    if len(outside):
        raise _damaged(
            DRAFT_TO_TARGET,
            f"The tensor 'd2t' of {source} leads to token {int(outside[0])}, "
            f"but the vocabulary has {vocab} tokens.",
        )
    if len(torch.unique(ids)) < len(ids):
        raise _damaged(DRAFT_TO_TARGET, f"The tensor 'd2t' of {source} names a token twice.")


def _damaged(name: str, problem: str) -> CheckpointError:
    return CheckpointError(problem, remedy=_REMEDY, field=name)
