from peagle.engine.statistics import SpeculationStatistics, pooled
from peagle.evaluate.acceptance import Answered, distinct_bigrams, mean_acceptance_length


def statistics_of(*steps: tuple[int, int, int]) -> SpeculationStatistics:
    statistics = SpeculationStatistics()
    for drafted, accepted, emitted in steps:
        statistics.count_step(drafted=drafted, accepted=accepted, emitted=emitted)
    return statistics


def test_acceptance_length_counts_the_bonus_token() -> None:
    statistics = statistics_of((15, 3, 4), (15, 0, 1), (15, 1, 2))
    assert statistics.acceptance_length == 7 / 3
    assert statistics.acceptance_by_depth == [2 / 3, 1 / 3, 1 / 3]


def test_without_a_decode_step_there_is_no_acceptance_length() -> None:
    assert SpeculationStatistics().acceptance_length is None
    assert SpeculationStatistics().acceptance_by_depth == []


def test_pooling_adds_counts_not_ratios() -> None:
    total = pooled([statistics_of((7, 6, 7)), statistics_of((7, 0, 1), (7, 0, 1), (7, 0, 1))])
    assert total.acceptance_length == 10 / 4
    assert total.drafted_tokens == 28
    assert total.acceptance_by_depth == [0.25] * 6


def test_the_mean_is_pooled_within_and_averaged_over_categories() -> None:
    answers = [
        Answered("a", [], statistics_of((7, 3, 4))),
        Answered("a", [], statistics_of((7, 0, 1), (7, 0, 1))),
        Answered("b", [], statistics_of((7, 4, 5))),
    ]
    assert mean_acceptance_length(answers) == (2 + 5) / 2


def test_distinct_bigrams_tell_loops_from_text() -> None:
    assert distinct_bigrams([1, 2, 3, 4]) == 1
    assert distinct_bigrams([1, 2] * 50) == 2 / 99
    assert distinct_bigrams([7]) == 1
