"""A target on the CPU whose whole pass is one call of the native step (`peagle.native`).

Integer sums are exact, and whatever is summed in floating point is summed in one order that depends
on nothing but the row itself: rows are independent by construction, not by measured row counts.
"""

import copy
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from peagle import native
from peagle.model.config import DecoderConfig
from peagle.model.kv_cache import KVCache
from peagle.model.named_weights import NamedWeights, layer_norms, layer_products
from peagle.model.quantized_linear import QuantizedWeight, joined
from peagle.model.quantized_weight import Int8Weight
from peagle.model.rope import RotaryEmbedding
from peagle.model.rows import SequenceRows, placed, rows_of_each
from peagle.model.target import StepOutput
from peagle.native.arrays import bfloat16, float32, int32
from peagle.quantization import Quantization

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from peagle.native._native import Decoder, PackedWeight, Step

# Rows that one read of a weight serves.
_ROWS_PER_BLOCK: Final = 8
# A prompt is read in pieces of so many rows: large enough that arithmetic, not reading weights,
# takes the time, and small enough that others wait for a moment only.
_ROWS_PER_PASS: Final = 256
_CPU: Final = torch.device("cpu")
# The step takes widths in whole vectors of so many numbers.
_LANES: Final = 16


@dataclass(frozen=True, slots=True)
class NativeRows:
    """The rows of a step in the native library, until they are committed."""

    decoder: "Decoder"
    step: "Step"
    cache: KVCache
    rows: Sequence[SequenceRows]

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Keep the rows of one path for each sequence (`UncommittedRows.commit`)."""
        rows, pages, places = placed(self.rows, kept)
        pool = self.cache.pool.numpy()
        self.decoder.commit(self.step, pool, int32(rows), int32(pages), int32(places))


class NativeTarget:
    """A decoder of the Llama family in the native step.

    Args:
        config: The model's shape, in which `obstacle` must find nothing.
        tensors: Its weights by name, as `NamedWeights` wants them; what is not quantised is
            computed in bfloat16 with float32 between.
        taps: Layers whose incoming residual stream is returned as features; EAGLE-3's if None.
        threads: Threads of a pass; torch's number if None.
        instructions: One of `native.instruction_sets()`; the best of this processor if empty.

    Raises:
        CheckpointError: A tensor is missing or has another shape than the configuration says.
    """

    def __init__(
        self,
        config: DecoderConfig,
        tensors: Mapping[str, torch.Tensor | QuantizedWeight],
        taps: tuple[int, ...] | None = None,
        *,
        threads: int | None = None,
        instructions: str = "",
    ) -> None:
        found = NamedWeights(config, tensors)
        self.config = config
        self.device = _CPU
        self.dtype = torch.bfloat16
        self.taps = config.default_taps if taps is None else taps
        self.quantization: Quantization = "none"
        self.embedding = found.tensor("model.embed_tokens.weight").to(torch.bfloat16).contiguous()
        self.bytes_read_per_pass = 0

        def packed(*names: str) -> "PackedWeight":
            weight = packed_weight(found.fused(*names))
            self.bytes_read_per_pass += weight.bytes
            return weight

        layers = []
        for index in range(config.num_layers):
            norms = layer_norms(config, index)
            products = {
                name: packed(*parts) for name, parts in layer_products(config, index).items()
            }
            layers.append((
                float32(found.tensor(norms["attention_norm"])),
                products["query_key_value"],
                products["attention_out"],
                float32(found.tensor(norms["mlp_norm"])),
                products["gate_up"],
                products["down"],
            ))  # fmt: skip
        first = found.weight(layer_products(config, 0)["down"][0])
        if not isinstance(first, torch.Tensor):
            self.quantization = "int8" if isinstance(first, Int8Weight) else "int4"
        head = packed("model.embed_tokens.weight" if found.tied_head else "lm_head.weight")
        self.decoder = native.library.Decoder(
            intermediate=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            window=config.sliding_window or 0,
            embedding=bfloat16(self.embedding),
            layers=layers,
            norm=float32(found.tensor("model.norm.weight")),
            head=head,
            turns=turns_by_position(config),
            threads=native.thread_pool(threads or torch.get_num_threads()),
            instructions=instructions,
        )

    @property
    def precision(self) -> str:
        """What it is computed in, in a word."""
        return "bfloat16" if self.quantization == "none" else self.quantization

    @property
    def backend(self) -> str:
        """What computes it, in a word or two."""
        return f"native ({self.decoder.instructions})"

    @property
    def row_independence(self) -> str:
        """How its rows come to be independent of one another, as a person reads it."""
        return (
            f"A pass takes up to {_ROWS_PER_PASS} rows. Every row is summed in whole numbers or in "
            "one fixed order, so it does not depend on the others."
        )

    @property
    def rows_per_block(self) -> int:
        """Most rows that one read of a weight serves."""
        return _ROWS_PER_BLOCK

    @property
    def rows_per_pass(self) -> int:
        """Most rows one pass over the weights takes."""
        return _ROWS_PER_PASS

    @property
    def kv_dtype(self) -> torch.dtype:
        """What keys and values are stored in."""
        return torch.float32

    def with_taps(self, taps: tuple[int, ...] | None) -> "NativeTarget":
        """Give the same model with other taps, EAGLE-3's if None; weights are shared."""
        other = copy.copy(self)
        other.taps = self.config.default_taps if taps is None else taps
        return other

    def new_cache(self, budget: int) -> KVCache:
        """Make a KV cache of at most `budget` bytes; keys lie transposed within its pages."""
        return KVCache(self.config, budget=budget, dtype=self.kv_dtype, device=_CPU)

    def forward(
        self, cache: KVCache, rows: Sequence[SequenceRows], *, features: bool = False
    ) -> StepOutput:
        """Compute the rows of a step (`Target.forward`)."""
        began = time.perf_counter()
        request = flat_rows(cache, rows)
        asked = [part.asked for part in rows]
        logits = torch.empty(sum(asked), self.config.vocab_size)
        taps = self.taps if features else ()
        tapped = torch.empty(request.count if features else 0, len(taps) * self.config.hidden_size)
        planned = time.perf_counter()
        step = self.decoder.run(
            cache.pool.numpy(),
            request.tokens,
            request.parents,
            np.vstack([request.parts, int32(asked)]),
            request.pages,
            int32(taps),
            logits.numpy(),
            tapped.numpy(),
        )
        return StepOutput(
            logits=rows_of_each(logits, asked),
            features=rows_of_each(tapped, [len(part.tokens) for part in rows]) if features else [],
            step=NativeRows(self.decoder, step, cache, rows),
            planning_s=planned - began,
        )


@dataclass(frozen=True, slots=True)
class FlatRows:
    """The rows of a step as the native library takes them, all int32.

    Attributes:
        count: Rows.
        tokens: `[rows]`.
        parents: Row within its sequence that each follows, `-1` for the committed end, `[rows]`.
        parts: Of each sequence the number of rows, whether they are a chain, its committed
            positions and its number of pages, `[4, sequences]`.
        pages: The pages of all sequences, one sequence behind the other.
    """

    count: int
    tokens: "NDArray[np.int32]"
    parents: "NDArray[np.int32]"
    parts: "NDArray[np.int32]"
    pages: "NDArray[np.int32]"


def flat_rows(cache: KVCache, rows: Sequence[SequenceRows]) -> FlatRows:
    """Lay out the rows of a step, whose sequences get the pages that they reach into."""
    tokens: list[int] = []
    parents: list[int] = []
    pages: list[int] = []
    for part in rows:
        count = len(part.tokens)
        cache.take_pages(part.cache, part.cache.length + part.reach)
        tokens.extend(part.tokens)
        # Parents of a chain are not looked at.
        parents.extend(itertools.repeat(-1, count) if part.parents is None else part.parents)
        pages.extend(part.cache.pages)
    parts: list[list[int]] = [
        [len(part.tokens) for part in rows],
        [part.parents is None for part in rows],
        [part.cache.length for part in rows],
        [len(part.cache.pages) for part in rows],
    ]
    return FlatRows(len(tokens), int32(tokens), int32(parents), int32(parts), int32(pages))


def obstacle(config: DecoderConfig, dtype: torch.dtype, quantization: Quantization) -> str | None:
    """Say why the native step cannot run a model; None if it can.

    Args:
        config: The model's shape.
        dtype: What is computed in, where weights are not quantised.
        quantization: What weights are quantised to.
    """
    absence = native.absence()
    if absence is not None:
        return absence
    if quantization == "none" and dtype != torch.bfloat16:
        return f"it computes in bfloat16, int8 and int4, not in {str(dtype).removeprefix('torch.')}"
    piece = missing_piece(config)
    if piece is not None:
        return f"it has no {piece}"
    for name in ("hidden_size", "intermediate_size", "head_dim"):
        width = getattr(config, name)
        if width % _LANES:
            return f"{name} is {width}, no multiple of {_LANES}"
    return None


def missing_piece(config: DecoderConfig) -> str | None:
    """Name what a decoder has and the native step has not; None if it has everything."""
    pieces = {
        "mixture of experts": config.experts is not None,
        "biases of queries, keys and values": config.qkv_bias,
        "norms of query and key heads": config.head_norms,
        "norms behind attention and MLP": config.norms_after,
        "layers with windows or turns of their own": len(config.attentions) > 1,
        "activation but silu": config.activation != "silu",
        "scaled embeddings": config.embedding_scale != 1,
    }
    return next((piece for piece, there in pieces.items() if there), None)


def packed_weight(weights: torch.Tensor | list[QuantizedWeight]) -> "PackedWeight":
    """Pack a weight `[out, in]`, or parts of one, in the order in which products read it."""
    library = native.library
    if isinstance(weights, torch.Tensor):
        return library.pack_bfloat16(bfloat16(weights))
    weight = joined(weights, _CPU)
    if isinstance(weight, Int8Weight):
        return library.pack_int8(weight.values.contiguous().numpy(), float32(weight.scales))
    return library.pack_int4(
        weight.nibbles.contiguous().numpy(), float32(weight.scales), float32(weight.offsets)
    )


def turns_by_position(config: DecoderConfig) -> "NDArray[np.float32]":
    """Cosines, then sines with the sign of each value's partner, `[context, 2, head_dim]`."""
    rope = RotaryEmbedding.of(config, config.layer_attention(0), _CPU)
    turns = rope.turns(torch.arange(config.context_length))[:, 0]
    cosines = turns.real.repeat_interleave(2, -1)
    sines = torch.stack([-turns.imag, turns.imag], -1).flatten(1)
    return float32(torch.stack([cosines, sines], 1))
