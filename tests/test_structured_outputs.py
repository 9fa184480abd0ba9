from typing import Any

import pytest

from peagle import SamplingParams
from peagle.errors import InvalidRequestError
from peagle.structured_outputs import StructuredOutputs


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ({"json": {"type": "object"}}, "json"),
        ({"json": '{"type": "object"}', "regex": None}, "json"),
        ({"json_object": True, "whitespace_pattern": " ?"}, "json_object"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["yes", "no"]}, "choice"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
    ],
)
def test_a_form_is_read(block: dict[str, Any], kind: str) -> None:
    params = SamplingParams(structured_outputs=block)
    assert params.structured_outputs is not None
    assert params.structured_outputs.kind == kind
    assert params.replaced(max_tokens=5).structured_outputs == params.structured_outputs
    assert StructuredOutputs.parse(params.structured_outputs) is params.structured_outputs


@pytest.mark.parametrize(
    ("block", "field", "said"),
    [
        ({}, "structured_outputs", "says no form"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs", "regex and choice"),
        ({"json_object": False}, "structured_outputs", "json_object is false"),
        ({"choice": ["a", ""]}, "structured_outputs", "empty string"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs", "without JSON"),
        ({"choice": []}, "structured_outputs.choice", "cannot be []"),
        ({"choice": "ab"}, "structured_outputs.choice", "cannot be 'ab'"),
        ({"choice": ["a"] * 2000}, "structured_outputs.choice", "cannot be"),
        ({"regex": ""}, "structured_outputs.regex", "cannot be ''"),
        ({"grammar": "x" * 300_000}, "structured_outputs.grammar", "200,000 characters"),
        ({"json": 3}, "structured_outputs.json", "cannot be 3"),
        ({"json_object": "yes"}, "structured_outputs.json_object", "cannot be 'yes'"),
        ({"structural_tag": "{}"}, "structured_outputs.structural_tag", "unknown key"),
        ("json", "structured_outputs", "cannot be 'json'"),
    ],
)
def test_what_is_wrong_is_named(block: Any, field: str, said: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        SamplingParams(structured_outputs=block)
    assert raised.value.field == field
    assert said in str(raised.value)
