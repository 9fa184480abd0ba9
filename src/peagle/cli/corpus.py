"""`peagle corpus`: the table of a model's own text that its requests are drafted from."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peagle.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from peagle.model.tokenizer import Tokenizer
    from peagle.train.conversations import ConversationFile

corpus = typer.Typer(
    help="The table of a model's own text that its requests are drafted from.",
    no_args_is_help=True,
)


@corpus.command("build")
def build(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA...", help="Conversations of the model, as `peagle synth` writes them."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="The model that wrote them: a name from `peagle models`, "
            "hf:ORGANISATION/NAME, a GGUF file or a folder."
        ),
    ],
    output: Annotated[Path, typer.Option(help="The corpus file to write (.safetensors).")],
) -> None:
    """Make a corpus of a model's own answers, for `--corpus`. 3% of the documents are kept out."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from peagle.catalog import resolve
    from peagle.model.loading import open_tokenizer
    from peagle.train.corpus import corpus_of

    for file in data:
        if output.exists() and file.exists() and output.samefile(file):
            raise InvalidRequestError(
                f"--output is {output}, which is one of the files to read.",
                remedy="Write the corpus to another file.",
                field="output",
            )
    began = time.perf_counter()
    tokenizer = open_tokenizer(resolve(model).files)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        files = _read(data, tokenizer, progress)
        progress.add_task("Splitting and sorting", total=None)
        made = corpus_of(files, tokenizer_fingerprint=tokenizer.fingerprint())
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            made.corpus.save(output)
        except OSError as error:
            raise InvalidRequestError(
                f"{output} cannot be written ({error.strerror or error}).",
                remedy="Give a file in a folder that you may write to, on a disk with room.",
                field="output",
            ) from None
    total = made.kept + made.held_out
    size = output.stat().st_size
    sys.stdout.write(
        f"{made.kept} of {total} conversations, {made.held_out} held out\n"
        f"{made.corpus.description.tokens} tokens, {size / 1e6:.2f} MB, "
        f"{time.perf_counter() - began:.1f} s: {output}\n"
    )


def _read(
    data: list[Path], tokenizer: "Tokenizer", progress: "Progress"
) -> "list[ConversationFile]":
    from peagle.train.conversations import read_conversations

    files: dict[str, ConversationFile] = {}
    for path in data:
        bar = progress.add_task(f"Reading {path.name}")
        file = read_conversations(
            path,
            vocab_size=tokenizer.vocab_size,
            tokenizer_fingerprint=tokenizer.fingerprint(),
            progress=partial(_show, progress, bar),
        )
        if file.sha256 in files:
            raise InvalidRequestError(
                f"{path} holds the same as {files[file.sha256].path}.",
                remedy="Give each file once: its text would count twice.",
                field="data",
            )
        files[file.sha256] = file
    return list(files.values())


def _show(progress: "Progress", bar: "TaskID", done: int, size: int) -> None:
    progress.update(bar, completed=done, total=size)
