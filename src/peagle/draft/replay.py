"""Acceptance on text that is already written: it depends on the tokens alone, not on a model."""

from collections.abc import Sequence

from peagle.draft.proposer import Proposer
from peagle.draft.tree import CandidateTree


def replay(proposer: Proposer, answer: Sequence[int]) -> int:
    """Decode a known answer with a proposer, as the engine would after the prompt's pass.

    Args:
        proposer: Made for the prompt alone.
        answer: What the target wrote. Its first token comes from the pass over the prompt.

    Returns:
        The passes that wrote the other tokens; `(len(answer) - 1) / passes` is the acceptance
        length, the target's own token in every pass included.
    """
    written = answer[:1]
    begin = 1
    passes = 0
    while begin < len(answer):
        proposer.extend(written)
        tree = proposer.propose(depth_limit=len(answer) - begin)
        accepted = walk(tree, answer[begin:])
        proposer.observe(tree, accepted)
        written = answer[begin : begin + len(accepted) + 1]
        begin += len(written)
        passes += 1
    return passes


def walk(tree: CandidateTree, answer: Sequence[int]) -> list[int]:
    """Follow what was written through a tree; return the nodes passed, from the root down."""
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    path: list[int] = []
    for token in answer:
        node = children.get((path[-1] if path else -1, token))
        if node is None:
            break
        path.append(node)
    return path
