"""What P-EAGLE and EAGLE-3 networks share in training: parameters by name, layers over documents.

Modules are nested so that parameter names are those of checkpoints (`draft.network.tensors`).
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from peagle.draft.network.config import NetworkConfig
from peagle.model.config import DecoderConfig
from peagle.model.rope import inverse_frequencies
from peagle.train.networks.rollout_attention import Sight, rollout_attention


class Norm(nn.Module):
    """RMS norm with a weight `[width]`."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scale `rows` `[rows, width]` to unit root mean square."""
        return F.rms_norm(rows, self.weight.shape, self.weight.to(rows.dtype), self._eps)


class Rope:
    """Rotations of Hugging Face's order: value `i` of a head pairs with `i + head_dim / 2`."""

    def __init__(self, decoder: DecoderConfig) -> None:
        frequencies = inverse_frequencies(
            decoder.head_dim, decoder.rope_theta, decoder.rope_scaling
        )
        angles = torch.arange(decoder.context_length).float()[:, None] * frequencies
        self._cosine, self._sine = angles.cos(), angles.sin()

    def turns(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine at `positions` `[rows]`, each `[rows, 1, head_dim / 2]`."""
        if self._cosine.device != positions.device:
            self._cosine = self._cosine.to(positions.device)
            self._sine = self._sine.to(positions.device)
        return self._cosine[positions].unsqueeze(1), self._sine[positions].unsqueeze(1)


Turns = tuple[torch.Tensor, torch.Tensor]
KeysValues = tuple[torch.Tensor, torch.Tensor]


def turned(heads: torch.Tensor, turns: Turns) -> torch.Tensor:
    """Rotate `heads` `[rows, heads, head_dim]`."""
    cosine, sine = turns
    first, second = heads.float().chunk(2, -1)
    rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
    return rotated.to(heads.dtype)


class Attention(nn.Module):
    """Projections of one attention layer and attention within documents."""

    def __init__(self, decoder: DecoderConfig, entering: int) -> None:
        super().__init__()
        width = decoder.num_heads * decoder.head_dim
        kv_width = decoder.num_kv_heads * decoder.head_dim
        self.q_proj = nn.Linear(entering, width, bias=False)
        self.k_proj = nn.Linear(entering, kv_width, bias=False)
        self.v_proj = nn.Linear(entering, kv_width, bias=False)
        self.o_proj = nn.Linear(width, decoder.hidden_size, bias=False)
        self._head_dim = decoder.head_dim

    def heads(self, projection: nn.Linear, entering: torch.Tensor) -> torch.Tensor:
        """Project `entering` `[rows, in]` to `[rows, heads, head_dim]`."""
        projected: torch.Tensor = projection(entering)
        return projected.view(len(entering), -1, self._head_dim)

    def attend(
        self,
        queries: torch.Tensor,
        context: KeysValues,
        members: KeysValues,
        sight: Sight,
    ) -> torch.Tensor:
        """Attend (`rollout_attention`) and project back.

        Returns:
            `[asking, hidden]`.
        """
        attended = rollout_attention(queries, context, members, sight)
        projected: torch.Tensor = self.o_proj(attended.flatten(1))
        return projected


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, decoder: DecoderConfig) -> None:
        super().__init__()
        hidden, inner = decoder.hidden_size, decoder.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map `rows` `[rows, hidden]` to `[rows, hidden]`."""
        down: torch.Tensor = self.down_proj(F.silu(self.gate_proj(rows)) * self.up_proj(rows))
        return down


class TrainedLayer(nn.Module):
    """One layer; the first reads `[embedding | hidden]` and has a norm for the hidden half."""

    def __init__(self, decoder: DecoderConfig, *, first: bool) -> None:
        super().__init__()
        hidden, eps = decoder.hidden_size, decoder.rms_norm_eps
        self.input_layernorm = Norm(hidden, eps)
        self.self_attn = Attention(decoder, 2 * hidden if first else hidden)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp = MLP(decoder)
        if first:
            self.hidden_norm = Norm(hidden, eps)

    def feed(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Add attention and MLP to `residual` `[rows, hidden]`."""
        residual = residual + attended
        fed: torch.Tensor = self.mlp(self.post_attention_layernorm(residual))
        return residual + fed

    def forward(
        self,
        residual: torch.Tensor,
        turns: Turns,
        context: torch.Tensor,
        sight: Sight,
        asking: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run a layer other than the first.

        Args:
            residual: `[rows, hidden]`.
            turns: Rotations of all rows.
            context: Which rows are real slots, `[slots]`.
            sight: What the asking rows see.
            asking: Rows to go on with, `[asking]`; all if None. The others give keys and values.

        Returns:
            `[asking, hidden]`.
        """
        attention = self.self_attn
        entering = self.input_layernorm(residual)
        keys = turned(attention.heads(attention.k_proj, entering), turns)
        values = attention.heads(attention.v_proj, entering)
        if asking is not None:
            residual, entering = (rows.index_select(0, asking) for rows in (residual, entering))
            turns = (turns[0][asking], turns[1][asking])
        queries = turned(attention.heads(attention.q_proj, entering), turns)
        real = (keys.index_select(0, context), values.index_select(0, context))
        return self.feed(residual, attention.attend(queries, real, (keys, values), sight))


class Trunk(nn.Module):
    """A drafter network that trains, as far as all methods share it.

    Args:
        config: Its shape.
        embedding: The target's, `[vocab, hidden]`; it does not train.
    """

    def __init__(self, config: NetworkConfig, embedding: torch.Tensor) -> None:
        super().__init__()
        decoder = config.decoder
        self.config = config
        self.fc = nn.Linear(config.feature_size, decoder.hidden_size, bias=False)
        self.layers = nn.ModuleList(
            TrainedLayer(decoder, first=index == 0) for index in range(decoder.num_layers)
        )
        self.norm = Norm(decoder.hidden_size, decoder.rms_norm_eps)
        self.lm_head = nn.Linear(decoder.hidden_size, config.draft_vocab_size, bias=False)
        self.rope = Rope(decoder)
        self.register_buffer("embedding", embedding, persistent=False)
        self.embedding: torch.Tensor

    def head(self) -> torch.Tensor:
        """The output head on what `forward` returns, `[draft vocab, width]`."""
        return self.lm_head.weight

    @property
    def first(self) -> TrainedLayer:
        """Layer 0."""
        layer = self.layers[0]
        assert isinstance(layer, TrainedLayer)
        return layer
