"""The examples of docs/serving.md, run as they stand but for the port."""

import contextlib
import io
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle import LLM, SamplingParams
from peagle.serve.settings import ServeSettings
from tests.serve.conftest import Served

GUIDE = Path(__file__).parents[3] / "docs" / "serving.md"
SECTION = GUIDE.read_text("utf-8").partition("## SageMaker")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture(scope="module")
def server(smollm2: LLM) -> Iterator[Served]:
    """A server with the access key that the guide starts one with."""
    (command,) = [text for _, text in BLOCKS if text.startswith("peagle serve ")]
    key = command.split("--access-key ")[1].strip()
    with Served(smollm2, ServeSettings(port=0, access_keys=(key,))) as served:
        yield served


def test_the_examples_in_python(server: Served) -> None:
    params = SamplingParams(max_tokens=12)
    expected = server.llm.generate(
        [{"prompt": "Once upon a time"}], params, parallel_drafting=False
    )[0].text
    code = "\n".join(text for kind, text in BLOCKS if kind == "python")
    assert code.count("http://localhost:8080") == 1
    printed = io.StringIO()
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        exec(code.replace("http://localhost:8080", server.url), scope)
    assert printed.getvalue() == f"{expected}\n{expected}"


def test_the_example_with_curl(server: Served) -> None:
    fish = [{"role": "user", "content": "Name a fish."}]
    params = SamplingParams(max_tokens=12)
    expected = server.llm.generate([fish], params, parallel_drafting=False)[0].text
    (command,) = [text for _, text in BLOCKS if text.startswith("curl ")]
    told = command.replace("http://localhost:8080", server.url)
    done = subprocess.run(["bash", "-c", told], capture_output=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == expected
