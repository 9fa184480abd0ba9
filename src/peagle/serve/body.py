"""Bodies of requests: limits of size and time, JSON, and errors that name the field."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from peagle.serve.errors import ApiError

_SECONDS_TO_SEND: Final = 60.0
_SHOWN_VALUE_CHARACTERS: Final = 60
_SHOWN_FIELD_CHARACTERS: Final = 100
_PLAIN_LOCATIONS: Final = ("str", "int", "float", "list", "dict")

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, most: int) -> bytes:
    """Read a body.

    Args:
        request: The request.
        most: Most bytes.

    Raises:
        ApiError: It is too large, or does not come in time.
    """
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(_SECONDS_TO_SEND):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise ApiError(
            408,
            f"The body did not come within {_SECONDS_TO_SEND:g} s. Send it again.",
            code="body_too_slow",
        ) from None
    except ClientDisconnect:
        raise ApiError(400, "The client went while it sent the body.") from None
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object; keys without a value are left out.

    Raises:
        ApiError: It is no UTF-8, no JSON, too deep, or no object.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(
            400, f"The body is no valid UTF-8 (byte {error.start}). Send JSON in UTF-8."
        ) from None
    try:
        found = from_json(text)
    except ValueError as error:
        raise ApiError(400, f"The body is no valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(found, dict):
        raise ApiError(400, "The body is no JSON object. Send an object with the request's fields.")
    return {name: value for name, value in found.items() if value is not None}


def checked(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """Read an object's fields as a model describes them.

    Raises:
        ApiError: A field is unknown, missing or wrong.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as found:
        first = found.errors(include_url=False)[0]
    where = _where(first["loc"])
    if first["type"] == "extra_forbidden":
        raise ApiError(
            400, f"{where} is not supported. Leave it out.", param=where, code="unsupported_field"
        )
    if first["type"] == "missing":
        raise ApiError(400, f"{where} is missing.", param=where, code="missing_field")
    reason = first["msg"].removeprefix("Value error, ").rstrip(".")
    if not where:
        raise ApiError(400, f"{reason}.")
    raise ApiError(
        400, f"{where} cannot be {_shown(first['input'])}: {reason}.", param=where,
        code="invalid_value",
    )  # fmt: skip


def description(*kinds: type[BaseModel]) -> dict[str, Any]:
    """Describe a body of any of these kinds in the OpenAPI document; it is read by hand."""
    schemas = []
    for kind in kinds:
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.append(_inlined(schema, schema.pop("$defs", {})))
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _inlined(definitions[reference.rsplit("/", 1)[1]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}


def _where(location: tuple[int | str, ...]) -> str:
    """Write a place as people do: `messages[0].role`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not (path and (part in _PLAIN_LOCATIONS or "[" in part or part == "[key]")):
            path += f".{part}" if path else (part or '""')
    return path if len(path) <= _SHOWN_FIELD_CHARACTERS else path[:_SHOWN_FIELD_CHARACTERS] + "…"


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, dict | list) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_VALUE_CHARACTERS else text[:_SHOWN_VALUE_CHARACTERS] + "…"


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, f"The body is larger than {most:,} bytes. Send less.", code="body_too_large"
    )
