"""The network's weight is found where it is known, and text is asked as in serving."""

import numpy as np
import pytest
import torch

from peagle.draft.corpus_build import build_corpus
from peagle.draft.mixture import MixturePrior, NetworkWeights
from peagle.train.features import Document
from peagle.train.held_out import Chains
from peagle.train.mixture_fit import Places, fit_network_weights, read_places, text_places

PRIOR = MixturePrior(
    lookup_evidence=(0.0, 1.0, 4.0),
    corpus_evidence=(0.5, 1.0, 1.0, 1.0, 2.0, 4.0),
    network=NetworkWeights(match_bounds=(2,), weights=(((0.6,) * 6, (0.2,) * 6),)),
    trust_observations=10.0,
)


def drawn(chance: np.random.Generator, count: int, weight: float) -> np.ndarray:
    """Tokens written by a mixture with this weight: probabilities `[2, count]` of text, network."""
    sources = chance.dirichlet(np.full(8, 0.3), (2, count))
    mixed = (1 - weight) * sources[0] + weight * sources[1]
    written = (mixed.cumsum(1) > chance.random((count, 1))).argmax(1)
    return sources[:, np.arange(count), written]


def test_weights_are_recovered_where_the_truth_is_known() -> None:
    chance = np.random.default_rng(0)
    truth = {(1, 0, 5): 0.7, (1, 0, 1): 0.9, (1, 5, 5): 0.2, (2, 0, 5): 0.4, (2, 5, 5): 0.05}
    count = 20_000
    parts = {place: drawn(chance, count, weight) for place, weight in truth.items()}
    places = Places(
        depths=np.repeat([depth for depth, _, _ in truth], count),
        matches=np.repeat([match for _, match, _ in truth], count),
        orders=np.repeat([order for _, _, order in truth], count),
        text=np.concatenate([part[0] for part in parts.values()]),
        network=np.concatenate([part[1] for part in parts.values()]),
        documents=3,
    )
    fitted = fit_network_weights(places, bounds=(3,))
    assert fitted is not None
    assert fitted.match_bounds == (3,)
    for (depth, match, order), weight in truth.items():
        assert fitted.at(depth, match, order) == pytest.approx(weight, abs=0.02)
    nats = fitted.provenance["nats_per_token"]
    assert nats["both"] < min(nats["text"], nats["network"])
    # By hand: mean of -log of the text's probabilities, 0.0002 added to each.
    assert nats["text"] == pytest.approx(-np.log(places.text + 2e-4).mean(), abs=1e-4)
    assert (fitted.provenance["held_out_documents"], fitted.provenance["places"]) == (3, 100_000)


def places_at(depths: list[int], text: float, network: float, match: int = 0) -> Places:
    count = len(depths)
    return Places(
        np.array(depths),
        np.full(count, match),
        np.zeros(count, np.int64),
        np.full(count, text),
        np.full(count, network),
        1,
    )


def test_a_depth_without_places_is_believed_like_the_one_before() -> None:
    fitted = fit_network_weights(places_at([1] * 500 + [3] * 500, text=0.0, network=0.5))
    assert fitted is not None
    assert fitted.at(1, 0, 0) > 0.95
    # No match of such a length and no such order at depth 1 either: both are as the depth.
    assert fitted.at(2, 0, 0) == pytest.approx(fitted.at(1, 9, 5), abs=1e-3)
    assert fitted.at(3, 0, 0) > 0.95


def test_a_range_with_few_places_is_mostly_its_whole_depth() -> None:
    many, few = (
        places_at([1] * 20_000, text=0.5, network=0.0),
        places_at([1] * 2, text=0.0, network=0.5, match=9),
    )
    both = Places(
        *(
            np.concatenate([getattr(many, name), getattr(few, name)])
            for name in ("depths", "matches", "orders", "text", "network")
        ),
        documents=2,
    )
    fitted = fit_network_weights(both)
    assert fitted is not None
    assert fitted.at(1, 0, 0) < 0.01
    # Two places against the 100 that stand for the depth.
    assert fitted.at(1, 9, 3) == pytest.approx(2 / 102, abs=0.01)


def test_without_any_place_nothing_is_fitted() -> None:
    assert fit_network_weights(places_at([], 0.0, 0.0)) is None


def test_text_is_asked_at_every_place_of_an_answer() -> None:
    # Prompt 5 6 7, answer 5 6 8 5 6.
    document = Document(torch.tensor([5, 6, 7, 5, 6, 8, 5, 6]), 3)
    found = text_places(document, None, PRIOR)
    # After 7 and after 8, which stand there for the first time, lookup is silent.
    assert found.silent.tolist() == [True, False, False, True, False]
    assert found.matches.tolist() == [0, 1, 2, 0, 1]
    # Evidence of a match of 1 is 1, of 2 it is 4; what no source knows has evidence 0.5.
    # After 5: one 6. After "5 6": one 7, which is not written. After "8 5": two 6.
    assert found.probabilities == pytest.approx([0, 1 / 1.5, 0, 0, 2 / 2.5])


def test_a_corpus_speaks_where_lookup_is_silent() -> None:
    corpus = build_corpus([[7, 5], [7, 5], [7, 9]], vocab_size=10, source_sha256="", split_rule="")
    document = Document(torch.tensor([3, 7, 5, 4]), 2)
    found = text_places(document, corpus, PRIOR)
    # After 7 in the corpus: 5 in two of three. It ends each document there, so 5 is followed by
    # what begins the next one.
    assert found.silent[0] == np.False_
    assert found.probabilities[0] == pytest.approx(2 / 3)
    assert found.matches.tolist() == [0, 0]
    assert found.orders.tolist() == [1, 2]


def test_places_are_those_of_the_chains_where_text_speaks() -> None:
    document = Document(torch.tensor([5, 6, 7, 5, 6, 8, 5, 6]), 3)
    # Predicted is token anchor + depth + 2: here 4, 5, 6, 7, and 5 once more.
    chains = Chains(
        anchors=np.array([2, 3, 4, 5, 2]),
        depths=np.array([0, 0, 0, 0, 1]),
        hits=np.zeros(5, bool),
        probabilities=np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
    )
    found = read_places([document], [chains], corpus=None, prior=PRIOR)
    # Token 6 stands where text is silent.
    assert found.depths.tolist() == [1, 1, 1, 2]
    assert found.matches.tolist() == [1, 2, 1, 2]
    assert found.orders.tolist() == [0, 0, 0, 0]
    assert found.text == pytest.approx([1 / 1.5, 0, 2 / 2.5, 0])
    assert found.network.tolist() == [0.1, 0.2, 0.4, 0.5]
    assert found.documents == 1
