"""What stands behind attention in a layer: a gated MLP, or a mixture of such experts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from peagle.model.families.family import Activation, Experts
from peagle.model.invariance import RowLadder
from peagle.model.product import Product


def silu(gate: torch.Tensor) -> torch.Tensor:
    """Swish, `gate / (1 + exp(-gate))`, in float32.

    `F.silu` computes the elements at the end of a thread's share one by one, with another
    exponential than the rest: which elements these are depends on the number of rows.
    """
    wide = gate.float()
    return (wide / wide.neg().exp_().add_(1)).to(gate.dtype)


def gelu_tanh(gate: torch.Tensor) -> torch.Tensor:
    """GELU by its tanh formula, in float32, written as a swish so that `exp` alone is taken.

    `x / 2 * (1 + tanh(u))` is `x / (1 + exp(-2 u))`; `u = sqrt(2 / pi) * (x + 0.044715 x ** 3)`.
    """
    wide = gate.float()
    twice = (wide + 0.044715 * wide * wide * wide).mul_(2 * math.sqrt(2 / math.pi))
    return (wide / twice.neg_().exp_().add_(1)).to(gate.dtype)


ACTIVATIONS: Final[Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
}


class MLP(Protocol):
    """What a layer needs of it."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Give what is added to the residual stream, `[rows, hidden]`."""
        ...

    def products(self) -> Sequence[Product]:
        """Its products with weights."""
        ...

    def use_ladder(self, ladder: RowLadder) -> None:
        """Let its products run with these row counts alone."""
        ...


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """Two products side by side, one gating the other, and one behind them."""

    gate_up: Product
    down: Product
    activation: Callable[[torch.Tensor], torch.Tensor] = silu

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Run `rows` `[rows, hidden]` through it."""
        gate, up = self.gate_up(rows).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)

    def products(self) -> Sequence[Product]:
        """Its products with weights."""
        return self.gate_up, self.down

    def use_ladder(self, ladder: RowLadder) -> None:
        """Do nothing: the rows of a pass are padded already."""


class ExpertMLP:
    """Experts, of which each row goes through a few.

    The rows that go to one expert are padded to a row count that was measured to agree, whatever
    their number, and each row adds up its own experts in the order of their shares: what other
    rows choose changes no bit.

    Args:
        router: Scores the experts.
        experts: All of them.
        shape: How many are active, and whether their shares are normalised.
    """

    def __init__(self, router: Product, experts: Sequence[GatedMLP], shape: Experts) -> None:
        self._router = router
        self._experts = experts
        self._shape = shape
        self._ladder: RowLadder | None = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Run `rows` `[rows, hidden]` through their experts."""
        shares, chosen = chosen_experts(self._router(rows), self._shape)
        terms = torch.empty(
            self._shape.active, *rows.shape, dtype=torch.float32, device=rows.device
        )
        for expert, places in _by_expert(chosen.tolist()).items():
            which, ranks = torch.tensor(places, device=rows.device).T
            terms[ranks, which] = self._through(expert, rows.index_select(0, which)).float()
        terms *= shares.T.unsqueeze(-1)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total.to(rows.dtype)

    def products(self) -> Sequence[Product]:
        """Its products with weights."""
        return [self._router, *(part for expert in self._experts for part in expert.products())]

    def use_ladder(self, ladder: RowLadder) -> None:
        """Let its products run with these row counts alone."""
        self._ladder = ladder

    def _through(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        """Run rows through one expert in a count that agrees with all others."""
        count = rows.shape[0]
        padding = 0 if self._ladder is None else self._ladder.padded(count) - count
        if padding:
            rows = torch.cat([rows, rows[:1].expand(padding, -1)])
        return self._experts[expert](rows)[:count]


def chosen_experts(scores: torch.Tensor, shape: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the experts of each row.

    Args:
        scores: What the router gives, `[rows, experts]`.
        shape: How many are active, and whether their shares are normalised.

    Returns:
        Their shares, float32 but rounded as `scores` are, and which they are,
        `[rows, active]` each, the largest share first.
    """
    wide = scores.float()
    weights = (wide - wide.amax(-1, keepdim=True)).exp_()
    shares = weights / weights.sum(-1, keepdim=True)
    # A stable sort, because which of equal ones `topk` prefers is not said.
    shares, chosen = shares.sort(dim=-1, descending=True, stable=True)
    shares, chosen = shares[:, : shape.active], chosen[:, : shape.active]
    if shape.normalised:
        shares = shares / shares.sum(-1, keepdim=True)
    return shares.to(scores.dtype).float(), chosen


def _by_expert(chosen: list[list[int]]) -> dict[int, list[tuple[int, int]]]:
    """Give the rows that chose each expert, with its rank among theirs."""
    by_expert: dict[int, list[tuple[int, int]]] = {}
    for row, experts in enumerate(chosen):
        for rank, expert in enumerate(experts):
            by_expert.setdefault(expert, []).append((row, rank))
    return by_expert
