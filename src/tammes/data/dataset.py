"""Dataset: labelled images from any source."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Bool, Int64, UInt8
from numpy import ndarray
from PIL import Image

# The values of Dataset.part: the split that the data itself defines.
TRAIN, VALIDATION, TEST = 0, 1, 2
# Their names in a column `split`, in sub-folders, and in Hugging Face splits.
PARTS = {"train": TRAIN, "training": TRAIN, "test": TEST, "testing": TEST}
PARTS |= dict.fromkeys(("val", "valid", "validation"), VALIDATION)


@dataclass(frozen=True)
class Dataset:
    """Labelled images: keys, labels, and a function that reads one image.

    Attributes:
        name: "glyphs", the folder's name, …
        keys: a unique name for each image: its path below the root, or a generated name.
        labels: the class of each image, 0..classes-1.
        class_names: the names of the classes.
        read: index -> the stored image, in any mode; may raise for a broken file.
        fingerprint: a short text that changes when an image changes; the key of the cache of decoded images.
        train_classes: for a published set, the number of its first classes that are for training; None otherwise.
        files: the file of each image; None if images are not files.
        part: the split that the data itself defines: TRAIN, VALIDATION or TEST for each image; None if it does not.
        query: mask of the queries among the test images; None if every test image is one.
        gallery: mask of the gallery among the test images; None if every test image is in it.
        sequence: the sequence of each image, such as a video; a query does not find items of its own sequence. None if
            there are none.
        changed: returns the first file that has changed since the set was opened, or None; None if images are not
        files.
        missing: the images whose files did not exist when the set was opened.
        remarks: notes for the user, such as a count that differs from the published one.
    """

    name: str
    keys: tuple[str, ...]
    labels: Int64[ndarray, " images"]
    class_names: tuple[str, ...]
    read: Callable[[int], Image.Image]
    fingerprint: str
    train_classes: int | None = None
    files: tuple[Path, ...] | None = None
    part: UInt8[ndarray, " images"] | None = None
    query: Bool[ndarray, " images"] | None = None
    gallery: Bool[ndarray, " images"] | None = None
    sequence: Int64[ndarray, " images"] | None = None
    changed: Callable[[], Path | None] | None = None
    missing: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)
