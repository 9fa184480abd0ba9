"""What SageMaker adds around a container: headers of requests and answers, and its framing."""

from typing import Final

from fastapi import Request

from peagle.serve.answering import Headers, Wire
from peagle.serve.errors import ApiError
from peagle.serve.sagemaker.errors import validation_error
from peagle.serve.sagemaker.event_stream import CONTENT_TYPE, exception, payload_part

_VARIANT: Final = "AllTraffic"
_PREFIX: Final = "X-Amzn-SageMaker-"
_CUSTOM_ATTRIBUTES: Final = f"{_PREFIX}Custom-Attributes"
_MOST_ATTRIBUTE_CHARACTERS: Final = 1024
_MOST_ID_CHARACTERS: Final = 64
_REFUSED: Final = {
    "Target-Model": "This endpoint has one model. Leave TargetModel out.",
    "Target-Container-Hostname": "This endpoint has one container. Leave "
    "TargetContainerHostname out.",
    "Inference-Component": "This endpoint has no inference components. Leave "
    "InferenceComponentName out.",
    "Session-Id": "This endpoint keeps no sessions. Leave SessionId out; prompts that begin alike "
    "need none.",
    "Enable-Explanations": "This endpoint explains nothing. Leave EnableExplanations out.",
}


class StreamWire(Wire):
    """Wraps each part of an answer in a frame of AWS's event streams."""

    def headers(self, media: str) -> Headers:
        """Give the headers of an answer whose parts, put together, are of a media type."""
        inner = (f"{_PREFIX}Content-Type".encode(), media.encode())
        return [*super().headers(CONTENT_TYPE), inner]

    def part(self, payload: bytes) -> bytes:
        """Wrap a part of the answer."""
        return payload_part(payload)

    def failure(self, error: ApiError, event: bytes) -> bytes:  # noqa: ARG002
        """Tell within a stream that it cannot go on."""
        if error.code == "request_timeout":
            told = {"Message": error.message, "ErrorCode": "ModelInvocationTimeExceeded"}
            return exception("ModelStreamError", told)
        return exception("InternalStreamFailure", {"Message": error.message})


def check_headers(request: Request) -> None:
    """Refuse what this endpoint has not, and note what tells requests apart.

    Raises:
        AwsError: A header asks for what is not there, or is too long.
    """
    for name, reason in _REFUSED.items():
        if f"{_PREFIX}{name}" in request.headers:
            raise validation_error(reason)
    variant = request.headers.get(f"{_PREFIX}Target-Variant", _VARIANT)
    if variant != _VARIANT:
        raise validation_error(
            f"Variant {variant!r} not found. Leave TargetVariant out, or use {_VARIANT}."
        )
    attributes = request.headers.get(_CUSTOM_ATTRIBUTES, "")
    if len(attributes) > _MOST_ATTRIBUTE_CHARACTERS or not attributes.isascii():
        raise validation_error(
            f"CustomAttributes cannot be {attributes[:40]!r}…: give at most "
            f"{_MOST_ATTRIBUTE_CHARACTERS} ASCII characters."
        )
    inference_id = request.headers.get(f"{_PREFIX}Inference-Id")
    if inference_id is None:
        return
    if not 1 <= len(inference_id) <= _MOST_ID_CHARACTERS or not inference_id.isprintable():
        raise validation_error(
            f"InferenceId cannot be {inference_id[:40]!r}: give 1 to {_MOST_ID_CHARACTERS} "
            "printable characters."
        )
    request.state.notes["inference_id"] = inference_id


def answer_headers(request: Request) -> Headers:
    """Give the headers of an answer: which variant gave it, and the attributes as they came."""
    headers = [(b"x-amzn-invoked-production-variant", _VARIANT.encode())]
    attributes = request.headers.get(_CUSTOM_ATTRIBUTES)
    if attributes is not None:
        headers.append((_CUSTOM_ATTRIBUTES.lower().encode(), attributes.encode("latin-1")))
    return headers
