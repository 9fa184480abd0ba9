"""The dashboard asks for nothing that a live server does not tell."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import peagle.serve
from tests.serve.conftest import Served

DASHBOARD = Path(peagle.serve.__file__).parent / "grafana" / "peagle.json"
NAME = re.compile(r"\b(?:vllm:|process_)\w+")
# PromQL's own words and functions, Grafana's variables aside.
WORDS = {"sum", "max", "by", "rate", "histogram_quantile", "ignoring", "group_left", "and", "on",
         "le", "instance", "job", "label_values"}  # fmt: skip


@pytest.fixture(scope="module")
def samples(served: Served) -> dict[str, set[str]]:
    """Names of a live server's samples, with their labels."""
    body = {"prompt": "one two three one two three one two", "max_tokens": 30, "temperature": 0}
    httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).raise_for_status()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(served.http.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions(dashboard: dict[str, Any]) -> list[str]:
    variables = [one["query"]["query"] for one in dashboard["templating"]["list"][1:]]
    return variables + [one["expr"] for panel in dashboard["panels"] for one in panel["targets"]]


def test_every_metric_and_label_is_there(samples: dict[str, set[str]]) -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    asked = expressions(dashboard)
    assert len(asked) == 25
    for one in asked:
        names = NAME.findall(one)
        assert names, one
        assert set(names) <= set(samples), one
        # What is no metric, number or variable is a label of one of the metrics, or PromQL.
        rest = NAME.sub("", re.sub(r"\$\w+", "", one))
        labels = set(re.findall(r"\b[a-z]\w*", rest)) - WORDS
        assert labels <= set().union(*(samples[name] for name in names)), one


def test_legends_name_labels_and_panels_do_not_overlap(samples: dict[str, set[str]]) -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"by \({label}\)", target["expr"]), target
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_all_that_the_engine_counts_is_shown(samples: dict[str, set[str]]) -> None:
    shown = set(NAME.findall(" ".join(expressions(json.loads(DASHBOARD.read_text("utf-8"))))))
    bases = {re.sub(r"_(total|bucket|sum|count|created)$", "", name) for name in samples}
    told = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}
    assert {name for name in bases - told if name.startswith("vllm:")} == {
        # The older name of the time between tokens.
        "vllm:time_per_output_token_seconds"
    }
