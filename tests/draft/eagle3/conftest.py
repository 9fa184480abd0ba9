import pytest
import torch

from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.eagle3.drafter import Eagle3Drafter
from peagle.draft.eagle3.network import Eagle3Network
from peagle.draft.network.torch_compute import TorchCompute
from peagle.draft.untrained import random_tensors
from tests.draft.straight_network import StraightEagle3
from tests.draft.tiny_drafter import CPU, eagle3_config


@pytest.fixture
def build(embedding):
    """Make a drafter with random weights, and the same network written straight."""

    def make(
        config: Eagle3Config | None = None, *, dtype=torch.float32, seed=3
    ) -> tuple[Eagle3Drafter, StraightEagle3]:
        config = config or eagle3_config()
        tensors = random_tensors(config, seed)
        # Sharper than random weights are by themselves, so that some branches are worth asking.
        tensors["lm_head.weight"] *= 3
        compute = TorchCompute(config, tensors, embedding=embedding, dtype=dtype, device=CPU)
        drafter = Eagle3Drafter(
            Eagle3Network(config, tensors, compute), budget=8 << 20, name="tiny"
        )
        return drafter, StraightEagle3(config, tensors, embedding)

    return make
