"""OpenTelemetry traces: a span for each request, with its time in queue, prefill and decode.

Attributes are those of OpenTelemetry's conventions for generative AI where it has one; what
speculation did is under `peagle`. Prompts and answers are not among them.
"""

import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.types import ASGIApp, Receive, Scope, Send

from peagle.engine.sequence import Sequence as EngineSequence
from peagle.engine.statistics import pooled
from peagle.llm import LLM
from peagle.serve.service import AnswerStream

_NANOSECONDS: Final = 10**9


class TraceContext:
    """Lets spans be children of the client's, which names its own in the header `traceparent`.

    Args:
        app: What answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        told = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope.get("headers", ())
        }
        token = context.attach(propagate.extract(told))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)


class RequestTraces:
    """Writes the spans of requests that have ended; an `Observer` of the service.

    Args:
        model: The model's name.
        named_service: Whether the environment names the service; it is `peagle` if not.

    Attributes:
        context: Middleware that takes the client's span from a request's headers.
    """

    context = TraceContext

    def __init__(self, model: str, *, named_service: bool) -> None:
        name = {} if named_service else {"service.name": "peagle"}
        self._provider = TracerProvider(
            resource=Resource.create({**name, "service.version": version("peagle")})
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("peagle.serve")
        self._model = model

    def stepped(self, llm: LLM, wrote: Sequence[EngineSequence], waiting: int) -> None:
        """Do nothing: spans are of whole requests."""

    def ended(self, stream: AnswerStream, outcome: str) -> None:
        """Write a request's spans."""
        # Spans take the time of day, the engine a clock that nobody sets.
        now, day = time.perf_counter(), time.time_ns()

        def at(when: float) -> int:
            return day - round((now - when) * _NANOSECONDS)

        sequences = stream.generation.sequences
        prompt = len(sequences[0].prompt_ids)
        written = sum(len(one.output_ids) for one in sequences)
        request = self._tracer.start_span(
            f"generate {self._model}",
            context=stream.context.run(context.get_current),
            kind=trace.SpanKind.SERVER,
            start_time=at(stream.submitted_at),
            attributes={
                "gen_ai.operation.name": "generate_content",
                "gen_ai.request.model": self._model,
                "gen_ai.usage.input_tokens": prompt,
                "gen_ai.usage.output_tokens": written,
                "gen_ai.response.finish_reasons": [outcome],
            },
        )
        if outcome == "error":
            request.set_status(trace.StatusCode.ERROR)
        within = trace.set_span_in_context(request)

        def part(name: str, begin: float, end: float, **attributes: float) -> None:
            span = self._tracer.start_span(
                name,
                within,
                start_time=at(begin),
                attributes={f"peagle.{key}": value for key, value in attributes.items()},
            )
            span.end(at(end))

        admitted = stream.admitted_at
        part("queue", stream.submitted_at, admitted or now)
        if admitted is not None:
            first = min((one.first_token_at or now for one in sequences), default=now)
            part("prefill", admitted, first, prompt_tokens=prompt)
            if written:
                did = pooled(one.statistics for one in sequences)
                # What was never drafted for has no acceptance length.
                length = did.acceptance_length
                part(
                    "decode", first, max(one.last_token_at or first for one in sequences),
                    tokens=written, target_passes=did.target_passes,
                    drafted_tokens=did.drafted_tokens, accepted_tokens=did.accepted_tokens,
                    **({} if length is None else {"acceptance_length": length}),
                )  # fmt: skip
        request.end(day)

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()
