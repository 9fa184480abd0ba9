"""Whether a drafter belongs to a target."""

from peagle.draft.network.config import NetworkConfig
from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig


def check_target(config: NetworkConfig, target: DecoderConfig, fingerprint: str) -> None:
    """Check that a drafter was made for a target like this one.

    A drafter of another target could not change the text, but it would propose nonsense.

    Args:
        config: The drafter's shape.
        target: The target's shape.
        fingerprint: `Tokenizer.fingerprint` of the target, compared if the drafter names one.

    Raises:
        CheckpointError: Their vocabularies, widths, layers or tokenizers do not match.
    """
    check_shape(config, target)
    known = config.tokenizer_fingerprint
    if known is not None and known != fingerprint:
        raise _other_target(
            config, "tokenizer_fingerprint",
            f"the drafter has tokenizer {known[:12]}, the target has {fingerprint[:12]}",
        )  # fmt: skip


def check_shape(config: NetworkConfig, target: DecoderConfig) -> None:
    """Check that a drafter can read and write what a target of this shape gives and takes.

    Raises:
        CheckpointError: Their vocabularies, widths or layers do not match.
    """
    _same(config, "vocabulary", "vocab_size", config.decoder.vocab_size, target.vocab_size)
    _same(
        config, "hidden size", "target_hidden_size", config.target_hidden_size, target.hidden_size
    )
    if not config.own_embedding:
        _same(
            config, "embedding width", "hidden_size", config.decoder.hidden_size, target.hidden_size
        )
    if max(config.taps) >= target.num_layers:
        raise _other_target(
            config, "taps",
            f"the drafter reads what enters layers {list(config.taps)}, "
            f"the target has layers 0 to {target.num_layers - 1}",
        )  # fmt: skip


def _same(config: NetworkConfig, what: str, name: str, drafter: int, target: int) -> None:
    if drafter != target:
        raise _other_target(
            config, name, f"{what}: the drafter has {drafter}, the target has {target}"
        )


def _other_target(config: NetworkConfig, name: str, difference: str) -> CheckpointError:
    return CheckpointError(
        f"The drafter does not fit this target, {difference}.",
        remedy=f"It was made for {config.target_name!r}: choose that target, or a drafter "
        "trained for this one.",
        field=name,
    )
