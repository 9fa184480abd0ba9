"""Prompts on disk, answered before or not: one JSON object a line, perhaps compressed with gzip."""

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from peagle.errors import InvalidRequestError, PeagleError
from peagle.llm import LLM, Prompt
from peagle.train.conversations import DEFAULT_CATEGORY, Sidecar, is_gzip

EXAMPLE: Final = (
    'Write it like {"prompt": "Why is the sky blue?"}, {"messages": [{"role": "user", "content": '
    '"…"}], "response": "…"} or {"prompt_token_ids": […], "response_token_ids": […]}.'
)
_MARK: Final = "peaglemark"


class PromptLine(BaseModel):
    """A line of the file.

    Attributes:
        prompt: A user's message.
        messages: A conversation; if its last message is the assistant's, that is the response.
        prompt_token_ids: A prompt as the model reads it.
        response: What was answered; None lets the target answer.
        response_token_ids: The same as token ids, the one that ended it included.
        category: What kind of task it is.
        id: A name.
        max_tokens: Most tokens of the answer, where that is less than the run's limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str | None = Field(default=None, min_length=1)
    messages: list[dict[str, Any]] | None = Field(default=None, min_length=1)
    prompt_token_ids: list[StrictInt] | None = Field(default=None, min_length=1)
    response: str | None = Field(default=None, min_length=1)
    response_token_ids: list[StrictInt] | None = Field(default=None, min_length=1)
    category: str = DEFAULT_CATEGORY
    id: str | int | None = None
    max_tokens: int | None = Field(default=None, ge=1, strict=True)

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        prompts = [self.prompt, self.messages, self.prompt_token_ids]
        if sum(each is not None for each in prompts) != 1:
            raise ValueError("it needs one of prompt, messages and prompt_token_ids")
        responses = [self.response, self.response_token_ids, self._last_message_of_assistant()]
        if sum(each is not None for each in responses) > 1:
            raise ValueError("it has more than one response")
        return self

    def question(self) -> Prompt:
        """What the model reads."""
        if self.prompt is not None:
            return self.prompt
        if self.messages is not None:
            return self.messages[: -1 if self._last_message_of_assistant() is not None else None]
        return {"prompt_token_ids": self.prompt_token_ids}

    def answer_text(self) -> str | None:
        """What was answered, if it is there as text."""
        return self.response if self.response is not None else self._last_message_of_assistant()

    def _last_message_of_assistant(self) -> str | None:
        last = self.messages[-1] if self.messages else {}
        content = last.get("content")
        return content if last.get("role") == "assistant" and isinstance(content, str) else None


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """A line as one target reads it.

    Attributes:
        where: The file and line, for messages.
        id: Its name, `line-N` if it has none.
        category: What kind of task it is.
        prompt: Tokens of the prompt.
        response: Tokens of what was answered; None where the target is to answer.
        max_tokens: Most tokens of the answer; None leaves it to the command.
    """

    where: str
    id: str
    category: str
    prompt: Sequence[int]
    response: Sequence[int] | None
    max_tokens: int | None


def read_content(path: Path) -> bytes:
    """Read a file of prompts as it lies on disk.

    Raises:
        InvalidRequestError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be read ({error.strerror or error}).",
            remedy="Give a UTF-8 file with a JSON object a line.",
            field="prompts",
        ) from None


def read_entries(llm: LLM, path: Path, content: bytes) -> Iterator[PromptEntry]:
    """Give the lines that are not blank, as tokens of a target.

    Args:
        llm: The target.
        path: The file, for messages and to find its sidecar.
        content: What it holds (`read_content`).

    Raises:
        InvalidRequestError: The file is damaged or a line is wrong; the message names the line.
        CheckpointError: The file was made with another tokenizer.
    """
    sidecar = Sidecar.beside(path)
    if sidecar is not None:
        sidecar.require_tokenizer(llm.tokenizer.fingerprint(), path)
    if is_gzip(content):
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise InvalidRequestError(
                f"{path} is damaged: its compressed data cannot be read ({error}).",
                remedy="Copy or download it again.",
                field="prompts",
            ) from None
    end_ids = _answer_end(llm)
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield _entry(llm, line, f"{path}, line {number}", f"line-{number}", end_ids)


def _entry(llm: LLM, line: bytes, where: str, name: str, end_ids: list[int]) -> PromptEntry:
    try:
        told = PromptLine.model_validate(json.loads(line))
        prompt = llm.encode(told.question())
        response = _response(llm, told, end_ids)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = first["msg"].removeprefix("Value error, ")
        raise _wrong(where, f"{place}: {problem}" if place else problem) from None
    except ValueError as error:
        raise _wrong(where, f"it is not valid JSON ({error})") from None
    except PeagleError as error:
        raise _wrong(where, error.problem.rstrip(".")) from None
    return PromptEntry(
        where=where,
        id=name if told.id is None else str(told.id),
        category=told.category,
        prompt=array("I", prompt),
        response=None if response is None else array("I", response),
        max_tokens=told.max_tokens,
    )


def _response(llm: LLM, told: PromptLine, end_ids: list[int]) -> list[int] | None:
    if told.response_token_ids is not None:
        return llm.encode({"prompt_token_ids": told.response_token_ids})
    text = told.answer_text()
    return None if text is None else [*llm.tokenizer.encode(text), *end_ids]


def _answer_end(llm: LLM) -> list[int]:
    """The token with which the target ends an answer, as its chat template shows."""
    tokenizer = llm.tokenizer
    ends: list[int] = []
    if llm.chat_template is not None:
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        whole = llm.chat_template.render(messages, add_generation_prompt=False)
        after = tokenizer.encode(whole.rpartition(_MARK)[2])
        ends = [token for token in after if token in tokenizer.eos_token_ids]
    if not ends and tokenizer.eos_token_id is not None:
        ends = [tokenizer.eos_token_id]
    return ends[:1]


def _wrong(where: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}: {problem}.", remedy=EXAMPLE, field="prompts")
