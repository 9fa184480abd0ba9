"""How much to believe a trained network beside the text sources, fitted on held-out answers.

For each held-out place that a chain reaches along the written text, the sources' mixture and the
network each gave the written token a probability. The weight of the network is what makes the
written tokens most likely, for each depth, range of longest matches and order of the corpus:
expectation maximisation of a mixture of two (Dempster, Laird and Rubin 1977).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from peagle.draft.corpus import ORDER, Corpus
from peagle.draft.lookup import Lookup
from peagle.draft.mixture import Mixture, MixturePrior, NetworkWeights
from peagle.train.features import Document
from peagle.train.held_out import Chains

MATCH_BOUNDS: Final = (2, 4, 8)
# Keeps the logarithm of a token that a source does not know finite.
_FLOOR: Final = 2e-4
# A weight of fewer places is mostly that of what it belongs to.
_WORTH: Final = 100.0
_ROUNDS: Final = 40

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextPlaces:
    """What the text sources say at every place of an answer.

    Attributes:
        probabilities: Probability of the written token, `[n - P]`: entry `i` is that of token
            `P + i`, given all before it.
        matches: Longest match with the text before, `[n - P]`.
        orders: Length of the longest context that the corpus knows, `[n - P]`.
        silent: Where no source says anything, `[n - P]`.
    """

    probabilities: Floats
    matches: Ints
    orders: Ints
    silent: npt.NDArray[np.bool_]


def text_places(document: Document, corpus: Corpus | None, prior: MixturePrior) -> TextPlaces:
    """Ask lookup and corpus for every token of an answer."""
    text = document.tokens.tolist()
    prompt = text[: document.prompt_tokens]
    lookup, mixture = Lookup(prompt, prior.longest_match), Mixture(prior)
    ranges = [] if corpus is None else corpus.ranges(prompt)
    probabilities, matches, orders, silent = [], [], [], []
    for token in text[document.prompt_tokens :]:
        evidence = lookup.evidence(lookup.matches, prior.lookup_evidence)
        followed = {} if corpus is None else corpus.successors(ranges)
        children = mixture.children(evidence, followed, len(ranges))
        probabilities.append(next((-p for p, child, _ in children if child == token), 0.0))
        matches.append(max(lookup.matches.values(), default=0))
        orders.append(len(ranges))
        silent.append(not children)
        lookup.extend([token])
        if corpus is not None:
            ranges = corpus.follow(ranges, token)
    return TextPlaces(
        np.array(probabilities), np.array(matches), np.array(orders), np.array(silent, bool)
    )


@dataclass(frozen=True, slots=True)
class Places:
    """Places of held-out chains where text has something to say, one entry each.

    Attributes:
        depths: From 1 for the first draft token, `[places]`.
        matches: Longest match of the text there, `[places]`.
        orders: Length of the longest context that the corpus knows there, `[places]`.
        text: Probability that the text sources give the written token, `[places]`.
        network: Probability that the network gives it, `[places]`.
        documents: Documents that they come from.
    """

    depths: Ints
    matches: Ints
    orders: Ints
    text: Floats
    network: Floats
    documents: int


def read_places(
    documents: Sequence[Document],
    chains: Iterable[Chains],
    *,
    corpus: Corpus | None,
    prior: MixturePrior,
) -> Places:
    """Ask network and text sources about held-out answers.

    A source is asked at depth `d` as if the tokens before were committed: text that matches them
    is the same, and the tokens before are those of the draft.

    Args:
        documents: Held-out documents.
        chains: What the network makes of each.
        corpus: The corpus that drafts come from, if there is any.
        prior: How the text sources are believed.
    """
    depths, matches, orders, text, network = [], [], [], [], []
    for document, found in zip(documents, chains, strict=True):
        said = text_places(document, corpus, prior)
        at = found.anchors + found.depths + 2 - document.prompt_tokens
        kept = ~said.silent[at]
        depths.append(found.depths[kept] + 1)
        matches.append(said.matches[at][kept])
        orders.append(said.orders[at][kept])
        text.append(said.probabilities[at][kept])
        network.append(found.probabilities[kept])
    return Places(
        np.concatenate(depths),
        np.concatenate(matches),
        np.concatenate(orders),
        np.concatenate(text),
        np.concatenate(network),
        len(documents),
    )


def fit_network_weights(
    places: Places, bounds: Sequence[int] = MATCH_BOUNDS
) -> NetworkWeights | None:
    """Fit the network's weight for each depth, range of longest matches and order of the corpus.

    What has few places is believed as what it belongs to: a match as its depth, an order as its
    match, a depth without any as the one before.

    Args:
        places: Where both have spoken.
        bounds: Match lengths at which ranges begin.

    Returns:
        The weights; None without any place to tell them from.
    """
    if not len(places.depths):
        return None
    columns = np.array([bisect_right(bounds, match) for match in places.matches], np.int64)

    def likeliest(at: npt.NDArray[np.bool_], start: float, worth: float) -> float:
        return _likeliest(places.text[at], places.network[at], start, worth)

    rows, before = [], 0.5
    for depth in range(1, int(places.depths.max()) + 1):
        here = places.depths == depth
        whole = before = likeliest(here, before, 1.0)
        row = []
        for column in range(len(bounds) + 1):
            within = here & (columns == column)
            usual = likeliest(within, whole, _WORTH)
            row.append(
                tuple(
                    round(likeliest(within & (places.orders == order), usual, _WORTH), 3)
                    for order in range(ORDER + 1)
                )
            )
        rows.append(tuple(row))
    mixed = [
        rows[depth - 1][column][order]
        for depth, column, order in zip(places.depths, columns, places.orders, strict=True)
    ]
    return NetworkWeights(
        match_bounds=tuple(bounds),
        weights=tuple(rows),
        provenance={
            "held_out_documents": places.documents,
            "places": len(columns),
            "nats_per_token": {
                "text": _nats(places, np.zeros(len(columns))),
                "network": _nats(places, np.ones(len(columns))),
                "both": _nats(places, np.array(mixed)),
            },
        },
    )


def _likeliest(text: Floats, network: Floats, start: float, worth: float) -> float:
    """Weight of the network under which the written tokens are most likely.

    Args:
        text: The text sources' probabilities.
        network: The network's.
        start: Where to begin, and what is believed without any evidence.
        worth: How many places that belief is worth.
    """
    weight = start
    text, network = text + _FLOOR, network + _FLOOR
    for _ in range(_ROUNDS):
        ours = weight * network
        share = ours / (ours + (1 - weight) * text)
        weight = float((share.sum() + worth * start) / (len(text) + worth))
    return weight


def _nats(places: Places, weights: Floats) -> float:
    mixed = weights * (places.network + _FLOOR) + (1 - weights) * (places.text + _FLOOR)
    return round(float(-np.log(mixed).mean()), 4)
