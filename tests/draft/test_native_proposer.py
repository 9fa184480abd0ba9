"""The native proposer against the one in Python: the very same trees, to the last bit."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle import native
from peagle.draft.corpus import Corpus
from peagle.draft.corpus_build import build_corpus
from peagle.draft.distributions import LevelDistributions, NetworkDistributions
from peagle.draft.mixture import MixturePrior
from peagle.draft.native_proposer import NativeProposer
from peagle.draft.network.drafter import DraftLimits
from peagle.draft.network.native_compute import NativeCompute
from peagle.draft.peagle.drafter import PEagleDrafter
from peagle.draft.peagle.native_markov import NativeBranches
from peagle.draft.peagle.network import PEagleNetwork
from peagle.draft.proposer import new_proposer
from peagle.draft.python_proposer import PythonProposer
from peagle.draft.untrained import random_tensors
from peagle.engine.allocation import allocate
from peagle.engine.expectation import Calibration
from peagle.spec import ParallelDraftingSpec
from tests.draft.eagle3.test_expansion import Conditional, expanded
from tests.draft.test_corpus import some_documents
from tests.draft.test_proposer import a_network
from tests.draft.tiny_drafter import decoder_config, draft, peagle_config

Drafting = Callable[[int], LevelDistributions | None]


class Both:
    """A proposer of each kind, which must say the same."""

    def __init__(
        self,
        token_ids: Sequence[int],
        prior: MixturePrior,
        corpus: Corpus | None,
        /,
        **spec: Any,
    ) -> None:
        given: dict[str, Any] = {
            "spec": ParallelDraftingSpec.parse(spec),
            "corpus": corpus,
            "prior": prior,
        }
        self.python = PythonProposer(token_ids, **given)
        self.native = NativeProposer(token_ids, **given)

    def step(
        self, answer: Sequence[int], network: LevelDistributions | None = None, **limits: int
    ) -> int:
        """Draft once, and take in what the answer says to it; gives the tokens written."""
        assert self.native.longest_match == self.python.longest_match
        tree = self.python.propose(network, **limits)
        assert self.native.propose(network, **limits) == tree
        accepted = tree.walk(answer)
        written = answer[: len(accepted) + 1]
        for one in (self.python, self.native):
            one.observe(tree, accepted)
            one.extend(written)
        assert self.native.repeats == self.python.repeats
        assert self.native._sources.trust == self.python.mixture.trust
        return len(written)

    def write(self, answer: Sequence[int], drafting: Drafting = lambda _: None) -> None:
        """Decode an answer, a network drafting where there is one."""
        place = 0
        while place < len(answer):
            place += self.step(
                answer[place:], drafting(place), depth_limit=max(1, len(answer) - place)
            )


@pytest.mark.parametrize("off", [{"corpus": False}, {"lookup": False}, {}])
def test_recorded_answers_are_drafted_the_same(
    off: dict[str, bool],
    shipped_corpus: Corpus,
    shipped_prior: MixturePrior,
    public_answers: list[dict[str, Any]],
) -> None:
    for one in public_answers[::2]:
        both = Both(one["prompt_token_ids"], shipped_prior, shipped_corpus, **off)
        both.write(one["response_token_ids"][:160])


@pytest.mark.parametrize("shape", [(1, 1), (60, 15), (255, 64), (7, 2)])
def test_trees_of_any_shape_are_the_same(
    shape: tuple[int, int],
    shipped_corpus: Corpus,
    shipped_prior: MixturePrior,
    public_answers: list[dict[str, Any]],
) -> None:
    nodes, roots = shape
    for one in public_answers[1::6]:
        both = Both(
            one["prompt_token_ids"], shipped_prior, shipped_corpus,
            max_tree_nodes=nodes, num_parallel_trees=roots,
        )  # fmt: skip
        both.write(one["response_token_ids"][:40], lambda place: a_network(place, levels=7))


def test_a_network_of_marginals_is_mixed_the_same(
    shipped_corpus: Corpus, shipped_prior: MixturePrior, public_answers: list[dict[str, Any]]
) -> None:
    """Its levels hold the written tokens at times, tokens twice, and what is no number."""

    def drafting(place: int) -> NetworkDistributions:
        rng = random.Random(place)
        levels = []
        for depth in range(6):
            ids = [*answer[place + depth : place + depth + 1], *rng.choices(range(900), k=9)]
            drawn = sorted((rng.random() for _ in ids), reverse=True)
            probabilities = [one / sum(drawn) for one in drawn]
            if depth == place % 4:
                probabilities[-1] = float("nan")
                ids[-2] = ids[-3]
            levels.append((ids, probabilities))
        return NetworkDistributions(levels)

    for one in public_answers[::5]:
        answer = one["response_token_ids"][:80]
        Both(one["prompt_token_ids"], shipped_prior, shipped_corpus).write(answer, drafting)


def some_corpus(vocab_size: int) -> Corpus:
    return build_corpus(
        some_documents(5), vocab_size=vocab_size, source_sha256="", split_rule="none"
    )


def test_a_markov_head_is_asked_without_python(
    slots: Callable[..., tuple[list[int], torch.Tensor]], shipped_prior: MixturePrior
) -> None:
    vocab = 1000
    config = peagle_config(
        markov_rank=16, draft_vocab_size=600, decoder=decoder_config(vocab_size=vocab)
    )
    table = torch.randn(vocab, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    tensors = random_tensors(config, 3)
    compute = NativeCompute(config, tensors, embedding=table, threads=1)
    drafter = PEagleDrafter(
        PEagleNetwork(config, tensors, compute, embedding=table), budget=8 << 20, name="tiny"
    )
    state = drafter.open(200)

    def drafting(place: int) -> LevelDistributions:
        state.observe(*slots(2, place))
        (found,) = draft(drafter, [state], 6)
        assert isinstance(found, NativeBranches)
        return found

    text = some_documents(5)[7] + some_documents(6)[2]
    both = Both(text, shipped_prior, some_corpus(vocab), max_tree_nodes=40)
    both.write((text[10:30] + text[:20])[:40], drafting)


def test_an_eagle3_network_is_asked_the_same_paths(shipped_prior: MixturePrior) -> None:
    text = [token % 30 for token in some_documents(5)[7]] * 2

    def drafting(place: int) -> LevelDistributions:
        return expanded(Conditional(place, 6.0), DraftLimits(5, 30, 6))

    both = Both(
        text, shipped_prior, some_corpus(40), method="eagle3", num_parallel_trees=6,
        max_tree_nodes=30,
    )  # fmt: skip
    both.write(text[5:45], drafting)


@given(
    st.lists(st.integers(0, 3), max_size=200),
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=60), max_size=5),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_texts_in_any_pieces_are_known_the_same(
    text: list[int], pieces: list[list[int]], with_corpus: bool
) -> None:
    """More occurrences than begin a match, and more tokens at once than a match is long."""
    both = Both(text, MixturePrior.load(), some_corpus(40), corpus=with_corpus)
    for piece in pieces:
        assert both.native.propose(node_limit=9) == both.python.propose(node_limit=9)
        both.python.extend(piece)
        both.native.extend(piece)
        assert both.native.repeats == both.python.repeats
    assert both.native.propose() == both.python.propose()


@pytest.mark.parametrize("seed", range(6))
def test_a_pass_is_shared_out_the_same(
    seed: int,
    shipped_corpus: Corpus,
    shipped_prior: MixturePrior,
    public_answers: list[dict[str, Any]],
) -> None:
    rng = random.Random(seed)
    some = [
        Both(one["prompt_token_ids"] + one["response_token_ids"][: 10 * seed], shipped_prior,
             shipped_corpus)
        for one in rng.sample(public_answers, 1 + 3 * seed)
    ]  # fmt: skip
    # The last two are one answer twice: of equally probable nodes the first answer's come first.
    some.append(some[-1])
    networks = [a_network(rng.randrange(99)) if rng.random() < 0.5 else None for _ in some]
    calibrations = [Calibration(rng.choice([1.0, 1.7, 0.4, 3.3])) for _ in some]
    for rise in (0.0, 0.002, 0.02, 0.3):
        seconds = [0.5]
        for _ in range(15 * len(some)):
            seconds.append(seconds[-1] + rng.choice([0.0, rise]))
        python = [one.python.growing(network) for one, network in zip(some, networks, strict=True)]
        grown = [one.native.growing(network) for one, network in zip(some, networks, strict=True)]
        rate = len(some) * rng.choice([0.5, 2.0, 8.0])
        expected = allocate(python, calibrations, seconds, len(some), rate)
        assert allocate(grown, calibrations, seconds, len(some), rate) == expected
        for one, other in zip(grown, python, strict=True):
            assert one.taken == other.taken
            assert one.first(one.taken) == other.first(other.taken)
            assert one.whole() == other.whole()


def test_the_native_proposer_is_taken_where_it_was_built(
    shipped_prior: MixturePrior, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> object:
        return new_proposer([1], spec=ParallelDraftingSpec(), corpus=None, prior=shipped_prior)

    assert isinstance(made(), NativeProposer)
    monkeypatch.setattr(native, "_absence", "it was not built")
    assert isinstance(made(), PythonProposer)


def test_what_a_network_raises_is_raised(shipped_prior: MixturePrior) -> None:
    class Failing:
        levels = 2

        def children(self, depth: int, path: Sequence[int]) -> tuple[list[int], list[float]]:
            raise RuntimeError(f"level {depth} after {list(path)}")

    proposer = NativeProposer([1], spec=ParallelDraftingSpec(), corpus=None, prior=shipped_prior)
    with pytest.raises(RuntimeError, match=r"level 1 after \[\]"):
        proposer.propose(Failing())


def test_tables_that_do_not_belong_together_are_refused() -> None:
    corpus = some_corpus(40)
    for name, change in (
        ("positions", corpus.tables["positions"][:-1].copy()),
        ("successors", corpus.tables["successors"][:-1].copy()),
        ("tokens", corpus.tables["tokens"].astype("int32")),
    ):
        with pytest.raises(ValueError, match=r"padding|together|unsigned"):
            native.library.Corpus(
                **{**corpus.tables, name: change}, shares=corpus.weight_of_shorter
            )
