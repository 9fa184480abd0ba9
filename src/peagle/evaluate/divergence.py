"""How far a target's next-token distributions are from another one's, over recorded answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from peagle.evaluate.recorded import Recorded
from peagle.model.kv_cache import page_bytes, pages_for
from peagle.model.rows import SequenceRows
from peagle.model.target import Target

# Bounds the logits held at a time: a pass or two.
_ROWS_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence of a model from a reference, a number for each token of the answers.

    Attributes:
        nats: Kullback-Leibler divergence of the model from the reference, in nats, `[tokens]`.
        agrees: Whether both have the same most probable token, `[tokens]`.
    """

    nats: torch.Tensor
    agrees: torch.Tensor

    @property
    def mean(self) -> float:
        """Average over all tokens, in nats."""
        return float(self.nats.mean())

    @property
    def p99(self) -> float:
        """What a hundredth of the tokens exceed, in nats."""
        return float(self.nats.quantile(0.99))

    @property
    def top1_agreement(self) -> float:
        """Share of tokens at which both have the same most probable token."""
        return float(self.agrees.double().mean())


def divergences(
    reference: Target,
    models: Sequence[Target],
    answers: Sequence[Recorded],
    on_answered: Callable[[], None] = lambda: None,
) -> list[Divergence]:
    """Compare what the models expect at each token of the answers.

    Args:
        reference: Whose distributions are taken as true.
        models: What is compared with it, of the same vocabulary.
        answers: Prompts and answers; every token of an answer is compared.
        on_answered: Told after each answer.

    Returns:
        For each model the divergence at every token.
    """
    found: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in models]
    for answer in answers:
        true = _log_probabilities(reference, answer)
        for model, pairs in zip(models, found, strict=True):
            other = _log_probabilities(model, answer)
            nats = (true.exp() * (true - other)).sum(-1)
            pairs.append((nats, true.argmax(-1) == other.argmax(-1)))
        on_answered()
    return [
        Divergence(*(torch.cat(parts) for parts in zip(*pairs, strict=True))) for pairs in found
    ]


def _log_probabilities(target: Target, recorded: Recorded) -> torch.Tensor:
    """Log-probabilities before each token of the answer, float64 `[answer, vocab]`."""
    tokens = [*recorded.prompt, *recorded.answer[:-1]]
    cache = target.new_cache(pages_for(len(tokens)) * page_bytes(target.config, target.kv_dtype))
    sequence = cache.open(len(tokens))
    asked_from = len(recorded.prompt) - 1
    pieces = []
    for first, end in [
        *((at, min(at + _ROWS_AT_ONCE, asked_from)) for at in range(0, asked_from, _ROWS_AT_ONCE)),
        *(
            (at, min(at + _ROWS_AT_ONCE, len(tokens)))
            for at in range(asked_from, len(tokens), _ROWS_AT_ONCE)
        ),
    ]:
        rows = SequenceRows(
            sequence, tokens[first:end], logits="all" if first >= asked_from else "none"
        )
        output = target.forward(cache, [rows])
        output.commit([range(end - first)])
        pieces.append(output.logits[0].double().log_softmax(-1))
    return torch.cat([piece for piece in pieces if len(piece)])
