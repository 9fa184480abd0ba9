"""The names of what weights can be quantised to, defined once and used by every layer."""

from typing import Final, Literal, get_args

Quantization = Literal["none", "int8", "int4"]
QUANTIZATIONS: Final[tuple[Quantization, ...]] = get_args(Quantization)
