"""Replay the same answers with every configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from peagle.draft.corpus import Corpus
from peagle.draft.mixture import MixturePrior, NetworkWeights
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.evaluate.acceptance import Answered
from peagle.evaluate.configurations import Configuration
from peagle.evaluate.recorded import Recorded, Sources, Way, read_features, replay_drafts
from peagle.model.target import Target

# Answers whose features are held, and that are drafted for, at the same time.
_TOGETHER: Final = 32


@dataclass(frozen=True, slots=True)
class Measured:
    """What one configuration's drafts were worth.

    Attributes:
        configuration: How they were made.
        answers: Every answer.
    """

    configuration: Configuration
    answers: list[Answered] = field(default_factory=list)


def compare(
    target: Target,
    recorded: Sequence[Recorded],
    configurations: Sequence[Configuration],
    *,
    drafters: Mapping[str, Drafter],
    weights: Mapping[str, NetworkWeights | None],
    corpus: Corpus | None,
    prior: MixturePrior,
    on_step: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """Replay answers with every configuration; the target reads each answer once.

    Args:
        target: The model that wrote the answers.
        recorded: The answers.
        configurations: What is compared.
        drafters: The networks by name.
        weights: How much each is to be believed beside text sources, where it says so.
        corpus: Text that the target wrote before, if there is any.
        prior: How much each source is believed at first.
        on_step: Told `steps(…)` times: for every answer read, and for every one replayed.
    """
    taps = {tap for drafter in drafters.values() for tap in drafter.network.config.taps}
    reader = target.with_taps(tuple(sorted(taps))) if taps else None
    measured = [Measured(configuration) for configuration in configurations]
    # Configurations that ask a network the same share what it says.
    asking: dict[tuple[str | None, DraftLimits | None], list[Measured]] = {}
    for one in measured:
        way, name = Way(one.configuration.spec), one.configuration.drafter
        question = None if name is None else way.question(drafters[name])
        asking.setdefault((name, question), []).append(one)
    groups = -(-len(recorded) // _TOGETHER)
    for group in range(groups):
        # In strides, so that groups are of the same size.
        some = recorded[group::groups]
        features = None
        if reader is not None:
            features = [read_features(reader, answer, on_step) for answer in some]
        for (name, _), alike in asking.items():
            replayed = replay_drafts(
                some,
                [Way(one.configuration.spec, one.configuration.chain) for one in alike],
                Sources(prior, corpus)
                if name is None
                else Sources(prior.with_network(weights[name]), corpus, drafters[name]),
                features=features,
                on_answered=on_step,
            )
            for one, answers in zip(alike, replayed, strict=True):
                one.answers.extend(answers)
    return measured


def steps(answers: int, configurations: int, drafters: int) -> int:
    """How often `compare` reports."""
    return answers * (configurations + (drafters > 0))
