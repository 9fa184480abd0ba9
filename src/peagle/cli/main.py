"""The `peagle` command: its subcommands, and one line for every mistake a user can put right."""

import os
import sys

import typer

from peagle.cli.chat import chat
from peagle.cli.demo import demo
from peagle.cli.doctor import doctor
from peagle.cli.export import export
from peagle.cli.generate import generate
from peagle.cli.models import models, pull
from peagle.errors import PeagleError

_USAGE_ERROR = 2

app = typer.Typer(
    name="peagle",
    help="Self-hosted P-EAGLE: faster answers from language models, identical to the last token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate, chat, models, pull, export, doctor, demo):
    app.command()(command)


def main() -> None:
    """Run the command line: exit 2 and one line on a mistake; Typer makes it 130 on Ctrl-C."""
    try:
        app()
    except PeagleError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(_USAGE_ERROR)
    except BrokenPipeError:
        # Whoever read our output has gone; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
