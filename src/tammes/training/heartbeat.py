"""Heartbeats of distributed processes: each process sends one every few seconds.

A process that has ended is noticed at once, by its connection. One that is stopped, or whose machine hangs, is not: the
others wait for it. After a minute without a heartbeat, the first process prints a warning.
"""

import sys
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread
from time import monotonic
from typing import Any

from tammes.io.console import say

_EVERY = 5.0  # seconds
_SILENT = 60.0  # seconds without a heartbeat until the warning


class Heartbeats:
    """The heartbeats of all processes, counted in a shared TCP store."""

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
        """Warn once about a process that has been silent for too long, and report when it is back."""
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
                    f"warning: no sign of process {rank} of {self._number} for a minute: it is stopped, or"
                    " its machine hangs. The others wait for it. If it does not come back, stop them all and"
                    " resume the run: tammes train --resume RUN"
                )

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            try:
                self.beat()
                if self._rank == 0:
                    self.look(monotonic())
            except Exception:  # the store belongs to the first process, which is gone
                if not self._stop.is_set() and self._rank == 1:
                    with suppress(OSError, ValueError):
                        print("warning: no sign of process 0 for a minute.", file=sys.stderr, flush=True)
                return


def heartbeats(host: str, rank: int, number: int, tell: Any) -> Heartbeats | None:
    """The heartbeats of a group of processes; None if they cannot connect on another port.

    Args:
        host: the host of the first process.
        tell: broadcasts a text of the first process.
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
