"""What AWS's clients are told when a request cannot be answered."""

import json
from collections.abc import Mapping
from typing import Any, Final

from peagle.serve.errors import ApiError

_MESSAGE_CHARACTERS: Final = 2048
_OUTSIDE_THE_CONTAINER: Final = {
    "not_found": (404, "UnknownOperationException"),
    "method_not_allowed": (405, "UnknownOperationException"),
    "invalid_api_key": (403, "MissingAuthenticationTokenException"),
    "body_too_large": (400, "ValidationError"),
    "body_too_slow": (400, "ValidationError"),
    "loading": (429, "ModelNotReadyException"),
    "queue_full": (429, "ThrottlingException"),
    "draining": (503, "ServiceUnavailable"),
    "unexpected": (500, "InternalFailure"),
}


class AwsError(ApiError):
    """An error in AWS's shape: its type in a header, and a message in the body.

    Args:
        status: The HTTP status.
        kind: The error's type, which clients of botocore see as its `Code`.
        message: What is wrong and what to do.
        members: What the body holds beside the message.
        headers: Further headers.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            status, message, kind=kind, headers={**(headers or {}), "x-amzn-ErrorType": kind}
        )
        self._members = dict(members or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"message": self.message[:_MESSAGE_CHARACTERS], **self._members}


def validation_error(message: str) -> AwsError:
    """Refuse a request before it comes to the model."""
    return AwsError(400, "ValidationError", message)


def in_aws_shape(error: ApiError) -> AwsError:
    """Say an error as SageMaker says it.

    SageMaker stands before a container. What the container says of a request comes as `ModelError`
    with the container's own status and body; the rest has types of its own.
    """
    if isinstance(error, AwsError):
        return error
    if error.code in _OUTSIDE_THE_CONTAINER:
        status, kind = _OUTSIDE_THE_CONTAINER[error.code]
        return AwsError(status, kind, error.message, headers=error.headers)
    original = json.dumps(error.body, ensure_ascii=False)
    side = "client" if error.status < 500 else "server"
    return AwsError(
        424,
        "ModelError",
        f'Received {side} error ({error.status}) from primary with message "{original}".',
        members={
            "ErrorCode": f"{side.upper()}_ERROR_FROM_MODEL",
            "OriginalStatusCode": error.status,
            "OriginalMessage": original[:_MESSAGE_CHARACTERS],
            "LogStreamArn": "",
        },
    )
