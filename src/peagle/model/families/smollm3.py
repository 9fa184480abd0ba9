"""SmolLM3: Llama whose every fourth layer turns nothing by position."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from peagle.model.families.family import Family
from peagle.model.families.reading import layers_of_kind, whole, window, wrong

if TYPE_CHECKING:
    from peagle.model.config import DecoderConfig


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = whole(config, "num_hidden_layers")
    interval = whole(config, "no_rope_layer_interval", 4)
    flags = config.get("no_rope_layers")
    if flags is None:
        # The flags say which layers do turn, in spite of their name.
        flags = [int((index + 1) % interval != 0) for index in range(layers)]
    if not isinstance(flags, list) or len(flags) < layers:
        raise wrong("no_rope_layers", flags, f"a list of {layers} zeros and ones")
    unturned = tuple(index for index in range(layers) if not flags[index])
    read: dict[str, Any] = {"unturned_layers": unturned}
    if config.get("use_sliding_window") and window(config) is not None:
        windowed = layers_of_kind(config, "sliding_attention", unturned)
        read |= {"sliding_window": window(config), "windowed_layers": windowed}
    return read


def _write(config: "DecoderConfig") -> dict[str, Any]:
    unturned = set(config.unturned_layers)
    written: dict[str, Any] = {
        "no_rope_layers": [int(index not in unturned) for index in range(config.num_layers)],
        "use_sliding_window": config.sliding_window is not None,
    }
    if config.sliding_window is not None:
        written |= {"sliding_window": config.sliding_window, "layer_types": config.layer_types()}
    return written


SMOLLM3 = Family(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    title="SmolLM3",
    gguf="smollm3",
    read=_read,
    write=_write,
    defaults={"rope_theta": 2_000_000.0, "tie_word_embeddings": True},
)
