"""The Markov head: what makes deep predictions of a P-EAGLE pass depend on the drafted branch."""

from collections.abc import Mapping, Sequence

import torch

from peagle.draft.network.tensors import MARKOV_GATE, MARKOV_OUT, MARKOV_PREVIOUS
from peagle.model.decoder import rms_norm


class MarkovHead:
    """Adds `W2 ((W1 e) * (1 + Wg h))` to the logits of mask slots.

    `e` is the target's embedding of the token drafted before, scaled to unit root mean square, `h`
    the slot's normed output.

    Args:
        tensors: The network's weights by name.
        embedding: The target's, `[vocab, hidden]`.
        eps: Of the norm of `e`.
        device: Where.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        embedding: torch.Tensor,
        eps: float,
        device: torch.device,
    ) -> None:
        self._previous, self._gate, self._out = (
            tensors[name].to(device=device, dtype=torch.float32)
            for name in (MARKOV_PREVIOUS, MARKOV_GATE, MARKOV_OUT)
        )
        self._embedding = embedding
        self._eps = eps
        self._unit = torch.ones(embedding.shape[1], device=device)

    def gates(self, slots: torch.Tensor) -> torch.Tensor:
        """Give `1 + Wg h` for `slots` `[rows, hidden]`: `[rows, rank]`."""
        return 1 + slots.float() @ self._gate.T

    def bias(self, token: int, gate: torch.Tensor) -> torch.Tensor:
        """What the token before adds to the logits of a slot with `gate` `[rank]`.

        Returns:
            Float32 `[draft vocab]`.
        """
        before = rms_norm(self._embedding[token].float(), self._unit, self._eps)
        return self._out @ ((self._previous @ before) * gate)


class BranchDistributions:
    """Predictions of one P-EAGLE pass, each deeper one given the token drafted before.

    Args:
        logits: Of each level without the token before, `[levels, draft vocab]`.
        gates: `MarkovHead.gates` of each level, `[levels, rank]`.
        head: The Markov head.
        target_ids: Target id of each draft id, int64 `[draft vocab]`.
        top: Tokens given at each place.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        gates: torch.Tensor,
        head: MarkovHead,
        target_ids: torch.Tensor,
        top: int,
    ) -> None:
        self._logits = logits
        self._gates = gates
        self._head = head
        self._ids = target_ids
        self._top = min(top, logits.shape[1])
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
        if told is not None:
            return told
        logits = self._logits[depth - 1]
        if depth > 1:
            logits = logits + self._head.bias(path[-1], self._gates[depth - 1])
        best, ids = logits.topk(self._top)
        probabilities = (best - logits.logsumexp(-1)).exp()
        self._told[place] = self._ids[ids].tolist(), probabilities.tolist()
        return self._told[place]
