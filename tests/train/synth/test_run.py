"""Runs with the real model: a handful of very short conversations."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peagle import LLM, SamplingParams
from peagle.errors import InvalidRequestError
from peagle.train.conversations import Conversation, Sidecar, read_conversations
from peagle.train.synth.duplicates import Duplicates
from peagle.train.synth.limits import Limits
from peagle.train.synth.output import ConversationWriter
from peagle.train.synth.run import Synthesis
from peagle.train.synth.scenario import Ask, Scenario
from peagle.train.synth.settings import AnswerSettings, SelfPromptSettings
from peagle.train.synth.start import prompted, self_prompted

SHORT = SelfPromptSettings(categories=("qa", "chat"), max_tokens=6, turns=2, seed=1)


def never() -> bool:
    return False


def write(
    llm: LLM,
    path: Path,
    conversations: int,
    *,
    settings: SelfPromptSettings = SHORT,
    interrupted: Callable[[], bool] = never,
) -> list[Conversation]:
    with self_prompted(llm, path, settings, Limits(conversations=conversations)) as run:
        run.run(interrupted=interrupted)
    return read(llm, path) if run.tally.conversations else []


def read(llm: LLM, path: Path) -> list[Conversation]:
    return read_conversations(
        path,
        vocab_size=llm.target.config.vocab_size,
        tokenizer_fingerprint=llm.tokenizer.fingerprint(),
    ).conversations


@pytest.fixture(scope="module", autouse=True)
def short_messages() -> Iterator[None]:
    """Drop a user's message that finds no end soon, and run few scenarios ahead."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("peagle.train.synth.self_prompts._MESSAGE_TOKENS", 28)
        patched.setattr("peagle.train.synth.run._LEAD", 1)
        yield


@pytest.fixture(scope="module")
def five(smollm2: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five conversations, written in one go."""
    path = tmp_path_factory.mktemp("synth") / "five.jsonl"
    assert len(write(smollm2, path, 5)) == 5
    return path


def test_answers_are_the_targets_own(smollm2: LLM, five: Path) -> None:
    conversations = read(smollm2, five)
    assert {each.category for each in conversations} == {"qa", "chat"}
    results = smollm2.generate(
        [{"prompt_token_ids": list(each.prompt)} for each in conversations],
        SamplingParams(max_tokens=6),
    )
    assert [result.token_ids for result in results] == [
        list(each.response) for each in conversations
    ]


def test_prompts_are_what_the_endpoint_would_read(smollm2: LLM, five: Path) -> None:
    decode = smollm2.tokenizer.decode
    for each in read(smollm2, five):
        text = decode(list(each.prompt), skip_special_tokens=False)
        messages = text.split("<|im_start|>")[2:]
        parsed = [part.removesuffix("<|im_end|>\n").partition("\n") for part in messages[:-1]]
        assert list(each.prompt) == smollm2.encode(
            [{"role": role, "content": content} for role, _, content in parsed]
        )
        assert messages[-1] == "assistant\n"


def test_an_interrupted_run_goes_on_to_the_same_file(
    smollm2: LLM, five: Path, tmp_path: Path
) -> None:
    path = tmp_path / "data.jsonl"
    assert len(write(smollm2, path, 2)) == 2
    first_two = path.read_text()
    steps = iter(range(100))
    # A few steps that end nothing, then the rest.
    write(smollm2, path, 5, interrupted=lambda: next(steps) > 3)
    assert path.read_text() == first_two
    write(smollm2, path, 5)
    assert path.read_text() == five.read_text()
    untouched = path.stat().st_mtime_ns
    assert len(write(smollm2, path, 5)) == 5
    assert path.stat().st_mtime_ns == untouched


def test_another_batch_size_without_speculation_writes_the_same(
    smollm2: LLM, five: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2.engine, "max_concurrent", 2)
    monkeypatch.setattr(smollm2, "spec", smollm2.spec.model_copy(update={"method": "none"}))
    path = tmp_path / "data.jsonl.gz"
    found = write(smollm2, path, 5)
    assert "".join(each.as_line() for each in found) == five.read_text()


def test_another_seed_makes_other_prompts(smollm2: LLM, five: Path, tmp_path: Path) -> None:
    other = SHORT.model_copy(update={"seed": 5})
    found = write(smollm2, tmp_path / "other.jsonl", 2, settings=other)
    assert not {each.as_line() for each in found} & set(five.read_text().splitlines(True))


def test_the_sidecar_says_how_the_file_was_made(smollm2: LLM, five: Path) -> None:
    sidecar = Sidecar.beside(five)
    assert sidecar is not None
    assert sidecar.model == "smollm2-135m-instruct"
    assert sidecar.tokenizer_fingerprint == smollm2.tokenizer.fingerprint()
    assert sidecar.settings["prompts"] == "self"
    assert sidecar.settings["categories"] == ["qa", "chat"]
    assert sidecar.settings["seed"] == 1
    assert sidecar.settings["dtype"] == "bfloat16"
    assert sidecar.progress.lines == 5


def test_tokens_are_a_limit_too(smollm2: LLM, five: Path, tmp_path: Path) -> None:
    lengths = [len(each.response) for each in read(smollm2, five)]
    with self_prompted(smollm2, tmp_path / "d.jsonl", SHORT, Limits(tokens=lengths[0] + 1)) as run:
        run.run()
        assert run.share_done == 1.0
    assert run.tally.conversations == 2
    assert run.tally.response_tokens == sum(lengths[:2])
    assert run.tally.generated_tokens > sum(lengths[:2])


def test_no_time_begins_nothing(smollm2: LLM, tmp_path: Path) -> None:
    with self_prompted(smollm2, tmp_path / "d.jsonl", SHORT, Limits(hours=1e-12)) as run:
        run.run()
    assert run.tally.conversations == 0


class Canned:
    """Scenarios that a test wrote: the prompts of one conversation each."""

    total = None

    def __init__(self, *prompts: list[int], max_tokens: int = 4) -> None:
        self.prompts = prompts
        self.params = SamplingParams(max_tokens=max_tokens)

    def scenario(self, number: int) -> Scenario | None:
        return self._play(self.prompts[number]) if number < len(self.prompts) else None

    def _play(self, prompt: list[int]) -> Scenario:
        written = yield Ask(prompt, self.params)
        return [[Conversation(prompt, written.token_ids)]]


@pytest.fixture
def writer(tmp_path: Path, smollm2: LLM) -> Iterator[ConversationWriter]:
    sidecar = Sidecar(
        model=smollm2.name, tokenizer_fingerprint=smollm2.tokenizer.fingerprint(), settings={}
    )
    with ConversationWriter(tmp_path / "data.jsonl", sidecar, 49152) as opened:
        yield opened


def test_an_answer_that_loops_is_ended_and_cut_after_two_turns(
    smollm2: LLM, writer: ConversationWriter
) -> None:
    cycle = smollm2.tokenizer.encode(" one two three four five six")
    source = Canned(cycle * 12, max_tokens=400)
    run = Synthesis(smollm2, source, writer, Limits())
    run.run()
    (found,) = read(smollm2, writer.path)
    assert list(found.response) == cycle * 2
    # It was ended long before its 400 tokens.
    assert run.tally.generated_tokens < 100


def test_duplicates_are_dropped_whichever_ends_first(
    smollm2: LLM, writer: ConversationWriter
) -> None:
    one, other = smollm2.encode("Say no."), smollm2.encode("Say yes.")
    source = Canned(one, other, one, one)
    run = Synthesis(smollm2, source, writer, Limits(), Duplicates(header_tokens=22))
    run.run()
    assert [list(each.prompt) for each in read(smollm2, writer.path)] == [one, other]
    assert run.tally.dropped == {"same prompt": 2}
    assert writer.progress.scenario == 4


def test_a_run_that_brings_nothing_new_gives_up(
    smollm2: LLM, writer: ConversationWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.train.synth.run._MOST_BARREN", 3)
    source = Canned(*[smollm2.encode("Say no.")] * 9, max_tokens=1)
    run = Synthesis(smollm2, source, writer, Limits(), Duplicates(0))
    with pytest.raises(InvalidRequestError, match="The last 3 scenarios brought nothing new"):
        run.run()
    assert writer.progress.lines == 1


def test_prompts_of_a_file_are_answered_in_its_order(smollm2: LLM, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"prompt": "Say no.", "max_tokens": 2}\n'
        '{"prompt": "Name three colours.", "category": "qa"}\n'
        '{"prompt": "Hi.", "response": "Hello."}\n'
    )
    settings = AnswerSettings(max_tokens=5, temperature=0.9, greedy_share=0.5, seed=1)
    output = tmp_path / "data.jsonl"
    with prompted(smollm2, output, settings, Limits(), prompts) as run:
        run.run()
        assert run.share_done == 1.0
    found = read(smollm2, output)
    assert [list(each.prompt) for each in found] == [
        smollm2.encode(text) for text in ("Say no.", "Name three colours.", "Hi.")
    ]
    assert [len(each.response) for each in found[:2]] == [2, 5]
    assert smollm2.tokenizer.decode(list(found[2].response)) == "Hello."
    # Changed prompts would make another file.
    prompts.write_text('{"prompt": "Say no."}\n')
    with (
        pytest.raises(InvalidRequestError, match="was made with prompts"),
        prompted(smollm2, output, settings, Limits(), prompts),
    ):
        pass
