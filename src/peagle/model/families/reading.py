"""Read single values of a `config.json`, refusing what cannot be."""

from collections.abc import Mapping
from typing import Any

from peagle.errors import CheckpointError, UnsupportedError


def wrong(name: str, value: object, wanted: str) -> CheckpointError:
    """Describe an impossible value."""
    return CheckpointError(
        f"The model's configuration has {name} = {value!r}.",
        remedy=f"It must be {wanted}; fetch the model again or correct its config.json.",
        field=name,
    )


def whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Give a whole number.

    Args:
        config: The configuration.
        name: Its key.
        default: What a missing key means; None if it must be there.

    Raises:
        CheckpointError: It is missing, or not a whole number.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, value, "a whole number")
    return value


def window(config: Mapping[str, Any]) -> int | None:
    """Give the sliding window, if the configuration has one.

    Raises:
        CheckpointError: It is no positive whole number.
    """
    value = config.get("sliding_window")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong("sliding_window", value, "a positive whole number or null")
    return value


def layers_of_kind(
    config: Mapping[str, Any], kind: str, otherwise: tuple[int, ...]
) -> tuple[int, ...]:
    """Give the layers that `layer_types` calls so.

    Args:
        config: The configuration.
        kind: `sliding_attention` or `full_attention`.
        otherwise: The layers if there is no `layer_types`.

    Raises:
        CheckpointError: There are not as many types as layers.
    """
    types = config.get("layer_types")
    if types is None:
        return otherwise
    layers = whole(config, "num_hidden_layers")
    if not isinstance(types, list) or len(types) != layers:
        raise wrong("layer_types", types, f"a list of {layers} names")
    return tuple(index for index, name in enumerate(types) if name == kind)


def refuse(config: Mapping[str, Any], name: str, remedy: str) -> None:
    """Refuse a feature that a configuration may turn on.

    Raises:
        UnsupportedError: It does.
    """
    if config.get(name):
        raise UnsupportedError(
            f"The model's configuration has {name} = {config[name]!r}, which is not supported.",
            remedy=remedy,
            field=name,
        )
