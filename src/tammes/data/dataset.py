"""What a data set is: labelled images, wherever they are."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Bool, Int64, UInt8
from numpy import ndarray
from PIL import Image

# What an image is for, where the data itself says it: the values of Dataset.part.
TRAIN, VALIDATION, TEST = 0, 1, 2
# How it is called: by a column `split`, by sub-folders, by the splits of Hugging Face.
PARTS = {"train": TRAIN, "training": TRAIN, "test": TEST, "testing": TEST}
PARTS |= dict.fromkeys(("val", "valid", "validation"), VALIDATION)


@dataclass(frozen=True)
class Dataset:
    """Labelled images: what they are called, which class each belongs to, and how to read one.

    Attributes:
        name: what a person would call it: "glyphs", the folder's name, …
        keys: what each image is called, unique: its path below the root, or a name made for it.
        labels: the class of each image, 0..classes-1.
        class_names: the classes as text, in the order of the labels.
        read: image number -> the image as it is stored, in any mode; may raise for a broken file.
        fingerprint: a short text that changes whenever an image does; the key of the cache of decoded images.
        train_classes: for a named set, how many of the first classes train; the others test. None: the user decides.
        files: the file of each image, for what looks at more than its pixels; None where images are no files. Every
            reader whose images are files sets it.
        part: what each image is for, as the data itself says: TRAIN, VALIDATION or TEST. None: it does not say.
        query: which images are searched for, and ...
        gallery: ... which they are searched among; an image may be both. Masks that say something about test images
            only; None: every test image is both.
        sequence: the sequence that each image was taken in; a query does not find items of its own. None: there is
            none.
        changed: the first file that is no longer as it was when the set was opened, None if all are; None where images
            are no files.
        missing: the images whose files were not there when the set was opened.
        remarks: what a person should see before trusting the data, such as a count that is not the published one.
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
