import pytest
import torch

from peagle.draft.network.torch_compute import TorchCompute
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.peagle.drafter import PEagleDrafter
from peagle.draft.peagle.network import PEagleNetwork
from peagle.draft.untrained import random_tensors
from tests.draft.straight_network import StraightNetwork
from tests.draft.tiny_drafter import CPU, peagle_config


@pytest.fixture
def build(embedding):
    """Make a drafter with random weights, and the same network written straight."""

    def make(
        config: PEagleConfig | None = None, *, dtype=torch.float32, seed=3, budget=8 << 20
    ) -> tuple[PEagleDrafter, StraightNetwork]:
        config = config or peagle_config()
        tensors = random_tensors(config, seed)
        compute = TorchCompute(config, tensors, embedding=embedding, dtype=dtype, device=CPU)
        network = PEagleNetwork(config, tensors, compute, embedding=embedding)
        drafter = PEagleDrafter(network, budget=budget, name="tiny")
        return drafter, StraightNetwork(config, tensors, embedding)

    return make
