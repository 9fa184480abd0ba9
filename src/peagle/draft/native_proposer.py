"""Proposing in the native module: a node costs a microsecond or two."""

from collections.abc import Sequence
from typing import Any, Final

from peagle import native
from peagle.draft.corpus import Corpus
from peagle.draft.distributions import LevelDistributions
from peagle.draft.mixture import MixturePrior
from peagle.draft.peagle.native_markov import NativeBranches
from peagle.draft.python_proposer import least
from peagle.draft.tree import CandidateTree, Source
from peagle.spec import MAX_DEPTH, ParallelDraftingSpec

_SOURCES: Final = tuple(Source)


class NativeProposer:
    """Proposes for one request, in the native module (`proposer.Proposer`).

    Args:
        token_ids: Prompt and, where a request is taken up again, output so far.
        spec: How large the tree may grow, and which text sources to ask.
        corpus: Text that the target wrote before, if there is any; its tables are read in place.
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
        library = native.library
        self.spec = spec
        self._sources = library.TextSources(
            token_ids,
            prior=library.MixturePrior(
                lookup_evidence=prior.lookup_evidence,
                corpus_evidence=prior.corpus_evidence,
                match_bounds=prior.network.match_bounds,
                network_weights=prior.network.weights,
                trust_observations=prior.trust_observations,
            ),
            lookup=spec.lookup,
            corpus=library.Corpus(**corpus.tables, shares=corpus.weight_of_shorter)
            if corpus is not None and spec.corpus
            else None,
        )

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take note of tokens that the target wrote."""
        self._sources.extend(token_ids)

    def growing(
        self,
        network: LevelDistributions | None = None,
        *,
        depth_limit: int | None = None,
        node_limit: int | None = None,
    ) -> "NativeGrowingTree":
        """Begin the tree to verify next (`Proposer.growing`)."""
        spec = self.spec
        return NativeGrowingTree(
            native.library.GrowingTree(
                self._sources,
                network.found if isinstance(network, NativeBranches) else network,
                max_nodes=least(spec.max_tree_nodes, node_limit),
                max_roots=spec.num_parallel_trees,
                max_depth=least(MAX_DEPTH, depth_limit),
            )
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
        repeats: bool = self._sources.repeats
        return repeats

    @property
    def longest_match(self) -> int:
        """Length of the longest earlier place in the request that agrees with its end."""
        length: int = self._sources.longest_match
        return length

    def observe(self, tree: CandidateTree, accepted: Sequence[int]) -> None:
        """Learn from the verification of a tree (`Proposer.observe`)."""
        self._sources.observe(tree.parents, tree.probabilities, accepted)


class NativeGrowingTree:
    """A candidate tree that the native module grows as `tree.GrowingTree` would.

    Args:
        grown: The native library's `GrowingTree`.

    Attributes:
        grown: As given.
    """

    __slots__ = ("grown",)

    def __init__(self, grown: Any) -> None:
        self.grown = grown

    @property
    def taken(self) -> int:
        """Number of nodes taken so far."""
        taken: int = self.grown.taken
        return taken

    def first(self, count: int) -> CandidateTree:
        """Return the tree of the `count` most probable nodes, of those taken so far."""
        tokens, parents, probabilities, sources, depths = self.grown.first(count)
        return CandidateTree(
            tokens, parents, probabilities, [_SOURCES[source] for source in sources], depths
        )

    def whole(self) -> CandidateTree:
        """Take all nodes that the limits allow."""
        self.grown.grow()
        return self.first(self.taken)
