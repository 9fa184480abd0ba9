import pytest
import torch

from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.peagle.drafter import PEagleDrafter
from peagle.draft.peagle.network import PEagleNetwork
from peagle.draft.peagle.untrained import random_tensors
from peagle.model.config import DecoderConfig
from peagle.model.decoder import DecoderWeights
from peagle.model.rope import pair_neighbours
from peagle.model.target import TargetModel
from tests.draft.peagle.straight_network import StraightNetwork
from tests.draft.peagle.tiny_peagle import CPU, HIDDEN, TAPS, VOCAB, peagle_config


@pytest.fixture(scope="session")
def embedding() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def build(embedding):
    """Make a drafter with random weights, and the same network written straight."""

    def make(
        config: PEagleConfig | None = None, *, dtype=torch.float32, seed=3, budget=8 << 20
    ) -> tuple[PEagleDrafter, StraightNetwork]:
        config = config or peagle_config()
        tensors = random_tensors(config, seed)
        network = PEagleNetwork(config, tensors, embedding=embedding, dtype=dtype, device=CPU)
        drafter = PEagleDrafter(network, budget=budget, name="tiny")
        return drafter, StraightNetwork(config, tensors, embedding)

    return make


@pytest.fixture(scope="session")
def slots():
    """Make the tokens and features of so many slots."""

    def make(count: int, seed: int = 0, feature_size: int = 3 * HIDDEN):
        generator = torch.Generator().manual_seed(100 + seed)
        tokens = torch.randint(0, VOCAB, (count,), generator=generator).tolist()
        return tokens, torch.randn(count, feature_size, generator=generator)

    return make


@pytest.fixture(scope="session")
def llama():
    """A random small Llama of the transformers library, its layers far from the identity."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def make_target(llama):
    """Make a target with the same weights as `llama`."""
    config = DecoderConfig.from_hugging_face(
        {**llama.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    )
    tensors = dict(llama.state_dict())
    for name, weight in tensors.items():
        if name.endswith("q_proj.weight"):
            tensors[name] = pair_neighbours(weight, config.num_heads)
        elif name.endswith("k_proj.weight"):
            tensors[name] = pair_neighbours(weight, config.num_kv_heads)
    weights = DecoderWeights.prepare(config, tensors, torch.float32, CPU)

    def make(taps: tuple[int, ...] = TAPS) -> TargetModel:
        return TargetModel(config, weights, torch.float32, CPU, taps)

    return make
