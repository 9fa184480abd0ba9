"""Compare what vLLM drafts with what our network drafts; `scripts/interop_vllm.sh` runs it.

python scripts/interop_compare.py answer --target FOLDER --output FILE [--dtype bfloat16|float32]
    [--limit PROMPTS] [--max-tokens N]
python scripts/interop_compare.py compare --target FOLDER --ours FILE --vllm FILE [--drafter FILE]
    [--model NAME]

The target is the exported folder: a GGUF file read in float32 has weights that are finer than the
bfloat16 ones which vLLM gets.

Two things are compared. On identical contexts, vLLM's draft tokens with our greedy chain of the
same depth, without the Markov head, which exports do not have. And over the workload, how many
draft tokens vLLM's own run had accepted with how many ours has, each on its own answers.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peagle import LLM, SamplingParams
from peagle.catalog import resolve
from peagle.draft.network.trunk import SlotRows, keep_slots
from peagle.draft.peagle.network import PEagleNetwork
from peagle.evaluate.workload import read_workload
from peagle.model.rows import SequenceRows
from peagle.model.target import Target

CACHE_BYTES = 256 << 20
EXCUSED_SHARE = 0.01
DEFAULT_MAX_TOKENS = 256
TIE = 1e-3
TIE_STEPS = 4
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer with what was drafted on the way.

    Attributes:
        tokens: What was written.
        drafts: Where each draft stands, as the number of tokens written before, and its tokens.
        accepted: How many of each draft's tokens were accepted, as far as the answer goes.
    """

    tokens: list[int]
    drafts: list[tuple[int, list[int]]]
    accepted: list[int]

    def counts(self, depth: int) -> list[tuple[int, int]]:
        """Numerator and denominator of acceptance length, then of acceptance at each depth.

        A draft token counts if the answer has a token to compare it with.
        """
        left = [len(self.tokens) - written for written, _ in self.drafts]
        emitted = sum(
            min(accepted + 1, room) for accepted, room in zip(self.accepted, left, strict=True)
        )
        return [
            (emitted, len(self.drafts)),
            *(
                (sum(taken > at for taken in self.accepted), sum(room > at for room in left))
                for at in range(depth)
            ),
        ]


class Chains:
    """Our network's chains along some texts, without a Markov head.

    Args:
        model: The target, with the drafter's taps.
        network: The drafter's network.
        texts: Tokens of each text.
        depth: Draft tokens of a chain.
    """

    def __init__(
        self,
        model: Target,
        network: PEagleNetwork,
        texts: Sequence[Sequence[int]],
        depth: int,
    ) -> None:
        self._network = network
        self._texts = texts
        self._depth = depth
        self._features = [_features(model, text) for text in track(texts, "Reading")]
        self._cache = network.compute.new_cache(CACHE_BYTES)
        self._slots = [self._cache.open(len(text) + depth) for text in texts]

    @torch.inference_mode()
    def logits(self, contexts: Mapping[int, int]) -> dict[int, torch.Tensor]:
        """Draft behind the beginnings of some texts.

        Args:
            contexts: By the text's number the length of its beginning, more than at the last call.

        Returns:
            By the text's number float32 `[depth, draft vocab]`.
        """
        rows = []
        for index, context in contexts.items():
            slots, text = self._slots[index], self._texts[index]
            features = self._features[index][slots.length : context - 1]
            rows.append(SlotRows(slots, text[slots.length + 1 : context], features))
        output = self._network.forward(
            self._cache, rows, [self._depth - 1] * len(rows), [self._depth] * len(rows)
        )
        keep_slots(output, rows)
        return dict(zip(contexts, output.logits, strict=True))


def _features(model: Target, tokens: Sequence[int]) -> torch.Tensor:
    """Read a text as serving does, giving `[len(tokens), taps * hidden]`."""
    cache = model.new_cache(CACHE_BYTES)
    sequence = cache.open(len(tokens))
    pieces = []
    for first in range(0, len(tokens), model.rows_per_pass):
        part = tokens[first : first + model.rows_per_pass]
        rows = SequenceRows(sequence, part, logits="none")
        step = model.forward(cache, [rows], features=True)
        step.commit([range(len(part))])
        pieces.append(step.features[0])
    return torch.cat(pieces)


@dataclass(slots=True)
class Agreement:
    """How many draft tokens are the same on identical contexts.

    Attributes:
        dtype: What both compute in.
        contexts: Contexts compared.
        compared: Draft tokens compared.
        excused: Of these, those that differ, but whose logits tie within rounding.
        largest: Largest difference of logits among the excused.
        wrong: Those that differ by more.
        worst: Largest difference of logits among them.
    """

    dtype: str
    contexts: int = 0
    compared: int = 0
    excused: int = 0
    largest: float = 0.0
    wrong: int = 0
    worst: float = 0.0

    def add(self, logits: torch.Tensor, theirs: list[int], draft_ids: dict[int, int]) -> None:
        """Compare our logits `[depth, draft vocab]` with the tokens that vLLM chose."""
        self.contexts += 1
        for row, token in zip(logits, theirs, strict=True):
            self.compared += 1
            best = int(row.argmax())
            if draft_ids.get(token) == best:
                continue
            margin = float(row[best] - row[draft_ids[token]]) if token in draft_ids else math.inf
            if margin > self.tie(float(row[best])):
                self.wrong += 1
                self.worst = max(self.worst, margin)
            else:
                self.excused += 1
                self.largest = max(self.largest, margin)

    def tie(self, logit: float) -> float:
        """Give the difference up to which two logits tie, for two runs round differently."""
        if self.dtype == "float32":
            return TIE
        # A few of the steps that bfloat16 has near this value: each logit was rounded to one.
        return TIE_STEPS * 2.0 ** (math.floor(math.log2(max(abs(logit), 1.0))) - 7)


def of_vllm(answer: dict[str, Any]) -> Answer:
    """Read one answer that `scripts/interop_serve.py` kept."""
    tokens, drafts, accepted = answer["token_ids"], [], []
    written = 0
    for (emitted, draft), (following, _) in zip(
        answer["steps"], [*answer["steps"][1:], ([], [])], strict=True
    ):
        written += len(emitted)
        if written >= len(tokens):
            break
        if following[:-1] != draft[: len(following) - 1]:
            raise ValueError(f"vLLM accepted {following[:-1]}, but had drafted {draft}")
        drafts.append((written, draft))
        accepted.append(min(len(following) - 1, len(tokens) - written))
    return Answer(tokens, drafts, accepted)


def decode(
    chains: Chains, network: PEagleNetwork, prompts: list[list[int]], answers: list[list[int]]
) -> list[Answer]:
    """Decode answers that our engine wrote once more, with chains of the network alone."""
    decoded = [Answer(tokens, [], []) for tokens in answers]
    written = [1] * len(answers)
    while running := [i for i, tokens in enumerate(answers) if written[i] < len(tokens)]:
        found = chains.logits({i: len(prompts[i]) + written[i] for i in running})
        for i, logits in found.items():
            draft = network.target_ids[logits.argmax(-1)].tolist()
            taken = 0
            for drafted, wrote in zip(draft, answers[i][written[i] :], strict=False):
                if drafted != wrote:
                    break
                taken += 1
            decoded[i].drafts.append((written[i], draft))
            decoded[i].accepted.append(taken)
            written[i] += taken + 1
    return decoded


def agreement_with(
    chains: Chains,
    network: PEagleNetwork,
    prompts: list[list[int]],
    answers: list[Answer],
    dtype: str,
) -> Agreement:
    """Draft at every context at which vLLM did, and compare."""
    draft_ids = {token: draft for draft, token in enumerate(network.target_ids.tolist())}
    agreement = Agreement(dtype)
    for at in range(max(len(answer.drafts) for answer in answers)):
        here = {i: one.drafts[at] for i, one in enumerate(answers) if at < len(one.drafts)}
        found = chains.logits({i: len(prompts[i]) + written for i, (written, _) in here.items()})
        for i, logits in found.items():
            agreement.add(logits, here[i][1], draft_ids)
    return agreement


Counts = list[tuple[int, int]]
"""Of each answer: numerator and denominator of one figure."""


def ratio(counts: Counts) -> float:
    """Pool a figure over answers."""
    return sum(top for top, _ in counts) / max(sum(bottom for _, bottom in counts), 1)


def difference(theirs: Counts, ours: Counts) -> tuple[float, float]:
    """Give the difference of two pooled figures and its standard error.

    Answers to the same prompt are alike, so prompts are left out pairwise (jackknife).
    """
    n = len(theirs)
    without = [
        ratio(theirs[:i] + theirs[i + 1 :]) - ratio(ours[:i] + ours[i + 1 :]) for i in range(n)
    ]
    mean = sum(without) / n
    error = math.sqrt((n - 1) / n * sum((one - mean) ** 2 for one in without))
    return ratio(theirs) - ratio(ours), error


def answer_prompts(arguments: argparse.Namespace) -> None:
    """Answer the workload with our engine, and write the prompts as tokens for vLLM to answer."""
    workload = read_workload()[: arguments.limit]
    longest = [
        min(prompt.max_tokens or DEFAULT_MAX_TOKENS, arguments.max_tokens) for prompt in workload
    ]
    results = LLM(arguments.target, dtype=arguments.dtype).generate(
        [prompt.messages for prompt in workload],
        [SamplingParams(max_tokens=most) for most in longest],
    )
    written = [
        {
            "prompt_token_ids": result.prompt_token_ids,
            "max_tokens": most,
            "cut": most < (prompt.max_tokens or DEFAULT_MAX_TOKENS),
            "token_ids": result.token_ids,
        }
        for prompt, result, most in zip(workload, results, longest, strict=True)
    ]
    arguments.output.write_text(json.dumps(written) + "\n", "utf-8")


def compare(arguments: argparse.Namespace) -> None:
    """Compare a run of vLLM with ours, print the table, and exit with 1 if they disagree."""
    asked = json.loads(arguments.ours.read_text("utf-8"))
    run = json.loads(arguments.vllm.read_text("utf-8"))
    drafter = arguments.drafter or resolve(arguments.model).drafter("peagle")
    llm = LLM(arguments.target, drafter=drafter, dtype=run["dtype"])
    network = llm.engine.drafter and llm.engine.drafter.network
    if not isinstance(network, PEagleNetwork):
        sys.exit("The drafter is no P-EAGLE one; this check is for those.")
    depth = len(run["answers"][0]["steps"][0][1])
    prompts = [one["prompt_token_ids"] for one in asked]
    theirs = [of_vllm(answer) for answer in run["answers"]]
    texts = [prompt + answer.tokens for prompt, answer in zip(prompts, theirs, strict=True)]
    agreement = agreement_with(
        Chains(llm.target, network, texts, depth), network, prompts, theirs, run["dtype"]
    )
    written = [one["token_ids"] for one in asked]
    texts = [prompt + tokens for prompt, tokens in zip(prompts, written, strict=True)]
    ours = decode(Chains(llm.target, network, texts, depth), network, prompts, written)
    same = sum(a.tokens == b.tokens for a, b in zip(theirs, ours, strict=True))
    table = Table(title=f"vLLM {run['vllm']}, {run['dtype']}: {run['drafter']}")
    for heading in ("", "vLLM", "ours", "difference", "allowed", ""):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row(
        "draft tokens compared",
        *[f"{agreement.compared:,}"] * 2,
        f"{agreement.wrong}, by up to {agreement.worst:.3g}" if agreement.wrong else "0",
        "0",
        "DISAGREE" if agreement.wrong else "",
    )
    share = agreement.excused / max(agreement.compared, 1)
    few = share < EXCUSED_SHARE
    table.add_row(
        "  ties within rounding, the largest",
        "",
        "",
        f"{agreement.excused} ({share:.2%}), {agreement.largest:.3g}",
        f"{EXCUSED_SHARE:.0%}",
        "" if few else "DISAGREE",
    )
    agree = few and not agreement.wrong
    counted = [[answer.counts(depth) for answer in side] for side in (theirs, ours)]
    for at in range(depth + 1):
        pair = [[counts[at] for counts in side] for side in counted]
        apart, error = difference(*pair)
        within = abs(apart) <= STANDARD_ERRORS * error
        agree = agree and within
        table.add_row(
            f"accepted at depth {at}" if at else "acceptance length",
            *(f"{ratio(counts):.3f}" for counts in pair),
            f"{apart:+.3f}",
            f"{STANDARD_ERRORS * error:.3f}",
            "" if within else "DISAGREE",
        )
    Console(width=120).print(table)
    tokens = [sum(len(answer.tokens) for answer in side) for side in (theirs, ours)]
    cut = sum(one["cut"] for one in asked)
    print(
        f"{len(asked)} answers, {cut} of them cut shorter than the workload says; {tokens[0]} "
        f"tokens by vLLM, {tokens[1]} by us, {same} of the answers the same; "
        f"{agreement.contexts} contexts."
    )
    print(f"vLLM's own counters: {json.dumps(run['counters'])}")
    sys.exit(0 if agree else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    answer = commands.add_parser("answer")
    answer.set_defaults(run=answer_prompts)
    answer.add_argument("--output", type=Path, required=True)
    answer.add_argument("--dtype", default="bfloat16")
    answer.add_argument("--limit", type=int, default=None)
    answer.add_argument("--max-tokens", type=int, default=1 << 30)
    comparing = commands.add_parser("compare")
    comparing.set_defaults(run=compare)
    comparing.add_argument("--drafter", default=None)
    comparing.add_argument("--ours", type=Path, required=True)
    comparing.add_argument("--vllm", type=Path, required=True)
    comparing.add_argument("--model", default="smollm2-135m-instruct")
    for command in (answer, comparing):
        command.add_argument("--target", required=True)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
