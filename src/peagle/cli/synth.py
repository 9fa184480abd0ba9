"""`peagle synth`: training text that a model writes itself."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peagle.cli.options import (
    ModelOptions,
    NoSpeculationOption,
    TemperatureOption,
    TopPOption,
    with_shared_options,
)
from peagle.cli.synthesis import run_watched
from peagle.errors import InvalidRequestError

if TYPE_CHECKING:
    from peagle.train.synth.run import Synthesis


@dataclass(frozen=True)
class SynthOptions(ModelOptions):
    """The model's options, of which its name must be told."""

    model: Annotated[
        str,
        typer.Argument(
            help="A name from `peagle models`, hf:ORGANISATION/NAME, a GGUF file or a folder."
        ),
    ] = field()
    no_speculation: NoSpeculationOption = False


@with_shared_options
def synth(
    options: SynthOptions,
    *,
    output: Annotated[
        Path, typer.Option(help="The file to write: .jsonl, or .jsonl.gz for a compressed one.")
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A file with a JSON object a line: `prompt`, `messages` or `prompt_token_ids`, "
            "with `response` or `response_token_ids` where it was answered before. Without it "
            "the model writes the prompts, too."
        ),
    ] = None,
    conversations: Annotated[
        int | None, typer.Option(help="Stop when the file has so many conversations.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Stop when the file has so many response tokens.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Begin nothing more after so many hours.")
    ] = None,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    greedy_share: Annotated[
        float | None,
        typer.Option(help="At a temperature above 0, share of the answers that are greedy."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 512,
    categories: Annotated[
        str | None,
        typer.Option(
            help="Kinds of prompts that the model writes, separated by commas: open, "
            "summarization, code, qa, json, chat, long. All if left out."
        ),
    ] = None,
    turns: Annotated[
        int | None, typer.Option(help="Most messages of a user in a chat (3 if left out).")
    ] = None,
    prompt_temperature: Annotated[
        float | None, typer.Option(help="How varied the model's own prompts are (1 if left out).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed makes other conversations.")] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, help="How many texts are written at a time.")
    ] = 32,
) -> None:
    """Write training text: prompts and answers by the model itself, or answers to your prompts."""
    from peagle.train.synth.limits import Limits
    from peagle.train.synth.settings import AnswerSettings, SelfPromptSettings
    from peagle.train.synth.start import prompted, self_prompted

    limits = Limits(conversations, tokens, hours)
    answers: dict[str, Any] = {
        "seed": seed,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
    }
    if greedy_share is not None:
        answers["greedy_share"] = greedy_share
    asking: dict[str, Any] = {
        "categories": tuple(categories.split(",")) if categories is not None else None,
        "turns": turns,
        "prompt_temperature": prompt_temperature,
    }
    asking = {name: value for name, value in asking.items() if value is not None}
    if prompts is not None:
        if asking:
            option = "--" + next(iter(asking)).replace("_", "-")
            raise InvalidRequestError(
                f"{option} is for prompts that the model writes, but --prompts is given.",
                remedy="Leave one of them out.",
                field=next(iter(asking)),
            )
    elif not limits.any_set:
        raise InvalidRequestError(
            "It is not said when to stop.",
            remedy="Give --conversations, --tokens or --hours.",
            field="conversations",
        )
    settings = AnswerSettings(**answers) if prompts else SelfPromptSettings(**answers, **asking)
    llm = options.load(speculate=not options.no_speculation, max_concurrent=concurrency)
    opened: AbstractContextManager[Synthesis]
    if isinstance(settings, SelfPromptSettings):
        opened = self_prompted(llm, output, settings, limits)
    else:
        assert prompts is not None
        opened = prompted(llm, output, settings, limits, prompts)
    with opened as run:
        run_watched(run, output)
