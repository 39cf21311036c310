"""Thousands of damaged, hostile and odd images through doctor, train, embed, index and search, in a process of its own.

    python -m tests.fuzz_images write FOLDER NUMBER
    python -m tests.fuzz_images run FOLDER SEARCHES

writes the images below the folder, then runs the commands and prints what came of them as JSON. The files are those
that a server is tested with (tests/serve/hostile.py), and some that only the pixel limit of files on disk lets through.
"""

import contextlib
import io
import json
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import numpy as np
from PIL import Image

from tests.serve import hostile
from tests.serve.hostile import File, Picture, Rng, chunk

CLASSES, GOOD_IMAGES = 6, 4
SUFFIXES = (".jpg", ".png", ".webp", ".gif", ".bmp", ".tiff", ".avif", ".PNG")  # mostly the wrong ones


def large(_: Rng, number: int, __: Any) -> File:
    """Just below, and far above, the number of pixels that is read from a disk."""
    side = (60_000, 8192, 8000)[number % 3]
    rows = zlib.compressobj(1)
    data = b"".join(rows.compress(bytes(1 + 4 * side)) for _ in range(side if side < 10_000 else 100)) + rows.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return File(f"{side} x {side} RGBA", content, hostile.ANY_FILE)


KINDS: dict[Any, int] = {
    kind: often
    for kind, often in hostile.KINDS.items()
    if kind.__name__
    not in ("names", "headers_in_names", "forms", "floods", "nothing", "wires", "queries")  # what is sent, not stored
}
RARE = (large, hostile.endless, hostile.largest, hostile.too_large)


def files(number: int, pictures: list[Picture]) -> Iterator[File]:
    """So many files: each kind as often as it is sent to a server, and a few of those that take long to make."""
    rng, turns = np.random.default_rng(0), dict.fromkeys((*KINDS, *RARE), 0)
    rare = [kind for kind in RARE for _ in range(number // 5000)] or [large, hostile.endless]
    kinds = list(KINDS)
    shares = np.array([KINDS[kind] for kind in kinds]) / sum(KINDS.values())
    for turn in range(number):
        kind = rare.pop() if rare and turn % 10 == 9 else kinds[int(rng.choice(len(kinds), p=shares))]
        made = kind(np.random.default_rng([turn, 1]), turns[kind], pictures)
        turns[kind] += 1
        yield made


def write(root: Path, number: int) -> None:
    """The data set, good images and the others in classes; and beside it what each of the others is."""
    folder = root / "photos"
    rng = np.random.default_rng(5)
    y, x = np.mgrid[:40, :40]
    pictures, placed = [], {}
    for label in range(CLASSES):
        (folder / f"class {label}").mkdir(parents=True)
        for image in range(GOOD_IMAGES):
            wave = np.sin((x * np.cos(label) + y * np.sin(label)) * (0.3 + 0.1 * label) + image)
            picture = Image.fromarray((128 + 80 * wave + rng.normal(0, 15, (40, 40))).clip(0, 255).astype(np.uint8))
            file = folder / f"class {label}" / f"good {image}.png"
            picture.save(file)
            pictures.append(Picture(str(file.resolve()), picture))
    for turn, made in enumerate(files(number, pictures)):
        file = folder / f"class {turn % CLASSES}" / f"odd {turn}{SUFFIXES[turn // CLASSES % len(SUFFIXES)]}"
        file.write_bytes(made.content)
        right = made.right if made.statuses == {hostile.GOOD} else None
        placed[str(file)] = {"what": made.what, "right": right}
    (root / "placed.json").write_text(json.dumps(placed))


def command(*words: str) -> tuple[int, str, str, float]:
    """The exit code of a command, what it printed, what it said, and how long it took."""
    from tammes.cli import main

    out, err, code, started = io.StringIO(), io.StringIO(), 0, perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return code, out.getvalue(), err.getvalue(), perf_counter() - started


class Memory:
    """The most memory of its own that this process has had, in MB, looked at every few milliseconds.

    Without the pages of files that are mapped, as decoded images are: the system takes those back when it needs them.
    """

    def __init__(self) -> None:
        self.most = self.now()
        Thread(target=self._watch, daemon=True).start()

    def now(self) -> float:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) / 1000

    def take(self) -> float:
        """The most since this was last asked."""
        most, self.most = self.most, 0.0
        return most

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, self.now())
            sleep(0.005)


def fuzzed(root: Path, searches: int) -> dict[str, Any]:
    """What came of it: exit codes, seconds, memory, and which files each command could not read."""
    photos, run, gallery = root / "photos", root / "run", root / "gallery"
    placed: dict[str, dict[str, str | None]] = json.loads((root / "placed.json").read_text())
    number = len(placed)
    memory = Memory()
    libraries = memory.now()
    found: dict[str, Any] = {
        "images": number,
        "codes": {},
        "seconds": {},
        "mb": {},
        "libraries_mb": libraries,
        "wrong": [],
    }

    def did(name: str, *words: str) -> tuple[str, str]:
        code, out, err, seconds = command(*words)
        found["codes"][name], found["seconds"][name], found["mb"][name] = code, seconds, memory.take() - libraries
        if code not in (0, 1, 2):
            found["wrong"].append(f"{name}: {err[-300:]}")
        return out, err

    seen = json.loads(did("doctor", "doctor", str(photos), "--json")[0])
    unreadable = {str(photos / each["image"]) for each in seen["unreadable"]}
    small = ["--backbone", "conv4", "--dim", "16", "--epochs", "1", "--skip-bad"]
    did("train", "train", str(photos), "--out", str(run), *small)
    did("embed", "embed", str(run), str(photos), "--out", str(root / "v.npz"), "--skip-bad")
    with np.load(root / "v.npz") as arrays:
        embedded = {str(photos / path) for path in arrays["paths"]}
        found["finite"] = bool(np.isfinite(arrays["vectors"]).all())
    indexed = json.loads(did("index", "index", str(run), str(photos), "--gallery", str(gallery), "--json")[0])
    found |= {"unreadable": len(unreadable), "embedded": len(embedded), "indexed": indexed["images"]}
    slowest, refused, right, asked = 0.0, 0, 0, 0
    for file, made in list(placed.items())[:: max(1, number // max(1, searches))]:
        code, out, err, seconds = command("search", str(gallery), file, "-k", "3", "--json")
        slowest, asked = max(slowest, seconds), asked + 1
        if code == 2 and err.startswith("tammes: ") and err.count("\n") <= 2:
            refused += 1
        elif code != 0:
            found["wrong"].append(f"search {made['what']}: {code} {err[-300:]}")
        elif made["right"] is not None:
            nearest = json.loads(out)["queries"][0]["found"]
            least = nearest[0]["distance"]
            hits = [hit["path"] for hit in nearest if hit["distance"] <= least + 0.02]
            same = any(made["right"] == hit or str(Path(hit)) == str(Path(file).resolve()) for hit in hits)
            same = same or len(hits) == len(nearest)  # so many copies of it that it need not be among those listed
            right += same
            if not same:
                found["wrong"].append(f"search {made['what']}: {nearest[0]} is not {made['right']}")
    found |= {"searched": asked, "refused": refused, "right": right, "slowest_search": slowest}
    found["mb"]["search"] = memory.take() - libraries
    everything = {*placed, *(str(file) for file in photos.rglob("good *"))}
    if embedded | unreadable != everything and found["codes"]["embed"] == 0:
        # A picture may be too long for 256 pixels, at which doctor judges, and not for 28.
        lost = everything - embedded - unreadable
        found["wrong"] += [f"neither embedded nor unreadable: {placed[file]['what']}" for file in sorted(lost)[:5]]
    return found


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        import lancedb  # noqa: F401

        import tammes.training.train

        assert tammes.training.train  # what they take is not what images take
        print(json.dumps(fuzzed(Path(sys.argv[2]), int(sys.argv[3]))))
