"""Log-probabilities of emitted tokens, as OpenAI's API defines them."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peagle.engine.choice import highest


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model itself thought of a token, before any sampling setting.

    Attributes:
        token_id: The token that was emitted.
        logprob: Its natural log-probability.
        rank: Its place among all tokens by falling probability and rising id, from 1.
        top: The most probable tokens with their log-probabilities, in that order.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


def token_logprobs(
    logits: Tensor, token_id: int, top: int, *, allowed: NDArray[np.bool_] | None = None
) -> TokenLogprobs:
    """Describe an emitted token by the model's own distribution.

    Args:
        logits: The raw row `[vocab]` from which the token was chosen.
        token_id: The token that was emitted.
        top: How many of the most probable tokens to list.
        allowed: Tokens `[vocab]` that a grammar allows; the others are taken to be impossible, and
            are not listed.

    Returns:
        Log-probabilities computed in float64.
    """
    row = logits.detach().to("cpu", torch.float32).numpy()
    if allowed is not None:
        row = np.where(allowed, row, np.float32(-np.inf))
        top = min(top, int(np.count_nonzero(allowed)))
    shifted = row.astype(np.float64)
    shifted -= shifted.max()
    # Summed one by one: the same bits on every machine that computes the same logits.
    mass = float(torch.from_numpy(np.exp(shifted)).cumsum(0)[-1])
    log_mass = float(np.log(mass))
    own = row[token_id]
    before = np.count_nonzero(row > own) + np.count_nonzero(row[:token_id] == own)
    ids = highest(row, top) if top > 0 else np.empty(0, np.int64)
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(shifted[token_id]) - log_mass,
        rank=1 + int(before),
        top=[(int(i), float(shifted[i]) - log_mass) for i in ids],
    )
