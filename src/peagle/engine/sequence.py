"""One answer on its way: what it has read, written and drafted so far."""

import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import torch

from peagle.draft.network.state import DrafterState
from peagle.draft.proposer import Proposer
from peagle.draft.tree import CandidateTree, Source
from peagle.engine.choice import TokenChooser
from peagle.engine.constrained_tree import proposed_part
from peagle.engine.expectation import Expectation
from peagle.engine.logprobs import TokenLogprobs, token_logprobs
from peagle.engine.statistics import SpeculationStatistics
from peagle.engine.stops import StopRule
from peagle.engine.verification import Walk
from peagle.errors import PeagleError
from peagle.model.kv_cache import SequenceCache
from peagle.model.rows import SequenceRows
from peagle.sampling_params import SamplingParams
from peagle.spec import ParallelDraftingSpec


class Origin(Enum):
    """How an emitted token came about."""

    TARGET = "target"
    NETWORK = "network"
    LOOKUP = "lookup"
    CORPUS = "corpus"
    GRAMMAR = "grammar"


ORIGINS: Final[Mapping[Source, Origin]] = {
    Source.NETWORK: Origin.NETWORK,
    Source.LOOKUP: Origin.LOOKUP,
    Source.CORPUS: Origin.CORPUS,
    Source.GRAMMAR: Origin.GRAMMAR,
}
"""How a draft token came about, once it is accepted."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer of one request.

    Attributes:
        prompt_ids: The prompt.
        params: How tokens are chosen and when to stop.
        spec: How drafts are made; its method is set.
        positions: Most positions the answer can come to occupy, its prompt included.
        chooser: The target's choice at a node.
        stops: When the answer ends; holds its text.
        proposer: The text sources and the tree; None without speculation.
        scope: Whose text it is: only texts of the same scope share keys and values.
        output_ids: Tokens written so far.
        origins: How each of them came about.
        logprobs: What the model thought of each, if that was asked for.
        statistics: What speculation did.
        cache: Its keys and values; None while it waits and after it ended.
        drafter: The drafter network's state; None where no network drafts.
        cached_tokens: Tokens of the prompt whose keys and values were there already; None until
            its reading begins.
        tree: The drafts being verified in this step.
        newest: Tokens that the latest step wrote.
        expectation: What its draft tokens have been worth.
        first_token_at: When its first token was written, by `time.perf_counter`; None before.
        last_token_at: The same for its latest.
        between_s: Seconds from the step before to the latest; None with the first token.
        error: Why it cannot go on, if it cannot.
    """

    prompt_ids: list[int]
    params: SamplingParams
    spec: ParallelDraftingSpec
    positions: int
    chooser: TokenChooser
    stops: StopRule
    proposer: Proposer | None
    scope: Hashable = None
    output_ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    statistics: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    cache: SequenceCache | None = None
    drafter: DrafterState | None = None
    cached_tokens: int | None = None
    tree: CandidateTree = field(default_factory=CandidateTree)
    newest: int = 0
    expectation: Expectation = field(default_factory=Expectation)
    first_token_at: float | None = None
    last_token_at: float | None = None
    between_s: float | None = None
    error: PeagleError | None = None

    @property
    def prefilling(self) -> bool:
        """Whether part of the prompt is still to be read."""
        return self.cache is None or self.cache.length < len(self.prompt_ids)

    @property
    def finished(self) -> bool:
        """Whether the answer has ended or failed."""
        return self.stops.finish_reason is not None or self.error is not None

    @property
    def accepted(self) -> int:
        """Draft tokens that the latest step accepted."""
        return sum(origin is not Origin.TARGET for origin in self.origins[-self.newest :])

    @property
    def depth_limit(self) -> int:
        """Most draft tokens that can still be accepted before the length limit."""
        return self.stops.remaining - 1

    def tokens(self, first: int, last: int) -> list[int]:
        """Tokens `first` to `last - 1` of prompt and answer."""
        behind = len(self.prompt_ids)
        if last <= behind:
            return self.prompt_ids[first:last]
        return self.prompt_ids[first:] + self.output_ids[max(0, first - behind) : last - behind]

    def prompt_rows(self, most: int) -> SequenceRows:
        """Up to `most` next tokens of the prompt; the last row of all is asked for logits."""
        assert self.cache is not None
        start = self.cache.length
        chunk = self.prompt_ids[start : start + most]
        last = start + len(chunk) == len(self.prompt_ids)
        return SequenceRows(self.cache, chunk, logits="last" if last else "none")

    def tree_rows(self) -> SequenceRows:
        """The last token and the drafts behind it."""
        assert self.cache is not None
        tree = self.tree
        return SequenceRows(
            self.cache,
            [self.output_ids[-1], *tree.tokens],
            [-1, *(parent + 1 for parent in tree.parents)],
        )

    def take(self, walked: Walk, logits: torch.Tensor, features: torch.Tensor | None) -> None:
        """Take what a step decided into the answer.

        Args:
            walked: The walk through the tree.
            logits: `[1 + nodes, vocab]`, row 0 for the last committed token.
            features: Features of the step's rows, `[rows, taps * hidden]`, the last of them for
                those of `logits`, if a network drafts.
        """
        now = time.perf_counter()
        self.between_s = None if self.last_token_at is None else now - self.last_token_at
        self.last_token_at = now
        self.first_token_at = self.first_token_at or now
        if self.output_ids:
            self.statistics.count_step(
                drafted=len(self.tree.tokens),
                accepted=len(walked.accepted),
                emitted=len(walked.emitted),
            )
        if self.params.logprobs is not None:
            masks = dict(enumerate(self.chooser.grammar_masks))
            self.logprobs.extend(
                token_logprobs(logits[row], token, self.params.logprobs, allowed=masks.get(place))
                for place, (row, token) in enumerate(zip(walked.rows, walked.emitted, strict=True))
            )
        self.origins.extend(ORIGINS[self.tree.sources[node]] for node in walked.accepted)
        self.origins.extend([Origin.TARGET] * (len(walked.emitted) - len(walked.accepted)))
        self.output_ids.extend(walked.emitted)
        self.newest = len(walked.emitted)
        if self.finished:
            return
        if self.proposer is not None:
            tree, accepted = self.tree, walked.accepted
            if self.chooser.grammar is not None:
                tree, accepted = proposed_part(tree, accepted)
            self.proposer.observe(tree, accepted)
            if self.spec.adaptive:
                self.expectation.observe(tree, accepted, walked.emitted)
            self.proposer.extend(walked.emitted)
        if self.drafter is not None and features is not None:
            first = len(features) - len(logits)
            rows = torch.tensor([first + row for row in walked.rows], device=features.device)
            self.drafter.observe(walked.emitted, features.index_select(0, rows))

    def read_prompt(self, part: SequenceRows, features: torch.Tensor) -> None:
        """Let the drafter network know a chunk of the prompt, all but what is followed by output.

        Args:
            part: The chunk, whose rows are not committed yet.
            features: Its features, `[chunk, taps * hidden]`.
        """
        if self.drafter is not None:
            first = part.cache.length + 1
            following = self.prompt_ids[first : first + len(part.tokens)]
            # Copied, for a view would keep the features of the whole target pass in memory.
            self.drafter.observe(following, features[: len(following)].clone())
