import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from peagle.model.config import RopeScaling
from peagle.model.rope import (
    RotaryEmbedding,
    inverse_frequencies,
    pair_neighbours,
    rotate,
    split_pairs,
)
from tests.model.random_models import CPU

SCALING = RopeScaling(8.0, 1.0, 4.0, 256)
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def transformers_rope(rope: dict[str, object]) -> LlamaRotaryEmbedding:
    return LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=64, num_attention_heads=1, head_dim=64, rope_parameters=rope)
    )


def test_llama3_frequencies_equal_transformers() -> None:
    ours = inverse_frequencies(64, 500_000.0, SCALING)
    theirs = transformers_rope(ROPE).inv_freq
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert not torch.allclose(ours, inverse_frequencies(64, 500_000.0, None))


def test_rotated_products_equal_transformers() -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(5, 1, 64), torch.randn(5, 1, 64)
    positions = torch.tensor([0, 1, 7, 300, 999])
    cos, sin = transformers_rope(ROPE)(queries, positions[None])
    turned = apply_rotary_pos_emb(queries.view(1, 1, 5, 64), keys.view(1, 1, 5, 64), cos, sin)
    theirs = turned[0][0, 0] @ turned[1][0, 0].T
    turns = RotaryEmbedding(64, 500_000.0, SCALING, 1000, CPU).turns(positions)

    def ours(values: torch.Tensor) -> torch.Tensor:
        paired = torch.stack([pair_neighbours(row[0], 1) for row in values])
        return rotate(paired[:, None], turns)[:, 0]

    torch.testing.assert_close(ours(queries) @ ours(keys).T, theirs, atol=1e-4, rtol=1e-4)


def test_pairing_and_splitting_undo_each_other() -> None:
    weight = torch.arange(48.0).view(24, 2)
    assert torch.equal(split_pairs(pair_neighbours(weight, 3), 3), weight)
    paired = pair_neighbours(torch.arange(8), 1)
    assert paired.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
