"""Drafters in one safetensors file: method and configuration in its header, then the weights."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.mixture import NetworkWeights
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import check_tensors
from peagle.draft.peagle.config import PEagleConfig
from peagle.errors import CheckpointError

_CONFIGS: Final[Mapping[str, type[NetworkConfig]]] = {
    "peagle-drafter-1": PEagleConfig,
    "eagle3-drafter-1": Eagle3Config,
}


_WEIGHTS: Final = "network_weights"


def file_format(config: NetworkConfig) -> str:
    """Name the format of a file with such a network, which its header says."""
    return f"{config.method}-drafter-1"


def save_drafter(
    path: Path,
    config: NetworkConfig,
    tensors: Mapping[str, torch.Tensor],
    weights: NetworkWeights | None = None,
) -> None:
    """Write a drafter; a file of that name is replaced only once the new one is complete.

    Args:
        path: Where.
        config: The network's shape.
        tensors: Its weights by name (`network.tensors`), in the dtype they are kept in.
        weights: How much it is to be believed beside text sources, if that was fitted.

    Raises:
        CheckpointError: The weights are not those of such a network or hold NaN or infinity, or
            the file cannot be written.
    """
    check_tensors(config, tensors, "The drafter")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    header = {"format": file_format(config), "config": config.to_json()}
    if weights is not None:
        header[_WEIGHTS] = weights.model_dump_json()
    content = {name: found.detach().cpu().contiguous() for name, found in tensors.items()}
    try:
        save_file(content, unfinished, header)
        unfinished.replace(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be written ({error}).",
            remedy="Give a folder that exists, may be written to and has space left.",
            field="drafter",
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def read_config(path: Path) -> NetworkConfig:
    """Read a drafter's configuration without its weights.

    Raises:
        CheckpointError: The file is missing, truncated, or not a drafter.
    """
    return _read(path, weights=False)[0]


def read_network_weights(path: Path) -> NetworkWeights | None:
    """Read how much a drafter is to be believed beside text sources, if it says so.

    A folder in a public form says nothing.

    Raises:
        CheckpointError: The file is missing or truncated, or says something impossible.
    """
    if path.is_dir():
        return None
    written = _opened(path, weights=False)[0].get(_WEIGHTS)
    try:
        return None if written is None else NetworkWeights.model_validate_json(written)
    except ValidationError as error:
        raise CheckpointError(
            f"{path} has wrong {_WEIGHTS} ({error.errors()[0]['msg']}).",
            remedy="The file is damaged; fetch the drafter again, or train it anew.",
            field="drafter",
        ) from None


def load_drafter(path: Path) -> tuple[NetworkConfig, dict[str, torch.Tensor]]:
    """Read a drafter's configuration and its weights by name.

    Raises:
        CheckpointError: The file is missing, truncated or not a drafter, or its weights are not
            exactly those of the configuration, or hold NaN or infinity.
    """
    config, tensors = _read(path, weights=True)
    check_tensors(config, tensors, str(path))
    return config, tensors


def _read(path: Path, *, weights: bool) -> tuple[NetworkConfig, dict[str, torch.Tensor]]:
    metadata, tensors = _opened(path, weights=weights)
    kind = _CONFIGS.get(metadata.get("format", ""))
    if kind is None or "config" not in metadata:
        raise CheckpointError(
            f"{path} is not a drafter of this program: its header has the format "
            f"{metadata.get('format')!r} instead of {' or '.join(map(repr, _CONFIGS))}.",
            remedy="Give a drafter that was trained here, or a folder with a public one.",
            field="drafter",
        )
    return kind.from_json(metadata["config"]), tensors


def _opened(path: Path, *, weights: bool) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    if not path.is_file():
        raise CheckpointError(
            f"There is no drafter file {path}.",
            remedy="Check the path, or train a drafter first.",
            field="drafter",
        )
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            names = opened.keys() if weights else []
            return metadata, {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read as safetensors ({error}).",
            remedy="The file is truncated or corrupt; fetch the drafter again.",
            field="drafter",
        ) from error
