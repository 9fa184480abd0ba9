"""Turn pydantic's findings into one line that names the field, the value and the remedy."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from peagle.errors import InvalidRequestError

_SHOWN_VALUE_CHARACTERS = 60


def request_error(
    found: ValidationError, subject: str, remedies: Mapping[str, str], *, within: str = ""
) -> Exception:
    """Describe the first thing wrong in a block that the user wrote.

    Args:
        found: What pydantic reported.
        subject: What the block is, as the user knows it ("parallel_drafting_spec").
        remedies: What each field accepts, by field name.
        within: The field that holds the block, where it is part of another.

    Returns:
        An `InvalidRequestError` to raise.
    """
    first = found.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else None
    named = ".".join(filter(None, (within, field))) or None
    if first["type"] == "extra_forbidden":
        known = ", ".join(remedies)
        return InvalidRequestError(
            f"{subject}: unknown key {field!r}.", remedy=f"Known keys: {known}.", field=named
        )
    if field is None:
        message = first["msg"].removeprefix("Value error, ")
        problem, _, remedy = message.partition(" | ")
        if not remedy:
            remedy = f"Give an object with any of the keys {', '.join(remedies)}."
        return InvalidRequestError(f"{subject}: {problem}", remedy=remedy, field=named)
    return InvalidRequestError(
        f"{subject}: {field} cannot be {_shown(first['input'])}.",
        remedy=f"Allowed: {remedies.get(field, first['msg'])}.",
        field=named,
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE_CHARACTERS else text[:_SHOWN_VALUE_CHARACTERS] + "…"
