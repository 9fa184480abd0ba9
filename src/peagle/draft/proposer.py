"""Propose the candidate tree of one request from everything that is known about it."""

from collections.abc import Sequence
from typing import Protocol

from peagle import native
from peagle.draft.corpus import Corpus
from peagle.draft.distributions import LevelDistributions
from peagle.draft.mixture import MixturePrior
from peagle.draft.native_proposer import NativeGrowingTree, NativeProposer
from peagle.draft.python_proposer import PythonProposer
from peagle.draft.tree import CandidateTree, GrowingTree
from peagle.spec import ParallelDraftingSpec


class Proposer(Protocol):
    """What to propose for one request.

    The tree depends on the request's text, the network's predictions for it, and what was
    accepted of earlier trees of the same request: on nothing else. Both kinds of proposers give
    the same trees, to the last bit of a probability.
    """

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take note of tokens that the target wrote."""
        ...

    def growing(
        self,
        network: LevelDistributions | None = None,
        *,
        depth_limit: int | None = None,
        node_limit: int | None = None,
    ) -> GrowingTree | NativeGrowingTree:
        """Begin the tree of draft tokens to verify next; whoever takes its nodes says how many.

        Args:
            network: The drafter network's predictions for this request, where it ran; no more
                levels of them than the request allows.
            depth_limit: Most draft tokens on a path, where fewer tokens may still be written.
            node_limit: Most nodes, where fewer are wanted than the request allows.

        Returns:
            The most probable paths, within the request's limits, as they are taken.
        """
        ...

    def propose(
        self,
        network: LevelDistributions | None = None,
        *,
        depth_limit: int | None = None,
        node_limit: int | None = None,
    ) -> CandidateTree:
        """Choose as many draft tokens as the limits allow; the arguments are those of `growing`."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether the request's text begins to repeat itself."""
        ...

    @property
    def longest_match(self) -> int:
        """Length of the longest earlier place in the request that agrees with its end."""
        ...

    def observe(self, tree: CandidateTree, accepted: Sequence[int]) -> None:
        """Learn from the verification of a tree how far to trust the next ones.

        Args:
            tree: The tree, or the first nodes of the tree, that was proposed last.
            accepted: The nodes of the path that the target wrote, from the root down.
        """
        ...


def new_proposer(
    token_ids: Sequence[int],
    *,
    spec: ParallelDraftingSpec,
    corpus: Corpus | None,
    prior: MixturePrior,
) -> Proposer:
    """Make the proposer of a request: the native one if it was built.

    Args:
        token_ids: Prompt and, where a request is taken up again, output so far.
        spec: How large the tree may grow, and which text sources to ask.
        corpus: Text that the target wrote before, if there is any.
        prior: How much each source is believed at first.
    """
    kind = PythonProposer if native.absence() else NativeProposer
    return kind(token_ids, spec=spec, corpus=corpus, prior=prior)
