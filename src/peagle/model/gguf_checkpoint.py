"""Read a decoder from a GGUF file: its shape, and its weights dequantised by the `gguf` package."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import quants
from numpy.typing import NDArray

from peagle.catalog.gguf_header import GGUFTensor, read_gguf_header
from peagle.errors import CheckpointError, UnsupportedError
from peagle.model.config import DecoderConfig, RopeScaling
from peagle.model.rope import inverse_frequencies, split_pairs

_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"
# Stored by older converters, recomputed by us.
_IGNORED = ("rope_freqs.weight", "attn_rot_embd.weight", "rope.freqs")


class GGUFCheckpoint:
    """An open GGUF file of the Llama family.

    Args:
        path: The file.

    Attributes:
        path: As given.
        header: Its metadata, and where its tensors lie.
        config: Its shape.

    Raises:
        ModelNotFoundError: There is no such file.
        CheckpointError: The file is truncated, corrupt or incomplete.
        UnsupportedError: Its architecture, rope scaling or quantisation is not one we read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_gguf_header(path)
        self.config = self._read_config()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Give every weight by its Hugging Face name, float32, in Hugging Face's row order."""
        config = self.config
        for name, stored in self.stored():
            weight = self.values(stored)
            # The converter paired neighbouring values; Hugging Face pairs halves.
            if name.endswith("q_proj.weight"):
                weight = split_pairs(weight, config.num_heads)
            elif name.endswith("k_proj.weight"):
                weight = split_pairs(weight, config.num_kv_heads)
            yield name, weight

    def stored(self) -> Iterator[tuple[str, GGUFTensor]]:
        """Give every weight's Hugging Face name and where it lies.

        Raises:
            UnsupportedError: A tensor is not one of the Llama family's.
        """
        for stored in self.header.tensors:
            if stored.name.endswith(_IGNORED):
                continue
            name = _hugging_face_name(stored.name)
            if name is None:
                raise UnsupportedError(
                    f"{self.path} holds the tensor {stored.name!r}, which the Llama family "
                    "does not have.",
                    remedy="This engine runs plain Llama, SmolLM2 and Mistral decoders.",
                    field=stored.name,
                )
            yield name, stored

    def packed(self, stored: GGUFTensor) -> NDArray[np.uint8]:
        """Read a tensor as it is packed, `[rows, bytes]`."""
        packed = np.fromfile(self.path, np.uint8, stored.size, offset=stored.start)
        return packed.reshape(quants.quant_shape_to_byte_shape(stored.shape, stored.kind))

    def values(self, stored: GGUFTensor) -> torch.Tensor:
        """Read a tensor in the file's own row order, float32 `[rows, columns]`.

        Raises:
            UnsupportedError: Its quantisation is not one we read.
        """
        rows = self.packed(stored)
        try:
            return torch.from_numpy(quants.dequantize(rows, stored.kind))
        except NotImplementedError:
            raise UnsupportedError(
                f"The tensor {stored.name!r} has the quantisation "
                f"{stored.kind.name}, which is not supported.",
                remedy="Use a GGUF with Q4_0, Q4_1, Q8_0, K-quants, F16, BF16 or F32 weights.",
                field=stored.name,
            ) from None

    def _read_config(self) -> DecoderConfig:
        metadata = self.header.metadata
        architecture = metadata.get("general.architecture")
        if architecture != "llama":
            raise UnsupportedError(
                f"{self.path} holds a model of the architecture {architecture!r}, "
                "which is not supported.",
                remedy="This engine runs GGUF files of the architecture 'llama' "
                "(Llama, SmolLM2, Mistral).",
                field="general.architecture",
            )

        def needed(key: str) -> Any:
            value = metadata.get(f"llama.{key}")
            if value is None:
                raise CheckpointError(
                    f"{self.path} lacks the metadata llama.{key}.",
                    remedy="The file is incomplete; fetch it again.",
                    field=f"llama.{key}",
                )
            return value

        if (metadata.get("llama.expert_count") or 0) > 0:
            raise UnsupportedError(
                f"{self.path} is a mixture of experts, which is not supported.",
                remedy="This engine runs dense decoders.",
                field="llama.expert_count",
            )
        shapes = {stored.name: stored.shape for stored in self.header.tensors}
        if "token_embd.weight" not in shapes:
            raise CheckpointError(
                f"{self.path} has no tensor 'token_embd.weight'.",
                remedy="The file is incomplete, or one shard of several; fetch it again.",
                field="token_embd.weight",
            )
        hidden, heads = needed("embedding_length"), needed("attention.head_count")
        head_dim = metadata.get("llama.attention.key_length") or hidden // heads
        theta = float(metadata.get("llama.rope.freq_base") or 10_000.0)
        return DecoderConfig(
            family="llama",
            vocab_size=shapes["token_embd.weight"][0],
            hidden_size=hidden,
            intermediate_size=needed("feed_forward_length"),
            num_layers=needed("block_count"),
            num_heads=heads,
            num_kv_heads=metadata.get("llama.attention.head_count_kv") or heads,
            head_dim=head_dim,
            rms_norm_eps=float(needed("attention.layer_norm_rms_epsilon")),
            rope_theta=theta,
            rope_scaling=self._rope_scaling(head_dim, theta),
            context_length=needed("context_length"),
            tied_embeddings="output.weight" not in shapes,
        )

    def _rope_scaling(self, head_dim: int, theta: float) -> RopeScaling | None:
        """Recognise Llama 3's scaling, which GGUF stores as one divisor per frequency."""
        kind = self.header.metadata.get("llama.rope.scaling.type")
        if kind not in (None, "none"):
            raise UnsupportedError(
                f"{self.path} uses the rope scaling {kind!r}, which is not supported.",
                remedy="This engine runs the default rotary embedding and llama3's scaling.",
                field="llama.rope.scaling.type",
            )
        factors = next((t for t in self.header.tensors if t.name == _ROPE_FACTORS), None)
        if factors is None:
            return None
        stored = self.values(factors)
        scaling = RopeScaling(
            factor=float(stored.max()),
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_context=8192,
        )
        plain = inverse_frequencies(head_dim, theta, None)
        if not torch.allclose(
            plain / stored, inverse_frequencies(head_dim, theta, scaling), rtol=1e-3
        ):
            raise UnsupportedError(
                f"{self.path} scales its rotary frequencies in a way we do not know.",
                remedy="Use the model's safetensors, whose config.json names the scaling.",
                field=_ROPE_FACTORS,
            )
        return scaling


def _hugging_face_name(name: str) -> str | None:
    if name in _TENSORS:
        return _TENSORS[name]
    prefix, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix == "blk" and layer.isdigit() and part in _LAYER_TENSORS:
        return f"model.layers.{layer}.{_LAYER_TENSORS[part]}"
    return None
