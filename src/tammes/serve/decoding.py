"""Decode uploads in separate processes; see `decoder` for their restrictions."""

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from signal import SIGKILL, SIGTERM
from threading import Event, RLock, Timer
from typing import IO, cast

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from tammes.data.images import Mode
from tammes.io.environment import bare_environment
from tammes.serve.errors import RequestError
from tammes.serve.limits import Limits

_RENEWED_AFTER = 500  # images after which a process is replaced, to bound memory leaks of libraries
_STOPPING = "the server is stopping."
_LINE, _THUMBNAIL_BYTES = 10_000, 2_000_000  # bytes, of what a process may answer


@dataclass(frozen=True)
class Decoded:
    """An uploaded image.

    Attributes:
        pixels: as the network sees it.
        thumbnail: as a WebP file.
    """

    pixels: UInt8[ndarray, "channels height width"]
    width: int
    height: int
    thumbnail: bytes


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of the network's input, as in `Embedder`."""

    mode: Mode
    shorter_side: int
    size: int


class DecoderPool:
    """A pool of decoding processes, one for each concurrent upload. Must be closed."""

    def __init__(self, limits: Limits) -> None:
        self._all = [_Decoder(limits) for _ in range(limits.uploads_at_once)]
        self._free = self._all.copy()

    def decode(self, content: bytes, preprocessing: Preprocessing) -> Decoded:
        """Decode an image; blocks, so call it in a thread."""
        decoder = self._free.pop()  # the last that was used: those that are never needed are never started
        try:
            return decoder.decode(content, preprocessing)
        finally:
            self._free.append(decoder)

    def close(self) -> None:
        for each in self._all:
            each.end()


class _Decoder:
    """One decoding process, started on demand and restarted if it has ended."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._done = 0
        self._lock = RLock()
        self._closed = False

    def decode(self, content: bytes, preprocessing: Preprocessing) -> Decoded:
        """Decode, with one retry if the process has ended, as an earlier image may have been the cause."""
        for _ in range(2):
            answer, late, killed = self._asked(content, preprocessing)
            if isinstance(answer, Decoded):
                return answer
            if answer is not None or late or self._closed:
                break
        if answer is None and self._closed:
            raise RequestError(503, _STOPPING, retry_after=10)
        if answer is None and killed and not late:  # by others, as where memory has run out
            raise RequestError(503, "the image could not be decoded now. Try again in a moment.", retry_after=5)
        too_long = f"decoding it takes longer than {self._limits.decode_seconds:g} seconds"
        why = str(answer or f"cannot read the image: {too_long if late else 'it is broken'}.")
        raise RequestError(_status(why), why)

    def _asked(self, content: bytes, preprocessing: Preprocessing) -> tuple[Decoded | str | None, bool, bool]:
        """The answer of the process (None if it has ended), whether it timed out, and whether a signal killed it."""
        process, late, killed = self._running(), Event(), False

        def stop() -> None:
            late.set()
            process.kill()

        timer = Timer(self._limits.decode_seconds, stop)
        timer.start()
        try:
            answer = _exchange(process, content, preprocessing)
        except Exception:  # it has ended, was killed, or answers nonsense: it is not used again
            answer = None
        finally:
            timer.cancel()
            timer.join()
        self._done += 1
        if answer is None or late.is_set():  # the time may have run out just when the answer had come
            with suppress(subprocess.TimeoutExpired):  # one that answers nonsense has not ended by itself
                process.wait(0.1)
            killed = process.returncode in (-SIGKILL, -SIGTERM)
            self._end()
        return answer, late.is_set(), killed

    def end(self) -> None:
        """End the process for ever."""
        self._closed = True
        self._end()

    def _running(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._closed:
                raise RequestError(503, _STOPPING, retry_after=10)
            if self._process is not None and (self._process.poll() is not None or self._done >= _RENEWED_AFTER):
                self._end()
            if self._process is None:
                limits = (str(self._limits.decode_bytes), str(self._limits.upload_pixels))
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "tammes.serve.decoder", *limits],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # where libraries complain about files
                    env=bare_environment(),  # whatever else is there, such as keys, is none of its business
                    start_new_session=True,  # Ctrl-C is for the server, which lets what is under way finish
                )
                self._done = 0
            return self._process

    def _end(self) -> None:
        with self._lock:
            if self._process is not None:
                with suppress(OSError), self._process:  # what was left to write has nowhere to go
                    self._process.kill()
            self._process = None


def _exchange(process: "subprocess.Popen[bytes]", content: bytes, preprocessing: Preprocessing) -> Decoded | str:
    """Send a request to the process and read its answer, with bounds, as a file may have taken the process over."""
    sink, source = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    sink.write(json.dumps({"bytes": len(content), **asdict(preprocessing)}).encode() + b"\n")
    sink.write(content)
    sink.flush()
    line = source.readline(_LINE)
    if not line.endswith(b"\n"):
        raise EOFError
    header = json.loads(line)
    if "error" in header:
        return str(header["error"])
    shape = (len(preprocessing.mode), preprocessing.size, preprocessing.size)
    pixels = np.frombuffer(bytearray(source.read(prod(shape))), dtype=np.uint8).reshape(shape)
    if not 0 <= header["thumbnail"] <= _THUMBNAIL_BYTES:
        raise ValueError
    thumbnail = source.read(header["thumbnail"])
    if len(thumbnail) != header["thumbnail"]:
        raise EOFError
    return Decoded(pixels, int(header["width"]), int(header["height"]), thumbnail)


def _status(error: str) -> int:
    """415 for a file that is not an image, 422 for an unusable image."""
    return 415 if any(words in error for words in ("not an image", "not one of", "is empty")) else 422
