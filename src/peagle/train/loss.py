"""The loss: how far the drafter's distribution is from the target's, on the draft vocabulary."""

from dataclasses import dataclass
from typing import Any, Final

import torch

# Rows whose logits are held at once.
_BLOCK: Final = 1024


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's distributions that the rows of a batch are compared with.

    Attributes:
        hidden: Normed last hidden states, `[positions, target hidden]`.
        log_normalizer: Logarithm of the sum of exponentials of all logits, `[positions]`.
        head: Rows of the target's output head for the draft vocabulary,
            `[draft vocab, target hidden]`.
    """

    hidden: torch.Tensor
    log_normalizer: torch.Tensor
    head: torch.Tensor

    def probabilities(self) -> torch.Tensor:
        """Probabilities of the draft vocabulary, float32 `[positions, draft vocab]`.

        They are those of the whole vocabulary's distribution: a row sums to less than one where
        the target would write a token that the drafter cannot propose.
        """
        logits = torch.nn.functional.linear(self.hidden, self.head.to(self.hidden.dtype)).float()
        return logits.sub_(self.log_normalizer.unsqueeze(-1)).exp_()


class _RestrictedKL(torch.autograd.Function):
    """Head, softmax and loss in one, block by block.

    The gradient is known as soon as the logits are, so it is made in the forward pass and logits
    of all rows never lie in memory together.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        head: torch.Tensor,
        teacher: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        kind = torch.bfloat16 if torch.is_autocast_enabled(hidden.device.type) else hidden.dtype
        weight = head.detach().to(kind)
        entropy = -torch.special.xlogy(teacher, teacher).sum(-1)
        mass = teacher.sum(-1)
        losses = torch.empty(len(hidden), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        head_gradient = torch.zeros_like(head, dtype=torch.float32)
        for first in range(0, len(hidden), _BLOCK):
            rows = slice(first, first + _BLOCK)
            some, where = hidden[rows].to(kind), positions[rows]
            log_drafter = torch.nn.functional.linear(some, weight).float().log_softmax(-1)
            wanted = teacher.index_select(0, where)
            losses[rows] = -torch.linalg.vecdot(wanted, log_drafter) - entropy[where]
            # d(-sum p log q)/d(logits) = (sum p) q - p
            gradient = log_drafter.exp_().mul_(mass[where].unsqueeze(-1)).sub_(wanted)
            gradient = gradient.to(kind)
            hidden_gradient[rows] = (gradient @ weight).to(hidden.dtype)
            head_gradient += gradient.t() @ some
        ctx.save_for_backward(hidden_gradient, head_gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_gradient, head_gradient = ctx.saved_tensors
        # All rows weigh the same, so one number scales both gradients.
        one = scale[0]
        return hidden_gradient * one.to(hidden_gradient.dtype), head_gradient * one, None, None


def restricted_kl(
    hidden: torch.Tensor, head: torch.Tensor, teacher: Teacher, positions: torch.Tensor
) -> torch.Tensor:
    """Sum over rows of KL(target || drafter), restricted to the draft vocabulary.

    The target's probabilities are not renormalised: a row counts as much as the target's next
    token can be in the draft vocabulary at all.

    Args:
        hidden: What enters the output head, `[rows, width]`.
        head: The output head, `[draft vocab, width]`.
        teacher: The target's distributions.
        positions: Which of them each row predicts, int64 `[rows]`.

    Returns:
        A scalar. (Each row has the weight one; scale the sum for a mean.)
    """
    losses: torch.Tensor = _RestrictedKL.apply(  # type: ignore[no-untyped-call]
        hidden, head, teacher.probabilities(), positions
    )
    return losses.sum()
