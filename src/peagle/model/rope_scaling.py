"""How rotary wavelengths are stretched for contexts longer than a model was first trained on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peagle.errors import UnsupportedError
from peagle.model.families.reading import wrong

_KINDS = ("default", "linear", "llama3", "longrope")


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

    def to_hugging_face(self) -> dict[str, Any]:
        """Write it as `config.json` does."""
        return {
            "rope_type": "llama3",
            "factor": self.factor,
            "low_freq_factor": self.low_freq_factor,
            "high_freq_factor": self.high_freq_factor,
            "original_max_position_embeddings": self.original_context,
        }


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All wavelengths stretched alike (transformers' `rope_type: linear`).

    Attributes:
        factor: By how much all frequencies are slowed.
    """

    factor: float

    def to_hugging_face(self) -> dict[str, Any]:
        """Write it as `config.json` does."""
        return {"rope_type": "linear", "factor": self.factor}


@dataclass(frozen=True, slots=True)
class LongRope:
    """A divisor for each frequency, one set for short contexts and one for long (LongRoPE).

    The two sets turn the same position differently, so a text must be read with one of them
    throughout. A decoder whose context is no longer than the original one reads with the short
    set, as transformers does; a longer context means the long set for every text.

    Attributes:
        short: Divisors of the frequencies within the original context.
        long: Divisors beyond it.
        original_context: Context length before stretching, in tokens.
        magnitude: What turned queries and keys are multiplied by.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    magnitude: float

    def to_hugging_face(self) -> dict[str, Any]:
        """Write it as `config.json` does."""
        return {
            "rope_type": "longrope",
            "short_factor": list(self.short),
            "long_factor": list(self.long),
            "original_max_position_embeddings": self.original_context,
            "attention_factor": self.magnitude,
        }


Scaling = RopeScaling | LinearScaling | LongRope


def read_scaling(rope: Mapping[str, Any], config: Mapping[str, Any]) -> Scaling | None:
    """Read `rope_scaling` or `rope_parameters` of a `config.json`.

    Args:
        rope: The part of it.
        config: The whole, which may name the original context beside it.

    Raises:
        UnsupportedError: It is of a kind that this engine does not run.
        CheckpointError: A number is missing or impossible.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    # Older Phi-3 checkpoints call LongRoPE by the name of its draft.
    kind = "longrope" if kind == "su" else kind
    if kind not in _KINDS:
        raise UnsupportedError(
            f"rope scaling {kind!r} is not supported.",
            remedy=f"This engine runs {', '.join(_KINDS[:-1])} and {_KINDS[-1]}.",
            field="rope_scaling",
        )
    try:
        if kind == "linear":
            return LinearScaling(float(rope["factor"]))
        if kind == "llama3":
            return RopeScaling(
                factor=float(rope["factor"]),
                low_freq_factor=float(rope["low_freq_factor"]),
                high_freq_factor=float(rope["high_freq_factor"]),
                original_context=int(rope["original_max_position_embeddings"]),
            )
        return _long_rope(rope, config) if kind == "longrope" else None
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise wrong("rope_scaling", dict(rope), f"what {kind} scaling needs") from error


def _long_rope(rope: Mapping[str, Any], config: Mapping[str, Any]) -> LongRope:
    named = config.get("original_max_position_embeddings")
    original = int(named or rope["original_max_position_embeddings"])
    magnitude = rope.get("attention_factor")
    if magnitude is None:
        factor = float(rope.get("factor") or config["max_position_embeddings"] / original)
        # LongRoPE's own formula: attention is sharpened as contexts grow.
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRope(
        short=tuple(map(float, rope["short_factor"])),
        long=tuple(map(float, rope["long_factor"])),
        original_context=original,
        magnitude=float(magnitude),
    )
