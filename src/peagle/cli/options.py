"""Options that several commands share, and what they amount to."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peagle.errors import InvalidRequestError
from peagle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from peagle.llm import LLM, Prompt

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
DEFAULT_MAX_TOKENS: Final = 512

ModelOption = Annotated[
    str,
    typer.Option(
        help="A name from `peagle models`, hf:ORGANISATION/NAME, a GGUF file or a folder."
    ),
]
TemperatureOption = Annotated[
    float, typer.Option(help="0 takes the most probable token; higher is more varied.")
]
TopPOption = Annotated[
    float, typer.Option(help="Draw from the most probable tokens that reach this share.")
]
NoSpeculationOption = Annotated[
    bool, typer.Option("--no-speculation", help="Write one token per pass, without drafts.")
]
DtypeOption = Annotated[
    str,
    typer.Option(help="auto, bfloat16 or float32; one of the latter means --quantization none."),
]
QuantizationOption = Annotated[
    str, typer.Option(help="none, int8, int4, or auto: what is usual for the model.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
CorpusOption = Annotated[
    Path | None, typer.Option(help="A file of `peagle corpus build` instead of the model's own.")
]
AnswerLimitOption = Annotated[
    int | None, typer.Option(min=1, help="Most tokens of an answer, whatever the file says.")
]
JsonReportOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of tables.")
]
BackendOption = Annotated[
    str, typer.Option(help="native, torch, or auto: the native step wherever it runs the model.")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Threads to compute with.", show_default="one for each core"),
]


@dataclass(frozen=True)
class ModelOptions:
    """Which model runs, and how it drafts; each field is an option."""

    model: ModelOption = DEFAULT_MODEL
    drafter: Annotated[
        str | None,
        typer.Option(
            help="A drafter instead of the model's own: a file, a folder, or hf:ORGANISATION/NAME."
        ),
    ] = None
    corpus: CorpusOption = None
    spec: Annotated[
        str | None,
        typer.Option(
            help="parallel_drafting_spec as JSON, such as "
            '\'{"num_parallel_trees": 4, "max_tree_nodes": 15}\'.'
        ),
    ] = None
    dtype: DtypeOption = "auto"
    quantization: QuantizationOption = "auto"
    device: DeviceOption = "auto"
    backend: BackendOption = "auto"
    threads: ThreadsOption = None

    def load(
        self, *, speculate: bool, max_concurrent: int | None = None, prefix_caching: bool = True
    ) -> "LLM":
        """Load the model.

        Args:
            speculate: Whether answers are drafted.
            max_concurrent: Most answers that run at once; None for the usual number.
            prefix_caching: Whether prompts take over what earlier texts left in the KV cache.

        Raises:
            PeagleError: An option is impossible, or the model cannot be loaded.
        """
        from peagle.engine.engine import DEFAULT_MAX_CONCURRENT
        from peagle.llm import LLM
        from peagle.spec import ParallelDraftingSpec

        # Read first, so that a typing error in the specification does not wait for the weights.
        spec = ParallelDraftingSpec.parse(self.spec)
        drafts = speculate and spec.method != "none"
        if self.corpus is not None and not (drafts and spec.corpus):
            raise InvalidRequestError(
                "--corpus is given, but the other options turn the corpus off.",
                remedy="Leave --corpus out, or let --spec and --no-speculation keep it.",
                field="corpus",
            )
        return LLM(
            self.model,
            self.drafter,
            spec,
            parallel_drafting=speculate,
            corpus=self.corpus,
            dtype=self.dtype,
            quantization=self.quantization,
            device=self.device,
            backend=self.backend,
            threads=self.threads,
            max_concurrent=max_concurrent or DEFAULT_MAX_CONCURRENT,
            prefix_caching=prefix_caching,
        )


@dataclass(frozen=True)
class AnswerOptions(ModelOptions):
    """The model's options, and how it answers; each field is an option."""

    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens to write.",
            show_default=f"{DEFAULT_MAX_TOKENS}, or what the context leaves",
        ),
    ] = None
    temperature: TemperatureOption = 0.0
    top_p: TopPOption = 1.0
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None
    no_speculation: NoSpeculationOption = False
    stats: Annotated[bool, typer.Option("--stats", help="Show what speculation did.")] = False

    def params(self) -> SamplingParams:
        """Give the sampling parameters; their `max_tokens` is None where none was told.

        Raises:
            InvalidRequestError: An option is impossible.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
        )


def with_usual_length(params: SamplingParams, llm: "LLM", prompt: "Prompt") -> SamplingParams:
    """Limit an answer whose length was not told: to the usual one, or to what the context leaves.

    Raises:
        InvalidRequestError: The prompt is impossible.
    """
    if params.max_tokens is not None:
        return params
    room = llm.context_length - len(llm.encode(prompt))
    return params.replaced(max_tokens=max(1, min(DEFAULT_MAX_TOKENS, room)))


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make each field of the dataclass that a command takes first an option of the command.

    Typer finds a command's options in its signature, so the fields stand there in place of the
    dataclass.
    """
    first, *own = inspect.signature(command).parameters.values()
    shared = inspect.signature(first.annotation).parameters

    @functools.wraps(command)
    def spread(**told: Any) -> None:
        options = first.annotation(**{name: told.pop(name) for name in shared})
        command(options, **told)

    spread.__signature__ = inspect.Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    return spread
