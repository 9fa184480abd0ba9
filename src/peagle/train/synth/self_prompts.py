"""Scenarios whose prompts the target writes itself, as the user of its own chat template."""

from collections.abc import Generator
from typing import Final

from peagle.llm import LLM
from peagle.sampling_params import SamplingParams
from peagle.train.conversations import Conversation
from peagle.train.synth.openings import Opening, Openings, shipped_openings
from peagle.train.synth.scenario import Ask, Chain, Draws, Scenario, Written, answer_params
from peagle.train.synth.settings import SelfPromptSettings
from peagle.train.synth.user_turn import Message, UserTurn

CHAT: Final = "chat"
"""The category whose conversations have several turns."""
LONG: Final = "long"
"""The category of a request for a document."""

DOCUMENT_SHARE: Final = 0.5
"""Share of scenarios, in categories that can be about a document, that begin with writing one."""

_MESSAGE_TOKENS: Final = 256
"""Most tokens of a user's message; a longer one is dropped."""
_NUCLEUS: Final = 0.95
"""The unlikeliest tokens of a user's message are left out: small models lose the thread there."""


class SelfPrompts:
    """Scenarios in which the target plays both parts.

    Args:
        llm: The target.
        settings: What the run was asked for.

    Raises:
        InvalidRequestError: The model has no chat template.
        UnsupportedError: Its template cannot be written up to a user's message.
    """

    total = None

    def __init__(self, llm: LLM, settings: SelfPromptSettings) -> None:
        self._llm = llm
        self._settings = settings
        self._openings: Openings = shipped_openings()
        self.user_turn = UserTurn(llm.chat_template, llm.tokenizer)

    def scenario(self, number: int) -> Scenario:
        """Begin a scenario. Categories take turns."""
        settings = self._settings
        category = settings.categories[number % len(settings.categories)]
        draws = Draws(settings.seed, number)
        if category in self._openings.about_document and draws.share() < DOCUMENT_SHARE:
            return self._about_a_document(category, draws)
        return self._alone(category, draws)

    def _alone(self, category: str, draws: Draws) -> Scenario:
        """A message of the category with its answer; in a chat, follow-up messages too."""
        opening = _pick(self._openings.by_category[category], draws)
        turns = 1 + draws.below(self._settings.turns) if category == CHAT else 1
        chain: Chain = []
        messages: list[Message] = []
        while len(chain) < turns:
            said = yield from self._message(messages, opening, draws)
            if said is None:
                break
            messages.append({"role": "user", "content": said})
            answered = yield from self._answer(messages, category, draws)
            if answered is None:
                break
            conversation, answer = answered
            chain.append(conversation)
            if not answer.ended or not answer.text.strip():
                break
            messages.append({"role": "assistant", "content": answer.text})
            opening = Opening("", goes_on=True)
        return [chain]

    def _about_a_document(self, first: str, draws: Draws) -> Scenario:
        """A document, and a message about it in every category that has such; `first` goes first.

        The request for the document is a conversation of its own where long ones are wanted.
        """
        wanted = self._settings.categories
        request = yield from self._message([], _pick(self._openings.documents, draws), draws)
        if request is None:
            return []
        messages: list[Message] = [{"role": "user", "content": request}]
        answered = yield from self._answer(messages, LONG, draws)
        if answered is None or not answered[1].text.strip():
            return []
        conversation, document = answered
        chains: list[Chain] = [[conversation]] if LONG in wanted else []
        others = [name for name in self._openings.about_document if name in wanted]
        for category in sorted(others, key=lambda name: name != first):
            opening = _pick(self._openings.about_document[category], draws)
            said = yield from self._message([], opening.about(document.text.strip()), draws)
            if said is None:
                continue
            asked = yield from self._answer([{"role": "user", "content": said}], category, draws)
            if asked is not None:
                chains.append([asked[0]])
        return chains

    def _message(
        self, before: list[Message], opening: Opening, draws: Draws
    ) -> Generator[Ask, Written, str | None]:
        """Let the target write a user's message; None where it finds no end or says nothing."""
        if not opening.goes_on:
            return opening.text
        prompt_ids = self.user_turn.begin(before, opening.text)
        seed = draws.seed()
        if self._room(prompt_ids) < 1:
            return None
        written = yield Ask(
            prompt_ids,
            SamplingParams(
                max_tokens=min(_MESSAGE_TOKENS, self._room(prompt_ids)),
                temperature=self._settings.prompt_temperature,
                top_p=_NUCLEUS,
                seed=seed,
                stop_token_ids=self.user_turn.stop_token_ids,
                stop=self.user_turn.stop,
            ),
        )
        said = (opening.text + written.text).strip()
        # A character cut in two shows that the message is no text that a user could send.
        usable = written.ended and written.text.strip() and "\ufffd" not in said
        return said if usable else None

    def _answer(
        self, messages: list[Message], category: str, draws: Draws
    ) -> Generator[Ask, Written, tuple[Conversation, Written] | None]:
        """Let the target answer; None where its context has no room left."""
        prompt_ids = self._llm.encode(messages)
        room = self._room(prompt_ids)
        if room < 1:
            return None
        params = answer_params(self._settings, draws, room)
        written = yield Ask(prompt_ids, params)
        return Conversation(prompt_ids, written.token_ids, category), written

    def _room(self, prompt_ids: list[int]) -> int:
        return self._llm.context_length - len(prompt_ids)


def _pick(openings: tuple[Opening, ...], draws: Draws) -> Opening:
    return openings[draws.below(len(openings))]
