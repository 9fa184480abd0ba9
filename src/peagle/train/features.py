"""What the target says about a document: the drafter's inputs and its teacher, read in bulk.

Serving reads rows in passes of a verified size, so that bits agree. Training needs no equal bits:
here whole documents go through the same layers with as many rows as multiply fastest.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812

from peagle.model.decoder import rms_norm
from peagle.model.rope import RotaryEmbedding
from peagle.model.torch_target import TorchTarget

# Rows of the full vocabulary's logits that are made at once, and that stay in a cache as float32.
_HEAD_ROWS: Final = 256
_SUMMED_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Document:
    """A prompt with what the target answered.

    Attributes:
        tokens: Prompt and answer, int64 `[n]`.
        prompt_tokens: How many of them are the prompt's, `P`.
    """

    tokens: torch.Tensor
    prompt_tokens: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def slots(self) -> int:
        """Slots of a drafter over the document: `n - 1`."""
        return len(self.tokens) - 1

    @property
    def teachers(self) -> int:
        """Answer tokens whose successor the document has: `n - 1 - P`."""
        return max(len(self.tokens) - 1 - self.prompt_tokens, 0)


@dataclass(frozen=True, slots=True)
class Features:
    """What training needs to know of one document.

    Attributes:
        taps: Tapped residual streams of the slots, bfloat16 `[n - 1, taps * hidden]`.
        teacher: Normed last hidden state of positions `P` to `n - 2`, bfloat16
            `[n - 1 - P, hidden]`: the output head makes the target's logits of it.
        log_normalizer: Logarithm of the sum of exponentials of all the target's logits there,
            float32 `[n - 1 - P]`.
    """

    taps: torch.Tensor
    teacher: torch.Tensor
    log_normalizer: torch.Tensor


class _WholeDocuments:
    """What a layer's rows attend to: each document's own rows before them."""

    def __init__(
        self,
        target: TorchTarget,
        lengths: Sequence[int],
        window: int | None,
        rope: RotaryEmbedding,
    ) -> None:
        config = target.config
        self._lengths = list(lengths)
        self._window = window
        positions = torch.cat([torch.arange(length) for length in lengths]).to(target.device)
        scale = torch.ones(config.num_heads + config.num_kv_heads, device=target.device)
        scale[: config.num_heads] = config.query_scale
        self.turns = rope.turns(positions) * scale[None, :, None]
        self._dtype = target.dtype

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Attend within each document; shapes are those of `decoder.LayerMemory.attend`."""
        pieces = []
        # [heads, rows, head_dim] of one document at a time.
        split = [
            torch.split(part.to(self._dtype).transpose(0, 1), self._lengths, dim=1)
            for part in (queries, keys, values)
        ]
        for q, k, v in zip(*split, strict=True):
            length = q.shape[1]
            attended = F.scaled_dot_product_attention(
                q.unsqueeze(0),
                k.unsqueeze(0),
                v.unsqueeze(0),
                attn_mask=self._mask(length),
                is_causal=not self._cut(length),
                scale=1.0,
                enable_gqa=True,
            )
            pieces.append(attended[0].transpose(0, 1))
        return torch.cat(pieces).flatten(1)

    def _cut(self, length: int) -> bool:
        return self._window is not None and length > self._window

    def _mask(self, length: int) -> torch.Tensor | None:
        if self._window is None or not self._cut(length):
            return None
        seen = torch.ones(length, length, dtype=torch.bool, device=self.turns.device)
        return seen.tril().triu(1 - self._window)


class FeatureReader:
    """Reads documents with a target.

    Args:
        target: The model whose answers they are.
    """

    def __init__(self, target: TorchTarget) -> None:
        self._target = target
        config = target.config
        self._ropes = {
            kind: RotaryEmbedding.of(config, kind, target.device) for kind in config.attentions
        }

    @torch.inference_mode()
    def read(self, documents: Sequence[Document]) -> list[Features]:
        """Run the target over whole documents.

        Args:
            documents: Each must fit in the target's context; together they should have some
                thousand tokens.
        """
        target = self._target
        lengths = [document.slots for document in documents]
        memories = {
            kind: _WholeDocuments(target, lengths, kind.window, rope)
            for kind, rope in self._ropes.items()
        }
        tokens = torch.cat([document.tokens[:-1] for document in documents]).to(target.device)
        with _in_one_product(target):
            residual = target.weights.embed(tokens)
            entering: dict[int, torch.Tensor] = {}
            for index, layer in enumerate(target.weights.layers):
                if index in target.taps:
                    entering[index] = residual
                memory = memories[target.config.layer_attention(index)]
                residual = layer(residual, target.config, memory)
            # Of a target with few layers, a layer may be tapped twice.
            taps = torch.cat([entering[tap] for tap in target.taps], -1)
            wanted = torch.cat([
                torch.arange(length) >= document.prompt_tokens
                for document, length in zip(documents, lengths, strict=True)
            ]).to(target.device)  # fmt: skip
            teacher = rms_norm(residual[wanted], target.weights.norm, target.config.rms_norm_eps)
            normalizers = torch.cat([
                torch.logsumexp(few.float(), -1)
                for some in torch.split(teacher, _HEAD_ROWS)
                for few in torch.split(target.weights.head(some), _SUMMED_ROWS)
            ])  # fmt: skip
        counts = [document.teachers for document in documents]
        return [
            Features(*one)
            for one in zip(
                torch.split(taps.bfloat16(), lengths),
                torch.split(teacher.bfloat16(), counts),
                torch.split(normalizers, counts),
                strict=True,
            )
        ]


@contextmanager
def _in_one_product(target: TorchTarget) -> Iterator[None]:
    """Multiply any number of rows at once, for as long as bits need not agree."""
    products = target.weights.products()
    limits = [product.most_rows for product in products]
    for product in products:
        product.most_rows = None
    try:
        yield
    finally:
        for product, limit in zip(products, limits, strict=True):
            product.most_rows = limit
