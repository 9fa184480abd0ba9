"""The command line: one file per command group."""

from peagle.cli.main import main

__all__ = ["main"]
