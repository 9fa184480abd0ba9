"""Shapes small enough to compute twice."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from peagle.draft.distributions import LevelDistributions
from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.peagle.config import PEagleConfig
from peagle.model.config import DecoderConfig

CPU = torch.device("cpu")
VOCAB, HIDDEN = 320, 64
FINGERPRINT = "0123456789abcdef"
TAPS = (2, 3, 5)


def decoder_config(**changes) -> DecoderConfig:
    shape = DecoderConfig(
        family="llama",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=1000.0,
        rope_scaling=None,
        context_length=256,
        tied_embeddings=False,
    )
    return replace(shape, **changes)


def peagle_config(*, decoder: DecoderConfig | None = None, **changes) -> PEagleConfig:
    shape = PEagleConfig(
        decoder=decoder or decoder_config(),
        draft_vocab_size=200,
        target_hidden_size=HIDDEN,
        taps=TAPS,
        mask_token_id=VOCAB - 1,
        tokenizer_fingerprint=FINGERPRINT,
        target_name="tiny",
        train_depth=8,
    )
    return replace(shape, **changes)


def eagle3_config(*, decoder: DecoderConfig | None = None, **changes) -> Eagle3Config:
    shape = Eagle3Config(
        decoder=decoder or decoder_config(num_layers=1),
        draft_vocab_size=200,
        target_hidden_size=HIDDEN,
        taps=TAPS,
        tokenizer_fingerprint=FINGERPRINT,
        target_name="tiny",
        train_depth=7,
    )
    return replace(shape, **changes)


def draft(
    drafter: Drafter, states: Sequence[DrafterState], depth: int, *, nodes=60, roots=10
) -> list[LevelDistributions]:
    """Draft for all sequences within the same limits."""
    return drafter.draft(states, [DraftLimits(depth, nodes, roots)] * len(states))


def ids_of(found: LevelDistributions) -> np.ndarray:
    """Target ids `[levels, top]`."""
    return np.array([found.children(depth, [])[0] for depth in range(1, found.levels + 1)])


def probabilities_of(found: LevelDistributions) -> np.ndarray:
    """Their probabilities `[levels, top]`."""
    return np.array([found.children(depth, [])[1] for depth in range(1, found.levels + 1)])
