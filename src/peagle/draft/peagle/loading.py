"""Open a drafter file for a target."""

from pathlib import Path

from peagle.draft.peagle.compatibility import check_target
from peagle.draft.peagle.drafter import PEagleDrafter
from peagle.draft.peagle.network import PEagleNetwork
from peagle.draft.peagle.storage import load_drafter, read_config
from peagle.model.target import TargetModel


def open_drafter(
    path: Path, target: TargetModel, fingerprint: str, *, budget: int
) -> PEagleDrafter:
    """Open a drafter file for a target that gives the features it reads.

    Args:
        path: The file.
        target: The target, made with the `taps` of `read_config(path)`.
        fingerprint: `Tokenizer.fingerprint` of the target.
        budget: Most bytes the drafter's KV cache may take.

    Raises:
        CheckpointError: The file is missing, damaged, or made for another target.
        OutOfMemoryBudgetError: Not even one page of the KV cache fits in the budget.
    """
    # Before the weights, which for another target are read in vain.
    check_target(read_config(path), target.config, fingerprint)
    config, tensors = load_drafter(path)
    if target.taps != config.taps:
        raise ValueError(f"the target gives taps {target.taps}, the drafter reads {config.taps}")
    network = PEagleNetwork(
        config, tensors,
        embedding=target.weights.embedding, dtype=target.dtype, device=target.device,
    )  # fmt: skip
    return PEagleDrafter(network, budget=budget, name=path.stem)
