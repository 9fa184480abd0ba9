"""The Markov head: what makes deep predictions of a P-EAGLE pass depend on the drafted branch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from peagle.draft.distributions import LevelDistributions
from peagle.draft.network.compute import NetworkCompute, NetworkOutput
from peagle.draft.network.tensors import (
    DRAFT_TO_TARGET,
    MARKOV_GATE,
    MARKOV_OUT,
    MARKOV_PREVIOUS,
    target_ids,
)
from peagle.model.decoder import rms_norm

TOP_TOKENS: Final = 32
"""Tokens predicted at a place: lower ranks are too improbable for a tree of some dozen nodes."""

SCORED_TOKENS: Final = 128
"""Tokens of a level that the token before may reorder."""


class MarkovHead(Protocol):
    """A Markov head: `TorchMarkovHead` here, or `native_markov.NativeMarkovHead`."""

    def branches(self, output: NetworkOutput) -> Sequence[LevelDistributions]:
        """Give the predictions of one pass for each sequence, a row of `output` each level."""
        ...


class TorchMarkovHead:
    """Adds `W2 ((W1 e) * (1 + Wg h))` to the logits of mask slots.

    `e` is the target's embedding of the token drafted before, scaled to unit root mean square, `h`
    the slot's normed output.

    Args:
        tensors: The network's weights by name.
        embedding: The target's, `[vocab, hidden]`.
        eps: Of the norm of `e`.
        compute: Norms a slot's output.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        embedding: torch.Tensor,
        eps: float,
        compute: NetworkCompute,
    ) -> None:
        device = compute.device
        self._compute = compute
        self._target_ids = target_ids(tensors[DRAFT_TO_TARGET].to(device))
        self._previous, self._gate, self._out = (
            tensors[name].to(device=device, dtype=torch.float32)
            for name in (MARKOV_PREVIOUS, MARKOV_GATE, MARKOV_OUT)
        )
        self._embedding = embedding
        self._eps = eps
        self._unit = torch.ones(embedding.shape[1], device=device)

    @torch.inference_mode()
    def branches(self, output: NetworkOutput) -> list[LevelDistributions]:
        """Give the predictions of one pass for each sequence (`MarkovHead.branches`)."""
        normed = self._compute.final_norm(torch.cat(output.residual))
        gates = torch.split(self.gates(normed), [len(own) for own in output.logits])
        return [
            BranchDistributions(own, gate, self, self._target_ids, TOP_TOKENS)
            for own, gate in zip(output.logits, gates, strict=True)
        ]

    def gates(self, slots: torch.Tensor) -> torch.Tensor:
        """Give `1 + Wg h` for `slots` `[rows, hidden]`: `[rows, rank]`."""
        return 1 + slots.float() @ self._gate.T

    def previous(self, token: int) -> npt.NDArray[np.float32]:
        """Give `W1 e` `[rank]` for the token before."""
        before = rms_norm(self._embedding[token].float(), self._unit, self._eps)
        projected: npt.NDArray[np.float32] = (self._previous @ before).cpu().numpy()
        return projected

    def out(self, ids: torch.Tensor) -> npt.NDArray[np.float32]:
        """Give the rows of `W2` for some draft ids, `[ids, rank]`."""
        rows: npt.NDArray[np.float32] = self._out[ids].cpu().numpy()
        return rows


class BranchDistributions:
    """Predictions of one P-EAGLE pass, each deeper one given the token drafted before.

    At a deeper level only the tokens that are most probable without the token before are scored
    anew; the others keep their share. That leaves out little, and makes asking about a branch a
    matter of some microseconds.

    Args:
        logits: Of each level without the token before, `[levels, draft vocab]`.
        gates: `TorchMarkovHead.gates` of each level, `[levels, rank]`.
        head: The Markov head.
        target_ids: Target id of each draft id, int64 `[draft vocab]`.
        top: Tokens given at each place.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        gates: torch.Tensor,
        head: TorchMarkovHead,
        target_ids: torch.Tensor,
        top: int,
    ) -> None:
        self._logits = logits
        self._gates = gates
        self._head = head
        self._ids = target_ids
        self._top = min(top, logits.shape[1])
        self._levels: dict[int, _Level] = {}
        # Branches often meet in the same token.
        self._told: dict[tuple[int, int | None], tuple[list[int], list[float]]] = {}

    @property
    def levels(self) -> int:
        """Number of levels predicted."""
        return len(self._logits)

    @torch.inference_mode()
    def children(self, depth: int, path: Sequence[int]) -> tuple[list[int], list[float]]:
        """Predict the token at `depth` after the draft tokens of `path`."""
        place = (depth, path[-1] if depth > 1 else None)
        told = self._told.get(place)
        if told is None:
            told = self._told[place] = self._first() if depth == 1 else self._after(*place)
        return told

    def _first(self) -> tuple[list[int], list[float]]:
        logits = self._logits[0]
        best, ids = logits.topk(self._top)
        probabilities = (best - logits.logsumexp(-1)).exp()
        return self._ids[ids].tolist(), probabilities.tolist()

    def _after(self, depth: int, token: int | None) -> tuple[list[int], list[float]]:
        assert token is not None
        level = self._levels.get(depth)
        if level is None:
            level = self._levels[depth] = self._scored(depth)
        logits = level.logits + level.out @ (self._head.previous(token) * level.gate)
        highest = max(float(logits.max()), level.others)
        weights = np.exp(logits - highest)
        total = float(weights.sum()) + math.exp(level.others - highest)
        best = np.argsort(-weights, kind="stable")[: self._top]
        return level.ids[best].tolist(), (weights[best] / total).tolist()

    def _scored(self, depth: int) -> "_Level":
        """Choose the tokens of a level that are scored anew."""
        logits: npt.NDArray[np.float32] = self._logits[depth - 1].cpu().numpy()
        some = max(0, len(logits) - SCORED_TOKENS)
        ids = np.argpartition(logits, some)[some:] if some else np.arange(len(logits))
        ids.sort()
        highest = float(logits.max())
        weights = np.exp(logits - highest)
        # What the others weigh; rounding may bring the difference below zero.
        rest = float(weights.sum()) - float(weights[ids].sum()) if some else 0.0
        drafts = torch.from_numpy(ids).to(self._ids.device)
        return _Level(
            ids=self._ids[drafts].cpu().numpy(),
            logits=logits[ids],
            others=highest + math.log(rest) if rest > 0 else -math.inf,
            out=self._head.out(drafts),
            gate=self._gates[depth - 1].cpu().numpy(),
        )


@dataclass(frozen=True, slots=True)
class _Level:
    """The tokens of one level that are scored anew for each token before.

    Attributes:
        ids: Their target ids.
        logits: Their logits without the token before.
        others: Log of the summed exponents of all other tokens.
        out: Their rows of `W2`, `[tokens, rank]`.
        gate: The level's gate, `[rank]`.
    """

    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    others: float
    out: npt.NDArray[np.float32]
    gate: npt.NDArray[np.float32]
