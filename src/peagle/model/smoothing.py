"""Move the channels in which activations are large into the weights, before both are quantised.

A row of activations has one int8 scale, so a channel that is always twenty times larger than the
others leaves them five bits less. Such channels are the same in every text: each input channel of
a product is divided by a factor, where it is made (in a norm's weight, or in the outputs of
`up_proj`), and the weight's column multiplied by it (SmoothQuant, arXiv 2211.10438, with the
square root of activations over weights). The factors are powers of two: before quantisation the
model computes the very same numbers.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

from peagle.model.config import DecoderConfig
from peagle.model.decoder import rms_norm, silu
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
    residual = embedding[torch.tensor(tokens)].float()
    attend = _Attention(config, len(tokens))
    for index in range(config.num_layers):
        at = f"model.layers.{index}."
        query, key, value, out, gate, up, down = (
            at + f"{part}_proj.weight"
            for part in (
                "self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o",
                "mlp.gate", "mlp.up", "mlp.down",
            )
        )  # fmt: skip
        norms = at + "input_layernorm.weight", at + "post_attention_layernorm.weight"
        names = (query, key, value, out, gate, up, down, *norms)
        own = {name: weight(name).float() for name in names}

        entering = rms_norm(residual, own[norms[0]], config.rms_norm_eps)
        attended = attend(*(entering @ own[name].T for name in (query, key, value)))
        residual = residual + attended @ own[out].T
        factors = smooth(entering, {name: own[name] for name in (query, key, value)})
        own[norms[0]] = own[norms[0]] / factors
        own |= {name: own[name] * factors for name in (query, key, value)}

        entering = rms_norm(residual, own[norms[1]], config.rms_norm_eps)
        inner = silu(entering @ own[gate].T) * (entering @ own[up].T)
        residual = residual + inner @ own[down].T
        factors = smooth(entering, {name: own[name] for name in (gate, up)})
        own[norms[1]] = own[norms[1]] / factors
        own |= {name: own[name] * factors for name in (gate, up)}
        if not fixed(up):
            factors = smooth(inner, {down: own[down]})
            own |= {up: own[up] / factors[:, None], down: own[down] * factors}
        yield from own.items()
    norm = weight(NORM).float()
    head = (embedding if config.tied_embeddings else weight(HEAD)).float()
    factors = smooth(rms_norm(residual, norm, config.rms_norm_eps), {HEAD: head})
    yield NORM, norm / factors
    yield HEAD, head * factors


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

    def __init__(self, config: DecoderConfig, length: int) -> None:
        self._config = config
        rotary = RotaryEmbedding(
            config.head_dim, config.rope_theta, config.rope_scaling, length, torch.device("cpu")
        )
        self._turns = rotary.turns(torch.arange(length))
        window = config.sliding_window or length
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
            enable_gqa=True,
        )
        return attended.transpose(0, 1).reshape(len(queries), -1)
