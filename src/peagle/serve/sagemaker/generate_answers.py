"""Answers in the form of JumpStart's text-generation containers, whole or token by token."""

from collections.abc import Sequence
from typing import Any, ClassVar

from peagle.engine.logprobs import TokenLogprobs
from peagle.llm import LLM, Generation, Piece, Result
from peagle.model.detokenizer import Detokenizer
from peagle.model.tokenizer import Tokenizer
from peagle.serve.forms import Event
from peagle.serve.sagemaker.generate_request import GenerateRequest


class GenerateWriter:
    """Writes the answers to one request with `inputs`.

    Args:
        request: What was asked.
        llm: The model.
        model: What the client calls the model, of which this form says nothing.
        generations: The answers, one generation for each of the inputs.
    """

    event_prefix: ClassVar = b"data:"
    stream_end: ClassVar = b""

    def __init__(
        self,
        request: GenerateRequest,
        llm: LLM,
        model: str,  # noqa: ARG002
        generations: Sequence[Generation],
    ) -> None:
        self._request = request
        self._parameters = request.parameters
        self._tokenizer = llm.tokenizer
        self._generations = generations
        self._tokens = _TokenTexts(llm.tokenizer)
        self._text = ""
        self._count = 0

    def opening(self) -> list[Event]:
        """Give the events before any token: none."""
        return []

    def chunks(self, place: int, piece: Piece) -> list[Event]:
        """Give an event for each token; the last of an answer tells the whole text."""
        assert piece.logprobs is not None
        self._text += piece.text
        tokens = self._tokens.described(
            piece.logprobs, self._text if piece.finish_reason is not None else None
        )
        events = []
        for token, told in zip(tokens, piece.logprobs, strict=True):
            self._count += 1
            event: Event = {"index": self._count, "token": token}
            if self._parameters.top_n_tokens:
                event["top_tokens"] = self._top(told)
            events.append({**event, "generated_text": None, "details": None})
        if piece.finish_reason is not None:
            result = self._generations[place].result
            last = events[-1]
            last["generated_text"] = self._full_text(place, self._text)
            if self._parameters.details:
                last["details"] = {
                    **self._ending(result), "input_length": len(result.prompt_token_ids)
                }  # fmt: skip
            last.update(self._speculation(result))
        return events

    def closing(self) -> list[Event]:
        """Give the events after the last token: none."""
        return []

    def whole(self) -> list[dict[str, Any]]:
        """Give an object for each of the inputs; all answers must have ended."""
        return [
            self._answer(place, generation.result)
            for place, generation in enumerate(self._generations)
        ]

    def _answer(self, place: int, result: Result) -> dict[str, Any]:
        answer: dict[str, Any] = {"generated_text": self._full_text(place, result.text)}
        if self._parameters.details:
            answer["details"] = {**self._ending(result), **self._all_tokens(result)}
        return {**answer, **self._speculation(result)}

    def _all_tokens(self, result: Result) -> dict[str, Any]:
        told = result.choices[0].logprobs or []
        tokens = _TokenTexts(self._tokenizer).described(told, result.text)
        details: dict[str, Any] = {"prefill": [], "tokens": tokens}
        if self._parameters.top_n_tokens:
            details["top_tokens"] = [self._top(one) for one in told]
        return details

    def _full_text(self, place: int, text: str) -> str:
        return self._request.texts()[place] + text if self._parameters.return_full_text else text

    def _ending(self, result: Result) -> dict[str, Any]:
        if result.finish_reason == "length":
            reason = "length"
        else:
            by_itself = result.choices[0].stop_reason is None
            reason = "eos_token" if by_itself else "stop_sequence"
        return {
            "finish_reason": reason,
            "generated_tokens": len(result.token_ids),
            "seed": result.seed if self._parameters.samples else None,
        }

    def _speculation(self, result: Result) -> dict[str, Any]:
        if not self._parameters.return_speculation:
            return {}
        return {"speculation": result.statistics.as_object(result.method)}

    def _top(self, told: TokenLogprobs) -> list[dict[str, Any]]:
        return [
            _token(
                self._tokenizer,
                token_id,
                logprob,
                self._tokenizer.token_bytes(token_id).decode("utf-8", "replace"),
            )
            for token_id, logprob in told.top
        ]


class _TokenTexts:
    """Tells what each token of one answer adds to its text; special tokens have their names.

    Args:
        tokenizer: The vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._told = 0

    def described(self, tokens: Sequence[TokenLogprobs], whole: str | None) -> list[dict[str, Any]]:
        """Describe the next tokens.

        Args:
            tokens: They, in order.
            whole: The text of the whole answer if they end it: a stop string may cut the last.
        """
        described = []
        for place, one in enumerate(tokens):
            if one.token_id in self._tokenizer.special_ids:
                text = self._tokenizer.piece(one.token_id) or ""
            else:
                text = self._detokenizer.push([one.token_id])
                if whole is not None and place == len(tokens) - 1:
                    text = whole[self._told :]
                self._told += len(text)
            described.append(_token(self._tokenizer, one.token_id, one.logprob, text))
        return described


def _token(tokenizer: Tokenizer, token_id: int, logprob: float, text: str) -> dict[str, Any]:
    return {
        "id": token_id,
        "text": text,
        "logprob": logprob,
        "special": token_id in tokenizer.special_ids,
    }
