"""Move the channels in which activations are large into the weights, before both are quantised.

A row of activations has one int8 scale, so a channel that is always twenty times larger than the
others leaves them five bits less. Such channels are the same in every text: each input channel of
a product is divided by a factor, where it is made (in a norm's weight, or in the outputs of
`up_proj`), and the weight's column multiplied by it (SmoothQuant, arXiv 2211.10438, with the
square root of activations over weights). The factors are powers of two: before quantisation the
model computes the very same numbers.
"""

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

from peagle.model.config import DecoderConfig, LayerAttention
from peagle.model.decoder import rms_norm
from peagle.model.families import Experts
from peagle.model.mlp import ACTIVATIONS, chosen_experts, silu
from peagle.model.named_weights import (
    expert_products,
    layer_biases,
    layer_norms,
    layer_products,
    router_name,
)
from peagle.model.rope import RotaryEmbedding, rotate
from peagle.model.tokenizer import Tokenizer

EMBEDDING: Final = "model.embed_tokens.weight"
NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"

_TEXT: Final = Path(__file__).with_name("calibration.txt")
# More tokens cost time at load and changed the divergence by less than its own noise.
_MOST_TOKENS: Final = 256
# A channel that the text leaves silent counts as this share of an average one.
_LEAST_SHARE: Final = 1e-3


def calibration_tokens(tokenizer: Tokenizer) -> list[int]:
    """Give the text on which activations are looked at, in a model's tokens."""
    return tokenizer.encode(_TEXT.read_text("utf-8"))[:_MOST_TOKENS]


def smoothed_weights(
    config: DecoderConfig,
    weight: Callable[[str], torch.Tensor],
    tokens: Sequence[int],
    *,
    fixed: Callable[[str], bool],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Give every weight of a decoder, smoothed, layer by layer.

    Args:
        config: The model's shape.
        weight: Reads a tensor by its Hugging Face name, query and key rows in neighbouring pairs.
        tokens: A text that the model reads to see which channels are large.
        fixed: Whether a product's weight must stay as it is; then nothing is moved into it.

    Yields:
        Names and float32 tensors; a tied head comes as one of its own.
    """
    smooth = functools.partial(_factors, fixed=fixed)
    embedding = weight(EMBEDDING)
    yield EMBEDDING, embedding
    residual = embedding[torch.tensor(tokens)].float() * config.embedding_scale
    attentions = {kind: _Attention(config, kind, len(tokens)) for kind in config.attentions}
    for index in range(config.num_layers):
        layer = _Layer(config, index, weight, attentions[config.layer_attention(index)])
        entering, added = layer.attend(residual)
        residual = residual + added
        layer.smooth("attention_norm", layer.products["query_key_value"], smooth, entering)
        if config.experts is None:
            entering, inner, added = layer.feed(residual)
            residual = residual + added
            layer.smooth("mlp_norm", layer.products["gate_up"], smooth, entering)
            _, up = layer.products["gate_up"]
            (down,) = layer.products["down"]
            # Behind a nonlinear gate, only the other half of the product can be scaled.
            if not fixed(up):
                factors = smooth(inner, {down: layer.own[down]})
                layer.own[up] = layer.own[up] / factors[:, None]
                layer.own[down] = layer.own[down] * factors
            yield from layer.own.items()
            continue
        yield from layer.own.items()
        # One norm stands before all experts and what chooses them: they stay as they are.
        added = yield from _through_experts(layer, residual, config.experts)
        residual = residual + added
    norm = weight(NORM).float()
    head = (embedding if config.tied_embeddings else weight(HEAD)).float()
    factors = smooth(rms_norm(residual, norm, config.rms_norm_eps), {HEAD: head})
    yield NORM, norm / factors
    yield HEAD, head * factors


class _Layer:
    """One layer's weights in float32, and what it computes of a text.

    Args:
        config: The model's shape.
        index: Which layer.
        weight: Reads a tensor by name.
        attention: Attends over the text.

    Attributes:
        own: Its tensors by name, without those of experts.
        products: Names of its products' weights.
        index: As given.
        read: Reads a tensor by name.
    """

    def __init__(
        self,
        config: DecoderConfig,
        index: int,
        weight: Callable[[str], torch.Tensor],
        attention: "_Attention",
    ) -> None:
        self._config = config
        self._attention = attention
        self._norms = layer_norms(config, index)
        self._biases = layer_biases(config, index)
        self.index = index
        self.read = weight
        self.products = layer_products(config, index)
        names = [name for parts in self.products.values() for name in parts]
        self.own = {name: weight(name).float() for name in (*names, *self._biases)}
        self.own |= {name: weight(name).float() for name in self._norms.values()}

    def smooth(
        self,
        norm: str,
        products: Sequence[str],
        factors: Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor],
        entering: torch.Tensor,
    ) -> None:
        """Move factors from a norm into the products behind it."""
        own, name = self.own, self._norms[norm]
        found = factors(entering, {product: own[product] for product in products})
        own[name] = own[name] / found
        for product in products:
            own[product] = own[product] * found

    def attend(self, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give what enters queries, keys and values, and what attention adds."""
        own, config = self.own, self._config
        entering = self.normed("attention_norm", residual)
        parts = [entering @ own[name].T for name in self.products["query_key_value"]]
        for place, name in enumerate(self._biases):
            parts[place] = parts[place] + own[name]
        for place, role in enumerate(("query_norm", "key_norm")):
            if role in self._norms:
                heads = torch.unflatten(parts[place], 1, (-1, config.head_dim))
                parts[place] = self.normed(role, heads).flatten(1)
        (out,) = self.products["attention_out"]
        added = self._attention(*parts) @ own[out].T
        return entering, self.normed("norm_after_attention", added)

    def feed(self, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Give what enters the MLP, what enters the product behind it, and what it adds."""
        gate, up = (self.own[name] for name in self.products["gate_up"])
        (down,) = self.products["down"]
        entering = self.normed("mlp_norm", residual)
        inner = ACTIVATIONS[self._config.activation](entering @ gate.T) * (entering @ up.T)
        return entering, inner, self.normed("norm_after_mlp", inner @ self.own[down].T)

    def normed(self, role: str, rows: torch.Tensor) -> torch.Tensor:
        """Norm rows; without such a norm, give them as they are."""
        if role not in self._norms:
            return rows
        return rms_norm(rows, self.own[self._norms[role]], self._config.rms_norm_eps)


def _through_experts(
    layer: _Layer, residual: torch.Tensor, shape: Experts
) -> Generator[tuple[str, torch.Tensor], None, torch.Tensor]:
    """Give the tensors of a layer's experts, and last what they add to the residual stream."""
    entering = layer.normed("mlp_norm", residual)
    router = layer.read(router_name(layer.index)).float()
    yield router_name(layer.index), router
    shares, chosen = chosen_experts(entering @ router.T, shape)
    added = torch.zeros_like(residual)
    for expert in range(shape.count):
        parts = expert_products(layer.index, expert)
        own = {name: layer.read(name).float() for part in parts.values() for name in part}
        yield from own.items()
        gate, up, down = own.values()
        rows, ranks = (chosen == expert).nonzero(as_tuple=True)
        some = entering[rows]
        through = (silu(some @ gate.T) * (some @ up.T)) @ down.T
        added.index_add_(0, rows, through * shares[rows, ranks].unsqueeze(1))
    return added


def _factors(
    rows: torch.Tensor, weights: dict[str, torch.Tensor], *, fixed: Callable[[str], bool]
) -> torch.Tensor:
    """Choose a power of two for each input channel, `[in]`, of which the middle one is near 1.

    Args:
        rows: What enters the products, `[rows, in]`.
        weights: Their weights by name, `[out, in]`.
        fixed: As in `smoothed_weights`.
    """
    if any(fixed(name) for name in weights):
        return torch.ones(rows.shape[1])
    # Each row is quantised by itself, so a few rows of huge numbers must not count for more.
    alike = rows * torch.rsqrt(rows.square().mean(1, keepdim=True) + 1e-12)
    activations = _bounded(alike.square().mean(0).sqrt())
    columns = _bounded(torch.cat(list(weights.values())).square().mean(0).sqrt())
    wanted = 0.5 * (activations.log2() - columns.log2())
    return torch.exp2((wanted - wanted.mean()).round())


def _bounded(sizes: torch.Tensor) -> torch.Tensor:
    return sizes.clamp_min(max(float(sizes.mean()) * _LEAST_SHARE, 1e-20))


class _Attention:
    """Plain causal attention of one text, in float32."""

    def __init__(self, config: DecoderConfig, kind: LayerAttention, length: int) -> None:
        self._config = config
        rotary = RotaryEmbedding.of(config, kind, torch.device("cpu"), length)
        self._turns = rotary.turns(torch.arange(length))
        window = kind.window or length
        self._mask = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)

    def __call__(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Attend, from `[rows, heads * head_dim]` each to the same of the queries."""
        shape = len(queries), -1, self._config.head_dim
        query, key = (rotate(part.view(shape), self._turns) for part in (queries, keys))
        attended = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1),
            key.transpose(0, 1),
            values.view(shape).transpose(0, 1),
            attn_mask=self._mask,
            scale=self._config.query_scale,
            enable_gqa=True,
        )
        return attended.transpose(0, 1).reshape(len(queries), -1)
