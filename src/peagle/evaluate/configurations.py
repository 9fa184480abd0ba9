"""What is compared: each drafter and each mix of sources, as a chain and as trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from peagle.errors import InvalidRequestError
from peagle.spec import MAX_DEPTH, MAX_TREE_NODES, NetworkMethod, ParallelDraftingSpec

NETWORK, LOOKUP, CORPUS = "network", "lookup", "corpus"

Mix = tuple[str, ...]
"""Sources that draft together: some of `network`, `lookup` and `corpus`, in this order."""

ALL_MIXES: Final[tuple[Mix, ...]] = (
    (NETWORK,),
    (LOOKUP,),
    (CORPUS,),
    (LOOKUP, CORPUS),
    (NETWORK, LOOKUP),
    (NETWORK, CORPUS),
    (NETWORK, LOOKUP, CORPUS),
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way of drafting.

    Attributes:
        drafter: Name of the network; None for text alone.
        mix: Its sources.
        spec: How the trees are made.
        chain: Whether they are chains of the network's most probable tokens.
    """

    drafter: str | None
    mix: Mix
    spec: ParallelDraftingSpec
    chain: bool = False

    @property
    def sources(self) -> str:
        """Names of the sources, the network by its own."""
        return " + ".join(self.drafter or one if one == NETWORK else one for one in self.mix)

    @property
    def shape(self) -> str:
        """What the drafts of a step look like."""
        return f"{'chain' if self.chain else 'tree'} {self.spec.max_tree_nodes}"

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"{self.sources}, {self.shape}"


def configurations(
    drafters: Sequence[tuple[str, NetworkMethod]],
    mixes: Sequence[Mix],
    *,
    nodes: Sequence[int],
    chain: int,
    usual: ParallelDraftingSpec,
) -> list[Configuration]:
    """List what is compared.

    Args:
        drafters: Names and methods of the networks.
        mixes: Sources that draft together.
        nodes: Sizes of the trees.
        chain: Draft tokens of the chain of each network alone; 0 for none.
        usual: The model's own way, from which the trees take their roots and the network's depth.
    """
    listed = []
    for mix in mixes:
        networks: Sequence[tuple[str | None, str]] = (
            list(drafters) if NETWORK in mix else [(None, "lookup")]
        )
        for name, method in networks:
            common: dict[str, Any] = {
                "method": method,
                "lookup": LOOKUP in mix,
                "corpus": CORPUS in mix,
                "adaptive": False,
            }
            if mix == (NETWORK,) and chain:
                shape = {"num_parallel_trees": 1, "prediction_depth": chain,
                         "max_tree_nodes": chain}  # fmt: skip
                spec = ParallelDraftingSpec.parse(common | shape)
                listed.append(Configuration(name, mix, spec, chain=True))
            for count in nodes:
                shape = {
                    "num_parallel_trees": min(usual.num_parallel_trees, count),
                    "prediction_depth": usual.prediction_depth,
                    "max_tree_nodes": count,
                }
                spec = ParallelDraftingSpec.parse(common | shape)
                listed.append(Configuration(name, mix, spec))
    return listed


def parse_nodes(told: str) -> list[int]:
    """Read the sizes of the trees, such as `7,15,31`.

    Raises:
        InvalidRequestError: One is no number, out of range, or named twice.
    """
    sizes = []
    for part in told.split(","):
        size = int(part) if part.strip().isascii() and part.strip().isdigit() else 0
        if not 1 <= size <= MAX_TREE_NODES or size in sizes:
            raise InvalidRequestError(
                f"nodes holds {part.strip()!r}{' twice' if size in sizes else ''}.",
                remedy=f"Give different whole numbers from 1 to {MAX_TREE_NODES}, such as 7,15,31.",
                field="nodes",
            )
        sizes.append(size)
    return sizes


def check_chain(chain: int) -> None:
    """Refuse chains that no network drafts.

    Raises:
        InvalidRequestError: It is too short or too long.
    """
    if not 0 <= chain <= MAX_DEPTH:
        raise InvalidRequestError(
            f"chain cannot be {chain}.",
            remedy=f"Give a whole number from 1 to {MAX_DEPTH}, or 0 for no chain.",
            field="chain",
        )


def choose_mixes(told: str | None, *, network: bool, corpus: bool) -> list[Mix]:
    """Read which sources draft together, such as `network,network+lookup+corpus`.

    Args:
        told: What the user wrote; None for every mix of the sources that there are.
        network: Whether there is a drafter.
        corpus: Whether there is a corpus.

    Raises:
        InvalidRequestError: A source is unknown, missing here, or a mix is named twice.
    """
    missing = {name for name, here in ((NETWORK, network), (CORPUS, corpus)) if not here}
    if told is None:
        return [mix for mix in ALL_MIXES if missing.isdisjoint(mix)]
    mixes: list[Mix] = []
    for part in told.split(","):
        names = sorted(name.strip() for name in part.split("+"))
        mix = next((mix for mix in ALL_MIXES if sorted(mix) == names), None)
        if mix is None or mix in mixes:
            raise InvalidRequestError(
                f"sources holds {part.strip()!r}{' twice' if mix else ''}.",
                remedy="Give different mixes of network, lookup and corpus, such as "
                "network,lookup+corpus,network+lookup+corpus.",
                field="sources",
            )
        for name in mix:
            if name in missing:
                raise InvalidRequestError(
                    f"sources holds {part.strip()!r}, but there is no "
                    f"{'drafter' if name == NETWORK else 'corpus'}.",
                    remedy=f"Give one with --{'drafter' if name == NETWORK else 'corpus'}, or "
                    f"leave {name} out.",
                    field="sources",
                )
        mixes.append(mix)
    return mixes
