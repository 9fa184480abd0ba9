"""Open a drafter for a target."""

from collections.abc import Mapping
from pathlib import Path

import torch

from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.eagle3.drafter import Eagle3Drafter
from peagle.draft.eagle3.network import Eagle3Network
from peagle.draft.formats.public_config import PublicConfig
from peagle.draft.formats.reading import load_folder, read_folder_config
from peagle.draft.network.compatibility import check_target
from peagle.draft.network.compute import NetworkCompute
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.drafter import Drafter
from peagle.draft.network.native_compute import NativeCompute
from peagle.draft.network.torch_compute import TorchCompute
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.peagle.drafter import PEagleDrafter
from peagle.draft.peagle.network import PEagleNetwork
from peagle.draft.storage import load_drafter, read_config
from peagle.model.config import DecoderConfig
from peagle.model.native_target import NativeTarget, obstacle
from peagle.model.target import Target


def read_drafter_config(path: Path) -> NetworkConfig | PublicConfig:
    """Read a drafter's configuration without its weights.

    Args:
        path: A file of ours, or a folder with a public checkpoint.

    Raises:
        CheckpointError: It is missing, damaged or something else.
        UnsupportedError: The network has a part that this engine does not run.
    """
    return read_folder_config(path) if path.is_dir() else read_config(path)


def read_taps(path: Path) -> tuple[int, ...] | None:
    """Read which target layers a drafter reads; None leaves EAGLE-3's default.

    Args:
        path: A file of ours, or a folder with a public checkpoint.

    Raises:
        CheckpointError: It is missing, damaged or something else.
        UnsupportedError: The network has a part that this engine does not run.
    """
    return read_drafter_config(path).taps


def load_weights(
    path: Path, target: DecoderConfig, embedding: torch.Tensor, fingerprint: str
) -> tuple[NetworkConfig, dict[str, torch.Tensor]]:
    """Read a drafter that fits a target: its configuration, and its weights by name.

    Args:
        path: A file of ours, or a folder with a public checkpoint.
        target: The target's shape.
        embedding: The target's embedding, `[vocab, hidden]`.
        fingerprint: `Tokenizer.fingerprint` of the target.

    Raises:
        CheckpointError: It is missing, damaged, or made for another target.
        UnsupportedError: The network has a part that this engine does not run.
    """
    if path.is_dir():
        return load_folder(path, target, embedding)
    # Before the weights, which for another target are read in vain.
    check_target(read_config(path), target, fingerprint)
    return load_drafter(path)


def open_drafter(
    path: Path, target: Target, fingerprint: str, *, budget: int, most_pages: int | None = None
) -> Drafter:
    """Open a drafter for a target that gives the features it reads.

    Args:
        path: A file of ours, or a folder with a public checkpoint.
        target: The target, made with the taps of `read_taps(path)`.
        fingerprint: `Tokenizer.fingerprint` of the target.
        budget: Most bytes the drafter's KV cache may take.
        most_pages: Most pages that it has.

    Raises:
        CheckpointError: It is missing, damaged, or made for another target.
        UnsupportedError: The network has a part that this engine does not run.
        OutOfMemoryBudgetError: Not even one page of the KV cache fits in the budget.
    """
    config, tensors = load_weights(path, target.config, target.embedding, fingerprint)
    if target.taps != config.taps:
        raise ValueError(f"the target gives taps {target.taps}, the drafter reads {config.taps}")
    name = path.resolve().name if path.is_dir() else path.stem
    return build_drafter(config, tensors, target, budget=budget, name=name, most_pages=most_pages)


def build_drafter(
    config: NetworkConfig,
    tensors: Mapping[str, torch.Tensor],
    target: Target,
    *,
    budget: int,
    name: str,
    most_pages: int | None = None,
) -> Drafter:
    """Make a drafter of weights, of the method that its configuration is for.

    Args:
        config: The network's shape.
        tensors: Its weights by name, checked (`network.tensors.check_tensors`).
        target: The target whose features it reads.
        budget: Most bytes its KV cache may take.
        name: What reports call it.
        most_pages: Most pages that its KV cache has.

    Raises:
        OutOfMemoryBudgetError: Not even one page of the KV cache fits in the budget.
    """
    compute = _compute(config, tensors, target)
    if isinstance(config, PEagleConfig):
        peagle = PEagleNetwork(config, tensors, compute, embedding=target.embedding)
        return PEagleDrafter(peagle, budget=budget, name=name, most_pages=most_pages)
    if isinstance(config, Eagle3Config):
        eagle3 = Eagle3Network(config, tensors, compute)
        return Eagle3Drafter(eagle3, budget=budget, name=name, most_pages=most_pages)
    raise TypeError(f"no drafter has a {type(config).__name__}")


def _compute(
    config: NetworkConfig, tensors: Mapping[str, torch.Tensor], target: Target
) -> NetworkCompute:
    """Choose what computes a network: the native step if it runs the target and can run this."""
    embedding = target.embedding
    if isinstance(target, NativeTarget) and not obstacle(config.decoder, target.dtype, "none"):
        return NativeCompute(
            config, tensors, embedding=embedding, quantised=target.quantization != "none"
        )
    return TorchCompute(
        config, tensors, embedding=embedding, dtype=target.dtype, device=target.device
    )
