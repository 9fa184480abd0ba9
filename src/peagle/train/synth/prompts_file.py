"""Scenarios from a file of the user's own prompts, or of logged traffic with its responses."""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from peagle.errors import InvalidRequestError, PeagleError
from peagle.llm import LLM, Prompt
from peagle.train.conversations import DEFAULT_CATEGORY, Conversation
from peagle.train.synth.duplicates import token_hash
from peagle.train.synth.scenario import Ask, Chain, Draws, Scenario, answer_params
from peagle.train.synth.settings import AnswerSettings

_EXAMPLE: Final = (
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
        id: A name, which is not kept.
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
class _Entry:
    category: str
    prompt: Sequence[int]
    response: Sequence[int] | None
    max_tokens: int | None


class PromptsFile:
    """Scenarios of one conversation each: a line's prompt, with its response or the target's.

    The whole file is read and checked before anything is written. Lines that say the same as
    an earlier one, and prompts that leave no room for an answer, are left out and counted.

    Args:
        llm: The target.
        settings: How the target answers.
        path: The file.

    Attributes:
        dropped: How many lines were left out, by reason.
        sha256: Of the file.

    Raises:
        InvalidRequestError: The file cannot be read, is empty, or a line is wrong; the message
            names the line.
    """

    def __init__(self, llm: LLM, settings: AnswerSettings, path: Path) -> None:
        self._llm = llm
        self._settings = settings
        self.dropped: Counter[str] = Counter()
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidRequestError(
                f"{path} cannot be read ({error.strerror or error}).",
                remedy="Give a UTF-8 file with a JSON object a line.",
                field="prompts",
            ) from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._end_ids = _answer_end(llm)
        self._entries = list(self._read(path, content))
        if not self._entries:
            raise InvalidRequestError(
                f"{path} holds no prompts that can be answered.", remedy=_EXAMPLE, field="prompts"
            )

    @property
    def total(self) -> int:
        """How many prompts there are to write."""
        return len(self._entries)

    @property
    def answered(self) -> list[Conversation]:
        """The lines that have their response already."""
        return [
            Conversation(entry.prompt, entry.response, entry.category)
            for entry in self._entries
            if entry.response is not None
        ]

    def scenario(self, number: int) -> Scenario | None:
        """Begin a scenario; None after the last line."""
        return self._scenario(number) if number < self.total else None

    def _scenario(self, number: int) -> Scenario:
        entry = self._entries[number]
        response = entry.response
        if response is None:
            room = self._llm.context_length - len(entry.prompt)
            room = min(room, entry.max_tokens or room)
            params = answer_params(self._settings, Draws(self._settings.seed, number), room)
            response = (yield Ask(list(entry.prompt), params)).token_ids
        chain: Chain = [Conversation(entry.prompt, response, entry.category)]
        return [chain]

    def _read(self, path: Path, content: bytes) -> Iterator[_Entry]:
        seen: set[int] = set()
        for number, line in enumerate(content.splitlines(), 1):
            if not line.strip():
                continue
            entry = self._entry(line, f"{path}, line {number}")
            # One that was answered is the same only with the same response.
            key = token_hash([len(entry.prompt), *entry.prompt, *(entry.response or ())])
            if key in seen:
                self.dropped["same prompt"] += 1
            elif entry.response is None and len(entry.prompt) >= self._llm.context_length:
                self.dropped["prompt too long"] += 1
            else:
                seen.add(key)
                yield entry

    def _entry(self, line: bytes, where: str) -> _Entry:
        try:
            told = PromptLine.model_validate(json.loads(line))
            prompt = self._llm.encode(told.question())
            response = self._response(told)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            problem = first["msg"].removeprefix("Value error, ")
            raise _wrong(where, f"{place}: {problem}" if place else problem) from None
        except ValueError as error:
            raise _wrong(where, f"it is not valid JSON ({error})") from None
        except PeagleError as error:
            raise _wrong(where, error.problem.rstrip(".")) from None
        return _Entry(
            told.category,
            array("I", prompt),
            None if response is None else array("I", response),
            told.max_tokens,
        )

    def _response(self, told: PromptLine) -> list[int] | None:
        if told.response_token_ids is not None:
            return self._llm.encode({"prompt_token_ids": told.response_token_ids})
        text = told.answer_text()
        return None if text is None else [*self._llm.tokenizer.encode(text), *self._end_ids]


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
    return InvalidRequestError(f"{where}: {problem}.", remedy=_EXAMPLE, field="prompts")
