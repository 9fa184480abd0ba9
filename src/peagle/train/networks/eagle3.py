"""The EAGLE-3 network with training-time test: each depth feeds on the output of the one before.

Rows are those of P-EAGLE's flat sequence, an anchor's chain included, and see the same keys. But
a row of depth `d` takes the token `x[a+d+1]` and the network's own output at depth `d - 1` instead
of mask vectors, so depths are computed one after another.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812

from peagle.draft.eagle3.config import Eagle3Config
from peagle.train.batch import Batch
from peagle.train.networks.rollout_attention import Sight
from peagle.train.networks.trunk import KeysValues, TrainedLayer, Trunk, turned


class Eagle3Training(Trunk):
    """An EAGLE-3 network that trains."""

    config: Eagle3Config

    def forward(self, batch: Batch) -> torch.Tensor:
        """Run the rows of a batch, depth after depth.

        Returns:
            What the output head multiplies, for the supervised rows: `[supervised, hidden]`.
        """
        memories = [_Memory() for _ in self.layers]
        by_depth = batch.row_depths.argsort(stable=True)
        place = torch.empty_like(by_depth)
        place[by_depth] = torch.arange(batch.rows, device=place.device)
        outputs: list[torch.Tensor] = []
        places: list[torch.Tensor] = []
        fed: torch.Tensor | None = None
        for depth in range(int(batch.row_depths.max()) + 1):
            rows = torch.nonzero(batch.row_depths == depth).squeeze(1)
            if fed is None:
                hidden = self.fc(batch.features)
            else:
                # Rows of a depth are a subset of the one before, in the same order.
                hidden = fed.index_select(0, torch.searchsorted(places[-1], batch.parents[rows]))
            seen = batch.sight(rows)
            seen = replace(seen, pair_members=place[seen.pair_members])
            residual = self._depth(batch, rows, hidden, memories, seen)
            normed = self.norm(residual)
            fed = normed if self.config.norm_output else residual
            outputs.append(normed)
            places.append(rows)
        return torch.cat(outputs).index_select(0, place[batch.supervised])

    def _depth(
        self,
        batch: Batch,
        rows: torch.Tensor,
        hidden: torch.Tensor,
        memories: list["_Memory"],
        sight: Sight,
    ) -> torch.Tensor:
        """Run the rows of one depth, `[its rows, hidden]`, with the keys of those before."""
        cosine, sine = self.rope.turns(batch.positions[rows])
        residual = hidden
        for index, (layer, memory) in enumerate(zip(self.layers, memories, strict=True)):
            assert isinstance(layer, TrainedLayer)
            attention = layer.self_attn
            if index == 0:
                normed = layer.hidden_norm(hidden)
                tokens = F.embedding(batch.row_tokens[rows], self.embedding).float()
                embedded = layer.input_layernorm(tokens)
                entering = torch.cat([embedded.to(normed.dtype), normed], -1)
                residual = normed if self.config.norm_before_residual else hidden
            else:
                entering = layer.input_layernorm(residual)
            queries, keys = (
                turned(attention.heads(projection, entering), (cosine, sine))
                for projection in (attention.q_proj, attention.k_proj)
            )
            memory.put(keys, attention.heads(attention.v_proj, entering))
            attended = attention.attend(queries, memory.real, memory.everything, sight)
            residual = layer.feed(residual.float(), attended)
        return residual


class _Memory:
    """Keys and values of one layer, depth after depth."""

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def put(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Add the rows of a depth."""
        self._keys.append(keys)
        self._values.append(values)

    @property
    def real(self) -> KeysValues:
        """Those of the real slots."""
        return self._keys[0], self._values[0]

    @property
    def everything(self) -> KeysValues:
        """Those of all rows, depth after depth."""
        return torch.cat(self._keys), torch.cat(self._values)
