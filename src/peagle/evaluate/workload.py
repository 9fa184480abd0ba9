"""Prompts to measure on: one JSON object a line, in categories."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peagle.errors import InvalidRequestError

PUBLIC_WORKLOAD: Final = Path(__file__).parent / "workloads" / "public.jsonl"


class WorkloadPrompt(BaseModel):
    """A prompt of a workload.

    Attributes:
        id: Its name within the workload.
        category: What kind of task it is.
        messages: The conversation.
        max_tokens: Most tokens to write; None leaves it to the command.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    category: str = "all"
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1, strict=True)


def read_workload(path: Path = PUBLIC_WORKLOAD) -> list[WorkloadPrompt]:
    """Read a file of prompts. A line with `prompt` instead of `messages` is a user's message.

    Raises:
        InvalidRequestError: The file cannot be read, is empty, or a line is wrong.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{path} cannot be read ({error}).",
            remedy="Give a UTF-8 file with a JSON object a line.",
            field="prompts",
        ) from None
    read = [_prompt(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not read:
        raise InvalidRequestError(
            f"{path} holds no prompts.",
            remedy='Write lines like {"prompt": "Why is the sky blue?"}.',
            field="prompts",
        )
    return read


def by_category(prompts: Sequence[WorkloadPrompt]) -> Mapping[str, list[WorkloadPrompt]]:
    """Group prompts by category, in order of appearance."""
    groups: dict[str, list[WorkloadPrompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    return groups


def _prompt(path: Path, number: int, line: str) -> WorkloadPrompt:
    try:
        fields = json.loads(line)
        if isinstance(fields, dict) and "prompt" in fields and "messages" not in fields:
            fields["messages"] = [{"role": "user", "content": fields.pop("prompt")}]
        if isinstance(fields, dict):
            fields.setdefault("id", f"line-{number}")
        return WorkloadPrompt.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"
    except ValueError as error:
        problem = f"it is not valid JSON: {error}"
    raise InvalidRequestError(
        f"{path}, line {number}: {problem}.",
        remedy='Write it like {"id": "a", "category": "qa", "messages": [{"role": "user", '
        '"content": "…"}], "max_tokens": 128}.',
        field="prompts",
    )
