"""A queue that serves its clients in turn, so that one with many requests delays no other."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First come, first served for each client, and one request of each client in turn."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, client: str, item: T) -> None:
        """Queue an item behind the others of its client."""
        self._clients.setdefault(client, deque()).append(item)
        self._count += 1

    def take(self) -> T:
        """Take the next item; its client then stands behind all others.

        Raises:
            IndexError: Nothing waits.
        """
        if not self._clients:
            raise IndexError("nothing waits")
        client, items = self._clients.popitem(last=False)
        item = items.popleft()
        if items:
            self._clients[client] = items
        self._count -= 1
        return item

    def remove(self, client: str, item: T) -> bool:
        """Take an item out, and say whether it was there."""
        items = self._clients.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._clients[client]
        self._count -= 1
        return True

    def clear(self) -> list[T]:
        """Take everything out."""
        items = [item for waiting in self._clients.values() for item in waiting]
        self._clients.clear()
        self._count = 0
        return items
