import json

from peagle.evaluate.workload import read_workload
from peagle.train.synth.openings import Opening, shipped_openings


def test_categories_are_those_of_the_workloads_and_an_open_one() -> None:
    openings = shipped_openings()
    measured = {prompt.category for prompt in read_workload()}
    assert set(openings.categories) == measured | {"open"}
    assert openings.categories[0] == "open"
    assert set(openings.about_document) == {"summarization", "qa", "json"}


def test_every_entry_is_used_as_it_is_meant() -> None:
    openings = shipped_openings()
    alone = [each for some in openings.by_category.values() for each in some]
    for each in (*openings.documents, *alone):
        assert each.goes_on
        assert "{document}" not in each.text
        assert each.text == each.text.lstrip()
    for some in openings.about_document.values():
        assert all(each.text.count("{document}") == 1 for each in some)
        assert any(not each.goes_on for each in some)
    for some in (openings.documents, *openings.by_category.values()):
        assert len(set(some)) == len(some)


def test_an_ellipsis_means_that_the_model_writes_on() -> None:
    assert Opening.of("Write a…") == Opening("Write a", goes_on=True)
    assert Opening.of("Sum up: {document}") == Opening("Sum up: {document}", goes_on=False)
    assert Opening.of("{document}\n\nWhy…").about("A {b}") == Opening("A {b}\n\nWhy", goes_on=True)


def test_no_public_prompt_is_given_away() -> None:
    words = 7
    openings = shipped_openings()
    texts = [
        each.text.lower().split()
        for some in (*openings.by_category.values(), *openings.about_document.values())
        for each in some
    ]
    runs = {tuple(text[i : i + words]) for text in texts for i in range(len(text) - words + 1)}
    public = json.dumps([prompt.messages for prompt in read_workload()]).lower().split()
    assert not runs & {tuple(public[i : i + words]) for i in range(len(public) - words + 1)}
