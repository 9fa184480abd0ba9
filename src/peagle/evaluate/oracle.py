"""A drafter that knows the answer: it exercises acceptance where a network has not learned it."""

from collections.abc import Collection, Sequence

from peagle.draft.distributions import LevelDistributions
from peagle.draft.tree import CandidateTree, Source


class OracleProposer:
    """Proposes a recorded answer, wrong at chosen depths, among siblings that are always wrong.

    Args:
        answer: The tokens that the target will write.
        depth: How far ahead it proposes.
        corrupted: Depths (from 1) at which the proposed token is wrong.
        vocab_size: Wrong tokens are drawn from it.
    """

    def __init__(
        self,
        answer: Sequence[int],
        *,
        depth: int = 7,
        corrupted: Collection[int] = (),
        vocab_size: int,
    ) -> None:
        self._answer = list(answer)
        self._depth = depth
        self._corrupted = frozenset(corrupted)
        self._vocab_size = vocab_size
        self._written = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Note what was written."""
        self._written += len(token_ids)

    def observe(self, tree: CandidateTree, accepted: Sequence[int]) -> None:
        """Learn nothing: the answer is known."""

    def propose(
        self,
        network: LevelDistributions | None = None,  # noqa: ARG002  (it knows better)
        *,
        depth_limit: int,
        node_limit: int,
    ) -> CandidateTree:
        """Propose the coming tokens, each with a wrong sibling before it."""
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        above = -1
        coming = self._answer[self._written : self._written + min(self._depth, depth_limit)]
        for depth, token in enumerate(coming, 1):
            if len(tokens) + 2 > node_limit:
                break
            wrong = (token + depth) % self._vocab_size
            right = token if depth not in self._corrupted else (token + 1) % self._vocab_size
            if wrong == right:
                wrong = (right + 1) % self._vocab_size
            tokens += [wrong, right]
            parents += [above, above]
            depths += [depth, depth]
            above = len(tokens) - 1
        return CandidateTree(
            tokens=tokens,
            parents=parents,
            probabilities=[0.5] * len(tokens),
            sources=[Source.LOOKUP] * len(tokens),
            depths=depths,
        )
