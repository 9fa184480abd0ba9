"""A drafter network computed by torch, in row counts that were measured to agree."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from peagle.draft.distributions import Children
from peagle.draft.network.compute import NetworkOutput
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    LayerWeights,
    fc_norm_names,
    layer_weights,
    target_ids,
)
from peagle.model.decoder import Layer, rms_norm
from peagle.model.invariance import require_plain_sums
from peagle.model.kv_cache import KVCache
from peagle.model.linear import Linear, product_ladder
from peagle.model.mlp import GatedMLP
from peagle.model.passes import Pass, PassPlanner
from peagle.model.rows import SequenceRows


class TorchCompute:
    """The arithmetic of a drafter network in torch (`NetworkCompute`).

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
        require_plain_sums(device)
        self.config = config
        self.dtype = dtype
        self.device = device

        def tensor(name: str) -> torch.Tensor:
            return tensors[name].to(device=device, dtype=dtype)

        self._target_ids = target_ids(tensors[DRAFT_TO_TARGET].to(device))
        mask = config.mask_embedding(tensors)
        self._mask_embedding = None if mask is None else mask.to(device=device, dtype=dtype)
        self._embedding = tensor(EMBEDDING) if config.own_embedding else embedding
        self._layers = [
            _layer(layer_weights(config, index, tensor))
            for index in range(config.decoder.num_layers)
        ]
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
        self.planner = PassPlanner(config.decoder, ladder, device, few_shapes=device.type == "cuda")

    @property
    def rows_per_pass(self) -> int:
        """Most rows one pass over the weights takes."""
        return self.planner.ladder.largest

    def new_cache(self, budget: int, most_pages: int | None = None) -> KVCache:
        """Make a KV cache (`NetworkCompute.new_cache`), float32 on a CPU as the target's."""
        dtype = torch.float32 if self.device.type == "cpu" else self.dtype
        return KVCache(
            self.config.decoder,
            budget=budget,
            most_pages=most_pages,
            dtype=dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """Fuse `features` to hidden states (`NetworkCompute.fused`)."""
        features = features.to(device=self.device, dtype=self.dtype)
        eps = self.config.decoder.rms_norm_eps
        if self._input_norm is not None:
            features = rms_norm(features, self._input_norm, eps)
        if self._fc_norm is not None:
            streams = features.view(len(features), *self._fc_norm.shape)
            features = rms_norm(streams, self._fc_norm, eps).flatten(1)
        return self._in_verified_counts(features, self._fc)

    @torch.inference_mode()
    def run(
        self,
        cache: KVCache,
        rows: Sequence[SequenceRows],
        entering: torch.Tensor,
        predicting: Sequence[int],
    ) -> NetworkOutput:
        """Run rows through the network (`NetworkCompute.run`)."""
        step = self.planner.plan(cache, rows)
        # The last pass may be padded.
        entering = F.pad(entering, (0, 0, 0, self.planner.ladder.largest))
        residual = torch.cat([self._run(one, entering) for one in step.passes])
        whole = torch.split(residual, [len(part.tokens) for part in rows])
        wanted = [own[len(own) - count :] for own, count in zip(whole, predicting, strict=True)]
        return NetworkOutput(
            list(torch.split(self._logits(torch.cat(wanted)), list(predicting))), wanted, step
        )

    def most_probable(self, logits: torch.Tensor, count: int) -> list[Children]:
        """Give the most probable tokens of each row (`NetworkCompute.most_probable`)."""
        best, ids = logits.topk(min(count, logits.shape[1]))
        probabilities = (best - logits.logsumexp(-1, keepdim=True)).exp()
        return list(zip(self._target_ids[ids].tolist(), probabilities.tolist(), strict=True))

    def final_norm(self, residual: torch.Tensor) -> torch.Tensor:
        """Norm what leaves the last layer, `[rows, hidden]`."""
        return rms_norm(residual, self._norm, self.config.decoder.rms_norm_eps)

    def _logits(self, residual: torch.Tensor) -> torch.Tensor:
        """Apply the final norm and the output head, giving float32 `[rows, draft vocab]`."""
        if not len(residual):
            return residual.new_empty((0, self.config.draft_vocab_size), dtype=torch.float32)
        return self._in_verified_counts(
            residual, lambda rows: self._head(self.final_norm(rows))
        ).float()

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed `tokens` `[rows]`, mask tokens among them, giving `[rows, hidden]`."""
        if self._mask_embedding is None:
            return self._embedding.index_select(0, tokens).to(self.dtype)
        last = self.config.decoder.vocab_size - 1
        rows = self._embedding.index_select(0, tokens.clamp(max=last)).to(self.dtype)
        return torch.where((tokens > last).unsqueeze(1), self._mask_embedding, rows)

    def _run(self, one: Pass, entering: torch.Tensor) -> torch.Tensor:
        """Run a pass through the layers, giving its residual stream without the padding."""
        decoder, eps = self.config.decoder, self.config.decoder.rms_norm_eps
        hidden = entering[one.first : one.first + len(one.tokens)]
        normed = rms_norm(hidden, self._hidden_norm, eps)
        first, *others = self._layers
        embedded = rms_norm(self._embedded(one.tokens), first.attention_norm, eps)
        with one.plan.scratch():
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


def _layer(weights: LayerWeights) -> Layer:
    return Layer(
        attention_norm=weights.attention_norm,
        query_key_value=Linear(weights.query_key_value),
        attention_out=Linear(weights.attention_out),
        mlp_norm=weights.mlp_norm,
        mlp=GatedMLP(Linear(weights.gate_up), Linear(weights.down)),
    )
