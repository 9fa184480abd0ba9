"""Our batched Muon makes the updates of torch's."""

import torch

from peagle.train.muon import Muon, orthogonalised


def test_updates_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    shapes = [(24, 40), (40, 24), (24, 40), (16, 16)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(each.detach().clone()) for each in ours]
    one = Muon(ours, lr=0.01, momentum=0.9)
    other = torch.optim.Muon(
        theirs, lr=0.01, momentum=0.9, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    before = [each.detach().clone() for each in ours]
    for _ in range(3):
        for left, right in zip(ours, theirs, strict=True):
            left.grad = torch.randn_like(left)
            right.grad = left.grad.clone()
        one.step()
        other.step()
    for left, right, start in zip(ours, theirs, before, strict=True):
        moved = (left - start).norm()
        assert moved > 0.05
        # Both iterate in bfloat16, whose products round in another order.
        assert (left - right).norm() < 0.02 * moved


def test_what_has_no_gradient_stays() -> None:
    matrix = torch.nn.Parameter(torch.ones(3, 4))
    Muon([matrix], lr=1.0, momentum=0.9).step()
    assert torch.equal(matrix, torch.ones(3, 4))


def test_singular_values_come_near_one() -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(2, 20, 50)).float())
    assert values.min() > 0.6
    assert values.max() < 1.3
