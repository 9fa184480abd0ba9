"""Compare what candidate trees promise with what the target wrote, and see what a network adds.

    python scripts/calibration.py [--answers 48] [--tokens 128] [--nodes 15] [--public] [--network]

Replays recorded answers: those held out from the corpus of SmolLM2-135M-Instruct, or with
`--public` the greedy ones to the public workload. A node is accepted where the target wrote the
whole path to it. With `--network` the catalog's drafter takes part, and the table at the end says
how many tokens a step it adds to the trees of the text sources, by the longest match.
"""

import argparse
import gzip
import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peagle import LLM
from peagle.draft.corpus import Corpus
from peagle.draft.mixture import MixturePrior
from peagle.draft.network.drafter import DraftLimits
from peagle.draft.proposer import new_proposer
from peagle.draft.tree import CandidateTree
from peagle.engine.expectation import MATCHES, Calibration
from peagle.evaluate.recorded import Recorded, read_features
from peagle.spec import ParallelDraftingSpec
from peagle.train.conversations import read_conversations
from peagle.train.split import held_out

REPOSITORY = Path(__file__).parents[1]
SELF_CHAT = REPOSITORY / "data" / "smollm2-self-chat.jsonl.gz"
CORPUS = REPOSITORY / "src" / "peagle" / "catalog" / "corpora" / "smollm2-135m-instruct.safetensors"
PUBLIC = REPOSITORY / "tests" / "draft" / "public_answers.jsonl.gz"
BINS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)


class Tally:
    """Nodes, what they promised and how many were accepted, by some key."""

    def __init__(self, title: str, key: Callable[[CandidateTree, int], Hashable]) -> None:
        self.title = title
        self.key = key
        self.nodes: dict[Hashable, list[tuple[float, bool]]] = defaultdict(list)

    def add(self, tree: CandidateTree, accepted: set[int]) -> None:
        """Take the nodes of a tree and those of them that were accepted."""
        for node, probability in enumerate(tree.probabilities):
            self.nodes[self.key(tree, node)].append((probability, node in accepted))

    def table(self) -> Table:
        """Give means by key."""
        table = Table(self.title, "nodes", "promised", "accepted", "ratio", "odds")
        for key, nodes in sorted(self.nodes.items(), key=str):
            promised = sum(probability for probability, _ in nodes) / len(nodes)
            accepted = sum(came for _, came in nodes) / len(nodes)
            table.add_row(str(key), f"{len(nodes)}", f"{promised:.3f}", f"{accepted:.3f}",
                          f"{accepted / promised:.2f}", f"{odds_of(nodes):.2f}")  # fmt: skip
        return table


def odds_of(nodes: list[tuple[float, bool]]) -> float:
    """The factor of odds with which the nodes promise what was accepted."""
    accepted = sum(came for _, came in nodes)
    low, high = 0.01, 100.0
    for _ in range(40):
        calibration = Calibration(math.sqrt(low * high))
        promised = sum(calibration.corrected(probability) for probability, _ in nodes)
        low, high = (calibration.odds, high) if promised < accepted else (low, calibration.odds)
    return low


def recorded_answers(corpus: Corpus, count: int, tokens: int, *, public: bool) -> list[Recorded]:
    if public:
        lines = [json.loads(line) for line in gzip.decompress(PUBLIC.read_bytes()).splitlines()]
        found = [
            (line["id"], line["category"], line["prompt_token_ids"], line["response_token_ids"])
            for line in lines
        ]
    else:
        told = corpus.description
        assert told.tokenizer_fingerprint is not None
        conversations = read_conversations(
            SELF_CHAT,
            vocab_size=told.vocab_size,
            tokenizer_fingerprint=told.tokenizer_fingerprint,
        ).conversations
        apart = [
            one for one, out in zip(conversations, held_out(conversations), strict=True) if out
        ]
        found = [(str(i), one.category, one.prompt, one.response) for i, one in enumerate(apart)]
    some = found[:: max(1, len(found) // count)][:count]
    return [
        Recorded(name, category, list(prompt), list(answer[:tokens]), len(answer))
        for name, category, prompt, answer in some
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=15)
    parser.add_argument("--public", action="store_true")
    parser.add_argument("--network", action="store_true")
    arguments = parser.parse_args()
    corpus, prior = Corpus.load(CORPUS), MixturePrior.load()
    answers = recorded_answers(corpus, arguments.answers, arguments.tokens, public=arguments.public)
    spec = ParallelDraftingSpec(max_tree_nodes=arguments.nodes, adaptive=False)
    llm = LLM("smollm2-135m-instruct", parallel_drafting=False) if arguments.network else None
    if llm is not None:
        prior = llm._prior
    tallies = [
        Tally("all", lambda _tree, _node: ""),
        Tally("depth", lambda tree, node: f"{tree.depths[node]:2d}"),
        Tally("source", lambda tree, node: tree.sources[node].name.lower()),
        Tally("probability from", lambda tree, node: (0.0, *BINS)[
            bisect_right(BINS, tree.probabilities[node])]),
    ]  # fmt: skip
    steps = written = 0
    gains: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for answer in track(answers, console=Console(stderr=True)):
        proposer = new_proposer(answer.prompt, spec=spec, corpus=corpus, prior=prior)
        features = state = drafter = None
        observed = 0
        if llm is not None:
            drafter = llm.engine.drafter
            assert drafter is not None
            features = read_features(llm.target, answer)
            state = drafter.open(len(answer.prompt) + len(answer.answer))
        place = 1
        proposer.extend(answer.answer[:1])
        while place < len(answer.answer):
            rest = answer.answer[place:]
            network = None
            if drafter is not None and state is not None and features is not None:
                text = [*answer.prompt, *answer.answer[:place]]
                taps = drafter.network.config.taps
                rows = slice(observed, len(text) - 1)
                tapped = torch.cat([features[tap][rows] for tap in taps], -1)
                state.observe(text[observed + 1 :], tapped)
                observed = len(text) - 1
                depth = min(spec.prediction_depth, len(rest))
                network = drafter.draft([state], [DraftLimits(depth, arguments.nodes, 4)])[0]
            tree = proposer.propose(network, depth_limit=len(rest))
            accepted = tree.walk(rest)
            if network is not None:
                plain = proposer.propose(depth_limit=len(rest), node_limit=len(tree))
                sums = gains[bisect_right(MATCHES, proposer.longest_match)]
                sums[0] += 1
                sums[1] += sum(tree.probabilities) - sum(plain.probabilities)
                sums[2] += len(accepted) - len(plain.walk(rest))
            for tally in tallies:
                tally.add(tree, set(accepted))
            proposer.observe(tree, accepted)
            emitted = rest[: len(accepted) + 1]
            proposer.extend(emitted)
            place += len(emitted)
            steps += 1
            written += len(emitted)
        if drafter is not None and state is not None:
            drafter.close(state)
    console = Console()
    console.print(f"{len(answers)} answers, {steps} steps, {written / steps:.2f} tokens a step")
    for tally in tallies:
        console.print(tally.table())
    if gains:
        table = Table("longest match from", "steps", "promised more", "accepted more")
        for place, (count, promised, more) in sorted(gains.items()):
            table.add_row(str((0, *MATCHES)[place]), f"{count:.0f}", f"{promised / count:.2f}",
                          f"{more / count:.2f}")  # fmt: skip
        console.print(table)


if __name__ == "__main__":
    main()
