"""`peagle train`: a drafter from a model's own answers."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peagle.cli.options import DeviceOption

if TYPE_CHECKING:
    from rich.progress import Progress

    from peagle.train.checkpoint import Progress as Standing
    from peagle.train.held_out import HeldOut


def train(
    model: Annotated[str, typer.Argument(help="The target: a name, a GGUF file or a folder.")],
    data: Annotated[
        list[Path],
        typer.Option(help="Conversations, as `peagle synth` writes them; may be given again."),
    ],
    output: Annotated[Path, typer.Option(help="Folder for checkpoints, log and drafter.")],
    method: Annotated[str, typer.Option(help="peagle or eagle3.")] = "peagle",
    recipe: Annotated[
        Path | None, typer.Option(help="YAML file that says how; a good default without.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Response tokens to train on, over all epochs.")
    ] = 5_000_000,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Stop after so long; go on with --resume.")
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

    Ctrl-C writes a checkpoint and stops; --resume goes on.
    """
    from rich.console import Console
    from rich.progress import Progress

    from peagle.catalog import resolve
    from peagle.model.loading import load_target
    from peagle.train.conversations import read_conversations
    from peagle.train.recipe import Recipe
    from peagle.train.run import check_folder, finish, open_run, split_data
    from peagle.train.trainer import Limits

    how = Recipe.of_method(method) if recipe is None else Recipe.read(recipe)
    check_folder(output, resume=resume)
    files = resolve(model).files
    target = load_target(files, dtype="bfloat16", device=device)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        conversations = [
            conversation
            for path in data
            for conversation in read_conversations(
                path,
                vocab_size=target.tokenizer.vocab_size,
                tokenizer_fingerprint=target.tokenizer.fingerprint(),
            ).conversations
        ]
        split = split_data(conversations, target.model.config.context_length)
        trainer, config, ids = open_run(
            output, target=target, files=files, name=model, recipe=how, data=split,
            cache_features=cache_features,
        )  # fmt: skip
        if resume:
            trainer.resume()
        shown = _Shown(progress, tokens)
        try:
            trainer.train(
                Limits(tokens=tokens, seconds=None if hours is None else hours * 3600),
                on_step=shown.step,
                on_measured=shown.measured,
            )
        except KeyboardInterrupt:
            sys.stderr.write(f"Stopped; go on with: --resume --output {output}\n")
            raise
    drafter = finish(trainer, output, config, ids)
    sys.stdout.write(
        f"{drafter}: held-out acceptance length {trainer.progress.best:.3f} after "
        f"{trainer.progress.tokens} response tokens\n"
    )


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
