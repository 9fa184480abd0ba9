"""Acceptance on text that is already written: it depends on the tokens alone, not on a model."""

from collections.abc import Sequence

from peagle.draft.proposer import Proposer


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
        accepted = tree.walk(answer[begin:])
        proposer.observe(tree, accepted)
        written = answer[begin : begin + len(accepted) + 1]
        begin += len(written)
        passes += 1
    return passes
