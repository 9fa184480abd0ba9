"""Conversations to the text a model was trained on, through the model's own Jinja template.

Filters, globals and settings are those with which `transformers` renders templates, so the text is
the same. A template is code from a stranger: it runs in Jinja's sandbox, sees nothing but copies of
JSON values, and its loops and macros are stopped when they go on for too long.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Self

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from peagle.errors import CheckpointError, InvalidRequestError, PeagleError, UnsupportedError
from peagle.model.tokenizer import Tokenizer
from peagle.model.tool_calls import ToolFormat, tool_format

# Longest rendering, in seconds; thousands of messages take a tenth of one.
MAX_SECONDS: Final = 5.0
# Largest string or list that a multiplication may make, and largest exponent.
_MAX_PRODUCT: Final = 1_000_000
_MAX_EXPONENT: Final = 64
_SHOWN_ERROR_CHARACTERS: Final = 200
# Names under which reasoning is sent; the first is the one that templates read.
_REASONING_KEYS: Final = ("reasoning_content", "thinking", "reasoning")

_deadline: ContextVar[float] = ContextVar("deadline")


class ChatTemplate:
    """A model's template for conversations.

    Args:
        template: The Jinja source.
        bos_token: What the template sees as `bos_token`; None leaves it undefined.
        eos_token: What the template sees as `eos_token`; None leaves it undefined.

    Attributes:
        tool_format: How the model writes calls of functions; None where it does not.

    Raises:
        CheckpointError: The source is no valid template.
    """

    def __init__(
        self, template: str, bos_token: str | None = None, eos_token: str | None = None
    ) -> None:
        self._tokens = {
            name: token
            for name, token in (("bos_token", bos_token), ("eos_token", eos_token))
            if token is not None
        }
        self.tool_format: ToolFormat | None = tool_format(template)
        environment = _Sandbox()
        try:
            source = environment.parse(template)
            _watch(source, environment)
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise _bad_template(f"{error.message} (line {error.lineno})") from None
        except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _bad_template(_one_line(error)) from None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Take the template that a model came with.

        Raises:
            InvalidRequestError: The model has none.
            CheckpointError: Its template is not valid.
        """
        if tokenizer.chat_template is None:
            raise InvalidRequestError(
                "The model has no chat template, so it cannot take messages.",
                remedy="Send a plain prompt, or use a model that was trained for chat.",
                field="messages",
            )
        return cls(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """Write a conversation as the model was trained to read it.

        Args:
            messages: Each with `role` and `content`; `content` is text, or a list of text parts
                that are joined by line breaks. Other keys are handed to the template.
            add_generation_prompt: End with the beginning of the assistant's next message.
            tools: JSON schemas of functions that the model may call.
            extra: Further variables that the template knows, such as `enable_thinking`.

        Returns:
            Text for `Tokenizer.encode`, which turns the special tokens in it into their ids.

        Raises:
            InvalidRequestError: The messages are malformed, or the template refuses them.
            UnsupportedError: A message holds something else than text.
            CheckpointError: The template does what it must not, or takes too long.
        """
        try:
            variables = {
                **self._tokens,
                "documents": None,
                **_plain(extra, "chat template variables"),
                "messages": _checked(messages),
                "tools": None if tools is None else _plain(tools, "tools"),
                "add_generation_prompt": add_generation_prompt,
            }
        except RecursionError:
            raise _malformed("messages", "is nested too deeply", "Send flatter objects.") from None
        before = _deadline.set(time.monotonic() + MAX_SECONDS)
        try:
            return self._template.render(variables)
        except (SecurityError, OverflowError, RecursionError, MemoryError) as error:
            raise _bad_template(_one_line(error)) from None
        except Exception as error:  # whatever a stranger's code runs into
            raise InvalidRequestError(
                f"The model's chat template cannot write these messages: {_one_line(error)}.",
                remedy="Change the order, roles or keys of the messages to what the model knows.",
                field="messages",
            ) from None
        finally:
            _deadline.reset(before)


class _Watch(Extension):
    """Gives templates a call that ends them when they go on for too long."""

    def in_time(self) -> bool:
        if time.monotonic() > _deadline.get():
            raise SecurityError(f"it takes longer than {MAX_SECONDS:g} seconds")
        return True


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote; the text stays as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's extensions are declared so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, as in transformers: variables set inside stay inside.
        return nodes.CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

    def written(self, caller: Macro) -> str:
        return caller()


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with products and powers kept to a size that can be computed."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Watch, _GenerationTag, loopcontrols],
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]  # writes as much placeholder text as asked for

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(right) > _MAX_EXPONENT or abs(left) > _MAX_PRODUCT):
            raise SecurityError("it computes a power that is too large")
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                sized = isinstance(many, (str, list, tuple)) and isinstance(times, int)
                if sized and len(many) * times > _MAX_PRODUCT:
                    raise SecurityError("it repeats a value too often")
        return super().call_binop(context, operator, left, right)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _watch(template: nodes.Template, environment: _Sandbox) -> None:
    """Look at the clock in each body that may run again."""
    watch = environment.extensions[_Watch.identifier]
    repeated: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
        *template.find_all(nodes.For),
        *template.find_all(nodes.Macro),
        *template.find_all(nodes.CallBlock),
    ]
    for node in repeated:
        call = watch.call_method("in_time", lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(call, node.test).set_lineno(node.lineno)


def _checked(messages: object) -> list[dict[str, Any]]:
    if not isinstance(messages, (list, tuple)):
        raise _malformed("messages", "must be a list", "Give a list of objects with role, content.")
    if not messages:
        raise _malformed("messages", "is empty", "Give at least one message.")
    return [_checked_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _checked_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _malformed(where, "is no object", 'Write it like {"role": "user", "content": "Hi"}.')
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise _malformed(
            f"{where}.role", f"is {role!r}", 'Give a string such as "user", "assistant", "system".'
        )
    if content is None and not message.get("tool_calls"):
        raise _malformed(f"{where}.content", "is missing", "Give the text of the message.")
    # Keys without a value are left out, and reasoning is given under the names that templates
    # read, as transformers does.
    told = {key: value for key, value in message.items() if value is not None}
    if content is not None:
        told["content"] = _text(content, f"{where}.content")
    reasoning = next((told[key] for key in _REASONING_KEYS if key in told), None)
    if reasoning is not None:
        told = {"thinking": reasoning, **told, "reasoning_content": reasoning}
    plain: dict[str, Any] = _plain(told, where)
    return plain


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise _malformed(where, f"is of type {type(content).__name__}", "Give text.")
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise _malformed(where, "has no type", 'Write it like {"type": "text", "text": "Hi"}.')
    if kind != "text":
        raise UnsupportedError(
            f"{where} is of type {kind!r}; this model reads text only.",
            remedy='Send parts of type "text" only.',
            field="messages",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise _malformed(f"{where}.text", f"is {text!r}", "Give a string.")
    return text


def _plain(value: Any, where: str) -> Any:
    """Copy JSON values, so that a template can neither reach objects nor change the caller's."""
    if value is None or isinstance(value, bool):
        return value
    # Subclasses, such as enumerations, are brought back to the value that they are.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key, where): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise _malformed(where, f"is of type {type(value).__name__}", "Give values that JSON knows.")


def _one_line(error: BaseException) -> str:
    line = (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
    return line if len(line) <= _SHOWN_ERROR_CHARACTERS else line[:_SHOWN_ERROR_CHARACTERS] + "…"


def _malformed(where: str, what: str, remedy: str) -> PeagleError:
    return InvalidRequestError(f"{where} {what}.", remedy=remedy, field="messages")


def _bad_template(what: str) -> CheckpointError:
    return CheckpointError(
        f"The model's chat template cannot be used: {what}.",
        remedy="Use another version of the model, or send plain prompts.",
        field="chat_template",
    )
