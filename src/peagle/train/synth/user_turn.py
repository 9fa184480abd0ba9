"""Where a user's message stands in a model's chat template, so that the model can write one.

A chat model was trained on whole conversations and knows how users write. Given the template up to
the place where the user's message begins, it goes on with one (Magpie, arXiv 2406.08464).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from peagle.errors import InvalidRequestError, UnsupportedError
from peagle.model.chat_template import ChatTemplate
from peagle.model.tokenizer import Tokenizer

_MARK: Final = "peaglemark"

Message = Mapping[str, str]


class UserTurn:
    """The user's place in conversations with one model.

    Args:
        template: How conversations are written for the model; None if it has no template.
        tokenizer: Its vocabulary.

    Attributes:
        stop_token_ids: Tokens that end a user's message, beside those that end any text.
        stop: Text that ends it, where the template has no token for that.
        header_tokens: Tokens before the first message, the same in every conversation.

    Raises:
        InvalidRequestError: The model has no chat template.
        UnsupportedError: Its template hides where messages stand.
    """

    def __init__(self, template: ChatTemplate | None, tokenizer: Tokenizer) -> None:
        if template is None:
            raise InvalidRequestError(
                "The model has no chat template, so it cannot write a user's messages.",
                remedy="Give prompts with --prompts, or use a model that was trained for chat.",
                field="prompts",
            )
        self._template = template
        self._tokenizer = tokenizer
        begin, end = self._around([])
        special = [token for token in tokenizer.encode(end) if token in tokenizer.special_ids]
        self.stop_token_ids = tuple(special[:1])
        words = end.split()
        self.stop = () if special or not words else (words[0],)
        self.header_tokens = len(tokenizer.encode(begin))

    def begin(self, messages: Sequence[Message], opening: str) -> list[int]:
        """Give the tokens up to where the model is to write.

        Args:
            messages: The conversation before, ending with an answer; empty for the first message.
            opening: How the user's message begins.
        """
        return self._tokenizer.encode(self._around(messages)[0] + opening)

    def _around(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Give the text before and after the user's next message."""
        whole = self._template.render([*messages, {"role": "user", "content": _MARK}])
        before, mark, after = whole.rpartition(_MARK)
        if not mark:
            raise UnsupportedError(
                "The model's chat template does not show messages as they are.",
                remedy="Give prompts with --prompts.",
                field="chat_template",
            )
        return before, after
