"""What a run of `peagle synth` was asked for: all that decides which text it writes."""

from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from peagle.train.synth.openings import shipped_openings
from peagle.validation import request_error

_ALLOWED: Final = {
    "seed": "a whole number from 0 to 2**64 - 1",
    "temperature": "a number from 0 (greedy) to 100",
    "top_p": "a number above 0, up to 1",
    "greedy_share": "a number from 0 to 1",
    "max_tokens": "a whole number of at least 1",
    "prompt_temperature": "a number above 0, up to 100",
    "categories": f"names out of {', '.join(shipped_openings().categories)}, each once",
    "turns": "a whole number from 1 to 16",
}


class AnswerSettings(BaseModel):
    """How the target answers: as its endpoint will.

    Attributes:
        seed: Decides every draw; the same seed makes the same conversations.
        temperature: Of the answers that are sampled; 0 makes all greedy.
        top_p: The same for their nucleus.
        greedy_share: Share of the answers that are greedy at a temperature above 0.
        max_tokens: Most tokens of an answer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(default=0, ge=0, lt=2**64, strict=True)
    temperature: float = Field(default=0.0, ge=0, le=100, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    greedy_share: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    max_tokens: int = Field(default=512, ge=1, strict=True)

    def __init__(self, **fields: Any) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: A field is impossible, or contradicts another.
        """
        try:
            super().__init__(**fields)
        except ValidationError as found:
            raise request_error(found, "synth", _ALLOWED) from None

    @model_validator(mode="after")
    def _greedy_share_means_something(self) -> Self:
        if "greedy_share" in self.model_fields_set and self.temperature == 0:
            raise ValueError(
                "greedy_share is given, but at temperature 0 every answer is greedy. "
                "| Set a temperature above 0, or leave greedy_share out."
            )
        return self


class SelfPromptSettings(AnswerSettings):
    """How the target writes the prompts, too.

    Attributes:
        prompt_temperature: Of the messages that the target writes as a user.
        categories: Kinds of tasks, which take turns.
        turns: Most messages of a user in one conversation of the category `chat`; others have one.
    """

    prompt_temperature: float = Field(default=1.0, gt=0, le=100, allow_inf_nan=False)
    categories: tuple[str, ...] = Field(default=shipped_openings().categories, min_length=1)
    turns: int = Field(default=3, ge=1, le=16, strict=True)

    @model_validator(mode="after")
    def _categories_are_known(self) -> Self:
        known = shipped_openings().categories
        if unknown := [name for name in self.categories if name not in known]:
            raise ValueError(f"there is no category {unknown[0]!r}. | Known: {', '.join(known)}.")
        if len(set(self.categories)) < len(self.categories):
            raise ValueError("a category is named twice. | Name each once.")
        return self
