import copy
import enum
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from peagle.catalog import resolve
from peagle.errors import CheckpointError, InvalidRequestError, PeagleError, UnsupportedError
from peagle.model import chat_template
from peagle.model.chat_template import ChatTemplate
from peagle.model.tokenizer import Tokenizer

ALTERNATING = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate.\\nStart with user.') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system ~ '\\n\\n' if system is defined and loop.first else '') }}
        {{- message.content + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""
TOOLS = """{%- set ns = namespace(calls=0) %}
{%- macro header(role) %}<|{{ role }}|>{% endmacro %}
{% if tools is not none and tools %}
{{ header('system') }}
{% for tool in tools %}
{{ tool | tojson(indent=2) }}
{% endfor %}
{% endif %}
{% if documents is defined and documents %}docs{% endif %}
{% for message in messages if message.role != 'hidden' %}
{{ header(message.role) }}
{% if message.reasoning_content is defined %}<{{ message.reasoning_content }}>{% endif %}
{% if message.role == 'assistant' %}
    {% generation %}
{{ message.content if message.content is defined else '' }}
    {% endgeneration %}
    {% for call in message.tool_calls or [] %}
        {% set ns.calls = ns.calls + 1 %}
{{ ns.calls }}:{{ call.function.name }}({{ call.function.arguments | tojson }})
    {% endfor %}
{% else %}
{{ message.content }}{{ ' by ' ~ message.name if message.name }}
{% endif %}
{% if message.content == 'stop here' %}{% break %}{% endif %}
{% endfor %}
{% if enable_thinking is defined and not enable_thinking %}<no_think>{% endif %}
{% if add_generation_prompt %}{{ header('assistant') }}{% endif %}"""

TOOL = {
    "type": "function",
    "function": {
        "name": "clima",
        "description": "¿Qué tiempo hace? <b>",
        "parameters": {"type": "object", "properties": {"lugar": {"type": "string"}}},
    },
}
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "user", "content": ""}],
    [
        {"role": "system", "content": "  Be brief. "},
        {"role": "user", "content": "¿Qué tal? 👩‍👩‍👧"},
    ],
    [
        {"role": "system", "content": "Du bist höflich."},
        {"role": "user", "content": "a\n\n b\t"},
        {"role": "assistant", "content": " c "},
        {"role": "user", "content": "<|im_end|> {{ messages }} {% raw %}"},
        {"role": "assistant", "content": "语言"},
        {"role": "user", "content": "x" * 3000},
    ],
    [
        {"role": "user", "content": "clima?", "name": "Ana"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "look it up",
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "clima", "arguments": {"lugar": "Perú", "n": 1.5}},
                }
            ],
        },
        {"role": "tool", "content": '{"t": 21}', "tool_call_id": "1"},
        {"role": "hidden", "content": "no"},
        {"role": "assistant", "content": "stop here", "thinking": "done"},
        {"role": "user", "content": "never shown"},
    ],
)
USER: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(resolve("smollm2").files)


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    core = Core(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


def transformers_text(
    reference: PreTrainedTokenizerFast, template: str, messages: Any, **more: Any
) -> str:
    text = reference.apply_chat_template(
        copy.deepcopy(messages), chat_template=template, tokenize=False, **more
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("messages", CONVERSATIONS[:4])
def test_smollm2_text_equals_transformers(
    smollm2: Tokenizer,
    reference: PreTrainedTokenizerFast,
    messages: list[dict[str, Any]],
    prompted: bool,
) -> None:
    assert smollm2.chat_template is not None
    text = ChatTemplate.of(smollm2).render(messages, add_generation_prompt=prompted)
    assert text == transformers_text(
        reference, smollm2.chat_template, messages, add_generation_prompt=prompted
    )
    assert text.endswith("<|im_start|>assistant\n") is prompted


def test_smollm2_gets_its_default_system_message(smollm2: Tokenizer) -> None:
    assert ChatTemplate.of(smollm2).render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("messages", CONVERSATIONS[:4])
def test_alternating_template_equals_transformers(
    reference: PreTrainedTokenizerFast, messages: list[dict[str, Any]]
) -> None:
    text = ChatTemplate(ALTERNATING, "<s>", "</s>").render(messages)
    assert text == transformers_text(reference, ALTERNATING, messages, add_generation_prompt=True)
    assert text.startswith("<s>[INST] ")


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}, {"tools": [], "enable_thinking": False}])
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_template_with_tools_equals_transformers(
    reference: PreTrainedTokenizerFast, messages: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    text = ChatTemplate(TOOLS).render(messages, **more)
    assert text == transformers_text(reference, TOOLS, messages, add_generation_prompt=True, **more)
    assert "never shown" not in text


@settings(max_examples=200, deadline=None)
@given(
    contents=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\n \t{}%|<>"))
    ).filter(bool)
)
def test_any_contents_equal_transformers(
    reference: PreTrainedTokenizerFast, contents: list[str]
) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    text = ChatTemplate(ALTERNATING, "<s>", "</s>").render(messages)
    assert text == transformers_text(reference, ALTERNATING, messages, add_generation_prompt=True)


def test_date_is_todays_in_the_wanted_layout() -> None:
    text = ChatTemplate("{{ strftime_now('%Y-%m-%dT%%') }}").render(USER)
    assert len(text) == 12
    assert text[:2] == "20"
    assert text.endswith("T%")


def test_missing_tokens_are_undefined_in_the_template() -> None:
    source = "{{ bos_token is defined }} {{ eos_token is defined }}"
    assert ChatTemplate(source).render(USER) == "False False"
    assert ChatTemplate(source, None, "</s>").render(USER) == "False True"


def test_variables_set_within_a_generation_block_stay_inside(
    reference: PreTrainedTokenizerFast,
) -> None:
    source = "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"
    assert ChatTemplate(source).render(USER) == "21"
    assert transformers_text(reference, source, USER) == "21"


def test_text_parts_are_joined_by_line_breaks(smollm2: Tokenizer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    template = ChatTemplate.of(smollm2)
    assert template.render([{"role": "user", "content": parts}]) == template.render(
        [{"role": "user", "content": "one\ntwo"}]
    )
    assert template.render([{"role": "user", "content": []}]) == template.render(
        [{"role": "user", "content": ""}]
    )


def test_messages_stay_as_they_were() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}], "reasoning": "b"}]
    before = copy.deepcopy(messages)
    ChatTemplate("{{ messages[0].reasoning_content }}").render(messages)
    assert messages == before


def test_enumerations_are_shown_by_their_value() -> None:
    class Role(str, enum.Enum):  # noqa: UP042 - what callers on older Pythons send
        USER = "user"

    text = ChatTemplate("{{ messages[0].role }}").render([{"role": Role.USER, "content": ""}])
    assert text == "user"


def test_one_template_serves_several_threads() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }},{% endfor %}")
    told: dict[int, str] = {}

    def render(number: int) -> None:
        told[number] = template.render([{"role": "user", "content": str(number)}] * 200)

    threads = [threading.Thread(target=render, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {number: f"{number}," * 200 for number in range(8)}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages is empty"),
        ("Hi", "messages must be a list"),
        ({"role": "user", "content": "Hi"}, "messages must be a list"),
        (["Hi"], r"messages\[0\] is no object"),
        ([*USER, {"content": "Hi"}], r"messages\[1\]\.role is None"),
        ([{"role": 3, "content": "Hi"}], r"messages\[0\]\.role is 3"),
        ([{"role": "", "content": "Hi"}], r"messages\[0\]\.role is ''"),
        ([{"role": "user"}], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content is of type int"),
        ([{"role": "user", "content": ["Hi"]}], r"content\[0\] has no type"),
        ([{"role": "user", "content": [{"text": "Hi"}]}], r"content\[0\] has no type"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text is None"),
        ([{"role": "user", "content": "Hi", "x": {"y": [b"z"]}}], r"messages\[0\]\.x\.y\[0\]"),
    ],
)
def test_malformed_messages_are_named(messages: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as found:
        ChatTemplate("{{ messages }}").render(messages)
    assert found.value.field == "messages"


def test_endlessly_nested_messages_are_refused() -> None:
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        ChatTemplate("x").render([{"role": "user", "content": "Hi", "x": nested}])


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "image"])
def test_parts_other_than_text_are_unsupported(kind: str) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": kind, kind: {"url": "data:"}}]
    with pytest.raises(UnsupportedError, match=rf"messages\[0\]\.content\[1\].*'{kind}'"):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": parts}])


def test_a_templates_own_refusal_is_passed_on_in_one_line() -> None:
    messages = [{"role": "assistant", "content": "Hi"}]
    with pytest.raises(
        InvalidRequestError, match=r"Roles must alternate\. Start with user"
    ) as found:
        ChatTemplate(ALTERNATING).render(messages)
    assert "\n" not in str(found.value)


def test_a_key_that_the_template_wants_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="no attribute 'tool_calls'"):
        ChatTemplate("{{ messages[0]['tool_calls'][0] }}").render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ (messages|attr('__class__')).__name__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 9 ** 9 ** 9 }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(CheckpointError) as found:
        ChatTemplate(source).render(USER)
    assert found.value.field == "chat_template"
    assert "\n" not in str(found.value)


def test_what_the_sandbox_hides_is_empty() -> None:
    hidden = "{{ messages.__class__ }}{{ ''|attr('__class__') }}{{ messages[0]['__init__'] }}"
    assert ChatTemplate(f"<{hidden}>").render(USER) == "<>"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) if range(9999)|sum == i %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    ],
)
def test_endless_templates_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.3)
    with pytest.raises(CheckpointError, match=r"longer than 0\.3 seconds"):
        ChatTemplate(source).render(USER)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% if %}", r"\(line 1\)"),
        ("a\n{% endfor %}", r"\(line 2\)"),
        ("{% nosuchtag %}", "nosuchtag"),
        ("{{ x | nosuchfilter }}", "nosuchfilter"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion"),
    ],
)
def test_broken_templates_are_refused_when_loaded(source: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        ChatTemplate(source)


def test_a_model_without_a_template_takes_no_messages(tmp_path: Path) -> None:
    core = Core(models.BPE(vocab={"a": 0}, merges=[]))
    core.decoder = decoders.ByteLevel()
    core.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InvalidRequestError, match="no chat template") as found:
        ChatTemplate.of(Tokenizer.from_folder(tmp_path))
    assert isinstance(found.value, PeagleError)
    assert "plain prompt" in found.value.remedy
