"""A cache of bounded size: the least recently used value goes first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import inf
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Values by their keys, up to so many bytes and so many values; safe to use from several threads."""

    def __init__(self, max_bytes: int, size_of: Callable[[Value], int], max_values: float = inf) -> None:
        self._max_bytes, self._size_of, self._max_values = max_bytes, size_of, max_values
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            self._remove(key)
            self._values[key] = value
            self._bytes += self._size_of(value)
            while self._bytes > self._max_bytes or len(self._values) > self._max_values:
                self._remove(next(iter(self._values)))

    def _remove(self, key: Key) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._bytes -= self._size_of(value)
