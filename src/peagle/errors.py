"""Errors a user can act on: each names what is wrong, with which value, and what to do.

The command line prints them as one line and exits with 2; the server answers with HTTP 4xx.
Anything else that is raised is a bug.
"""


class PeagleError(Exception):
    """Something the user can put right.

    Args:
        problem: What is wrong, with the value that caused it, as one sentence.
        remedy: What to do about it, as one sentence.
        field: The parameter, key or file the problem is about.
    """

    def __init__(self, problem: str, *, remedy: str, field: str | None = None) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.field = field


class InvalidRequestError(PeagleError):
    """A prompt, a sampling parameter or a drafting specification is impossible."""


class ModelNotFoundError(PeagleError):
    """A model, drafter or corpus name leads to nothing."""


class CheckpointError(PeagleError):
    """A file is missing, truncated, corrupt, or holds something else than it should."""


class UnsupportedError(PeagleError):
    """The file is fine, but this engine does not run it."""


class DownloadError(PeagleError):
    """A model could not be fetched."""


class OutOfMemoryBudgetError(PeagleError):
    """A request or a model can never fit in the memory it was given."""


class PeerError(PeagleError):
    """Another program that is measured beside this one failed, or a server did."""
