"""Cells made by hand: two prompts of one category and one of another, at any speed."""

from collections.abc import Sequence

from peagle.evaluate.bench.answer import Answer, BenchPrompt, Cell
from peagle.evaluate.bench.contenders import Contender, ServiceSpec

VARIED = [11, 12, 13, 14]
LOOPING = [7, 8] * 4


def answer(
    name: str, tokens: Sequence[int], step: float, *, sent: float = 0.0, category: str = "qa",
    together: int = 1,
) -> Answer:  # fmt: skip
    """Tokens that come `together` every `step` seconds, the first alone."""
    arrivals = [(sent + step, 1)]
    left = len(tokens) - 1
    while left:
        count = min(together, left)
        arrivals.append((arrivals[-1][0] + step, count))
        left -= count
    return Answer(name, category, list(tokens), sent, arrivals, len(arrivals) - 1)


def cell(contender: str, repetition: int, step: float, *, concurrency: int = 1) -> Cell:
    """Three answers one after the other: varied, looping, varied; the last is another category."""
    answers: list[Answer] = []
    for name, tokens, category in (
        ("a", VARIED, "qa"), ("b", LOOPING, "qa"), ("c", VARIED, "code"),
    ):  # fmt: skip
        sent = answers[-1].arrivals[-1][0] if answers else 100.0
        answers.append(answer(name, tokens, step, sent=sent, category=category))
    return Cell(contender, concurrency, repetition, answers, 5_000_000)


def contender(name: str, *, plain: bool = False, quantization: str = "none") -> Contender:
    spec = None if plain else {"method": "lookup"}
    service = ServiceSpec("peagle", None, "run_peagle", {})
    return Contender(name, service, {"spec": spec}, ours=True, quantization=quantization)


def peer(name: str) -> Contender:
    return Contender(name, ServiceSpec(name, "vllm", "run_vllm", {}), {})


PROMPTS = [
    BenchPrompt(name, category, [{"role": "user", "content": name}], [1, 2], 8)
    for name, category in (("a", "qa"), ("b", "qa"), ("c", "code"))
]
