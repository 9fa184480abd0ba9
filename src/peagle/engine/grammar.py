"""Grammars: which tokens may come next, so that an answer gets the form that was asked for.

llguidance parses grammars and computes masks. It follows a path of tokens and can take them back,
so an answer keeps one matcher and walks it along the candidate tree.
"""

import json
import re
import threading
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray

from peagle.errors import InvalidRequestError
from peagle.model.tokenizer import Tokenizer
from peagle.structured_outputs import StructuredOutputs

_SHOWN_ERROR_CHARACTERS: Final = 200
_FEW: Final = 16

# Every way to cut allowed text into tokens is allowed. Otherwise llguidance looks for text that is
# forced, without end where a grammar can never be completed: /x+/ /x+/, whose first part takes all.
_UNFORCED: Final = '%llguidance {"no_forcing": true}\n'

# Verbose errors would quote the answer.
_LIMITS: Final = LLParserLimits(verbose_errors=False)


class GrammarState:
    """Where one answer is in its grammar.

    Paths are draft tokens behind the output so far. What is said about a path depends on the
    grammar, the output and the path alone.

    Args:
        matcher: A fresh matcher, of which nothing else holds a reference.
        tokenizer: The vocabulary as llguidance knows it.
        vocab_size: Length of a row of logits.
    """

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer, vocab_size: int) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ahead: list[int] = []  # Tokens behind the output that the matcher has read.
        self._masks: dict[tuple[int, ...], NDArray[np.bool_]] = {}

    def branch(self) -> "GrammarState":
        """Give a copy to look ahead with: what fails there leaves this one as it is.

        Masks found there are known here, too.
        """
        copy = GrammarState(self._matcher.deep_copy(), self._tokenizer, self._vocab_size)
        copy._ahead = list(self._ahead)
        copy._masks = self._masks
        return copy

    def allowed(self, path: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Tell which tokens may follow output and path, as `[vocab]`, true where allowed.

        Raises:
            InvalidRequestError: The path breaks the grammar, or the grammar is too complex here.
        """
        place = tuple(path)
        if place in self._masks:
            return self._masks[place]
        if not self.accepts(path):
            raise self._failure()
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._failure()
        flags = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        mask: NDArray[np.bool_] = flags.view(np.bool_)
        self._masks[place] = mask
        return mask

    def accepts(self, path: Sequence[int]) -> bool:
        """Whether the path may follow the output."""
        ahead = self._ahead
        common = 0
        while common < min(len(ahead), len(path)) and ahead[common] == path[common]:
            common += 1
        if common < len(ahead):
            self._matcher.rollback(len(ahead) - common)
            del ahead[common:]
        for token in path[common:]:
            # A finished matcher takes an end-of-sequence token without noting it.
            if self._matcher.is_stopped() or not self._matcher.try_consume_tokens([token]):
                return False
            ahead.append(token)
        return True

    def complete(self, path: Sequence[int] = ()) -> bool:
        """Whether nothing can be added to output and path."""
        return self.accepts(path) and self._matcher.is_stopped() and not self._matcher.is_error()

    def forced(self, path: Sequence[int], most: int) -> list[int]:
        """Give the tokens that follow where the grammar leaves one way on.

        Each is the longest allowed token, where all others are beginnings of it: the model may
        well cut the same text into other tokens.

        Args:
            path: A path that the grammar accepts.
            most: Most tokens.

        Raises:
            InvalidRequestError: The grammar is too complex here.
        """
        further = list(path)
        while len(further) < len(path) + most:
            token = self._only_way(further)
            if token is None:
                break
            further.append(token)
        return further[len(path) :]

    def _only_way(self, path: Sequence[int]) -> int | None:
        if not self.accepts(path) or self._matcher.is_stopped():
            return None
        allowed = np.flatnonzero(self.allowed(path))
        if allowed.size > _FEW:
            return None
        spelt = {self._tokenizer.decode_bytes([int(token)]): int(token) for token in allowed}
        longest = max(spelt, key=len, default=b"")
        return spelt[longest] if longest and all(map(longest.startswith, spelt)) else None

    def commit(self, tokens: Sequence[int]) -> None:
        """Take tokens that were emitted into the output."""
        self.accepts(tokens)
        self._ahead.clear()
        self._masks = {}  # A new one: a branch may share the old.

    def _failure(self) -> InvalidRequestError:
        told = _one_line(self._matcher.get_error()) or "its output was broken off"
        return InvalidRequestError(
            f"The grammar cannot be followed any further: {told}.",
            remedy="Simplify structured_outputs.",
            field="structured_outputs",
        )


class Grammar:
    """A compiled grammar; every answer begins at its own copy of the beginning."""

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer, vocab_size: int) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def begin(self) -> GrammarState:
        """Give the state of an answer of which nothing is written yet."""
        return GrammarState(self._matcher.deep_copy(), self._tokenizer, self._vocab_size)


class GrammarCompiler:
    """Compiles grammars for one vocabulary; any thread may ask it.

    Args:
        tokenizer: The model's vocabulary.
        vocab_size: Length of a row of logits.
        eos_ids: The model's end-of-sequence tokens, which may come where the grammar can end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._source = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    def compile(self, form: StructuredOutputs) -> Grammar:
        """Compile a grammar.

        Raises:
            InvalidRequestError: It is malformed, too large, asks for something that is not
                supported, or for something that no text can meet.
        """
        tokenizer = self._known_tokenizer()
        field = f"structured_outputs.{form.kind}"
        try:
            matcher = LLMatcher(tokenizer, _written(form), log_level=0, limits=_LIMITS)
        except (ValueError, RecursionError) as error:
            raise _refused(field, str(error)) from None
        if matcher.is_error():
            raise _refused(field, matcher.get_error())
        # A grammar whose rules never end compiles, but stops before its first token.
        trial = matcher.deep_copy()
        trial.compute_bitmask()
        if trial.is_error() or (trial.is_stopped() and not trial.is_accepting()):
            raise _refused(field, "no text can meet it")
        return Grammar(matcher, tokenizer, self._vocab_size)

    def _known_tokenizer(self) -> LLTokenizer:
        """Build llguidance's view of the vocabulary when it is first wanted: a quarter second."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = LLTokenizer(
                    self._source.as_json(),
                    n_vocab=max(self._vocab_size, self._source.vocab_size),
                    eos_token=self._eos_ids or None,
                )
            return self._tokenizer


def _written(form: StructuredOutputs) -> str:
    """Write a form in Lark's syntax, as llguidance has it.

    Raises:
        ValueError: It is malformed.
    """
    if form.kind in ("json", "json_object"):
        lark = f"start: %json {_schema(form)}"
    elif form.regex is not None:
        told = json.loads(LLMatcher.grammar_from_regex(form.regex))
        lark = told["grammars"][0]["lark_grammar"]
    elif form.choice is not None:
        lark = f"start: {' | '.join(map(json.dumps, form.choice))}"
    else:
        assert form.grammar is not None
        lark = _without_directives(form.grammar)
    return LLMatcher.grammar_from_lark(_UNFORCED + lark)


def _schema(form: StructuredOutputs) -> str:
    schema = {"type": "object"} if form.json_schema is None else form.json_schema
    if isinstance(schema, str):
        schema = json.loads(schema)
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema is an object")
    options: dict[str, str | bool] = {}
    if form.disable_any_whitespace:
        options["whitespace_flexible"] = False
    if form.whitespace_pattern is not None:
        options["whitespace_pattern"] = form.whitespace_pattern
    return json.dumps({**schema, "x-guidance": options})


def _without_directives(grammar: str) -> str:
    """Take a grammar in either syntax, as Lark's, without llguidance's settings."""
    if re.search(r"%llguidance\s*\{\s*[^\s}]", grammar):
        raise ValueError("settings of llguidance within a grammar are not supported")
    try:
        lark = any_to_lark(grammar)
    except Exception as error:  # the converter raises bare Exception
        raise ValueError(f"it is neither GBNF nor Lark: {error}") from None
    return re.sub(r"%llguidance\s*\{\s*\}", "", lark)


def _refused(field: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{field} cannot be used: {_one_line(reason)}.",
        remedy="Correct it, or ask for less; docs/serving.md says what is supported.",
        field=field,
    )


def _one_line(reason: str) -> str:
    line = " ".join(reason.split()).rstrip(".")
    return line if len(line) <= _SHOWN_ERROR_CHARACTERS else line[:_SHOWN_ERROR_CHARACTERS] + "…"
