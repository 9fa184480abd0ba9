import heapq
import itertools
import time
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from peagle.draft.corpus import Corpus
from peagle.draft.distributions import NetworkDistributions
from peagle.draft.mixture import MixturePrior
from peagle.draft.native_proposer import NativeProposer
from peagle.draft.proposer import Proposer
from peagle.draft.python_proposer import PythonProposer
from peagle.draft.replay import replay
from peagle.draft.tree import CandidateTree, Source
from peagle.spec import MAX_DEPTH, ParallelDraftingSpec

LOOP = [11, 12, 13, 14]

Kind = type[PythonProposer] | type[NativeProposer]


@pytest.fixture(params=[PythonProposer, NativeProposer], ids=["python", "native"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Either kind of proposer."""
    kind: Kind = request.param
    return kind


def paths_of(tree: CandidateTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def a_network(seed: int = 0, levels: int = 4, top: int = 6) -> NetworkDistributions:
    random = np.random.default_rng(seed)
    ids = np.stack([random.permutation(100)[:top] for _ in range(levels)])
    probabilities = np.sort(random.dirichlet(np.ones(top), size=levels))[:, ::-1]
    return NetworkDistributions(list(zip(ids.tolist(), probabilities.tolist(), strict=True)))


def trees_of(
    proposer: Proposer, answer: list[int], network: NetworkDistributions | None = None
) -> list[CandidateTree]:
    """Decode an answer, one token of it being written in every step and nothing accepted."""
    trees = []
    for token in answer:
        trees.append(proposer.propose(network))
        proposer.observe(trees[-1], [])
        proposer.extend([token])
    return trees


@pytest.mark.parametrize("nodes", [1, 7, 15, 31])
def test_network_alone_gives_the_most_probable_paths_of_its_marginals(
    nodes: int, shipped_prior: MixturePrior, kind: Kind
) -> None:
    network = a_network()
    spec = ParallelDraftingSpec(
        max_tree_nodes=nodes, num_parallel_trees=nodes, lookup=False, corpus=False
    )
    tree = kind([1, 2, 1, 2], spec=spec, corpus=None, prior=shipped_prior).propose(network)
    expected: dict[tuple[int, ...], float] = {}
    levels = [network.children(depth, ()) for depth in range(1, 5)]
    for depth in range(1, 5):
        for ranks in itertools.product(range(6), repeat=depth):
            path = tuple(level[0][rank] for level, rank in zip(levels, ranks, strict=False))
            expected[path] = float(
                np.prod([level[1][rank] for level, rank in zip(levels, ranks, strict=False)])
            )
    best = heapq.nlargest(nodes, expected.items(), key=lambda item: item[1])
    assert set(paths_of(tree)) == {path for path, _ in best}
    assert tree.probabilities == pytest.approx([probability for _, probability in best])
    assert set(tree.sources) == {Source.NETWORK}


def test_conditional_network_sees_the_path_of_the_branch(
    shipped_prior: MixturePrior, kind: Kind
) -> None:
    class Counting:
        levels = 3

        def children(self, depth: int, path: tuple[int, ...]) -> tuple[list[int], list[float]]:
            assert len(path) == depth - 1
            return [sum(path) + depth, 50], [0.8, 0.1]

    spec = ParallelDraftingSpec(max_tree_nodes=3, lookup=False, corpus=False)
    tree = kind([1], spec=spec, corpus=None, prior=shipped_prior).propose(Counting())
    assert paths_of(tree) == [(1,), (1, 3), (1, 3, 7)]


def test_loop_is_drafted_as_deep_as_there_are_nodes(
    shipped_prior: MixturePrior, kind: Kind
) -> None:
    proposer = kind(
        LOOP * 20, spec=ParallelDraftingSpec(corpus=False), corpus=None, prior=shipped_prior
    )
    tree = proposer.propose()
    assert tree.tokens == (LOOP * 4)[:15]
    assert tree.depths == list(range(1, 16))
    assert set(tree.sources) == {Source.LOOKUP}


@pytest.mark.parametrize("limit", [1, 3, MAX_DEPTH, 500])
def test_depth_limit_holds(limit: int, shipped_prior: MixturePrior, kind: Kind) -> None:
    spec = ParallelDraftingSpec(max_tree_nodes=60)
    tree = kind(LOOP * 20, spec=spec, corpus=None, prior=shipped_prior).propose(depth_limit=limit)
    assert max(tree.depths) == min(limit, MAX_DEPTH)


def test_granted_nodes_are_the_most_probable_ones(
    shipped_corpus: Corpus,
    shipped_prior: MixturePrior,
    public_answers: list[dict[str, Any]],
    kind: Kind,
) -> None:
    proposer = kind(
        public_answers[0]["prompt_token_ids"],
        spec=ParallelDraftingSpec(),
        corpus=shipped_corpus,
        prior=shipped_prior,
    )
    tree = proposer.propose()
    assert len(tree) == 15
    assert proposer.propose(node_limit=5) == tree.first(5)
    assert proposer.propose(node_limit=0) == CandidateTree()
    assert proposer.propose(node_limit=99) == tree


def test_nothing_known_proposes_nothing(shipped_prior: MixturePrior, kind: Kind) -> None:
    for text in ([], [1], [1, 2, 3]):
        proposer = kind(text, spec=ParallelDraftingSpec(), corpus=None, prior=shipped_prior)
        assert proposer.propose() == CandidateTree()


def test_sources_that_are_off_propose_nothing(
    shipped_corpus: Corpus,
    shipped_prior: MixturePrior,
    public_answers: list[dict[str, Any]],
    kind: Kind,
) -> None:
    prompt = public_answers[0]["prompt_token_ids"]
    for off, on in (("lookup", Source.CORPUS), ("corpus", Source.LOOKUP)):
        proposer = kind(
            prompt,
            spec=ParallelDraftingSpec.parse({off: False}),
            corpus=shipped_corpus,
            prior=shipped_prior,
        )
        assert set(proposer.propose().sources) == {on}


def test_branches_of_several_sources_merge(
    shipped_corpus: Corpus,
    shipped_prior: MixturePrior,
    public_answers: list[dict[str, Any]],
    kind: Kind,
) -> None:
    proposer = kind(
        public_answers[0]["prompt_token_ids"],
        spec=ParallelDraftingSpec(num_parallel_trees=15, max_tree_nodes=60),
        corpus=shipped_corpus,
        prior=shipped_prior,
    )
    tree = proposer.propose(a_network())
    assert set(tree.sources) == {Source.NETWORK, Source.LOOKUP, Source.CORPUS}
    assert len(set(paths_of(tree))) == len(tree) == 60


def test_requests_do_not_influence_each_other(
    shipped_corpus: Corpus,
    shipped_prior: MixturePrior,
    public_answers: list[dict[str, Any]],
    kind: Kind,
) -> None:
    def fresh(index: int) -> Proposer:
        return kind(
            public_answers[index]["prompt_token_ids"],
            spec=ParallelDraftingSpec(),
            corpus=shipped_corpus,
            prior=shipped_prior,
        )

    answer = public_answers[7]["response_token_ids"][:40]
    alone = trees_of(fresh(7), answer, a_network())
    proposer, other = fresh(7), fresh(8)
    together = []
    for token in answer:
        together += trees_of(proposer, [token], a_network())
        trees_of(other, answer[:3])
    assert together == alone


def test_recorded_answers_are_accepted_as_far_as_measured(
    shipped_corpus: Corpus,
    shipped_prior: MixturePrior,
    public_answers: list[dict[str, Any]],
    kind: Kind,
) -> None:
    written: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    begin = time.process_time()
    for each in public_answers:
        answer = each["response_token_ids"]
        proposer = kind(
            each["prompt_token_ids"],
            spec=ParallelDraftingSpec(),
            corpus=shipped_corpus,
            prior=shipped_prior,
        )
        passes = replay(proposer, answer)
        bigrams = list(itertools.pairwise(answer))
        varied = len(set(bigrams)) > 0.6 * len(bigrams)
        for group in (each["category"], "varied")[: 1 + varied]:
            written[group][0] += len(answer) - 1
            written[group][1] += passes
    steps = sum(passes for group, (_, passes) in written.items() if group != "varied")
    length = {group: tokens / passes for group, (tokens, passes) in written.items()}
    varied_length = length.pop("varied")
    assert len(length) == 6
    assert sum(length.values()) / 6 > 3.55
    assert varied_length > 2.6
    # A target pass takes some 25 ms; drafting may take a tenth of it.
    assert (time.process_time() - begin) / steps < 2.5e-3


def test_replay_counts_the_passes_after_the_first_token(
    shipped_prior: MixturePrior, kind: Kind
) -> None:
    spec = ParallelDraftingSpec(max_tree_nodes=3)
    proposer = kind(LOOP * 20, spec=spec, corpus=None, prior=shipped_prior)
    # Of 13 tokens the prompt's pass writes one; three passes write four each.
    assert replay(proposer, LOOP * 3 + LOOP[:1]) == 3
    assert replay(kind([5], spec=spec, corpus=None, prior=shipped_prior), [1, 2, 3]) == 2
    assert replay(kind([5], spec=spec, corpus=None, prior=shipped_prior), [1]) == 0
