"""The decoder layers of the Llama family, as arithmetic on rows and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from peagle.errors import CheckpointError
from peagle.model.attention import AttentionPlan
from peagle.model.config import DecoderConfig
from peagle.model.linear import Linear
from peagle.model.rope import rotate


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
        first = self.plan.step_offset
        own = self.uncommitted[:, first : first + queries.shape[0]]
        own[0].copy_(keys)
        own[1].copy_(values)
        return self.plan.attend(queries.contiguous(), self.pool, self.uncommitted)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer; query and key rows pair neighbouring values (`rope`)."""

    attention_norm: torch.Tensor
    query_key_value: Linear
    attention_out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear

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

    def products(self) -> tuple[Linear, Linear, Linear, Linear]:
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
    head: Linear

    @classmethod
    def prepare(
        cls,
        config: DecoderConfig,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> "DecoderWeights":
        """Fuse and place a checkpoint's tensors.

        Args:
            config: The model's shape.
            tensors: By Hugging Face name, query and key rows already in neighbouring pairs.
            dtype: What to compute in.
            device: Where.

        Raises:
            CheckpointError: A tensor is missing or has another shape than the configuration says.
        """
        hidden, width = config.hidden_size, config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim

        def tensor(name: str, *shape: int) -> torch.Tensor:
            if name not in tensors:
                raise CheckpointError(
                    f"The checkpoint has no tensor {name!r}.",
                    remedy="A shard may be missing; fetch the model again.",
                    field=name,
                )
            found = tensors[name]
            if tuple(found.shape) != shape:
                raise CheckpointError(
                    f"The tensor {name!r} has the shape {list(found.shape)}, "
                    f"but the configuration says {list(shape)}.",
                    remedy="Weights and config.json belong to different models; fetch both again.",
                    field=name,
                )
            return found.to(device=device, dtype=dtype)

        def layer(index: int) -> Layer:
            at = f"model.layers.{index}."
            attention, mlp = at + "self_attn.", at + "mlp."
            return Layer(
                attention_norm=tensor(at + "input_layernorm.weight", hidden),
                query_key_value=Linear(
                    torch.cat([
                        tensor(attention + "q_proj.weight", width, hidden),
                        tensor(attention + "k_proj.weight", kv_width, hidden),
                        tensor(attention + "v_proj.weight", kv_width, hidden),
                    ])
                ),
                attention_out=Linear(tensor(attention + "o_proj.weight", hidden, width)),
                mlp_norm=tensor(at + "post_attention_layernorm.weight", hidden),
                gate_up=Linear(
                    torch.cat([
                        tensor(mlp + "gate_proj.weight", config.intermediate_size, hidden),
                        tensor(mlp + "up_proj.weight", config.intermediate_size, hidden),
                    ])
                ),
                down=Linear(tensor(mlp + "down_proj.weight", hidden, config.intermediate_size)),
            )  # fmt: skip

        embedding = tensor("model.embed_tokens.weight", config.vocab_size, hidden)
        head = (
            embedding
            if config.tied_embeddings
            else tensor("lm_head.weight", config.vocab_size, hidden)
        )
        return cls(
            embedding=embedding,
            layers=[layer(index) for index in range(config.num_layers)],
            norm=tensor("model.norm.weight", hidden),
            head=Linear(head),
        )

    def products(self) -> list[Linear]:
        """All products with weights."""
        return [product for layer in self.layers for product in layer.products()] + [self.head]
