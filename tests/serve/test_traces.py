"""OpenTelemetry traces, received by a collector of HTTP."""

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from peagle.errors import PeagleError
from peagle.serve.tracing import configured_traces

SERVE = "from peagle.cli import main; main()"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(http.server.ThreadingHTTPServer):
    """Takes what exporters send to `/v1/traces`."""

    def __init__(self) -> None:
        self.taken: list[ExportTraceServiceRequest] = []
        taken = self.taken

        class Taking(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                taken.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Taking)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def attributes(told: Any) -> dict[str, Any]:
    found = {}
    for one in told.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        if kind == "array_value":
            value = [each.string_value for each in value.values]
        found[one.key] = value
    return found


def test_a_request_becomes_spans(collector: Collector) -> None:
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
    }
    told = [sys.executable, "-c", SERVE, "serve", "smollm2", "--port", "0"]
    server = subprocess.Popen(told, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        assert "is ready" in server.stdout.readline()
        url = server.stdout.readline().split()[1].removesuffix("/v1")
        body = {"prompt": "one two three one two three one two", "max_tokens": 30,
                "ignore_eos": True, "temperature": 0, "return_speculation": True}  # fmt: skip
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60).json()
        httpx.post(f"{url}/v1/completions", json={**body, "max_tokens": 1}, timeout=60)
        # What was not sent yet is sent as the server ends.
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
    finally:
        server.kill()
        server.communicate()
    sent = [resource for one in collector.taken for resource in one.resource_spans]
    for resource in sent:
        described = attributes(resource.resource)
        assert described["service.name"] == "peagle"
        assert described["deployment.environment"] == "test"
    spans = [span for one in sent for scope in one.scope_spans for span in scope.spans]
    assert len(spans) == 8
    ours = {span.name: span for span in spans if span.trace_id.hex() == TRACE}
    assert set(ours) == {"generate smollm2-135m-instruct", "queue", "prefill", "decode"}
    request = ours.pop("generate smollm2-135m-instruct")
    assert request.parent_span_id.hex() == PARENT
    assert {span.parent_span_id for span in ours.values()} == {request.span_id}
    usage, speculation = answer["usage"], answer["speculation"]
    described = attributes(request)
    assert described["gen_ai.request.model"] == "smollm2-135m-instruct"
    assert described["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert described["gen_ai.usage.output_tokens"] == 30
    assert described["gen_ai.response.finish_reasons"] == ["length"]
    assert attributes(ours["prefill"]) == {"peagle.prompt_tokens": usage["prompt_tokens"]}
    assert attributes(ours["decode"]) == {
        "peagle.tokens": 30,
        "peagle.target_passes": speculation["target_passes"],
        "peagle.drafted_tokens": speculation["drafted_tokens"],
        "peagle.accepted_tokens": speculation["accepted_tokens"],
        "peagle.acceptance_length": pytest.approx(speculation["acceptance_length"]),
    }
    assert (
        request.start_time_unix_nano
        == ours["queue"].start_time_unix_nano
        <= ours["queue"].end_time_unix_nano
        == ours["prefill"].start_time_unix_nano
        < ours["prefill"].end_time_unix_nano
        == ours["decode"].start_time_unix_nano
        < ours["decode"].end_time_unix_nano
        <= request.end_time_unix_nano
    )
    others = [span for span in spans if span.trace_id.hex() != TRACE]
    assert [span.name for span in others if not span.parent_span_id] == [request.name]
    (single,) = (span for span in others if span.name == "decode")
    assert "peagle.acceptance_length" not in attributes(single)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    ],
)
def test_nothing_is_traced_unless_asked_for(environ: dict[str, str]) -> None:
    assert configured_traces("m", environ) is None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'.*Set it to otlp"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'.*Set it to http/protobuf",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(PeagleError, match=said):
        configured_traces("m", environ)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "peagle.serve.traces", raising=False)
    with pytest.raises(PeagleError, match=r"opentelemetry.*pip install 'peagle\[otel\]'"):
        configured_traces("m", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"})
