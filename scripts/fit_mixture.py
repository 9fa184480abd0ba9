"""Fit how much each text source is believed, on held-out text that the corpus does not contain.

    python scripts/fit_mixture.py [INPUT.jsonl.gz] [CORPUS.safetensors] [OUTPUT.json]

Maximises the likelihood of the held-out answers, every category counting alike. Likelihood dwells
on loops, which need no help; so the corpus's evidence is then scaled by the factor with the
highest acceptance length, all answers and those of varied text counting alike.
"""

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from peagle.draft.corpus import ORDER, Corpus
from peagle.draft.lookup import Lookup
from peagle.draft.mixture import SHIPPED_PRIOR, MixturePrior, NetworkWeights
from peagle.draft.proposer import new_proposer
from peagle.draft.replay import replay
from peagle.spec import ParallelDraftingSpec
from peagle.train.conversations import Conversation, read_conversations
from peagle.train.split import RULE, held_out

REPOSITORY = Path(__file__).parents[1]
SELF_CHAT = REPOSITORY / "data" / "smollm2-self-chat.jsonl.gz"
CORPUS = REPOSITORY / "src" / "peagle" / "catalog" / "corpora" / "smollm2-135m-instruct.safetensors"

LONGEST_MATCH = 32
# For drafters that come without weights of their own: at depths 1, 2 and deeper as first measured,
# whatever the length of the match.
NETWORK_WEIGHTS = tuple(((weight,) * (ORDER + 1),) for weight in (0.6, 0.3, 0.1))
# From 10 to 40, acceptance on held-out text is the same to a few thousandths.
TRUST_OBSERVATIONS = 20.0
# Probability of a token that no source knows; keeps its logarithm finite.
FLOOR = 2e-4
STEPS = 400
CORPUS_FACTORS = (1.0, 1.25, 1.5, 1.75, 2.0)


@dataclass(frozen=True)
class Positions:
    """What the sources say at every position of the held-out answers, and which was right.

    Attributes:
        matches: Number of matches by their length: `[positions, LONGEST_MATCH + 1]`.
        right: Those of them that were followed by the right token, likewise.
        corpus: Probability of the right token in the corpus: `[positions]`.
        order: Length of the longest context that the corpus knows: `[positions]`.
        weight: How much each position counts; 1 in all: `[positions]`.
    """

    matches: torch.Tensor
    right: torch.Tensor
    corpus: torch.Tensor
    order: torch.Tensor
    weight: torch.Tensor


def read_positions(conversations: list[Conversation], corpus: Corpus) -> Positions:
    matches, right, probability, order, categories = [], [], [], [], []
    for conversation in conversations:
        text = [*conversation.prompt, conversation.response[0]]
        lookup = Lookup(text, LONGEST_MATCH)
        ranges = corpus.ranges(text)
        for token in conversation.response[1:]:
            both = np.zeros((2, LONGEST_MATCH + 1), dtype=np.float32)
            for position, length in lookup.matches.items():
                if position < len(text):
                    both[0, min(length, LONGEST_MATCH)] += 1
                    both[1, min(length, LONGEST_MATCH)] += text[position] == token
            matches.append(both[0])
            right.append(both[1])
            probability.append(corpus.successors(ranges).get(token, 0.0))
            order.append(len(ranges))
            categories.append(conversation.category)
            text.append(token)
            lookup.extend([token])
            ranges = corpus.follow(ranges, token)
    counts = {category: categories.count(category) for category in set(categories)}
    return Positions(
        torch.from_numpy(np.stack(matches)),
        torch.from_numpy(np.stack(right)),
        torch.tensor(probability),
        torch.tensor(order),
        torch.tensor([1 / len(counts) / counts[category] for category in categories]),
    )


def lookup_evidence(logs: torch.Tensor) -> torch.Tensor:
    """Give k for one token matched, c · (length - 1) ** p for more: `[LONGEST_MATCH + 1]`."""
    k, c, p = logs.exp()
    longer = c * torch.arange(1, LONGEST_MATCH) ** p
    return torch.cat([torch.zeros(1), k.reshape(1), longer])


def fit(at: Positions) -> tuple[list[float], list[float], float]:
    """Return lookup evidence by length, corpus evidence by order, and the loss in nats."""
    shape = torch.tensor([0.05, 0.8, 1.5]).log().requires_grad_()
    corpus = torch.tensor([0.3, 0.3, 0.8, 1.0, 1.8, 3.0]).log().requires_grad_()
    optimizer = torch.optim.Adam([shape, corpus], lr=0.03)
    loss = torch.zeros(())
    for _ in range(STEPS):
        by_length, by_order = lookup_evidence(shape), corpus.exp()
        right, all_of_it = at.right @ by_length, at.matches @ by_length
        evidence = by_order[at.order]
        mixed = (right + evidence * at.corpus) / (all_of_it + evidence)
        # Alone, lookup is fitted with what it leaves to tokens that it does not know.
        alone = torch.where(right > 0, right, by_order[0]) / (all_of_it + by_order[0])
        loss = -(at.weight * (mixed + FLOOR).log()).sum()
        optimizer.zero_grad()
        (loss - (at.weight * (alone + FLOOR).log()).sum()).backward()
        optimizer.step()
    return rounded(lookup_evidence(shape)), rounded(corpus.exp()), loss.item()


def rounded(numbers: torch.Tensor) -> list[float]:
    return [float(f"{number:.3g}") for number in numbers.tolist()]


def acceptance(
    conversations: list[Conversation], corpus: Corpus, prior: MixturePrior
) -> dict[str, float]:
    """Acceptance length of each category, and of varied answers, under the default tree."""
    written: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for each in conversations:
        answer = each.response
        proposer = new_proposer(
            each.prompt, spec=ParallelDraftingSpec(), corpus=corpus, prior=prior
        )
        passes = replay(proposer, answer)
        for group in (each.category, "varied")[: 1 + is_varied(answer)]:
            written[group][0] += len(answer) - 1
            written[group][1] += passes
    return {group: tokens / passes for group, (tokens, passes) in sorted(written.items())}


def is_varied(answer: Sequence[int]) -> bool:
    """Small models loop, and loops flatter every figure."""
    bigrams = list(pairwise(answer))
    return len(set(bigrams)) > 0.6 * len(bigrams)


def prior_of(by_length: list[float], by_order: list[float], factor: float) -> MixturePrior:
    unknown, *known = by_order
    return MixturePrior(
        lookup_evidence=by_length,
        corpus_evidence=(unknown, *(rounded(factor * torch.tensor(known)))),
        network=NetworkWeights(
            match_bounds=(), weights=NETWORK_WEIGHTS, provenance={"fitted": False}
        ),
        trust_observations=TRUST_OBSERVATIONS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", type=Path, nargs="?", default=SELF_CHAT)
    parser.add_argument("corpus", type=Path, nargs="?", default=CORPUS)
    parser.add_argument("output", type=Path, nargs="?", default=SHIPPED_PRIOR)
    told = parser.parse_args()

    corpus = Corpus.load(told.corpus)
    source = read_conversations(
        told.input,
        vocab_size=corpus.description.vocab_size,
        tokenizer_fingerprint=corpus.description.tokenizer_fingerprint or "",
    )
    out = held_out(source.conversations)
    conversations = [each for each, held in zip(source.conversations, out, strict=True) if held]
    at = read_positions(conversations, corpus)
    by_length, by_order, loss = fit(at)

    best: tuple[float, float, MixturePrior, dict[str, float]] | None = None
    for factor in CORPUS_FACTORS:
        prior = prior_of(by_length, by_order, factor)
        reached = acceptance(conversations, corpus, prior)
        varied = reached.pop("varied")
        mean = sum(reached.values()) / len(reached)
        print(f"corpus evidence x {factor}: {mean:.3f}, varied answers {varied:.3f}", flush=True)
        if best is None or mean + varied > best[0]:
            figures = {**reached, "mean of categories": mean, "varied answers": varied}
            best = mean + varied, factor, prior, figures
    assert best is not None
    _, factor, prior, figures = best
    provenance = {
        "fitted_on": f"what this rule holds out: {RULE}",
        "source_sha256": source.sha256,
        "corpus_sha256": hashlib.sha256(told.corpus.read_bytes()).hexdigest(),
        "conversations": len(conversations),
        "positions": len(at.weight),
        "nats_per_token": round(loss, 4),
        "corpus_factor": factor,
        "acceptance_length": {name: round(value, 2) for name, value in figures.items()},
    }
    told.output.write_text(
        json.dumps(prior.model_dump() | {"provenance": provenance}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
