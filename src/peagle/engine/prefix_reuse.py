"""Prompts that begin as earlier texts are read from there on: keys and values are taken over.

Only whole pages are. A page of the target depends on the tokens before its end; a page of the
drafter network on one token more, as slot `i` takes token `i + 1`. So both have an index of their
own, and an answer that is drafted for begins where both are known: at a page's end at which the
token behind it is another than before, a page earlier. No features need to be kept for that, and
nothing is recomputed by the network; it costs 64 rows of the target in one prompt of 64.
"""

from collections.abc import Hashable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf

from peagle.draft.network.drafter import Drafter
from peagle.engine.sequence import Sequence
from peagle.model.kv_cache import PAGE_POSITIONS, KVCache
from peagle.model.prefix_index import CachedPage, page_key


class PrefixReuse:
    """Begins answers with pages that are in the caches, and keeps those that answers fill.

    Args:
        kv_cache: The target's.

    Attributes:
        queried: Tokens of all prompts that were looked up.
        hits: Of these, tokens that were not read again.
    """

    def __init__(self, kv_cache: KVCache) -> None:
        self._kv_cache = kv_cache
        self.queried = 0
        self.hits = 0

    def begin(
        self, sequence: Sequence, drafter: Drafter | None, running: Iterable[Sequence]
    ) -> None:
        """Give an answer that has read nothing what is known of its prompt.

        At least the prompt's last token stays to be read, for its logits choose the first token.

        Args:
            sequence: The answer, for which room is reserved.
            drafter: The network, if there is one.
            running: Answers that run, whose texts are known as far as they have been read.
        """
        assert sequence.cache is not None
        pages = (len(sequence.prompt_ids) - 1) // PAGE_POSITIONS
        found = self._kv_cache.find(_keys(sequence, 0, pages))
        if drafter is not None and sequence.drafter is not None:
            slots = self._slots(sequence, drafter, found, running)
            drafter.adopt(sequence.drafter, slots)
            found = found[: len(slots)]
        self._kv_cache.adopt(sequence.cache, found)
        sequence.cached_tokens = sequence.cache.length
        self.queried += len(sequence.prompt_ids)
        self.hits += sequence.cached_tokens

    def _slots(
        self,
        sequence: Sequence,
        drafter: Drafter,
        found: SequenceOf[CachedPage],
        running: Iterable[Sequence],
    ) -> list[CachedPage]:
        """Find the network's pages beside those found of the target.

        An answer under way may hold the next page of the target while its slots wait still.
        """
        slots = drafter.cache.find(_slot_keys(sequence, 0, len(found)))
        for other in running:
            if len(slots) == len(found):
                break
            if other.drafter is None or other.cache is None:
                continue
            if found[len(slots)] in other.cache.shared[len(slots) : len(slots) + 1]:
                drafter.fill_pages(other.drafter, goes_on=True)
                self.keep(other, drafter)
                slots = drafter.cache.find(_slot_keys(sequence, 0, len(found)))
        return slots

    def keep(self, sequence: Sequence, drafter: Drafter | None) -> None:
        """Make the pages that an answer has filled since the last call known."""
        cache, state = sequence.cache, sequence.drafter
        if cache is not None:
            for key in _keys(sequence, len(cache.shared), cache.length // PAGE_POSITIONS):
                self._kv_cache.share(cache, key)
        if drafter is not None and state is not None:
            slots = state.cache
            for key in _slot_keys(sequence, len(slots.shared), slots.length // PAGE_POSITIONS):
                drafter.cache.share(slots, key)

    def end(self, sequence: Sequence, drafter: Drafter | None) -> None:
        """Keep all that an answer leaves, slots that the network was not run for included.

        Without them the target's pages could not be taken over by an answer that is drafted for,
        and the target costs many times what the network does.
        """
        if drafter is not None and sequence.drafter is not None:
            drafter.fill_pages(sequence.drafter, goes_on=False)
        self.keep(sequence, drafter)


def _keys(sequence: Sequence, first: int, last: int) -> Iterator[Hashable]:
    """Say what fills the pages `first` to `last - 1` of the target."""
    for number in range(first, last):
        begin = number * PAGE_POSITIONS
        yield page_key(sequence.scope, number, sequence.tokens(begin, begin + PAGE_POSITIONS))


def _slot_keys(sequence: Sequence, first: int, last: int) -> Iterator[Hashable]:
    """Say what fills the pages `first` to `last - 1` of the network, whose features begin a text.

    Every feature depends on the prompt's first token, which no slot takes.
    """
    scope = (sequence.scope, sequence.prompt_ids[0])
    for number in range(first, last):
        begin = number * PAGE_POSITIONS + 1
        yield page_key(scope, number, sequence.tokens(begin, begin + PAGE_POSITIONS))
