"""The P-EAGLE network over sampled rows of whole documents (arXiv 2602.01469, section 3)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from peagle.draft.peagle.config import PEagleConfig
from peagle.train.batch import Batch
from peagle.train.networks.trunk import Trunk, Turns, turned


class Markov(nn.Module):
    """What makes a mask slot's prediction depend on the token drafted before it.

    Adds `W2 ((W1 e) * (1 + Wg h))` to the logits: `e` the target's embedding of that token, `h`
    the slot's normed output.
    """

    def __init__(self, rank: int, hidden: int, draft_vocab: int) -> None:
        super().__init__()
        self.previous = nn.Linear(hidden, rank, bias=False)
        self.gate = nn.Linear(hidden, rank, bias=False)
        self.out = nn.Linear(rank, draft_vocab, bias=False)
        nn.init.normal_(self.previous.weight, std=hidden**-0.5)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.out.weight)

    def forward(self, embedded: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Give what `out` multiplies, `[rows, rank]`.

        Args:
            embedded: Embeddings of the tokens before, unit root mean square, `[rows, hidden]`.
            slots: Normed outputs of the slots, `[rows, hidden]`.
        """
        mixed: torch.Tensor = self.previous(embedded) * (1 + self.gate(slots))
        return mixed


class PEagleTraining(Trunk):
    """A P-EAGLE network that trains.

    Args:
        config: Its shape.
        embedding: The target's, `[vocab, hidden]`; it does not train.
    """

    def __init__(self, config: PEagleConfig, embedding: torch.Tensor) -> None:
        super().__init__(config, embedding)
        hidden = config.decoder.hidden_size
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, config.feature_size))
        self.mask_embedding = nn.Parameter(torch.zeros(hidden))
        if config.markov_rank:
            self.markov = Markov(config.markov_rank, hidden, config.draft_vocab_size)

    def head(self) -> torch.Tensor:
        """The output head with the Markov head's beside it, `[draft vocab, width]`."""
        if not self.has_markov:
            return self.lm_head.weight
        return torch.cat([self.lm_head.weight, self.markov.out.weight], 1)

    @property
    def has_markov(self) -> bool:
        """Whether deep slots know the token before."""
        return hasattr(self, "markov")

    def forward(self, batch: Batch) -> torch.Tensor:
        """Run the rows of a batch.

        Returns:
            What the output head multiplies, for the supervised rows: `[supervised, width]`.
        """
        layer, attention = self.first, self.first.self_attn
        rows, context, masks = batch.rows, batch.context, batch.masks
        turns = self.rope.turns(batch.positions)
        eps = self.config.decoder.rms_norm_eps

        hidden = self.fc(batch.features)
        mask_hidden = self.fc(self.mask_hidden.view(1, -1))
        normed, mask_normed = layer.hidden_norm(hidden), layer.hidden_norm(mask_hidden)
        embedded = layer.input_layernorm(F.embedding(batch.tokens, self.embedding).float())
        mask_embedded = layer.input_layernorm(self.mask_embedding.view(1, -1))
        entering = torch.cat([embedded.to(normed.dtype), normed], -1)
        mask_entering = torch.cat([mask_embedded.to(normed.dtype), mask_normed], -1)

        def everywhere(real: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            """Put real slots and the one thing that all mask slots have in their rows."""
            full = mask.expand(rows, *mask.shape[1:])
            return full.index_copy(0, context, real.to(full.dtype))

        queries, keys, values = (
            everywhere(
                attention.heads(projection, entering), attention.heads(projection, mask_entering)
            )
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        residual = everywhere(
            *((normed, mask_normed) if self.config.norm_before_residual else (hidden, mask_hidden))
        ).float()
        last = len(self.layers) - 1
        asking = batch.sight(batch.supervised)
        whole = batch.sight(torch.arange(rows, device=context.device)) if last else asking
        asking_turns: Turns = turns
        if last == 0:
            queries, residual = (
                part.index_select(0, batch.supervised) for part in (queries, residual)
            )
            asking_turns = (turns[0][batch.supervised], turns[1][batch.supervised])
        keys = turned(keys, turns)
        real = (keys.index_select(0, context), values.index_select(0, context))
        residual = layer.feed(
            residual,
            attention.attend(turned(queries, asking_turns), real, (keys, values), whole),
        )
        for index, further in enumerate(self.layers):
            if index == 0:
                continue
            if index == last:
                residual = further(residual, turns, context, asking, batch.supervised)
            else:
                residual = further(residual, turns, context, whole)
        out: torch.Tensor = self.norm(residual)
        if not self.has_markov:
            return out
        # Depth 0 takes the token before it as its input already.
        deep = masks
        before = F.embedding(batch.previous, self.embedding).float()
        before = F.rms_norm(before, before.shape[-1:], eps=eps)
        mixed = self.markov(before, out[deep])
        everything = torch.zeros(len(out), mixed.shape[1], dtype=mixed.dtype, device=out.device)
        return torch.cat([out.to(mixed.dtype), everything.index_copy(0, deep, mixed)], -1)
