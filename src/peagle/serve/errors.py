"""What a client is told when its request cannot be answered, in OpenAI's shape."""

from collections.abc import Mapping
from typing import Any, Self

from peagle.errors import InvalidRequestError, OutOfMemoryBudgetError, PeagleError, UnsupportedError

_CLIENTS_FAULT = (InvalidRequestError, OutOfMemoryBudgetError, UnsupportedError)


class ApiError(Exception):
    """A request that is not answered.

    Args:
        status: The HTTP status.
        message: What is wrong and what to do.
        kind: OpenAI's `type`.
        param: The field of the request that is to blame.
        code: A word for programs.
        headers: Headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, error: PeagleError, names: Mapping[str, str] | None = None) -> Self:
        """Describe a mistake that the engine found.

        Args:
            error: The mistake.
            names: What the request calls the fields that the engine names.
        """
        field = (names or {}).get(error.field or "", error.field)
        message = str(error)
        if error.field and field and "." in error.field:
            # A path of names is no word of the sentence: it can be replaced.
            message = message.replace(error.field, field)
        if isinstance(error, _CLIENTS_FAULT):
            return cls(400, message, param=field)
        return cls(500, str(error), kind="server_error")

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def not_serving(state: str) -> ApiError:
    """Refuse a request because the server is not ready."""
    reason = {
        "loading": "The model is still being loaded. Try again in some seconds.",
        "draining": "The server is shutting down. Ask another one.",
        "failed": "The engine has failed. Restart the server; its log says why.",
    }[state]
    return ApiError(
        503,
        reason,
        kind="service_unavailable",
        code=state,
        headers={"Retry-After": "2"} if state == "loading" else {},
    )


def queue_full(waiting: int, retry_after_s: int) -> ApiError:
    """Refuse a request because too many wait."""
    return ApiError(
        429,
        f"{waiting} requests wait already. Try again in {retry_after_s} s.",
        kind="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(retry_after_s)},
    )


def timed_out(seconds: float) -> ApiError:
    """Give a request up because it took too long."""
    return ApiError(
        504,
        f"The request took longer than {seconds:g} s. Ask for fewer tokens, or try again later.",
        kind="timeout_error",
        code="request_timeout",
        headers={"x-should-retry": "false"},
    )
