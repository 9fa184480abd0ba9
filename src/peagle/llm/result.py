"""What comes back: answers with their tokens, origins, figures and timing."""

from dataclasses import dataclass

from peagle.draft.tree import CandidateTree
from peagle.engine.logprobs import TokenLogprobs
from peagle.engine.sequence import Origin
from peagle.engine.statistics import SpeculationStatistics, pooled
from peagle.engine.step_seconds import StepSeconds
from peagle.engine.stops import FinishReason
from peagle.spec import Method


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer.

    Attributes:
        index: Its place among the request's `n` answers.
        text: What it says.
        token_ids: Its tokens, the one that ended it included.
        finish_reason: `stop` or `length`.
        stop_reason: The stop string or token that ended it; None for end-of-sequence and length.
        origins: For each token whether it was the target's own or drafted, and from what.
        logprobs: For each token the model's own log-probabilities, if they were asked for.
        statistics: What speculation did.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    origins: list[Origin]
    logprobs: list[TokenLogprobs] | None
    statistics: SpeculationStatistics


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that a request took.

    Attributes:
        ttft_s: From the request to its first token.
        decode_s: From the first token to the last.
        tokens_per_s: Tokens after the first of each answer, per second of `decode_s`.
        steps: Where the engine's time went since the request came, by parts of its steps; what the
            steps did for other requests is not told apart.
        detokenizing_s: Turning the tokens into text.
    """

    ttft_s: float
    decode_s: float
    tokens_per_s: float
    steps: StepSeconds
    detokenizing_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """The answers to one prompt.

    Attributes:
        prompt_token_ids: The prompt as the model read it.
        cached_tokens: Tokens at its beginning that an earlier text shares, and that were not read
            again.
        choices: The answers, by index.
        method: How drafts were made: `peagle`, `lookup` or `none`.
        seed: What sampling drew with; give it again to get the same answers.
        timing: How long it took.
    """

    prompt_token_ids: list[int]
    cached_tokens: int
    choices: list[Choice]
    method: Method
    seed: int
    timing: Timing

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first answer."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first answer ended."""
        return self.choices[0].finish_reason

    @property
    def statistics(self) -> SpeculationStatistics:
        """What speculation did, over all answers."""
        return pooled(choice.statistics for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to an answer.

    Attributes:
        index: Which of the request's answers.
        text: Text that became certain; may be empty.
        token_ids: Its tokens.
        origins: For each of them whether it was the target's own or drafted, and from what.
        finish_reason: Why the answer ended with it, or None.
        tree: The draft tokens that the step verified; empty where nothing was drafted.
        stop_reason: The stop string or token that ended it, if one did.
        logprobs: The model's own log-probabilities of its tokens, if they were asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    origins: list[Origin]
    finish_reason: FinishReason | None
    tree: CandidateTree
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None

    @property
    def accepted(self) -> list[int]:
        """The nodes of the tree that the target chose too, from the top."""
        drafted = sum(origin is not Origin.TARGET for origin in self.origins)
        return self.tree.walk(self.token_ids[:drafted])
