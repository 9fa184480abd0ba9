import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from gguf import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from peagle.catalog import resolve
from peagle.catalog.gguf_header import read_gguf_header
from peagle.errors import (
    CheckpointError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)
from peagle.model.gguf_tokenizer import GGUFVocabulary
from peagle.model.tokenizer import Tokenizer

VARIED = (
    "",
    " ",
    "   \n\n\t  \n",
    "Hello, world!",
    "don't I'LL we've it'S",
    "def f(x: int) -> int:\n    return x ** 2  # cuadrado\n\n\nclass A:\n\tpass\n",
    "1234567890 3.14159 1,000,000 ½ Ⅷ ٣ 10\n\n1. one\n\n2. two",
    "El año pasado, ¿qué comió el niño? ¡Piñatas!",
    "语言模型可以同时预测多个标记。今天是星期三。",
    "\u0627\u0644\u0644\u063a\u0629 \u062a\u064f\u0643\u062a\u0628\u060c \u200f\u0645",  # Arabic
    "\u05e9\u05c1\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",  # Hebrew
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇪🇸 e\u0301 \u212b",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<|im_end|><|im_end|> <|im_end |> <|IM_END|> <repo_name>x<file_sep>",
    "NUL\x00 bell\x07 escape\x1b[0m del\x7f c1\x85 bom\ufeff zero\u200b nbsp\xa0",
    "\r\n\r\n  trailing   \r",
    "\U0010ffff\ufffd\ufffe",
    "a" * 300 + " " * 300 + "\n" * 50,
)
UNICODE = st.lists(st.text(max_size=12) | st.sampled_from(VARIED[1:-1]), max_size=5).map("".join)

BYTE_ALPHABET = tuple(pre_tokenizers.ByteLevel.alphabet())

# A SentencePiece BPE vocabulary trained on a few lines with byte fallback: unknown, two control
# tokens, 256 bytes, then these pieces with the scores 0, -1, -2, and so on.
PIECES = tuple(
    """
he ▁s ▁t at ▁the aa re ll ▁she an ▁a ▁e lls ▁se ▁c ▁he as st ▁b ▁h ▁i ▁o ▁x ▁aa ▁are ▁cat ▁sea
▁shells iñ la rn tu ▁m ▁n ana hat llo stá ▁el ▁la ▁on ▁re turn ▁ban ▁niñ ▁aaaa ▁está ▁that ▁hello
▁sells ▁there ▁return == ac ad añ ee es et fi ho ou ow se ño ▁+ ▁- ▁ a e t s h l n r o . i , c ñ 1
b u w x : = f m á + - ; ? d g p y í
""".split()  # noqa: SIM905 - a list of a hundred strings is hard to read
)
# What sentencepiece 0.2 makes of them.
SENTENCE_PIECE_IDS = {
    "hello there": [307, 309],
    "the cat sat": [263, 284, 260, 262],
    " two  spaces ": [326, 261, 344, 335, 326, 260, 357, 312, 316, 326],
    "   ": [326, 326, 326, 326],
    "": [],
    "año 12": [269, 323, 326, 341, 53],
    "the 日本 mat": [263, 326, 233, 154, 168, 233, 159, 175, 291, 262],
    "aaaaaaaaaaa bananana": [304, 264, 264, 264, 327, 302, 268, 293],
    "line\nbreak\ttab": [326, 332, 337, 333, 328, 13, 342, 265, 327, 110, 12, 329, 327, 342],
    "👍🏽 ok": [326, 243, 162, 148, 144, 243, 162, 146, 192, 280, 110],
    "x\x00y": [281, 3, 358],
    "she sells seashells": [267, 308, 272, 275, 259, 271],
}


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(resolve("smollm2").files)


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    """Transformers' reading of the same file, with SmolLM2's pre-tokeniser.

    Transformers does not know the GGUF pre-tokeniser "smollm" and would split like GPT-2; the
    model's own tokenizer.json first sets digits apart.
    """
    file = resolve("smollm2").files
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    return tokenizer


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a GGUF file with a byte-level vocabulary and nothing else."""

    def make(
        *,
        extra: tuple[tuple[str, TokenType], ...] = (),
        merges: tuple[str, ...] = (),
        model: str = "gpt2",
        pre: str | None = "gpt-2",
        **settings: Any,
    ) -> Path:
        file = tmp_path / "vocabulary.gguf"
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_tokenizer_model(model)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        merged = [merge.replace(" ", "") for merge in merges]
        writer.add_token_list([*BYTE_ALPHABET, *merged, *(token for token, _ in extra)])
        writer.add_token_types(
            [TokenType.NORMAL] * (len(BYTE_ALPHABET) + len(merged)) + [kind for _, kind in extra]
        )
        if merges:
            writer.add_token_merges(list(merges))
        for key, value in settings.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(f"tokenizer.ggml.{key}", value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return file

    return make


def write_sentence_piece(file: Path, architecture: str = "llama", **settings: bool) -> Path:
    writer = gguf.GGUFWriter(file, architecture)
    # By this name llama.cpp knows whose special tokens swallow white space.
    writer.add_name("Phi-3" if architecture == "phi3" else "other")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(
        [
            *("<unk>", "<s>", "</s>"),
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *PIECES,
            *("[INST]", "<|endoftext|>", "<end_of_turn>"),
        ]
    )
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(PIECES))] + [0.0] * 3)
    writer.add_token_types(
        [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        + [TokenType.BYTE] * 256
        + [TokenType.NORMAL] * len(PIECES)
        + [TokenType.CONTROL] * 3
    )
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in settings.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("sentence_piece")
    return Tokenizer.from_gguf(write_sentence_piece(folder / "vocabulary.gguf"))


def write_folder(folder: Path, core: tokenizers.Tokenizer, **files: Any) -> Path:
    core.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def small_core() -> tokenizers.Tokenizer:
    vocabulary = {token: i for i, token in enumerate([*BYTE_ALPHABET, "<s>", "</s>", "<|end|>"])}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>", "<|end|>"])
    return core


def pieces(core: tokenizers.Tokenizer, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in core.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("text", VARIED)
def test_ids_of_varied_text_equal_transformers(
    smollm2: Tokenizer, reference: PreTrainedTokenizerFast, text: str
) -> None:
    ids = reference.encode(text, add_special_tokens=False)
    assert smollm2.encode(text) == ids
    assert smollm2.encode_prompt(text) == reference(text).input_ids
    assert smollm2.decode(ids) == reference.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert smollm2.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=300, deadline=None)
@given(text=UNICODE)
def test_ids_of_any_text_equal_transformers(
    smollm2: Tokenizer, reference: PreTrainedTokenizerFast, text: str
) -> None:
    ids = reference.encode(text, add_special_tokens=False)
    assert smollm2.encode(text) == ids
    assert smollm2.decode(ids, skip_special_tokens=False) == reference.decode(ids)


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(0, 49151) | st.integers(0, 300), max_size=40), skipped=st.booleans()
)
def test_text_of_any_ids_equals_transformers(
    smollm2: Tokenizer, reference: PreTrainedTokenizerFast, ids: list[int], skipped: bool
) -> None:
    assert smollm2.decode(ids, skip_special_tokens=skipped) == reference.decode(
        ids, skip_special_tokens=skipped, clean_up_tokenization_spaces=False
    )


def test_ids_of_a_rendered_chat_equal_transformers(
    smollm2: Tokenizer, reference: PreTrainedTokenizerFast
) -> None:
    messages = [
        {"role": "system", "content": "Sé breve."},
        {"role": "user", "content": "¿2 + 2? <|im_end|> 👍🏽\n\n1. a"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": ""},
    ]
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert smollm2.encode(text) == ids


def test_smollm2_roles_are_those_of_its_file(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_token, smollm2.bos_token_id) == ("<|im_start|>", 1)
    assert (smollm2.eos_token, smollm2.eos_token_id) == ("<|im_end|>", 2)
    assert smollm2.eos_token_ids == {2}
    assert smollm2.special_ids == set(range(17))
    assert smollm2.chat_template is not None
    assert smollm2.chat_template.startswith("{% for message in messages %}")


def test_token_bytes_join_to_the_text(smollm2: Tokenizer) -> None:
    text = "".join(VARIED)
    assert b"".join(map(smollm2.token_bytes, smollm2.encode(text))) == text.encode()
    assert smollm2.token_bytes(2) == b"<|im_end|>"
    assert smollm2.token_bytes(49152) == b""


def test_a_character_cut_over_tokens_keeps_its_bytes(smollm2: Tokenizer) -> None:
    parts = [smollm2.token_bytes(token_id) for token_id in smollm2.encode("🦜")]
    assert len(parts) > 1
    assert b"".join(parts) == "🦜".encode()


def test_building_from_gguf_takes_under_a_second(smollm2: Tokenizer) -> None:
    file = resolve("smollm2").files
    begin = time.process_time()
    Tokenizer.from_gguf(file)
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize("unit", [" ", "a", "\n ", "7", "👩‍👩‍👧", "<|im_end|>"])
def test_a_quarter_megabyte_of_one_thing_is_encoded_in_seconds(
    smollm2: Tokenizer, unit: str
) -> None:
    text = unit * (250_000 // len(unit.encode()))
    begin = time.process_time()
    ids = smollm2.encode(text)
    assert time.process_time() - begin < 5
    assert smollm2.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "it's  2024\n\n1", ["it", "'s", " ", " 2024", "\n", "\n", "1"]),
        ("smollm", "it's  2024\n\n1", ["it", "'s", "  ", "2", "0", "2", "4", "\n\n", "1"]),
        ("llama-bpe", "IT'S  12345\n\n1", ["IT", "'S", " ", " ", "123", "45", "\n\n", "1"]),
        ("llama-bpe", "(x)\n y", ["(x", ")\n", " y"]),
        ("qwen2", "IT'S 123\n\n1", ["IT", "'S", " ", "1", "2", "3", "\n\n", "1"]),
        ("tekken", "helloWorld 12/\n", ["hello", "World", " ", "1", "2", "/\n"]),
        ("gpt-4o", "It's helloWorld 1234/\n", ["It's", " hello", "World", " ", "123", "4", "/\n"]),
        ("dbrx", "IT'S 12345\n\n1", ["IT", "'S", " ", "123", "45", "\n\n", "1"]),
        ("default", "a=1234 b", ["a", "=", "123", "4", " b"]),
    ],
)
def test_pre_tokenisers_split_as_their_models_do(
    make_gguf: Callable[..., Path], pre: str, text: str, expected: list[str]
) -> None:
    file = make_gguf(pre=pre, extra=(("<s>", TokenType.CONTROL),), bos_token_id=256)
    assert pieces(GGUFVocabulary(read_gguf_header(file).metadata).build(), text) == expected


@settings(max_examples=100, deadline=None)
@given(text=UNICODE)
def test_smollm_split_equals_digits_then_byte_level(text: str) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(BYTE_ALPHABET),
    }
    published = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core = GGUFVocabulary(metadata).build()
    assert core.pre_tokenizer.pre_tokenize_str(text) == published.pre_tokenize_str(text)


def test_llama_3_adds_bos_and_stops_at_every_end_of_turn(make_gguf: Callable[..., Path]) -> None:
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>")
    extra = tuple((name, TokenType.CONTROL) for name in names)
    file = make_gguf(pre="llama-bpe", extra=extra, bos_token_id=256, eos_token_id=259)
    tokenizer = Tokenizer.from_gguf(file)
    assert tokenizer.encode_prompt("<|eot_id|>") == [256, 259]
    assert tokenizer.encode("<|eot_id|>") == [259]
    assert tokenizer.eos_token_ids == {257, 258, 259}


def test_the_file_decides_about_bos_and_eos_around_prompts(make_gguf: Callable[..., Path]) -> None:
    extra = (("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL), ("<t>", TokenType.CONTROL))
    roles = {"bos_token_id": 256, "eos_token_id": 257, "eot_token_id": 258}
    plain = Tokenizer.from_gguf(
        make_gguf(pre="llama-bpe", extra=extra, add_bos_token=False, **roles)
    )
    assert plain.encode_prompt("<t>") == [258]
    assert plain.eos_token_ids == {257, 258}
    both = Tokenizer.from_gguf(
        make_gguf(extra=extra, add_bos_token=True, add_eos_token=True, **roles)
    )
    assert both.encode_prompt("<t>") == [256, 258, 257]
    assert both.encode("<t>") == [258]


def test_whole_pieces_come_first_where_the_model_wants_it(make_gguf: Callable[..., Path]) -> None:
    # "abc" is a token that no merge leads to.
    extra = (("abc", TokenType.NORMAL), ("<s>", TokenType.CONTROL))
    llama = Tokenizer.from_gguf(make_gguf(pre="llama-bpe", extra=extra, bos_token_id=257))
    gpt2 = Tokenizer.from_gguf(make_gguf(extra=extra))
    assert llama.encode("abc") == [256]
    assert gpt2.encode("abc") == [BYTE_ALPHABET.index(letter) for letter in "abc"]


def test_qwen_composes_accents_before_encoding(make_gguf: Callable[..., Path]) -> None:
    qwen = Tokenizer.from_gguf(make_gguf(pre="qwen2"))
    assert qwen.encode("e\u0301") == qwen.encode("é")
    gpt2 = Tokenizer.from_gguf(make_gguf())
    assert gpt2.encode("e\u0301") != gpt2.encode("é")


def test_user_defined_tokens_are_matched_whole_but_shown(make_gguf: Callable[..., Path]) -> None:
    extra = (("<think>", TokenType.USER_DEFINED), ("<|end|>", TokenType.CONTROL))
    tokenizer = Tokenizer.from_gguf(make_gguf(extra=extra))
    assert tokenizer.encode("<think><|end|>") == [256, 257]
    assert tokenizer.decode([256, 257]) == "<think>"
    assert tokenizer.special_ids == {257}


def test_unused_tokens_are_padding(make_gguf: Callable[..., Path]) -> None:
    padded = Tokenizer.from_gguf(make_gguf(extra=(("[PAD256]", TokenType.UNUSED),)))
    plain = Tokenizer.from_gguf(make_gguf())
    assert (padded.vocab_size, plain.vocab_size) == (257, 256)
    assert padded.decode([256]) == ""
    assert padded.token_bytes(256) == b""
    assert padded.fingerprint() == plain.fingerprint()


def test_fingerprint_tells_vocabularies_apart(make_gguf: Callable[..., Path]) -> None:
    prints = [
        Tokenizer.from_gguf(make_gguf(**told)).fingerprint()
        for told in (
            {"merges": ("a b", "b c")},
            {"merges": ("b c", "a b")},
            {"merges": ("a b",)},
            {"merges": ("a b",), "extra": (("<|end|>", TokenType.CONTROL),)},
            {"merges": ("a b",), "extra": (("<|End|>", TokenType.CONTROL),)},
        )
    ]
    assert len(set(prints)) == len(prints)
    assert all(len(print_) == 64 for print_ in prints)


def test_fingerprint_stays_what_drafters_and_corpora_have_stored(smollm2: Tokenizer) -> None:
    stored = "c4e5a547a3d78b0ad64c7aed236e7b85312530dbd2bc83530f6740fb5eecf052"
    assert smollm2.fingerprint() == stored


def test_fingerprint_of_folder_and_gguf_are_equal(
    smollm2: Tokenizer, reference: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, reference.backend_tokenizer)
    assert Tokenizer.from_folder(folder).fingerprint() == smollm2.fingerprint()


@pytest.mark.parametrize(("text", "ids"), SENTENCE_PIECE_IDS.items())
def test_sentence_piece_ids_equal_those_of_sentencepiece(
    sentence_piece: Tokenizer, text: str, ids: list[int]
) -> None:
    assert sentence_piece.encode(text) == ids
    assert sentence_piece.encode_prompt(text) == [1, *ids]
    assert sentence_piece.decode(ids) == text


def test_sentence_piece_roles_and_bytes(sentence_piece: Tokenizer) -> None:
    assert sentence_piece.eos_token_ids == {2, 260 + len(PIECES), 261 + len(PIECES)}
    inst = 259 + len(PIECES)
    assert sentence_piece.special_ids == {0, 1, 2, inst, inst + 1, inst + 2}
    assert sentence_piece.encode("[INST]the[INST]") == [inst, 263, inst]
    assert sentence_piece.token_bytes(263) == b" the"
    assert sentence_piece.token_bytes(3 + 0xE6) == b"\xe6"
    assert [sentence_piece.is_byte(token_id) for token_id in (2, 3, 258, 259)] == [
        False,
        True,
        True,
        False,
    ]


def test_lone_surrogates_are_refused_with_their_place(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match=r"'\\ud83d' at character 3"):
        smollm2.encode("abc\ud83d")
    with pytest.raises(InvalidRequestError, match="type bytes"):
        smollm2.encode_prompt(b"abc")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 2**40, "3", 1.5, None])
def test_what_is_no_id_is_refused(smollm2: Tokenizer, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="no token id"):
        smollm2.decode([17, wrong])
    with pytest.raises(InvalidRequestError, match="no token id"):
        smollm2.token_bytes(wrong)


@pytest.mark.parametrize(
    ("told", "error", "says"),
    [
        ({"pre": "cuneiform"}, UnsupportedError, "'cuneiform'.*Known: .*smollm"),
        ({"pre": None}, UnsupportedError, "no tokenizer.ggml.pre"),
        ({"model": "bert"}, UnsupportedError, "'bert'"),
        ({"bos_token_id": 999}, CheckpointError, "bos_token_id = 999"),
        ({"add_bos_token": True}, CheckpointError, "no bos_token_id"),
        ({"extra": (("a", TokenType.NORMAL),)}, CheckpointError, "'a' twice"),
        ({"merges": ("a bc",)}, CheckpointError, "merges"),
        ({"merges": ("ab",)}, CheckpointError, "merges"),
        ({"model": "llama"}, CheckpointError, "0 scores"),
    ],
)
def test_a_vocabulary_that_cannot_be_right_is_refused(
    make_gguf: Callable[..., Path], told: dict[str, Any], error: type[Exception], says: str
) -> None:
    file = make_gguf(**told)
    with pytest.raises(error, match=says):
        Tokenizer.from_gguf(file)


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bare.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="carries no tokenizer"):
        Tokenizer.from_gguf(file)


def test_files_that_are_no_whole_gguf_are_refused(
    make_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    whole = make_gguf(merges=("a b",)).read_bytes()
    broken = tmp_path / "broken.gguf"
    for content in (b"", b"PK\x03\x04" * 20, whole[:200]):
        broken.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"broken\.gguf"):
            Tokenizer.from_gguf(broken)
    with pytest.raises(ModelNotFoundError, match=r"missing\.gguf"):
        Tokenizer.from_gguf(tmp_path / "missing.gguf")


def test_folder_ids_equal_transformers(reference: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    reference.save_pretrained(tmp_path)
    published = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in VARIED:
        assert tokenizer.encode_prompt(text) == published(text).input_ids
    assert tokenizer.eos_token_ids == {published.eos_token_id}
    assert tokenizer.special_ids == set(published.added_tokens_decoder)
    assert tokenizer.chat_template == published.chat_template


def test_folder_stops_at_the_ends_of_its_generation_config(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        small_core(),
        tokenizer_config={"eos_token": {"content": "</s>"}, "bos_token": "<s>"},
        generation_config={"eos_token_id": [257, 258]},
        config={"eos_token_id": 5},
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_token_ids == {257, 258}
    assert (tokenizer.eos_token, tokenizer.bos_token) == ("</s>", "<s>")
    (folder / "generation_config.json").unlink()
    assert Tokenizer.from_folder(folder).eos_token_ids == {5, 257}
    (folder / "config.json").write_text('{"eos_token_id": ["</s>"]}')
    with pytest.raises(CheckpointError, match="eos_token_id"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("add_bos", [True, False])
def test_folder_adds_bos_where_its_tokenizer_json_does(tmp_path: Path, add_bos: bool) -> None:
    core = small_core()
    if add_bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 256)]
        )
    # Transformers 5 does not look at add_bos_token beside a tokenizer.json either.
    told = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": not add_bos}
    folder = write_folder(tmp_path, core, tokenizer_config=told)
    ids = Tokenizer.from_folder(folder).encode_prompt("hi")
    assert ids == AutoTokenizer.from_pretrained(folder)("hi").input_ids
    assert (ids[0] == 256) is add_bos


def test_folder_chat_template_comes_from_its_own_file_first(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder = write_folder(tmp_path, small_core(), tokenizer_config={"chat_template": named})
    assert Tokenizer.from_folder(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("ñ")
    assert Tokenizer.from_folder(folder).chat_template == "ñ"


def test_folder_padding_and_truncation_do_not_touch_prompts(tmp_path: Path) -> None:
    core = small_core()
    core.enable_truncation(4)
    core.enable_padding(length=8)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, core))
    assert len(tokenizer.encode_prompt("hello")) == 5
    assert len(tokenizer.encode("hi")) == 2


def test_folder_problems_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        Tokenizer.from_folder(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model":')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)
    write_folder(tmp_path, small_core(), tokenizer_config={"eos_token": "<|none|>"})
    with pytest.raises(CheckpointError, match=r"'<\|none\|>' as eos_token"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_a_decoder_that_cannot_be_streamed_is_refused(tmp_path: Path) -> None:
    core = small_core()
    core.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="WordPiece"):
        Tokenizer.from_folder(write_folder(tmp_path, core))


def test_a_split_pattern_is_kept_by_a_folder(tmp_path: Path) -> None:
    core = small_core()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, core))
    assert tokenizer.decode(tokenizer.encode("1234 ab")) == "1234 ab"


# What llama.cpp (llama-cpp-python 0.3.36, llama_tokenize with special tokens parsed and none added)
# makes of the vocabulary of `write_sentence_piece`, written as Gemma's and as Phi-3's.
SENTENCE_PIECE_FAMILY_IDS = {
    "gemma3": {
        "hello there": [259, 295, 309],
        "  two  spaces\n\nline ": [
            326,
            261,
            344,
            335,
            326,
            260,
            357,
            312,
            316,
            13,
            13,
            332,
            337,
            333,
            328,
            326,
        ],
        "año 12 日本 👍🏽": [
            314,
            335,
            326,
            341,
            53,
            326,
            233,
            154,
            168,
            233,
            159,
            175,
            326,
            243,
            162,
            148,
            144,
            243,
            162,
            146,
            192,
        ],
        "<s>the cat<end_of_turn>\n sat[INST]  on</s> mat": [
            1,
            329,
            259,
            284,
            362,
            13,
            260,
            262,
            360,
            326,
            299,
            2,
            291,
            262,
        ],
        "aaaaaaaaaaa\tbananana": [264, 264, 264, 264, 264, 327, 12, 342, 268, 268, 293],
        "": [],
        " ▁x": [326, 281],
    },
    "phi3": {
        "hello there": [307, 309],
        "  two  spaces\n\nline ": [
            326,
            326,
            261,
            344,
            335,
            326,
            260,
            357,
            312,
            316,
            13,
            13,
            332,
            337,
            333,
            328,
            326,
        ],
        "año 12 日本 👍🏽": [
            269,
            323,
            326,
            341,
            53,
            326,
            233,
            154,
            168,
            233,
            159,
            175,
            326,
            243,
            162,
            148,
            144,
            243,
            162,
            146,
            192,
        ],
        "<s>the cat<end_of_turn>\n sat[INST]  on</s> mat": [
            1,
            263,
            284,
            362,
            260,
            262,
            360,
            299,
            2,
            291,
            262,
        ],
        "aaaaaaaaaaa\tbananana": [304, 264, 264, 264, 327, 12, 342, 268, 268, 293],
        "": [],
        " ▁x": [326, 326, 281],
    },
}


@pytest.mark.parametrize("architecture", SENTENCE_PIECE_FAMILY_IDS)
def test_sentence_piece_families_cut_as_llama_cpp_does(tmp_path: Path, architecture: str) -> None:
    settings = {"add_space_prefix": False} if architecture == "gemma3" else {}
    file = write_sentence_piece(tmp_path / "vocabulary.gguf", architecture, **settings)
    tokenizer = Tokenizer.from_gguf(file)
    for text, ids in SENTENCE_PIECE_FAMILY_IDS[architecture].items():
        assert tokenizer.encode(text) == ids, text
    assert tokenizer.piece(max(tokenizer.eos_token_ids)) == "<end_of_turn>"
