"""In which order cells are measured: interleaved, so that drift of the machine favours nobody."""

from collections.abc import Sequence
from dataclasses import dataclass

from peagle.evaluate.bench.contenders import Contender


@dataclass(frozen=True, slots=True)
class Turn:
    """A cell to be measured.

    Attributes:
        contender: Who answers.
        concurrency: Requests under way.
        repetition: Which round, from 0.
    """

    contender: Contender
    concurrency: int
    repetition: int


def schedule(
    contenders: Sequence[Contender],
    concurrencies: Sequence[int],
    repetitions: int,
    *,
    all_loaded: bool,
) -> list[Turn]:
    """Order the cells; each repetition begins with another contender.

    Args:
        contenders: Who is measured.
        concurrencies: How many requests are under way.
        repetitions: How often each cell is measured.
        all_loaded: Whether all services stay in memory. Then contenders follow one another at each
            concurrency; else each service does all its cells before the next one is loaded.
    """
    turns = []
    for repetition in range(repetitions):
        if all_loaded:
            first = repetition % len(contenders)
            order = [*contenders[first:], *contenders[:first]]
            turns += [
                Turn(one, concurrency, repetition) for concurrency in concurrencies for one in order
            ]
            continue
        services = list(dict.fromkeys(one.service for one in contenders))
        first = repetition % len(services)
        for service in [*services[first:], *services[:first]]:
            own = [one for one in contenders if one.service == service]
            turns += [
                Turn(one, concurrency, repetition) for concurrency in concurrencies for one in own
            ]
    return turns
