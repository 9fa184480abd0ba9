from collections.abc import Callable
from itertools import count, pairwise

import pytest

from peagle import LLM
from peagle.train.synth.openings import Opening, shipped_openings
from peagle.train.synth.scenario import Ask, Chain, Written
from peagle.train.synth.self_prompts import SelfPrompts
from peagle.train.synth.settings import SelfPromptSettings

Answering = Callable[[bool], Written]
"""Writes a text; told whether as the user."""


class Played:
    """A scenario whose texts a test writes in place of the model."""

    def __init__(
        self, llm: LLM, source: SelfPrompts, number: int, write: Answering | None = None
    ) -> None:
        self.read: list[str] = []
        self.asks: list[Ask] = []
        self.words = map("w{}".format, count())
        self.tokenizer = llm.tokenizer
        scenario = source.scenario(number)
        written = None
        while True:
            try:
                ask = scenario.send(written)  # type: ignore[arg-type]
            except StopIteration as ended:
                self.chains: list[Chain] = ended.value
                return
            text = llm.tokenizer.decode(list(ask.prompt_ids), skip_special_tokens=False)
            self.read.append(text)
            self.asks.append(ask)
            as_user = not text.endswith("<|im_start|>assistant\n")
            written = (write or self.plainly)(as_user)

    def plainly(self, as_user: bool) -> Written:
        said = f" {next(self.words)} ends."
        return Written(self.tokenizer.encode(said), said, ended=True)


def source_of(llm: LLM, *categories: str, turns: int = 3) -> SelfPrompts:
    return SelfPrompts(llm, SelfPromptSettings(categories=categories, turns=turns))


def alone(llm: LLM, source: SelfPrompts) -> Played:
    """The first scenario that is not about a document."""
    return next(
        played
        for played in (Played(llm, source, number) for number in range(50))
        if len(played.asks) == 2
    )


def test_categories_take_turns(smollm2: LLM) -> None:
    source = source_of(smollm2, "open", "code", "chat")
    categories = [Played(smollm2, source, number).chains[0][0].category for number in range(6)]
    assert categories == ["open", "code", "chat"] * 2


def test_the_model_writes_on_from_an_opening_and_answers_the_whole_message(smollm2: LLM) -> None:
    played = alone(smollm2, source_of(smollm2, "qa"))
    begun, asked = played.read
    opening = begun.rpartition("<|im_start|>user\n")[2]
    assert Opening(opening, goes_on=True) in shipped_openings().by_category["qa"]
    [[conversation]] = played.chains
    assert list(conversation.prompt) == smollm2.encode(f"{opening} w0 ends.")
    assert asked == f"{begun} w0 ends.<|im_end|>\n<|im_start|>assistant\n"
    assert smollm2.tokenizer.decode(list(conversation.response)) == " w1 ends."
    message, answer = (ask.params for ask in played.asks)
    assert (message.temperature, message.seed is not None) == (1.0, True)
    assert (answer.greedy, answer.max_tokens) == (True, 512)


def test_an_open_message_has_no_opening(smollm2: LLM) -> None:
    played = Played(smollm2, source_of(smollm2, "open"), 0)
    assert played.read[0].endswith("<|im_start|>user\n")
    assert list(played.chains[0][0].prompt) == smollm2.encode("w0 ends.")


def test_a_chat_goes_on_for_several_turns(smollm2: LLM) -> None:
    source = source_of(smollm2, "chat")
    lengths = [len(Played(smollm2, source, number).chains[0]) for number in range(30)]
    assert set(lengths) == {1, 2, 3}
    [chain] = Played(smollm2, source, lengths.index(3)).chains
    for before, after in pairwise(chain):
        # The next prompt holds the conversation so far, its answer included.
        text = smollm2.tokenizer.decode([*before.prompt, *before.response])
        assert smollm2.tokenizer.decode(list(after.prompt)).startswith(text.strip())
    single = source_of(smollm2, "chat", turns=1)
    assert {len(Played(smollm2, single, number).chains[0]) for number in range(9)} == {1}


def test_a_document_is_asked_about_in_every_way(smollm2: LLM) -> None:
    source = source_of(smollm2, "summarization", "qa", "json", "long")
    found = [Played(smollm2, source, number) for number in range(0, 120, 4)]
    about = [played for played in found if len(played.chains) > 1]
    assert 5 < len(about) < 25
    for played in about:
        chains = played.chains
        assert all(len(chain) == 1 for chain in chains)
        categories = [chain[0].category for chain in chains]
        assert categories[:2] == ["long", "summarization"]
        assert sorted(categories[2:]) == ["json", "qa"]
        document = smollm2.tokenizer.decode(list(chains[0][0].response)).strip()
        for [conversation] in chains[1:]:
            assert document in smollm2.tokenizer.decode(list(conversation.prompt))
    without_long = source_of(smollm2, "summarization")
    about = [Played(smollm2, without_long, number) for number in range(8)]
    assert {chain[0].category for played in about for chain in played.chains} == {"summarization"}


@pytest.mark.parametrize(("said", "ended"), [("w", False), ("  \n", True), ("caf\ufffd", True)])
def test_a_message_without_an_end_or_content_is_dropped(
    smollm2: LLM, said: str, ended: bool
) -> None:
    played = Played(smollm2, source_of(smollm2, "open"), 0, lambda _: Written([1], said, ended))
    assert played.chains == [[]]
    assert len(played.asks) == 1


def test_a_chat_ends_where_an_answer_finds_no_end(smollm2: LLM) -> None:
    def looping(as_user: bool) -> Written:
        return Written([5, 6], "so so", ended=as_user)

    source = source_of(smollm2, "chat")
    lengths = [len(Played(smollm2, source, number).chains[0]) for number in range(30)]
    played = Played(smollm2, source, lengths.index(3), looping)
    [chain] = played.chains
    assert [list(each.response) for each in chain] == [[5, 6]]


def test_nothing_is_asked_for_beyond_the_context(smollm2: LLM) -> None:
    def endless(as_user: bool) -> Written:
        said = "word " * (100 if as_user else smollm2.context_length)
        return Written(smollm2.tokenizer.encode(said), said, ended=True)

    source = source_of(smollm2, "summarization")
    numbers = [number for number in range(8) if len(Played(smollm2, source, number).asks) > 2]
    for number in numbers:
        assert Played(smollm2, source, number, endless).chains == []
    assert numbers
