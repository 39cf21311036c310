"""What a data set is: labelled images, wherever they are."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Int64
from numpy import ndarray
from PIL import Image


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
    """

    name: str
    keys: tuple[str, ...]
    labels: Int64[ndarray, " images"]
    class_names: tuple[str, ...]
    read: Callable[[int], Image.Image]
    fingerprint: str
    train_classes: int | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)
