"""Whether traces are wanted, by OpenTelemetry's own environment variables."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from peagle.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from peagle.serve.traces import RequestTraces

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"


def configured_traces(model: str, environ: Mapping[str, str]) -> "RequestTraces | None":
    """Give what traces requests, or None where no exporter is configured.

    An exporter is configured by an OTLP endpoint, or by `OTEL_TRACES_EXPORTER=otlp`; the latter's
    `none`, and `OTEL_SDK_DISABLED=true`, turn it off. The library reads the other variables.

    Args:
        model: The model's name.
        environ: The environment.

    Raises:
        InvalidRequestError: The exporter or its protocol is none that is sent here.
        UnsupportedError: OpenTelemetry is not installed.
    """
    named = next((name for name in _ENDPOINTS if environ.get(name)), None)
    exporter = environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if named else "none")
    if exporter == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    _require("OTEL_TRACES_EXPORTER", exporter, "otlp")
    told = next((name for name in _PROTOCOLS if environ.get(name)), None)
    if told is not None:
        _require(told, environ[told], _PROTOCOL)
    try:
        from peagle.serve.traces import RequestTraces
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"{named or 'OTEL_TRACES_EXPORTER'} asks for traces, but {error.name} is not "
            "installed.",
            remedy="Install it with `pip install 'peagle[otel]'`, or set OTEL_SDK_DISABLED=true.",
            field="OTEL_TRACES_EXPORTER",
        ) from None
    return RequestTraces(model, named_service=_names_service(environ))


def _require(variable: str, value: str, only: str) -> None:
    if value != only:
        raise InvalidRequestError(
            f"{variable} is {value!r}, which is not supported.",
            remedy=f"Set it to {only}, or set OTEL_SDK_DISABLED=true.",
            field=variable,
        )


def _names_service(environ: Mapping[str, str]) -> bool:
    attributes = environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return "OTEL_SERVICE_NAME" in environ or "service.name=" in attributes
