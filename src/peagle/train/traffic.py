"""What a run trains on: files of conversations, and the log of an endpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peagle.errors import InvalidRequestError
from peagle.llm import LLM
from peagle.model.loading import LoadedTarget
from peagle.model.torch_target import TorchTarget
from peagle.train.conversations import Conversation, read_conversations
from peagle.train.synth.prompts_file import PromptsFile
from peagle.train.synth.settings import AnswerSettings


@dataclass(frozen=True, slots=True)
class Traffic:
    """Logged requests.

    Attributes:
        conversations: Those with a response.
        left_out: How many are not among them, by reason.
    """

    conversations: list[Conversation]
    left_out: dict[str, int]

    @property
    def summary(self) -> str:
        """The same in a line for the user."""
        reasons = ", ".join(f"{count} with {why}" for why, count in self.left_out.items())
        kept = f"{len(self.conversations)} logged requests"
        return f"{kept}; left out: {reasons}" if reasons else kept


def read_data(paths: Sequence[Path], target: LoadedTarget[TorchTarget]) -> list[Conversation]:
    """Read files of conversations (`peagle synth`) with a target's tokenizer.

    Raises:
        CheckpointError: A file cannot be read, holds something else, or was made for another
            tokenizer.
    """
    return [
        conversation
        for path in paths
        for conversation in read_conversations(
            path,
            vocab_size=target.tokenizer.vocab_size,
            tokenizer_fingerprint=target.tokenizer.fingerprint(),
        ).conversations
    ]


def read_traffic(path: Path, model: str) -> Traffic:
    """Read logged requests, as `peagle synth --prompts` reads them, with their responses.

    Args:
        path: A JSON object a line: a prompt or messages, and the response.
        model: The target that answered.

    Raises:
        InvalidRequestError: The file cannot be read, a line is wrong, or none has a response.
    """
    read = PromptsFile(LLM(model, parallel_drafting=False), AnswerSettings(), path)
    answered = read.answered
    if not answered:
        raise InvalidRequestError(
            f"None of the {read.total} requests in {path} has a response.",
            remedy="Log the responses too, or let the model answer: peagle synth --prompts.",
            field="traffic",
        )
    left_out = dict(read.dropped)
    if unanswered := read.total - len(answered):
        left_out["no response"] = unanswered
    return Traffic(answered, left_out)
