"""How a drafter is trained: one YAML file says everything, so that anyone can repeat it."""

from pathlib import Path
from typing import Any, Final, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peagle.draft.network.config import NetworkConfig
from peagle.draft.peagle.config import PEagleConfig
from peagle.errors import InvalidRequestError
from peagle.spec import NetworkMethod

# EAGLE-3 has one layer and drafts one token a pass, so its chains are trained whole; those of a
# quarter of the anchors make about as many rows as COD's.
_DIFFERENT: Final[dict[str, dict[str, Any]]] = {
    "peagle": {},
    "eagle3": {"layers": 1, "depths": 7, "ratio": 1.0, "anchor_share": 0.25, "markov_rank": 0},
}


class Recipe(BaseModel):
    """Everything that decides what a training run does, apart from its data and its length.

    Attributes:
        method: The drafter's method.
        layers: Its layers.
        draft_vocab_size: Tokens it can propose: the most frequent ones of the training answers.
        depths: Depths trained (`K`): P-EAGLE's levels of one pass.
        ratio: COD: depth `d` keeps `ratio ** d` of the chains.
        min_ratio: Floor under that share.
        anchor_share: Share of the anchors from which chains of mask slots start.
        markov_rank: Rank of the head that tells a mask slot the token before; 0 for none.
        rows_per_step: Rows of the drafter in one update, about.
        segment_rows: A document with more rows than this is split (`rollouts.segments`).
        matrix_rate: Learning rate of Muon, in the size of AdamW's updates.
        other_rate: Learning rate of AdamW (head, norms, mask vectors).
        warmup_steps: Updates over which both rates rise from zero.
        decay_share: Last share of the run over which both fall to zero.
        average_decay: Decay per update of the running average of the weights, which is what is
            measured and kept.
        clip: Largest norm of the gradient.
        seed: Where order and sampling come from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: NetworkMethod = "peagle"
    layers: int = Field(default=2, ge=1, le=8)
    draft_vocab_size: int = Field(default=6000, ge=1)
    depths: int = Field(default=8, ge=1, le=32)
    ratio: float = Field(default=0.8, gt=0, le=1)
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    anchor_share: float = Field(default=1.0, gt=0, le=1)
    markov_rank: int = Field(default=256, ge=0)
    rows_per_step: int = Field(default=5000, ge=1)
    segment_rows: int = Field(default=6000, ge=256)
    matrix_rate: float = Field(default=2e-3, gt=0)
    other_rate: float = Field(default=6e-4, gt=0)
    warmup_steps: int = Field(default=50, ge=0)
    decay_share: float = Field(default=0.2, ge=0, le=1)
    average_decay: float = Field(default=0.998, ge=0, lt=1)
    clip: float = Field(default=1.0, gt=0)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def of_method(cls, method: str | None) -> Self:
        """Give the default recipe of a method; P-EAGLE's if None.

        Raises:
            InvalidRequestError: There is no such method.
        """
        if method is None:
            return cls()
        if method not in get_args(NetworkMethod):
            raise InvalidRequestError(
                f"method cannot be {method!r}.",
                remedy=f"Use {' or '.join(get_args(NetworkMethod))}.",
                field="method",
            )
        return cls._completed({"method": method})

    @classmethod
    def read(cls, path: Path, method: str | None = None) -> Self:
        """Read a YAML file; what it leaves out is as usual for its method.

        Args:
            path: The file.
            method: The method, if that was told beside the file.

        Raises:
            InvalidRequestError: It is missing, not YAML, a value is unknown or impossible, or it
                is for another method.
        """
        try:
            written = yaml.safe_load(path.read_text("utf-8"))
            told = {} if written is None else written
            if method is not None and isinstance(told, dict):
                told = cls.of_method(method).model_dump(include={"method"}) | told
            recipe = cls._completed(told)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InvalidRequestError(
                f"The recipe {path} cannot be read: {' '.join(str(error).split())}.",
                remedy="Give a YAML file with keys of docs/training.md.",
                field="recipe",
            ) from None
        except ValidationError as found:
            first = found.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "recipe"
            raise InvalidRequestError(
                f"The recipe {path} is wrong at {where}: {first['msg']}.",
                remedy=f"Known keys: {', '.join(cls.model_fields)}.",
                field=where,
            ) from None
        if method is not None and recipe.method != method:
            raise InvalidRequestError(
                f"The recipe {path} is for {recipe.method}, but --method is {method}.",
                remedy="Leave one of them out.",
                field="method",
            )
        return recipe

    @classmethod
    def _completed(cls, told: Any) -> Self:
        """Fill in what is usual for the method, remembering which values were told."""
        if not isinstance(told, dict):
            return cls.model_validate(told)
        different = _DIFFERENT.get(str(told.get("method")), {})
        checked = cls.model_validate(different | told)
        return cls.model_construct(_fields_set=set(told), **dict(checked))

    def for_drafter(self, config: NetworkConfig) -> Self:
        """Give the recipe for going on with a drafter, whose shape is decided already.

        Raises:
            InvalidRequestError: The recipe says something else.
        """
        markov_rank = config.markov_rank if isinstance(config, PEagleConfig) else 0
        shape = {
            "method": config.method,
            "layers": config.decoder.num_layers,
            "draft_vocab_size": config.draft_vocab_size,
            "markov_rank": markov_rank,
        }
        told = self.model_dump(include=self.model_fields_set)
        for name, value in shape.items():
            if told.get(name, value) != value:
                raise InvalidRequestError(
                    f"The recipe has {name} {told[name]}, but the drafter to start from has "
                    f"{value}.",
                    remedy=f"Leave {name} out of the recipe, or start from another drafter.",
                    field=name,
                )
        return self._completed(told | shape)

    def to_yaml(self) -> str:
        """Write all values as YAML."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False)
