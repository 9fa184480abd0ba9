"""Tools that a request offers, and which of them must be called."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from peagle.model.tool_calls import ToolFormat, forced_calls
from peagle.serve.errors import ApiError


class Function(BaseModel):
    """A function, with a JSON schema of its arguments."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None


class Tool(BaseModel):
    """A tool that the model may use: a function."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    function: Function


class FunctionName(BaseModel):
    """Which function."""

    model_config = ConfigDict(extra="forbid")

    name: str


class NamedTool(BaseModel):
    """The tool that must be called."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def calls_grammar(
    form: ToolFormat, tools: Sequence[Tool], choice: ToolChoice, *, several: bool
) -> str | None:
    """Write the grammar of answers that must call; None where they need not.

    Args:
        form: How the model writes calls.
        tools: What may be called.
        choice: What must be.
        several: Whether there may be more than one call.
    """
    named = isinstance(choice, NamedTool)
    if not named and choice != "required":
        return None
    functions = [
        (tool.function.name, tool.function.parameters or {})
        for tool in tools
        if not isinstance(choice, NamedTool) or tool.function.name == choice.function.name
    ]
    return forced_calls(form, functions, several=several and not named)


def with_read_arguments(message: dict[str, Any], where: str) -> dict[str, Any]:
    """Give a message whose calls have arguments as objects, which chat templates write as JSON.

    Args:
        message: As it came, with arguments as JSON text.
        where: Its place in the request.

    Raises:
        ApiError: Arguments are no JSON object.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    read = []
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments", "{}") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(function, dict) or not isinstance(arguments, dict):
            field = f"{where}.tool_calls[{place}].function"
            raise ApiError(
                400,
                f"{field} needs a name, and arguments as JSON text of an object.",
                param=field,
                code="invalid_value",
            )
        read.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": read}
