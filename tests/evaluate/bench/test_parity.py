import dataclasses

from peagle.evaluate.bench.parity import compare_tokens
from peagle.evaluate.bench.services import named
from tests.evaluate.bench.timings import cell, contender, peer

WHO = named([
    contender("off/bf16", plain=True), contender("all/bf16"),
    contender("off/int8", plain=True, quantization="int8"), peer("vllm"),
])  # fmt: skip


def test_equal_answers_are_counted() -> None:
    cells = [cell("all/bf16", 0, 0.1), cell("off/bf16", 0, 0.2), cell("off/int8", 0, 0.2)]
    parity = compare_tokens(cells, WHO)
    assert (parity.answers, parity.tokens, list(parity.differing)) == (9, 48, [])
    assert parity.sentence().startswith("All 9 answers")


def test_a_different_token_is_found_and_named() -> None:
    plain, drafted = cell("off/bf16", 0, 0.2), cell("all/bf16", 1, 0.1, concurrency=8)
    wrong = dataclasses.replace(drafted.answers[1], token_ids=[7, 8, 9])
    drafted = dataclasses.replace(drafted, answers=[drafted.answers[0], wrong])
    parity = compare_tokens([plain, drafted], WHO)
    assert parity.differing == [("all/bf16", 8, 1, "b")]
    assert "1 of 5 answers DIFFER" in parity.sentence()


def test_other_programs_and_other_quantisations_are_not_compared() -> None:
    plain, other = cell("off/bf16", 0, 0.2), cell("vllm", 0, 0.1)
    int8 = cell("off/int8", 0, 0.1)
    changed = dataclasses.replace(other.answers[0], token_ids=[1])
    other = dataclasses.replace(other, answers=[changed])
    int8 = dataclasses.replace(int8, answers=[changed])
    assert compare_tokens([plain, other, int8], WHO).differing == []
    assert compare_tokens([other], WHO).sentence() == (
        "No answer of ours was compared with plain decoding."
    )
