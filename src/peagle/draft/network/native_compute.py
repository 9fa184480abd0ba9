"""A drafter network computed by the native step: one call for all layers and the head."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from peagle import native
from peagle.draft.distributions import Children
from peagle.draft.network.compute import NetworkOutput
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    fc_norm_names,
    layer_weights,
    target_ids,
)
from peagle.model.decoder import rms_norm
from peagle.model.kv_cache import KVCache
from peagle.model.native_target import NativeRows, flat_rows, packed_weight, turns_by_position
from peagle.model.quantizing import quantize_int8
from peagle.model.rows import SequenceRows, rows_of_each
from peagle.native.arrays import bfloat16, float32, int32

# A prompt is read in pieces of so many slots.
_ROWS_PER_PASS: Final = 256
_CPU: Final = torch.device("cpu")
_NO_TAPS: Final = np.empty(0, np.int32)
_NO_FEATURES: Final = np.empty((0, 0), np.float32)


class NativeCompute:
    """The arithmetic of a drafter network in the native step (`NetworkCompute`).

    Products are computed in bfloat16, or in int8 but for the fusion, whose features hold single
    values too large for it; all else in float32.

    Args:
        config: The network's shape, whose widths must be those that a native target may have
            (`native_target.obstacle`).
        tensors: Its weights by name, checked (`tensors.check_tensors`).
        embedding: The target's `[vocab, hidden]`, shared unless the network has its own.
        quantised: Whether products are computed in int8.
        threads: Threads of a pass; torch's number if None.
        instructions: One of `native.instruction_sets()`; the best of this processor if empty.

    Attributes:
        config: As given.
        device: The CPU.
    """

    def __init__(
        self,
        config: NetworkConfig,
        tensors: Mapping[str, torch.Tensor],
        *,
        embedding: torch.Tensor,
        quantised: bool = False,
        threads: int | None = None,
        instructions: str = "",
    ) -> None:
        packed = _packed_int8 if quantised else packed_weight
        self.config = config
        self.device = _CPU
        decoder, library = config.decoder, native.library
        pool = native.thread_pool(threads or torch.get_num_threads())
        layers = []
        for index in range(decoder.num_layers):
            weights = layer_weights(config, index, tensors.__getitem__)
            layers.append((
                float32(weights.attention_norm),
                packed(weights.query_key_value),
                packed(weights.attention_out),
                float32(weights.mlp_norm),
                packed(weights.gate_up),
                packed(weights.down),
            ))  # fmt: skip
        self._target_ids = int32(target_ids(tensors[DRAFT_TO_TARGET]).numpy())
        mask = config.mask_embedding(tensors)
        self._norm = tensors["norm.weight"].float()
        self._decoder = library.Decoder(
            intermediate=decoder.intermediate_size,
            heads=decoder.num_heads,
            kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            eps=decoder.rms_norm_eps,
            window=decoder.sliding_window or 0,
            embedding=bfloat16(tensors[EMBEDDING] if config.own_embedding else embedding),
            layers=layers,
            norm=self._norm.numpy(),
            head=packed(tensors["lm_head.weight"]),
            turns=turns_by_position(decoder),
            threads=pool,
            instructions=instructions,
            hidden_norm=float32(tensors["layers.0.hidden_norm.weight"]),
            mask_embedding=None if mask is None else bfloat16(mask),
            norm_before_residual=config.norm_before_residual,
        )
        norms = torch.empty(0, config.feature_size)
        if config.norm_before_fc:
            norms = tensors["input_norm.weight"][None]
        elif config.fc_norm:
            norms = torch.stack([tensors[name] for name in fc_norm_names(config)])
        self._fusion = library.Fusion(
            weight=packed_weight(tensors["fc.weight"]),
            norms=float32(norms),
            eps=decoder.rms_norm_eps,
            threads=pool,
            instructions=instructions,
        )

    @property
    def instructions(self) -> str:
        """The instruction set that it uses."""
        name: str = self._decoder.instructions
        return name

    @property
    def rows_per_pass(self) -> int:
        """Most rows one pass over the weights takes."""
        return _ROWS_PER_PASS

    def new_cache(self, budget: int, most_pages: int | None = None) -> KVCache:
        """Make a KV cache (`NetworkCompute.new_cache`); keys lie transposed within its pages."""
        return KVCache(
            self.config.decoder,
            budget=budget,
            most_pages=most_pages,
            dtype=torch.float32,
            device=_CPU,
        )

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """Fuse `features` to hidden states (`NetworkCompute.fused`)."""
        hidden = torch.empty(len(features), self.config.decoder.hidden_size)
        self._fusion.run(float32(features), hidden.numpy())
        return hidden

    def run(
        self,
        cache: KVCache,
        rows: Sequence[SequenceRows],
        entering: torch.Tensor,
        predicting: Sequence[int],
    ) -> NetworkOutput:
        """Run rows through the network (`NetworkCompute.run`)."""
        request = flat_rows(cache, rows)
        logits = torch.empty(sum(predicting), self.config.draft_vocab_size)
        residual = torch.empty(sum(predicting), self.config.decoder.hidden_size)
        step = self._decoder.run(
            cache.pool.numpy(),
            request.tokens,
            request.parents,
            np.vstack([request.parts, int32(predicting)]),
            request.pages,
            _NO_TAPS,
            logits.numpy(),
            _NO_FEATURES,
            float32(entering),
            residual.numpy(),
        )
        return NetworkOutput(
            rows_of_each(logits, predicting),
            rows_of_each(residual, predicting),
            NativeRows(self._decoder, step, cache, rows),
        )

    def most_probable(self, logits: torch.Tensor, count: int) -> list[Children]:
        """Give the most probable tokens of each row (`NetworkCompute.most_probable`)."""
        found: list[Children] = native.library.most_probable(
            logits.numpy(), self._target_ids, count
        )
        return found

    def final_norm(self, residual: torch.Tensor) -> torch.Tensor:
        """Norm what leaves the last layer, `[rows, hidden]`."""
        return rms_norm(residual, self._norm, self.config.decoder.rms_norm_eps)


def _packed_int8(weight: torch.Tensor) -> Any:
    return packed_weight([quantize_int8(weight)])
