"""`peagle demo`: one prompt, without and with speculation, and proof that nothing changed."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peagle.cli.options import ModelOptions, with_shared_options
from peagle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from peagle.llm import LLM, Result

_PROMPT: Final = (
    "Write a Python function that counts how often each word occurs in a text, "
    "and explain it step by step."
)
_MAX_TOKENS: Final = 200
_DIFFERENT: Final = 1


@with_shared_options
def demo(
    options: ModelOptions,
    prompt: Annotated[str, typer.Argument(help="What to answer.")] = _PROMPT,
) -> None:
    """Answer one prompt twice, without and with speculation, and compare tokens and speed."""
    from rich.console import Console
    from rich.table import Table

    # Both answers read the prompt.
    llm = options.load(speculate=True, prefix_caching=False)
    console = Console(highlight=False)
    console.print(
        f"[bold]{llm.name}[/bold] on {llm.target.device.type} in "
        f"{llm.target.precision}, loaded in {llm.load_s:.1f} s"
    )
    console.print(f"[bold]> {prompt}[/bold]\n")
    params = SamplingParams(max_tokens=_MAX_TOKENS)
    # The first passes of a process are slower than all later ones; neither side should pay.
    llm.generate("Hello", SamplingParams(max_tokens=8))
    plain = _watch(llm, prompt, params, "without speculation", speculate=False)
    drafted = _watch(llm, prompt, params, f"with speculation ({llm.spec.method})", speculate=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "tokens/s", "tokens per target pass", "target passes", "first token"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, result in (("without", plain), ("with", drafted)):
        length = result.statistics.acceptance_length or 1.0
        table.add_row(
            name,
            f"{result.timing.tokens_per_s:.1f}",
            f"{length:.2f}",
            f"{result.statistics.target_passes}",
            f"{result.timing.ttft_s * 1000:.0f} ms",
        )
    console.print(table)
    same = plain.token_ids == drafted.token_ids
    ratio = drafted.timing.tokens_per_s / max(plain.timing.tokens_per_s, 1e-9)
    count = len(plain.token_ids)
    if not same:
        console.print("[red]The two answers differ. This is a bug; please report it.[/red]")
        raise typer.Exit(_DIFFERENT)
    console.print(f"\nAll {count} tokens are identical, [bold]{ratio:.1f} times as fast[/bold].")


def _watch(
    llm: "LLM", prompt: str, params: SamplingParams, title: str, *, speculate: bool
) -> "Result":
    from rich.console import Console

    console = Console(highlight=False)
    console.rule(f"[dim]{title}[/dim]", align="left")
    generation = llm.stream(prompt, params, parallel_drafting=speculate)
    for piece in generation:
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    console.print("\n")
    return generation.result
