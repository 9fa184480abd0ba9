"""What clients of OpenAI's interface send, and what it asks of the engine.

Fields of vLLM's that the engine knows are accepted beside OpenAI's. Everything else is refused by
name, except for fields that could not change an answer, which are ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from peagle.errors import InvalidRequestError, PeagleError
from peagle.llm import LLM, Generation, Prompt
from peagle.sampling_params import SamplingParams
from peagle.serve.errors import ApiError
from peagle.spec import ParallelDraftingSpec

_OPENAI_COMPLETION_TOKENS: Final = 16
_MOST_PROMPTS: Final = 128
_WORDS: Final = 2**64
_SAMPLING_FIELDS: Final = (
    "n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "stop", "stop_token_ids", "min_tokens", "ignore_eos",
    "include_stop_str_in_output", "skip_special_tokens",
)  # fmt: skip
_SPEC_NAMES: Final = {
    name: f"parallel_drafting_spec.{name}" for name in ParallelDraftingSpec.model_fields
}

Number = Annotated[float, Field(allow_inf_nan=False)]


class StreamOptions(BaseModel):
    """What a stream carries beside the answer."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False
    continuous_usage_stats: StrictBool = False
    include_obfuscation: StrictBool = False


class GenerationRequest(BaseModel):
    """Fields that chat and text completions share."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    n: StrictInt = Field(default=1, ge=1, le=128)
    max_tokens: StrictInt | None = Field(default=None, ge=1)
    temperature: Number = Field(default=1.0, ge=0, le=100)
    top_p: Number = Field(default=1.0, gt=0, le=1)
    top_k: StrictInt = Field(default=0, ge=-1)
    min_p: Number = Field(default=0.0, ge=0, le=1)
    seed: StrictInt | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: str | Annotated[list[str], Field(max_length=64)] = Field(default_factory=list)
    presence_penalty: Number = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: Number = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: Number = Field(default=1.0, ge=0.01, le=100)
    logit_bias: dict[str, Number] = Field(default_factory=dict)
    stream: StrictBool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    stop_token_ids: list[StrictInt] = Field(default_factory=list)
    min_tokens: StrictInt = Field(default=0, ge=0)
    ignore_eos: StrictBool = False
    include_stop_str_in_output: StrictBool = False
    skip_special_tokens: StrictBool = True
    parallel_drafting_spec: dict[str, Any] = Field(
        default_factory=dict, description="How drafts are made for this request."
    )
    return_speculation: StrictBool = Field(
        default=False, description="Say in the response what speculation did."
    )
    return_token_ids: StrictBool = Field(default=False, description="Send token ids, too.")
    # Accepted and ignored: they could not change an answer.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @model_validator(mode="after")
    def _options_of_streams_only(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise ValueError("stream_options is given without stream. Set stream to true")
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer; None for as many as the context has room for."""
        return self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the most probable tokens are told; None where none are asked for."""
        return None

    def prompts(self) -> list[Prompt]:
        """What is to be answered."""
        raise NotImplementedError

    def params(self) -> SamplingParams:
        """How tokens are chosen.

        Raises:
            InvalidRequestError: A field is impossible.
        """
        told: dict[str, Any] = {
            name: getattr(self, name) for name in _SAMPLING_FIELDS if name in self.model_fields_set
        }
        if told.get("top_k") == -1:
            told["top_k"] = 0
        told["temperature"] = self.temperature
        if self.seed is not None:
            told["seed"] = self.seed % _WORDS
        if self.limit is not None:
            told["max_tokens"] = self.limit
        if self.wanted_logprobs is not None:
            told["logprobs"] = self.wanted_logprobs
        return SamplingParams(**told)

    def generations(self, llm: LLM, client: str) -> list[Generation]:
        """Make the request ready for the engine.

        Args:
            llm: The model.
            client: Who asks; what others wrote shortens nobody's wait.

        Raises:
            ApiError: It is impossible.
        """
        try:
            spec = ParallelDraftingSpec.parse(self.parallel_drafting_spec)
        except InvalidRequestError as error:
            raise ApiError.of(error, {**_SPEC_NAMES, "": "parallel_drafting_spec"}) from None
        try:
            params = self.params()
            return [
                llm.prepare(prompt, params, parallel_drafting_spec=spec, scope=client)
                for prompt in self.prompts()
            ]
        except PeagleError as error:
            raise ApiError.of(error, {**_SPEC_NAMES, **self._names()}) from None

    def _names(self) -> Mapping[str, str]:
        """What this request calls fields that the engine knows by other names."""
        return {}


class Message(BaseModel):
    """A message; its content is checked where the chat template is rendered."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = None

    def for_template(self) -> dict[str, Any]:
        """Give the message as chat templates know it, which have no developers."""
        told = self.model_dump(exclude_unset=True)
        return {**told, "role": "system"} if self.role == "developer" else told


class ResponseFormat(BaseModel):
    """The form of an answer."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: StrictInt | None = Field(default=None, ge=1)
    logprobs: StrictBool = False
    top_logprobs: StrictInt | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    parallel_tool_calls: Any = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is given without logprobs. Set logprobs to true")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise ValueError("max_tokens and max_completion_tokens differ. Give one of them")
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer; None for as many as the context has room for."""
        told = self.max_completion_tokens
        return self.max_tokens if told is None else told

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the most probable tokens are told; None where none are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def prompts(self) -> list[Prompt]:
        """What is to be answered: the conversation."""
        return [[message.for_template() for message in self.messages]]

    def _names(self) -> Mapping[str, str]:
        if self.max_completion_tokens is not None:
            return {"max_tokens": "max_completion_tokens", "prompt": "messages"}
        return {"prompt": "messages", "logprobs": "top_logprobs"}


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`."""

    prompt: (
        str
        | Annotated[list[StrictInt], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=_MOST_PROMPTS)]
        | Annotated[
            list[Annotated[list[StrictInt], Field(min_length=1)]],
            Field(min_length=1, max_length=_MOST_PROMPTS),
        ]
    )
    logprobs: StrictInt | None = Field(default=None, ge=0, le=20)
    echo: StrictBool = False
    best_of: StrictInt | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.best_of is not None and self.best_of != self.n:
            raise ValueError("best_of other than n is not supported. Leave best_of out")
        if self.echo and self.logprobs is not None:
            raise ValueError("logprobs of an echoed prompt are not supported. Set echo to false")
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer: 16 where nothing is told, as OpenAI has it."""
        return _OPENAI_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the most probable tokens are told; None where none are asked for."""
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """What is to be answered: text or tokens, taken as they are."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [{"prompt": prompt}]
        if isinstance(prompt[0], int):
            return [{"prompt_token_ids": prompt}]
        return [
            {"prompt": one} if isinstance(one, str) else {"prompt_token_ids": one} for one in prompt
        ]

    def _names(self) -> Mapping[str, str]:
        return {"prompt_token_ids": "prompt"}
