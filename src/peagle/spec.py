"""The block with which users describe speculation, defined once and used by every layer."""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from peagle.errors import InvalidRequestError
from peagle.validation import request_error

NetworkMethod = Literal["peagle", "eagle3"]
Method = NetworkMethod | Literal["lookup", "none"]

METHOD_TITLES: Final[Mapping[NetworkMethod, str]] = {"peagle": "P-EAGLE", "eagle3": "EAGLE-3"}
"""What people call the networks."""

MAX_TREE_NODES: Final = 255
MAX_DEPTH: Final = 32
"""Most draft tokens on a path, and so most levels that a network can be asked for."""

_ALLOWED: Final = {
    "method": '"peagle", "eagle3", "lookup" or "none"',
    "num_parallel_trees": "a whole number from 1 to 64",
    "prediction_depth": f"a whole number from 1 to {MAX_DEPTH}",
    "max_tree_nodes": f"a whole number from 1 to {MAX_TREE_NODES}",
    "lookup": "true or false",
    "corpus": "true or false",
    "adaptive": "true or false",
}


class ParallelDraftingSpec(BaseModel):
    """How drafts are made and how large the candidate tree may grow.

    What is not set keeps the model's default; `model_dump` and `model_dump_json` leave it out.

    Attributes:
        method: `peagle` and `eagle3` draft with the model's network of that kind and the text
            sources, `lookup` with the text sources alone, `none` turns speculation off. Unset: the
            model's own, which is that of its drafter if it has one.
        num_parallel_trees: Most distinct first tokens, each the root of a branch; for EAGLE-3 also
            most branches that it continues from one level to the next.
        prediction_depth: Levels that the network predicts; branches of text may go deeper.
        max_tree_nodes: Most draft tokens verified in one target pass.
        lookup: Draft from what followed the last tokens earlier in the request.
        corpus: Draft from what followed them in text that the target wrote before.
        adaptive: Let the engine give fewer nodes where they do not pay; false pins the shape.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Method | None = None
    num_parallel_trees: StrictInt = Field(default=4, ge=1, le=64)
    prediction_depth: StrictInt = Field(default=7, ge=1, le=MAX_DEPTH)
    max_tree_nodes: StrictInt = Field(default=15, ge=1, le=MAX_TREE_NODES)
    lookup: StrictBool = True
    corpus: StrictBool = True
    adaptive: StrictBool = True

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        """Refuse fields that were set and exclude each other; defaults never contradict."""
        told = self.model_fields_set
        if self.method == "none":
            for source in ("lookup", "corpus"):
                if source in told and getattr(self, source):
                    raise ValueError(
                        f'method "none" drafts nothing, but {source} is true. '
                        f"| Leave {source} out, or choose another method."
                    )
        if self.method == "lookup" and not self.lookup and not self.corpus:
            raise ValueError(
                'method "lookup" needs a text source, but lookup and corpus are both false. '
                '| Turn one of them on, or choose method "none".'
            )
        if {
            "num_parallel_trees",
            "max_tree_nodes",
        } <= told and self.num_parallel_trees > self.max_tree_nodes:
            raise ValueError(
                f"num_parallel_trees is {self.num_parallel_trees}, more than max_tree_nodes "
                f"({self.max_tree_nodes}). | Each tree needs at least one node: lower the first "
                "or raise the second."
            )
        return self

    @classmethod
    def parse(cls, block: "ParallelDraftingSpec | Mapping[str, Any] | str | None") -> Self:
        """Read the block from what users hand over: an instance, a mapping, JSON, or nothing.

        Raises:
            InvalidRequestError: The block is not JSON, has an unknown key, a wrong type, an
                impossible value, or fields that contradict each other.
        """
        if block is None:
            return cls()
        if isinstance(block, cls):
            return block
        if isinstance(block, str):
            try:
                block = json.loads(block)
            except ValueError as error:
                raise InvalidRequestError(
                    f"parallel_drafting_spec is not valid JSON: {error}.",
                    remedy='Write it like {"num_parallel_trees": 4, "prediction_depth": 7}.',
                    field="parallel_drafting_spec",
                ) from None
        try:
            return cls.model_validate(block)
        except ValidationError as found:
            raise request_error(found, "parallel_drafting_spec", _ALLOWED) from None

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Dump what was set, nothing else."""
        return super().model_dump(**{"exclude_unset": True, **options})

    def model_dump_json(self, **options: Any) -> str:
        """Dump what was set as JSON, nothing else."""
        return super().model_dump_json(**{"exclude_unset": True, **options})
