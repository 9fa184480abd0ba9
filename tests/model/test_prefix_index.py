from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from peagle.model.prefix_index import CachedPage, PrefixIndex, page_key

Text = tuple[int, ...]

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@dataclass(eq=False)
class Holder:
    """A sequence: its text, and the pages that it holds."""

    text: Text
    pages: list[CachedPage] = field(default_factory=list)


class IndexOfTexts(RuleBasedStateMachine):
    """The index beside a plain table from whole texts to pages, and a list in order of last use."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.table: dict[Text, int] = {}
        self.oldest_first: list[Text] = []
        self.holders: list[Holder] = []
        self.pages = 0

    def held(self) -> set[Text]:
        return {one.text[:n] for one in self.holders for n in range(1, len(one.pages) + 1)}

    @rule(text=TEXTS)
    def begin(self, text: Sequence[int]) -> None:
        found = self.index.match(text)
        known = 0
        while known < len(text) and tuple(text[: known + 1]) in self.table:
            known += 1
        assert [one.page for one in found] == [
            self.table[tuple(text[: n + 1])] for n in range(known)
        ]
        self.index.hold(found)
        self.holders.append(Holder(tuple(text), found))

    @rule(which=st.integers(0, 99))
    def fill_a_page(self, which: int) -> None:
        filling = [one for one in self.holders if len(one.pages) < len(one.text)]
        if not filling:
            return
        holder = filling[which % len(filling)]
        number = len(holder.pages)
        before = holder.pages[-1] if number else None
        self.pages += 1
        kept = self.index.add(before, holder.text[number], self.pages)
        assert kept.page == self.table.setdefault(holder.text[: number + 1], self.pages)
        holder.pages.append(kept)

    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        if not self.holders:
            return
        holder = self.holders.pop(which % len(self.holders))
        self.index.release(holder.pages)
        for length in range(len(holder.pages), 0, -1):
            text = holder.text[:length]
            if text in self.oldest_first:
                self.oldest_first.remove(text)
            self.oldest_first.append(text)

    @rule()
    def evict(self) -> None:
        idle = [
            text for text in self.oldest_first if text in self.table and text not in self.held()
        ]
        if not idle:
            with pytest.raises(KeyError):
                self.index.evict()
            return
        assert self.index.evict() == self.table.pop(idle[0])
        # Nothing behind it was left without a beginning.
        assert not any(text[: len(idle[0])] == idle[0] for text in self.table)

    @invariant()
    def pages_are_in_use_or_idle(self) -> None:
        held = self.held()
        assert self.index.in_use == len(held)
        assert self.index.idle == len(self.table) - len(held)


TestIndexOfTexts = IndexOfTexts.TestCase


def test_the_first_page_of_a_text_is_known_within_its_scope_only() -> None:
    index = PrefixIndex()
    mine = index.add(None, page_key("mine", 0, [1, 2]), 7)
    index.add(mine, page_key("mine", 1, [3, 4]), 8)

    def pages(scope: object, *texts: list[int]) -> list[int]:
        keys = (page_key(scope, number, text) for number, text in enumerate(texts))
        return [one.page for one in index.match(keys)]

    assert pages("mine", [1, 2], [3, 4], [5, 6]) == [7, 8]
    assert pages("mine", [1, 2], [4, 3]) == [7]
    assert pages("yours", [1, 2], [3, 4]) == []
    assert pages(None, [1, 2]) == []


def test_tokens_that_differ_in_any_byte_are_told_apart() -> None:
    keys = {page_key("", 1, [token, 0]) for token in (1, 1 << 8, 1 << 16, 1 << 24)}
    assert len(keys) == 4
