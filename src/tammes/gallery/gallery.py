"""A gallery together with the model that made it."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from os import cpu_count
from pathlib import Path
from shlex import quote
from typing import Literal

from jaxtyping import Float32
from numpy import ndarray

from tammes.data.folder import images_below
from tammes.errors import UserError
from tammes.gallery import Store, open_gallery
from tammes.gallery.classification import FolderClassification, SearchResult, classify, classify_hits
from tammes.gallery.indexing import vectors_of, whole_path
from tammes.gallery.store import Hit
from tammes.gallery.threshold import VOTES, Threshold, calibrated, neighbourhoods, run_threshold, stored_threshold
from tammes.io.console import printable, progress, working
from tammes.io.files import opened
from tammes.io.machine import device
from tammes.models.embedder import Embedder, load
from tammes.training.run_folder import RunFolder, open_finished


def model_digest(run: RunFolder) -> str:
    """A text that changes with the model of a run."""
    found = sha256()
    for name in ("embedder.json", "embedder.safetensors"):
        file = run.folder / name
        if not file.exists():
            raise UserError(
                f"{run.folder} has no model of images: {name} is missing. A gallery is made by a run of images."
            )
        try:
            with opened(file) as source:
                while block := source.read(1 << 20):
                    found.update(block)
        except UserError as error:
            raise UserError(f"cannot read {file}: {error}") from None
    return found.hexdigest()[:32]


def trained_on(run: RunFolder) -> list[str]:
    """The names of the classes that the model of a run was trained on."""
    return list((run.read("classes") or {}).get("train", ()))


class Gallery:
    """A gallery, the run that made it, and its model."""

    def __init__(self, uri: str, model: Path | None = None, on: Literal["auto", "cpu"] = "auto") -> None:
        self.uri = uri
        self.store: Store = open_gallery(uri)
        made_by = Path(self.store.about.run)
        if model is None and not made_by.exists():
            raise UserError(
                f"{uri} was made by {made_by}, which is not there any more. Say where the run is: `model=RUN`"
            )
        self.run = open_finished(model or made_by)
        if model_digest(self.run) != self.store.about.model:
            raise UserError(
                f"{uri} was made by another model than that of {self.run.folder}: their vectors cannot be compared."
                f" Rebuild it: tammes index {quote(str(self.run.folder))} FOLDER --gallery {quote(uri)} --rebuild"
            )
        self._on: Literal["auto", "cpu"] = on
        self._calibrated: Threshold | None = None

    def __len__(self) -> int:
        return self.store.count()

    @cached_property
    def embedder(self) -> Embedder:
        """Loaded when it is first needed: a search by vector does without."""
        return load(self.run.folder).to(device(self._on))

    @cached_property
    def threshold(self) -> Threshold | None:
        """Up to which distance a neighbour is near enough to be of the same class.

        It is stored when the gallery is indexed; a gallery of an older version is calibrated here. Without classes to
        calibrate on it is that of the run, if there is one.
        """
        found = stored_threshold(self.store)
        if found is None and self._calibrated is None:
            try:
                self._calibrated = calibrated(self.store, self.trained_on)
            except UserError:  # too few classes
                return run_threshold(self.run)
        return found or self._calibrated

    def threshold_note(self) -> str:
        """For who reads distances: what the threshold means, or how to get one."""
        if self.threshold is None:
            run = printable(quote(str(self.run.folder)))  # the gallery names it, and may be untrusted
            return f"For a threshold, which tells known classes from unknown: tammes calibrate {run}"
        rates = self.threshold.describe()
        moved = f" {rates} `tammes calibrate {self.uri} --unknown-rate …` moves this." if rates else ""
        return f"An image is of a known class if its nearest neighbour is within the threshold.{moved}"

    def forget_threshold(self) -> None:
        """Have it read again."""
        self.__dict__.pop("threshold", None)

    def nearest(
        self,
        vectors: Float32[ndarray, "queries dim"],
        k: int,
        *,
        label: str | None = None,
        exact: bool = False,
        leave_out: Sequence[str | None] | None = None,
    ) -> list[list[Hit]]:
        """The k nearest items of each query; see `Store.search`."""
        return self.store.search(vectors, k, label=label, exact=exact, leave_out=leave_out)

    def search(
        self,
        vectors: Float32[ndarray, "queries dim"],
        k: int,
        *,
        label: str | None = None,
        exact: bool = False,
        leave_out: Sequence[str | None] | None = None,
    ) -> list[SearchResult]:
        """The k nearest items of each query, and what the query may be.

        One search of the store answers both. Only among the items of one class there are two: what the query may be is
        decided by its neighbours of all classes.

        Args:
            label, exact, leave_out: as in `Store.search`.
        """
        threshold = self.threshold
        if threshold is None:
            near = self.nearest(vectors, k, label=label, exact=exact, leave_out=leave_out)
            return [SearchResult(hits, None) for hits in near]
        around = neighbourhoods(
            lambda some, number, without: self.nearest(some, number, exact=exact, leave_out=without),
            vectors,
            len(self),
            threshold.classes_needed,
            leave_out,
            k=k if label is None else 0,
        )
        near = [hits[:k] for hits in around]
        if label is not None:
            near = self.nearest(vectors, k, label=label, exact=exact, leave_out=leave_out)
        return [SearchResult(hits, classify_hits(those, threshold)) for hits, those in zip(near, around, strict=True)]

    def classify_folder(
        self, folder: Path, threshold: Threshold | None = None, *, k: int = VOTES, unknown_rate: float | None = None
    ) -> FolderClassification:
        """A class for each image of a folder; see `classify`. An image that is in the gallery does not find itself.

        Args:
            threshold: which images are unknown; None: that of the gallery, at the unknown rate if one is given.
        """
        files = images_below(whole_path(folder))
        if not files:
            raise UserError(f"no images in {folder}.")
        if threshold is None:
            with working("calibrating on the gallery"):
                threshold = self.threshold if unknown_rate is None else None
                if threshold is None or threshold.accepted is None:  # that of a run: says why it cannot be calibrated
                    threshold = calibrated(self.store, self.trained_on, unknown_rate=unknown_rate)
        with progress("embedding") as on_progress:
            read, vectors, broken = vectors_of(self.embedder, files, threads=cpu_count() or 1, on_progress=on_progress)
        if not read:
            raise UserError(f"none of the {len(files)} images in {folder} can be read: {broken[0]}")
        with progress("searching") as on_progress:
            own = [str(file) for file in read]
            found = classify(self.store, vectors, threshold, k=k, leave_out=own, on_progress=on_progress)
        return FolderClassification(read, found, threshold, broken)

    @property
    def trained_on(self) -> list[str]:
        """The names of the classes that the model was trained on."""
        return trained_on(self.run)
