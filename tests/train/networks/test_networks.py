"""The training forward is what serving computes; partitioned gradients are the flat ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from peagle.draft.network.tensors import DRAFT_TO_TARGET, offsets
from peagle.train.batch import make_batch
from peagle.train.loss import Teacher, restricted_kl
from peagle.train.networks.eagle3 import Eagle3Training
from peagle.train.rollouts import Sampling, sample_rows, segments
from tests.draft.straight_network import StraightEagle3, StraightNetwork
from tests.draft.tiny_drafter import eagle3_config
from tests.model.random_models import CPU, GROUPED, random_target
from tests.train.tiny_training import (
    DRAFT_VOCAB,
    HIDDEN,
    TAPS,
    Source,
    config_of,
    documents_of,
    network_of,
)

DEPTHS = 4


@pytest.mark.parametrize("before_residual", [False, True])
def test_the_flat_forward_equals_separate_passes(before_residual: bool) -> None:
    config = config_of(norm_before_residual=before_residual)
    network = network_of(config).double()
    documents = documents_of(2, answer=12)
    source = Source(documents)
    rows = [
        sample_rows(d.prompt_tokens, len(d), Sampling(DEPTHS, 1.0), np.random.default_rng(0))
        for d in documents
    ]
    batch = make_batch(documents, source.read(range(2)), rows, CPU)
    object.__setattr__(batch, "features", batch.features.double())
    hidden = network(batch)
    found = (hidden @ network.head().T).detach()

    tensors = {name: weight.detach() for name, weight in network.named_parameters()}
    tensors[DRAFT_TO_TARGET] = offsets(torch.arange(DRAFT_VOCAB))
    straight = StraightNetwork(config, tensors, random_target(GROUPED).weights.embedding)
    row = 0
    for document, features, part in zip(documents, source.features, rows, strict=True):
        for anchor, depth in zip(
            part.anchors[part.supervised], part.depths[part.supervised], strict=True
        ):
            tokens = document.tokens[1 : anchor + 2].tolist()
            expected = straight.logits(tokens, features.taps[: anchor + 1], DEPTHS - 1)
            assert torch.allclose(found[row], expected[anchor + depth], atol=1e-5), (anchor, depth)
            row += 1
    assert row == len(found)


def gradients(network, batches, source_features, total) -> dict[str, torch.Tensor]:
    head = random_target(GROUPED).weights.embedding[:DRAFT_VOCAB].float()
    network.zero_grad()
    for batch in batches:
        object.__setattr__(batch, "features", batch.features.float())
        teacher = Teacher(batch.teacher.float(), batch.log_normalizer, head)
        loss = restricted_kl(network(batch), network.head(), teacher, batch.teacher_positions)
        (loss / total).backward()
    return {name: weight.grad.clone() for name, weight in network.named_parameters()}


def test_partitioned_gradients_equal_flat_ones() -> None:
    network = network_of(config_of(markov_rank=8))
    documents = documents_of(1, answer=50)
    source = Source(documents)
    rows = sample_rows(7, 57, Sampling(DEPTHS, 0.8), np.random.default_rng(1))
    parts = segments(rows, 3)
    assert len(parts) == 3
    total = int(rows.supervised.sum())
    flat = gradients(network, [make_batch(documents, source.features, [rows], CPU)], source, total)
    split = gradients(
        network,
        [make_batch(documents, source.features, [part], CPU) for part in parts],
        source,
        total,
    )
    for name, gradient in flat.items():
        assert gradient.abs().max() > 0, name
        assert torch.allclose(gradient, split[name], rtol=1e-3, atol=1e-6), name


def test_the_loss_is_the_restricted_divergence_and_has_its_gradient() -> None:
    torch.manual_seed(3)
    hidden = torch.randn(30, 16, requires_grad=True)
    head = torch.randn(40, 16, requires_grad=True)
    full_head = torch.randn(64, 12)
    teacher_hidden = torch.randn(9, 12)
    log_z = torch.logsumexp(teacher_hidden @ full_head.T, -1)
    positions = torch.randint(9, (30,))
    teacher = Teacher(teacher_hidden, log_z, full_head[:40])
    p = torch.softmax(teacher_hidden @ full_head.T, -1)[:, :40][positions]
    log_q = torch.log_softmax(hidden @ head.T, -1)
    expected = (p * (p.log() - log_q)).sum()
    wanted = torch.autograd.grad(expected * 0.5, [hidden, head])
    loss = restricted_kl(hidden, head, teacher, positions)
    found = torch.autograd.grad(loss * 0.5, [hidden, head])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_training_time_test_equals_drafting_along_the_written_text() -> None:
    config = eagle3_config(
        decoder=replace(GROUPED, num_layers=1, tied_embeddings=False),
        target_hidden_size=HIDDEN,
        draft_vocab_size=DRAFT_VOCAB,
        taps=TAPS,
    )
    torch.manual_seed(0)
    network = Eagle3Training(config, random_target(GROUPED).weights.embedding.double()).double()
    # The answer of the last is too short for deep chains.
    documents = [*documents_of(2, answer=10), *documents_of(1, answer=3)]
    source = Source(documents)
    rows = [
        sample_rows(d.prompt_tokens, len(d), Sampling(DEPTHS, 1.0), np.random.default_rng(0))
        for d in documents
    ]
    batch = make_batch(documents, source.read(range(3)), rows, CPU)
    object.__setattr__(batch, "features", batch.features.double())
    found = (network(batch) @ network.head().T).detach().softmax(-1)

    tensors = {name: weight.detach() for name, weight in network.named_parameters()}
    tensors[DRAFT_TO_TARGET] = offsets(torch.arange(DRAFT_VOCAB))
    straight = StraightEagle3(config, tensors, network.embedding)
    row = 0
    for document, features, part in zip(documents, source.features, rows, strict=True):
        for anchor, depth in zip(
            part.anchors[part.supervised], part.depths[part.supervised], strict=True
        ):
            tokens = document.tokens[1 : anchor + 2].tolist()
            written = tuple(document.tokens[anchor + 2 : anchor + 2 + depth].tolist())
            paths = [written[:length] for length in range(depth + 1)]
            expected = straight.tree(tokens, features.taps[: anchor + 1], paths)[written]
            assert torch.allclose(found[row], expected, atol=1e-6), (anchor, depth)
            row += 1
    assert row == len(found)
