"""The target's own choice of the token after a path: its best token, or a draw by inverse CDF.

Nothing about the draft enters here, and a choice looks at one row of logits only. That is why
speculation cannot change the text: Leviathan et al. (2022) need the drafter's distribution to
correct for it; choosing once per node and following the child that was chosen needs nothing,
and is exact for every tree that was arranged without looking at the draws.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peagle.engine.grammar import GrammarState
from peagle.engine.uniform import uniform
from peagle.errors import CheckpointError, InvalidRequestError
from peagle.sampling_params import SamplingParams

# Shares of the whole probability above which the nucleus is first looked for.
_NUCLEUS_FLOORS: Final = (1e-3, 1e-5)


class TokenChooser:
    """Chooses the tokens of one answer of one request.

    A choice is made in this order, each step on what the one before left (vLLM's order):

    1. The grammar and `logits_mask` forbid tokens after output and path.
    2. `logit_bias` is added.
    3. Before `min_tokens` tokens, end-of-sequence and stop tokens are forbidden.
    4. Penalties: repetition over prompt, output and path; then frequency and presence over
       output and path.
    5. Greedy takes the highest logit, the lowest id of equal ones. Otherwise logits are divided
       by `temperature`,
    6. `min_p` drops tokens below that fraction of the highest probability,
    7. `top_k` keeps the k highest, the lowest ids of equal ones,
    8. `top_p` keeps the shortest prefix, by falling logit and rising id, whose probability
       reaches it, probabilities being those among the tokens left by 6 and 7,
    9. one uniform number picks: with probabilities summed by rising id, the first token whose
       sum lies above the number times the total.

    Steps 1 to 4 are in float32, steps 5 to 9 in float64 with sums taken one by one, so that the
    choice depends on this row alone, to the last bit.

    Attributes:
        grammar: Where the answer is in its grammar, if it has one.
        grammar_masks: What the grammar allowed at each choice of the latest walk, `[vocab]` each,
            if log-probabilities are asked for; otherwise empty.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        *,
        vocab_size: int,
        eos_ids: Collection[int],
        seed: int,
        choice: int = 0,
        grammar: GrammarState | None = None,
    ) -> None:
        """Prepare an answer of which nothing is written yet.

        Args:
            params: The request's settings; its own `seed` is not read.
            prompt_ids: The prompt, for the repetition penalty.
            vocab_size: Length of a row of logits.
            eos_ids: The model's end-of-sequence tokens.
            seed: The request's seed, or the one drawn for it.
            choice: Which of the request's `n` answers.
            grammar: The beginning of the grammar that the answer follows.

        Raises:
            InvalidRequestError: A biased token or a stop token is not in the vocabulary.
        """
        bias = params.logit_bias or {}
        _check_ids("logit_bias", bias, vocab_size)
        _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        self._params = params
        self._vocab_size = vocab_size
        self._seed = seed
        self._choice = choice
        self.grammar = grammar
        self.grammar_masks: list[NDArray[np.bool_]] = []
        self._output: list[int] = []
        self._biased = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._ending = np.array(sorted({*eos_ids, *params.stop_token_ids}), np.int64)
        self._penalised = (
            params.repetition_penalty != 1
            or params.frequency_penalty != 0
            or params.presence_penalty != 0
        )
        if self._penalised:
            self._in_prompt = np.zeros(vocab_size, np.bool_)
            self._in_prompt[np.asarray(prompt_ids, np.int64)] = True
            self._counts = np.zeros(vocab_size, np.int32)

    @property
    def plain_greedy(self) -> bool:
        """Whether every choice of the next step is simply its row's highest logit.

        The engine may then take the highest of all rows in one call, with `highest_logits`.
        """
        params = self._params
        return params.greedy and not (
            self._penalised
            or self._biased.size
            or params.logits_mask is not None
            or self.grammar is not None
            or len(self._output) < params.min_tokens
        )

    def choose(self, logits: Tensor, path: Sequence[int] = ()) -> int:
        """Return the target's own choice, as `choose_row` does, from a row `[vocab]` of logits."""
        return self.choose_row(rows_of(logits), path)

    def choose_row(self, row: NDArray[np.float32], path: Sequence[int] = ()) -> int:
        """Return the target's own choice after the output so far and `path`.

        Args:
            row: Logits `[vocab]` of the path's last token; they are left as they are.
            path: Tokens of the nodes walked in this step, taken as if they had been emitted.

        Returns:
            A token id.

        Raises:
            InvalidRequestError: The settings leave no token to choose.
            CheckpointError: The model computed something that is not a number.
        """
        scores = self._scores(row, path)
        best = int(scores.argmax())
        top = float(scores[best])
        position = len(self._output) + len(path)
        if top == -math.inf:
            raise _no_token_left(position, self.grammar)
        if not math.isfinite(top):
            raise _not_finite()
        if self._params.greedy:
            return best
        return draw(scores, self._params, uniform(self._seed, self._choice, position))

    def commit(self, tokens: Sequence[int]) -> None:
        """Take tokens that were emitted into the output."""
        self._output.extend(tokens)
        if self.grammar is not None:
            self.grammar.commit(tokens)
        if self._penalised:
            np.add.at(self._counts, np.asarray(tokens, np.int64), 1)

    def completed_by(self, path: Sequence[int] = ()) -> bool:
        """Whether the grammar, if there is one, lets nothing follow output and path."""
        return self.grammar is not None and self.grammar.complete(path)

    def _scores(self, row: NDArray[np.float32], path: Sequence[int]) -> NDArray[np.float32]:
        """Apply steps 1 to 4; the row itself is returned where none of them applies."""
        allowed = self._allowed(path)
        too_short = len(self._output) + len(path) < self._params.min_tokens
        if allowed is None and not (self._biased.size or too_short or self._penalised):
            return row
        scores = row.copy()
        if allowed is not None:
            scores[~allowed] = -np.inf
        scores[self._biased] += self._bias
        if too_short:
            scores[self._ending] = -np.inf
        if self._penalised:
            self._penalise(scores, path)
        return scores

    def _allowed(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        by_grammar = None
        if self.grammar is not None:
            by_grammar = self.grammar.allowed(path)
            if self._params.logprobs is not None:
                # A walk begins with the empty path.
                self.grammar_masks[len(path) :] = [by_grammar]
        mask = self._params.logits_mask
        allowed = mask.allowed((*self._output, *path)) if mask is not None else None
        if allowed is None:
            return by_grammar
        if allowed.dtype != torch.bool or allowed.shape != (self._vocab_size,):
            raise InvalidRequestError(
                f"logits_mask returned {allowed.dtype} of shape {list(allowed.shape)}.",
                remedy=f"It must return torch.bool of shape [{self._vocab_size}], or None.",
                field="logits_mask",
            )
        taken: NDArray[np.bool_] = allowed.cpu().numpy()
        return taken if by_grammar is None else taken & by_grammar

    def _penalise(self, scores: NDArray[np.float32], path: Sequence[int]) -> None:
        params, counts = self._params, self._counts
        for token in path:
            counts[token] += 1
        written = counts > 0
        if params.repetition_penalty != 1:
            seen = np.flatnonzero(self._in_prompt | written)
            old = scores[seen]
            scores[seen] = np.where(
                old > 0, old / params.repetition_penalty, old * params.repetition_penalty
            )
        ids = np.flatnonzero(written)
        scores[ids] -= params.frequency_penalty * counts[ids] + params.presence_penalty
        for token in path:
            counts[token] -= 1


def draw(scores: NDArray[np.float32], params: SamplingParams, number: float) -> int:
    """Draw a token by inverse CDF: steps 5 to 9 of `TokenChooser`.

    Args:
        scores: Logits `[vocab]` after masks, bias and penalties; the highest is finite.
        params: Temperature above 0, and the filters.
        number: A uniform number in [0, 1).

    Returns:
        A token id.
    """
    top = float(scores.max())
    ids: NDArray[np.int64] | None = None
    left = scores
    if 0 < params.top_k < scores.size:
        ids = highest(scores, params.top_k)
        left = scores[ids]
    weights = _weights(left, top, params.temperature)
    if params.min_p > 0:
        # min_p and top_k both keep the highest tokens, so that their order does not matter.
        near = np.flatnonzero(weights >= params.min_p)
        ids, left, weights = _narrowed(near, ids, left, weights)
    if params.top_p < 1:
        inside = _nucleus(left, weights, top, params)
        ids, left, weights = _narrowed(inside, ids, left, weights)
    sums = _running_sums(weights)
    place = int(np.searchsorted(sums, number * sums[-1], side="right"))
    return place if ids is None else int(ids[place])


def highest(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the rising positions of the k highest of `values [n]`, the first of equal ones."""
    if k >= values.size:
        return np.arange(values.size)
    last = values.size - k
    return _from_threshold(values, np.partition(values, last)[last], k)


def highest_logits(logits: Tensor) -> list[int]:
    """Return the greedy choice of each row, with one transfer from the device of the logits.

    On a CPU, `TokenChooser.choose` for the few rows that a walk visits is faster.

    Args:
        logits: `[rows, vocab]`.

    Returns:
        A token id per row, the lowest of equal ones.

    Raises:
        CheckpointError: The model computed something that is not a number.
    """
    tops, ids = logits.max(dim=-1)
    if not bool(torch.isfinite(tops).all()):
        raise _not_finite()
    chosen: list[int] = ids.tolist()
    return chosen


def rows_of(logits: Tensor) -> NDArray[np.float32]:
    """Give logits of any shape as an array, on a CPU without copying them."""
    rows: NDArray[np.float32] = logits.detach().to("cpu", torch.float32).numpy()
    return rows


def _weights(values: NDArray[np.float32], top: float, temperature: float) -> NDArray[np.float64]:
    """Return probabilities `[n]` as multiples of the highest one, which is 1."""
    weights = values.astype(np.float64)
    weights -= top
    # A temperature near 0 sends what is below the top to minus infinity, as it should.
    with np.errstate(over="ignore"):
        weights /= temperature
    # NumPy's exp, unlike torch's, gives an element the same bits wherever it stands.
    return np.exp(weights, out=weights)


def _running_sums(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    # torch adds one by one like NumPy, in a quarter of the time.
    sums: NDArray[np.float64] = torch.from_numpy(weights).cumsum(0).numpy()
    return sums


def _nucleus(
    values: NDArray[np.float32],
    weights: NDArray[np.float64],
    top: float,
    params: SamplingParams,
) -> NDArray[np.int64]:
    """Return the rising positions of the shortest prefix that reaches `top_p`.

    Equal values have equal weights, so the sorted values alone say how long the prefix is. Few
    of them matter as a rule: the likely ones are tried before everything is sorted, with the
    same result, since a prefix does not depend on what follows it.
    """
    total = float(_running_sums(weights)[-1])
    goal = params.top_p * total
    for share in _NUCLEUS_FLOORS:
        floor = top + params.temperature * math.log(share * total)
        likely = np.flatnonzero(values >= floor)
        found = _prefix(values[likely], top, goal, params)
        if found is not None:
            return likely[_from_threshold(values[likely], *found)]
    found = _prefix(values, top, goal, params)
    # Rounding can leave the sum of all below a top_p just under 1.
    return np.arange(values.size) if found is None else _from_threshold(values, *found)


def _prefix(
    values: NDArray[np.float32], top: float, goal: float, params: SamplingParams
) -> tuple[np.float32, int] | None:
    """Return the last value and the length of the prefix whose weight reaches `goal`."""
    falling = np.ascontiguousarray(np.sort(values)[::-1])
    sums = _running_sums(_weights(falling, top, params.temperature))
    place = int(np.searchsorted(sums, goal, side="left"))
    return None if place == falling.size else (falling[place], place + 1)


def _from_threshold(
    values: NDArray[np.float32], threshold: np.float32, k: int
) -> NDArray[np.int64]:
    """Return rising positions of the k highest values, of which `threshold` is the lowest."""
    inside = np.flatnonzero(values >= threshold)
    excess = inside.size - k
    if excess == 0:
        return inside
    tied = np.flatnonzero(values[inside] == threshold)
    return np.delete(inside, tied[-excess:])


def _narrowed(
    kept: NDArray[np.int64],
    ids: NDArray[np.int64] | None,
    values: NDArray[np.float32],
    weights: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float64]]:
    return (kept if ids is None else ids[kept]), values[kept], weights[kept]


def _check_ids(field: str, ids: Collection[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(
                f"{field}: token {token} is not in the model's vocabulary.",
                remedy=f"Token ids go from 0 to {vocab_size - 1}.",
                field=field,
            )


def _no_token_left(position: int, grammar: GrammarState | None) -> InvalidRequestError:
    field = "logits_mask" if grammar is None else "structured_outputs"
    return InvalidRequestError(
        f"No token is allowed as token {position} of the output (counted from 0).",
        remedy=f"Relax what forbids them: {field} or min_tokens.",
        field=field,
    )


def _not_finite() -> CheckpointError:
    return CheckpointError(
        "The target's logits are not finite numbers.",
        remedy=(
            "The weights are damaged, or overflow in this precision: check the file's checksum, "
            "then try another precision."
        ),
    )
