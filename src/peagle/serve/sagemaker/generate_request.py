"""Bodies of JumpStart's text-generation containers: `inputs` and `parameters`.

Fields, and what holds where they are not told, are those of `GenerateParameters` in
Hugging Face's text-generation-inference, whose form these containers speak.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from peagle.llm import LLM, Generation, Prompt
from peagle.serve.errors import ApiError
from peagle.serve.openai.requests import CompletionRequest, Number

_USUAL_NEW_TOKENS: Final = 100
_MOST_INPUTS: Final = 128
_MOST_TOP_TOKENS: Final = 20
_OUR_NAMES: Final = {"prompt": "inputs", "max_tokens": "parameters.max_new_tokens"}
_PASSED_ON: Final = (
    "temperature", "repetition_penalty", "frequency_penalty", "top_k", "top_p", "stop", "seed",
    "parallel_drafting_spec",
)  # fmt: skip


class GenerateParameters(BaseModel):
    """How tokens are chosen, and what is told of them."""

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: StrictInt = Field(default=_USUAL_NEW_TOKENS, ge=1)
    do_sample: StrictBool | None = None
    temperature: Number | None = Field(default=None, ge=0, le=100)
    top_k: StrictInt | None = Field(default=None, ge=1)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    repetition_penalty: Number | None = Field(default=None, ge=0.01, le=100)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    stop: str | Annotated[list[str], Field(max_length=64)] = Field(default_factory=list)
    seed: StrictInt | None = Field(default=None, ge=0, lt=2**64)
    return_full_text: StrictBool = False
    details: StrictBool = False
    top_n_tokens: StrictInt | None = Field(default=None, ge=0, le=_MOST_TOP_TOKENS)
    parallel_drafting_spec: dict[str, Any] | None = Field(
        default=None, description="How drafts are made for this request."
    )
    return_speculation: StrictBool = Field(
        default=False, description="Say in the response what speculation did."
    )
    # Clients send these with the values that ask for nothing.
    best_of: Literal[1] | None = None
    watermark: Literal[False] | None = None
    decoder_input_details: Literal[False] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, told: Any) -> Any:
        if not isinstance(told, dict):
            return told
        return {name: value for name, value in told.items() if value is not None}

    @property
    def samples(self) -> bool:
        """Whether chance decides: as told, or else where a setting of chance is told."""
        if self.do_sample is not None:
            return self.do_sample
        chances = (self.temperature or 1.0, self.top_k or 0, self.top_p or 1.0)
        return chances != (1.0, 0, 1.0)


class GenerateRequest(BaseModel):
    """Body of `/invocations` with `inputs`."""

    model_config = ConfigDict(extra="forbid")

    inputs: str | Annotated[list[str], Field(min_length=1, max_length=_MOST_INPUTS)]
    parameters: GenerateParameters = Field(default_factory=GenerateParameters)
    stream: StrictBool = False

    @property
    def model(self) -> None:
        """What the client calls the model: this form has no place for it."""
        return

    @model_validator(mode="after")
    def _one_stream(self) -> "GenerateRequest":
        if self.stream and isinstance(self.inputs, list):
            raise ValueError("stream is true, but inputs is a list. Send one text, or no stream")
        return self

    def texts(self) -> list[str]:
        """What is to be continued."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs

    def prompts(self) -> list[Prompt]:
        """What is to be answered: text, taken as it is."""
        return [{"prompt": text} for text in self.texts()]

    def generations(self, llm: LLM, client: str) -> list[Generation]:
        """Make the request ready for the engine (`forms.Asking.generations`).

        Raises:
            ApiError: It is impossible.
        """
        told = self.parameters
        fields = {name: getattr(told, name) for name in _PASSED_ON}
        if not told.samples:
            fields["temperature"] = 0.0
        if told.details or told.top_n_tokens or self.stream:
            fields["logprobs"] = told.top_n_tokens or 0
        completion = CompletionRequest(
            prompt=self.texts(),
            max_tokens=told.max_new_tokens,
            include_stop_str_in_output=True,
            **{name: value for name, value in fields.items() if value is not None},
        )
        try:
            return completion.generations(llm, client)
        except ApiError as error:
            field = error.param
            if field is not None:
                field = _OUR_NAMES.get(field, f"parameters.{field}")
            raise ApiError(error.status, error.message, param=field, code=error.code) from None
