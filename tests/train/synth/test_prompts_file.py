import json
from pathlib import Path
from typing import Any

import pytest

from peagle import LLM
from peagle.errors import InvalidRequestError
from peagle.train.synth.prompts_file import PromptsFile
from peagle.train.synth.scenario import Ask, Chain, Written
from peagle.train.synth.settings import AnswerSettings

USER = {"role": "user", "content": "Why is the sky blue?"}
ASSISTANT = {"role": "assistant", "content": "Because of scattering."}


def file_of(path: Path, llm: LLM, *lines: dict[str, Any], **settings: Any) -> PromptsFile:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return PromptsFile(llm, AnswerSettings(**settings), path)


def played(file: PromptsFile, number: int, answer: list[int]) -> tuple[Ask | None, list[Chain]]:
    """Play a scenario; give what it asked for, and what came of it."""
    scenario = file.scenario(number)
    assert scenario is not None
    ask = None
    try:
        ask = next(scenario)
        scenario.send(Written(answer, "", ended=True))
    except StopIteration as ended:
        return ask, ended.value
    raise AssertionError("a line is asked about once")


def test_prompts_are_read_as_the_endpoint_reads_them(tmp_path: Path, smollm2: LLM) -> None:
    file = file_of(
        tmp_path / "p.jsonl",
        smollm2,
        {"prompt": "Hi.", "id": 4, "category": "chat", "max_tokens": 9},
        {"messages": [USER, ASSISTANT, {"role": "user", "content": "Really?"}]},
        {"prompt_token_ids": [5, 6, 7]},
        max_tokens=30,
    )
    assert file.total == 3
    expected = (
        (smollm2.encode("Hi."), 9, "chat"),
        (smollm2.encode([USER, ASSISTANT, {"role": "user", "content": "Really?"}]), 30, "all"),
        ([5, 6, 7], 30, "all"),
    )
    for number, (prompt, max_tokens, category) in enumerate(expected):
        ask, [[conversation]] = played(file, number, [8, 2])
        assert ask is not None
        assert list(ask.prompt_ids) == list(conversation.prompt) == prompt
        assert ask.params.max_tokens == max_tokens
        assert ask.params.greedy
        assert list(conversation.response) == [8, 2]
        assert conversation.category == category
    assert file.scenario(3) is None


def test_responses_that_are_given_are_used_as_they_are(tmp_path: Path, smollm2: LLM) -> None:
    end = smollm2.tokenizer.eos_token_id
    text = smollm2.tokenizer.encode(ASSISTANT["content"])
    loop = [11, 12] * 60
    file = file_of(
        tmp_path / "p.jsonl",
        smollm2,
        {"messages": [USER], "response": ASSISTANT["content"]},
        {"messages": [USER, ASSISTANT], "category": "logged"},
        {"prompt": USER["content"], "response": "Because."},
        {"prompt_token_ids": [5, 6], "response_token_ids": loop},
    )
    # The second line says the same as the first.
    assert file.dropped == {"same prompt": 1}
    assert file.total == 3
    prompt = smollm2.encode([USER])
    for number, (asked, answered) in enumerate(
        (
            (prompt, [*text, end]),
            (prompt, [*smollm2.tokenizer.encode("Because."), end]),
            ([5, 6], loop),
        )
    ):
        ask, [[conversation]] = played(file, number, [])
        assert ask is None
        assert (list(conversation.prompt), list(conversation.response)) == (asked, answered)


def test_repeated_and_overlong_prompts_are_left_out_and_counted(
    tmp_path: Path, smollm2: LLM
) -> None:
    long = [5] * smollm2.context_length
    file = file_of(
        tmp_path / "p.jsonl",
        smollm2,
        {"prompt": "Hi."},
        {"messages": [{"role": "user", "content": "Hi."}]},
        {"prompt_token_ids": long},
        {"prompt_token_ids": long, "response_token_ids": [1]},
    )
    assert file.dropped == {"same prompt": 1, "prompt too long": 1}
    assert file.total == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: it is not valid JSON"),
        ("[]", "line 3: Input should be"),
        ("{}", "line 3: it needs one of prompt, messages and prompt_token_ids"),
        ('{"prompt": ""}', "line 3: prompt: String should have at least 1"),
        ('{"prompt": "a", "messages": []}', "line 3: messages: List should have at least 1"),
        ('{"prompt": "a", "prompt_token_ids": [1]}', "line 3: it needs one of"),
        ('{"prompt": "a", "respones": "b"}', "line 3: respones: Extra inputs"),
        ('{"prompt": "a", "response": "b", "response_token_ids": [1]}', "more than one response"),
        ('{"prompt_token_ids": [1.5]}', "line 3: prompt_token_ids.0"),
        ('{"prompt_token_ids": [49152]}', "line 3: prompt_token_ids holds 49152"),
        ('{"prompt_token_ids": [1], "response_token_ids": [-1]}', "line 3"),
        ('{"messages": [{"content": "a"}]}', "line 3: messages[0].role is None"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 3"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, smollm2: LLM, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "Hi."}\n\n' + line + "\n")
    with pytest.raises(InvalidRequestError) as raised:
        PromptsFile(smollm2, AnswerSettings(), path)
    assert f"{path}, line 3: " in raised.value.problem
    assert message in raised.value.problem


def test_missing_and_empty_files_are_refused(tmp_path: Path, smollm2: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        PromptsFile(smollm2, AnswerSettings(), tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InvalidRequestError, match="holds no prompts"):
        PromptsFile(smollm2, AnswerSettings(), tmp_path / "empty")
