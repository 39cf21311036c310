"""Whether all processes that train together are still alive: each says so every few seconds.

One that has ended is noticed at once, by its connections. One that was stopped, or hangs with its machine, is not: the
others wait for it. Without a word from it for a minute, the first process says so.
"""

import sys
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread
from time import monotonic
from typing import Any

from tammes.io.console import say

_EVERY = 5.0  # seconds
_SILENT = 60.0  # seconds after which it is said


class Heartbeats:
    """The signs of life of all processes, counted in a store that all of them reach."""

    def __init__(self, store: Any, rank: int, number: int) -> None:
        self._store, self._rank, self._number = store, rank, number
        self._seen = {each: (0, monotonic()) for each in range(number)}
        self._missed: set[int] = set()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * _EVERY)

    def beat(self) -> None:
        self._store.add(f"beat {self._rank}", 1)

    def look(self, now: float) -> None:
        """Say which process has been silent for too long, once; and that it is back."""
        for rank in range(self._number):
            count = self._store.add(f"beat {rank}", 0)
            before, since = self._seen[rank]
            if count != before:
                self._seen[rank] = count, now
                if rank in self._missed:
                    self._missed.discard(rank)
                    say(f"process {rank} of {self._number} is back.")
            elif now - since > _SILENT and rank not in self._missed:
                self._missed.add(rank)
                say(
                    f"warning: process {rank} of {self._number} has not been heard of for a minute: it is stopped, or"
                    " its machine hangs. The others wait for it. If it does not come back, stop them all and"
                    " resume the run: tammes train --resume RUN"
                )

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            try:
                self.beat()
                if self._rank == 0:
                    self.look(monotonic())
            except Exception:  # the store is that of the first process
                if not self._stop.is_set() and self._rank == 1:  # the first cannot say it
                    with suppress(OSError, ValueError):
                        print("warning: process 0 has not been heard of for a minute.", file=sys.stderr, flush=True)
                return


def heartbeats(host: str, rank: int, number: int, tell: Any) -> Heartbeats | None:
    """Those of the processes of a group; None where they cannot reach one another by another port.

    Args:
        host: of the first process.
        tell: gives a text of the first process to all of them.
    """
    import torch.distributed as dist

    tcp_store: Any = dist.TCPStore  # type: ignore[attr-defined]
    patience, store = timedelta(seconds=_SILENT), None
    if rank == 0:
        with suppress(RuntimeError, ValueError, OSError):
            store = tcp_store(host, 0, number, is_master=True, timeout=patience, wait_for_workers=False)
    port = int(tell(str(0 if store is None else store.port)))
    if rank > 0 and port:
        with suppress(RuntimeError, ValueError, OSError):
            store = tcp_store(host, port, number, is_master=False, timeout=timedelta(seconds=10))
    return None if store is None else Heartbeats(store, rank, number)
