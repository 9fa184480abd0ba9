"""Proposing in Python: the reference, and what runs where nothing was compiled."""

from collections.abc import Sequence

from peagle.draft.corpus import ORDER, Corpus, Ranges
from peagle.draft.distributions import LevelDistributions
from peagle.draft.lookup import Lookup, Matches
from peagle.draft.mixture import Mixture, MixturePrior
from peagle.draft.tree import CandidateTree, Child, GrowingTree
from peagle.spec import MAX_DEPTH, ParallelDraftingSpec


class PythonProposer:
    """Proposes for one request, in Python (`proposer.Proposer`).

    Args:
        token_ids: Prompt and, where a request is taken up again, output so far.
        spec: How large the tree may grow, and which text sources to ask.
        corpus: Text that the target wrote before, if there is any.
        prior: How much each source is believed at first.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        *,
        spec: ParallelDraftingSpec,
        corpus: Corpus | None,
        prior: MixturePrior,
    ) -> None:
        self.spec = spec
        self.mixture = Mixture(prior)
        self.lookup = Lookup(token_ids, prior.longest_match) if spec.lookup else None
        self.corpus = corpus if spec.corpus else None
        # The end of the text, which the corpus is asked about when a tree is wanted.
        self._ranges: Ranges = []
        self._unread = list(token_ids[-ORDER:])

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take note of tokens that the target wrote."""
        if self.lookup is not None:
            self.lookup.extend(token_ids)
        if self.corpus is not None:
            self._unread.extend(token_ids)

    def growing(
        self,
        network: LevelDistributions | None = None,
        *,
        depth_limit: int | None = None,
        node_limit: int | None = None,
    ) -> GrowingTree:
        """Begin the tree to verify next (`Proposer.growing`)."""
        spec = self.spec
        if self.corpus is not None:
            self._ranges = self.corpus.follow_all(self._ranges, self._unread)
            self._unread.clear()
        matches = {} if self.lookup is None else self.lookup.matches
        return GrowingTree(
            _Branch(self, network, matches, self._ranges, ()),
            max_nodes=least(spec.max_tree_nodes, node_limit),
            max_roots=spec.num_parallel_trees,
            max_depth=least(MAX_DEPTH, depth_limit),
        )

    def propose(
        self,
        network: LevelDistributions | None = None,
        *,
        depth_limit: int | None = None,
        node_limit: int | None = None,
    ) -> CandidateTree:
        """Choose as many draft tokens as the limits allow (`Proposer.propose`)."""
        return self.growing(network, depth_limit=depth_limit, node_limit=node_limit).whole()

    @property
    def repeats(self) -> bool:
        """Whether the request's text begins to repeat itself."""
        return self.lookup is not None and self.lookup.repeats

    @property
    def longest_match(self) -> int:
        """Length of the longest earlier place in the request that agrees with its end."""
        return 0 if self.lookup is None else max(self.lookup.matches.values(), default=0)

    def observe(self, tree: CandidateTree, accepted: Sequence[int]) -> None:
        """Learn from the verification of a tree (`Proposer.observe`)."""
        self.mixture.observe(tree, accepted)


class _Branch:
    """A path of draft tokens, with the places where the text sources know it from."""

    __slots__ = ("_matches", "_network", "_path", "_proposer", "_ranges")

    def __init__(
        self,
        proposer: PythonProposer,
        network: LevelDistributions | None,
        matches: Matches,
        ranges: Ranges,
        path: tuple[int, ...],
    ) -> None:
        self._proposer = proposer
        self._network = network
        self._matches = matches
        self._ranges = ranges
        self._path = path

    def child(self, token: int) -> "_Branch":
        lookup, corpus = self._proposer.lookup, self._proposer.corpus
        return _Branch(
            self._proposer,
            self._network,
            {} if lookup is None else lookup.follow(self._matches, token),
            [] if corpus is None else corpus.follow(self._ranges, token),
            (*self._path, token),
        )

    def children(self) -> list[Child]:
        proposer, depth = self._proposer, len(self._path) + 1
        lookup, corpus, network = proposer.lookup, proposer.corpus, self._network
        mixture = proposer.mixture
        evidence = (
            {} if lookup is None else lookup.evidence(self._matches, mixture.prior.lookup_evidence)
        )
        followed = {} if corpus is None else corpus.successors(self._ranges)
        if network is None or depth > network.levels:
            return mixture.children(evidence, followed, len(self._ranges))
        return mixture.children(
            evidence,
            followed,
            len(self._ranges),
            network.children(depth, self._path),
            mixture.prior.network.at(
                depth,
                max(self._matches.values(), default=0),
                len(self._ranges),
            ),
        )


def least(limit: int, other: int | None) -> int:
    """Give the lower of two limits, of which the second may be missing."""
    return limit if other is None else min(limit, other)
