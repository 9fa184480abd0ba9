"""The EAGLE-3 network with training-time test: each depth feeds on the output of the one before.

Rows are those of P-EAGLE's flat sequence, an anchor's chain included, and see the same keys. But
a row of depth `d` takes the token `x[a+d+1]` and the network's own output at depth `d - 1` instead
of mask vectors, so depths are computed one after another.
"""

import torch
import torch.nn.functional as F  # noqa: N812

from peagle.draft.eagle3.config import Eagle3Config
from peagle.train.batch import Batch
from peagle.train.networks.trunk import DocumentMask, TrainedLayer, Trunk, turned


class Eagle3Training(Trunk):
    """An EAGLE-3 network that trains."""

    config: Eagle3Config

    def forward(self, batch: Batch) -> torch.Tensor:
        """Run the rows of a batch, depth after depth.

        Returns:
            What the output head multiplies, for the supervised rows: `[supervised, hidden]`.
        """
        memories = [_Memory(batch.rows) for _ in self.layers]
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
            residual = self._depth(batch, depth, rows, hidden, memories)
            normed = self.norm(residual)
            fed = normed if self.config.norm_output else residual
            outputs.append(normed)
            places.append(rows)
        everything = torch.cat(outputs)
        order = torch.empty(batch.rows, dtype=torch.int64, device=everything.device)
        order[torch.cat(places)] = torch.arange(batch.rows, device=everything.device)
        return everything[order[batch.supervised]]

    def _depth(
        self,
        batch: Batch,
        depth: int,
        rows: torch.Tensor,
        hidden: torch.Tensor,
        memories: list["_Memory"],
    ) -> torch.Tensor:
        """Run the rows of one depth, `[its rows, hidden]`, with the keys of those before."""
        cosine, sine = self.rope.turns(batch.positions[rows])
        documents = _masks(batch, depth)
        reached = torch.nonzero(batch.row_depths <= depth).squeeze(1)
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
            memory.put(rows, keys, attention.heads(attention.v_proj, entering))
            attended = attention.attend(queries, *memory.read(reached), documents)
            residual = layer.feed(residual.float(), attended)
        return residual


class _Memory:
    """Keys and values of one layer, depth after depth, by row of the batch."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._where: list[torch.Tensor] = []
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def put(self, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Add the rows of a depth."""
        self._where.append(rows)
        self._keys.append(keys)
        self._values.append(values)

    def read(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give keys and values of `rows`, all of which were put."""
        where = torch.cat(self._where)
        order = torch.empty(self._rows, dtype=torch.int64, device=where.device)
        order[where] = torch.arange(len(where), device=where.device)
        wanted = order[rows]
        return torch.cat(self._keys)[wanted], torch.cat(self._values)[wanted]


def _masks(batch: Batch, depth: int) -> list[DocumentMask]:
    """What the rows of one depth see of the rows up to it, document by document."""
    depths = torch.split(batch.row_depths, [document.rows for document in batch.whole])
    masks = []
    for document, own in zip(batch.whole, depths, strict=True):
        reached = torch.nonzero(own <= depth).squeeze(1)
        asking = torch.nonzero(own[reached] == depth).squeeze(1)
        masks.append(DocumentMask(document.visible[reached][:, reached], asking))
    return masks
