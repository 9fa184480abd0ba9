"""The loss: how far the drafter's distribution is from the target's, on the draft vocabulary."""

from dataclasses import dataclass
from typing import Any, Final

import torch

# Rows that are multiplied at once, and rows whose logits stay in a processor's cache meanwhile.
_PRODUCT: Final = 8192
_ELEMENTWISE: Final = 32


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

    def probabilities(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Give what the loss needs to know of them.

        Returns:
            Probabilities of the draft vocabulary, float32 `[positions, draft vocab]`, those of the
            whole vocabulary's distribution: a row sums to less than one where the target would
            write a token that the drafter cannot propose. And each row's sum of `-p log p`,
            `[positions]`.
        """
        logits = torch.nn.functional.linear(self.hidden, self.head.to(self.hidden.dtype)).float()
        entropy = torch.empty_like(self.log_normalizer)
        for some in _blocks(len(logits), _ELEMENTWISE):
            logs = logits[some].sub_(self.log_normalizer[some].unsqueeze(-1))
            probabilities = logs.exp()
            entropy[some] = -torch.linalg.vecdot(probabilities, logs)
            logits[some] = probabilities
        return logits, entropy


def _blocks(rows: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


class _RestrictedKL(torch.autograd.Function):
    """Head, softmax and loss in one, block by block.

    The gradient is known as soon as the logits are, so it is made in the forward pass and logits
    of all rows never lie in memory together.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  (autograd hands over positions)
        ctx: Any,
        hidden: torch.Tensor,
        head: torch.Tensor,
        teacher: torch.Tensor,
        entropy: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        kind = torch.bfloat16 if torch.is_autocast_enabled(hidden.device.type) else hidden.dtype
        weight = head.detach().to(kind)
        mass = teacher.sum(-1)
        losses = torch.empty(len(hidden), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        head_gradient = torch.zeros_like(head, dtype=torch.float32)
        for block in _blocks(len(hidden), _PRODUCT):
            some, where = hidden[block].to(kind), positions[block]
            logits = torch.nn.functional.linear(some, weight)
            divergences = losses[block]
            for few in _blocks(len(some), _ELEMENTWISE):
                at = where[few]
                log_drafter = logits[few].float().log_softmax(-1)
                wanted = teacher.index_select(0, at)
                divergences[few] = -torch.linalg.vecdot(wanted, log_drafter) - entropy[at]
                # d(-sum p log q)/d(logits) = (sum p) q - p
                logits[few] = log_drafter.exp_().mul_(mass[at].unsqueeze(-1)).sub_(wanted)
            hidden_gradient[block] = (logits @ weight).to(hidden.dtype)
            head_gradient += logits.t() @ some
        ctx.save_for_backward(hidden_gradient, head_gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_gradient, head_gradient = ctx.saved_tensors
        # All rows weigh the same, so one number scales both gradients.
        one = scale[0]
        return (
            hidden_gradient * one.to(hidden_gradient.dtype),
            head_gradient * one,
            None,
            None,
            None,
        )


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
        hidden, head, *teacher.probabilities(), positions
    )
    return losses.sum()
