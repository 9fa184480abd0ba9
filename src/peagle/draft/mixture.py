"""How much each source is believed: one probability from the three of them.

Text sources speak in evidence. An earlier occurrence in the request counts by the length of its
match, the corpus as a whole by the length of the context that it knows, and
P(token) = (lookup evidence for it + corpus evidence · P_corpus(token)) / (all evidence).
The network's distribution is mixed in linearly, with a weight by depth and longest match.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from peagle.catalog.entry import DATA_FOLDER
from peagle.draft.corpus import ORDER
from peagle.draft.tree import CandidateTree, Child, Source
from peagle.errors import CheckpointError

SHIPPED_PRIOR: Final = DATA_FOLDER / "corpora" / "smollm2-135m-instruct.json"

_NETWORK, _LOOKUP, _CORPUS = Source.NETWORK, Source.LOOKUP, Source.CORPUS

_Evidence = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Weight = Annotated[float, Field(ge=0, le=1)]
_ByOrder = Annotated[tuple[_Weight, ...], Field(min_length=ORDER + 1, max_length=ORDER + 1)]


class NetworkWeights(BaseModel):
    """How much a drafter network is believed beside the text sources; it comes with the drafter.

    Attributes:
        match_bounds: Match lengths at which the next column of `weights` begins.
        weights: Weight of the network's distribution against the text's: one row per depth, the
            last for all deeper ones; in it one column per range of longest matches; in that one
            entry per length of the longest context that the corpus knows, from 0 up.
        provenance: Where the numbers come from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    match_bounds: tuple[int, ...]
    weights: tuple[tuple[_ByOrder, ...], ...] = Field(min_length=1)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _columns_are_ranges(self) -> Self:
        if any(len(row) != len(self.match_bounds) + 1 for row in self.weights):
            raise ValueError("weights needs one column more than match_bounds has entries")
        if list(self.match_bounds) != sorted(set(self.match_bounds)):
            raise ValueError("match_bounds do not rise")
        return self

    def at(self, depth: int, match_length: int, corpus_order: int) -> float:
        """Weight of the network's distribution where text has something to say as well."""
        row = self.weights[min(depth, len(self.weights)) - 1]
        return row[bisect_right(self.match_bounds, match_length)][corpus_order]


class MixturePrior(BaseModel):
    """What is believed before the request has said anything, fitted on held-out text.

    Attributes:
        lookup_evidence: Evidence of one earlier occurrence, by match length from 0 up; the last
            entry is for all longer ones.
        corpus_evidence: Evidence of the corpus, by the length of the longest context that it
            knows, from 0 up. Entry 0 stands for all that no source knows.
        network: How much a drafter is believed that does not say so itself.
        trust_observations: How many observed positions the prior's calibration is worth.
        provenance: Where the numbers come from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lookup_evidence: tuple[_Evidence, ...] = Field(min_length=2)
    corpus_evidence: tuple[_Evidence, ...] = Field(min_length=ORDER + 1, max_length=ORDER + 1)
    network: NetworkWeights
    trust_observations: float = Field(gt=0, allow_inf_nan=False)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @property
    def longest_match(self) -> int:
        """Match length from which on evidence no longer grows."""
        return len(self.lookup_evidence) - 1

    def with_network(self, weights: NetworkWeights | None) -> Self:
        """Give the same prior with a drafter's own weights, if it has any."""
        return self if weights is None else self.model_copy(update={"network": weights})

    @classmethod
    def load(cls, path: Path = SHIPPED_PRIOR) -> Self:
        """Read a prior that `scripts/fit_mixture.py` wrote.

        Args:
            path: The file; the shipped prior serves any model, its numbers depend on it little.

        Raises:
            CheckpointError: The file is missing or holds something else.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise CheckpointError(
                f"{path} is no usable mixture prior: {str(error).splitlines()[0]}.",
                remedy="Fit it anew with scripts/fit_mixture.py.",
                field="prior",
            ) from None


class Mixture:
    """The mixture of one request: the prior, and how far its predictions held so far."""

    def __init__(self, prior: MixturePrior) -> None:
        self.prior = prior
        self._corpus_evidence = prior.corpus_evidence
        self._hits = self._expected = prior.trust_observations
        self._trust = 1.0

    @property
    def trust(self) -> float:
        """Factor for every probability given the parent, at most 1."""
        return self._trust

    def children(
        self,
        lookup: dict[int, float],
        corpus: dict[int, float],
        corpus_order: int,
        network: tuple[list[int], list[float]] | None = None,
        network_weight: float = 0.0,
    ) -> list[Child]:
        """Mix what the sources say about the next token.

        Args:
            lookup: Evidence from the request's own text, by token.
            corpus: Probabilities from the corpus, by token.
            corpus_order: Length of the longest context that the corpus knows.
            network: The network's tokens and probabilities.
            network_weight: Its weight; a source that says nothing leaves its own to the other.

        Returns:
            The children, most probable first.
        """
        predicted: dict[int, float] = {}
        if network is not None:
            # No comparison with NaN is true: a broken network says nothing.
            predicted = {token: p for token, p in zip(*network, strict=True) if p > 0}
        if not predicted:
            network_weight = 0.0
        elif not lookup and not corpus:
            network_weight = 1.0
        network_share = network_weight * self._trust
        text_share = (1 - network_weight) * self._trust
        corpus_evidence = self._corpus_evidence[corpus_order]
        # One by one: `sum` compensates from Python 3.12 on, and the native module does not.
        from_text = 0.0
        for found in lookup.values():
            from_text += found
        evidence = from_text + corpus_evidence
        per_evidence = text_share / evidence if evidence > 0 else 0.0
        corpus_share = corpus_evidence * per_evidence
        # Most tokens are known to the corpus alone.
        children = [
            (-corpus_share * probability, token, _CORPUS)
            for token, probability in corpus.items()
            if token not in lookup and token not in predicted
        ]
        for token in lookup | predicted:
            from_lookup = lookup.get(token, 0.0) * per_evidence
            from_corpus = corpus.get(token, 0.0) * corpus_share
            from_network = predicted.get(token, 0.0) * network_share
            if from_lookup >= from_corpus:
                source = _LOOKUP if from_lookup >= from_network else _NETWORK
            else:
                source = _CORPUS if from_corpus >= from_network else _NETWORK
            children.append((-(from_lookup + from_corpus + from_network), token, source))
        children.sort()
        return children

    def observe(self, tree: CandidateTree, accepted: Sequence[int]) -> None:
        """Compare what a tree promised with what the target wrote.

        Args:
            tree: A tree made with this mixture, since the last call.
            accepted: The nodes of the path that the target wrote, from the root down.
        """
        if not tree.tokens:
            return
        promised: dict[int, float] = {}
        for node, parent in enumerate(tree.parents):
            promised[parent] = promised.get(parent, 0.0) + tree.probabilities[node]
        for node in (-1, *accepted):
            if node in promised:
                above = tree.probabilities[node] if node >= 0 else 1.0
                self._expected += promised[node] / above / self._trust
        self._hits += len(accepted)
        self._trust = min(1.0, self._hits / self._expected)
