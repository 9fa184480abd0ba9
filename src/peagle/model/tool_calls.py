"""Calls of functions in what a model writes, in the form that its chat template asks for."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_HEAD: Final = re.compile(
    r'\s*\[?\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_BETWEEN: Final = re.compile(r"[\s}\],;]*")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls.

    Attributes:
        begin: Text before a call; empty where a call is the whole answer.
        end: Text after it.
        arguments: Key of the arguments.
        listed: Whether calls stand in one JSON list between `begin` and `end`.
    """

    begin: str
    end: str
    arguments: str
    listed: bool


HERMES: Final = ToolFormat("<tool_call>\n", "\n</tool_call>", "arguments", listed=False)
"""Hermes, Qwen, SmolLM3: a JSON object between tags, once for each call."""

SMOLLM2: Final = ToolFormat("<tool_call>", "</tool_call>", "arguments", listed=True)
"""SmolLM2: a JSON list of calls between tags."""

LLAMA: Final = ToolFormat("", "", "parameters", listed=False)
"""Llama 3: the answer is a JSON object."""


def tool_format(template: str) -> ToolFormat | None:
    """Tell from a chat template's source how the model writes calls; None where it does not."""
    if not re.search(r"\btools\b", template):
        return None
    if "<tool_call>" in template:
        return SMOLLM2 if "<tool_call>[" in template else HERMES
    return LLAMA if '"parameters"' in template else None


def forced_calls(
    form: ToolFormat, functions: Sequence[tuple[str, Mapping[str, Any]]], *, several: bool
) -> str:
    """Write the grammar, in Lark's syntax, of an answer that does nothing but call.

    Args:
        form: How the model writes calls.
        functions: Names and JSON schemas of the arguments of those that may be called.
        several: Whether there may be more than one call.
    """
    begin, end, more = form.begin, form.end, f"\n{form.begin}"
    if form.listed:
        begin, end, more = f"{begin}[", f"]{end}", ", "
    one = "call" if form.listed else f"call {_quoted(form.end)}"
    repeated = f" ({_quoted(more)} {one})*" if several and form.begin else ""
    if form.listed:
        start = f"{_quoted(begin)} call{repeated} {_quoted(end)}"
    else:
        start = f"{_quoted(begin)} {one}{repeated}"
    lines = [f"start: {start}", "call: " + " | ".join(f"call_{i}" for i in range(len(functions)))]
    for i, (name, schema) in enumerate(functions):
        head = f'{{"name": {json.dumps(name)}, "{form.arguments}": '
        # A document of its own, so that references within the schema hold.
        lines += [
            f'call_{i}: {_quoted(head)} arguments_{i} "}}"',
            f"arguments_{i}: %json {json.dumps({'type': 'object', **schema})}",
        ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call begins, of this function."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the newest call's arguments, as JSON text."""

    text: str


Event = str | CallBegun | CallArguments
"""Text for the reader, or part of a call."""


class ToolCallReader:
    """Tells calls from text in an answer, piece by piece.

    What turns out to be no call is text, unchanged.

    Args:
        form: How the model writes calls.
        names: The functions; where calls have no tags, only objects that name one are calls.
    """

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self._begin = form.begin.strip()
        self._end = form.end.strip()
        self._names = names
        self._held = ""
        self._step = self._in_text if self._begin else self._in_call
        self._behind_call = False
        # Within arguments: open brackets, and whether in a string or behind a backslash there.
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def push(self, text: str, *, last: bool = False) -> list[Event]:
        """Take the next piece of the answer, the last of all where said, and tell what it adds."""
        self._held += text
        found: list[Event] = []
        while self._step(found, last):
            pass
        return found

    def _in_text(self, found: list[Event], last: bool) -> bool:
        held, begin = self._held, self._begin
        place = held.find(begin) if begin else -1
        end = place
        if place < 0:
            end = len(held)
            if begin and not last:
                end -= _begun_at_end(held, begin)
        text, self._held = held[:end], held[end:]
        if self._behind_call:
            # White space that separates one call from the next is no text.
            text = text.lstrip()
        if text:
            found.append(text)
            self._behind_call = False
        if place >= 0:
            self._step = self._in_call
        return place >= 0

    def _in_call(self, found: list[Event], last: bool) -> bool:
        held = self._held
        tagged = bool(self._begin) and held.startswith(self._begin)
        start = len(self._begin) if tagged else 0
        head = _HEAD.match(held, start)
        if head is not None:
            name = json.loads(head[1], strict=False)
            if self._begin or name in self._names:
                found.append(CallBegun(name))
                self._behind_call = True
                self._held = held[head.end() :]
                self._step = self._in_arguments
                return True
        if not self._begin:
            begun = held.lstrip()
            if last or head is not None or (begun and not begun.startswith("{")):
                return self._as_text(len(held), found)
            return False
        end = held.find(self._end, start)
        if end < 0:
            return last and bool(held) and self._as_text(len(held), found)
        calls = _calls_in(held[start:end])
        if calls is None:
            return self._as_text(end + len(self._end), found)
        for name, arguments in calls:
            found += [CallBegun(name), CallArguments(arguments)]
        self._behind_call = True
        self._held = held[end + len(self._end) :]
        self._step = self._in_text
        return True

    def _in_arguments(self, found: list[Event], last: bool) -> bool:  # noqa: ARG002
        end = 0
        for end, letter in enumerate(self._held, 1):  # noqa: B007
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = letter == "\\"
                self._in_string = letter != '"'
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._step = self._behind_arguments
                    break
        if end:
            found.append(CallArguments(self._held[:end]))
        self._held = self._held[end:]
        return self._step == self._behind_arguments

    def _behind_arguments(self, found: list[Event], last: bool) -> bool:  # noqa: ARG002
        between = _BETWEEN.match(self._held)
        assert between is not None
        rest = self._held[between.end() :]
        if rest.startswith("{"):
            self._held = rest
            self._step = self._in_call
            return True
        place = rest.find(self._end) if self._end else -1
        if place >= 0:
            self._held = rest[place + len(self._end) :]
            self._step = self._in_text
            return True
        if last:
            self._held = ""
        return False

    def _as_text(self, end: int, found: list[Event]) -> bool:
        """Give held text up to `end` out as it is; what follows is text until a call begins."""
        if end:
            found.append(self._held[:end])
        self._held = self._held[end:]
        self._step = self._in_text
        return True


def _begun_at_end(text: str, mark: str) -> int:
    """Length of the longest end of `text` that could be the beginning of `mark`."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((n for n in lengths if mark.startswith(text[len(text) - n :])), 0)


def _calls_in(text: str) -> list[tuple[str, str]] | None:
    """Read calls whose keys stand in another order; None where the text is no call."""
    try:
        told = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    calls = []
    for call in told if isinstance(told, list) else [told]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        arguments = call.get("arguments", call.get("parameters", {}))
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append((call["name"], written))
    return calls


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
