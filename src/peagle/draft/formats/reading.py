"""Read a public drafter: a folder with `config.json` and safetensors, in one piece or in shards."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.formats.public_config import (
    MASK_TOKEN_KEYS,
    TAPS_KEY,
    PublicConfig,
    read_public_config,
)
from peagle.draft.network.compatibility import check_shape
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    MASK_EMBEDDING,
    MASK_HIDDEN,
    check_tensors,
)
from peagle.draft.peagle.config import PEagleConfig
from peagle.errors import CheckpointError, UnsupportedError
from peagle.model.config import DecoderConfig
from peagle.model.folder_checkpoint import read_json, read_tensors

# Training leftovers, and `d2t` said the other way round.
_IGNORED: Final = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight")
_FIRST_LAYER: Final = "midlayer."


def read_folder_config(folder: Path) -> PublicConfig:
    """Read what a folder's `config.json` says about its drafter.

    Raises:
        CheckpointError: The file is missing, or a value in it is impossible.
        UnsupportedError: The network has a part that this engine does not run.
    """
    return read_public_config(read_json(folder / "config.json"))


def load_folder(
    folder: Path, target: DecoderConfig, embedding: torch.Tensor
) -> tuple[NetworkConfig, dict[str, torch.Tensor]]:
    """Read a public drafter for a target, in the form in which drafters are kept here.

    An embedding that equals the target's, all but the row of the mask token, is shared with it.

    Args:
        folder: Where it lies.
        target: The target's shape.
        embedding: The target's embedding, `[vocab, hidden]`.

    Raises:
        CheckpointError: A file is missing or damaged, a weight is missing or has another shape
            than the configuration says, or the drafter does not fit the target.
        UnsupportedError: The network has a part that this engine does not run.
    """
    public = read_folder_config(folder)
    config = _network_config(public, folder.name, target)
    # Before the weights, which for another target are read in vain.
    check_shape(config, target)
    tensors = _renamed(folder, read_tensors(folder))
    if public.taps is None:
        _require_default_taps(public, tensors, folder)
    if DRAFT_TO_TARGET in tensors:
        tensors[DRAFT_TO_TARGET] = tensors[DRAFT_TO_TARGET].long()
    elif config.draft_vocab_size == config.decoder.vocab_size:
        tensors[DRAFT_TO_TARGET] = torch.zeros(config.draft_vocab_size, dtype=torch.int64)
    if isinstance(config, PEagleConfig):
        _require_masks(tensors, folder)
        tensors[MASK_HIDDEN] = tensors[MASK_HIDDEN].reshape(1, 1, -1)
    elif MASK_HIDDEN in tensors:
        raise CheckpointError(
            f"{folder} holds {MASK_HIDDEN}, as P-EAGLE drafters do, but its config.json names no "
            "mask token.",
            remedy=f"Add the id as one of {', '.join(MASK_TOKEN_KEYS)}.",
            field="mask_token_id",
        )
    config = _share_embedding(config, tensors, embedding)
    check_shape(config, target)
    check_tensors(config, tensors, str(folder))
    return config, tensors


def _network_config(public: PublicConfig, name: str, target: DecoderConfig) -> NetworkConfig:
    shape: dict[str, Any] = {
        "decoder": public.decoder,
        "draft_vocab_size": public.draft_vocab_size,
        "target_hidden_size": public.target_hidden_size,
        "taps": public.taps or target.default_taps,
        "tokenizer_fingerprint": None,
        "target_name": public.target_name or f"the target of {name}",
        "train_depth": public.train_depth,
        "norm_before_residual": public.norm_before_residual,
        "norm_before_fc": public.norm_before_fc,
        "fc_norm": public.fc_norm,
        "own_embedding": True,
    }
    if public.mask_token_id is None:
        return Eagle3Config(**shape, norm_output=public.norm_output)
    return PEagleConfig(**shape, mask_token_id=public.mask_token_id)


def _renamed(folder: Path, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give weights the names they have here, and refuse those of parts that are not run."""
    tensors = {}
    for stored, weight in found.items():
        name = stored.removeprefix("model.")
        if name.startswith(_FIRST_LAYER):
            name = "layers.0." + name.removeprefix(_FIRST_LAYER)
        if name in _IGNORED or name.endswith("rotary_emb.inv_freq"):
            continue
        for part, what in {
            "q_norm.weight": "query norms",
            "k_norm.weight": "key norms",
            ".bias": "biases",
        }.items():
            if name.endswith(part):
                raise UnsupportedError(
                    f"{folder} has {what} ({stored}), which this engine does not run in drafters.",
                    remedy="Use a drafter with plain llama layers, or serve this one with vLLM.",
                    field=stored,
                )
        tensors[name] = weight
    return tensors


def _require_default_taps(
    public: PublicConfig, tensors: dict[str, torch.Tensor], folder: Path
) -> None:
    """Refuse to guess which layers are read where there are not EAGLE-3's three of them."""
    fc = tensors.get("fc.weight")
    if fc is None or fc.dim() != 2 or fc.shape[1] == 3 * public.target_hidden_size:
        return
    raise CheckpointError(
        f"The drafter in {folder} reads {fc.shape[1]} values of the target, not three layers of "
        f"{public.target_hidden_size}, and its config.json does not name the layers.",
        remedy=f"Add {TAPS_KEY} to its config.json, as the model's page gives it.",
        field=TAPS_KEY,
    )


def _require_masks(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    for name, why in {
        MASK_HIDDEN: "the learned features of mask slots",
        EMBEDDING: "the embedding with the learned row of the mask token",
    }.items():
        if name not in tensors:
            raise CheckpointError(
                f"{folder} lacks the tensor {name!r}: {why}.",
                remedy="A P-EAGLE drafter needs it: take the complete checkpoint, or remove the "
                "mask token from config.json if this is an EAGLE-3 drafter.",
                field=name,
            )


def _share_embedding(
    config: NetworkConfig, tensors: dict[str, torch.Tensor], embedding: torch.Tensor
) -> NetworkConfig:
    """Drop an embedding that is the target's, keeping the row of the mask token."""
    own = tensors.get(EMBEDDING)
    shared = replace(config, own_embedding=False)
    if own is None:
        return shared
    if own.shape != embedding.shape:
        return config
    # Of two kinds of number the coarser one decides whether they came from the same.
    kind = min(own.dtype, embedding.dtype, key=lambda dtype: dtype.itemsize)
    differing = (own.to(kind) != embedding.cpu().to(kind)).any(1)
    if isinstance(config, PEagleConfig):
        differing[config.mask_token_id] = False
    if differing.any():
        return config
    if isinstance(config, PEagleConfig):
        tensors[MASK_EMBEDDING] = own[config.mask_token_id].clone()
    del tensors[EMBEDDING]
    return shared
