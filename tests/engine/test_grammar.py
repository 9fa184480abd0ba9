"""What a grammar allows after a path, whatever was asked before."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle import LLM
from peagle.engine.grammar import Grammar, GrammarCompiler
from peagle.errors import InvalidRequestError
from peagle.model.tokenizer import Tokenizer
from peagle.structured_outputs import StructuredOutputs
from tests.model.test_tokenizer import write_sentence_piece

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "sizes": {"type": "array", "items": {"enum": [1, 12]}},
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
PERSON = '{"name": "Zoë 🐝 \\"B\\"", "sizes": [1, 12,\n 1]}'


@pytest.fixture(scope="module")
def tokenizer(smollm2: LLM) -> Tokenizer:
    return smollm2.tokenizer


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    # A row of logits may be longer than the vocabulary.
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + 64, tokenizer.eos_token_ids)


def compiled(compiler: GrammarCompiler, **block: Any) -> Grammar:
    return compiler.compile(StructuredOutputs.parse(block))


def test_a_text_is_allowed_token_by_token(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = compiled(compiler, json=SCHEMA).begin()
    tokens = tokenizer.encode(PERSON)
    (eos,) = tokenizer.eos_token_ids
    for place, token in enumerate(tokens):
        mask = state.allowed()
        assert mask.shape == (tokenizer.vocab_size + 64,)
        assert mask.dtype == np.bool_
        assert mask[token]
        assert not mask[eos]
        assert not mask[tokenizer.vocab_size :].any()
        assert not mask[sorted(tokenizer.special_ids)].any()
        assert not state.complete(), tokens[:place]
        state.commit([token])
    assert state.complete()
    assert np.flatnonzero(state.allowed()).tolist() == [eos]


def test_what_is_allowed_depends_on_the_path_alone(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    tokens = tokenizer.encode(PERSON)
    grammar = compiled(compiler, json=SCHEMA)
    fresh = []
    for end in range(len(tokens) + 1):
        state = grammar.begin()
        state.commit(tokens[:end])
        fresh.append((state.allowed(), state.complete(), state.forced([], 8)))
    # Jump about in paths, ask for things that are forbidden, and commit now and then.
    chance = random.Random(4)
    wandering = grammar.begin()
    done = 0
    for _ in range(300):
        end = chance.randint(done, len(tokens))
        path = tokens[done:end]
        match chance.randrange(5):
            case 0:
                assert wandering.complete(path) == fresh[end][1]
            case 1:
                assert wandering.forced(path, 8) == fresh[end][2]
            case 2:
                wrong = chance.choice([token for token in range(1000) if not fresh[end][0][token]])
                assert not wandering.accepts([*path, wrong])
            case 3 if chance.random() < 0.2:
                wandering.allowed(path)
                wandering.commit(path)
                done = end
            case _:
                np.testing.assert_array_equal(wandering.allowed(path), fresh[end][0])
    assert done > 5


def test_forced_text_is_spelt(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    def spelt(before: str, **block: Any) -> str:
        state = compiled(compiler, **block).begin()
        state.commit(tokenizer.encode(before))
        forced = state.forced([], 8)
        for place, token in enumerate(forced):
            assert state.allowed(forced[:place])[token]
        return tokenizer.decode(forced)

    assert spelt("", json=SCHEMA, disable_any_whitespace=True) == '{"name":"'
    assert spelt('{"', json=SCHEMA).startswith('name"')
    assert spelt("I say", choice=["I say yes, A", "I say yes, B"]) == " yes,"
    assert spelt("", choice=["a", "b"]) == ""
    assert spelt("yes", choice=["yes"]) == ""
    assert spelt("", regex="x{1000}") == "x" * 32


def test_grammars_that_never_end_do_not_hang(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    # The first part takes every x, so the second never comes.
    state = compiled(compiler, grammar="%llguidance {}\nstart: /x+/ /x+/").begin()
    for _ in range(3):
        state.commit(state.forced([], 2))
        assert [tokenizer.token_bytes(token)[:1] for token in np.flatnonzero(state.allowed())] == (
            [b"x"] * int(state.allowed().sum())
        )
    assert not state.complete()


def test_every_way_to_cut_the_text_is_allowed(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = compiled(compiler, choice=["name"]).begin()
    spelt = {tokenizer.token_bytes(token) for token in np.flatnonzero(state.allowed())}
    assert spelt == {b"n", b"na", b"nam", b"name"}


def test_an_end_may_come_where_the_text_could_go_on(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = compiled(compiler, regex="ab*").begin()
    (eos,) = tokenizer.eos_token_ids
    state.commit(tokenizer.encode("a"))
    assert state.allowed()[eos]
    assert not state.complete()
    assert state.complete([eos])
    assert not state.accepts([eos, eos])
    assert state.accepts(tokenizer.encode("b"))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "phi3"])
def test_sentence_piece_vocabularies_follow_grammars(tmp_path: Path, architecture: str) -> None:
    file = write_sentence_piece(tmp_path / "vocabulary.gguf", architecture)
    tokenizer = Tokenizer.from_gguf(file)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    state = compiled(compiler, regex="( the )?[a-zé🐝 ]+").begin()
    for token in tokenizer.encode("the café 🐝 be"):
        assert state.allowed()[token], tokenizer.piece(token)
        state.commit([token])
    assert set(np.flatnonzero(state.allowed())) >= tokenizer.eos_token_ids
    forced = compiled(compiler, choice=["the café"]).begin().forced([], 20)
    assert b"".join(map(tokenizer.token_bytes, forced)) == "the café".encode()


def test_a_branch_looks_ahead_and_leaves_no_trace(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    tokens = tokenizer.encode(PERSON)
    state = compiled(compiler, json=SCHEMA).begin()
    state.commit(tokens[:3])
    before = state.allowed().copy()
    ahead = state.branch()
    ahead.commit(tokens[3:9])
    assert ahead.allowed()[tokens[9]]
    with pytest.raises(InvalidRequestError):
        ahead.allowed(tokens[:1])
    np.testing.assert_array_equal(state.allowed(), before)
    assert state.accepts(tokens[3:])
    assert state.complete(tokens[3:])
    np.testing.assert_array_equal(state.branch().allowed(), before)


def test_a_broken_path_is_an_error(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = compiled(compiler, regex="ab").begin()
    with pytest.raises(InvalidRequestError) as raised:
        state.allowed(tokenizer.encode("c"))
    assert raised.value.field == "structured_outputs"
    assert state.allowed(tokenizer.encode("a")).any()


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"json": "{"}, "Expecting"),
        ({"json": "[1]"}, "a JSON schema is an object"),
        ({"json": {"type": "strin"}}, "strin"),
        ({"json": {"type": "string", "minLength": 3, "maxLength": 2}}, "Unsatisfiable"),
        ({"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "incompatible types"),
        ({"json": {"not": {"type": "object"}}}, "Unimplemented"),
        ({"json": {"$ref": "#/$defs/none"}}, "does not exist"),
        ({"json": {"$ref": "https://example.com/schema"}}, "example.com"),
        ({"json": {"type": "string", "pattern": "("}}, "regex"),
        ({"json_object": True, "whitespace_pattern": "("}, "regex"),
        ({"regex": "("}, "unclosed group"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"regex": r"[^\x00-\x{10FFFF}]"}, "no text can meet it"),
        ({"grammar": "nonsense"}, "GBNF"),
        ({"grammar": 'root ::= "a" | other'}, "other"),
        ({"grammar": "root ::= root"}, "no text can meet it"),
        ({"grammar": "start: other"}, "other"),
        ({"grammar": '%llguidance {"no_forcing": false}\nstart: "a"'}, "settings"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    compiler: GrammarCompiler, block: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        compiled(compiler, **block)
    (kind,) = set(block) - {"whitespace_pattern"}
    assert raised.value.field == f"structured_outputs.{kind}"
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("depth", [50, 200, 5000])
def test_deep_schemas_are_compiled_or_refused(compiler: GrammarCompiler, depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    if depth == 50:
        assert compiled(compiler, json=schema).begin().allowed().any()
    else:
        with pytest.raises(InvalidRequestError, match="recursion"):
            compiled(compiler, json=schema)
