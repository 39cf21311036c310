"""What is kept in memory for a while and no longer: as much as fits, the least recently used goes first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memory(Generic[Key, Value]):
    """Values by their keys, for several threads."""

    def __init__(self, most_bytes: int, size_of: Callable[[Value], int], most: int | None = None) -> None:
        self._most_bytes, self._size_of, self._most = most_bytes, size_of, most
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            self._forget(key)
            self._kept[key] = value
            self._bytes += self._size_of(value)
            while self._bytes > self._most_bytes or (self._most is not None and len(self._kept) > self._most):
                self._forget(next(iter(self._kept)))

    def _forget(self, key: Key) -> None:
        value = self._kept.pop(key, None)
        if value is not None:
            self._bytes -= self._size_of(value)
