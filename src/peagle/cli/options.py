"""Options that several commands share, and what they amount to."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from peagle.llm import LLM

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
DEFAULT_MAX_TOKENS: Final = 512

ModelOption = Annotated[
    str,
    typer.Option(
        help="A name from `peagle models`, hf:ORGANISATION/NAME, a GGUF file or a folder."
    ),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        help="A drafter instead of the model's own: a file, a folder, or hf:ORGANISATION/NAME."
    ),
]
MaxTokensOption = Annotated[int | None, typer.Option(help="Most tokens to write.")]
TemperatureOption = Annotated[
    float, typer.Option(help="0 takes the most probable token; higher is more varied.")
]
TopPOption = Annotated[
    float, typer.Option(help="Draw from the most probable tokens that reach this share.")
]
SeedOption = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
SpecOption = Annotated[
    str | None,
    typer.Option(
        help="parallel_drafting_spec as JSON, such as "
        '\'{"num_parallel_trees": 4, "max_tree_nodes": 15}\'.'
    ),
]
NoSpeculationOption = Annotated[
    bool, typer.Option("--no-speculation", help="Write one token per pass, without drafts.")
]
DtypeOption = Annotated[str, typer.Option(help="auto, bfloat16 or float32.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
StatsOption = Annotated[bool, typer.Option("--stats", help="Show what speculation did.")]


def load(
    model: str, drafter: str | None, spec: str | None, dtype: str, device: str, *, speculate: bool
) -> "LLM":
    """Load a model as the options say.

    Raises:
        PeagleError: An option is impossible, or the model cannot be loaded.
    """
    from peagle.llm import LLM
    from peagle.spec import ParallelDraftingSpec

    # Read first, so that a typing error in the specification does not wait for the weights.
    parsed = ParallelDraftingSpec.parse(spec)
    return LLM(
        model,
        drafter,
        parsed,
        parallel_drafting=speculate,
        dtype=dtype,
        device=device,
    )
