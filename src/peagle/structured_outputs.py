"""What form an answer must have: a JSON schema, a regular expression, a choice or a grammar."""

from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from peagle.validation import request_error

KINDS: Final = ("json", "json_object", "regex", "choice", "grammar")
"""Fields of which exactly one is given."""

_MOST_CHOICES: Final = 1024
_MOST_CHARACTERS: Final = 200_000

_ALLOWED: Final = {
    "json": "a JSON schema: an object, or text that holds one",
    "json_object": "true",
    "regex": f"a regular expression of 1 to {_MOST_CHARACTERS:,} characters",
    "choice": f"1 to {_MOST_CHOICES:,} strings that are not empty",
    "grammar": f"a grammar of 1 to {_MOST_CHARACTERS:,} characters, in GBNF or Lark's syntax",
    "disable_any_whitespace": "true or false, beside json or json_object",
    "whitespace_pattern": "a regular expression, beside json or json_object",
}


class StructuredOutputs(BaseModel):
    """The form of an answer, under vLLM's names; exactly one of the first five is given.

    Attributes:
        json_schema: A JSON schema, under the name `json`: an object, or text that holds one.
        json_object: True for any JSON object.
        regex: A regular expression that the whole answer matches (Rust's syntax, without looking
            around).
        choice: The answer is one of these strings.
        grammar: A grammar of the whole answer, in GBNF as of llama.cpp or in Lark's syntax.
        disable_any_whitespace: JSON without white space between its parts.
        whitespace_pattern: What white space between the parts of JSON may look like.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    json_schema: dict[str, Any] | str | None = Field(default=None, alias="json")
    json_object: bool | None = Field(default=None, strict=True)
    regex: str | None = Field(default=None, min_length=1, max_length=_MOST_CHARACTERS)
    choice: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=_MOST_CHOICES)
    grammar: str | None = Field(default=None, min_length=1, max_length=_MOST_CHARACTERS)
    disable_any_whitespace: StrictBool = False
    whitespace_pattern: str | None = Field(default=None, min_length=1, max_length=_MOST_CHARACTERS)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, told: Any) -> Any:
        if not isinstance(told, Mapping):
            return told
        return {name: value for name, value in told.items() if value is not None}

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        told = [name for name in KINDS if getattr(self, _attribute(name)) is not None]
        if len(told) != 1:
            given = " and ".join(told) + " are given together." if told else "says no form."
            raise ValueError(f"{given} | Give exactly one of {', '.join(KINDS)}.")
        if self.json_object is False:
            raise ValueError("json_object is false. | Leave structured_outputs out, or set true.")
        if self.choice is not None and "" in self.choice:
            raise ValueError("choice holds an empty string. | Leave it out.")
        if told[0] not in ("json", "json_object"):
            for name in ("disable_any_whitespace", "whitespace_pattern"):
                if getattr(self, name):
                    raise ValueError(f"{name} is given without JSON. | Leave it out.")
        return self

    @classmethod
    def parse(cls, block: "StructuredOutputs | Mapping[str, Any]") -> Self:
        """Read the block from what users hand over.

        Raises:
            InvalidRequestError: It has an unknown key, a wrong type, an impossible value, or not
                exactly one form.
        """
        if isinstance(block, cls):
            return block
        try:
            return cls.model_validate(block)
        except ValidationError as found:
            raise request_error(
                found, "structured_outputs", _ALLOWED, within="structured_outputs"
            ) from None

    @property
    def kind(self) -> str:
        """Which of `KINDS` is given."""
        return next(name for name in KINDS if getattr(self, _attribute(name)) is not None)


def _attribute(name: str) -> str:
    """Pydantic has a method `json`, so the field has another name in Python."""
    return "json_schema" if name == "json" else name
