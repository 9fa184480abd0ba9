"""Refusals in the shape that whoever calls a path expects."""

from fastapi.responses import JSONResponse
from starlette.types import Scope

from peagle.serve.errors import ApiError
from peagle.serve.sagemaker.errors import in_aws_shape


def refusal(scope: Scope, error: ApiError) -> JSONResponse:
    """Say why a request is not answered: to callers of an endpoint as SageMaker does.

    Args:
        scope: The request.
        error: Why.
    """
    if scope["path"].startswith("/endpoints/"):
        error = in_aws_shape(error)
    return JSONResponse(error.body, error.status, error.headers)
