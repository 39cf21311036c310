"""The JSON API. Its document is at /openapi.json, with examples for the command line at /api."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Path, Query, Request
from fastapi.responses import FileResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from tammes import __version__
from tammes.errors import unknown_name
from tammes.serve.errors import CODES, RefusedError
from tammes.serve.gallery import unit
from tammes.serve.projection import Map
from tammes.serve.rows import Item, shown
from tammes.serve.state import Found, Neighbour, Site, Upload
from tammes.serve.telemetry import CONTENT_TYPE
from tammes.serve.uploads import FIELD

_SCALE = 10_000  # of the map's coordinates, which are whole numbers
_LASTING = "private, max-age=31536000, immutable"  # an address that names what it shows, for ever


class Wrong(BaseModel):
    """Why a request was not granted."""

    error: str = Field(examples=["not_found"], description="For a program.")
    message: str = Field(examples=["the gallery has no item '00'."], description="For a person.")


class ItemModel(BaseModel):
    """An image of the gallery."""

    id: str = Field(examples=["2f1c88a0b7d3e945"])
    name: str = Field(description="Its path below the folder that was indexed.", examples=["cats/1.jpg"])
    label: str = Field(description="Its class; empty if it has none.", examples=["cats"])
    width: int
    height: int
    thumbnail: str = Field(description="Where a small picture of it is.")


class FoundModel(ItemModel):
    """An image that is near."""

    distance: float = Field(description="Euclidean, between vectors of length 1: 0 to 2.")
    within_threshold: bool | None = Field(description="Whether the distance is within the threshold; null without one.")


class QueryModel(BaseModel):
    """What was searched with."""

    kind: Literal["item", "picture", "vector"]
    id: str | None = Field(description="Of the item, or of the picture while it is kept in memory.")
    label: str | None = Field(description="The item's class.")
    width: int | None
    height: int | None


class SearchModel(BaseModel):
    """The nearest images, nearest first."""

    query: QueryModel
    threshold: float | None = Field(description="The distance up to which the nearest image is near enough.")
    best_guess: str | None = Field(description="The class of what was searched with, by its neighbours.")
    probability: float | None = Field(description="That the best guess is right.")
    accepted: bool | None = Field(description="Whether it is of a known class: its nearest image is near enough.")
    found: list[FoundModel]


class VectorModel(BaseModel):
    """A vector to search with."""

    model_config = ConfigDict(extra="forbid", strict=True)  # true is no number, and "3" is none either

    vector: list[float] = Field(
        description="As many numbers as the gallery's vectors have; brought to length 1.",
        min_length=1,
        max_length=65536,
    )
    k: int = Field(8, ge=1, le=200)
    label: str | None = Field(None, description="Among images of this class only.")
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
    items: list[ItemModel]


class CountModel(BaseModel):
    """How much there is."""

    items: int
    classes: int


class HealthModel(BaseModel):
    """That the server answers."""

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
    """A place for each item."""

    way: Literal["tsne", "pca"]
    working: bool = Field(description="Whether a better map is on its way: ask again.")
    scale: int = Field(description="Coordinates are 0 to this.")
    x: list[int]
    y: list[int]
    label: list[int] = Field(description="The class of each, as its place in `classes`.")
    ids: list[str]
    marks: list[str] = Field(description="Of each thumbnail: it is at /api/items/ID/thumbnail?v=MARK.")
    classes: list[str]


K = Annotated[int, Query(ge=1, le=200, description="How many neighbours.")]
Label = Annotated[str | None, Query(description="Among images of this class only.", max_length=1000)]
Exact = Annotated[bool, Query(description="Compare with every image, also where there is an index.")]
Limit = Annotated[int, Query(ge=1, le=500)]
Offset = Annotated[int, Query(ge=0, le=10**9)]
Id = Annotated[str, Path(description="Of an item.", pattern="^[0-9a-f]{16}$", examples=["2f1c88a0b7d3e945"])]
Name = Annotated[str, Path(description="Of a picture that was searched with.", pattern="^[A-Za-z0-9_-]{16}$")]

_PICTURE = {
    "requestBody": {
        "required": True,
        "description": "A picture: JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF.",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FIELD],
                    "properties": {FIELD: {"type": "string", "format": "binary"}},
                }
            },
            "image/jpeg": {"schema": {"type": "string", "format": "binary"}},
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
_IMAGE = {"content": {"image/webp": {}}, "description": "A WebP file."}


def wrong(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for its document: its own, and those that the guard may give to any."""
    of_any = (401, 413, 421, 422, 429, 500, 503, 504)
    return {status: {"model": Wrong, "description": CODES[status]} for status in sorted({*statuses, *of_any})}


def item_model(item: Item) -> ItemModel:
    return ItemModel(**_described(item))


def found_model(each: Neighbour) -> FoundModel:
    return FoundModel(**_described(each.item), distance=each.distance, within_threshold=each.within)


def thumbnail_address(item: Item) -> str:
    return f"/api/items/{item.id}/thumbnail?v={item.mark}"


def routes(site: Site) -> APIRouter:
    """The routes below /api."""
    # The guard looks at the token; this tells the document, so that programs made from it send one.
    token = [] if site.token is None else [Depends(HTTPBearer(auto_error=False))]
    api = APIRouter(dependencies=[Depends(_check_parameters), *token])

    @api.get("/api/health", tags=["server"], responses=wrong())
    async def health() -> HealthModel:
        """Whether the server answers. Needs no token."""
        return HealthModel(version=__version__)

    @api.get("/metrics", tags=["server"], responses={**wrong(), 200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(site.telemetry.text(), media_type=CONTENT_TYPE)

    if not site.has_gallery:
        return api

    @api.get("/api/gallery", tags=["gallery"], responses=wrong())
    async def about() -> GalleryModel:
        """What is served, and what made it."""
        gallery = site.gallery
        about, catalogue = gallery.opened.store.about, gallery.catalogue
        threshold = await asyncio.to_thread(lambda: gallery.opened.threshold)
        return GalleryModel(
            name=gallery.name, items=len(catalogue), classes=catalogue.num_classes, dim=about.dim,
            known_called_unknown=None if threshold is None else threshold.rejected,
            unknown_accepted=None if threshold is None else threshold.accepted,
            model=about.model, created=about.created,
        )  # fmt: skip

    @api.get("/api/count", tags=["gallery"], responses=wrong(404))
    async def count(label: Label = None) -> CountModel:
        """How many images there are, or of a class."""
        classes = site.gallery.catalogue.classes
        if label is None:
            return CountModel(items=len(site.gallery.catalogue), classes=site.gallery.catalogue.num_classes)
        _check_label(site, label)
        return CountModel(items=classes[label], classes=1)

    @api.get("/api/classes", tags=["gallery"], responses=wrong())
    async def classes(
        q: Annotated[str, Query(description="Names that hold this text.", max_length=200)] = "",
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> ClassesModel:
        """The classes and how many images each has."""
        names = classes_with(site, q)
        return ClassesModel(
            total=len(names),
            classes=[ClassModel(label=name, items=number) for name, number in names[offset : offset + limit]],
        )

    @api.get("/api/items", tags=["gallery"], responses=wrong(404))
    async def items(label: Label = None, limit: Limit = 100, offset: Offset = 0) -> ItemsModel:
        """The images of the gallery, or of a class."""
        catalogue = site.gallery.catalogue
        if label is not None:
            _check_label(site, label)
        members = await asyncio.to_thread(catalogue.members, label)
        return ItemsModel(
            total=len(members),
            items=[item_model(catalogue.item(number)) for number in members[offset : offset + limit]],
        )

    @api.get("/api/items/{item}", tags=["gallery"], responses=wrong(404))
    async def item(item: Id) -> ItemModel:
        """One image."""
        catalogue, number = site.found(item)
        return item_model(catalogue.item(number))

    @api.get(
        "/api/items/{item}/thumbnail", tags=["pictures"], response_class=Response,
        responses={**wrong(404), 200: _IMAGE},
    )  # fmt: skip
    async def thumbnail(item: Id, v: Annotated[str, Query(max_length=40)] = "") -> Response:
        """A small picture of an image, up to 160 pixels."""
        catalogue, number = site.found(item)
        content = await asyncio.to_thread(site.gallery.thumbnail, catalogue, number)
        lasting = v == catalogue.item(number).mark
        return Response(
            content, media_type="image/webp", headers={"Cache-Control": _LASTING if lasting else "no-cache"}
        )

    @api.get(
        "/api/items/{item}/image", tags=["pictures"], response_class=FileResponse,
        responses={**wrong(403, 404, 415), 200: {"content": {"image/*": {}}, "description": "The file as it is."}},
    )  # fmt: skip
    async def image(item: Id) -> FileResponse:
        """The image's file, if it still lies in a folder that was indexed."""
        catalogue, number = site.found(item)
        file, kind = await asyncio.to_thread(site.gallery.file, catalogue.paths[number])
        headers = {
            "Cache-Control": "private, max-age=60", "Content-Security-Policy": "default-src 'none'; sandbox",
            "Accept-Ranges": "none",
        }  # fmt: skip
        return FileResponse(file, media_type=kind, headers=headers)

    @api.get("/api/items/{item}/neighbours", tags=["search"], responses=wrong(404))
    async def by_item(item: Id, k: K = 8, label: Label = None, exact: Exact = False) -> SearchModel:
        """Search by an image of the gallery: the nearest others."""
        gallery = site.gallery
        catalogue, number = site.found(item, gallery)
        known = catalogue.item(number)
        vector = await asyncio.to_thread(gallery.vector, number, catalogue)
        found = await site.neighbours(vector, k, label, leave_out=catalogue.paths[number], exact=exact, gallery=gallery)
        query = QueryModel(kind="item", id=item, label=known.label, width=known.width, height=known.height)
        return _answer(query, found)

    @api.post("/api/search", tags=["search"], responses=wrong(400, 404, 408, 415), openapi_extra=_PICTURE)
    async def by_picture(request: Request, k: K = 8, label: Label = None, exact: Exact = False) -> SearchModel:
        """Search by a picture. It is kept in memory for a while under the id of the answer, and never on disk."""
        gallery = site.gallery
        upload = await site.uploaded(request, gallery)
        found = await site.neighbours(upload.vector, k, label, exact=exact, gallery=gallery)
        return _answer(_uploaded(upload), found)

    @api.post("/api/search/vector", tags=["search"], responses=wrong(400, 404, 408))
    async def by_vector(asked: Annotated[VectorModel, Body()]) -> SearchModel:
        """Search by a vector of the gallery's model."""
        gallery = site.gallery
        vector = unit(asked.vector, gallery.opened.store.about.dim)
        query = QueryModel(kind="vector", id=None, label=None, width=None, height=None)
        found = await site.neighbours(vector, asked.k, asked.label, exact=asked.exact, gallery=gallery)
        return _answer(query, found)

    @api.get("/api/pictures/{picture}/neighbours", tags=["search"], responses=wrong(404))
    async def by_kept_picture(picture: Name, k: K = 8, label: Label = None, exact: Exact = False) -> SearchModel:
        """Search again by a picture that was searched with a short while ago."""
        gallery = site.gallery
        upload = site.upload(picture, gallery)
        found = await site.neighbours(upload.vector, k, label, exact=exact, gallery=gallery)
        return _answer(_uploaded(upload), found)

    @api.get(
        "/api/pictures/{picture}/thumbnail", tags=["pictures"], response_class=Response,
        responses={**wrong(404), 200: _IMAGE},
    )  # fmt: skip
    async def picture_thumbnail(picture: Name) -> Response:
        """A small picture of what was searched with, up to 480 pixels."""
        return Response(
            site.upload(picture).shown, media_type="image/webp", headers={"Cache-Control": "private, max-age=600"}
        )

    @api.get("/api/map", tags=["gallery"], responses=wrong())
    async def the_map() -> MapModel:
        """A place for each image, so that near ones are near; of a large gallery for some, drawn at random."""
        found: Map = await site.cartographer.map(site.gallery.catalogue)
        return await asyncio.to_thread(_map_model, found, site.cartographer.working)

    return api


def classes_with(site: Site, text: str) -> list[tuple[str, int]]:
    """The classes whose names hold a text, and how many items they have."""
    wanted = text.strip().lower()
    return [(name, number) for name, number in site.gallery.catalogue.classes.items() if wanted in name.lower()]


async def _check_parameters(request: Request) -> None:
    """Refuse parameters that an address does not know: whoever misspells one would take the answer for another.

    Not of what watches the server, which may add some of its own.
    """
    route = request.scope["route"]
    known = {field.alias for field in route.dependant.query_params}
    for name in () if "server" in route.tags else request.query_params:
        if name not in known:
            takes = str(unknown_name("parameter", name[:100], known)) if known else "this address takes no parameters."
            raise RefusedError(422, takes)


def _check_label(site: Site, label: str) -> None:
    if label not in site.gallery.catalogue.real_label:
        raise RefusedError(404, f"the gallery has no class {label!r}. GET /api/classes lists those that there are.")


def _described(item: Item) -> dict[str, Any]:
    return {
        "id": item.id, "name": item.name, "label": item.label, "width": item.width, "height": item.height,
        "thumbnail": thumbnail_address(item),
    }  # fmt: skip


def _uploaded(upload: Upload) -> QueryModel:
    return QueryModel(kind="picture", id=upload.id, label=None, width=upload.width, height=upload.height)


def _answer(query: QueryModel, found: Found) -> SearchModel:
    judged = found.judged
    return SearchModel(
        query=query,
        threshold=None if judged is None else judged.threshold,
        best_guess=None if judged is None else shown(judged.best_guess),
        probability=None if judged is None else judged.probability,
        accepted=None if judged is None else judged.accepted,
        found=[found_model(each) for each in found.neighbours],
    )


def _map_model(found: Map, working: bool) -> MapModel:
    places = (found.places * _SCALE).round().astype(int)
    catalogue = found.catalogue
    numbers = found.numbers.tolist()
    return MapModel(
        way=found.way, working=working, scale=_SCALE, x=places[:, 0].tolist(), y=places[:, 1].tolist(),
        label=catalogue.codes[found.numbers].tolist(), ids=[catalogue.ids[number] for number in numbers],
        marks=[catalogue.mark(number) for number in numbers], classes=list(catalogue.classes),
    )  # fmt: skip
