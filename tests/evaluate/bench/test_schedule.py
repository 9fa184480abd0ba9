from peagle.evaluate.bench.schedule import schedule
from tests.evaluate.bench.timings import contender, peer

OFF, ALL, VLLM = contender("off", plain=True), contender("all"), peer("vllm")


def test_each_repetition_begins_with_another_contender() -> None:
    turns = schedule([OFF, ALL, VLLM], [1, 8], 2, all_loaded=True)
    assert [(turn.repetition, turn.concurrency, turn.contender.name) for turn in turns] == [
        (0, 1, "off"), (0, 1, "all"), (0, 1, "vllm"),
        (0, 8, "off"), (0, 8, "all"), (0, 8, "vllm"),
        (1, 1, "all"), (1, 1, "vllm"), (1, 1, "off"),
        (1, 8, "all"), (1, 8, "vllm"), (1, 8, "off"),
    ]  # fmt: skip


def test_a_service_that_is_loaded_anew_does_all_its_cells_first() -> None:
    turns = schedule([OFF, VLLM, ALL], [1, 8], 2, all_loaded=False)
    assert [(turn.repetition, turn.concurrency, turn.contender.name) for turn in turns] == [
        (0, 1, "off"), (0, 1, "all"), (0, 8, "off"), (0, 8, "all"), (0, 1, "vllm"), (0, 8, "vllm"),
        (1, 1, "vllm"), (1, 8, "vllm"), (1, 1, "off"), (1, 1, "all"), (1, 8, "off"), (1, 8, "all"),
    ]  # fmt: skip
