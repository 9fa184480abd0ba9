"""P-EAGLE and EAGLE-3 written down once more, straight from the papers, sharing no code.

One full sequence at a time, float64, an explicit causal mask, no cache.
"""

import torch
from torch import Tensor


def rms(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rows / torch.sqrt((rows * rows).mean(-1, keepdim=True) + eps) * weight


def turned(heads: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate `[rows, heads, width]`, value `i` paired with value `i + width / 2`."""
    half = heads.shape[-1] // 2
    angle = positions[:, None].double() * theta ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    one, two = heads[..., :half], heads[..., half:]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


class StraightNetwork:
    def __init__(self, config, tensors, embedding):
        self.config = config
        self.weights = {name: found.double() for name, found in tensors.items() if name != "d2t"}
        self.embedding = embedding.double()
        self.target_ids = tensors["d2t"] + torch.arange(config.draft_vocab_size)

    def logits(self, tokens, features, masks, seen=None) -> Tensor:
        """Give `[slots + masks, draft vocab]`.

        Args:
            tokens: Token of each slot.
            features: Feature of each slot.
            masks: Mask slots behind them.
            seen: Which row (first index) sees which; causal if None.
        """
        config, w = self.config, self.weights
        if config.own_embedding:
            mask_row = w["embed_tokens.weight"][config.mask_token_id]
        else:
            mask_row = w["mask_embedding"]
        e = torch.cat([self.embed(tokens), mask_row.expand(masks, -1)])
        g = torch.cat([features.double(), w["mask_hidden"].view(1, -1).expand(masks, -1)])
        return self.head(self.stream(e, self.fuse(g), seen))

    def embed(self, tokens) -> Tensor:
        own = self.weights.get("embed_tokens.weight")
        return (self.embedding if own is None else own)[list(tokens)]

    def fuse(self, g) -> Tensor:
        """Turn features `[rows, taps * target hidden]` into hidden states."""
        config, w = self.config, self.weights
        eps = config.decoder.rms_norm_eps
        if config.norm_before_fc:
            g = rms(g, w["input_norm.weight"], eps)
        if config.fc_norm:
            chunks = g.split(config.target_hidden_size, 1)
            g = torch.cat(
                [rms(chunk, w[f"fc_norm.{i}.weight"], eps) for i, chunk in enumerate(chunks)], 1
            )
        return g @ w["fc.weight"].T

    def head(self, y) -> Tensor:
        w = self.weights
        return rms(y, w["norm.weight"], self.config.decoder.rms_norm_eps) @ w["lm_head.weight"].T

    def stream(self, e, h, seen=None) -> Tensor:
        """Run rows of embeddings and hidden states through the layers, from position 0 on."""
        config, w = self.config, self.weights
        decoder, eps = config.decoder, config.decoder.rms_norm_eps
        total = len(h)
        assert h.shape == e.shape == (total, decoder.hidden_size)
        positions = torch.arange(total)
        if seen is None:
            seen = positions[None, :] <= positions[:, None]
        y = h
        for index in range(decoder.num_layers):
            at = f"layers.{index}."
            if index == 0:
                nh = rms(h, w[at + "hidden_norm.weight"], eps)
                z = torch.cat([rms(e, w[at + "input_layernorm.weight"], eps), nh], -1)
                y = nh if config.norm_before_residual else h
            else:
                z = rms(y, w[at + "input_layernorm.weight"], eps)
            q = (z @ w[at + "self_attn.q_proj.weight"].T).view(total, decoder.num_heads, -1)
            k = (z @ w[at + "self_attn.k_proj.weight"].T).view(total, decoder.num_kv_heads, -1)
            v = (z @ w[at + "self_attn.v_proj.weight"].T).view(total, decoder.num_kv_heads, -1)
            q = turned(q, positions, decoder.rope_theta)
            k = turned(k, positions, decoder.rope_theta)
            attended = []
            for head in range(decoder.num_heads):
                group = head * decoder.num_kv_heads // decoder.num_heads
                scores = q[:, head] @ k[:, group].T / decoder.head_dim**0.5
                scores = scores.masked_fill(~seen, float("-inf"))
                attended.append(scores.softmax(-1) @ v[:, group])
            y = y + torch.cat(attended, -1) @ w[at + "self_attn.o_proj.weight"].T
            m = rms(y, w[at + "post_attention_layernorm.weight"], eps)
            gate = m @ w[at + "mlp.gate_proj.weight"].T
            up = m @ w[at + "mlp.up_proj.weight"].T
            y = y + (gate * torch.sigmoid(gate) * up) @ w[at + "mlp.down_proj.weight"].T
        return y

    def draft(self, tokens, features, depth, top=32) -> tuple[Tensor, Tensor]:
        """Give target ids and probabilities `[depth, top]`, the most probable first."""
        logits = self.logits(tokens, features, depth - 1)[len(tokens) - 1 :]
        best = logits.softmax(-1).topk(min(top, logits.shape[1]))
        return self.target_ids[best.indices], best.values


class StraightEagle3(StraightNetwork):
    def tree(self, tokens, features, paths) -> dict[tuple[int, ...], Tensor]:
        """Predict what follows the draft tokens of each path, `[vocab]`; parents come first.

        Each path is run from the beginning, as if it were the only one.
        """
        fused = self.fuse(features.double())
        fed, found = {}, {}
        for path in paths:
            h = fed[path[:-1]] if path else fused
            y = self.stream(self.embed([*tokens, *path]), h)
            found[path] = torch.zeros(self.config.decoder.vocab_size, dtype=torch.float64)
            found[path][self.target_ids] = self.head(y)[-1].softmax(-1)
            last = y[-1:]
            if self.config.norm_output:
                last = rms(last, self.weights["norm.weight"], self.config.decoder.rms_norm_eps)
            fed[path] = torch.cat([h, last])
        return found
