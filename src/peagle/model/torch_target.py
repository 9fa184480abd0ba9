"""A target in torch: the reference on a CPU, and what runs on a GPU."""

import time
from collections.abc import Sequence
from typing import Final

import torch

from peagle.model.config import DecoderConfig
from peagle.model.cuda_graphs import Capture, CudaCapture, PassGraphs
from peagle.model.decoder import DecoderWeights, rms_norm
from peagle.model.invariance import require_plain_sums
from peagle.model.kv_cache import KVCache
from peagle.model.passes import Pass, PassPlanner, PlannedStep
from peagle.model.rows import SequenceRows
from peagle.model.target import StepOutput
from peagle.quantization import Quantization

# Products take the rows of a pass in blocks of a verified size, but everything around them, some
# hundred small operations, runs once a pass.
BLOCKS_PER_PASS: Final = 4


class TorchTarget:
    """A decoder with everything that makes its rows independent of one another.

    Args:
        config: The model's shape.
        weights: Its weights.
        dtype: What products are computed in.
        device: Where.
        taps: Layers whose incoming residual stream is returned as features; EAGLE-3's if None.
        capture: What makes graphs of its passes; None captures CUDA graphs on a GPU and makes none
            on a CPU.

    Attributes:
        planner: Plans its passes.
        graphs: Runs its passes as graphs; None runs them one operation at a time, which gives the
            same and is what a CPU does.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        dtype: torch.dtype,
        device: torch.device,
        taps: tuple[int, ...] | None = None,
        *,
        capture: Capture | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.device = device
        self.taps = config.default_taps if taps is None else taps
        require_plain_sums(device)
        ladder = weights.row_ladder(dtype, device)
        weights.use_ladder(ladder)
        if capture is None and device.type == "cuda":
            capture = CudaCapture(device)
        self._capture = capture
        # In a graph everything has a shape that was measured, not the products alone.
        blocks = BLOCKS_PER_PASS if capture is None else 1
        self.planner = PassPlanner(
            config,
            ladder,
            device,
            rows_per_pass=blocks * ladder.largest,
            few_shapes=capture is not None,
        )
        # Which experts rows go to is asked on the way, and a graph could not tell.
        graphs = capture is not None and config.experts is None
        self.graphs = PassGraphs(self.run_layers, capture) if capture and graphs else None

    @property
    def embedding(self) -> torch.Tensor:
        """The table that tokens are looked up in, `[vocab, hidden]`."""
        return self.weights.embedding

    @property
    def bytes_read_per_pass(self) -> int:
        """Memory of the weights that a pass reads; an embedding is looked up, not read whole."""
        return sum(product.weight_bytes for product in self.weights.products())

    def with_taps(self, taps: tuple[int, ...] | None) -> "TorchTarget":
        """Give the same model with other taps, EAGLE-3's if None; weights are shared."""
        return TorchTarget(
            self.config,
            self.weights,
            self.dtype,
            self.device,
            taps,
            capture=self._capture,
        )

    @property
    def quantization(self) -> Quantization:
        """What the weights of its products are quantised to."""
        return self.weights.quantization

    @property
    def precision(self) -> str:
        """What it is computed in, in a word: the quantisation, or else the dtype."""
        dtype = str(self.dtype).removeprefix("torch.")
        return dtype if self.quantization == "none" else f"{self.quantization} ({dtype} between)"

    @property
    def backend(self) -> str:
        """What computes it, in a word or two."""
        return "torch"

    @property
    def row_independence(self) -> str:
        """How its rows come to be independent of one another, as a person reads it."""
        ladder, queries = self.planner.ladder, self.planner.query_ladder
        layouts = dict.fromkeys(product.layout for product in self.weights.products())
        pages = self.planner.job_counts
        at_a_time = f", {_listed(pages.counts)} pages at a time" if pages else ""
        return (
            f"Products agree for {_listed(ladder.counts)} rows: they take a pass of up to "
            f"{self.rows_per_pass} rows in blocks of {ladder.largest}, the last one padded to the "
            f"next of these. Products with a page of keys agree for {_listed(queries.counts)} "
            f"queries{at_a_time}. Weights are kept {' and '.join(layouts)}."
        )

    @property
    def rows_per_block(self) -> int:
        """Most rows that one product takes: more cost about as much again."""
        return self.planner.ladder.largest

    @property
    def rows_per_pass(self) -> int:
        """Most rows one pass over the weights takes."""
        return self.planner.rows_per_pass

    @property
    def kv_dtype(self) -> torch.dtype:
        """What keys and values are stored in.

        Attention is computed in float32. On a CPU keys and values are stored so too, because
        widening them at every step would cost more than it saves.
        """
        return torch.float32 if self.device.type == "cpu" else self.dtype

    def new_cache(self, budget: int) -> KVCache:
        """Make a KV cache of at most `budget` bytes."""
        return KVCache(self.config, budget=budget, dtype=self.kv_dtype, device=self.device)

    @torch.inference_mode()
    def forward(
        self, cache: KVCache, rows: Sequence[SequenceRows], *, features: bool = False
    ) -> StepOutput:
        """Compute the rows of a step, in as few passes as the verified row count allows.

        Args:
            cache: Where the sequences' pages are.
            rows: Rows of each sequence; each must fit in its pages and in the context.
            features: Whether to return the tapped residual streams.

        Returns:
            Logits and features, row for row the same bits whatever else is in the step.
        """
        began = time.perf_counter()
        step = self.planner.plan(cache, rows)
        planned = time.perf_counter()
        if self.graphs is not None:
            outputs = self.graphs.run(step)
        else:
            outputs = [self.run_layers(one) for one in step.passes]
        counts = [one.count for one in step.passes]
        residual, tapped = (
            _joined([rows[:count] for rows, count in zip(kind, counts, strict=True)])
            for kind in zip(*outputs, strict=True)
        )
        split = [len(part.tokens) for part in rows]
        return StepOutput(
            logits=self._logits(residual, step),
            features=list(torch.split(tapped, split)) if features else [],
            step=step,
            planning_s=planned - began,
        )

    def run_layers(self, one: Pass) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a pass, on a device without waiting for it or asking what is in it.

        Returns:
            Its residual stream `[padded, hidden]` and features `[padded, taps * hidden]`.
        """
        residual = self.weights.embed(one.tokens)
        entering: dict[int, torch.Tensor] = {}
        with one.plan.scratch():
            for index, layer in enumerate(self.weights.layers):
                if index in self.taps:
                    entering[index] = residual
                residual = layer(residual, self.config, one.memory(index))
        return residual, torch.cat([entering[tap] for tap in self.taps], -1)

    def _logits(self, residual: torch.Tensor, step: PlannedStep) -> list[torch.Tensor]:
        """Apply the output head to the rows asked for, `[rows asked for, vocab]` a sequence."""
        asked: list[int] = []
        counts = []
        for rows, offset in zip(step.rows, step.offsets, strict=True):
            end = offset + len(rows.tokens)
            asked.extend(range(end - rows.asked, end))
            counts.append(rows.asked)
        if not asked:
            return [torch.zeros(0, self.config.vocab_size, device=self.device)] * len(counts)
        ladder, pieces = self.planner.ladder, []
        for first in range(0, len(asked), self.rows_per_pass):
            some = asked[first : first + self.rows_per_pass]
            padding = [some[0]] * (ladder.padded(len(some)) - len(some))
            hidden = residual[torch.tensor(some + padding, device=self.device)]
            hidden = rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)
            pieces.append(self.weights.head(hidden)[: len(some)])
        return list(torch.split(_joined(pieces).float(), counts))


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts[:-1])) + (f" and {counts[-1]}" if counts[1:] else "")


def _joined(pieces: list[torch.Tensor]) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
