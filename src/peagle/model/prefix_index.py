"""Which pages hold the keys and values of which text, so that what begins alike is read once.

A tree whose nodes are whole pages: a page's place says what stands before it, its key what fills
it. Keys are compared, not trusted as hashes, so a page is never taken for another. Pages that no
sequence holds stay until their room is needed; the one whose text was used longest ago goes first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class CachedPage:
    """A page that is full, and whose text is known.

    Attributes:
        page: Its number in the pool.
        key: What fills it.
        beside: The pages behind the same text, by key, itself among them.
        behind: The pages that continue it, by key.
        users: Sequences that hold it.
    """

    page: int
    key: Hashable
    beside: dict[Hashable, "CachedPage"]
    behind: dict[Hashable, "CachedPage"] = field(default_factory=dict)
    users: int = 0


class PrefixIndex:
    """The pages of one pool whose text is known.

    A sequence that holds a page holds all pages before it. When it lets go, the last page becomes
    idle first, so of the idle pages the oldest has none behind it and can go.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, CachedPage] = {}
        self._idle: OrderedDict[CachedPage, None] = OrderedDict()
        self._in_use = 0

    @property
    def in_use(self) -> int:
        """Pages that sequences hold."""
        return self._in_use

    @property
    def idle(self) -> int:
        """Pages that no sequence holds, kept as long as there is room."""
        return len(self._idle)

    def match(self, keys: Iterable[Hashable]) -> list[CachedPage]:
        """Find the pages of a text from its beginning on, up to the first that is not here."""
        found: list[CachedPage] = []
        level = self._first
        for key in keys:
            page = level.get(key)
            if page is None:
                break
            found.append(page)
            level = page.behind
        return found

    def hold(self, pages: Sequence[CachedPage]) -> None:
        """Count another sequence among the users of pages, which begin a text."""
        for page in pages:
            if page.users == 0:
                del self._idle[page]
                self._in_use += 1
            page.users += 1

    def release(self, pages: Sequence[CachedPage]) -> None:
        """Count one sequence less among the users of pages, which begin a text."""
        for page in reversed(pages):
            page.users -= 1
            if page.users == 0:
                self._idle[page] = None
                self._in_use -= 1

    def add(self, before: CachedPage | None, key: Hashable, page: int) -> CachedPage:
        """List a page that a sequence holds, unless its text is here already.

        Args:
            before: The page before it, which the sequence holds; None for the first of a text.
            key: What fills it.
            page: Its number in the pool.

        Returns:
            The page with this text, whose users the sequence is now among.
        """
        level = self._first if before is None else before.behind
        known = level.get(key)
        if known is not None:
            self.hold([known])
            return known
        new = level[key] = CachedPage(page, key, level, users=1)
        self._in_use += 1
        return new

    def evict(self) -> int:
        """Forget the idle page whose text was used longest ago; give its number in the pool.

        Raises:
            KeyError: No page is idle.
        """
        page, _ = self._idle.popitem(last=False)
        del page.beside[page.key]
        return page.page


def page_key(scope: Hashable, number: int, tokens: Sequence[int]) -> Hashable:
    """Say what fills a page, for the index.

    Args:
        scope: Texts of different scopes share nothing.
        number: The page's place in the text; what stands before it is not part of the key.
        tokens: The tokens of its positions.
    """
    filled = array("i", tokens).tobytes()
    return filled if number else (scope, filled)
