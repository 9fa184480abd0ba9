"""Cut the rows of a step into passes of a verified size, and commit the rows that are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from peagle.model.attention import AttentionPlan, PassPart, doubled
from peagle.model.config import DecoderConfig
from peagle.model.decoder import LayerMemory
from peagle.model.invariance import RowLadder
from peagle.model.kv_cache import KVCache
from peagle.model.page_products import counted_page_products, page_ladder
from peagle.model.rope import RotaryEmbedding
from peagle.model.rows import SequenceRows, placed


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows that go through the layers together.

    Attributes:
        first: Where the pass begins among the rows of the step.
        count: Its rows, without padding.
        tokens: Their tokens and the padding's, `[padded]`.
        plan: Which keys each row reads.
        turns: For each kind of attention rotations of query and key heads, queries scaled,
            `[padded, heads + kv_heads, head_dim / 2]`.
        step: The step it belongs to.
    """

    first: int
    count: int
    tokens: torch.Tensor
    plan: AttentionPlan
    turns: Sequence[torch.Tensor]
    step: "PlannedStep"

    def memory(self, layer: int) -> LayerMemory:
        """What the rows attend to in one layer."""
        window, kind = self.step.kinds[layer]
        return LayerMemory(
            self.plan,
            window,
            self.turns[kind],
            self.step.cache.pool[layer],
            self.step.uncommitted[layer],
        )


@dataclass(slots=True)
class PlannedStep:
    """The rows of a step, cut into passes, with their keys and values until they are committed.

    Attributes:
        cache: Where committed keys and values are.
        rows: Rows of each sequence.
        offsets: Where each sequence's rows begin among the rows of the step.
        total: Rows of the step.
        uncommitted: `[layers, 2, total + padding, kv_heads, head_dim]`, as the KV cache's.
        kinds: For each layer which of the plans' windows and of the passes' rotations it has.
        passes: In order; a pass reads what the passes before it wrote.
    """

    cache: KVCache
    rows: Sequence[SequenceRows]
    offsets: list[int]
    total: int
    uncommitted: torch.Tensor
    kinds: Sequence[tuple[int, int]]
    passes: list[Pass]

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Store the keys and values of rows at the next positions of their sequences.

        Rows that are not named are forgotten. Called once a step.

        Args:
            kept: For each sequence, rows along one path from its committed end.
        """
        rows, pages, places = placed(self.rows, kept)
        if rows:
            # The two index lists stand apart, so the pool's places come as
            # [rows, layers, 2, kv_heads, head_dim].
            values = self.uncommitted[:, :, rows].permute(2, 0, 1, 3, 4)
            self.cache.pool[:, :, pages, :, places] = values


class PassPlanner:
    """Plans the passes of one decoder.

    Args:
        config: The decoder's shape.
        ladder: Agreeing row counts of its products with weights.
        device: Where it runs.
        rows_per_pass: Most rows of a pass, where products take them in blocks: some times the
            largest of the ladder; that itself if None.
        few_shapes: Whether passes have to come in few shapes, each measured: on a GPU.

    Attributes:
        ladder: As given.
        rows_per_pass: As given.
        query_ladder: Agreeing query counts of its products with a page, measured here.
        job_counts: Agreeing counts of pages at a time, if shapes have to be few; else None.

    Raises:
        UnsupportedError: Shapes have to be few, and in all of those tried a row's attention
            depends on the other rows.
    """

    def __init__(
        self,
        config: DecoderConfig,
        ladder: RowLadder,
        device: torch.device,
        rows_per_pass: int | None = None,
        *,
        few_shapes: bool,
    ) -> None:
        self.config = config
        self.ladder = ladder
        self.rows_per_pass = rows_per_pass or ladder.largest
        self.job_counts: RowLadder | None = None
        if few_shapes:
            self.query_ladder, self.job_counts = counted_page_products(config, device)
        else:
            self.query_ladder = page_ladder(config, device)
        self._device = device
        attentions = config.attentions
        self._windows = list(dict.fromkeys(kind.window for kind in attentions))
        turnings = dict.fromkeys(replace(kind, window=None) for kind in attentions)
        self._ropes = [RotaryEmbedding.of(config, turning, device) for turning in turnings]
        places = {turning: place for place, turning in enumerate(turnings)}
        layers = map(config.layer_attention, range(config.num_layers))
        self._kinds = [
            (self._windows.index(kind.window), places[replace(kind, window=None)])
            for kind in layers
        ]
        scale = torch.ones(config.num_heads + config.num_kv_heads, device=device)
        scale[: config.num_heads] = config.query_scale
        self._head_scale = scale[None, :, None]

    def plan(self, cache: KVCache, rows: Sequence[SequenceRows]) -> PlannedStep:
        """Plan a step over the rows of some sequences, which must fit in their pages."""
        config, most = self.config, self.rows_per_pass
        offsets, total = [], 0
        for part in rows:
            offsets.append(total)
            total += len(part.tokens)
            cache.take_pages(part.cache, part.cache.length + part.reach)
        # Left unfilled: a row is read only after the pass that writes it.
        uncommitted = torch.empty(
            (config.num_layers, 2, self._padded(total), config.num_kv_heads, config.head_dim),
            dtype=cache.pool.dtype,
            device=self._device,
        )
        step = PlannedStep(cache, rows, offsets, total, uncommitted, self._kinds, [])
        step.passes.extend(
            self._pass(step, first, min(first + most, total)) for first in range(0, total, most)
        )
        return step

    def _padded(self, total: int) -> int:
        """Rows that a step of `total` rows is padded to; where shapes are few, by doubling."""
        most = self.ladder.largest
        if self.job_counts is None or total <= most:
            return self.ladder.padded(total)
        return most * doubled(-(-total // most))

    def _pass(self, step: PlannedStep, first: int, last: int) -> Pass:
        padded = self.ladder.padded(last - first)
        tokens, positions = [0] * padded, [0] * padded
        parts = []
        for rows, offset in zip(step.rows, step.offsets, strict=True):
            if offset >= last or offset + len(rows.tokens) <= first:
                continue
            part = PassPart(
                rows=rows,
                first=max(first - offset, 0),
                last=min(last - offset, len(rows.tokens)),
                pass_offset=max(offset - first, 0),
                step_offset=offset,
            )
            parts.append(part)
            depths = rows.depths()
            for row in range(part.first, part.last):
                place = part.pass_offset + row - part.first
                tokens[place] = rows.tokens[row]
                positions[place] = rows.cache.length + depths[row]
        plan = AttentionPlan(
            parts,
            padded_rows=padded,
            step_rows=step.uncommitted.shape[2],
            step_offset=first,
            config=self.config,
            windows=self._windows,
            ladder=self.query_ladder,
            device=self._device,
            job_counts=self.job_counts,
        )
        places = torch.tensor(positions, device=self._device)
        return Pass(
            first=first,
            count=last - first,
            tokens=torch.tensor(tokens, device=self._device),
            plan=plan,
            turns=[rope.turns(places) * self._head_scale for rope in self._ropes],
            step=step,
        )
