"""What OpenAI's interface sends back, whole or in chunks."""

import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from peagle.engine.logprobs import TokenLogprobs
from peagle.engine.statistics import pooled
from peagle.engine.stops import FinishReason
from peagle.llm import LLM, Choice, Generation, Piece
from peagle.model.tokenizer import Tokenizer
from peagle.serve.openai.answer_calls import AnswerCalls
from peagle.serve.openai.details import StepDetails, spelling
from peagle.serve.openai.requests import ChatRequest, CompletionRequest, GenerationRequest
from peagle.serve.openai.tools import NamedTool

Chunk = dict[str, Any]


class AnswerWriter:
    """Writes the answers to one request.

    Args:
        request: What was asked.
        llm: The model.
        model: What the client calls the model.
        generations: The answers, one generation a prompt.

    Attributes:
        id: Names the response.
        tokens: Tokens written so far, by choice.
    """

    event_prefix: ClassVar = b"data: "
    stream_end: ClassVar = b"data: [DONE]\n\n"
    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(
        self, request: GenerationRequest, llm: LLM, model: str, generations: Sequence[Generation]
    ) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.tokens: Counter[int] = Counter()
        self._request = request
        self._tokenizer = llm.tokenizer
        self._details: dict[int, StepDetails] = {}
        self._generations = generations
        self._told = {
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"{llm.target.precision}-{llm.target.backend}",
        }

    def opening(self) -> list[Chunk]:
        """Give the chunks before any token is written."""
        return []

    def chunks(self, place: int, piece: Piece) -> list[Chunk]:
        """Give the chunk for what a step added to an answer."""
        index = place * self._request.n + piece.index
        self.tokens[index] += len(piece.token_ids)
        choice = {
            "index": index,
            **self._part(place, piece),
            "logprobs": self._logprobs(index, piece.logprobs),
            "finish_reason": self._finish_reason(index, piece.finish_reason),
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if self._request.return_token_ids:
            choice["token_ids"] = piece.token_ids
        if self._request.speculation_details:
            if index not in self._details:
                self._details[index] = StepDetails(
                    self._tokenizer, skip_special_tokens=self._request.skip_special_tokens
                )
            choice["speculation_details"] = self._details[index].of(piece)
        chunk = self._chunk([choice])
        return [self._with_usage(chunk, now=self._request.stream_options.continuous_usage_stats)]

    def closing(self) -> list[Chunk]:
        """Give the chunks after all answers have ended."""
        options = self._request.stream_options
        if not (options.include_usage or self._request.return_speculation):
            return []
        last = self._with_usage(self._chunk([]), now=options.include_usage)
        return [{**last, **self._speculation()}]

    def whole(self) -> dict[str, Any]:
        """Give the response in one object; all answers must have ended."""
        choices = []
        for place, generation in enumerate(self._generations):
            for choice in generation.result.choices:
                index = place * self._request.n + choice.index
                self.tokens[index] = len(choice.token_ids)
                told = {
                    "index": index,
                    **self._choice(place, choice),
                    "logprobs": self._logprobs(index, choice.logprobs),
                    "finish_reason": self._finish_reason(index, choice.finish_reason),
                    "stop_reason": choice.stop_reason,
                }
                if self._request.return_token_ids:
                    told["token_ids"] = choice.token_ids
                choices.append(told)
        return {
            "id": self.id,
            "object": self.whole_object,
            **self._told,
            "choices": choices,
            "usage": self.usage(),
            **self._speculation(),
        }

    def usage(self) -> dict[str, Any]:
        """Count tokens."""
        prompt = sum(len(one.sequences[0].prompt_ids) for one in self._generations)
        written = self.tokens.total()
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {
                "cached_tokens": sum(one.cached_tokens for one in self._generations)
            },
        }

    def _finish_reason(self, index: int, reason: FinishReason | None) -> str | None:  # noqa: ARG002
        return reason

    def _part(self, place: int, piece: Piece) -> Mapping[str, Any]:
        raise NotImplementedError

    def _choice(self, place: int, choice: Choice) -> Mapping[str, Any]:
        raise NotImplementedError

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprobs] | None) -> Any:
        raise NotImplementedError

    def _chunk(self, choices: list[dict[str, Any]]) -> Chunk:
        return {"id": self.id, "object": self.chunk_object, **self._told, "choices": choices}

    def _with_usage(self, chunk: Chunk, *, now: bool) -> Chunk:
        options = self._request.stream_options
        if options.include_usage or now:
            chunk["usage"] = self.usage() if now else None
        return chunk

    def _speculation(self) -> dict[str, Any]:
        if not self._request.return_speculation:
            return {}
        sequences = [one for generation in self._generations for one in generation.sequences]
        method = sequences[0].spec.method or "none"
        return {
            "speculation": pooled(one.statistics for one in sequences).as_object(method),
        }


class ChatWriter(AnswerWriter):
    """Writes answers to `/v1/chat/completions`."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self, request: ChatRequest, llm: LLM, model: str, generations: Sequence[Generation]
    ) -> None:
        super().__init__(request, llm, model, generations)
        form = llm.chat_template.tool_format if llm.chat_template is not None else None
        self._calls = (
            [AnswerCalls(form, request.tool_names) for _ in range(request.n)]
            if request.tool_names and form is not None
            else []
        )
        self._named = isinstance(request.tool_choice, NamedTool)

    def opening(self) -> list[Chunk]:
        """Give the chunks before any token is written: whose message each choice is."""
        return [
            self._with_usage(
                self._chunk(
                    [
                        {
                            "index": index,
                            "delta": {"role": "assistant", "content": ""},
                            "logprobs": None,
                            "finish_reason": None,
                        }
                    ]
                ),
                now=self._request.stream_options.continuous_usage_stats,
            )
            for index in range(self._request.n)
        ]

    def _part(self, place: int, piece: Piece) -> Mapping[str, Any]:  # noqa: ARG002
        if not self._calls:
            return {"delta": {"content": piece.text}}
        calls = self._calls[piece.index]
        return {"delta": calls.delta(piece.text, last=piece.finish_reason is not None)}

    def _choice(self, place: int, choice: Choice) -> Mapping[str, Any]:  # noqa: ARG002
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        if self._calls:
            message |= self._calls[choice.index].message(choice.text)
        return {"message": message}

    def _finish_reason(self, index: int, reason: FinishReason | None) -> str | None:
        # As OpenAI has it: a call that was asked for by name just ends.
        called = bool(self._calls) and self._calls[index].count > 0 and not self._named
        return "tool_calls" if reason == "stop" and called else reason

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprobs] | None) -> Any:  # noqa: ARG002
        if tokens is None:
            return None
        content = [
            {
                **_token(self._tokenizer, one.token_id, one.logprob),
                "top_logprobs": [_token(self._tokenizer, *pair) for pair in one.top],
            }
            for one in tokens
        ]
        return {"content": content, "refusal": None}


class CompletionWriter(AnswerWriter):
    """Writes answers to `/v1/completions`."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(
        self, request: CompletionRequest, llm: LLM, model: str, generations: Sequence[Generation]
    ) -> None:
        super().__init__(request, llm, model, generations)
        self._echo = request.echo
        self._begun: set[int] = set()
        self._offsets: Counter[int] = Counter()

    def _part(self, place: int, piece: Piece) -> Mapping[str, Any]:
        index = place * self._request.n + piece.index
        before = "" if index in self._begun else self._echoed(place)
        self._begun.add(index)
        return {"text": before + piece.text}

    def _choice(self, place: int, choice: Choice) -> Mapping[str, Any]:
        return {"text": self._echoed(place) + choice.text}

    def _echoed(self, place: int) -> str:
        if not self._echo:
            return ""
        return self._tokenizer.decode(self._generations[place].sequences[0].prompt_ids)

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprobs] | None) -> Any:
        if tokens is None:
            return None
        names = [spelling(self._tokenizer.token_bytes(one.token_id)) for one in tokens]
        offsets = []
        for name in names:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(name)
        return {
            "tokens": names,
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [
                {
                    spelling(self._tokenizer.token_bytes(token)): logprob
                    for token, logprob in [*one.top, (one.token_id, one.logprob)]
                }
                for one in tokens
            ],
            "text_offset": offsets,
        }


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    spelt = tokenizer.token_bytes(token_id)
    return {"token": spelling(spelt), "logprob": logprob, "bytes": list(spelt)}
