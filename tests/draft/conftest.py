"""What the tests of drafting share: shipped files, recorded answers, and a tiny target."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle.catalog.entry import DATA_FOLDER
from peagle.draft.corpus import Corpus
from peagle.draft.mixture import MixturePrior
from peagle.model.config import DecoderConfig
from peagle.model.decoder import DecoderWeights
from peagle.model.rope import pair_neighbours
from peagle.model.torch_target import TorchTarget
from tests.draft.tiny_drafter import CPU, HIDDEN, TAPS, VOCAB

SHIPPED_CORPUS = DATA_FOLDER / "corpora" / "smollm2-135m-instruct.safetensors"


@pytest.fixture(scope="session")
def shipped_corpus() -> Corpus:
    return Corpus.load(SHIPPED_CORPUS)


@pytest.fixture(scope="session")
def shipped_prior() -> MixturePrior:
    return MixturePrior.load()


@pytest.fixture(scope="session")
def public_answers() -> list[dict[str, Any]]:
    """Greedy answers of SmolLM2-135M-Instruct to the public workload, as token ids."""
    packed = (Path(__file__).parent / "public_answers.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


@pytest.fixture(scope="session")
def embedding() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1))


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

    def make(taps: tuple[int, ...] = TAPS) -> TorchTarget:
        return TorchTarget(config, weights, torch.float32, CPU, taps)

    return make
