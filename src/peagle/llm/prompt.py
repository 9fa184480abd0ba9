"""From what users hand over as a prompt to the tokens that the model reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from peagle.errors import InvalidRequestError, UnsupportedError
from peagle.model.chat_template import ChatTemplate
from peagle.model.tokenizer import Tokenizer

Prompt = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""A user's message; a conversation, or `messages` with `tools`; or `prompt` (text) or
`prompt_token_ids`, taken as it is."""


class PromptReader:
    """Turns prompts into tokens for one model.

    Args:
        tokenizer: The model's vocabulary.
        template: A chat template that replaces the model's own.
        vocab_size: Rows of the model's embedding.
        model: What messages call the model.

    Attributes:
        template: How conversations are written for the model; None for one without a template.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str | None, vocab_size: int, model: str
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._model = model
        self.template = _chat_template(tokenizer, template)

    def encode(self, prompt: Prompt) -> list[int]:
        """Turn a prompt into tokens, as `generate` reads it.

        Raises:
            InvalidRequestError: It is empty, of an unknown form, or holds impossible tokens.
            UnsupportedError: It has tools, for which the model's chat template has no place.
        """
        if isinstance(prompt, str):
            if self.template is None:
                return self._checked(self._tokenizer.encode_prompt(prompt))
            if not prompt:
                return self._checked([])
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(prompt, Mapping):
            return self._checked(self._plain(prompt))
        return self._checked(self._conversation(prompt, None))

    def _conversation(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        if self.template is None:
            raise without_template(self._model)
        if tools and self.template.tool_format is None:
            raise UnsupportedError(
                f"tools are given, but the chat template of {self._model} has none, or in a form "
                "that is not known.",
                remedy="Leave tools out, or use a model that was trained for them.",
                field="tools",
            )
        return self._tokenizer.encode(self.template.render(messages, tools=tools or None))

    def _plain(self, prompt: Mapping[str, Any]) -> list[int]:
        match dict(prompt):
            case {"messages": messages, **rest} if not set(rest) - {"tools"}:
                return self._conversation(messages, rest.get("tools"))
            case {"prompt": str(text), **rest} if not rest:
                return self._tokenizer.encode_prompt(text)
            case {"prompt_token_ids": ids, **rest} if not rest:
                return list(ids)
        raise InvalidRequestError(
            f"A prompt cannot be an object with the keys {', '.join(map(repr, prompt))}.",
            remedy='Give text, a list of messages, {"messages": list, "tools": list}, '
            '{"prompt": text} or {"prompt_token_ids": ids}.',
            field="prompt",
        )

    def _checked(self, ids: list[int]) -> list[int]:
        vocab_size = self._vocab_size
        if not ids:
            raise InvalidRequestError(
                "The prompt is empty.", remedy="Write what the model should answer.", field="prompt"
            )
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise InvalidRequestError(
                    f"prompt_token_ids holds {token!r}.",
                    remedy=f"Token ids are whole numbers from 0 to {vocab_size - 1}.",
                    field="prompt_token_ids",
                )
        return ids


def without_template(model: str) -> InvalidRequestError:
    """Describe a model that was asked to read a conversation and has no chat template."""
    return InvalidRequestError(
        f"{model} has no chat template, so it cannot read a conversation.",
        remedy="Give it plain text, as `peagle generate` does, or use a model trained for chat.",
        field="messages",
    )


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Tell one prompt from several: a list of messages is one conversation."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(item, Mapping) and "role" in item for item in items):
        return [items]  # type: ignore[list-item]
    return items


def _chat_template(tokenizer: Tokenizer, replacement: str | None) -> ChatTemplate | None:
    if replacement is not None:
        return ChatTemplate(
            replacement, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
        )
    return ChatTemplate.of(tokenizer) if tokenizer.chat_template is not None else None
