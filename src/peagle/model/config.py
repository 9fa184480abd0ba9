"""What a decoder is, read from a Hugging Face `config.json` or from GGUF metadata."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from peagle.errors import UnsupportedError
from peagle.model.families import BY_ARCHITECTURE, BY_NAME, Experts, Family
from peagle.model.families.family import Activation
from peagle.model.families.reading import refuse, whole, wrong
from peagle.model.rope_scaling import LinearScaling, LongRope, RopeScaling, Scaling, read_scaling

__all__ = [
    "DecoderConfig",
    "LayerAttention",
    "LinearScaling",
    "LongRope",
    "RopeScaling",
    "quantised_by_others",
]

_QUANTISERS = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8 (fbgemm)",
    "compressed-tensors": "compressed-tensors",
    "bitsandbytes": "bitsandbytes",
}


_VISION_KEYS = ("vision_config", "vision_tower", "mm_vision_tower", "visual")


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What the rows of a layer see, and how positions turn its queries and keys.

    Attributes:
        window: Positions a row sees, itself included; None sees all.
        rope_theta: Base of the rotary frequencies; None turns nothing.
        rope_scaling: How long wavelengths are stretched, if they are.
    """

    window: int | None
    rope_theta: float | None
    rope_scaling: Scaling | None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape of a decoder: Llama's, and what other families add to it or change.

    Attributes:
        family: Short name of the description it came from (`families`).
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
        windowed_layers: The layers that have the window; None means all.
        window_rope_theta: Base of the rotary frequencies in these layers, where it is another one;
            they are not stretched then.
        unturned_layers: Layers whose queries and keys no position turns.
        rotary_dim: Width of the part of a head that is turned, its beginning; None is all of it.
        attention_scale: What scores are multiplied by; None is `head_dim ** -0.5`.
        qkv_bias: Whether queries, keys and values have biases.
        head_norms: Whether every query and key head is normed before it is turned.
        norms_after: Whether attention and MLP are normed again before they join the residual
            stream.
        wide_norms: Whether the weights of norms are applied in float32.
        embedding_scale: What embeddings are multiplied by.
        experts: The mixture of experts that stands in place of the MLP, if one does.
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
    rope_scaling: Scaling | None
    context_length: int
    tied_embeddings: bool
    sliding_window: int | None = None
    windowed_layers: tuple[int, ...] | None = None
    window_rope_theta: float | None = None
    unturned_layers: tuple[int, ...] = ()
    rotary_dim: int | None = None
    attention_scale: float | None = None
    qkv_bias: bool = False
    head_norms: bool = False
    norms_after: bool = False
    wide_norms: bool = False
    embedding_scale: float = 1.0
    experts: Experts | None = None

    def __post_init__(self) -> None:
        """Check that the shape is possible.

        Raises:
            CheckpointError: A size is not positive, heads do not divide, or a rate is not finite.
        """
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
                     "num_kv_heads", "head_dim", "context_length"):  # fmt: skip
            if getattr(self, name) < 1:
                raise wrong(name, getattr(self, name), "a positive whole number")
        if self.num_heads % self.num_kv_heads:
            raise wrong("num_kv_heads", self.num_kv_heads, f"a divisor of {self.num_heads} heads")
        if self.head_dim % 2:
            raise wrong("head_dim", self.head_dim, "an even number, for rotary pairs")
        if self.rotary_dim is not None and not (
            0 < self.rotary_dim <= self.head_dim and self.rotary_dim % 2 == 0
        ):
            raise wrong("rotary_dim", self.rotary_dim, f"an even number up to {self.head_dim}")
        self._check_scaling()
        if self.experts is not None and not (
            0 < self.experts.active <= self.experts.count and self.experts.width > 0
        ):
            raise wrong(
                "experts", self.experts, "at least as many experts as are active, not empty"
            )
        for name in ("rms_norm_eps", "rope_theta"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise wrong(name, getattr(self, name), "a positive number")

    @property
    def queries_per_kv_head(self) -> int:
        """Query heads that share one key and value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def query_scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def activation(self) -> Activation:
        """What the gate of an MLP goes through."""
        return BY_NAME[self.family].activation

    def layer_attention(self, layer: int) -> LayerAttention:
        """What the rows of one layer see, and how positions turn its queries and keys."""
        windowed = self.sliding_window is not None and (
            self.windowed_layers is None or layer in self.windowed_layers
        )
        theta: float | None = self.rope_theta
        scaling = self.rope_scaling
        if layer in self.unturned_layers:
            theta, scaling = None, None
        elif windowed and self.window_rope_theta is not None:
            theta, scaling = self.window_rope_theta, None
        return LayerAttention(self.sliding_window if windowed else None, theta, scaling)

    @property
    def attentions(self) -> tuple[LayerAttention, ...]:
        """The kinds of attention its layers have, each once."""
        return tuple(dict.fromkeys(map(self.layer_attention, range(self.num_layers))))

    def layer_types(self) -> list[str]:
        """The layers' kinds by the names that `config.json` has for them."""
        windows = (self.layer_attention(layer).window for layer in range(self.num_layers))
        return ["full_attention" if own is None else "sliding_attention" for own in windows]

    def plain(self, num_layers: int) -> "DecoderConfig":
        """Give a plain Llama of these widths, as drafters are."""
        own_scaling = self.rope_scaling if isinstance(self.rope_scaling, RopeScaling) else None
        common = ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads",
                  "head_dim", "rms_norm_eps", "rope_theta", "context_length")  # fmt: skip
        return DecoderConfig(
            family="llama",
            num_layers=num_layers,
            rope_scaling=own_scaling,
            tied_embeddings=False,
            **{name: getattr(self, name) for name in common},
        )

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
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (width, hidden),
            "self_attn.k_proj.weight": (kv_width, hidden),
            "self_attn.v_proj.weight": (kv_width, hidden),
            "self_attn.o_proj.weight": (hidden, width),
            "post_attention_layernorm.weight": (hidden,),
        }
        if self.qkv_bias:
            layer |= {
                "self_attn.q_proj.bias": (width,),
                "self_attn.k_proj.bias": (kv_width,),
                "self_attn.v_proj.bias": (kv_width,),
            }
        if self.head_norms:
            layer |= {
                "self_attn.q_norm.weight": (self.head_dim,),
                "self_attn.k_norm.weight": (self.head_dim,),
            }
        if self.norms_after:
            layer |= {
                "pre_feedforward_layernorm.weight": (hidden,),
                "post_feedforward_layernorm.weight": (hidden,),
            }
        if self.experts is None:
            layer |= _mlp_shapes("mlp.", hidden, inner)
        else:
            layer["mlp.gate.weight"] = (self.experts.count, hidden)
            for expert in range(self.experts.count):
                layer |= _mlp_shapes(f"mlp.experts.{expert}.", hidden, self.experts.width)
        for index in range(self.num_layers):
            shapes |= {f"model.layers.{index}.{part}": layer[part] for part in layer}
        return shapes

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> Self:
        """Read a `config.json`.

        Raises:
            UnsupportedError: The architecture or its rope scaling is not one this engine runs.
            CheckpointError: A value is missing or impossible.
        """
        family, config = _family_of(config)
        _check_runs(family, config)
        heads, hidden = whole(config, "num_attention_heads"), whole(config, "hidden_size")
        if heads < 1:
            raise wrong("num_attention_heads", heads, "a positive whole number")
        # transformers 5 writes rope_parameters; before, rope_theta stood beside rope_scaling.
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope = rope.get("full_attention", rope)
        read: dict[str, Any] = {
            "family": family.name,
            "vocab_size": whole(config, "vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": whole(config, "intermediate_size"),
            "num_layers": whole(config, "num_hidden_layers"),
            "num_heads": heads,
            "num_kv_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or hidden // heads,
            "rms_norm_eps": float(config.get("rms_norm_eps", 1e-6)),
            "rope_theta": float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            "rope_scaling": read_scaling(rope, config),
            "context_length": config.get("max_position_embeddings") or 2048,
            "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        }
        return cls(**read | family.read(config))

    def to_hugging_face(self) -> dict[str, Any]:
        """Write the same configuration as a `config.json`."""
        family = BY_NAME[self.family]
        written: dict[str, Any] = {
            "architectures": [family.architecture],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            family.activation_key: family.activation_name,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.context_length,
            "tie_word_embeddings": self.tied_embeddings,
        }
        if self.rope_scaling is not None:
            written["rope_scaling"] = self.rope_scaling.to_hugging_face()
        return written | family.write(self)

    def _check_scaling(self) -> None:
        if isinstance(self.rope_scaling, LongRope):
            pairs = (self.rotary_dim or self.head_dim) // 2
            for divisors in (self.rope_scaling.short, self.rope_scaling.long):
                if len(divisors) != pairs or min(divisors) <= 0:
                    raise wrong("rope_scaling", divisors, f"{pairs} positive divisors")


def _mlp_shapes(at: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{at}gate_proj.weight": (inner, hidden),
        f"{at}up_proj.weight": (inner, hidden),
        f"{at}down_proj.weight": (hidden, inner),
    }


def _family_of(config: Mapping[str, Any]) -> tuple[Family, Mapping[str, Any]]:
    """Find a configuration's family; of a model with an image encoder, the text part is read.

    Raises:
        UnsupportedError: This engine does not run it.
        CheckpointError: The text part is not told.
    """
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else named
    architecture = first if isinstance(first, str) else None
    family = None if architecture is None else BY_ARCHITECTURE.get(architecture)
    if family is not None:
        own = config.get("text_config") if architecture == family.vision else config
        if not isinstance(own, Mapping):
            raise wrong("text_config", own, "an object with the text part's configuration")
        return family, {**family.defaults, **own}
    known = ", ".join(BY_ARCHITECTURE)
    if any(config.get(key) for key in _VISION_KEYS):
        raise UnsupportedError(
            f"The architecture {architecture!r} reads images, which is not supported.",
            remedy=f"Use a text model; this engine runs {known} (Gemma 3 without its images).",
            field="architectures",
        )
    raise UnsupportedError(
        f"The architecture {architecture!r} is not supported.",
        remedy=f"This engine runs {known}.",
        field="architectures",
    )


def _check_runs(family: Family, config: Mapping[str, Any]) -> None:
    """Refuse what a family's description does not cover.

    Raises:
        UnsupportedError: The configuration turns it on.
    """
    for bias in family.biases_told:
        refuse(config, bias, f"{family.title} runs here without it: use such a checkpoint.")
    if config.get("quantization_config"):
        raise quantised_by_others(str(config["quantization_config"].get("quant_method", "unknown")))
    activation = config.get(family.activation_key, family.activation_name)
    if activation != family.activation_name:
        raise UnsupportedError(
            f"{family.activation_key} {activation!r} is not supported.",
            remedy=f"{family.title} is run with {family.activation_name}.",
            field=family.activation_key,
        )


def quantised_by_others(method: str) -> UnsupportedError:
    """Describe a checkpoint in another program's quantised format."""
    title = _QUANTISERS.get(method, repr(method))
    return UnsupportedError(
        f"The checkpoint is quantised with {title}, which this engine does not read.",
        remedy="Use the unquantised safetensors of the same model (quantization int8 or int4 then "
        "quantises them at load), or a GGUF file.",
        field="quantization_config",
    )
