"""Drafter networks before any training: random weights, for tests of everything around them."""

import math
from typing import Any

import torch

from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.loading import build_drafter
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.drafter import Drafter
from peagle.draft.network.tensors import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    MASK_EMBEDDING,
    MASK_HIDDEN,
    offsets,
    tensor_shapes,
)
from peagle.draft.peagle.config import PEagleConfig
from peagle.model.target import Target
from peagle.spec import NetworkMethod

_UNIT_NORMAL = {MASK_HIDDEN, MASK_EMBEDDING, EMBEDDING}


def random_tensors(config: NetworkConfig, seed: int) -> dict[str, torch.Tensor]:
    """Make a network's weights, float32: products keep the size of what they multiply.

    The draft vocabulary is drawn from the target's and sorted, as public drafters sort it.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        if name == DRAFT_TO_TARGET:
            drawn = torch.randperm(config.decoder.vocab_size, generator=generator)
            tensors[name] = offsets(drawn[: config.draft_vocab_size].sort().values)
        elif len(shape) == 1 and name not in _UNIT_NORMAL:
            tensors[name] = 1 + 0.1 * torch.randn(shape, generator=generator)
        else:
            scale = 1.0 if name in _UNIT_NORMAL else 1 / math.sqrt(shape[-1])
            tensors[name] = scale * torch.randn(shape, generator=generator)
    return tensors


def random_drafter(
    target: Target,
    *,
    method: NetworkMethod = "peagle",
    layers: int = 2,
    draft_vocab_size: int | None = None,
    seed: int = 0,
    fingerprint: str | None = None,
    budget: int = 64 << 20,
) -> Drafter:
    """Make an untrained drafter that fits a target.

    Args:
        target: The target whose embedding, taps and layer shape it takes.
        method: What kind of network.
        layers: Its own layers.
        draft_vocab_size: Tokens it can propose; all of the target's if None.
        seed: Which weights.
        fingerprint: `Tokenizer.fingerprint` of the target.
        budget: Most bytes its KV cache may take.
    """
    vocab = target.config.vocab_size
    shape: dict[str, Any] = {
        "decoder": target.config.plain(layers),
        "draft_vocab_size": draft_vocab_size or vocab,
        "target_hidden_size": target.config.hidden_size,
        "taps": target.taps,
        "tokenizer_fingerprint": fingerprint,
        "target_name": "untrained",
        "train_depth": 8,
    }
    config = (
        PEagleConfig(**shape, mask_token_id=vocab - 1)
        if method == "peagle"
        else Eagle3Config(**shape)
    )
    return build_drafter(
        config, random_tensors(config, seed), target,
        budget=budget, name=f"untrained-{layers}-layers",
    )  # fmt: skip
