"""Where training starts: the target's own last layers, or a drafter that was trained before."""

from collections.abc import Mapping, Sequence

import torch

from peagle.draft.network.config import NetworkConfig
from peagle.errors import InvalidRequestError
from peagle.train.networks.trunk import Trunk


def draft_vocabulary(answers: Sequence[torch.Tensor], size: int, vocab_size: int) -> torch.Tensor:
    """Choose the tokens that answers use most, ascending, int64 `[size]`.

    Args:
        answers: Tokens of each answer.
        size: Tokens to choose; tokens that never occur fill up, lowest first.
        vocab_size: The target's vocabulary.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for answer in answers:
        counts += torch.bincount(answer, minlength=vocab_size)
    # Stable, so that of equally frequent tokens the lower id is kept.
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


@torch.no_grad()
def start_from_target(
    network: Trunk, target: Mapping[str, torch.Tensor], config: NetworkConfig, ids: torch.Tensor
) -> None:
    """Set a network's weights to the target's, as far as they have the same meaning.

    The last tap goes through `fc` unchanged, and the layers behind it are the target's last ones;
    what the target has no counterpart for (the embedding half of layer 0) starts at zero.

    Args:
        network: What will train.
        target: The target's tensors by Hugging Face name, in its order of rows.
        config: The network's shape.
        ids: Target ids of the draft vocabulary.
    """
    hidden = config.decoder.hidden_size
    same_width = hidden == config.target_hidden_size
    head = target.get("lm_head.weight", target["model.embed_tokens.weight"])
    if same_width:
        network.lm_head.weight.copy_(head[ids])
        network.norm.weight.copy_(target["model.norm.weight"])
        network.fc.weight.zero_()
        network.fc.weight[:, -hidden:].copy_(torch.eye(hidden))
    layers = sum(name.endswith("self_attn.q_proj.weight") for name in target)
    parameters = dict(network.named_parameters())
    for index in range(config.decoder.num_layers):
        source = f"model.layers.{layers - config.decoder.num_layers + index}."
        goal = f"layers.{index}."
        before_mlp = source + "pre_feedforward_layernorm.weight"
        for name, weight in parameters.items():
            found = target.get(source + name.removeprefix(goal)) if name.startswith(goal) else None
            if name == goal + "post_attention_layernorm.weight":
                # Where a target norms what attention adds, too, this name means that norm.
                found = target.get(before_mlp, found)
            if found is None:
                continue
            if weight.shape == found.shape:
                weight.copy_(found)
            elif weight.shape == (found.shape[0], 2 * found.shape[1]):
                weight.zero_()
                weight[:, found.shape[1] :].copy_(found)
        if index == 0:
            norm = target.get(source + "input_layernorm.weight")
            if norm is not None and same_width:
                network.first.hidden_norm.weight.copy_(norm)
                network.first.input_layernorm.weight.fill_(1.0)


@torch.no_grad()
def start_from_drafter(network: Trunk, drafter: Mapping[str, torch.Tensor]) -> None:
    """Set a network's weights to those of a drafter of the same shape."""
    for name, weight in network.named_parameters():
        weight.copy_(drafter[name].view(weight.shape))


def check_trainable(config: NetworkConfig) -> None:
    """Refuse a drafter with parts that do not train here.

    Raises:
        InvalidRequestError: It has one.
    """
    for part in ("own_embedding", "norm_before_fc", "fc_norm"):
        if getattr(config, part):
            raise InvalidRequestError(
                f"The drafter to start from has {part}, which training does not know.",
                remedy="Start from a drafter that was trained here, or from none.",
                field="start",
            )
