import time

import gguf
import pytest
from gguf import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.catalog import resolve
from peagle.model.detokenizer import Detokenizer
from peagle.model.tokenizer import Tokenizer

# SentencePiece: unknown, BOS, EOS, 256 bytes, then these pieces.
PIECES = ("▁", "▁he", "llo", "▁world", "ñ", ".", "▁▁", "<|user|>")


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(resolve("smollm2").files)


@pytest.fixture(scope="module", params=[True, False], ids=["space first", "no space first"])
def sentence_piece(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    file = tmp_path_factory.mktemp("sentence_piece") / "vocabulary.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(
        ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    )
    writer.add_token_scores([0.0] * (259 + len(PIECES)))
    writer.add_token_types(
        [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        + [TokenType.BYTE] * 256
        + [TokenType.NORMAL] * (len(PIECES) - 1)
        + [TokenType.USER_DEFINED]
    )
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(request.param)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Tokenizer.from_gguf(file)


def streamed(tokenizer: Tokenizer, parts: list[list[int]], *, skipped: bool = True) -> list[str]:
    stream = Detokenizer(tokenizer, skip_special_tokens=skipped)
    return [*(stream.push(part) for part in parts), stream.flush()]


def lists_of_parts(ids: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(ids, max_size=6), max_size=12)


# Special tokens, single bytes and all others.
BYTE_LEVEL_IDS = st.integers(0, 16) | st.integers(17, 300) | st.integers(0, 50_000)
SENTENCE_PIECE_IDS = st.integers(0, 2) | st.integers(3, 258) | st.integers(259, 270)


@settings(max_examples=400, deadline=None)
@given(parts=lists_of_parts(BYTE_LEVEL_IDS), skipped=st.booleans())
def test_streamed_text_equals_decoding_at_once(
    smollm2: Tokenizer, parts: list[list[int]], skipped: bool
) -> None:
    ids = [token_id for part in parts for token_id in part]
    whole = smollm2.decode(ids, skip_special_tokens=skipped)
    assert "".join(streamed(smollm2, parts, skipped=skipped)) == whole


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_each_streamed_piece_is_a_piece_of_the_text(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    whole = smollm2.decode(ids)
    written = ""
    for piece in streamed(smollm2, [[token_id] for token_id in ids]):
        assert whole.startswith(written + piece)
        written += piece
    assert written == whole


@settings(max_examples=400, deadline=None)
@given(parts=lists_of_parts(SENTENCE_PIECE_IDS), skipped=st.booleans())
def test_streamed_sentence_piece_text_equals_decoding_at_once(
    sentence_piece: Tokenizer, parts: list[list[int]], skipped: bool
) -> None:
    ids = [token_id for part in parts for token_id in part]
    whole = sentence_piece.decode(ids, skip_special_tokens=skipped)
    assert "".join(streamed(sentence_piece, parts, skipped=skipped)) == whole


def test_a_character_is_shown_with_its_last_byte(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("🦜!")
    shown = streamed(smollm2, [[token_id] for token_id in ids])
    assert "".join(shown) == "🦜!"
    assert [piece for piece in shown if piece] == ["🦜", "!"]


def test_what_stays_incomplete_is_replaced_at_the_end(smollm2: Tokenizer) -> None:
    first, *_ = smollm2.encode("🦜")
    assert streamed(smollm2, [[first]]) == ["", "\ufffd"]
    assert streamed(smollm2, [[first], smollm2.encode(" a")]) == ["", "\ufffd a", ""]


def test_special_tokens_within_a_character_are_skipped_or_cut_it(smollm2: Tokenizer) -> None:
    first, *rest = smollm2.encode("🦜")
    ids = [first, 2, *rest]
    assert "".join(streamed(smollm2, [ids])) == "🦜"
    kept = "".join(streamed(smollm2, [ids], skipped=False))
    assert kept == smollm2.decode(ids, skip_special_tokens=False)
    assert "<|im_end|>" in kept


def test_no_tokens_give_no_text(smollm2: Tokenizer) -> None:
    assert streamed(smollm2, [[], []]) == ["", "", ""]


def test_sentence_piece_bytes_wait_for_the_end_of_their_run(sentence_piece: Tokenizer) -> None:
    parrot = [3 + byte for byte in "🦜".encode()]
    letter, dot = 259 + PIECES.index("ñ"), 259 + PIECES.index(".")
    assert streamed(sentence_piece, [[letter], parrot, [dot]]) == ["ñ", "", "🦜.", ""]
    assert streamed(sentence_piece, [parrot, parrot[:1]]) == ["", "", "\ufffd" * 5]


def test_a_long_answer_takes_time_by_its_length_only(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("Tree 🦜 ñandú. ") * 10_000
    stream = Detokenizer(smollm2)
    begin = time.process_time()
    text = "".join([stream.push([token_id]) for token_id in ids]) + stream.flush()
    assert time.process_time() - begin < 5
    assert text == smollm2.decode(ids)
