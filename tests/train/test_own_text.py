"""A model writes what its drafter is trained on, in the folder of the run."""

from functools import partial
from pathlib import Path

import pytest

from peagle.draft.corpus import Corpus
from peagle.train.conversations import read_conversations
from peagle.train.own_text import OwnText, write_own_text
from peagle.train.synth.run import Synthesis
from peagle.train.synth.settings import SelfPromptSettings


def test_text_and_corpus_come_from_the_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = partial(SelfPromptSettings, categories=("qa",), max_tokens=6, turns=1)
    monkeypatch.setattr("peagle.train.own_text.SelfPromptSettings", short)
    monkeypatch.setattr("peagle.train.own_text._TOGETHER", 8)
    watched: list[Path] = []

    def watch(run: Synthesis, path: Path) -> None:
        watched.append(path)
        run.run(interrupted=lambda: run.tally.conversations >= 4)

    assert not OwnText.within(tmp_path).complete
    own = write_own_text("smollm2", tmp_path, hours=1.0, device="cpu", watch=watch)
    assert watched == [own.data]
    assert own.complete
    assert own == OwnText.within(tmp_path)
    corpus = Corpus.load(own.corpus)
    written = read_conversations(
        own.data,
        vocab_size=49152,
        tokenizer_fingerprint=corpus.description.tokenizer_fingerprint or "",
    ).conversations
    assert len(written) >= 4
    assert corpus.description.tokens <= sum(len(each.response) + 2 for each in written)
