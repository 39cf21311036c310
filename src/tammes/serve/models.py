"""The JSON of the API, as pydantic models. The pages show the same `Item` and `Neighbour`."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field


class ErrorModel(BaseModel):
    """Why a request failed."""

    error: str = Field(examples=["not_found"], description="For a program.")
    message: str = Field(examples=["the gallery has no item '00'."], description="For a person.")


class Item(BaseModel):
    """An image of the gallery, known to clients by its id, never by where its file is."""

    id: str = Field(examples=["2f1c88a0b7d3e945"])
    name: str = Field(
        description="Its path below the folder that was indexed; of a vector, its key.", examples=["cats/1.jpg"]
    )
    label: str = Field(description="Its class; empty if it has none.", examples=["cats"])
    width: int
    height: int
    thumbnail: str = Field(description="The address of its thumbnail, which changes with the image.")


class Neighbour(Item):
    """An item that was found."""

    distance: float = Field(description="Euclidean, between vectors of norm 1: 0 to 2.")
    within_threshold: bool | None = Field(description="Whether the distance is within the threshold; null without one.")


class QueryModel(BaseModel):
    """What was searched with."""

    kind: Literal["item", "picture", "vector"]
    id: str | None = Field(
        default=None, description="Of the item, or of the uploaded image while it is kept in memory."
    )
    label: str | None = Field(default=None, description="The item's class.")
    width: int | None = None
    height: int | None = None


class SearchModel(BaseModel):
    """The nearest images, nearest first."""

    query: QueryModel
    threshold: float | None = Field(description="The distance up to which the nearest image is near enough.")
    best_guess: str | None = Field(description="The class of what was searched with, by its neighbours.")
    probability: float | None = Field(description="That the best guess is right.")
    accepted: bool | None = Field(description="Whether it is of a known class: its nearest image is near enough.")
    found: list[Neighbour]


class VectorModel(BaseModel):
    """A vector to search with."""

    model_config = ConfigDict(extra="forbid", strict=True)  # neither true nor "3" is a number

    vector: Annotated[list[float], FailFast()] = Field(
        description="As many numbers as the gallery's vectors have; it is normalised.", min_length=1, max_length=65536
    )
    k: int = Field(8, ge=1, le=200)
    label: str | None = Field(None, description="Among images of this class only.", max_length=1000)
    where: str | None = Field(None, description="Among images whose columns fit.", max_length=1000)
    exact: bool = Field(False, description="Compare with every image, also where there is an index.")


class ClassModel(BaseModel):
    """A class of the gallery."""

    label: str
    items: int


class ClassesModel(BaseModel):
    """Classes, in natural order."""

    total: int
    classes: list[ClassModel]


class ItemsModel(BaseModel):
    """Items, in natural order."""

    total: int
    items: list[Item]


class CountModel(BaseModel):
    """How many items and classes there are."""

    items: int
    classes: int


class HealthModel(BaseModel):
    """The server answers."""

    status: Literal["ok"] = "ok"
    version: str


class GalleryModel(BaseModel):
    """What is served."""

    name: str
    items: int
    classes: int
    dim: int
    known_called_unknown: float | None = Field(
        description="The share of images of known classes that are not accepted."
    )
    unknown_accepted: float | None = Field(description="The share of images of unknown classes that are accepted.")
    model: str
    created: str


class MapModel(BaseModel):
    """Two coordinates for each item."""

    way: Literal["tsne", "pca"]
    working: bool = Field(description="Whether a better map is being computed: ask again.")
    scale: int = Field(description="Coordinates are 0 to this.")
    x: list[int]
    y: list[int]
    label: list[int] = Field(description="The class of each, as its index in `classes`.")
    ids: list[str]
    marks: list[str] = Field(description="Of each thumbnail: it is at /api/items/ID/thumbnail?v=MARK.")
    classes: list[str]
