"""Read a decoder from a Hugging Face folder: `config.json` and safetensors."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig, quantised_by_others
from peagle.model.families import BY_NAME
from peagle.model.rope import in_pairs

_INDEX = "model.safetensors.index.json"
# Files by which older releases of these programs say what config.json says today.
_OLDER_QUANTISERS = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


class FolderCheckpoint:
    """A Hugging Face folder of one of the families that run.

    Args:
        folder: Where `config.json` and the safetensors files lie.

    Raises:
        CheckpointError: A file is missing or cannot be read.
        UnsupportedError: The architecture is not one we run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, method in _OLDER_QUANTISERS.items():
            if (folder / name).is_file():
                raise quantised_by_others(method)
        self.config = DecoderConfig.from_hugging_face(read_json(folder / "config.json"))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every weight by name, memory-mapped, query and key rows in neighbouring pairs.

        Raises:
            CheckpointError: A shard is missing, truncated or corrupt.
        """
        return common_tensors(self.config, read_tensors(self.folder))


def common_tensors(
    config: DecoderConfig, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Give a checkpoint's tensors the names, meaning and order that all families share.

    Args:
        config: The model's shape.
        tensors: As Hugging Face's checkpoints of the family hold them.

    Returns:
        As `NamedWeights` wants them: query and key rows in neighbouring pairs, nothing fused.
    """
    named = BY_NAME[config.family].named(tensors, config)
    return {name: in_pairs(config, name, weight) for name, weight in named.items()}


def missing_tensor(name: str) -> CheckpointError:
    """Describe a checkpoint without a tensor that its configuration wants."""
    return CheckpointError(
        f"The checkpoint has no tensor {name!r}.",
        remedy="A shard may be missing; fetch the model again.",
        field=name,
    )


def require_shape(name: str, has: Sequence[int], wanted: Sequence[int]) -> None:
    """Check a tensor's shape against what the configuration says.

    Raises:
        CheckpointError: It is another one.
    """
    if tuple(has) != tuple(wanted):
        raise CheckpointError(
            f"The tensor {name!r} has the shape {list(has)}, "
            f"but the configuration says {list(wanted)}.",
            remedy="Weights and config.json belong to different models; fetch both again.",
            field=name,
        )


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Read every tensor of a Hugging Face folder by name, memory-mapped.

    Raises:
        CheckpointError: A shard is missing, truncated or corrupt.
    """
    found: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        for shard in _shards(folder):
            try:
                opened = stack.enter_context(safe_open(shard, framework="pt"))
                for name in opened.keys():  # noqa: SIM118  (not a mapping)
                    found[name] = opened.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{shard} cannot be read as safetensors ({error}).",
                    remedy="The file is truncated or corrupt; fetch it again.",
                    field="model",
                ) from error
    return found


def _shards(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        shards = [folder / name for name in names]
    else:
        shards = sorted(folder.glob("*.safetensors"))
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing or not shards:
        raise CheckpointError(
            f"{folder} lacks {', '.join(missing) or 'a safetensors file'}.",
            remedy="Fetch the model again; only safetensors and GGUF are read.",
            field="model",
        )
    return shards


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object.

    Raises:
        CheckpointError: It is missing, or holds something else.
    """
    try:
        read = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}).",
            remedy="A model folder holds config.json and safetensors files.",
            field="model",
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}).", remedy="Fetch it again.", field="model"
        ) from error
    if not isinstance(read, dict):
        raise CheckpointError(
            f"{path} does not hold an object.", remedy="Fetch it again.", field="model"
        )
    return read
