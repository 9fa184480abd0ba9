"""What clients of OpenAI's interface send, and what it asks of the engine.

Fields of vLLM's that the engine knows are accepted beside OpenAI's. Everything else is refused by
name, except for fields that could not change an answer, which are ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from peagle.errors import InvalidRequestError, PeagleError
from peagle.llm import LLM, Generation, Prompt
from peagle.sampling_params import SamplingParams
from peagle.serve.errors import ApiError
from peagle.serve.openai.tools import (
    NamedTool,
    Tool,
    ToolChoice,
    calls_grammar,
    with_read_arguments,
)
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
_FORM_NAMES: Final = {
    "structured_outputs": "response_format",
    "structured_outputs.json": "response_format.json_schema.schema",
    "structured_outputs.json_object": "response_format.type",
}

Number = Annotated[float, Field(allow_inf_nan=False)]


class StreamOptions(BaseModel):
    """What a stream carries beside the answer."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False
    continuous_usage_stats: StrictBool = False
    include_obfuscation: StrictBool = False


class JsonSchema(BaseModel):
    """A JSON schema as OpenAI's interface wraps it; it is always followed strictly."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """The form of an answer, as OpenAI's interface has it."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> Self:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError(
                'json_schema belongs to the type "json_schema", and to no other. Give both or '
                "neither"
            )
        return self

    @property
    def form(self) -> dict[str, Any] | None:
        """The form under the engine's name; None for any text."""
        if self.type == "json_object":
            return {"json_object": True}
        return None if self.json_schema is None else {"json": self.json_schema.json_schema}


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
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = Field(
        default=None,
        description="The form of the answer: json, json_object, regex, choice or grammar.",
    )
    parallel_drafting_spec: dict[str, Any] = Field(
        default_factory=dict, description="How drafts are made for this request."
    )
    return_speculation: StrictBool = Field(
        default=False, description="Say in the response what speculation did."
    )
    speculation_details: StrictBool = Field(
        default=False,
        description="Say in a stream how each token came, and what tree each step verified.",
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
        if self.speculation_details and not self.stream:
            raise ValueError("speculation_details is given without stream. Set stream to true")
        return self

    @field_validator("structured_outputs")
    @classmethod
    def _one_form(
        cls, form: dict[str, Any] | None, others: ValidationInfo
    ) -> dict[str, Any] | None:
        told = others.data.get("response_format")
        if told is not None and told.form is not None:
            raise ValueError("response_format asks for a form already. Give one of them")
        return form

    @property
    def _response_form(self) -> dict[str, Any] | None:
        return None if self.response_format is None else self.response_format.form

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

    def form(self, llm: LLM) -> dict[str, Any] | None:  # noqa: ARG002
        """The form that answers must have, under the engine's names; None for any text."""
        return self._response_form or self.structured_outputs

    def params(self, llm: LLM) -> SamplingParams:
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
        form = self.form(llm)
        if form is not None:
            told["structured_outputs"] = form
        return SamplingParams(**told)

    def generations(self, llm: LLM, client: str) -> list[Generation]:
        """Make the request ready for the engine (`forms.Asking.generations`).

        Raises:
            ApiError: It is impossible.
        """
        try:
            spec = ParallelDraftingSpec.parse(self.parallel_drafting_spec)
        except InvalidRequestError as error:
            raise ApiError.of(error, {**_SPEC_NAMES, "": "parallel_drafting_spec"}) from None
        names = {**_SPEC_NAMES, **self._names()}
        try:
            params = self.params(llm)
            return [
                llm.prepare(prompt, params, parallel_drafting_spec=spec, scope=client)
                for prompt in self.prompts()
            ]
        except PeagleError as error:
            raise ApiError.of(error, names) from None

    def _names(self) -> Mapping[str, str]:
        """What this request calls fields that the engine knows by other names."""
        return {} if self._response_form is None else _FORM_NAMES


class Message(BaseModel):
    """A message; its content is checked where the chat template is rendered."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = None

    def for_template(self, where: str) -> dict[str, Any]:
        """Give the message as chat templates know it, which have no developers.

        Raises:
            ApiError: Its calls are malformed.
        """
        told = with_read_arguments(self.model_dump(exclude_unset=True), where)
        return {**told, "role": "system"} if self.role == "developer" else told


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: StrictInt | None = Field(default=None, ge=1)
    logprobs: StrictBool = False
    top_logprobs: StrictInt | None = Field(default=None, ge=0, le=20)
    tools: list[Tool] = Field(default_factory=list, max_length=128)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: StrictBool = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is given without logprobs. Set logprobs to true")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise ValueError("max_tokens and max_completion_tokens differ. Give one of them")
        return self

    @field_validator("tool_choice")
    @classmethod
    def _choice_that_exists(cls, choice: ToolChoice, others: ValidationInfo) -> ToolChoice:
        if choice in ("none", "auto"):
            return choice
        names = [tool.function.name for tool in others.data.get("tools", [])]
        if not names:
            raise ValueError("there are no tools. Give tools")
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise ValueError(f"{choice.function.name!r} is not among tools. Name one of them")
        told = others.data.get("response_format")
        if others.data.get("structured_outputs") or (told is not None and told.form):
            raise ValueError(
                "response_format or structured_outputs asks for a form already. Give one of them"
            )
        return choice

    @property
    def tool_names(self) -> list[str]:
        """The functions that may be called."""
        return [] if self.tool_choice == "none" else [tool.function.name for tool in self.tools]

    @property
    def forces_calls(self) -> bool:
        """Whether the answer must call a function."""
        return self.tool_choice not in ("none", "auto")

    def form(self, llm: LLM) -> dict[str, Any] | None:
        """The form that answers must have: calls, where they are asked for."""
        template = llm.chat_template
        if not self.forces_calls or template is None or template.tool_format is None:
            return super().form(llm)
        grammar = calls_grammar(
            template.tool_format, self.tools, self.tool_choice, several=self.parallel_tool_calls
        )
        return {"grammar": grammar}

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
        messages = [
            message.for_template(f"messages[{place}]")
            for place, message in enumerate(self.messages)
        ]
        if not self.tool_names:
            return [messages]
        tools = [tool.model_dump(exclude_unset=True, exclude_none=True) for tool in self.tools]
        return [{"messages": messages, "tools": tools}]

    def _names(self) -> Mapping[str, str]:
        names = {**super()._names(), "prompt": "messages", "logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        if self.forces_calls:
            names["structured_outputs.grammar"] = "tools"
        return names


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
        return {**super()._names(), "prompt_token_ids": "prompt"}
