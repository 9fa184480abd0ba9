"""Write a drafter as a public checkpoint: vLLM's raw form or the speculators library's.

Everything that those formats want is written out: the whole embedding with the mask row in it, the
mask token under every name that a reader may look for, the tapped layers at the top and in
`eagle_config`. Both number the layers as our `taps` do: id `k` is the stream entering layer `k`. A
Markov head, which only this engine runs, is left out.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import torch

from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.formats.public_config import LAYERS_KEY, MODEL_TYPE_KEY, TAPS_KEY
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    MARKOV_GATE,
    MARKOV_OUT,
    MARKOV_PREVIOUS,
    MASK_EMBEDDING,
    target_ids,
)
from peagle.draft.peagle.config import PEagleConfig
from peagle.errors import UnsupportedError
from peagle.model.config import DecoderConfig
from peagle.model.hugging_face_folder import write_folder

DrafterFormat = Literal["vllm", "speculators"]

# The mask's row goes into the embedding; the Markov head is run by this engine only.
_OURS: Final = (MASK_EMBEDDING, MARKOV_PREVIOUS, MARKOV_GATE, MARKOV_OUT)
_UNSAID_DEPTH: Final = 7


def export_drafter(
    config: NetworkConfig,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    form: DrafterFormat,
    *,
    target: DecoderConfig,
    embedding: torch.Tensor,
) -> None:
    """Write a drafter as a folder with `config.json` and `model.safetensors`.

    Args:
        config: The network's shape.
        tensors: Its weights by name, checked (`network.tensors.check_tensors`).
        folder: Where; it must not exist yet, or be empty.
        form: Which of the two.
        target: The target's shape.
        embedding: The target's, `[vocab, hidden]`, written out where the network shares it.

    Raises:
        UnsupportedError: The network has a part that the format cannot express.
        CheckpointError: The folder holds something already, or cannot be written.
    """
    if config.decoder.sliding_window is not None:
        raise UnsupportedError(
            f"The drafter has a sliding window of {config.decoder.sliding_window} positions, which "
            "public drafters of the llama type do not have.",
            remedy="Train the drafter without one.",
            field="sliding_window",
        )
    weights = _whole_weights(config, tensors, embedding)
    describe, name, always_mapped = _FORMS[form]
    reduced = config.draft_vocab_size < config.decoder.vocab_size
    if always_mapped or reduced or weights[DRAFT_TO_TARGET].any():
        kept = torch.zeros(config.decoder.vocab_size, dtype=torch.bool)
        kept[target_ids(weights[DRAFT_TO_TARGET])] = True
        weights["t2d"] = kept
    else:
        del weights[DRAFT_TO_TARGET]
    dtype = str(weights["fc.weight"].dtype).removeprefix("torch.")
    write_folder(
        folder,
        {"config.json": describe(config, target) | {"dtype": dtype, "torch_dtype": dtype}},
        {name(key): weight for key, weight in weights.items()},
    )


def _whole_weights(
    config: NetworkConfig, tensors: Mapping[str, torch.Tensor], embedding: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Give the weights that public formats have, the embedding whole and the mask row in it."""
    weights = {name: found.detach().cpu() for name, found in tensors.items() if name not in _OURS}
    if not config.own_embedding:
        dtype = weights["fc.weight"].dtype
        weights[EMBEDDING] = embedding.detach().to(device="cpu", dtype=dtype, copy=True)
        if isinstance(config, PEagleConfig):
            weights[EMBEDDING][config.mask_token_id] = tensors[MASK_EMBEDDING].to(dtype)
    return weights


def _raw(config: NetworkConfig, target: DecoderConfig) -> dict[str, Any]:  # noqa: ARG001
    """Describe a drafter as `amazon/*-p-eagle` do, a flat Llama configuration."""
    written = _layers(config) | _shape(config)
    written["architectures"] = ["LlamaForCausalLMEagle3"]
    if isinstance(config, PEagleConfig):
        for key in ("ptd_token_id", "pard_token", "mask_token_id"):
            written[key] = config.mask_token_id
    return written


def _speculators(config: NetworkConfig, target: DecoderConfig) -> dict[str, Any]:
    """Describe a drafter as `RedHatAI/*` do, its layers nested."""
    written = {
        "architectures": ["Eagle3Speculator"],
        MODEL_TYPE_KEY: config.method,
        LAYERS_KEY: _layers(config),
        "embed_requires_grad": config.own_embedding,
        "speculators_config": {
            "algorithm": config.method,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": config.train_depth or _UNSAID_DEPTH,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {
                "name_or_path": config.target_name,
                "architectures": target.to_hugging_face()["architectures"],
            },
        },
    } | _shape(config)
    if isinstance(config, PEagleConfig):
        written["architectures"] = ["PEagleSpeculator"]
        written["embed_requires_grad"] = True
        written["mask_token_id"] = config.mask_token_id
        # vLLM releases before it read `mask_token_id` look for these.
        written["pard_token"] = written["ptd_token_id"] = config.mask_token_id
    return written


def _layers(config: NetworkConfig) -> dict[str, Any]:
    written = config.decoder.to_hugging_face()
    return written | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def _shape(config: NetworkConfig) -> dict[str, Any]:
    taps = list(config.taps)
    return {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": isinstance(config, Eagle3Config) and config.norm_output,
        TAPS_KEY: taps,
        "eagle_config": {"use_aux_hidden_state": True, TAPS_KEY: taps},
    }


def _raw_name(name: str) -> str:
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name


_FORMS: Final[
    Mapping[
        DrafterFormat,
        tuple[Callable[[NetworkConfig, DecoderConfig], dict[str, Any]], Callable[[str], str], bool],
    ]
] = {"vllm": (_raw, _raw_name, True), "speculators": (_speculators, str, False)}
