"""Ordered parallel map by threads, with bounded memory for results that wait.

Ctrl-C may interrupt the consumer at any point. A `threading.Condition`, and with it `Queue`, `Event` and `Future`,
could then stay locked for ever, so that threads would never end. The two sides therefore share only counters with a
single writer, and `SimpleQueue`, which is locked in C.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")
_Queue: TypeAlias = "SimpleQueue[tuple[Result, int] | BaseException]"  # each result with its size

_CHUNK = 8  # pieces of work that a thread takes at once: handing over costs more than a small image


def in_order(
    work: Callable[[int], Result], count: int, threads: int, most: int, size: Callable[[Result], int] = lambda _: 1
) -> Generator[Result, None, None]:
    """Yield work(0), work(1), … computed by several threads. Closing it early waits for running work and ends them.

    While the waiting results have a total size of `most`, only the next result is computed: large results do not fill
    the memory, and the next one is never blocked.
    """
    made, taken, at, stopped = 0, 0, 0, False  # sizes; the number of the one that is taken next
    writing_made = Lock()  # of the threads alone
    chunks: SimpleQueue[tuple[range, _Queue[Result]] | None] = SimpleQueue()
    starts = range(0, count, _CHUNK)
    wakes: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(min(threads, len(starts)))]  # one for each thread
    running: list[Thread] = []

    def run(wake: "SimpleQueue[None]") -> None:
        while (given := chunks.get()) is not None:
            chunk(*given, wake)

    def chunk(indices: range, found: "_Queue[Result]", wake: "SimpleQueue[None]") -> None:
        nonlocal made
        for index in indices:
            while made - taken >= most and index != at and not stopped:
                wake.get()
            if stopped:
                return
            try:
                result = work(index)
                weight = size(result)
            except BaseException as error:  # raised where the result is taken
                found.put(error)
                return
            with writing_made:
                made += weight
            found.put((result, weight))

    def results(indices: range, found: "_Queue[Result]") -> Iterator[Result]:
        nonlocal taken, at
        for index in indices:
            given = found.get()
            if isinstance(given, BaseException):
                raise given
            taken, at = taken + given[1], index + 1
            for wake in wakes:
                if wake.empty():  # otherwise it will look again anyway
                    wake.put(None)
            yield given[0]

    waiting: deque[tuple[range, _Queue[Result]]] = deque()
    try:
        for wake in wakes:
            # A daemon: one that is interrupted at its start would not end, and the program would wait for it.
            thread = Thread(target=run, args=(wake,), daemon=True, name="tammes-ahead")
            thread.start()
            running.append(thread)
        for start in starts:
            waiting.append((range(start, min(start + _CHUNK, count)), SimpleQueue()))
            chunks.put(waiting[-1])
            if len(waiting) > 4 * threads:
                yield from results(*waiting.popleft())
        while waiting:
            yield from results(*waiting.popleft())
    finally:
        stopped = True
        for wake in wakes:
            wake.put(None)
            chunks.put(None)
        for thread in running:
            thread.join()
