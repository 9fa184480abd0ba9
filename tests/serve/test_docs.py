"""The examples of docs/serving.md run as they stand."""

import json
import re
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.sequence import Origin
from peagle.model.chat_template import ChatTemplate
from tests.serve.conftest import Served
from tests.serve.test_tools import HERMES

TEXT = (Path(__file__).parents[2] / "docs/serving.md").read_text(encoding="utf-8")
# Those of SageMaker's client are run in tests/serve/sagemaker/test_examples.py.
EXAMPLES = [
    found
    for found in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    if "runtime." not in found
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: " ".join(text.split())[-40:])
def test_an_example(
    served: Served,
    example: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "tools" in example:
        # The small model has no tools of its own.
        monkeypatch.setattr(served.llm._reader, "template", ChatTemplate(HERMES))
        example = example.replace("my-model", served.llm.name)
    messages = [{"role": "user", "content": "Name a fish."}]
    names: dict[str, Any] = {"client": served.openai, "messages": messages}
    exec(example, names)
    if "speculation_details" in example:
        told = [
            pair for line in capsys.readouterr().out.splitlines() for pair in literal_eval(line)
        ]
        assert told
        assert {origin for _, origin in told} <= {one.value for one in Origin}
        return
    choice = names["answer"].choices[0]
    if "tools" in example:
        calls = choice.message.tool_calls
        assert {call.function.name for call in calls} == {"weather"}
        assert all(list(json.loads(call.function.arguments)) == ["city"] for call in calls)
    elif "json_schema" in example:
        assert set(json.loads(choice.message.content)) == {"name", "age"}
    elif "choice" in example:
        assert choice.message.content in ("yes", "no", "sometimes")
    else:
        pytest.fail("an example that nothing checks")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 4
