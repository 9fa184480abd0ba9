"""`peagle train`: a drafter from a model's own answers."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peagle.cli.options import DeviceOption
from peagle.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.progress import Progress

    from peagle.catalog import ResolvedModel
    from peagle.train.checkpoint import Progress as Standing
    from peagle.train.held_out import HeldOut
    from peagle.train.own_text import OwnText

_WRITING_SHARE: Final = 0.4
"""Share of the time for which a model writes its own text, where it is given no other."""


def train(
    model: Annotated[str, typer.Argument(help="The target: a name, a GGUF file or a folder.")],
    output: Annotated[Path, typer.Option(help="Folder for checkpoints, log and drafter.")],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Conversations, as `peagle synth` writes them; may be given again. Without, the "
            "model writes its own for two fifths of --hours."
        ),
    ] = None,
    traffic: Annotated[
        Path | None,
        typer.Option(
            help="Logged requests with their responses: go on with a drafter, and keep the new "
            "one only if it is better on requests that were held out."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="peagle or eagle3; peagle without, or as the recipe or --start says."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="YAML file that says how; a good default without.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Drafter to go on with: a file, a folder, or hf:ORGANISATION/NAME, of the same "
            "target; with --traffic the model's own without."
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Corpus that will be drafted from beside it; the model's own without."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Response tokens to train on, over all epochs: 5 million, or 4 epochs of "
            "--traffic, without.",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Be done after so long: the learning rates fall towards the earlier of this and "
            "--tokens."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --output.")
    ] = False,
    cache_features: Annotated[
        bool,
        typer.Option(
            help="Keep the target's features on disk (some kB a token); without, they are "
            "computed at each use."
        ),
    ] = True,
    device: DeviceOption = "auto",
) -> None:
    """Train a drafter for a model on what the model wrote.

    Ctrl-C or SIGTERM writes a checkpoint and stops; --resume goes on.
    """
    from rich.console import Console
    from rich.progress import Progress

    from peagle.catalog import resolve
    from peagle.model.loading import load_torch_target
    from peagle.train.interruption import sigterm_as_ctrl_c
    from peagle.train.recipe import Recipe
    from peagle.train.run import (
        begin_from_drafter,
        begin_from_target,
        finish,
        open_corpus,
        open_run,
        run_folder,
        split_data,
    )
    from peagle.train.traffic import read_data, read_traffic
    from peagle.train.trainer import Limits

    from_nothing = not data and traffic is None
    _check_time(hours, needed=from_nothing and not resume)
    how = Recipe.of_method(method) if recipe is None else Recipe.read(recipe, method)
    resolved = resolve(model)
    # A recipe that does not say a method fits the model's usual drafter, whichever that is.
    wanted = how.method if "method" in how.model_fields_set else None
    first = _first_drafter(start, resolved, wanted, needed=traffic is not None)
    console = Console(stderr=True)
    with (
        run_folder(output, resume=resume),
        sigterm_as_ctrl_c(),
        Progress(console=console, disable=not console.is_terminal) as progress,
    ):
        if from_nothing:
            own, hours = _own_text(model, output, hours, device)
            data, corpus = [own.data], corpus or own.corpus
        target = load_torch_target(resolved.files, dtype="bfloat16", device=device)
        mixed_with = corpus or resolved.corpus
        table = None if mixed_with is None else open_corpus(mixed_with, target)
        conversations = read_data(data or [], target)
        if traffic is not None:
            logged = read_traffic(traffic, model)
            console.print(logged.summary, highlight=False)
            conversations += logged.conversations
        split = split_data(conversations, target.model.config.context_length)
        beginning = (
            begin_from_target(target, resolved.name, how, split)
            if first is None
            else begin_from_drafter(first, target, how)
        )
        trainer = open_run(
            output, target=target, files=resolved.files, name=resolved.name, beginning=beginning,
            data=split, cache_features=cache_features, resume=resume,
        )  # fmt: skip
        epochs = 4 * sum(split.documents[index].teachers for index in split.training)
        budget = tokens or (5_000_000 if traffic is None else epochs)
        shown = _Shown(progress, budget)
        if first is not None and not resume:
            shown.measured(trainer.measure_beginning(), better=False)
        try:
            trainer.train(
                Limits(tokens=budget, seconds=None if hours is None else hours * 3600),
                on_step=shown.step,
                on_measured=shown.measured,
            )
        except KeyboardInterrupt:
            sys.stderr.write("Stopped; go on with the same command and --resume.\n")
            raise
        reached = trainer.measure().acceptance_length
        if traffic is not None and reached <= trainer.progress.begun_with:
            sys.stdout.write(
                f"The drafter {first} stays: held-out acceptance length "
                f"{trainer.progress.begun_with:.3f} before, {reached:.3f} after.\n"
            )
            return
        drafter = finish(trainer, output, beginning, split, table)
    before = f" ({trainer.progress.begun_with:.3f} before)" if first is not None else ""
    sys.stdout.write(
        f"{drafter}: held-out acceptance length {reached:.3f}{before} after "
        f"{trainer.progress.tokens} response tokens\n"
    )


def _first_drafter(
    start: str | None, resolved: "ResolvedModel", method: str | None, *, needed: bool
) -> Path | None:
    """Find the drafter to go on with, and refuse a damaged one before the target is loaded."""
    from peagle.catalog import resolve_drafter
    from peagle.draft.loading import read_taps

    if start is None and not needed:
        return None
    first = resolved.drafter(method) if start is None else resolve_drafter(start)
    if first is None:
        raise InvalidRequestError(
            f"{resolved.name} has no drafter of its own that could learn from traffic.",
            remedy="Name one with --start, or train one with --data first.",
            field="start",
        )
    read_taps(first)
    return first


def _check_time(hours: float | None, *, needed: bool) -> None:
    if hours is None and needed:
        raise InvalidRequestError(
            "There is nothing to train on.",
            remedy="Give --data with what `peagle synth` wrote, --traffic with a log, or --hours: "
            "for two fifths of that time the model then writes its own text.",
            field="data",
        )
    if hours is not None and not hours > 0:
        raise InvalidRequestError(
            f"hours cannot be {hours}.", remedy="Allowed: a number above 0.", field="hours"
        )


def _own_text(
    model: str, output: Path, hours: float | None, device: str
) -> "tuple[OwnText, float | None]":
    """Let the model write what it is trained on, unless it has; tell the hours that are left."""
    from peagle.cli.synthesis import run_watched
    from peagle.train.own_text import OwnText, write_own_text

    own = OwnText.within(output)
    if own.complete:
        return own, hours
    if hours is None:
        raise InvalidRequestError(
            f"{output} holds no text of the model, and --data is not given.",
            remedy="Give the same --data again.",
            field="data",
        )
    began = time.monotonic()
    share = _WRITING_SHARE * hours
    own = write_own_text(model, output, hours=share, device=device, watch=run_watched)
    return own, max(hours - (time.monotonic() - began) / 3600, 0.01)


class _Shown:
    """A run's progress bar, and a line for each held-out measurement."""

    def __init__(self, progress: "Progress", tokens: int) -> None:
        self._progress = progress
        self._bar = progress.add_task("Training", total=tokens)

    def step(self, standing: "Standing", loss: float) -> None:
        self._progress.update(
            self._bar,
            completed=standing.tokens,
            description=f"Training (loss {loss:.3f}, "
            f"{standing.tokens / standing.seconds:.0f} tokens/s)",
        )

    def measured(self, held_out: "HeldOut", better: bool) -> None:
        top1 = " ".join(f"{share:.2f}" for share in held_out.top1)
        self._progress.console.print(
            f"held-out acceptance length {held_out.acceptance_length:.3f}"
            f"{' (best)' if better else ''}; best token written at each depth: {top1}",
            highlight=False,
        )
