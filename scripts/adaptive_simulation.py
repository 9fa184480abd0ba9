"""Replay recorded answers through the engine on a machine that is only a cost curve.

    python scripts/adaptive_simulation.py [--curve flat|native|torch|linear] [--tokens 96]

The target is one that knows the greedy answers to the public workload, and a step takes the seconds
that the curve says for its rows, and those that arranging its trees really took. So noise touches
the latter alone. Prints tokens a second with adaptive and pinned trees of the text sources, over
those without speculation, by category and by how many answers are written at a time.
"""

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from peagle.draft.corpus import Corpus
from peagle.draft.mixture import MixturePrior
from peagle.draft.proposer import new_proposer
from peagle.engine.choice import TokenChooser
from peagle.engine.costs import CostCurve, StepCosts
from peagle.engine.engine import Engine
from peagle.engine.sequence import Sequence as EngineSequence
from peagle.engine.stops import StopRule
from peagle.model.config import DecoderConfig
from peagle.model.kv_cache import KVCache
from peagle.model.rows import SequenceRows
from peagle.sampling_params import SamplingParams
from peagle.spec import ParallelDraftingSpec

REPOSITORY = Path(__file__).parents[1]
CORPUS = REPOSITORY / "src" / "peagle" / "catalog" / "corpora" / "smollm2-135m-instruct.safetensors"
ANSWERS = REPOSITORY / "tests" / "draft" / "public_answers.jsonl.gz"
VOCAB = 49_152
CURVES = {
    "flat": ((1, 128), (10.0, 10.0)),
    # A native int8 step: products as in the prototype, and attention.
    "native": ((1, 8, 16, 17, 32, 64, 128), (7.0, 8.5, 12.0, 13.5, 21.0, 40.0, 78.0)),
    "torch": ((1, 2, 4, 8, 16, 32, 128), (39.0, 42.0, 46.0, 53.0, 67.0, 95.0, 260.0)),
    "linear": ((1, 128), (2.0, 256.0)),
}
SPECS = {
    "none": ParallelDraftingSpec(method="none"),
    "adaptive": ParallelDraftingSpec(method="lookup"),
    "pinned": ParallelDraftingSpec(method="lookup", adaptive=False),
}


class Silence:
    """Turns tokens into no text: none of it is looked at."""

    def push(self, ids: Sequence[int]) -> str:  # noqa: ARG002
        """Give nothing."""
        return ""

    def flush(self) -> str:
        """Give nothing."""
        return ""


class RecordedOutput:
    """Logits of the recorded answers; committing moves lengths alone."""

    def __init__(self, rows: Sequence[SequenceRows], answers: dict[int, list[int]]) -> None:
        self.features: list[torch.Tensor] = []
        self.planning_s = 0.0
        self.logits = []
        self._rows = rows
        for part in rows:
            text = answers[id(part.cache)]
            depths = part.depths()
            at = {"all": depths, "last": depths[-1:], "none": []}[part.logits]
            logits = torch.zeros(len(at), VOCAB)
            for row, depth in enumerate(at):
                logits[row, text[min(part.cache.length + depth + 1, len(text) - 1)]] = 1.0
            self.logits.append(logits)

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Count the rows that are kept."""
        for part, rows in zip(self._rows, kept, strict=True):
            part.cache.length += len(rows)


class RecordedTarget:
    """A target that has answered already, on a machine that is a cost curve."""

    rows_per_pass = 128

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self.seconds = 0.0
        self.answers: dict[int, list[int]] = {}

    def forward(
        self,
        cache: KVCache,  # noqa: ARG002
        rows: Sequence[SequenceRows],
        *,
        features: bool,  # noqa: ARG002
    ) -> RecordedOutput:
        """Give the recorded choices, and count the seconds of decoding."""
        if all(part.parents is not None for part in rows):
            self.seconds += self.costs.step(
                [(part.cache.length, len(part.tokens)) for part in rows], 0
            )[0]
        return RecordedOutput(rows, self.answers)


@dataclass
class Run:
    """Tokens written by decoding, target passes of all answers, and seconds of two kinds."""

    tokens: int = 0
    passes: int = 0
    target_s: float = 0.0
    arranging_s: float = 0.0

    def add(self, other: "Run") -> None:
        """Add what another run took."""
        self.tokens += other.tokens
        self.passes += other.passes
        self.target_s += other.target_s
        self.arranging_s += other.arranging_s

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / (self.target_s + self.arranging_s)


class Timed:
    """Adds up what a method takes of the processor."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds = 0.0
        self.original = original = getattr(owner, name)

        def measured(*args: Any, **options: Any) -> None:
            began = time.thread_time()
            original(*args, **options)
            self.seconds += time.thread_time() - began

        setattr(owner, name, measured)


def run(
    some: list[dict],
    spec: ParallelDraftingSpec,
    costs: StepCosts,
    corpus: Corpus,
    prior: MixturePrior,
) -> Run:
    """Write answers together."""
    target = RecordedTarget(costs)
    config = DecoderConfig(
        vocab_size=VOCAB, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=8, context_length=8192, rms_norm_eps=1e-5, rope_theta=1e4,
        rope_scaling=None, tied_embeddings=True, family="llama",
    )  # fmt: skip
    cache = KVCache(config, budget=64 << 20, dtype=torch.float32, device=torch.device("cpu"))
    engine = Engine(target, cache)  # type: ignore[arg-type]
    engine.costs = costs
    params = SamplingParams(ignore_eos=True)
    sequences = []
    for one in some:
        prompt, answer = one["prompt_token_ids"], one["response_token_ids"]
        limits = params.replaced(max_tokens=len(answer))
        sequence = EngineSequence(
            prompt_ids=prompt,
            params=limits,
            spec=spec,
            positions=len(prompt) + len(answer),
            chooser=TokenChooser(limits, prompt, vocab_size=VOCAB, eos_ids=[], seed=0),
            stops=StopRule(limits, eos_ids=[], context_room=8000, detokenizer=Silence()),
            proposer=None
            if spec.method == "none"
            else new_proposer(prompt, spec=spec, corpus=corpus, prior=prior),
        )
        engine.add(sequence)
        sequences.append(sequence)
    while engine.waiting or any(sequence.prefilling for sequence in engine.running):
        engine._admit()
        for sequence in engine.running:
            answer = some[sequences.index(sequence)]["response_token_ids"]
            target.answers[id(sequence.cache)] = [*sequence.prompt_ids, *answer]
        engine.step()
    target.seconds = 0.0
    arranging, learning = Timed(engine._arranger, "arrange"), Timed(EngineSequence, "take")
    while engine.running:
        engine.step()
    EngineSequence.take = learning.original
    for one, sequence in zip(some, sequences, strict=True):
        assert sequence.output_ids == one["response_token_ids"]
    written = sum(sequence.statistics.emitted_tokens for sequence in sequences)
    passes = sum(sequence.statistics.target_passes for sequence in sequences)
    return Run(written, passes, target.seconds, arranging.seconds + learning.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curve", choices=CURVES, default="native")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    arguments = parser.parse_args()
    answers = [json.loads(line) for line in gzip.decompress(ANSWERS.read_bytes()).splitlines()]
    for one in answers:
        del one["response_token_ids"][arguments.tokens :]
    rows, ms = CURVES[arguments.curve]
    curve = CostCurve(rows=rows, seconds=tuple(one / 1000 for one in ms))
    costs = StepCosts(target=curve, per_text_node=2e-6)
    corpus, prior = Corpus.load(CORPUS), MixturePrior.load()
    categories = list(dict.fromkeys(one["category"] for one in answers))
    table = Table(
        "at a time",
        *categories,
        title=f"{arguments.curve}: adaptive (pinned) over none; tokens a pass, arranging",
    )
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("Replaying", total=len(arguments.concurrency) * len(categories))
        for count in arguments.concurrency:
            cells = []
            for category in categories:
                own = [one for one in answers if one["category"] == category]
                # All of them, so many at a time, the last group filled up from the front.
                groups = [
                    [own[(first + place) % len(own)] for place in range(count)]
                    for first in range(0, len(own), count)
                ]
                runs = {name: Run() for name in SPECS}
                for name, spec in SPECS.items():
                    for group in groups:
                        runs[name].add(run(group, spec, costs, corpus, prior))
                none, ours, pinned = (runs[name] for name in ("none", "adaptive", "pinned"))
                share = ours.arranging_s / (ours.arranging_s + ours.target_s)
                cells.append(
                    f"{ours.speed / none.speed:.2f} ({pinned.speed / none.speed:.2f})\n"
                    f"[dim]{ours.tokens / ours.passes:.2f}, {share:.1%}[/dim]"
                )
                progress.advance(bar)
            table.add_row(str(count), *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
