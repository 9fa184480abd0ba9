"""The `peagle` command: its subcommands, and one line for every mistake a user can put right."""

import os
import sys

import typer

from peagle.cli.bench import bench
from peagle.cli.chat import chat
from peagle.cli.corpus import corpus
from peagle.cli.demo import demo
from peagle.cli.doctor import doctor
from peagle.cli.eval_drafter import eval_drafter
from peagle.cli.export import export
from peagle.cli.generate import generate
from peagle.cli.models import models, pull
from peagle.cli.serve import serve
from peagle.cli.synth import synth
from peagle.cli.train import train
from peagle.errors import PeagleError

_USAGE_ERROR = 2
_INTERRUPTED = 130

app = typer.Typer(
    name="peagle",
    help="Self-hosted P-EAGLE: faster answers from language models, identical to the last token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    generate, chat, serve, models, pull, export, doctor, demo, synth, train, eval_drafter, bench,
):  # fmt: skip
    app.command()(command)
app.add_typer(corpus, name="corpus")


def main() -> None:
    """Run the command line: one line and exit 2 on a mistake, 130 on Ctrl-C."""
    try:
        app()
    except PeagleError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(_USAGE_ERROR)
    except SystemExit as left:
        # What Typer makes of Ctrl-C.
        if left.code == _INTERRUPTED:
            sys.stderr.write("Interrupted.\n")
        raise
    except BrokenPipeError:
        # Whoever read our output has gone; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
