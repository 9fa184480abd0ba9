import pytest

from peagle.draft.tree import CandidateTree, Source
from peagle.engine.expectation import NETWORK_ODDS, TEXT_ODDS, USUAL_GAIN, Calibration, Expectation


def chain(*probabilities: float) -> CandidateTree:
    """A path of tokens 1, 2, … with these probabilities of their paths."""
    count = len(probabilities)
    return CandidateTree(
        tokens=list(range(1, count + 1)),
        parents=list(range(-1, count - 1)),
        probabilities=list(probabilities),
        sources=[Source.LOOKUP] * count,
        depths=list(range(1, count + 1)),
    )


def test_odds_are_multiplied_and_the_order_stays() -> None:
    calibration = Calibration(3.0)
    assert calibration.corrected(0.5) == pytest.approx(0.75)
    assert calibration.corrected(0.001) == pytest.approx(0.003, rel=0.01)
    assert calibration.corrected(0.0) == 0.0
    assert calibration.corrected(1.0) == 1.0
    assert calibration.promise(chain(0.5, 0.25)) == pytest.approx(0.75 + 0.5)
    assert Calibration(1.0).corrected(0.37) == 0.37


def test_odds_follow_what_is_accepted() -> None:
    kept, failing, coming = Calibration(1.0), Calibration(1.0), Calibration(1.0)
    for _ in range(200):
        failing.observe(chain(0.5, 0.25), 0)
        coming.observe(chain(0.5, 0.25), 2)
    for accepted in (0, 2, 1, 0) * 50:
        kept.observe(chain(0.5, 0.25), accepted)
    assert kept.odds == pytest.approx(1.0, abs=0.15)
    assert failing.corrected(0.5) < 0.2
    assert coming.corrected(0.5) > 0.8
    before = kept.odds
    kept.observe(CandidateTree(), 0)
    assert kept.odds == before


def test_odds_settle_where_the_promise_comes_true() -> None:
    """Nodes said to be 0.2 that come out half the time: odds of a quarter become odds of one."""
    calibration = Calibration(1.0)
    for step in range(600):
        calibration.observe(chain(0.2), step % 2)
    assert calibration.odds == pytest.approx(4.0, rel=0.1)


def test_what_a_network_adds_is_learnt_for_each_range_of_matches() -> None:
    expectation = Expectation()
    assert [expectation.network_gain(match) for match in (0, 1, 2, 4, 9)] == pytest.approx([
        USUAL_GAIN[0], USUAL_GAIN[0], USUAL_GAIN[1], USUAL_GAIN[2], USUAL_GAIN[3]
    ])  # fmt: skip
    for _ in range(50):
        expectation.compare(3, chain(0.5), chain(0.5), price=0.2)
    gained = expectation.network.corrected(0.5) - 0.5
    assert expectation.network_gain(2) == pytest.approx(gained, abs=0.02)
    assert expectation.network_gain(0) == pytest.approx(USUAL_GAIN[0])


def test_what_a_network_adds_is_less_the_price_of_its_rows() -> None:
    """Its tree has a row more; the text's best tree is the one without its last node."""
    expectation = Expectation()
    for _ in range(50):
        expectation.compare(0, chain(0.6, 0.6, 0.6), chain(0.5, 0.5, 0.1), price=0.3)
    added = 3 * (expectation.network.corrected(0.6) - 0.3)
    assert expectation.network_gain(0) == pytest.approx(added - 2 * (0.5 - 0.3), abs=0.03)


def test_trees_are_compared_at_first_and_then_now_and_then() -> None:
    expectation = Expectation()
    due = [expectation.comparison_due(0) for _ in range(12)]
    assert due == [True, True, False, True, False, False, False, True] + [False] * 3 + [True]
    assert expectation.comparison_due(8), "each range by itself"


def test_a_verified_tree_teaches_the_calibration_that_it_was_made_with() -> None:
    expectation = Expectation()
    expectation.observe(chain(0.5), [0], [1, 7])
    assert expectation.text.odds > TEXT_ODDS
    assert expectation.network.odds == NETWORK_ODDS
    expectation.with_network = True
    text_odds = expectation.text.odds
    expectation.observe(chain(0.5), [], [7])
    assert expectation.network.odds < NETWORK_ODDS
    assert expectation.text.odds == text_odds
    # The tree that it was compared with would have been right twice.
    expectation.compare(0, chain(0.5, 0.4), chain(0.5, 0.4), price=0.0)
    expectation.observe(chain(0.5), [0], [1, 2, 7])
    assert expectation.text.odds > text_odds
