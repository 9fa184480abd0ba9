"""From nothing but a model: its own text and the corpus of it, in the folder of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peagle.llm import LLM
from peagle.train.conversations import read_conversations
from peagle.train.corpus import corpus_of
from peagle.train.synth.limits import Limits
from peagle.train.synth.run import Synthesis
from peagle.train.synth.settings import SelfPromptSettings
from peagle.train.synth.start import self_prompted

_TOGETHER = 32


@dataclass(frozen=True, slots=True)
class OwnText:
    """What a model wrote for the training of its drafter.

    Attributes:
        data: Conversations.
        corpus: The corpus made of them.
    """

    data: Path
    corpus: Path

    @classmethod
    def within(cls, run: Path) -> "OwnText":
        """Name the files of a run's folder."""
        return cls(run / "conversations.jsonl.gz", run / "corpus.safetensors")

    @property
    def complete(self) -> bool:
        """Whether it was written to its end: the corpus comes last."""
        return self.corpus.exists()


def write_own_text(
    model: str,
    run: Path,
    *,
    hours: float,
    device: str,
    watch: Callable[[Synthesis, Path], None],
) -> OwnText:
    """Let a model write conversations for some time, and make a corpus of them.

    What an earlier call wrote is continued.

    Args:
        model: The model.
        run: The run's folder.
        hours: How long it writes.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        watch: Runs the synthesis, for someone to look on.

    Raises:
        PeagleError: The model has no chat template, or the files cannot be written.
    """
    own = OwnText.within(run)
    run.mkdir(parents=True, exist_ok=True)
    llm = LLM(model, device=device, max_concurrent=_TOGETHER)
    with self_prompted(llm, own.data, SelfPromptSettings(), Limits(hours=hours)) as synthesis:
        watch(synthesis, own.data)
    fingerprint = llm.tokenizer.fingerprint()
    file = read_conversations(
        own.data, vocab_size=llm.target.config.vocab_size, tokenizer_fingerprint=fingerprint
    )
    corpus_of([file], tokenizer_fingerprint=fingerprint).corpus.save(own.corpus)
    return own
