"""Whether our own configurations wrote the same tokens as without speculation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peagle.evaluate.bench.answer import Cell
from peagle.evaluate.bench.contenders import Contender


@dataclass(frozen=True, slots=True)
class Parity:
    """What was compared.

    Attributes:
        answers: Answers compared with that of plain decoding.
        tokens: Their tokens.
        differing: Which differ: contender, concurrency, repetition and prompt.
    """

    answers: int
    tokens: int
    differing: Sequence[tuple[str, int, int, str]]

    def sentence(self) -> str:
        """Say it in one sentence."""
        if not self.answers:
            return "No answer of ours was compared with plain decoding."
        if self.differing:
            return (
                f"{len(self.differing)} of {self.answers} answers DIFFER from plain decoding; "
                f"the first is {self.differing[0][3]} by {self.differing[0][0]} at concurrency "
                f"{self.differing[0][1]}. This is a bug; please report it."
            )
        return (
            f"All {self.answers} answers of our configurations ({self.tokens} tokens) equal those "
            "of plain decoding, token for token."
        )

    def as_object(self) -> dict[str, Any]:
        """Give it as `bench.json` has it."""
        return {
            "answers": self.answers,
            "tokens": self.tokens,
            "differing": [list(one) for one in self.differing],
        }


def compare_tokens(cells: Sequence[Cell], contenders: Mapping[str, Contender]) -> Parity:
    """Compare every answer of ours with the first one that plain decoding wrote.

    Args:
        cells: What was measured.
        contenders: Who measured it, by name.
    """
    references = reference_answers(cells, contenders)
    answers = tokens = 0
    differing = []
    for cell in cells:
        reference = references.get(contenders[cell.contender].quantization or "")
        if not contenders[cell.contender].ours or reference is None:
            continue
        for one in cell.answers:
            answers += 1
            tokens += one.tokens
            if list(one.token_ids) != list(reference[one.id]):
                differing.append((cell.contender, cell.concurrency, cell.repetition, one.id))
    return Parity(answers, tokens, differing)


def reference_answers(
    cells: Sequence[Cell], contenders: Mapping[str, Contender]
) -> dict[str, dict[str, Sequence[int]]]:
    """Plain decoding's answers, for each quantisation that was measured."""
    references: dict[str, dict[str, Sequence[int]]] = {}
    for cell in cells:
        contender = contenders[cell.contender]
        if contender.ours and contender.request["spec"] is None:
            assert contender.quantization is not None
            references.setdefault(
                contender.quantization, {one.id: one.token_ids for one in cell.answers}
            )
    return references
