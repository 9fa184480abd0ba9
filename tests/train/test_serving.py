"""What was trained is what is served: the drafter's predictions are the training network's."""

import numpy as np
import pytest
import torch

from peagle.draft.network.tensors import DRAFT_TO_TARGET, offsets
from peagle.draft.network.torch_compute import TorchCompute
from peagle.draft.peagle import markov
from peagle.draft.peagle.drafter import PEagleDrafter
from peagle.draft.peagle.network import PEagleNetwork
from peagle.train.batch import make_batch
from peagle.train.rollouts import Sampling, sample_rows
from tests.draft.tiny_drafter import draft
from tests.model.random_models import CPU, GROUPED, random_target
from tests.train.tiny_training import DRAFT_VOCAB, Source, config_of, documents_of, network_of

DEPTHS = 4


@pytest.mark.parametrize("markov_rank", [0, 8])
def test_serving_predicts_what_training_predicts(
    markov_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tokens that are not scored anew would keep the share they had before.
    monkeypatch.setattr(markov, "SCORED_TOKENS", DRAFT_VOCAB)
    config = config_of(markov_rank=markov_rank)
    network = network_of(config)
    document = documents_of(1, answer=12)[0]
    features = Source([document]).features[0]
    rows = sample_rows(7, 19, Sampling(DEPTHS, 1.0), np.random.default_rng(0))
    batch = make_batch([document], [features], [rows], CPU)
    object.__setattr__(batch, "features", batch.features.float())
    trained = (network(batch) @ network.head().T).detach().softmax(-1)

    tensors = {name: weight.detach() for name, weight in network.named_parameters()}
    tensors[DRAFT_TO_TARGET] = offsets(torch.arange(DRAFT_VOCAB))
    embedding = random_target(GROUPED).weights.embedding
    compute = TorchCompute(config, tensors, embedding=embedding, dtype=torch.float32, device=CPU)
    served = PEagleDrafter(
        PEagleNetwork(config, tensors, compute, embedding=embedding), budget=1 << 24, name="tiny"
    )
    anchors, depths = (part[rows.supervised] for part in (rows.anchors, rows.depths))
    compared = 0
    for anchor in range(6, 14):
        state = served.open(len(document))
        tokens = document.tokens[1 : anchor + 2].tolist()
        state.observe(tokens, features.taps[: anchor + 1].float())
        found = draft(served, [state], DEPTHS)[0]
        for depth in range(DEPTHS):
            written = document.tokens[anchor + 2 : anchor + 2 + depth].tolist()
            ids, probabilities = found.children(depth + 1, written)
            row = int(np.flatnonzero((anchors == anchor) & (depths == depth))[0])
            assert torch.allclose(torch.tensor(probabilities), trained[row][ids], atol=1e-4)
            assert probabilities == sorted(probabilities, reverse=True)
            compared += 1
        served.close(state)
    assert compared == 32
