"""The P-EAGLE network: one pass over new slots and mask slots gives all depths at once.

Slot `i` takes token `x[i+1]` and feature `g[i]` and predicts `x[i+2]`. A round is one chain of rows
`[new slots | mask slots]`: mask slots take the mask embedding and `fc(mask_hidden)`, so every row
sees all slots and the mask slots before it under plain causal attention (arXiv 2602.01469). Only
real slots are kept in the KV cache; the next round writes its own over the mask slots' positions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812

from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.peagle.tensors import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    MASK_EMBEDDING,
    MASK_HIDDEN,
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
    """The slots of one sequence in one pass.

    Attributes:
        cache: The sequence's committed slots.
        tokens: Token of each new slot, the one behind the position of its feature.
        features: `[len(tokens), taps * target hidden]`.
        masks: Mask slots behind them.
    """

    cache: SequenceCache
    tokens: Sequence[int]
    features: torch.Tensor
    masks: int = 0


@dataclass(frozen=True, slots=True)
class SlotOutput:
    """What the slots of one pass gave.

    Attributes:
        residual: For each sequence the residual stream behind the last layer,
            `[new slots + mask slots, hidden]`.
        slots: As given.
        step: Their rows, to be committed.
    """

    residual: list[torch.Tensor]
    slots: Sequence[SlotRows]
    step: PlannedStep

    def commit(self) -> None:
        """Keep the new slots in the KV cache and forget the mask slots."""
        self.step.commit([range(len(slots.tokens)) for slots in self.slots])


class PEagleNetwork:
    """The weights of a P-EAGLE drafter and the arithmetic on its slots.

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
        config: PEagleConfig,
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

        if config.own_embedding:
            self._embedding = tensor(EMBEDDING)
            self._mask_embedding = self._embedding[config.mask_token_id]
        else:
            self._embedding = embedding
            self._mask_embedding = tensor(MASK_EMBEDDING)
        self._layers = [_layer(config, index, tensor) for index in range(config.decoder.num_layers)]
        self._hidden_norm = tensor("layers.0.hidden_norm.weight")
        self._input_norm = tensor("input_norm.weight") if config.norm_before_fc else None
        self._fc = Linear(tensor("fc.weight"))
        self._norm = tensor("norm.weight")
        self._head = Linear(tensor("lm_head.weight"))
        ladder = product_ladder(self._product_shapes(), dtype, device)
        self.planner = PassPlanner(config.decoder, ladder, device)
        with torch.inference_mode():
            self._mask_hidden = self._fused(tensor(MASK_HIDDEN).view(1, -1))[0]

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights that are the network's own."""
        return self.parameters * self.dtype.itemsize

    @torch.inference_mode()
    def forward(self, cache: KVCache, slots: Sequence[SlotRows]) -> SlotOutput:
        """Compute new slots and mask slots, row for row the same whatever else is in the pass.

        Args:
            cache: Where the sequences' pages are.
            slots: Slots of each sequence; each must fit in its pages and in the context.
        """
        # One behind the vocabulary: a text may hold the mask token, and then means its own row.
        mask = self.config.decoder.vocab_size
        step = self.planner.plan(
            cache,
            [SequenceRows(part.cache, [*part.tokens, *[mask] * part.masks]) for part in slots],
        )
        entering = self._entering(slots, step)
        residual = torch.cat([self._run(one, entering) for one in step.passes])
        counts = [len(part.tokens) + part.masks for part in slots]
        return SlotOutput(list(torch.split(residual, counts)), slots, step)

    @torch.inference_mode()
    def logits(self, residual: torch.Tensor) -> torch.Tensor:
        """Apply the final norm and the output head to `residual` `[rows, hidden]`.

        Returns:
            Float32 `[rows, draft vocab]`.
        """
        eps = self.config.decoder.rms_norm_eps
        return self._in_verified_counts(
            residual, lambda rows: self._head(rms_norm(rows, self._norm, eps))
        ).float()

    def new_cache(self, budget: int) -> KVCache:
        """Make a KV cache of at most `budget` bytes, float32 on a CPU as the target's."""
        dtype = torch.float32 if self.device.type == "cpu" else self.dtype
        return KVCache(self.config.decoder, budget=budget, dtype=dtype, device=self.device)

    def _entering(self, slots: Sequence[SlotRows], step: PlannedStep) -> torch.Tensor:
        """Fuse the features of a step, `[rows + padding, hidden]`; other rows are mask slots'."""
        rows = step.total + self.planner.ladder.largest
        entering = self._mask_hidden.expand(rows, -1).clone()
        fused = self._fused(torch.cat([part.features.to(self.dtype) for part in slots]))
        places = [
            offset + slot
            for part, offset in zip(slots, step.offsets, strict=True)
            for slot in range(len(part.tokens))
        ]
        entering[torch.tensor(places, device=self.device)] = fused
        return entering

    def _fused(self, features: torch.Tensor) -> torch.Tensor:
        """Fuse `features` `[rows, taps * target hidden]` to `[rows, hidden]`."""
        if self._input_norm is not None:
            features = rms_norm(features, self._input_norm, self.config.decoder.rms_norm_eps)
        return self._in_verified_counts(features, self._fc)

    def _run(self, one: Pass, entering: torch.Tensor) -> torch.Tensor:
        """Run a pass through the layers, giving its residual stream without the padding."""
        decoder, eps = self.config.decoder, self.config.decoder.rms_norm_eps
        hidden = entering[one.first : one.first + len(one.tokens)]
        normed = rms_norm(hidden, self._hidden_norm, eps)
        first, *others = self._layers
        embedded = rms_norm(self._embedded(one.tokens), first.attention_norm, eps)
        residual = first.run(
            normed if self.config.norm_before_residual else hidden,
            torch.cat([embedded, normed], -1),
            decoder,
            one.memory(0),
        )
        for index, layer in enumerate(others, 1):
            residual = layer(residual, decoder, one.memory(index))
        return residual[: one.count]

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        last = self.config.decoder.vocab_size - 1
        rows = self._embedding.index_select(0, tokens.clamp(max=last)).to(self.dtype)
        return torch.where((tokens > last).unsqueeze(1), self._mask_embedding, rows)

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


def _layer(config: PEagleConfig, index: int, tensor: Callable[[str], torch.Tensor]) -> Layer:
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
