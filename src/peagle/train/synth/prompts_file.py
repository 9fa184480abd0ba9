"""Scenarios from a file of the user's own prompts, or of logged traffic with its responses."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from peagle.errors import InvalidRequestError
from peagle.llm import LLM
from peagle.train.conversations import Conversation
from peagle.train.prompt_lines import EXAMPLE, PromptEntry, read_content, read_entries
from peagle.train.synth.duplicates import token_hash
from peagle.train.synth.scenario import Ask, Chain, Draws, Scenario, answer_params
from peagle.train.synth.settings import AnswerSettings


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
        content = read_content(path)
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._entries = list(self._read(path, content))
        if not self._entries:
            raise InvalidRequestError(
                f"{path} holds no prompts that can be answered.", remedy=EXAMPLE, field="prompts"
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

    def _read(self, path: Path, content: bytes) -> Iterator[PromptEntry]:
        seen: set[int] = set()
        for entry in read_entries(self._llm, path, content):
            # One that was answered is the same only with the same response.
            key = token_hash([len(entry.prompt), *entry.prompt, *(entry.response or ())])
            if key in seen:
                self.dropped["same prompt"] += 1
            elif entry.response is None and len(entry.prompt) >= self._llm.context_length:
                self.dropped["prompt too long"] += 1
            else:
                seen.add(key)
                yield entry
