"""A request on its way through the engine."""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy

from peagle.engine.sequence import Sequence as EngineSequence
from peagle.engine.step_seconds import StepSeconds
from peagle.llm.result import Choice, Piece, Result, Timing


class Generation:
    """A request on its way through the engine. Iterate over it for the pieces as they come.

    Args:
        sequences: Its answers in the engine.
        seed: What sampling draws with.
        step: Advances the engine.
        abort: Takes answers out of the engine.
        seconds: Where the engine's time goes, which it keeps adding up.

    Attributes:
        sequences: As given.
    """

    def __init__(
        self,
        sequences: list[EngineSequence],
        seed: int,
        *,
        step: Callable[[], object],
        abort: Callable[[Sequence[EngineSequence]], None],
        seconds: StepSeconds,
    ) -> None:
        self.sequences = sequences
        self._seed = seed
        self._step = step
        self._abort = abort
        self._told = [(0, 0)] * len(sequences)
        self._started = time.perf_counter()
        self._seconds = seconds
        self._seconds_before = copy(seconds)

    @property
    def finished(self) -> bool:
        """Whether all answers have ended."""
        return all(sequence.finished for sequence in self.sequences)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that its first answer did not have to read."""
        return self.sequences[0].cached_tokens or 0

    @property
    def result(self) -> Result:
        """The answers, which must all have ended.

        Raises:
            InvalidRequestError: The settings left no token to choose.
            CheckpointError: The model computed something that is not a number.
        """
        self._raise_failure()
        # Before the timing: the text is made when it is looked at.
        choices = [_choice(index, sequence) for index, sequence in enumerate(self.sequences)]
        return Result(
            prompt_token_ids=self.sequences[0].prompt_ids,
            cached_tokens=self.cached_tokens,
            choices=choices,
            method=self.sequences[0].spec.method or "none",
            seed=self._seed,
            timing=self._timing(),
        )

    def __iter__(self) -> Iterator[Piece]:
        """Run the engine, giving pieces as they come; stopping early drops the request."""
        try:
            while not self.finished:
                self._step()
                yield from self.news()
        finally:
            self.drop()
        self._raise_failure()

    def news(self) -> list[Piece]:
        """Give what was written since the last call."""
        pieces = []
        for index, sequence in enumerate(self.sequences):
            tokens, characters = self._told[index]
            if len(sequence.output_ids) == tokens:
                continue
            text = sequence.stops.text
            pieces.append(
                Piece(
                    index=index,
                    text=text[characters:],
                    token_ids=sequence.output_ids[tokens:],
                    origins=sequence.origins[tokens:],
                    finish_reason=sequence.stops.finish_reason,
                    tree=sequence.tree,
                    stop_reason=sequence.stops.stop_reason,
                    logprobs=sequence.logprobs[tokens:]
                    if sequence.params.logprobs is not None
                    else None,
                )
            )
            self._told[index] = (len(sequence.output_ids), len(text))
        return pieces

    def drop(self) -> None:
        """Free what unfinished answers hold."""
        self._abort([sequence for sequence in self.sequences if not sequence.finished])

    def _raise_failure(self) -> None:
        for sequence in self.sequences:
            if sequence.error is not None:
                raise sequence.error

    def _timing(self) -> Timing:
        first = min(s.first_token_at for s in self.sequences if s.first_token_at is not None)
        last = max(s.last_token_at for s in self.sequences if s.last_token_at is not None)
        later = sum(len(sequence.output_ids) - 1 for sequence in self.sequences)
        return Timing(
            ttft_s=first - self._started,
            decode_s=last - first,
            tokens_per_s=later / (last - first) if last > first else 0.0,
            steps=self._seconds.since(self._seconds_before),
            detokenizing_s=sum(sequence.stops.detokenizing_s for sequence in self.sequences),
        )


def _choice(index: int, sequence: EngineSequence) -> Choice:
    assert sequence.stops.finish_reason is not None
    return Choice(
        index=index,
        text=sequence.stops.text,
        token_ids=sequence.output_ids,
        finish_reason=sequence.stops.finish_reason,
        stop_reason=sequence.stops.stop_reason,
        origins=sequence.origins,
        logprobs=sequence.logprobs if sequence.params.logprobs is not None else None,
        statistics=sequence.statistics,
    )
