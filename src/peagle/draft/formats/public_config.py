"""What the `config.json` of a public drafter says, with the defaults of its format filled in.

Two formats are read. The *raw* form is a flat Llama configuration, as `amazon/*-p-eagle` and vLLM
have it; the *speculators* form nests the layers in `transformer_layer_config`, as `RedHatAI/*` has
it. Keys, aliases and defaults are those that vLLM reads (`llama_eagle3.py`, `speculators/algos.py`
and `llm_base_proposer.py`). The raw form does not say its method: a mask token means P-EAGLE.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from peagle.errors import CheckpointError, UnsupportedError
from peagle.model.config import DecoderConfig
from peagle.spec import NetworkMethod

MASK_TOKEN_KEYS: Final = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
TAPS_KEY: Final = "eagle_aux_hidden_state_layer_ids"
LAYERS_KEY: Final = "transformer_layer_config"
MODEL_TYPE_KEY: Final = "speculators_model_type"

_METHODS: Final[Mapping[str, NetworkMethod]] = {"peagle": "peagle", "eagle3": "eagle3"}
_ELSEWHERE: Final = "Use a drafter without that, or serve this one with vLLM."


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicConfig:
    """A public drafter's shape.

    Attributes:
        method: What kind of network it is.
        decoder: Its layers.
        draft_vocab_size: Tokens it can propose.
        target_hidden_size: Width of the target's residual stream.
        taps: Target layers whose entering stream it reads; None leaves EAGLE-3's default.
        mask_token_id: Id that stands for a mask slot; None for EAGLE-3.
        norm_before_residual: As in `NetworkConfig`, like the next two.
        norm_before_fc: …
        fc_norm: …
        norm_output: As in `Eagle3Config`.
        target_name: The target it was trained for, if it says so.
        train_depth: Draft tokens per round that it was trained for, if it says so.
    """

    method: NetworkMethod
    decoder: DecoderConfig
    draft_vocab_size: int
    target_hidden_size: int
    taps: tuple[int, ...] | None
    mask_token_id: int | None
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    target_name: str | None = None
    train_depth: int | None = None


def read_public_config(written: Mapping[str, Any]) -> PublicConfig:
    """Read the `config.json` of a public drafter, of either format.

    Raises:
        CheckpointError: A value is missing, mistyped, impossible, or contradicts another.
        UnsupportedError: The network has a part that this engine does not run.
    """
    keys = _Keys(written)
    if written.get(MODEL_TYPE_KEY) is None:
        return _read_raw(keys, written)
    return _read_speculators(keys, written[MODEL_TYPE_KEY])


def _read_raw(keys: "_Keys", written: Mapping[str, Any]) -> PublicConfig:
    mask = _mask_token(keys)
    method: NetworkMethod = "eagle3" if mask is None else "peagle"
    return _read_network(keys, written, method, mask, normed=False)


def _read_speculators(keys: "_Keys", kind: object) -> PublicConfig:
    method = _METHODS.get(str(kind))
    if method is None:
        raise UnsupportedError(
            f"The drafter is of the kind {kind!r}, which this engine does not run.",
            remedy="Use one of the kind peagle or eagle3, or serve this one with vLLM.",
            field=MODEL_TYPE_KEY,
        )
    mask = _mask_token(keys) if method == "peagle" else None
    if method == "peagle" and mask is None:
        raise CheckpointError(
            "The drafter's config.json names no mask token.",
            remedy=f"A P-EAGLE drafter needs one of the keys {', '.join(MASK_TOKEN_KEYS)}.",
            field="mask_token_id",
        )
    about = _Keys(keys.mapping("speculators_config", {}))
    target_name = about.mapping("verifier", {}).get("name_or_path")
    return replace(
        # vLLM's defaults for the two kinds, where the key is absent.
        _read_network(keys, keys.mapping(LAYERS_KEY), method, mask, normed=method == "eagle3"),
        target_name=target_name if isinstance(target_name, str) else None,
        train_depth=_Keys(about.first("proposal_methods")).whole("speculative_tokens"),
    )


def _read_network(
    keys: "_Keys",
    layers: Mapping[str, Any],
    method: NetworkMethod,
    mask: int | None,
    *,
    normed: bool,
) -> PublicConfig:
    """Read what both formats say alike; `normed` is the default of `norm_before_residual`."""
    _refuse_unsupported(keys, layers)
    decoder = DecoderConfig.from_hugging_face({**layers, "architectures": ["LlamaForCausalLM"]})
    return PublicConfig(
        method=method,
        decoder=replace(decoder, tied_embeddings=False),
        draft_vocab_size=keys.whole("draft_vocab_size") or decoder.vocab_size,
        target_hidden_size=keys.whole("target_hidden_size") or decoder.hidden_size,
        taps=_taps(keys),
        mask_token_id=mask,
        norm_before_residual=keys.flag("norm_before_residual", normed),
        norm_before_fc=keys.flag("norm_before_fc"),
        fc_norm=keys.flag("fc_norm"),
        norm_output=keys.flag("norm_output"),
    )


class _Keys:
    """Values of a configuration by key, at the top or in `eagle_config`; null counts as absent."""

    def __init__(self, written: Mapping[str, Any]) -> None:
        self._written = written
        self._inner = self.mapping("eagle_config", {})

    def find(self, name: str) -> Any:
        found = [part[name] for part in (self._written, self._inner) if part.get(name) is not None]
        if len(found) == 2 and found[0] != found[1]:
            raise _contradiction(name, f"eagle_config.{name}", *found)
        return found[0] if found else None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.find(name)
        if value is not None and not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return default if value is None else value

    def whole(self, name: str) -> int | None:
        value = self.find(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise _wrong(name, value, "a whole number")
        return value

    def mapping(self, name: str, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        value = self._written.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, Mapping):
            raise _wrong(name, value, "an object")
        return value

    def first(self, name: str) -> Mapping[str, Any]:
        """Give the first object of a list, an empty one where there is none."""
        value = self._written.get(name) or []
        if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
            raise _wrong(name, value, "a list of objects")
        return value[0] if value else {}


def _mask_token(keys: _Keys) -> int | None:
    """Find the mask token under any of its names; all that are there must agree."""
    inner = keys.mapping("dflash_config", {}).get("mask_token_id")
    found = {"dflash_config.mask_token_id": inner} | {
        name: keys.find(name) for name in MASK_TOKEN_KEYS
    }
    told = {name: value for name, value in found.items() if value is not None}
    first: int | None = None
    for name, value in told.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, value, "a whole number")
        if first is not None and value != first:
            raise _contradiction(next(iter(told)), name, first, value)
        first = value
    return first


def _taps(keys: _Keys) -> tuple[int, ...] | None:
    taps = keys.find(TAPS_KEY)
    if taps is None:
        return None
    if not (
        isinstance(taps, list)
        and taps
        and all(isinstance(tap, int) and not isinstance(tap, bool) for tap in taps)
    ):
        raise _wrong(TAPS_KEY, taps, "a list of layer ids")
    return tuple(taps)


def _refuse_unsupported(keys: _Keys, layers: Mapping[str, Any]) -> None:
    """Refuse by name what would be computed differently here."""
    family = layers.get("model_type", "llama")
    if family != "llama":
        norms = ", which have query and key norms" if str(family).startswith("qwen3") else ""
        raise UnsupportedError(
            f"The drafter's layers are of the type {family!r}{norms}; this engine runs drafters "
            "with llama layers.",
            remedy=_ELSEWHERE,
            field="model_type",
        )
    for bias in ("attention_bias", "qkv_bias", "bias", "mlp_bias"):
        if layers.get(bias):
            raise UnsupportedError(
                f"The drafter has {bias}, which this engine does not run.",
                remedy=_ELSEWHERE,
                field=bias,
            )
    if "sliding_attention" in str(layers.get("layer_types")):
        raise UnsupportedError(
            "The drafter has layers with a sliding window (layer_types: sliding_attention), which "
            "this engine does not run.",
            remedy=_ELSEWHERE,
            field="layer_types",
        )
    if layers.get("logit_scale", 1.0) != 1.0:
        raise UnsupportedError(
            f"The drafter has logit_scale {layers['logit_scale']}, which this engine does not run.",
            remedy=_ELSEWHERE,
            field="logit_scale",
        )
    if quantised := _Keys(layers).mapping("quantization_config", {}):
        # The target's remedy, to quantise at load, is none for a drafter.
        raise UnsupportedError(
            f"The drafter's weights are quantised ({quantised.get('quant_method', 'unknown')!r}), "
            "which this engine does not read.",
            remedy="Use the drafter with unquantised safetensors.",
            field="quantization_config",
        )
    if not keys.flag("use_aux_hidden_state", default=True):
        raise UnsupportedError(
            "The drafter reads the target's last layer only (use_aux_hidden_state is false), which "
            "is EAGLE, not EAGLE-3.",
            remedy="Use a P-EAGLE or EAGLE-3 drafter.",
            field="use_aux_hidden_state",
        )


def _wrong(name: str, value: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"The drafter's config.json has {name} = {value!r}.",
        remedy=f"It must be {wanted}; fetch the drafter again or correct the file.",
        field=name,
    )


def _contradiction(name: str, other: str, value: object, another: object) -> CheckpointError:
    return CheckpointError(
        f"The drafter's config.json contradicts itself: {name} is {value}, {other} is {another}.",
        remedy="Correct the file, or fetch the drafter again.",
        field=name,
    )
