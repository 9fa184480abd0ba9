"""When an answer ends, and what of its text may be shown before that is known."""

import time
from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from peagle.errors import InvalidRequestError
from peagle.sampling_params import SamplingParams

FinishReason = Literal["stop", "length"]


class StreamingDetokenizer(Protocol):
    """Turns the tokens of one answer into text, piece by piece."""

    def push(self, ids: Sequence[int]) -> str:
        """Take the next tokens and return the text that no later token can change."""
        ...

    def flush(self) -> str:
        """Return what is left, such as a character that was never completed."""
        ...


class StopRule:
    """Decides after every emitted token whether the answer ends with it.

    Of several reasons the first of these holds: a stop string in the text, end-of-sequence, a
    stop token, a complete grammar, the length. A stop string counts where its last character
    comes out, so that the text does not depend on how it was cut into tokens; of strings that end
    together, the one that began first counts. It lies wholly in the output, since the prompt is
    never looked at.
    Until `min_tokens` tokens are written, strings that are complete by then do not count.

    Without stop strings nothing depends on the text, and tokens are only turned into it when it is
    looked at: by whoever streams the answer, and not within the engine's step.

    Attributes:
        finish_reason: "stop", "length", or None while the answer goes on.
        stop_reason: The stop string or the stop token that ended it; None for end-of-sequence
            and length.
        detokenizing_s: Seconds spent on turning tokens into text.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_ids: Collection[int],
        context_room: int,
        detokenizer: StreamingDetokenizer,
    ) -> None:
        """Prepare an answer of which nothing is written yet.

        Args:
            params: The request's settings.
            eos_ids: The model's end-of-sequence tokens.
            context_room: Tokens of the model's context that the prompt leaves free.
            detokenizer: A fresh one, that has not seen the prompt.

        Raises:
            InvalidRequestError: The prompt leaves no room for a token.
        """
        if context_room < 1:
            raise InvalidRequestError(
                "The prompt fills the model's context and leaves no room for an answer.",
                remedy="Shorten the prompt, or use a model with a longer context.",
                field="prompt",
            )
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._params = params
        self._eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._stop_ids = frozenset(params.stop_token_ids)
        self._limit = min(context_room, params.max_tokens or context_room)
        self._detokenizer = detokenizer
        self._count = 0
        self._ids: list[int] = []
        self._read = 0
        self.detokenizing_s = 0.0
        self._shown = ""
        self._held = ""  # The longest end of the text that could begin a stop string.

    @property
    def text(self) -> str:
        """What may be shown: all but an end that could yet turn out to begin a stop string.

        It only ever grows. Once the answer is finished it is the whole text.
        """
        if not self._params.stop:
            # Asked before the tokens: once the answer is finished, no more of them come.
            finished = self.finish_reason is not None
            end = len(self._ids)
            if self._read < end:
                self._shown += self._detokenized(self._ids[self._read : end], last=finished)
                self._read = end
        return self._shown

    @property
    def remaining(self) -> int:
        """How many more tokens the length limits allow."""
        return self._limit - self._count

    def push(self, token: int, *, complete: bool = False) -> FinishReason | None:
        """Take an emitted token.

        Args:
            token: The token; the answer must not be finished.
            complete: Whether the answer's grammar lets nothing follow, so that `min_tokens` and
                `ignore_eos` cannot be heeded.

        Returns:
            Why the answer ends with this token, or None.
        """
        assert self.finish_reason is None, "a finished answer takes no tokens"
        self._count += 1
        finish: FinishReason | None
        reason: str | int | None
        finish, reason = self._token_finish(token, complete=complete)
        if not self._params.stop:
            self._ids.append(token)
            self.stop_reason, self.finish_reason = reason, finish
            return finish
        new = self._detokenized([token], last=finish is not None)
        match = self._match(new) if self._count > self._params.min_tokens else None
        seen = self._held + new
        if match is not None:
            start, stop = match
            kept = start + len(stop) if self._params.include_stop_str_in_output else start
            finish, reason = "stop", stop
        elif finish is not None:
            kept = len(seen)
        else:
            kept = self._possible_start(seen)
        self._shown += seen[:kept]
        self._held = "" if finish is not None else seen[kept:]
        self.finish_reason, self.stop_reason = finish, reason
        return finish

    def _detokenized(self, ids: Sequence[int], *, last: bool) -> str:
        began = time.perf_counter()
        text = self._detokenizer.push(ids)
        if last:
            text += self._detokenizer.flush()
        self.detokenizing_s += time.perf_counter() - began
        return text

    def _token_finish(
        self, token: int, *, complete: bool
    ) -> tuple[FinishReason | None, int | None]:
        if token in self._eos_ids:
            return "stop", None
        if token in self._stop_ids:
            return "stop", token
        if complete:
            return "stop", None
        if self._count >= self._limit:
            return "length", None
        return None, None

    def _match(self, new: str) -> tuple[int, str] | None:
        """Find the stop string to end first in held and new text, with its place there."""
        seen = self._held + new
        found = []
        for stop in self._params.stop:
            # Its last character is new: what ended earlier would have ended the answer.
            start = seen.find(stop, max(0, len(self._held) - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _possible_start(self, seen: str) -> int:
        """Return where in `seen` the earliest unfinished stop string could begin."""
        for start in range(len(seen)):
            end = seen[start:]
            if any(len(end) < len(stop) and stop.startswith(end) for stop in self._params.stop):
                return start
        return len(seen)
