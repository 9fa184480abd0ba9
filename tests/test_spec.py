import pytest

from peagle.errors import InvalidRequestError
from peagle.spec import ParallelDraftingSpec


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"trees": 1}, r"unknown key 'trees'.*num_parallel_trees"),
        ({"num_parallel_trees": 0}, r"cannot be 0.*from 1 to 64"),
        ({"num_parallel_trees": True}, "cannot be True"),
        ({"prediction_depth": 7.5}, "cannot be 7.5"),
        ({"prediction_depth": "7"}, "cannot be '7'"),
        ({"prediction_depth": 33}, r"prediction_depth cannot be 33.*from 1 to 32"),
        ({"max_tree_nodes": 256}, "from 1 to 255"),
        ({"lookup": 1}, "lookup cannot be 1"),
        ({"adaptive": "no"}, "adaptive cannot be 'no'"),
        ({"method": "eagle"}, r"cannot be 'eagle'.*\"peagle\", \"eagle3\""),
        ({"method": "none", "lookup": True}, 'method "none" drafts nothing'),
        ({"method": "none", "corpus": True}, "corpus is true"),
        ({"method": "lookup", "lookup": False, "corpus": False}, "both false"),
        ({"num_parallel_trees": 9, "max_tree_nodes": 4}, r"9, more than max_tree_nodes \(4\)"),
        ("{", "not valid JSON"),
        ("[]", "valid dictionary"),
    ],
)
def test_impossible_specs_are_refused_with_what_is_allowed(block: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ParallelDraftingSpec.parse(block)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"method": "none"},
        {"method": "none", "lookup": False},
        {"method": "peagle", "lookup": False, "corpus": False},
        {"method": "eagle3"},
        {"num_parallel_trees": 8},
        {"prediction_depth": 32},
        {"max_tree_nodes": 2},
    ],
)
def test_a_dump_gives_back_what_was_set_and_nothing_else(block: dict[str, object]) -> None:
    spec = ParallelDraftingSpec.parse(block)
    assert spec.model_dump() == block
    assert ParallelDraftingSpec.parse(spec.model_dump_json()) == spec


def test_defaults_are_those_of_the_documentation() -> None:
    spec = ParallelDraftingSpec()
    assert (spec.num_parallel_trees, spec.prediction_depth, spec.max_tree_nodes) == (4, 7, 15)
    assert (spec.method, spec.lookup, spec.corpus, spec.adaptive) == (None, True, True, True)
