"""Calls of functions in an answer, in OpenAI's shape."""

import uuid
from collections.abc import Collection
from typing import Any

from peagle.model.tool_calls import CallArguments, CallBegun, ToolCallReader, ToolFormat


class AnswerCalls:
    """Tells the calls of one answer from its text.

    Args:
        form: How the model writes calls.
        names: The functions that it may call.

    Attributes:
        count: Calls found so far.
    """

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self._reader = ToolCallReader(form, names)
        self.count = 0

    def delta(self, text: str, *, last: bool) -> dict[str, Any]:
        """Give what a piece of the answer adds to the message of a stream."""
        content = ""
        calls: dict[int, dict[str, Any]] = {}
        for event in self._reader.push(text, last=last):
            match event:
                case CallBegun(name):
                    calls[self.count] = {
                        "index": self.count,
                        "id": f"call_{uuid.uuid4().hex}",
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }
                    self.count += 1
                case CallArguments(more):
                    newest = self.count - 1
                    call = calls.setdefault(
                        newest, {"index": newest, "function": {"arguments": ""}}
                    )
                    call["function"]["arguments"] += more
                case _:
                    content += event
        told: dict[str, Any] = {}
        if content:
            told["content"] = content
        if calls:
            told["tool_calls"] = list(calls.values())
        return told

    def message(self, text: str) -> dict[str, Any]:
        """Give the content and the calls of a whole answer."""
        told = self.delta(text, last=True)
        calls = [
            {name: value for name, value in call.items() if name != "index"}
            for call in told.get("tool_calls", [])
        ]
        if not calls:
            return {"content": told.get("content", "")}
        return {"content": told.get("content"), "tool_calls": calls}
