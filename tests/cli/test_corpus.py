import json
import re
from pathlib import Path

import pytest

from peagle import LLM, SamplingParams
from peagle.catalog.entry import DATA_FOLDER
from peagle.draft.corpus import Corpus
from peagle.draft.corpus_build import build_corpus
from peagle.train.conversations import Conversation, Sidecar
from tests.cli.conftest import Run

PROMPT = "Name three colours."
SELF_CHAT = Path(__file__).parents[2] / "data" / "smollm2-self-chat.jsonl.gz"
SHIPPED = DATA_FOLDER / "corpora" / "smollm2-135m-instruct.safetensors"


@pytest.fixture(scope="module")
def answer(smollm2: LLM) -> Conversation:
    result = smollm2.generate(PROMPT, SamplingParams(max_tokens=24))[0]
    return Conversation(result.prompt_token_ids, result.token_ids, "qa")


@pytest.fixture
def data(tmp_path: Path, answer: Conversation) -> Path:
    path = tmp_path / "own.jsonl"
    path.write_text(answer.as_line())
    return path


def test_the_shipped_corpus_is_made_again_byte_for_byte(peagle: Run, tmp_path: Path) -> None:
    output = tmp_path / "new" / "corpus.safetensors"
    ran = peagle("corpus", "build", str(SELF_CHAT), "--model", "smollm2", "--output", str(output))
    assert ran.code == 0
    first, second = ran.out.splitlines()
    assert first == "8226 of 8459 conversations, 233 held out"
    assert re.fullmatch(rf"962075 tokens, 8\.32 MB, \d+\.\d s: {re.escape(str(output))}", second)
    assert output.read_bytes() == SHIPPED.read_bytes()


def test_requests_are_drafted_from_the_corpus_given(
    peagle: Run, tmp_path: Path, data: Path, answer: Conversation
) -> None:
    table = tmp_path / "corpus.safetensors"
    built = peagle("corpus", "build", str(data), "--model", "smollm2", "--output", str(table))
    assert built.out.startswith("1 of 1 conversations, 0 held out\n26 tokens, ")
    common = ("generate", PROMPT, "--max-tokens", "24", "--dtype", "bfloat16", "--json")
    alone = ("--spec", '{"method": "lookup", "lookup": false, "adaptive": false}')
    own = json.loads(peagle(*common, *alone, "--corpus", str(table)).out)
    assert own["token_ids"] == list(answer.response)
    # The corpus is this very answer, so whole paths are accepted.
    assert own["speculation"]["target_passes"] <= 3


def test_a_corpus_of_another_model_is_refused(peagle: Run, tmp_path: Path) -> None:
    table = tmp_path / "corpus.safetensors"
    told = {"vocab_size": 100_000, "source_sha256": "", "split_rule": ""}
    build_corpus([[1, 2, 3]], **told, tokenizer_fingerprint="0" * 64).save(table)
    ran = peagle("generate", PROMPT, "--corpus", str(table))
    assert ran.code == 2
    assert f"{table} was made with tokenizer 0000" in ran.err
    # Where the tokenizer is not recorded, ids that the target does not have tell.
    build_corpus([[1, 2, 3]], **told).save(table)
    ran = peagle("generate", PROMPT, "--corpus", str(table))
    assert ran.code == 2
    assert "has token ids up to 99999, the target's vocabulary ends at 49151" in ran.err


@pytest.mark.parametrize(
    "turned_off",
    [
        ("--no-speculation",),
        ("--spec", '{"method": "none"}'),
        ("--spec", '{"corpus": false}'),
    ],
)
def test_a_corpus_that_would_be_ignored_is_refused(
    peagle: Run, turned_off: tuple[str, ...]
) -> None:
    ran = peagle("generate", PROMPT, "--corpus", str(SHIPPED), *turned_off)
    assert ran.code == 2
    assert "the other options turn the corpus off" in ran.err


def test_mistakes_are_one_line_and_exit_code_2(peagle: Run, tmp_path: Path, data: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(data.read_bytes())
    output = tmp_path / "corpus.safetensors"
    (tmp_path / "folder").mkdir()
    for arguments, message in (
        ((data, copy), "copy.jsonl holds the same as"),
        ((data, data), "holds the same as"),
        ((tmp_path / "none.jsonl",), "none.jsonl cannot be read"),
        ((data, "--output", data), "which is one of the files to read"),
        ((data, "--output", tmp_path / "folder"), "folder cannot be written"),
        ((data, "--output", data / "below"), "cannot be written"),
        ((data, "--model", "smollm9"), "There is no model called 'smollm9'"),
    ):
        told = ("--model", "smollm2", "--output", str(output), *map(str, arguments))
        ran = peagle("corpus", "build", *told)
        assert ran.code == 2, arguments
        assert message in ran.err
        assert ran.err.startswith("Error: ")
        assert ran.err.count("\n") == 1
        assert not output.exists()


def test_data_of_another_tokenizer_is_refused(
    peagle: Run, tmp_path: Path, data: Path, answer: Conversation
) -> None:
    sidecar = Sidecar(model="other", tokenizer_fingerprint="0" * 64, settings={})
    Sidecar.path_of(data).write_text(sidecar.model_dump_json())
    output = tmp_path / "corpus.safetensors"
    common = ("corpus", "build", str(data), "--model", "smollm2", "--output", str(output))
    ran = peagle(*common)
    assert ran.code == 2
    assert "was made by other with tokenizer 000000000000…" in ran.err
    Sidecar.path_of(data).unlink()
    data.write_text(Conversation(answer.prompt, [50_000]).as_line())
    ran = peagle(*common)
    assert ran.code == 2
    assert (
        "line 1: response_token_ids holds 50000, but this model's vocabulary has 49152" in ran.err
    )


def test_the_table_says_whose_text_it_is(
    peagle: Run, tmp_path: Path, data: Path, smollm2: LLM
) -> None:
    table = tmp_path / "corpus.safetensors"
    peagle("corpus", "build", str(data), "--model", "smollm2", "--output", str(table))
    description = Corpus.load(table).description
    assert description.tokenizer_fingerprint == smollm2.tokenizer.fingerprint()
    assert description.documents == 1
