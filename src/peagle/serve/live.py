"""What the last half minute was like, exactly: what the page's charts show."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import psutil

from peagle.engine.sequence import Sequence as EngineSequence
from peagle.llm import LLM
from peagle.serve.service import AnswerStream

_WINDOW_S: Final = 30.0
_RATE_WINDOW_S: Final = 3.0
_MOST_KEPT: Final = 20_000


class _Step(NamedTuple):
    """What a step did for one answer.

    Attributes:
        at: When it ended, by `time.perf_counter`.
        tokens: Tokens written.
        between_s: Seconds since the answer's step before; None with its first token.
        accepted: Draft tokens accepted; None where nothing was drafted.
    """

    at: float
    tokens: int
    between_s: float | None
    accepted: int | None


class LiveFigures:
    """Remembers recent steps; an `Observer` of the service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: deque[_Step] = deque(maxlen=_MOST_KEPT)
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=_MOST_KEPT)
        self._requests = {"running": 0, "waiting": 0}
        self._kv_cache = {"kv_used_bytes": 0, "kv_total_bytes": 0}
        self._process = psutil.Process()

    def stepped(self, llm: LLM, wrote: Sequence[EngineSequence], waiting: int) -> None:
        """Remember a step."""
        engine, cache = llm.engine, llm.engine.kv_cache
        now = time.perf_counter()
        steps = [_step(sequence, now) for sequence in wrote if sequence.error is None]
        with self._lock:
            self._steps.extend(steps)
            self._requests = {
                "running": len(engine.running),
                "waiting": waiting + len(engine.waiting),
            }
            self._kv_cache = {
                "kv_used_bytes": cache.used_bytes,
                "kv_total_bytes": cache.total_pages * cache.bytes_per_page,
            }

    def ended(self, stream: AnswerStream, outcome: str) -> None:  # noqa: ARG002
        """Remember how long a request's first token took."""
        times = [one.first_token_at for one in stream.generation.sequences]
        first = min((one for one in times if one is not None), default=None)
        if first is not None:
            with self._lock:
                self._first_tokens.append((time.perf_counter(), first - stream.submitted_at))

    def figures(self) -> dict[str, Any]:
        """Give the figures of the last half minute; rates are of the last three seconds.

        Times are in seconds. What nothing is known of is None. Of a step's tokens, which come
        together, each counts with its share of the time.
        """
        now = time.perf_counter()
        with self._lock:
            steps = [one for one in self._steps if now - one.at <= _WINDOW_S]
            first = [seconds for at, seconds in self._first_tokens if now - at <= _WINDOW_S]
            requests, kv_cache = self._requests, self._kv_cache
        between = [(one.between_s / one.tokens, one.tokens) for one in steps if one.between_s]
        recent = sum(one.tokens for one in steps if now - one.at <= _RATE_WINDOW_S)
        later = [one for one in steps if one.between_s is not None]
        return {
            "window_s": _WINDOW_S,
            "tokens_per_s": recent / _RATE_WINDOW_S,
            "ttft_s": _quantiles([(seconds, 1) for seconds in first]),
            "inter_token_s": _quantiles(between),
            "acceptance_length": sum(one.tokens for one in later) / len(later) if later else None,
            "acceptance_by_depth": _by_depth(
                [one.accepted for one in steps if one.accepted is not None]
            ),
            "requests": requests,
            "memory": {"process_bytes": self._process.memory_info().rss, **kv_cache},
        }


def _step(sequence: EngineSequence, now: float) -> _Step:
    accepted = sequence.accepted if sequence.tree.tokens else None
    return _Step(now, sequence.newest, sequence.between_s, accepted)


def _quantiles(weighted: Sequence[tuple[float, int]]) -> dict[str, float] | None:
    """Give median and 99th percentile of values with their weights."""
    if not weighted:
        return None
    values, weights = np.array(weighted).T
    middle, high = np.quantile(values, (0.5, 0.99), weights=weights, method="inverted_cdf")
    return {"p50": float(middle), "p99": float(high)}


def _by_depth(accepted: Sequence[int]) -> list[float]:
    """Give the share of trees whose path was accepted down to each depth, from 1."""
    deepest = max(accepted, default=0)
    return [
        sum(one >= depth for one in accepted) / len(accepted) for depth in range(1, deepest + 1)
    ]
