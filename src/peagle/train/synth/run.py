"""Run scenarios together through the engine and write what comes of them, in order.

Scenarios are begun one after another, and a new one takes the place of each that ends, so that
passes stay full. Their conversations are written in the order of their numbers, whatever ends
first: then the file depends on the settings alone, and a run that was interrupted and continued
makes the same file as one that was not.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from peagle.errors import InvalidRequestError
from peagle.llm import LLM, Generation
from peagle.train.conversations import Conversation, Progress
from peagle.train.synth.duplicates import Duplicates
from peagle.train.synth.limits import Limits, Tally
from peagle.train.synth.loops import LoopDetector
from peagle.train.synth.output import ConversationWriter
from peagle.train.synth.scenario import Chain, Scenario, ScenarioSource, Written

_LEAD: Final = 4
"""Scenarios that may be ahead of the next to be written, in multiples of those that run at once.

What is ahead is lost when a run is interrupted, and written again.
"""
_MOST_BARREN: Final = 500
"""Scenarios in a row without anything new, after which a run gives up."""


@dataclass(slots=True)
class _UnderWay:
    """A scenario that was begun and is not written yet.

    Attributes:
        scenario: What it wants next.
        generation: The text that the target is writing for it.
        loops: Watches that text.
        chains: What came of it; None until it ends.
    """

    scenario: Scenario
    generation: Generation | None = None
    loops: LoopDetector = field(default_factory=LoopDetector)
    chains: list[Chain] | None = None


class Synthesis:
    """A run of scenarios.

    Args:
        llm: The target; as many scenarios run at once as it runs answers.
        source: Where scenarios come from.
        writer: Where conversations go.
        limits: When to stop.
        duplicates: Conversations that are like these are dropped; None drops none.

    Attributes:
        tally: How far it is.
        notes: What was repaired in a file that is continued, in words for the user.
    """

    def __init__(
        self,
        llm: LLM,
        source: ScenarioSource,
        writer: ConversationWriter,
        limits: Limits,
        duplicates: Duplicates | None = None,
    ) -> None:
        self._llm = llm
        self._source = source
        self._writer = writer
        self._limits = limits
        self._duplicates = duplicates
        self._under_way: dict[int, _UnderWay] = {}
        self._next = writer.progress.scenario
        self._barren = 0
        self._started = time.monotonic()
        self.tally = Tally()
        self.notes = writer.notes
        for conversation in writer.written_before():
            self.tally.count(conversation)
            if duplicates is not None:
                duplicates.add(conversation)

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    @property
    def share_done(self) -> float:
        """How far the run is on its way to the first of its ends, from 0 to 1."""
        shares = self._limits.shares(self.tally, self.seconds)
        if self._source.total is not None:
            shares.append(self._writer.progress.scenario / self._source.total)
        return min(1.0, max(shares))

    def run(
        self,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        report: Callable[[], None] = lambda: None,
    ) -> None:
        """Write conversations until a limit is reached, or there are no more scenarios.

        Args:
            interrupted: Asked before every step; true ends the run at once. What was written
                stays, what is under way is dropped.
            report: Called after every step, for someone to look at the tally.
        """
        self._started = time.monotonic()
        try:
            while not self._limits.reached(self.tally) and not interrupted():
                self._begin()
                if not self._under_way:
                    return
                self._llm.step()
                self._advance()
                self._write()
                report()
        finally:
            for under_way in self._under_way.values():
                if under_way.generation is not None:
                    under_way.generation.drop()

    def _begin(self) -> None:
        """Fill free places with new scenarios."""
        places = self._llm.engine.max_concurrent
        taken = sum(each.chains is None for each in self._under_way.values())
        while (
            taken < places
            and len(self._under_way) < _LEAD * places
            and self._limits.more_wanted(self.tally, self.seconds, coming=len(self._under_way))
        ):
            scenario = self._source.scenario(self._next)
            if scenario is None:
                return
            begun = self._under_way[self._next] = _UnderWay(scenario)
            self._next += 1
            self._go_on(begun, None)
            taken += begun.chains is None

    def _go_on(self, under_way: _UnderWay, written: Written | None) -> None:
        """Hand a scenario what was written, and ask the target for what it wants next."""
        try:
            # A generator that has not begun yet takes nothing but None.
            ask = under_way.scenario.send(written)  # type: ignore[arg-type]
        except StopIteration as ended:
            under_way.generation = None
            under_way.chains = ended.value
            return
        prompt = {"prompt_token_ids": list(ask.prompt_ids)}
        under_way.generation = self._llm.stream(prompt, ask.params)
        under_way.loops = LoopDetector()

    def _advance(self) -> None:
        """Take up what the step wrote."""
        for under_way in self._under_way.values():
            generation = under_way.generation
            if generation is None:
                continue
            new = [token for piece in generation.news() for token in piece.token_ids]
            self.tally.generated_tokens += len(new)
            kept = next(filter(None, map(under_way.loops.push, new)), None)
            if kept is not None:
                generation.drop()
                tokens = generation.sequences[0].output_ids[:kept]
                text = self._llm.tokenizer.decode(tokens)
                self._go_on(under_way, Written(tokens, text, ended=False))
            elif generation.finished:
                result = generation.result
                ended = result.finish_reason == "stop"
                self._go_on(under_way, Written(result.token_ids, result.text, ended=ended))

    def _write(self) -> None:
        """Write the scenarios that have ended and follow what is written."""
        # Scenarios may end in one step: what is beyond the limit is not written.
        while not self._limits.reached(self.tally):
            number = self._writer.progress.scenario
            under_way = self._under_way.get(number)
            if under_way is None or under_way.chains is None:
                return
            if not self._write_scenario(under_way.chains):
                return
            del self._under_way[number]

    def _write_scenario(self, chains: list[Chain]) -> bool:
        """Write a scenario's conversations; tell whether none is left for a later run."""
        records = sum(map(len, chains))
        done = 0
        for chain in chains:
            new = True
            for turn, conversation in enumerate(chain):
                done += 1
                if done <= self._writer.progress.records:
                    continue
                # What continues a conversation that was dropped is dropped with it.
                new = new and self._is_new(conversation, first_turn=turn == 0)
                if not new:
                    continue
                self._write_conversation(conversation, done)
                if self._limits.reached(self.tally) and done < records:
                    return False
        self._count_barren()
        before = self._writer.progress
        self._writer.mark(Progress(lines=before.lines, scenario=before.scenario + 1))
        return True

    def _write_conversation(self, conversation: Conversation, done: int) -> None:
        before = self._writer.progress
        self._writer.write(
            conversation,
            Progress(lines=before.lines + 1, scenario=before.scenario, records=done),
        )
        self.tally.count(conversation)
        if self._duplicates is not None:
            self._duplicates.add(conversation)

    def _is_new(self, conversation: Conversation, *, first_turn: bool) -> bool:
        """Whether a conversation is unlike all that were written; counts it where it is not."""
        if self._duplicates is None:
            return True
        likeness = self._duplicates.likeness(conversation, first_turn=first_turn)
        if likeness is not None:
            self.tally.dropped[likeness.value] += 1
        return likeness is None

    def _count_barren(self) -> None:
        """Give up where scenario after scenario brings nothing new.

        Raises:
            InvalidRequestError: The target has nothing more to say under these settings.
        """
        self._barren = 0 if self._writer.progress.records else self._barren + 1
        if self._barren == _MOST_BARREN:
            raise InvalidRequestError(
                f"The last {_MOST_BARREN} scenarios brought nothing new.",
                remedy="Raise the prompt temperature, choose more categories, or be content with "
                "what is written.",
                field="prompt_temperature",
            )
