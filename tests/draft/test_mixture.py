import json
from pathlib import Path

import pytest

from peagle.draft.mixture import Mixture, MixturePrior, NetworkWeights
from peagle.draft.tree import CandidateTree, Source
from peagle.errors import CheckpointError

PRIOR = MixturePrior(
    lookup_evidence=(0.0, 1.0, 4.0),
    corpus_evidence=(0.5, 1.0, 1.0, 1.0, 2.0, 4.0),
    network=NetworkWeights(
        match_bounds=(2,),
        weights=(((0.6,) * 5 + (0.5,), (0.2,) * 6), ((0.1,) * 6, (0.0,) * 6)),
    ),
    trust_observations=10.0,
)


def test_evidence_is_shared_between_lookup_and_corpus() -> None:
    children = Mixture(PRIOR).children({7: 3.0, 8: 1.0}, {7: 0.5, 9: 0.25}, corpus_order=5)
    assert children == [
        (pytest.approx(-(3 + 4 * 0.5) / 8), 7, Source.LOOKUP),
        (pytest.approx(-(1 / 8)), 8, Source.LOOKUP),
        (pytest.approx(-(4 * 0.25) / 8), 9, Source.CORPUS),
    ]


def test_equal_children_come_by_token() -> None:
    children = Mixture(PRIOR).children({}, {5: 0.25, 3: 0.25, 4: 0.5}, corpus_order=1)
    assert [token for _, token, _ in children] == [4, 3, 5]


def test_source_is_what_gave_most() -> None:
    children = Mixture(PRIOR).children(
        {1: 1.0, 2: 0.1}, {2: 0.9, 3: 0.1}, 4, ([1, 3], [0.2, 0.7]), network_weight=0.5
    )
    assert {token: source for _, token, source in children} == {
        1: Source.LOOKUP,
        2: Source.CORPUS,
        3: Source.NETWORK,
    }


def test_network_alone_is_taken_as_it_is() -> None:
    children = Mixture(PRIOR).children({}, {}, 0, ([4, 2], [0.7, 0.2]), network_weight=0.1)
    assert children == [(-0.7, 4, Source.NETWORK), (-0.2, 2, Source.NETWORK)]


def test_text_and_network_are_mixed_linearly() -> None:
    mixture = Mixture(PRIOR)
    text = {token: -p for p, token, _ in mixture.children({1: 2.0}, {2: 1.0}, 4)}
    mixed = mixture.children({1: 2.0}, {2: 1.0}, 4, ([1, 5], [0.5, 0.25]), network_weight=0.4)
    assert {token: -p for p, token, _ in mixed} == {
        1: pytest.approx(0.6 * text[1] + 0.4 * 0.5),
        2: pytest.approx(0.6 * text[2]),
        5: pytest.approx(0.4 * 0.25),
    }


def test_broken_network_leaves_its_weight_to_text() -> None:
    mixture = Mixture(PRIOR)
    nan = float("nan")
    assert mixture.children({1: 2.0}, {2: 1.0}, 4, ([1, 5], [nan, nan]), 0.6) == mixture.children(
        {1: 2.0}, {2: 1.0}, 4
    )
    assert mixture.children({}, {}, 0, ([1], [nan]), 0.6) == []


def test_network_weight_depends_on_depth_match_and_order() -> None:
    asked = ((1, 1, 0), (1, 1, 5), (1, 2, 5), (2, 9, 1))
    assert [PRIOR.network.at(*each) for each in asked] == [0.6, 0.5, 0.2, 0.0]
    assert PRIOR.network.at(30, 0, 3) == 0.1


def tree_of(probability: float) -> CandidateTree:
    """A child of the root and a child of that, each as probable given what comes before."""
    return CandidateTree(
        [1, 2], [-1, 0], [probability, probability**2], [Source.CORPUS] * 2, [1, 2]
    )


def test_broken_promises_lower_trust_as_far_as_they_weigh() -> None:
    mixture = Mixture(PRIOR)
    mixture.observe(tree_of(0.8), accepted=[])
    assert mixture.trust == pytest.approx(10 / 10.8)
    # The next tree is made with that trust, so it promised less than the sources did.
    mixture.observe(tree_of(0.8 * mixture.trust), accepted=[])
    assert mixture.trust == pytest.approx(10 / 11.6)
    assert mixture.children({}, {4: 0.5}, 1)[0][0] == pytest.approx(-0.5 * 10 / 11.6)


def test_kept_promises_keep_trust() -> None:
    mixture = Mixture(PRIOR)
    mixture.observe(tree_of(0.9), accepted=[0, 1])
    assert mixture.trust == 1.0
    mixture.observe(CandidateTree(), accepted=[])
    assert mixture.trust == 1.0


def test_shipped_prior_believes_longer_matches_more(shipped_prior: MixturePrior) -> None:
    evidence = shipped_prior.lookup_evidence
    assert list(evidence) == sorted(set(evidence))
    assert shipped_prior.longest_match == 32
    known = shipped_prior.corpus_evidence[1:]
    assert list(known) == sorted(known)
    assert "held out" in shipped_prior.provenance["fitted_on"]


def test_prior_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    path.write_text(PRIOR.model_dump_json())
    assert MixturePrior.load(path) == PRIOR


@pytest.mark.parametrize(
    "change",
    [
        {"lookup_evidence": [0.0, -1.0]},
        {"corpus_evidence": [1.0]},
        {"network": {"match_bounds": [2], "weights": [[[0.6] * 6]]}},
        {"network": {"match_bounds": [2], "weights": [[[0.6] * 6, [1.5] * 6]]}},
        {"trust_observations": 0},
        {"unknown": 1},
    ],
)
def test_impossible_prior_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "prior.json"
    path.write_text(json.dumps(PRIOR.model_dump() | change))
    with pytest.raises(CheckpointError, match="no usable mixture prior"):
        MixturePrior.load(path)
    with pytest.raises(CheckpointError, match="no usable mixture prior"):
        MixturePrior.load(tmp_path / "missing.json")
