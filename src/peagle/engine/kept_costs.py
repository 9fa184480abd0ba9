"""Keep what was measured on disk, for the next start on the same machine with the same model."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError

from peagle.catalog.cache import cache_folder, read_json, write_json
from peagle.catalog.progress import announce
from peagle.engine.costs import StepCosts
from peagle.engine.processor import processor_name

FORMAT: Final = 3
"""Counts up when what is measured, or how, changes."""


def kept_costs(
    what: Mapping[str, Any],
    measure: Callable[[], StepCosts],
    still_hold: Callable[[StepCosts], bool],
) -> StepCosts:
    """Give the costs that were measured before under the same conditions, or measure them.

    Args:
        what: Everything that costs depend on beside this machine and its libraries: files of the
            weights (`file_state`), precision, device.
        measure: Measures them.
        still_hold: Whether kept costs look like those of today: they may have been measured while
            something else ran, or on a machine that was slower then.
    """
    conditions = {"format": FORMAT, **machine_state(), **what}
    key = hashlib.blake2b(repr(sorted(conditions.items())).encode(), digest_size=10).hexdigest()
    file = cache_folder() / "costs" / f"{key}.json"
    try:
        # A damaged file, or one of another version, is as good as none.
        kept = StepCosts.model_validate(read_json(file)["costs"])
        if still_hold(kept):
            return kept
    except (KeyError, ValidationError):
        pass
    costs = measure()
    try:
        write_json(file, {"conditions": conditions, "costs": costs.model_dump(mode="json")})
    except OSError as error:
        announce(
            f"The measured cost of passes cannot be kept in {file.parent}: "
            f"{error.strerror or error}. It will be measured again at every start."
        )
    return costs


def machine_state() -> dict[str, Any]:
    """What of this machine and its libraries a step's costs depend on."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "gpus": [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())],
    }


def file_state(path: Path | None) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a file, or of all files in a folder: they change with weights."""
    if path is None:
        return []
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    states = [(str(file.resolve()), file.stat()) for file in files if file.is_file()]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]
