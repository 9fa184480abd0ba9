import json
from pathlib import Path
from typing import Any

import pytest

from peagle import LLM, SamplingParams
from tests.cli.conftest import Run

PROMPT = "Name three colours."


def test_the_answer_is_printed_and_statistics_go_to_stderr(peagle: Run, smollm2: LLM) -> None:
    ran = peagle("generate", PROMPT, "--max-tokens", "20", "--dtype", "bfloat16", "--stats")
    expected = smollm2.generate(PROMPT, SamplingParams(max_tokens=20))[0]
    assert ran.code == 0
    assert ran.out == expected.text + "\n"
    assert "tokens per target pass" in ran.err
    assert "lookup" in ran.err


def test_json_is_one_object_with_the_documented_keys(peagle: Run, smollm2: LLM) -> None:
    ran = peagle("generate", PROMPT, "--max-tokens", "20", "--dtype", "bfloat16", "--json")
    found = json.loads(ran.out)
    expected = smollm2.generate(PROMPT, SamplingParams(max_tokens=20))[0]
    assert found["text"] == expected.text
    assert found["token_ids"] == expected.token_ids
    assert found["finish_reason"] == "length"
    assert (found["quantization"], found["dtype"]) == ("none", "bfloat16")
    assert found["usage"] == {
        "prompt_tokens": len(expected.prompt_token_ids),
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert set(found["speculation"]) == {
        "method",
        "target_passes",
        "draft_passes",
        "drafted_tokens",
        "accepted_tokens",
        "acceptance_length",
        "acceptance_by_depth",
    }
    assert set(found["timing"]) == {"load_s", "ttft_s", "decode_s", "tokens_per_s", "step_ms"}
    assert set(found["timing"]["step_ms"]) == {
        "network",
        "trees",
        "planning",
        "target",
        "choosing",
        "committing",
        "learning",
        "scheduling",
        "detokenizing",
    }
    assert found["timing"]["step_ms"]["target"] > 0
    assert found["timing"]["step_ms"]["detokenizing"] > 0
    passes = found["speculation"]["target_passes"]
    assert found["speculation"]["acceptance_length"] == pytest.approx(19 / passes)


def test_what_was_chosen_is_shown(peagle: Run, smollm2_int8: LLM) -> None:
    common = ("generate", PROMPT, "--max-tokens", "6", "--quantization", "int8")
    ran = peagle(*common, "--json", "--stats")
    found = json.loads(ran.out)
    expected = smollm2_int8.generate(PROMPT, SamplingParams(max_tokens=6))[0]
    assert found["token_ids"] == expected.token_ids
    assert (found["quantization"], found["dtype"]) == ("int8", "bfloat16")
    assert "int8, native" in ran.err


def test_without_speculation_the_tokens_are_the_same(peagle: Run) -> None:
    common = ("generate", PROMPT, "--max-tokens", "16", "--temperature", "0.9", "--seed", "4")
    drafted = json.loads(peagle(*common, "--json").out)
    plain = json.loads(peagle(*common, "--json", "--no-speculation").out)
    assert drafted["token_ids"] == plain["token_ids"]
    assert (drafted["speculation"]["method"], plain["speculation"]["method"]) == ("lookup", "none")
    assert plain["speculation"]["acceptance_length"] == 1


def test_a_dash_reads_standard_input(peagle: Run, smollm2: LLM) -> None:
    ran = peagle("generate", "-", "--max-tokens", "8", "--dtype", "bfloat16", stdin="Say hello.\n")
    expected = smollm2.generate("Say hello.\n", SamplingParams(max_tokens=8))[0]
    assert ran.out == expected.text + "\n"


def test_a_file_of_prompts_gives_one_object_a_line(peagle: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"id": "a", "category": "x", "messages": [{"role": "user", "content": "Say hello."}], '
        '"max_tokens": 5}\n'
        '{"prompt": "Count to three."}\n'
        '{"id": "c", "prompt": "Say no.", "max_tokens": 3}\n'
    )
    alone = peagle("generate", "--prompts", str(file), "--max-tokens", "9")
    together = peagle("generate", "--prompts", str(file), "--max-tokens", "9", "--concurrency", "3")
    rows = [json.loads(line) for line in alone.out.splitlines()]
    assert [row["id"] for row in rows] == ["a", "line-2", "c"]
    assert [row["category"] for row in rows] == ["x", "all", "all"]
    assert [row["token_ids"] for row in rows] == [
        json.loads(line)["token_ids"] for line in together.out.splitlines()
    ]
    limited = [
        json.loads(line) for line in peagle("generate", "--prompts", str(file)).out.split("\n")[:1]
    ]
    assert limited[0]["usage"]["completion_tokens"] <= 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate",), "There is no prompt"),
        (("generate", ""), "The prompt is empty"),
        (("generate", "  \n"), "The prompt is empty"),
        (("generate", "a", "--prompts", "b"), "Both a prompt and --prompts"),
        (("generate", "--prompts", "b", "--stats"), "Leave --stats out"),
        (("generate", "a", "--concurrency", "2"), "only one prompt"),
        (("generate", "a", "--temperature", "nan"), "temperature cannot be nan"),
        (("generate", "a", "--temperature=-1"), "temperature cannot be -1"),
        (("generate", "a", "--top-p", "0"), "top_p cannot be 0"),
        (("generate", "a", "--max-tokens", "0"), "max_tokens cannot be 0"),
        (("generate", "a", "--max-tokens", "100000"), "Lower max_tokens"),
        (("generate", "a", "--seed=-4"), "seed cannot be -4"),
        (("generate", "a", "--spec", "{"), "not valid JSON"),
        (("generate", "a", "--spec", '{"trees": 2}'), "unknown key 'trees'"),
        (("generate", "a", "--model", "smollm9"), "There is no model called 'smollm9'"),
        (("generate", "a", "--model", "gpt-oss-20b"), "vLLM engine only"),
        (("generate", "a", "--model", "/no/such.gguf"), "/no/such.gguf"),
        (("generate", "a", "--dtype", "int3"), "dtype cannot be 'int3'"),
        (("generate", "a", "--quantization", "int3"), "quantization cannot be 'int3'"),
        (
            ("generate", "a", "--quantization", "int8", "--dtype", "bfloat16"),
            "quantization is 'int8', but dtype is 'bfloat16'",
        ),
        (("generate", "a", "--device", "tpu"), "device cannot be 'tpu'"),
        (("generate", "a", "--drafter", "/no/such"), "/no/such"),
        (("generate", "--prompts", "/no/such.jsonl"), "/no/such.jsonl cannot be read"),
        (("pull", "nothing-like-it"), "There is no model called"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    peagle: Run, arguments: tuple[str, ...], message: str
) -> None:
    ran = peagle(*arguments)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.startswith("Error: ")
    assert ran.err.count("\n") == 1
    assert ran.out == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: it is not valid JSON"),
        ("[]", "line 2"),
        ('{"messages": []}', "line 2: messages"),
        ('{"prompt": "a", "max_tokens": 0}', "line 2: max_tokens"),
        ('{"id": "a"}', "line 2: messages"),
        ('{"prompt": "a", "max_token": 4}', "line 2: max_token"),
    ],
)
def test_a_wrong_line_of_a_prompts_file_is_named(
    peagle: Run, tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Say hello."}\n' + line + "\n")
    ran = peagle("generate", "--prompts", str(file))
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1


FORMS = [
    (["--choice", "sunny", "--choice", "rainy"], {"choice": ["sunny", "rainy"]}),
    (["--regex", "[a-f]{4}"], {"regex": "[a-f]{4}"}),
    (["--json-schema", '{"enum": ["a", "b"]}'], {"json": {"enum": ["a", "b"]}}),
    (["--json-schema", "@schema.json"], {"json": {"enum": ["a", "b"]}}),
    (["--grammar", "@letters.gbnf"], {"grammar": 'root ::= "a" | "bb"'}),
    (["--json-object"], {"json_object": True}),
]


@pytest.mark.parametrize(("told", "form"), FORMS, ids=lambda one: " ".join(one)[:30])
def test_the_answer_has_the_form_that_was_told(
    peagle: Run, smollm2: LLM, tmp_path: Path, told: list[str], form: dict[str, Any]
) -> None:
    options = [one.replace("@", f"{tmp_path}/") for one in told]
    (tmp_path / "schema.json").write_text('{"enum": ["a", "b"]}')
    (tmp_path / "letters.gbnf").write_text('root ::= "a" | "bb"')
    expected = smollm2.generate(PROMPT, SamplingParams(max_tokens=12, structured_outputs=form))[0]
    ran = peagle("generate", PROMPT, *options, "--max-tokens", "12", "--dtype", "bfloat16")
    assert (ran.code, ran.out) == (0, expected.text + "\n")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["--regex", "("], "structured_outputs.regex"),
        (["--json-schema", "{"], "structured_outputs.json"),
        (["--json-schema", "no-such-file.json"], "--json-schema"),
        (["--grammar", "no-such-file"], "--grammar"),
        (["--choice", ""], "choice"),
        (["--json-object", "--regex", "a"], "json_object and regex"),
    ],
)
def test_a_form_that_cannot_be_followed_is_named(peagle: Run, told: list[str], said: str) -> None:
    ran = peagle("generate", PROMPT, *told, "--max-tokens", "5")
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err
