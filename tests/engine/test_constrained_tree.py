"""Trees under a grammar, over an alphabet of single letters."""

from collections.abc import Sequence

import pytest

from peagle.draft.tree import CandidateTree, Source
from peagle.engine.constrained_tree import constrained, proposed_part
from peagle.errors import InvalidRequestError


class Words:
    """A grammar of a few words; a token is the code of a letter."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def branch(self) -> "Words":
        return self

    def _after(self, path: Sequence[int]) -> list[str]:
        begun = "".join(map(chr, path))
        return [word[len(begun) :] for word in self._words if word.startswith(begun)]

    def accepts(self, path: Sequence[int]) -> bool:
        return bool(self._after(path))

    def forced(self, path: Sequence[int], most: int) -> list[int]:
        rests = self._after(path)
        length = 0
        while all(len(rest) > length and rest[length] == rests[0][length] for rest in rests):
            length += 1
        return [ord(letter) for letter in rests[0][: min(length, most)]]


def tree(*nodes: tuple[str, int, float]) -> CandidateTree:
    made = CandidateTree()
    for letter, parent, probability in nodes:
        made.tokens.append(ord(letter))
        made.parents.append(parent)
        made.probabilities.append(probability)
        made.sources.append(Source.LOOKUP)
        made.depths.append(1 if parent < 0 else made.depths[parent] + 1)
    return made


def grown(
    proposed: CandidateTree, grammar: Words, nodes: int = 15, roots: int = 4, depth: int = 32
) -> list[tuple[str, int, float, str]]:
    found = constrained(
        proposed,
        grammar,
        most_nodes=nodes,
        most_roots=roots,
        most_depth=depth,  # type: ignore[arg-type]
    )
    for node, parent in enumerate(found.parents):
        assert parent < node
        assert found.depths[node] == (1 if parent < 0 else found.depths[parent] + 1)
    return [
        (chr(token), parent, probability, source.name.lower())
        for token, parent, probability, source in zip(
            found.tokens, found.parents, found.probabilities, found.sources, strict=True
        )
    ]


PROPOSED = tree(("c", -1, 0.6), ("x", -1, 0.3), ("a", 0, 0.5), ("d", -1, 0.05), ("o", 3, 0.04))


def test_what_the_grammar_forbids_goes_with_what_follows_it() -> None:
    assert grown(PROPOSED, Words("car", "cub", "d")) == [
        ("c", -1, 0.6, "lookup"),
        ("a", 0, 0.5, "lookup"),
        ("r", 1, 0.5, "grammar"),
        ("d", -1, 0.05, "lookup"),
    ]


def test_forced_text_comes_in_where_nothing_was_proposed() -> None:
    assert grown(CandidateTree(), Words("yes")) == [
        ("y", -1, 1.0, "grammar"),
        ("e", 0, 1.0, "grammar"),
        ("s", 1, 1.0, "grammar"),
    ]
    assert grown(CandidateTree(), Words("yes", "no")) == []


def test_a_proposed_node_that_is_forced_is_not_doubled() -> None:
    assert grown(PROPOSED, Words("cart")) == [
        ("c", -1, 0.6, "lookup"),
        ("a", 0, 0.5, "lookup"),
        ("r", 1, 1.0, "grammar"),
        ("t", 2, 1.0, "grammar"),
    ]


def test_limits_keep_the_most_probable() -> None:
    words = Words("caravan", "x", "dog")
    assert [node[0] for node in grown(PROPOSED, words, nodes=5)] == ["c", "a", "r", "a", "v"]
    assert [node[0] for node in grown(PROPOSED, words, roots=2)] == [*"caravan", "x"]
    assert [node[0] for node in grown(PROPOSED, words, depth=2)] == [*"caxdo"]
    assert grown(PROPOSED, words, depth=0, nodes=0) == []


def test_forced_text_outranks_improbable_drafts() -> None:
    found = grown(tree(("x", -1, 0.3), ("y", 0, 0.1)), Words("xyz", "xyq"), nodes=2)
    assert [node[0] for node in found] == ["x", "y"]
    other = grown(tree(("a", -1, 0.3), ("b", -1, 0.2)), Words("a", "bcd"), nodes=3)
    assert [node[:3] for node in other] == [("a", -1, 0.3), ("b", -1, 0.2), ("c", 1, 0.2)]


def test_a_grammar_that_fails_ahead_leaves_no_drafts_and_no_trace() -> None:
    class Failing(Words):
        def branch(self) -> "Failing":
            return Failing(*self._words)

        def accepts(self, path: Sequence[int]) -> bool:
            raise InvalidRequestError("It is too complex.", remedy="Simplify it.")

    assert grown(PROPOSED, Failing("cart", "d")) == []


@pytest.mark.parametrize("accepted", [0, 1, 2, 3, 4])
def test_sources_learn_of_their_own_nodes(accepted: int) -> None:
    words = Words("cart")
    found = constrained(PROPOSED, words, most_nodes=9, most_roots=4, most_depth=9)  # type: ignore[arg-type]
    part, of_sources = proposed_part(found, list(range(accepted)))
    assert part == tree(("c", -1, 0.6), ("a", 0, 0.5))
    assert of_sources == list(range(min(accepted, 2)))
