"""Open a run from what the user asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peagle.llm import LLM
from peagle.train.conversations import Sidecar
from peagle.train.synth.duplicates import Duplicates
from peagle.train.synth.limits import Limits
from peagle.train.synth.openings import shipped_openings
from peagle.train.synth.output import ConversationWriter
from peagle.train.synth.prompts_file import PromptsFile
from peagle.train.synth.run import Synthesis
from peagle.train.synth.self_prompts import SelfPrompts
from peagle.train.synth.settings import AnswerSettings, SelfPromptSettings


@contextmanager
def self_prompted(
    llm: LLM, output: Path, settings: SelfPromptSettings, limits: Limits
) -> Iterator[Synthesis]:
    """Open a run in which the target writes prompts and answers; the file is closed at the end.

    Args:
        llm: The target.
        output: The file that conversations are appended to; one made in the same way is continued.
        settings: How the target writes.
        limits: When to stop.

    Raises:
        PeagleError: The model has no usable chat template, or the file cannot be used.
    """
    source = SelfPrompts(llm, settings)
    made_of = {"prompts": "self", "openings_sha256": shipped_openings().sha256}
    with ConversationWriter(output, _sidecar(llm, made_of, settings), _vocab(llm)) as writer:
        duplicates = Duplicates(source.user_turn.header_tokens)
        yield Synthesis(llm, source, writer, limits, duplicates)


@contextmanager
def prompted(
    llm: LLM, output: Path, settings: AnswerSettings, limits: Limits, prompts: Path
) -> Iterator[Synthesis]:
    """Open a run over a file of the user's prompts; the output is closed at the end.

    Args:
        llm: The target.
        output: The file that conversations are appended to; one made in the same way is continued.
        settings: How the target answers what has no response.
        limits: When to stop before the end of the prompts.
        prompts: The file.

    Raises:
        PeagleError: The prompts or the output file cannot be used.
    """
    source = PromptsFile(llm, settings, prompts)
    made_of = {"prompts": source.sha256}
    with ConversationWriter(output, _sidecar(llm, made_of, settings), _vocab(llm)) as writer:
        run = Synthesis(llm, source, writer, limits)
        run.tally.dropped += source.dropped
        yield run


def _sidecar(llm: LLM, made_of: dict[str, str], settings: AnswerSettings) -> Sidecar:
    return Sidecar(
        model=llm.name,
        tokenizer_fingerprint=llm.tokenizer.fingerprint(),
        settings={
            **made_of,
            **settings.model_dump(mode="json"),
            "dtype": str(llm.target.dtype).removeprefix("torch."),
            **_quantization(llm),
        },
    )


def _quantization(llm: LLM) -> dict[str, str]:
    """Note what the target is quantised to; files from before the choice say nothing."""
    quantization = llm.target.quantization
    return {} if quantization == "none" else {"quantization": quantization}


def _vocab(llm: LLM) -> int:
    return llm.target.config.vocab_size
