"""The weights of a drafter network and the arithmetic that P-EAGLE and EAGLE-3 share.

Slot `i` takes token `x[i+1]` and feature `g[i]` and predicts `x[i+2]`. Layer 0 reads the embedded
token and the hidden state side by side, the layers behind it are plain decoder layers. Where hidden
states come from is the method's affair: `fc` fuses them from features of the target.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812

from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    fc_norm_names,
    target_ids,
)
from peagle.model.decoder import Layer, rms_norm
from peagle.model.kv_cache import KVCache, SequenceCache
from peagle.model.linear import Linear, product_ladder
from peagle.model.passes import Pass, PassPlanner, PlannedStep
from peagle.model.rope import pair_neighbours
from peagle.model.rows import SequenceRows


@dataclass(frozen=True, slots=True)
class SlotRows:
    """New slots of one sequence.

    Attributes:
        cache: The sequence's committed slots.
        tokens: Token of each new slot, the one behind the position of its feature.
        features: `[len(tokens), taps * target hidden]`.
    """

    cache: SequenceCache
    tokens: Sequence[int]
    features: torch.Tensor


@dataclass(frozen=True, slots=True)
class SlotOutput:
    """What a step over new slots, and what stands behind them, gave.

    Attributes:
        residual: For each sequence the residual stream behind the last layer, `[rows, hidden]`.
        slots: The new slots, the first rows of each sequence.
        step: All rows, to be committed.
    """

    residual: list[torch.Tensor]
    slots: Sequence[SlotRows]
    step: PlannedStep

    def commit(self) -> None:
        """Keep the new slots in the KV cache and forget the rows behind them."""
        self.step.commit([range(len(slots.tokens)) for slots in self.slots])


class DraftNetwork:
    """A drafter network.

    Args:
        config: The network's shape.
        tensors: Its weights by name, checked (`tensors.check_tensors`).
        embedding: The target's `[vocab, hidden]`, shared unless the network has its own.
        dtype: What products are computed in.
        device: Where.

    Attributes:
        config: As given.
        dtype: As given.
        device: As given.
        target_ids: Target id of each draft id, int64 `[draft vocab]`.
        parameters: Numbers that are the network's own, a shared embedding not among them.
        planner: Plans its passes.
    """

    def __init__(
        self,
        config: NetworkConfig,
        tensors: Mapping[str, torch.Tensor],
        *,
        embedding: torch.Tensor,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.target_ids = target_ids(tensors[DRAFT_TO_TARGET].to(device))
        self.parameters = sum(found.numel() for found in tensors.values()) - len(self.target_ids)

        def tensor(name: str) -> torch.Tensor:
            return tensors[name].to(device=device, dtype=dtype)

        self._embedding = tensor(EMBEDDING) if config.own_embedding else embedding
        self._layers = [_layer(config, index, tensor) for index in range(config.decoder.num_layers)]
        self._hidden_norm = tensor("layers.0.hidden_norm.weight")
        self._input_norm = tensor("input_norm.weight") if config.norm_before_fc else None
        self._fc_norm = (
            torch.stack([tensor(name) for name in fc_norm_names(config)])
            if config.fc_norm
            else None
        )
        self._fc = Linear(tensor("fc.weight"))
        self._norm = tensor("norm.weight")
        self._head = Linear(tensor("lm_head.weight"))
        ladder = product_ladder(self._product_shapes(), dtype, device)
        self.planner = PassPlanner(config.decoder, ladder, device)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights that are the network's own."""
        return self.parameters * self.dtype.itemsize

    @torch.inference_mode()
    def read(self, cache: KVCache, slots: Sequence[SlotRows]) -> SlotOutput:
        """Compute new slots, row for row the same whatever else is in the step.

        Args:
            cache: Where the sequences' pages are.
            slots: Slots of each sequence; each must fit in its pages and in the context.
        """
        rows = [SequenceRows(part.cache, part.tokens) for part in slots]
        entering = self.fused(torch.cat([part.features.to(self.dtype) for part in slots]))
        residual, step = self.run(cache, rows, entering)
        return SlotOutput(residual, slots, step)

    def run(
        self, cache: KVCache, rows: Sequence[SequenceRows], entering: torch.Tensor
    ) -> tuple[list[torch.Tensor], PlannedStep]:
        """Run rows through the layers, row for row the same whatever else is in the step.

        Args:
            cache: Where the sequences' pages are.
            rows: Rows of each sequence; each must fit in its pages and in the context.
            entering: Hidden state that each row takes, `[rows, hidden]`.

        Returns:
            For each sequence the residual stream behind the last layer, `[its rows, hidden]`, and
            the rows, to be committed.
        """
        step = self.planner.plan(cache, rows)
        # The last pass may be padded.
        entering = F.pad(entering, (0, 0, 0, self.planner.ladder.largest))
        residual = torch.cat([self._run(one, entering) for one in step.passes])
        return list(torch.split(residual, [len(part.tokens) for part in rows])), step

    @torch.inference_mode()
    def logits(self, residual: torch.Tensor) -> torch.Tensor:
        """Apply the final norm and the output head to `residual` `[rows, hidden]`.

        Returns:
            Float32 `[rows, draft vocab]`.
        """
        return self._in_verified_counts(
            residual, lambda rows: self._head(self.final_norm(rows))
        ).float()

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """Fuse `features` `[rows, taps * target hidden]` to `[rows, hidden]`."""
        eps = self.config.decoder.rms_norm_eps
        if self._input_norm is not None:
            features = rms_norm(features, self._input_norm, eps)
        if self._fc_norm is not None:
            streams = features.view(len(features), *self._fc_norm.shape)
            features = rms_norm(streams, self._fc_norm, eps).flatten(1)
        return self._in_verified_counts(features, self._fc)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed `tokens` `[rows]`, giving `[rows, hidden]`."""
        return self._embedding.index_select(0, tokens).to(self.dtype)

    def final_norm(self, residual: torch.Tensor) -> torch.Tensor:
        """Norm what leaves the last layer, `[rows, hidden]`."""
        return rms_norm(residual, self._norm, self.config.decoder.rms_norm_eps)

    def new_cache(self, budget: int) -> KVCache:
        """Make a KV cache of at most `budget` bytes, float32 on a CPU as the target's."""
        dtype = torch.float32 if self.device.type == "cpu" else self.dtype
        return KVCache(self.config.decoder, budget=budget, dtype=dtype, device=self.device)

    def _run(self, one: Pass, entering: torch.Tensor) -> torch.Tensor:
        """Run a pass through the layers, giving its residual stream without the padding."""
        decoder, eps = self.config.decoder, self.config.decoder.rms_norm_eps
        hidden = entering[one.first : one.first + len(one.tokens)]
        normed = rms_norm(hidden, self._hidden_norm, eps)
        first, *others = self._layers
        embedded = rms_norm(self.embedded(one.tokens), first.attention_norm, eps)
        residual = first.run(
            normed if self.config.norm_before_residual else hidden,
            torch.cat([embedded, normed], -1),
            decoder,
            one.memory(0),
        )
        for index, layer in enumerate(others, 1):
            residual = layer(residual, decoder, one.memory(index))
        return residual[: one.count]

    def _in_verified_counts(
        self, rows: torch.Tensor, product: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Apply a product to `rows` `[rows, in]` in row counts that agree with one another."""
        ladder, pieces = self.planner.ladder, []
        for some in torch.split(rows, ladder.largest):
            padding = ladder.padded(len(some)) - len(some)
            pieces.append(product(F.pad(some, (0, 0, 0, padding)))[: len(some)])
        return torch.cat(pieces)

    def _product_shapes(self) -> set[tuple[int, int]]:
        shapes = {self._fc.shape, self._head.shape}
        for layer in self._layers:
            shapes.update(product.shape for product in layer.products())
        return shapes


def _layer(config: NetworkConfig, index: int, tensor: Callable[[str], torch.Tensor]) -> Layer:
    """Fuse one layer's weights, which in layer 0 read `[embedding | hidden]`."""
    heads, kv_heads = config.decoder.num_heads, config.decoder.num_kv_heads
    at: Final = f"layers.{index}."
    attention, mlp = at + "self_attn.", at + "mlp."
    return Layer(
        attention_norm=tensor(at + "input_layernorm.weight"),
        query_key_value=Linear(
            torch.cat([
                pair_neighbours(tensor(attention + "q_proj.weight"), heads),
                pair_neighbours(tensor(attention + "k_proj.weight"), kv_heads),
                tensor(attention + "v_proj.weight"),
            ])
        ),
        attention_out=Linear(tensor(attention + "o_proj.weight")),
        mlp_norm=tensor(at + "post_attention_layernorm.weight"),
        gate_up=Linear(
            torch.cat([tensor(mlp + "gate_proj.weight"), tensor(mlp + "up_proj.weight")])
        ),
        down=Linear(tensor(mlp + "down_proj.weight")),
    )  # fmt: skip
