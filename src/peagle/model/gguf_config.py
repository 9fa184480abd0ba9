"""The `config.json` that belongs to a GGUF file, from its metadata.

What llama.cpp knows of an architecture and does not write is filled in here: how Gemma scales its
queries, which of its layers have windows, which layers of SmolLM3 have no rotary embedding.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from peagle.catalog.gguf_header import GGUFHeader, GGUFTensor, refuse_other_purpose
from peagle.errors import CheckpointError, UnsupportedError
from peagle.model.config import RopeScaling
from peagle.model.families import BY_GGUF, BY_NAME, Family
from peagle.model.gguf_names import ARCHITECTURES
from peagle.model.rope import inverse_frequencies

Config = dict[str, Any]

_EMBEDDING: Final = "token_embd.weight"
_LLAMA3_DIVISORS: Final = "rope_freqs.weight"
_GEMMA3_27B_LAYERS: Final = 62
_GEMMA3_WINDOW_PATTERN: Final = 6
_SMOLLM3_ROPE_PERIOD: Final = 4


class GGUFConfig:
    """Reads a file's metadata as a configuration.

    Args:
        path: The file, as errors call it.
        header: Its header.
        values: Reads a small tensor as float32.
    """

    def __init__(
        self, path: Path, header: GGUFHeader, values: Callable[[GGUFTensor], torch.Tensor]
    ) -> None:
        self._path = path
        self._metadata = header.metadata
        self._tensors = {tensor.name: tensor for tensor in header.tensors}
        self._values = values

    def architecture(self) -> str:
        """Give the file's architecture.

        Raises:
            UnsupportedError: It is not one we run.
        """
        found = self._metadata.get("general.architecture")
        if found in ARCHITECTURES:
            return str(found)
        refuse_other_purpose(str(self._path), self._metadata)
        raise UnsupportedError(
            f"{self._path} holds a model of the architecture {found!r}, which is not supported.",
            remedy=f"GGUF files of these run: {', '.join(ARCHITECTURES)} "
            "('llama' is also SmolLM2 and Mistral).",
            field="general.architecture",
        )

    def hugging_face(self) -> Config:
        """Give the configuration as Hugging Face writes it.

        Raises:
            CheckpointError: A value is missing or of another type.
            UnsupportedError: The architecture, or something it is used with, is not supported.
        """
        architecture = self.architecture()
        if _EMBEDDING not in self._tensors:
            raise CheckpointError(
                f"{self._path} has no tensor {_EMBEDDING!r}.",
                remedy="The file is incomplete, or one shard of several; fetch it again.",
                field=_EMBEDDING,
            )
        hidden, heads = self._whole("embedding_length"), self._whole("attention.head_count")
        head_dim = self._whole("attention.key_length", max(hidden // max(heads, 1), 1))
        values_dim = self._whole("attention.value_length", head_dim)
        if values_dim != head_dim:
            raise self._unsupported(
                "attention.value_length", values_dim, f"heads of one width ({head_dim})"
            )
        if architecture != "qwen3moe" and self._whole("expert_count", 0) > 0:
            raise UnsupportedError(
                f"{self._path} is a mixture of experts of the architecture {architecture!r}, "
                "which is not supported.",
                remedy="Of mixtures, qwen3moe runs.",
                field=f"{architecture}.expert_count",
            )
        family = BY_GGUF[architecture]
        theta = self._real("rope.freq_base", 10_000.0)
        config: Config = {
            **_named(family),
            "vocab_size": self._tensors[_EMBEDDING].shape[0],
            "hidden_size": hidden,
            "intermediate_size": self._whole("feed_forward_length"),
            "num_hidden_layers": self._whole("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._whole("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self._real("attention.layer_norm_rms_epsilon"),
            "rope_theta": theta,
            "rope_scaling": self._rope_scaling(head_dim, theta),
            "max_position_embeddings": self._whole("context_length"),
            "tie_word_embeddings": "output.weight" not in self._tensors,
        }
        if architecture != "qwen2":  # whose biases are a part of it
            config["attention_bias"] = "blk.0.attn_q.bias" in self._tensors
        extras = {
            "llama": self._llama,
            "smollm3": self._smollm3,
            "qwen3moe": self._qwen3_moe,
            "gemma3": self._gemma3,
            "phi3": self._phi3,
        }.get(architecture)
        return config | (extras(config) if extras is not None else {})

    def _llama(self, _config: Config) -> Config:
        window = self._whole("attention.sliding_window", 0)
        if not window:
            return {}
        return {**_named(BY_NAME["mistral"]), "sliding_window": window}

    def _smollm3(self, config: Config) -> Config:
        layers = config["num_hidden_layers"]
        return {
            "no_rope_layer_interval": _SMOLLM3_ROPE_PERIOD,
            "no_rope_layers": [int((i + 1) % _SMOLLM3_ROPE_PERIOD != 0) for i in range(layers)],
        }

    def _qwen3_moe(self, _config: Config) -> Config:
        return {
            "num_experts": self._whole("expert_count"),
            "num_experts_per_tok": self._whole("expert_used_count"),
            "moe_intermediate_size": self._whole("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }

    def _gemma3(self, config: Config) -> Config:
        layers, head_dim = config["num_hidden_layers"], config["head_dim"]
        pattern = self._whole("attention.sliding_window_pattern", _GEMMA3_WINDOW_PATTERN)
        window = self._whole("attention.sliding_window", 0)
        full = [not window or (index + 1) % pattern == 0 for index in range(layers)]
        # The 27B model divides by the width of the stream per head (gemma_pytorch's config).
        scalar = (
            config["hidden_size"] // config["num_attention_heads"]
            if layers == _GEMMA3_27B_LAYERS
            else head_dim
        )
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": scalar,
            "sliding_window": window or None,
            "layer_types": ["full_attention" if one else "sliding_attention" for one in full],
            "rope_local_base_freq": self._real("rope.freq_base_swa", 10_000.0),
            "final_logit_softcapping": self._real("final_logit_softcapping", 0.0) or None,
            "attn_logit_softcapping": self._real("attn_logit_softcapping", 0.0) or None,
        }

    def _phi3(self, config: Config) -> Config:
        head_dim, context = config["head_dim"], config["max_position_embeddings"]
        long, short = (
            self._tensors.get(f"rope_factors_{length}.weight") for length in ("long", "short")
        )
        extras: Config = {
            "sliding_window": self._whole("attention.sliding_window", 0) or None,
            "partial_rotary_factor": self._whole("rope.dimension_count", head_dim) / head_dim,
            "original_max_position_embeddings": self._whole(
                "rope.scaling.original_context_length", context
            ),
        }
        if long is not None and short is not None:
            extras["rope_scaling"] = {
                "type": "longrope",
                "rope_type": "longrope",
                "long_factor": self._values(long).tolist(),
                "short_factor": self._values(short).tolist(),
            }
        return extras

    def _rope_scaling(self, head_dim: int, theta: float) -> Config | None:
        kind = self._value("rope.scaling.type")
        if kind in (None, "none", "longrope"):
            divisors = self._tensors.get(_LLAMA3_DIVISORS)
            return None if divisors is None else self._llama3_scaling(divisors, head_dim, theta)
        scaling: Config = {"rope_type": str(kind), "factor": self._real("rope.scaling.factor")}
        original = self._value("rope.scaling.original_context_length")
        return scaling | (
            {} if original is None else {"original_max_position_embeddings": original}
        )

    def _llama3_scaling(self, divisors: GGUFTensor, head_dim: int, theta: float) -> Config:
        """Recognise Llama 3's scaling, which GGUF stores as one divisor per frequency."""
        stored = self._values(divisors)
        scaling = RopeScaling(
            factor=float(stored.max()),
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_context=8192,
        )
        plain = inverse_frequencies(head_dim, theta, None)
        if stored.shape != plain.shape or not torch.allclose(
            plain / stored, inverse_frequencies(head_dim, theta, scaling), rtol=1e-3
        ):
            raise UnsupportedError(
                f"{self._path} scales its rotary frequencies in a way we do not know.",
                remedy="Use the model's safetensors, whose config.json names the scaling.",
                field=_LLAMA3_DIVISORS,
            )
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }

    def _value(self, key: str) -> Any:
        return self._metadata.get(f"{self._metadata['general.architecture']}.{key}")

    def _whole(self, key: str, default: int | None = None) -> int:
        value = self._value(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self._missing(key)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._unsupported(key, value, "one whole number for all layers")
        return value

    def _real(self, key: str, default: float | None = None) -> float:
        value = self._value(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self._missing(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unsupported(key, value, "one number")
        return float(value)

    def _missing(self, key: str) -> CheckpointError:
        field = f"{self._metadata['general.architecture']}.{key}"
        return CheckpointError(
            f"{self._path} lacks the metadata {field}.",
            remedy="The file is incomplete; fetch it again.",
            field=field,
        )

    def _unsupported(self, key: str, value: object, wanted: str) -> UnsupportedError:
        field = f"{self._metadata['general.architecture']}.{key}"
        return UnsupportedError(
            f"{self._path} has {field} = {value!r}, which is not supported.",
            remedy=f"This engine runs {wanted}.",
            field=field,
        )


def _named(family: Family) -> Config:
    return {"architectures": [family.architecture], "model_type": family.name}
