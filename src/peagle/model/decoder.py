"""The decoder layers of the Llama family, as arithmetic on rows and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from peagle.model.attention import AttentionPlan
from peagle.model.config import DecoderConfig
from peagle.model.invariance import RowLadder
from peagle.model.linear import Linear, product_ladder
from peagle.model.named_weights import NamedWeights, layer_norms, layer_products
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
    return wide.to(rows.dtype) * weight


def silu(gate: torch.Tensor) -> torch.Tensor:
    """Swish, `gate / (1 + exp(-gate))`, in float32.

    `F.silu` computes the elements at the end of a thread's share one by one, with another
    exponential than the rest: which elements these are depends on the number of rows.
    """
    wide = gate.float()
    return (wide / wide.neg().exp_().add_(1)).to(gate.dtype)


class Product(Protocol):
    """A product with a weight: `Linear`, or `QuantizedLinear`."""

    most_rows: int | None
    shape: tuple[int, int]

    @property
    def weight_bytes(self) -> int:
        """Memory of the weight, which one product reads."""
        ...

    @property
    def layout(self) -> str:
        """How the weight is kept, as a person reads it."""
        ...

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply `rows` `[rows, in]`, giving `[rows, out]`."""
        ...


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
        turns: Rotations of query and key heads, queries scaled,
            `[rows, heads + kv_heads, head_dim / 2]`.
        pool: The layer's committed keys and values, `[2, pages, kv_heads, 64, head_dim]`.
        uncommitted: The same of the step's rows, `[2, step_rows, kv_heads, head_dim]`.
    """

    plan: AttentionPlan
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
        return self.plan.attend(queries.contiguous(), self.pool, self.uncommitted)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer; query and key rows pair neighbouring values (`rope`)."""

    attention_norm: torch.Tensor
    query_key_value: Product
    attention_out: Product
    mlp_norm: torch.Tensor
    gate_up: Product
    down: Product

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
        rows = residual.shape[0]
        heads, kv_heads = config.num_heads, config.num_kv_heads
        fused = self.query_key_value(entering).view(rows, heads + 2 * kv_heads, config.head_dim)
        turned = rotate(fused[:, : heads + kv_heads], memory.turns)
        attended = memory.attend(turned[:, :heads], turned[:, heads:], fused[:, heads + kv_heads :])
        residual = residual + self.attention_out(attended.to(residual.dtype))
        return residual + self._mlp(rms_norm(residual, self.mlp_norm, config.rms_norm_eps))

    def products(self) -> tuple[Product, Product, Product, Product]:
        """The layer's products with weights."""
        return self.query_key_value, self.attention_out, self.gate_up, self.down

    def _mlp(self, rows: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(rows).chunk(2, dim=-1)
        return self.down(silu(gate) * up)


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder, ready to multiply."""

    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: Product

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

        def layer(index: int) -> Layer:
            parts, norms = layer_products(index), layer_norms(index)
            return Layer(
                attention_norm=tensor(norms["attention_norm"]),
                query_key_value=product(*parts["query_key_value"]),
                attention_out=product(*parts["attention_out"]),
                mlp_norm=tensor(norms["mlp_norm"]),
                gate_up=product(*parts["gate_up"]),
                down=product(*parts["down"]),
            )

        embedding = tensor("model.embed_tokens.weight")
        return cls(
            embedding=embedding,
            layers=[layer(index) for index in range(config.num_layers)],
            norm=tensor("model.norm.weight"),
            head=Linear(embedding) if found.tied_head else product("lm_head.weight"),
        )

    @property
    def quantization(self) -> Quantization:
        """What the products of the layers are quantised to."""
        first = self.layers[0].query_key_value
        return first.quantization if isinstance(first, QuantizedLinear) else "none"

    def row_ladder(self, dtype: torch.dtype, device: torch.device) -> RowLadder:
        """Row counts on which all products agree, measured.

        Args:
            dtype: What is computed in.
            device: Where.
        """
        products = self.products()
        quantised = [product for product in products if isinstance(product, QuantizedLinear)]
        if quantised:
            return quantized_ladder(quantised)
        return product_ladder({product.shape for product in products}, dtype, device)

    def products(self) -> list[Product]:
        """All products with weights."""
        return [product for layer in self.layers for product in layer.products()] + [self.head]
