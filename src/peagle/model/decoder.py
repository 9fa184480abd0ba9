"""The decoder layers of all families, as arithmetic on rows and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from peagle.model.attention import AttentionPlan
from peagle.model.config import DecoderConfig
from peagle.model.invariance import RowLadder
from peagle.model.linear import Linear, product_ladder, product_witnesses
from peagle.model.mlp import ACTIVATIONS, MLP, ExpertMLP, GatedMLP
from peagle.model.named_weights import (
    NamedWeights,
    expert_products,
    layer_biases,
    layer_norms,
    layer_products,
    router_name,
)
from peagle.model.product import Biased, Product, unbiased
from peagle.model.quantized_linear import (
    QuantizedLinear,
    QuantizedWeight,
    joined,
    quantized_ladder,
)
from peagle.model.rope import rotate
from peagle.quantization import Quantization


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale `rows` `[rows, hidden]` to unit root mean square, in float32, then by `weight`."""
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight.dtype != rows.dtype:
        # A norm whose weights are applied in float32 (`DecoderConfig.wide_norms`).
        return (wide * weight).to(rows.dtype)
    return wide.to(rows.dtype) * weight


class Memory(Protocol):
    """What a layer needs to know of the rows that its rows attend to."""

    @property
    def turns(self) -> torch.Tensor:
        """Rotations of query and key heads, queries scaled."""
        ...

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Attend with the layer's rows, whose keys and values these are (`LayerMemory.attend`)."""
        ...


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """What a layer's rows attend to in one pass.

    Attributes:
        plan: Which keys each row reads.
        window: Which of the plan's windows the layer has.
        turns: Rotations of query and key heads, queries scaled,
            `[rows, heads + kv_heads, head_dim / 2]`.
        pool: The layer's committed keys and values, `[2, pages, kv_heads, 64, head_dim]`.
        uncommitted: The same of the step's rows, `[2, step_rows, kv_heads, head_dim]`.
    """

    plan: AttentionPlan
    window: int
    turns: torch.Tensor
    pool: torch.Tensor
    uncommitted: torch.Tensor

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Note the rows' own keys and values, then attend.

        Args:
            queries: Rotated and scaled, float32 `[rows, heads, head_dim]`.
            keys: Rotated, float32 `[rows, kv_heads, head_dim]`.
            values: `[rows, kv_heads, head_dim]`.

        Returns:
            Float32 `[rows, heads * head_dim]`.
        """
        self.plan.keep(keys, values, self.uncommitted)
        return self.plan.attend(queries.contiguous(), self.pool, self.uncommitted, self.window)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer; query and key rows pair neighbouring values (`rope`).

    Attributes:
        attention_norm: Norm before queries, keys and values.
        query_key_value: Their product.
        attention_out: The product behind attention.
        mlp_norm: Norm before the MLP.
        mlp: The MLP, or the experts in its place.
        heads_norm: Norm of every query and key head before it is turned,
            `[heads + kv_heads, head_dim]`, if it has one.
        norm_after_attention: Norm of what attention adds, if it has one.
        norm_after_mlp: Norm of what the MLP adds, if it has one.
    """

    attention_norm: torch.Tensor
    query_key_value: Product
    attention_out: Product
    mlp_norm: torch.Tensor
    mlp: MLP
    heads_norm: torch.Tensor | None = None
    norm_after_attention: torch.Tensor | None = None
    norm_after_mlp: torch.Tensor | None = None

    def __call__(
        self, residual: torch.Tensor, config: DecoderConfig, memory: Memory
    ) -> torch.Tensor:
        """Run the layer on the residual stream `[rows, hidden]`, giving the one leaving it."""
        entering = rms_norm(residual, self.attention_norm, config.rms_norm_eps)
        return self.run(residual, entering, config, memory)

    def run(
        self,
        residual: torch.Tensor,
        entering: torch.Tensor,
        config: DecoderConfig,
        memory: Memory,
    ) -> torch.Tensor:
        """Run the layer with what enters its attention given.

        Args:
            residual: `[rows, hidden]`.
            entering: Normed input of queries, keys and values, `[rows, in]`.
            config: The model's shape.
            memory: The layer's keys and values.

        Returns:
            The residual stream leaving the layer, `[rows, hidden]`.
        """
        rows, eps = residual.shape[0], config.rms_norm_eps
        heads, kv_heads = config.num_heads, config.num_kv_heads
        fused = self.query_key_value(entering).view(rows, heads + 2 * kv_heads, config.head_dim)
        turning = fused[:, : heads + kv_heads]
        if self.heads_norm is not None:
            turning = rms_norm(turning, self.heads_norm, eps)
        turned = rotate(turning, memory.turns)
        attended = memory.attend(turned[:, :heads], turned[:, heads:], fused[:, heads + kv_heads :])
        added = self.attention_out(attended.to(residual.dtype))
        if self.norm_after_attention is not None:
            added = rms_norm(added, self.norm_after_attention, eps)
        residual = residual + added
        added = self.mlp(rms_norm(residual, self.mlp_norm, eps))
        if self.norm_after_mlp is not None:
            added = rms_norm(added, self.norm_after_mlp, eps)
        return residual + added

    def products(self) -> list[Product]:
        """The layer's products with weights."""
        return [self.query_key_value, self.attention_out, *self.mlp.products()]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder, ready to multiply."""

    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: Product
    embedding_scale: float = 1.0

    @classmethod
    def prepare(
        cls,
        config: DecoderConfig,
        tensors: Mapping[str, torch.Tensor | QuantizedWeight],
        dtype: torch.dtype,
        device: torch.device,
    ) -> "DecoderWeights":
        """Fuse and place a checkpoint's tensors.

        Args:
            config: The model's shape.
            tensors: By Hugging Face name, query and key rows already in neighbouring pairs. The
                weights of products may be quantised: then all of them are, and so is an
                `lm_head.weight`, even beside a tied embedding.
            dtype: What to compute in.
            device: Where.

        Raises:
            CheckpointError: A tensor is missing or has another shape than the configuration says.
        """
        found = NamedWeights(config, tensors)

        def tensor(name: str) -> torch.Tensor:
            return found.tensor(name).to(device=device, dtype=dtype)

        def product(*names: str) -> Product:
            """Multiply with weights on top of one another."""
            weights = found.fused(*names)
            if isinstance(weights, torch.Tensor):
                return Linear(weights.to(device=device, dtype=dtype))
            return QuantizedLinear(joined(weights, device))

        def norm(name: str) -> torch.Tensor:
            kind = torch.float32 if config.wide_norms else dtype
            return found.tensor(name).to(device=device, dtype=kind)

        def gated(parts: Mapping[str, tuple[str, ...]]) -> GatedMLP:
            return GatedMLP(
                product(*parts["gate_up"]),
                product(*parts["down"]),
                ACTIVATIONS[config.activation],
            )

        def mlp(index: int) -> MLP:
            if config.experts is None:
                return gated(layer_products(config, index))
            experts = [
                gated(expert_products(index, expert)) for expert in range(config.experts.count)
            ]
            return ExpertMLP(product(router_name(index)), experts, config.experts)

        def layer(index: int) -> Layer:
            parts, norms = layer_products(config, index), layer_norms(config, index)
            fused = product(*parts["query_key_value"])
            biases = layer_biases(config, index)
            if biases:
                fused = Biased(fused, torch.cat([tensor(name) for name in biases]))
            weights = {role: norm(name) for role, name in norms.items()}
            return Layer(
                attention_norm=weights["attention_norm"],
                query_key_value=fused,
                attention_out=product(*parts["attention_out"]),
                mlp_norm=weights["mlp_norm"],
                mlp=mlp(index),
                heads_norm=_heads_norm(config, weights),
                norm_after_attention=weights.get("norm_after_attention"),
                norm_after_mlp=weights.get("norm_after_mlp"),
            )

        embedding = tensor("model.embed_tokens.weight")
        return cls(
            embedding=embedding,
            layers=[layer(index) for index in range(config.num_layers)],
            norm=norm("model.norm.weight"),
            head=Linear(embedding) if found.tied_head else product("lm_head.weight"),
            # In what is computed in, as transformers has it.
            embedding_scale=float(torch.tensor(config.embedding_scale, dtype=dtype)),
        )

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up `tokens` `[rows]`, giving the residual stream entering the first layer."""
        rows = self.embedding.index_select(0, tokens)
        return rows if self.embedding_scale == 1.0 else rows * self.embedding_scale

    def use_ladder(self, ladder: RowLadder) -> None:
        """Let every product run with these row counts alone."""
        for product in self.products():
            product.most_rows = ladder.largest
        for layer in self.layers:
            layer.mlp.use_ladder(ladder)

    @property
    def quantization(self) -> Quantization:
        """What the products of the layers are quantised to."""
        first = self.layers[0].attention_out
        return first.quantization if isinstance(first, QuantizedLinear) else "none"

    def row_ladder(self, dtype: torch.dtype, device: torch.device) -> RowLadder:
        """Row counts on which all products agree, measured.

        Args:
            dtype: What is computed in.
            device: Where.
        """
        products = [unbiased(product) for product in self.products()]
        quantised = [product for product in products if isinstance(product, QuantizedLinear)]
        shapes = {product.shape for product in products if isinstance(product, Linear)}
        if not quantised:
            return product_ladder(shapes, dtype, device)
        # The products that choose experts are not quantised.
        return quantized_ladder(quantised, product_witnesses(shapes, dtype, device))

    def products(self) -> list[Product]:
        """All products with weights."""
        return [product for layer in self.layers for product in layer.products()] + [self.head]


def _heads_norm(config: DecoderConfig, norms: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Give every query and key head its norm, `[heads + kv_heads, head_dim]`."""
    if not config.head_norms:
        return None
    return torch.cat([
        norms["query_norm"].expand(config.num_heads, -1),
        norms["key_norm"].expand(config.num_kv_heads, -1),
    ])  # fmt: skip
