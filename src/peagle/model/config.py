"""What a decoder is, read from a Hugging Face `config.json` or from GGUF metadata."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from peagle.errors import CheckpointError, UnsupportedError

SUPPORTED_ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral"}


_QUANTISERS = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8 (fbgemm)",
    "compressed-tensors": "compressed-tensors",
    "bitsandbytes": "bitsandbytes",
}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of long wavelengths (transformers' `rope_type: llama3`).

    Attributes:
        factor: By how much low frequencies are slowed.
        low_freq_factor: Wavelengths above `original_context / low_freq_factor` are slowed fully.
        high_freq_factor: Wavelengths below `original_context / high_freq_factor` are kept.
        original_context: Context length before stretching, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape of a decoder of the Llama family.

    Attributes:
        family: Short name of the description it came from (`llama`, `mistral`).
        vocab_size: Rows of the embedding and of the output head.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated MLP.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads, shared by `num_heads // num_kv_heads` query heads each.
        head_dim: Width of one head.
        rms_norm_eps: Added to the mean square before its root.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: How long wavelengths are stretched, if they are.
        context_length: Most positions the model was made for.
        tied_embeddings: Whether the output head is the embedding.
        sliding_window: Positions a row sees, itself included; None sees all.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    context_length: int
    tied_embeddings: bool
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        """Check that the shape is possible.

        Raises:
            CheckpointError: A size is not positive, heads do not divide, or a rate is not finite.
        """
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
                     "num_kv_heads", "head_dim", "context_length"):  # fmt: skip
            if getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "a positive whole number")
        if self.num_heads % self.num_kv_heads:
            raise _wrong("num_kv_heads", self.num_kv_heads, f"a divisor of {self.num_heads} heads")
        if self.head_dim % 2:
            raise _wrong("head_dim", self.head_dim, "an even number, for rotary pairs")
        for name in ("rms_norm_eps", "rope_theta"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise _wrong(name, getattr(self, name), "a positive number")

    @property
    def queries_per_kv_head(self) -> int:
        """Query heads that share one key and value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def default_taps(self) -> tuple[int, ...]:
        """Layers whose incoming residual stream a drafter reads: EAGLE-3's (2, L//2, L-3).

        Id `k` means the residual stream entering layer `k` (EAGLE's and vLLM's convention).
        """
        layers = self.num_layers
        return tuple(min(max(k, 0), layers - 1) for k in (2, layers // 2, layers - 3))

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape by its Hugging Face name; a tied head is there, too."""
        hidden, inner = self.hidden_size, self.intermediate_size
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
            "lm_head.weight": (self.vocab_size, hidden),
        }
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (width, hidden),
            "self_attn.k_proj": (kv_width, hidden),
            "self_attn.v_proj": (kv_width, hidden),
            "self_attn.o_proj": (hidden, width),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for index in range(self.num_layers):
            shapes |= {f"model.layers.{index}.{part}.weight": layer[part] for part in layer}
        return shapes

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> Self:
        """Read a `config.json`.

        Raises:
            UnsupportedError: The architecture or its rope scaling is not one this engine runs.
            CheckpointError: A value is missing or impossible.
        """
        architectures = config.get("architectures") or [None]
        family = SUPPORTED_ARCHITECTURES.get(architectures[0])
        if family is None:
            known = ", ".join(SUPPORTED_ARCHITECTURES)
            raise UnsupportedError(
                f"The architecture {architectures[0]!r} is not supported.",
                remedy=f"This engine runs {known}.",
                field="architectures",
            )
        for bias in ("attention_bias", "mlp_bias"):
            if config.get(bias):
                raise UnsupportedError(
                    f"{bias} is true, which this engine does not run for {architectures[0]}.",
                    remedy="Use a checkpoint without biases.",
                    field=bias,
                )
        if config.get("quantization_config"):
            raise quantised_by_others(
                str(config["quantization_config"].get("quant_method", "unknown"))
            )
        if config.get("hidden_act", "silu") != "silu":
            raise UnsupportedError(
                f"hidden_act {config['hidden_act']!r} is not supported.",
                remedy="The Llama family uses silu.",
                field="hidden_act",
            )
        read = _Reader(config)
        heads, hidden = read.whole("num_attention_heads"), read.whole("hidden_size")
        # transformers 5 writes rope_parameters; before, rope_theta stood beside rope_scaling.
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
        return cls(
            family=family,
            vocab_size=read.whole("vocab_size"),
            hidden_size=hidden,
            intermediate_size=read.whole("intermediate_size"),
            num_layers=read.whole("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(theta),
            rope_scaling=_rope_scaling(rope),
            context_length=config.get("max_position_embeddings") or 2048,
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            sliding_window=config.get("sliding_window") if family == "mistral" else None,
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """Write the same configuration as a `config.json`."""
        architectures = {family: name for name, family in SUPPORTED_ARCHITECTURES.items()}
        written: dict[str, Any] = {
            "architectures": [architectures[self.family]],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.context_length,
            "tie_word_embeddings": self.tied_embeddings,
        }
        if self.family == "mistral":
            written["sliding_window"] = self.sliding_window
        if self.rope_scaling is not None:
            written["rope_scaling"] = {
                "rope_type": "llama3",
                "factor": self.rope_scaling.factor,
                "low_freq_factor": self.rope_scaling.low_freq_factor,
                "high_freq_factor": self.rope_scaling.high_freq_factor,
                "original_max_position_embeddings": self.rope_scaling.original_context,
            }
        return written


class _Reader:
    """Reads whole numbers that must be there."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def whole(self, name: str) -> int:
        value = self._config.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, value, "a whole number")
        return value


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedError(
            f"rope scaling {kind!r} is not supported.",
            remedy="This engine runs the default rotary embedding and llama3's scaling.",
            field="rope_scaling",
        )
    try:
        return RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_context=int(rope["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong("rope_scaling", dict(rope), "llama3's four numbers") from error


def quantised_by_others(method: str) -> UnsupportedError:
    """Describe a checkpoint in another program's quantised format."""
    title = _QUANTISERS.get(method, repr(method))
    return UnsupportedError(
        f"The checkpoint is quantised with {title}, which this engine does not read.",
        remedy="Use the unquantised safetensors of the same model (quantization int8 or int4 then "
        "quantises them at load), or a GGUF file.",
        field="quantization_config",
    )


def _wrong(name: str, value: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"The model's configuration has {name} = {value!r}.",
        remedy=f"It must be {wanted}; fetch the model again or correct its config.json.",
        field=name,
    )
