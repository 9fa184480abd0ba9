"""Drafters side by side: their names, and one target that gives what all of them read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from peagle.catalog import resolve_drafter
from peagle.draft.formats.public_config import PublicConfig
from peagle.draft.loading import open_drafter, read_drafter_config
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.drafter import Drafter
from peagle.errors import CheckpointError, InvalidRequestError
from peagle.evaluate.configurations import CORPUS, LOOKUP
from peagle.model.target import Target

# Memory is touched as positions are used, so this is a limit and not a cost.
_KV_CACHE_BYTES: Final = 1 << 30


def named_files(told: Sequence[str]) -> dict[str, Path]:
    """Read `DRAFTER` or `NAME=DRAFTER`, and fetch what lies on the hub.

    A drafter is a file of ours, a folder with a public checkpoint or `hf:ORGANISATION/NAME`. One
    without a name is called as its file, without the ending.

    Raises:
        CheckpointError: A folder is incomplete or holds something else.
        DownloadError: A drafter cannot be fetched.
        ModelNotFoundError: One is written as a source, but wrongly.
        InvalidRequestError: A name is empty, that of a text source, or given twice.
    """
    named: dict[str, Path] = {}
    for text in told:
        name, equals, drafter = text.partition("=")
        if not equals or Path(text).exists():
            name, drafter = Path(text).stem, text
        if not name.strip() or name in (LOOKUP, CORPUS):
            raise InvalidRequestError(
                f"--drafter {text} has the name {name!r}.",
                remedy="Give it another one, as in --drafter mine=drafter.safetensors.",
                field="drafter",
            )
        if name in named:
            raise InvalidRequestError(
                f"Two drafters are called {name!r}: {named[name]} and {drafter}.",
                remedy="Name them, as in --drafter old=a/drafter.safetensors --drafter "
                "new=b/drafter.safetensors.",
                field="drafter",
            )
        named[name] = resolve_drafter(drafter)
    return named


def read_configs(files: Mapping[str, Path]) -> dict[str, NetworkConfig | PublicConfig]:
    """Read the configurations of drafters, without their weights.

    Raises:
        CheckpointError: A file is missing, damaged, or no drafter.
        UnsupportedError: A public network has a part that this engine does not run.
    """
    return {name: read_drafter_config(path) for name, path in files.items()}


def open_drafters(
    files: Mapping[str, Path],
    configs: Mapping[str, NetworkConfig | PublicConfig],
    target: Target,
    fingerprint: str,
) -> dict[str, Drafter]:
    """Open drafters for a target.

    Args:
        files: The drafters by name.
        configs: Their configurations.
        target: The target, whatever its taps.
        fingerprint: `Tokenizer.fingerprint` of the target.

    Raises:
        CheckpointError: A drafter was made for another target or is damaged; the message names it.
    """
    opened = {}
    for name, path in files.items():
        try:
            opened[name] = open_drafter(
                path, target.with_taps(configs[name].taps), fingerprint, budget=_KV_CACHE_BYTES
            )
        except CheckpointError as error:
            raise CheckpointError(
                f"--drafter {path}: {error.problem}", remedy=error.remedy, field="drafter"
            ) from None
    return opened
