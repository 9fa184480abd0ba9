"""How the tokens of a stream came about: where each is from, and the tree of each step."""

from typing import Any

from peagle.engine.sequence import ORIGINS
from peagle.llm import Piece
from peagle.model.detokenizer import Detokenizer
from peagle.model.tokenizer import Tokenizer


class StepDetails:
    """Describes the steps of one answer, which must be given in order.

    Args:
        tokenizer: The vocabulary.
        skip_special_tokens: Whether the answer's text leaves special tokens out.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)

    def of(self, piece: Piece) -> dict[str, Any]:
        """Describe a step.

        The texts of all tokens, joined, are the answer; one that ends within a character has
        what is certain of it. A stop string that the answer leaves out is among them.
        """
        tokens: list[dict[str, Any]] = [
            {"id": token, "text": self._detokenizer.push([token]), "origin": origin.value}
            for token, origin in zip(piece.token_ids, piece.origins, strict=True)
        ]
        if piece.finish_reason is not None:
            tokens[-1]["text"] += self._detokenizer.flush()
        return {"tokens": tokens, "tree": self._tree(piece)}

    def _tree(self, piece: Piece) -> dict[str, Any] | None:
        """Write a tree as lists with one entry a node, parents before children."""
        tree = piece.tree
        if not tree.tokens:
            return None
        return {
            "tokens": tree.tokens,
            "texts": [spelling(self._tokenizer.token_bytes(token)) for token in tree.tokens],
            "parents": tree.parents,
            "probabilities": [round(one, 4) for one in tree.probabilities],
            "origins": [ORIGINS[source].value for source in tree.sources],
            "accepted": piece.accepted,
        }


def spelling(spelt: bytes) -> str:
    r"""Write a token; one that holds part of a character as `bytes:\xe2\x80`."""
    try:
        return spelt.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)
