"""What OpenAI's interface sends back, whole or in chunks."""

import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from peagle.engine.logprobs import TokenLogprobs
from peagle.engine.statistics import pooled
from peagle.llm import LLM, Choice, Generation, Piece
from peagle.model.tokenizer import Tokenizer
from peagle.serve.openai.requests import CompletionRequest, GenerationRequest

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
        self._generations = generations
        self._told = {
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"{llm.target.precision}-{llm.target.backend}",
        }

    def opening(self) -> list[Chunk]:
        """Give the chunks before any token is written."""
        return []

    def chunk(self, place: int, piece: Piece) -> Chunk:
        """Give the chunk for what a step added to an answer."""
        index = place * self._request.n + piece.index
        self.tokens[index] += len(piece.token_ids)
        choice = {
            "index": index,
            **self._part(place, piece),
            "logprobs": self._logprobs(index, piece.logprobs),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if self._request.return_token_ids:
            choice["token_ids"] = piece.token_ids
        return self._with_usage(
            self._chunk([choice]), now=self._request.stream_options.continuous_usage_stats
        )

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
                    "finish_reason": choice.finish_reason,
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

    def usage(self) -> dict[str, int]:
        """Count tokens."""
        prompt = sum(len(one.sequences[0].prompt_ids) for one in self._generations)
        written = self.tokens.total()
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }

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
        return {"delta": {"content": piece.text}}

    def _choice(self, place: int, choice: Choice) -> Mapping[str, Any]:  # noqa: ARG002
        return {"message": {"role": "assistant", "content": choice.text, "refusal": None}}

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
        names = [_name(self._tokenizer.token_bytes(one.token_id)) for one in tokens]
        offsets = []
        for name in names:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(name)
        return {
            "tokens": names,
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [
                {
                    _name(self._tokenizer.token_bytes(token)): logprob
                    for token, logprob in [*one.top, (one.token_id, one.logprob)]
                }
                for one in tokens
            ],
            "text_offset": offsets,
        }


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    spelt = tokenizer.token_bytes(token_id)
    return {"token": _name(spelt), "logprob": logprob, "bytes": list(spelt)}


def _name(spelt: bytes) -> str:
    r"""Write a token; one that holds part of a character as `bytes:\xe2\x80`."""
    try:
        return spelt.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)
