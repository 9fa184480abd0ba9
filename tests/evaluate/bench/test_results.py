import json
import re
from xml.etree import ElementTree

import pytest

from peagle.evaluate.bench.answer import Cell
from peagle.evaluate.bench.html_report import headline, render_html
from peagle.evaluate.bench.results import Results, sum_up
from peagle.evaluate.bench.service import Started
from peagle.evaluate.bench.services import StartUp
from peagle.evaluate.bench.tables import tables
from tests.evaluate.bench.timings import PROMPTS, cell, contender, peer

WHO = [contender("off/bf16", plain=True), contender("all/bf16"), peer("vllm <plain>")]
SETTING = {"model": "small", "threads": 2, "machine": {"processor": "A & B"}}
START = {"peagle": StartUp(Started(1.5, {"torch": "2.13"}, 9_000_000), 1.75)}


def summed(cells: list[Cell], ended_early: str | None = None) -> Results:
    return sum_up(cells, WHO, PROMPTS, baseline="off/bf16", setting=SETTING, start_ups=START,
                  ended_early=ended_early)  # fmt: skip


@pytest.fixture
def results() -> Results:
    """The drafted one takes half the time, the peer twice the time; 1 and 8 at a time."""
    steps = {"off/bf16": 0.2, "all/bf16": 0.1, "vllm <plain>": 0.4}
    return summed([
        cell(name, repetition, step, concurrency=concurrency)
        for repetition in range(2) for concurrency in (8, 1) for name, step in steps.items()
    ])  # fmt: skip


def test_figures_of_a_row(results: Results) -> None:
    row = results.row("all/bf16", 1)
    assert row is not None
    assert row.repetitions == 2
    # 16 tokens, one every 0.1 s.
    assert row.total.value == pytest.approx(10.0)
    assert row.stream == pytest.approx(10.0)
    assert row.ttft == pytest.approx({"p50": 0.1, "p90": 0.1, "p99": 0.1})
    assert row.end_to_end is not None
    assert row.end_to_end["p50"] == pytest.approx(0.4)
    assert row.acceptance_length == pytest.approx(1.0)
    assert row.distinct_bigrams == pytest.approx((1 + 2 / 7 + 1) / 3)
    assert row.repetitive == 1
    assert row.peak_bytes == 5_000_000
    assert row.same_answers == 1.0
    assert row.total_ratio is not None
    assert row.total_ratio.value == pytest.approx(2.0)
    assert row.varied_ratio is not None
    assert row.varied_ratio.value == pytest.approx(2.0)
    assert {name: one.value for name, one in row.category_ratios.items()} == pytest.approx(
        {"qa": 2.0, "code": 2.0}
    )


def test_rows_keep_the_order_of_contenders(results: Results) -> None:
    assert [(row.contender, row.concurrency) for row in results.rows] == [
        ("off/bf16", 1), ("off/bf16", 8), ("all/bf16", 1), ("all/bf16", 8),
        ("vllm <plain>", 1), ("vllm <plain>", 8),
    ]  # fmt: skip
    assert results.concurrencies == [1, 8]
    assert results.categories == ["qa", "code"]


def test_the_object_is_plain_json(results: Results) -> None:
    read = json.loads(json.dumps(results.as_object()))
    assert read["model"] == "small"
    assert read["parity"] == {"answers": 24, "tokens": 128, "differing": []}
    assert read["services"]["peagle"]["first_token_s"] == 1.75
    assert read["rows"][2]["ratio_to_baseline"]["total"] == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_tables_lead_with_ratios(results: Results) -> None:
    first = tables(results)[0]
    assert first.headings == ["contender", "1 stream", "8 streams", "1, without repetitive"]
    assert first.rows[1] == ["all/bf16", *["2.00 (2.00–2.00)"] * 3]
    assert headline(results).startswith("all/bf16 writes 2.00 times as fast as off/bf16")


def test_the_page_stands_alone(results: Results) -> None:
    page = render_html(results)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 3
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert "all/bf16 writes 2.00 times as fast" in page
    assert "All 24 answers" in page
    assert "A &amp; B" in page
    assert "vllm &lt;plain&gt;" in page
    assert "<plain>" not in page
    # Nothing is fetched: addresses are names of XML vocabularies only.
    assert not re.search(r"<(script|link|img)|(src|href)=\"http|@import", page)


def test_a_run_that_ended_early_says_so() -> None:
    found = summed([cell("off/bf16", 0, 0.2)], "Interrupted.")
    assert [row.contender for row in found.rows] == ["off/bf16"]
    assert "The run ended early: Interrupted." in render_html(found)
    assert headline(found) == "Only off/bf16 was measured."


def test_ratios_need_the_baseline_in_the_same_repetition() -> None:
    found = summed([cell("all/bf16", 0, 0.1), cell("all/bf16", 1, 0.1), cell("off/bf16", 1, 0.3)])
    row = found.row("all/bf16", 1)
    assert row is not None
    assert row.total_ratio is not None
    assert row.total_ratio.value == pytest.approx(3.0)
    alone = summed([cell("all/bf16", 0, 0.1)])
    assert alone.rows[0].total_ratio is None
    assert alone.rows[0].stream_ratio is None
    assert alone.rows[0].varied_stream is None


def test_nothing_measured() -> None:
    assert "Nothing was measured." in render_html(summed([]))
