"""Prometheus metrics, under vLLM's names where it has one, so that its dashboards work.

Names, labels and buckets are those of vLLM's `v1/metrics/loggers.py` and
`v1/spec_decode/metrics.py`. The library adds `_total` to the names of counters.
"""

import time
from collections.abc import Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from peagle.engine.sequence import Sequence as EngineSequence
from peagle.llm import LLM
from peagle.serve.service import AnswerStream

_FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_BETWEEN_TOKENS_S: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST_S: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS: Final = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))
_LABELS: Final = ("model_name", "engine")


class EngineMetrics:
    """Counts what the engine does; an `Observer` of the service.

    Args:
        model: The label `model_name`.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._model = model
        self._queried = self._hits = 0
        self._running = self._gauge("num_requests_running", "Requests that the engine works on.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait.")
        self._kv_usage = self._gauge(
            "kv_cache_usage_perc", "Share of the KV cache that is reserved; 1 is all of it."
        )
        self._prefix_queries = self._counter(
            "prefix_cache_queries", "Tokens of prompts that were looked up in the KV cache."
        )
        self._prefix_hits = self._counter(
            "prefix_cache_hits", "Tokens of prompts that were there, and were not read again."
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts read.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens written.")
        self._success = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", _FIRST_TOKEN_S
        )
        self._between = [
            self._histogram(name, "Between tokens of an answer.", _BETWEEN_TOKENS_S)
            for name in ("inter_token_latency_seconds", "time_per_output_token_seconds")
        ]
        self._end_to_end = self._histogram(
            "e2e_request_latency_seconds", "From the request to its last token.", _REQUEST_S
        )
        self._queued = self._histogram(
            "request_queue_time_seconds", "Time of waiting for a place.", _REQUEST_S
        )
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "From the place to the first token.", _REQUEST_S
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "From the first token to the last.", _REQUEST_S
        )
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Tokens of a request's prompt.", _TOKENS
        )
        self._request_generation = self._histogram(
            "request_generation_tokens", "Tokens written for a request.", _TOKENS
        )
        self._drafts = self._counter("spec_decode_num_drafts", "Candidate trees verified.")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Draft tokens.")
        self._accepted_tokens = self._counter(
            "spec_decode_num_accepted_tokens", "Draft tokens that the target chose, too."
        )
        self._by_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by depth in the tree, from 0.",
            (*_LABELS, "position"),
            registry=self.registry,
        )

    def exposition(self) -> bytes:
        """Write everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def stepped(self, llm: LLM, wrote: Sequence[EngineSequence], waiting: int) -> None:
        """Count a step."""
        engine = llm.engine
        self._running.set(len(engine.running))
        self._waiting.set(waiting + len(engine.waiting))
        self._kv_usage.set(1 - engine.kv_cache.free_pages / engine.kv_cache.total_pages)
        if engine.prefixes is not None:
            self._prefix_queries.inc(engine.prefixes.queried - self._queried)
            self._prefix_hits.inc(engine.prefixes.hits - self._hits)
            self._queried, self._hits = engine.prefixes.queried, engine.prefixes.hits
        for sequence in wrote:
            if sequence.error is None:
                self._wrote(sequence)

    def ended(self, stream: AnswerStream, outcome: str) -> None:
        """Count a request that has ended."""
        sequences = stream.generation.sequences
        self._success.labels(self._model, "0", outcome).inc()
        if outcome not in ("stop", "length") or stream.admitted_at is None:
            return
        first = min(one.first_token_at for one in sequences if one.first_token_at is not None)
        last = max(one.last_token_at for one in sequences if one.last_token_at is not None)
        prompt = len(sequences[0].prompt_ids)
        self._prompt_tokens.inc(prompt)
        self._request_prompt.observe(prompt)
        self._request_generation.observe(sum(len(one.output_ids) for one in sequences))
        self._end_to_end.observe(time.perf_counter() - stream.submitted_at)
        self._queued.observe(stream.admitted_at - stream.submitted_at)
        self._prefill.observe(max(0.0, first - stream.admitted_at))
        self._decode.observe(last - first)
        self._first_token.observe(first - stream.submitted_at)

    def _wrote(self, sequence: EngineSequence) -> None:
        new = sequence.newest
        self._generation_tokens.inc(new)
        if sequence.between_s is None:
            return
        for histogram in self._between:
            # Tokens of a step come together; each counts with its share of the time.
            for _ in range(new):
                histogram.observe(sequence.between_s / new)
        drafted = len(sequence.tree.tokens)
        if not drafted:
            return
        self._drafts.inc()
        self._draft_tokens.inc(drafted)
        self._accepted_tokens.inc(sequence.accepted)
        for depth in range(sequence.accepted):
            self._by_position.labels(self._model, "0", str(depth)).inc()

    def _gauge(self, name: str, about: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", about, _LABELS, registry=self.registry)
        return gauge.labels(self._model, "0")

    def _counter(self, name: str, about: str) -> Counter:
        counter = Counter(f"vllm:{name}", about, _LABELS, registry=self.registry)
        return counter.labels(self._model, "0")

    def _histogram(self, name: str, about: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}", about, _LABELS, registry=self.registry, buckets=buckets
        )
        return histogram.labels(self._model, "0")
