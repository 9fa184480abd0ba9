"""Two optimizers in step: Muon for the matrices inside the network, AdamW for the rest."""

from collections.abc import Iterator

import torch
from torch import nn

from peagle.train.muon import Muon

_ADAM_ENDINGS = ("lm_head.weight", "markov.out.weight")


class Optimizer:
    """Muon where it serves (matrices between hidden states), AdamW for heads, norms and vectors.

    Args:
        network: What trains.
        matrix_rate: Muon's learning rate, scaled so that updates have AdamW's size.
        other_rate: AdamW's learning rate.
    """

    def __init__(self, network: nn.Module, *, matrix_rate: float, other_rate: float) -> None:
        self._names: dict[torch.Tensor, str] = {}
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in network.named_parameters():
            self._names[parameter] = name
            inner = parameter.dim() == 2 and not name.endswith(_ADAM_ENDINGS)
            (matrices if inner else others).append(parameter)
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (
                Muon(matrices, lr=matrix_rate, momentum=0.95),
                matrix_rate,
            ),
            (
                torch.optim.AdamW(
                    others, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
                ),
                other_rate,
            ),
        ]

    def step(self, share: float) -> None:
        """Update the parameters with `share` of the full learning rates, and drop gradients."""
        for optimizer, rate in self._parts:
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All state by name, for a checkpoint."""
        return {
            f"{name}.{kind}": value
            for name, state in self._states()
            for kind, value in state.items()
            if isinstance(value, torch.Tensor)
        }

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take back what `tensors` gave."""
        for optimizer, _ in self._parts:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    start = self._names[parameter] + "."
                    optimizer.state[parameter] = {
                        name.removeprefix(start): value.to(
                            parameter.device if value.dim() else "cpu"
                        ).clone()
                        for name, value in tensors.items()
                        if name.startswith(start) and "." not in name.removeprefix(start)
                    }

    def _states(self) -> Iterator[tuple[str, dict[str, object]]]:
        for optimizer, _ in self._parts:
            for parameter, state in optimizer.state.items():
                yield self._names[parameter], state
