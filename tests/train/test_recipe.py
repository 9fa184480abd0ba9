"""What a recipe leaves out, what it contradicts, and what it can get wrong."""

from pathlib import Path

import pytest

from peagle.errors import InvalidRequestError
from peagle.train.recipe import Recipe
from tests.draft.tiny_drafter import decoder_config, eagle3_config, peagle_config


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


def test_what_is_left_out_is_usual_for_the_method(write) -> None:
    peagle = Recipe.read(write("layers: 3\n"))
    assert (peagle.method, peagle.layers, peagle.depths, peagle.ratio) == ("peagle", 3, 8, 0.8)
    for eagle3 in (
        Recipe.read(write("method: eagle3\ndepths: 5\n")),
        Recipe.read(write("depths: 5\n"), "eagle3"),
    ):
        assert (eagle3.method, eagle3.layers, eagle3.depths) == ("eagle3", 1, 5)
        assert (eagle3.ratio, eagle3.markov_rank) == (1.0, 0)
    assert Recipe.read(write("")) == Recipe.of_method(None) == Recipe.of_method("peagle")


def test_what_is_written_is_read(write) -> None:
    recipe = Recipe.read(write("method: eagle3\nseed: 4\n"))
    assert Recipe.read(write(recipe.to_yaml())) == recipe


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("laers: 2\n", "laers", "is wrong at laers"),
        ("layers: two\n", "layers", "is wrong at layers"),
        ("depths: 0\n", "depths", "greater than or equal to 1"),
        ("ratio: .nan\n", "ratio", "is wrong at ratio"),
        ("method: medusa\n", "method", "is wrong at method"),
        ("method: [eagle3]\n", "method", "is wrong at method"),
        ("- layers\n", "recipe", "is wrong at recipe"),
        ("layers: [\n", "recipe", "cannot be read"),
        ("method: eagle3\n", "method", "is for eagle3, but --method is peagle"),
    ],
)
def test_mistakes_are_named_in_one_line(write, text: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        Recipe.read(write(text), "peagle" if "is for" in problem else None)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_a_drafters_shape_completes_a_recipe() -> None:
    config = peagle_config(markov_rank=16)
    recipe = Recipe(depths=4).for_drafter(config)
    assert (recipe.method, recipe.layers, recipe.markov_rank) == ("peagle", 2, 16)
    assert (recipe.draft_vocab_size, recipe.depths) == (200, 4)
    two_layers = eagle3_config(decoder=decoder_config(num_layers=2))
    for untold in (Recipe(), Recipe.of_method("eagle3")):
        eagle3 = untold.for_drafter(two_layers)
        assert (eagle3.method, eagle3.layers, eagle3.ratio) == ("eagle3", 2, 1.0)
        assert eagle3.anchor_share == 0.25


@pytest.mark.parametrize(
    ("field", "told", "has"),
    [
        ("method", "peagle", "eagle3"),
        ("layers", 2, "1"),
        ("draft_vocab_size", 100, "200"),
        ("markov_rank", 8, "0"),
    ],
)
def test_a_recipe_that_contradicts_the_drafter_is_refused(field: str, told, has: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field} {told}, but .* has {has}") as caught:
        Recipe(**{field: told}).for_drafter(eagle3_config())
    assert caught.value.field == field
