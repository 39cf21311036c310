"""`tammes.Gallery`: searchable items together with the model of their vectors."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from os import cpu_count
from pathlib import Path
from shlex import quote
from typing import Any, Literal, overload

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from PIL import Image
from typing_extensions import TypedDict, Unpack

from tammes.data.folder import images_below
from tammes.data.table import is_table
from tammes.errors import UserError, check_distance, check_whole, unknown_name
from tammes.gallery import Store, open_gallery
from tammes.gallery.classification import Classification, FolderClassification, SearchResult, classify, classify_hits
from tammes.gallery.duplicates import Group, duplicates
from tammes.gallery.filters import NUMBERS, TEXTS, Filter, check_columns, kinds_in, parsed
from tammes.gallery.indexing import vectors_of, whole_path
from tammes.gallery.items import Hit
from tammes.gallery.model import RunLike, check_model, dim_of, model_of, recorded_model
from tammes.gallery.queries import check_image_files, unit_rows
from tammes.gallery.threshold import VOTES, Threshold, calibrated, neighbourhoods, run_threshold, stored_threshold
from tammes.gallery.update import Update, VectorItems, add_files, add_vectors, existing, index_vectors, update
from tammes.io.addresses import without_password
from tammes.io.console import printable, progress, working
from tammes.io.machine import device as device_of
from tammes.models.embedder import Embedder
from tammes.training.run_folder import RunFolder

ImageLike = str | Path | Image.Image


class SearchOptions(TypedDict, total=False):
    """The keyword arguments of `Store.search`."""

    label: str | None
    where: Filter | None
    exact: bool
    leave_out: Sequence[str | None] | None


class Gallery:
    """Searchable images, or vectors of any model, in a folder, object storage, PostgreSQL or Qdrant.

        gallery = tammes.Gallery("gallery", tammes.load("runs/photos"))
        gallery.add("photos/")
        gallery.search("query.jpg", k=10)

    `tammes search`, `serve`, `label`, `duplicates` and `report` use the same galleries, and those of `tammes index`. An
    existing gallery is opened, otherwise an empty one is created.

    Args:
        path: a folder, or s3://bucket/name, gs://…, az://…, postgresql://host/database/name, qdrant://host:port/name.
        embedder: the model that embeds images: an Embedder (of `tammes.load`, `tammes.pretrained` or a run), a Run or
            its folder. None for the model that the gallery records, with its whitening.
        device: the device of a model that is loaded here; "auto" uses a GPU if there is one.
        create: create an empty gallery if there is none, which needs an embedder.

    Raises:
        UserError: there is no gallery, or it was made by another model.
    """

    def __init__(
        self,
        path: str | Path,
        embedder: Embedder | RunLike | str | Path | None = None,
        *,
        device: Literal["auto", "cpu"] = "auto",
        create: bool = True,
    ) -> None:
        self.uri = without_password(str(path))
        self._calibrated: Threshold | None = None
        self._known_kinds: set[tuple[str, type]] = {(name, str) for name in TEXTS} | {(name, float) for name in NUMBERS}
        self._device: Literal["auto", "cpu"] | None = None if isinstance(embedder, Embedder) else device
        there = open_gallery(self.uri) if embedder is None or not create else existing(self.uri)
        if embedder is None or (there is not None and isinstance(embedder, str | Path)):
            assert there is not None
            self.model = recorded_model(there.about, self.uri, embedder)
        else:
            self.model = model_of(embedder)
        self.store: Store = there or open_gallery(self.uri, create=self.model.about(dim_of(self.embedder)))
        self._check_model()

    def _check_model(self) -> None:
        about = self.store.about
        check_model(self.model, about, self.uri)
        if about.kind != "vectors" or not self.model.embeds:
            return
        # Nobody knows what made them but the caller, who says that it was this model.
        if dim_of(self.embedder) != about.dim:
            raise UserError(
                f"{self.uri} holds vectors of {about.dim} numbers, and {self.model.describe()} makes"
                f" {dim_of(self.embedder)}: they are of another model."
            )
        self.model = replace(self.model, digest=about.model)

    @classmethod
    def from_vectors(
        cls,
        path: str | Path,
        vectors: Any,
        *,
        keys: Iterable[Any] | None = None,
        labels: Iterable[Any] | None = None,
        overwrite: bool = False,
    ) -> "Gallery":
        """Create a gallery of vectors of any model, without a network.

        It is searched by vectors and by its items. Vectors are normalised.

        Args:
            vectors: (items, dim), an array or a tensor.
            keys: a name for each vector, such as the path of its file; by default its number.
            labels: the class of each vector; None or "" for none.
            overwrite: replace an existing gallery.
        """
        array, uri = _array(vectors), without_password(str(path))
        names = _texts(range(len(array)) if keys is None else keys)
        if not overwrite and existing(uri) is not None:
            raise UserError(
                f"there is a gallery {uri}. Add to it: tammes.Gallery({uri!r}).add(vectors, keys=keys); or replace it:"
                " overwrite=True"
            )
        items = VectorItems(array, names, None if labels is None else _texts(labels))
        index_vectors(uri, [items], again=overwrite, empty_folders=overwrite)
        return cls(uri)

    def __len__(self) -> int:
        return self.store.count()

    def __repr__(self) -> str:
        return f"Gallery({self.uri!r}): {len(self):,} items, {self.model.describe()}"

    @property
    def run(self) -> RunFolder | None:
        """The run of its model, if there is one."""
        return self.model.run

    @cached_property
    def embedder(self) -> Embedder:
        """The Embedder, loaded when it is first needed; one that was passed stays on its device."""
        built = self.model.build()
        return built if self._device is None else built.to(device_of(self._device))

    def add(
        self,
        items: Any,
        *,
        keys: Iterable[Any] | None = None,
        labels: Iterable[Any] | None = None,
        empty_folders: bool = False,
    ) -> dict[str, Any]:
        """Add images or vectors, or update folders. Returns counts of what was done.

        Args:
            items: one or several folders of images, one sub-folder per class: new and changed images are embedded,
                missing ones removed. Or a table of images, a CSV file or COCO's JSON, whose columns `search` can filter
                by. Or a list of image files. Or vectors, (items, dim).
            keys: a name for each vector; existing ones are replaced.
            labels: the class of each image file or vector. By default files have the class of their folder if it was
                indexed before, vectors have none.
            empty_folders: also remove images if a folder has none left.
        """
        model = replace(self.model, build=lambda: self.embedder)
        classes = None if labels is None else _texts(labels)
        files = _paths(items)
        if files is None:
            array = _array(items)
            if keys is None:
                raise UserError("keys are needed with vectors: what each is called. For example: keys=paths")
            done = add_vectors(self.store, model, VectorItems(array, _texts(keys), classes))
        elif keys is not None:
            raise UserError("keys are for vectors: the key of an image is its path. Leave them out.")
        elif files and all(file.is_dir() or is_table(file) for file in files):
            if classes is not None:
                raise UserError("labels are for files and vectors: folders and tables have their own.")
            what = Update(self.uri, model, tuple(files), empty_folders=empty_folders)
            done = update(what, on=None)
        else:
            done = add_files(self.store, model, check_image_files(files), classes)
        self.store = open_gallery(self.uri)
        self.forget_threshold()
        self._calibrated = None
        return done.record()

    @overload
    def search(
        self, query: ImageLike | None = None, k: int = 10, *, item: str | None = None, label: str | None = None,
        where: str | None = None, exact: bool = False,
    ) -> SearchResult: ...  # fmt: skip

    @overload
    def search(
        self, query: Any, k: int = 10, *, label: str | None = None, where: str | None = None, exact: bool = False
    ) -> Any: ...

    def search(
        self,
        query: Any = None,
        k: int = 10,
        *,
        item: str | None = None,
        label: str | None = None,
        where: str | None = None,
        exact: bool = False,
    ) -> Any:
        """The k nearest items, nearest first, and the classification of the query by them.

        Args:
            query: an image (a file or a Pillow image) or a vector; or several of one kind, in a list or an array
                (queries, dim).
            item: search with an item of the gallery, by its key, instead of a query. It does not find itself.
            label: search only items of this class.
            where: search only items whose columns match, such as "colour = 'red' and price < 20"; see
                `tammes.gallery.filters`.
            exact: compare with every item, even if there is an approximate index.

        Returns:
            A SearchResult, whose `hits` have `path`, `label` and `distance`; for several queries a list of them.
        """
        check_whole("k", k)
        only = None if where is None else parsed(where)
        if label is not None and label not in (known := self.store.labels()):
            raise unknown_name("label", label, known)
        if (query is None) == (item is None):
            raise UserError("give a query or an item: gallery.search('photo.jpg') or gallery.search(item='a.jpg')")
        if item is not None:
            (row,) = self.store.get([item])
            return self.neighbours(row.vector[None], k, label=label, where=only, exact=exact, leave_out=[item])[0]
        vectors, alone, _ = self._vectors(query)
        found = self.neighbours(vectors, k, label=label, where=only, exact=exact)
        return found[0] if alone else found

    @overload
    def classify(self, query: ImageLike, *, k: int = VOTES) -> Classification: ...

    @overload
    def classify(self, query: Any, *, k: int = VOTES) -> Any: ...

    def classify(self, query: Any, *, k: int = VOTES) -> Any:
        """Classify an image or a vector by its k nearest items; unknown if none is within the threshold.

        Args:
            query: as in `search`. An image of the gallery does not find itself.

        Returns:
            A Classification; for several queries a list of them.
        """
        check_whole("k", k)
        vectors, alone, own = self._vectors(query)
        found = classify(self.store, vectors, self._calibrated_threshold(None), k=k, leave_out=own)
        return found[0] if alone else found

    def duplicates(self, threshold: float = 0.1) -> list[Group]:
        """Groups of items within the threshold of each other, or with nearly the same pixels."""
        check_distance("threshold", threshold)
        return duplicates(self.store, threshold)

    def to_pandas(self, *, vectors: bool = False) -> Any:
        """A DataFrame with the path, class and size of each item, sorted by path.

        Args:
            vectors: include a column of vectors.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise UserError("to_pandas needs pandas: pip install pandas") from None
        rows = [row for some in self.store.rows(4096) for row in some]
        columns = ["path", "label", "width", "height", *(["vector"] if vectors else [])]
        table = DataFrame({name: [getattr(row, name) for row in rows] for name in columns})
        return table.sort_values("path", ignore_index=True)

    def _vectors(self, query: Any) -> tuple[Float32[ndarray, "queries dim"], bool, list[str | None]]:
        """The vectors of the queries, whether there was a single one, and the paths of files."""
        images = _images_in(query)
        if images is not None:
            files = [each for each in images if not isinstance(each, Image.Image)]
            check_image_files(list(map(Path, files)))
            own = [None if isinstance(each, Image.Image) else str(Path(each).resolve()) for each in images]
            return self.embedder.encode(images), isinstance(query, str | Path | Image.Image), own
        array = _array(query)
        alone = array.ndim == 1
        array = array[None] if alone else array
        if array.ndim != 2 or array.shape[1] != self.store.about.dim or array.dtype.kind not in "fiu":
            raise UserError(
                f"a query must be an image, or vectors of {self.store.about.dim} numbers, got {array.dtype} in the"
                f" shape {array.shape}."
            )
        return unit_rows(array), alone, [None] * len(array)

    @cached_property
    def threshold(self) -> Threshold | None:
        """The same-class threshold.

        It is stored when the gallery is indexed; a gallery of an older version is calibrated here. Without enough
        classes it is that of the run, if there is one.
        """
        found = stored_threshold(self.store)
        if found is None and self._calibrated is None:
            try:
                self._calibrated = calibrated(self.store, self.trained_on)
            except UserError:  # too few classes
                return None if self.run is None else run_threshold(self.run)
        return found or self._calibrated

    def threshold_note(self) -> str:
        """An explanation of the threshold, or of how to get one."""
        if self.threshold is None and self.run is None:
            return "There is no threshold, which tells known classes from unknown: that needs two or more classes."
        if self.threshold is None:
            assert self.run is not None
            run = printable(quote(str(self.run.folder)))  # the gallery names it, and may be untrusted
            return f"For a threshold, which tells known classes from unknown: tammes calibrate {run}"
        rates = self.threshold.describe()
        moved = f" {rates} `tammes calibrate {self.uri} --unknown-rate …` moves this." if rates else ""
        return f"An image is of a known class if its nearest neighbour is within the threshold.{moved}"

    def forget_threshold(self) -> None:
        """Discard the cached threshold."""
        self.__dict__.pop("threshold", None)

    def nearest(
        self, vectors: Float32[ndarray, "queries dim"], k: int, **how: Unpack[SearchOptions]
    ) -> list[list[Hit]]:
        """The k nearest items of each query; see `Store.search`."""
        return self.store.search(vectors, k, **how)

    def neighbours(
        self, vectors: Float32[ndarray, "queries dim"], k: int, **how: Unpack[SearchOptions]
    ) -> list[SearchResult]:
        """The k nearest items of each vector, and its classification.

        A single search of the store answers both, except with a filter: the classification uses the neighbours among
        all items.

        Args:
            how: see `Store.search`.
        """
        where, leave_out = how.get("where"), how.get("leave_out")
        threshold, some_only = self.threshold, how.get("label") is not None or where is not None
        if where is not None:
            self._check_columns(where)
        if threshold is None or some_only:
            near = self.nearest(vectors, k, **how)
        if threshold is None:
            return [SearchResult(hits, None) for hits in near]
        around = neighbourhoods(
            lambda some, number, without: self.nearest(some, number, exact=how.get("exact", False), leave_out=without),
            vectors,
            len(self),
            threshold.classes_needed,
            leave_out,
            k=0 if some_only else k,
        )
        if not some_only:
            near = [hits[:k] for hits in around]
        return [SearchResult(hits, classify_hits(those, threshold)) for hits, those in zip(near, around, strict=True)]

    def _check_columns(self, where: Filter) -> None:
        """Raise ColumnError for a filter on missing columns, or with values of another type."""
        if not (asked := kinds_in(where) - self._known_kinds):
            return
        found = self.store.field_kinds(asked)
        if found or len(self):  # an empty gallery has no columns yet
            found |= {name: {str} for name in TEXTS}
            found |= {name: {float} for name in NUMBERS}
            check_columns(where, found)
            self._known_kinds |= asked

    def classify_folder(
        self, folder: Path, threshold: Threshold | None = None, *, k: int = VOTES, unknown_rate: float | None = None
    ) -> FolderClassification:
        """Classify each image of a folder; see `classify`. An image that is in the gallery does not find itself.

        Args:
            threshold: the threshold to use; None for that of the gallery, at the unknown rate if given.
        """
        files = images_below(whole_path(folder))
        if not files:
            raise UserError(f"no images in {folder}.")
        embedder = self.embedder  # first: a gallery of vectors has none
        if threshold is None:
            with working("calibrating on the gallery"):
                threshold = self._calibrated_threshold(unknown_rate)
        with progress("embedding") as on_progress:
            read, vectors, broken = vectors_of(embedder, files, threads=cpu_count() or 1, on_progress=on_progress)
        if not read:
            raise UserError(f"none of the {len(files)} images in {folder} can be read: {broken[0]}")
        with progress("searching") as on_progress:
            own = [str(file) for file in read]
            found = classify(self.store, vectors, threshold, k=k, leave_out=own, on_progress=on_progress)
        return FolderClassification(read, found, threshold, broken)

    def _calibrated_threshold(self, unknown_rate: float | None) -> Threshold:
        """The threshold of the gallery, at the unknown rate if given. Raises UserError if there is none."""
        threshold = self.threshold if unknown_rate is None else None
        if threshold is None or threshold.accepted is None:  # that of a run: says why it cannot be calibrated
            threshold = calibrated(self.store, self.trained_on, unknown_rate=unknown_rate)
        return threshold

    @property
    def trained_on(self) -> list[str]:
        """The names of the model's training classes."""
        return self.model.trained_on


def _images_in(given: Any) -> list[ImageLike] | None:
    """The given images, one or several; None for anything else."""
    if isinstance(given, str | Path | Image.Image):
        return [given]
    several = (
        isinstance(given, list | tuple) and given and all(isinstance(each, str | Path | Image.Image) for each in given)
    )
    return list(given) if several else None


def _paths(given: Any) -> list[Path] | None:
    """The given paths, one or several; None for anything else."""
    found = _images_in(given)
    if found is None:
        return None
    if any(isinstance(each, Image.Image) for each in found):
        raise UserError("an image needs a path, which is its key: save it to a file and add that.")
    return [Path(each) for each in found if not isinstance(each, Image.Image)]


def _array(given: Any) -> ndarray:
    """Numbers or a tensor as an array."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise UserError(f"vectors must all have the same number of numbers: {error}") from None


def _texts(given: Iterable[Any]) -> list[str]:
    """Keys or labels as text; None means no label."""
    given = given.tolist() if isinstance(given, ndarray) else given
    return ["" if each is None else str(each) for each in given]
