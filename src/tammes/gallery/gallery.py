"""A gallery together with the model that made it."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import Literal

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery import Store, open_gallery
from tammes.gallery.threshold import Threshold, calibrated, in_store, neighbourhoods, of_run, stored
from tammes.io.files import opened
from tammes.io.machine import device
from tammes.models.embedder import Embedder, load
from tammes.training.run_folder import Run, open_finished


def model_digest(run: Run) -> str:
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
                found.update(source.read())
        except UserError as error:
            raise UserError(f"cannot read {file}: {error}") from None
    return found.hexdigest()[:32]


def trained_on(run: Run) -> list[str]:
    """The names of the classes that the model of a run was trained on."""
    return list((run.read("classes") or {}).get("train", ()))


class Opened:
    """A gallery, the run that made it, and its model."""

    def __init__(self, uri: str, model: Path | None = None, on: Literal["auto", "cpu"] = "auto") -> None:
        self.uri = uri
        self.store: Store = open_gallery(uri)
        made_by = Path(self.store.about.run)
        if model is None and not made_by.exists():
            raise UserError(
                f"{uri} was made by {made_by}, which is not there any more. Say where the run is: --model RUN"
            )
        self.run = open_finished(model or made_by)
        if model_digest(self.run) != self.store.about.model:
            raise UserError(
                f"{uri} was made by another model than that of {self.run.folder}: their vectors cannot be compared."
                f" Make it anew: tammes index {quote(str(self.run.folder))} FOLDER --gallery {quote(uri)} --rebuild"
            )
        self._on: Literal["auto", "cpu"] = on
        self._embedder: Embedder | None = None
        self._calibrated: Threshold | None = None

    @property
    def embedder(self) -> Embedder:
        """Loaded when it is first needed: a search by vector needs none."""
        if self._embedder is None:
            self._embedder = load(self.run.folder).to(device(self._on))
        return self._embedder

    @cached_property
    def threshold(self) -> Threshold | None:
        """Up to which distance a neighbour is near enough to be of the same class.

        The gallery has it since it was indexed; one of an older version calibrates itself here. Without classes to
        calibrate on it is that of the run, if there is one.
        """
        found = stored(self.store)
        if found is None and self._calibrated is None:
            try:
                self._calibrated = calibrated(self.store, self.trained_on)
            except UserError:  # too few classes
                return of_run(self.run)
        return found or self._calibrated

    def forget_threshold(self) -> None:
        """Have it read again."""
        self.__dict__.pop("threshold", None)

    def limits(
        self, vectors: Float32[ndarray, "queries dim"], leave_out: Sequence[str | None] | None = None
    ) -> ndarray:
        """The distance up to which neighbours of each vector are within the threshold, where there is one."""
        assert self.threshold is not None
        found = neighbourhoods(
            in_store(self.store), vectors, self.store.count(), self.threshold.classes_needed, leave_out
        )
        return np.array([self.threshold.limit(hits) for hits in found])

    @property
    def trained_on(self) -> list[str]:
        """The names of the classes that the model was trained on."""
        return trained_on(self.run)
