"""The walk through a verified candidate tree, along the target's own choices.

Rule 3 of lossless sampling for trees: at each node the target chooses once; if a child holds
that token the walk goes there, else it ends with it. As the choices are those that decoding
token by token would make, so is the text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from peagle.engine.choice import TokenChooser, highest_logits, rows_of
from peagle.engine.stops import FinishReason, StopRule
from peagle.errors import InvalidRequestError


class DraftTree(Protocol):
    """The draft tokens of a step, parents before children."""

    @property
    def tokens(self) -> Sequence[int]:
        """The token of each node `[nodes]`."""
        ...

    @property
    def parents(self) -> Sequence[int]:
        """The parent of each node `[nodes]`; -1 is the last committed token."""
        ...


@dataclass(frozen=True, slots=True)
class Walk:
    """What a step decided.

    Attributes:
        accepted: The nodes walked, from the top; their keys and values are to be kept.
        emitted: Their tokens and one more, which no row of this step belongs to: the target's
            own choice at the end of the walk, or the token that finished the answer.
        finish_reason: Why the answer ends with the last of them, or None.
    """

    accepted: list[int]
    emitted: list[int]
    finish_reason: FinishReason | None

    @property
    def rows(self) -> list[int]:
        """The row of logits from which each emitted token was chosen."""
        return [0, *(node + 1 for node in self.accepted)]


def walk(
    tree: DraftTree,
    choose: Callable[[int, Sequence[int]], int],
    stop: Callable[[int], FinishReason | None],
) -> Walk:
    """Walk from the last committed token along the target's choices.

    Args:
        tree: The draft tokens; of equal siblings the first is taken.
        choose: Gives the target's choice for a row (0 is the last committed token, `1 + i`
            node `i`), after the tokens of the path to it.
        stop: Told of every emitted token, in order, whether the answer ends with it.

    Returns:
        At least one emitted token.

    Raises:
        InvalidRequestError: The settings leave no token to choose after the last committed one.
    """
    children: dict[tuple[int, int], int] = {}
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        children.setdefault((parent, token), node)
    accepted: list[int] = []
    emitted: list[int] = []
    node = -1
    while True:
        try:
            token = choose(node + 1, emitted)
        except InvalidRequestError:
            if not accepted:
                raise
            # Decoding without drafts would emit the path before it fails: so does this.
            accepted.pop()
            return Walk(accepted, emitted, None)
        emitted.append(token)
        finish_reason = stop(token)
        child = children.get((node, token))
        if finish_reason is not None or child is None:
            return Walk(accepted, emitted, finish_reason)
        accepted.append(child)
        node = child


def verify(tree: DraftTree, logits: Tensor, chooser: TokenChooser, stops: StopRule) -> Walk:
    """Walk a verified tree and commit the emitted tokens to `chooser` and `stops`.

    Args:
        tree: The draft tokens.
        logits: `[1 + nodes, vocab]`; row 0 is the last committed token's, row `1 + i` node `i`'s.
        chooser: The answer's chooser.
        stops: The answer's stop rule.

    Returns:
        What the step decided.

    Raises:
        InvalidRequestError: The settings leave no token to choose after the last committed one.
        CheckpointError: The model computed something that is not a number.
    """
    if chooser.plain_greedy and logits.device.type != "cpu":
        best = highest_logits(logits)
        walked = walk(tree, lambda row, _: best[row], stops.push)
    else:
        rows = rows_of(logits)
        written: list[int] = []

        def stop(token: int) -> FinishReason | None:
            written.append(token)
            return stops.push(token, complete=chooser.completed_by(written))

        walked = walk(tree, lambda row, path: chooser.choose_row(rows[row], path), stop)
    chooser.commit(walked.emitted)
    return walked
