"""Whether a drafter belongs to a target."""

from peagle.draft.peagle.config import PEagleConfig
from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig


def check_target(config: PEagleConfig, target: DecoderConfig, fingerprint: str) -> None:
    """Check that a drafter was made for a target like this one.

    A drafter of another target could not change the text, but it would propose nonsense.

    Args:
        config: The drafter's shape.
        target: The target's shape.
        fingerprint: `Tokenizer.fingerprint` of the target.

    Raises:
        CheckpointError: Their vocabularies, widths, layers or tokenizers do not match.
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
    if config.tokenizer_fingerprint != fingerprint:
        raise _other_target(
            config, "tokenizer_fingerprint",
            f"the drafter has tokenizer {config.tokenizer_fingerprint[:12]}, "
            f"the target has {fingerprint[:12]}",
        )  # fmt: skip


def _same(config: PEagleConfig, what: str, name: str, drafter: int, target: int) -> None:
    if drafter != target:
        raise _other_target(
            config, name, f"{what}: the drafter has {drafter}, the target has {target}"
        )


def _other_target(config: PEagleConfig, name: str, difference: str) -> CheckpointError:
    return CheckpointError(
        f"The drafter does not fit this target, {difference}.",
        remedy=f"It was made for {config.target_name!r}: choose that target, or a drafter "
        "trained for this one.",
        field=name,
    )
