"""The JSON API. Its document is at /openapi.json, with examples for the command line at /api."""

import asyncio
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import FileResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError

from tammes import __version__
from tammes.errors import unknown_name
from tammes.gallery.items import ITEM_ID
from tammes.serve import models
from tammes.serve.errors import CODES, RequestError, validation_message
from tammes.serve.gallery import ServedGallery, unit_vector
from tammes.serve.projection import Projection
from tammes.serve.rows import Rows, escaped
from tammes.serve.state import Answer, Search, ServerState, Upload
from tammes.serve.uploads import FIELD

_A_NUMBER = 64  # bytes of a body for each number of a vector, with blanks
_OTHERS = 16_384  # for all else: a label of 1,000 characters may be written in 12,000
_SCALE = 10_000  # of the map's coordinates, which are whole numbers
_FOR_EVER = "private, max-age=31536000, immutable"  # of an address that changes with what is there

Model = TypeVar("Model", bound=BaseModel)
K = Annotated[int, Query(ge=1, le=200, description="How many neighbours.")]
Label = Annotated[str | None, Query(description="Among images of this class only.", max_length=1000)]
Where = Annotated[
    str | None, Query(description="Among images whose columns fit: colour = 'red' and price < 20.", max_length=1000)
]
Exact = Annotated[bool, Query(description="Compare with every image, also where there is an index.")]


def _search_asked(k: K = 8, label: Label = None, exact: Exact = False, where: Where = None) -> Search:
    return Search(k, label, where, exact)


Asked = Annotated[Search, Depends(_search_asked)]
Limit = Annotated[int, Query(ge=1, le=500)]
Offset = Annotated[int, Query(ge=0, le=10**9)]
ItemId = Annotated[str, Path(description="Of an item.", pattern=ITEM_ID, examples=["2f1c88a0b7d3e945"])]
UploadId = Annotated[str, Path(description="Of an image that was searched with.", pattern="^[A-Za-z0-9_-]{16}$")]

_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "required": [FIELD], "properties": {FIELD: _FILE}}
_IMAGE_KINDS = ("image/jpeg", "image/png", "application/octet-stream")


def _body(description: str, **schemas: Any) -> dict[str, Any]:
    """What a request sends, for the document: a schema by the kind of content."""
    content = {kind: {"schema": schema} for kind, schema in schemas.items()}
    return {"requestBody": {"required": True, "description": description, "content": content}}


_UPLOAD = _body(
    "An image: JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF.",
    **{"multipart/form-data": _FORM, **dict.fromkeys(_IMAGE_KINDS, _FILE)},
)
_VECTOR = _body("A vector, and how to search.", **{"application/json": models.VectorModel.model_json_schema()})
_WEBP = {"content": {"image/webp": {}}, "description": "A WebP file."}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for its document: its own, and those of the middleware."""
    of_any = (401, 413, 421, 422, 429, 500, 503, 504)
    return {
        status: {"model": models.ErrorModel, "description": CODES[status]} for status in sorted({*statuses, *of_any})
    }


def routes(state: ServerState) -> APIRouter:
    """The routes below /api."""
    # The middleware checks the token; this tells the document, so that clients made from it send one.
    token = [] if state.token is None else [Depends(HTTPBearer(auto_error=False))]
    api = APIRouter(dependencies=[Depends(_check_parameters), *token])

    @api.get("/api/health", tags=["server"], responses=_errors())
    async def health() -> models.HealthModel:
        """Whether the server answers. Needs no token."""
        return models.HealthModel(version=__version__)

    @api.get("/metrics", tags=["server"], responses={**_errors(), 200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(state.telemetry.text(), media_type=CONTENT_TYPE_LATEST)

    if state.has_gallery:
        _gallery(api, state)
        _images(api, state)
        _search(api, state)
        _map(api, state)
    return api


async def read_json(request: Request, model: type[Model], most: int) -> Model:
    """The JSON body of a request, of so many bytes at most, parsed and validated in a thread.

    FastAPI would validate a body that is a parameter of a route in the event loop, where nobody else is answered
    meanwhile.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(422, "the body must be JSON, and say so: send it with Content-Type: application/json.")
    return await asyncio.to_thread(_validated, await request.body(), model, most)


def _validated(content: bytes, model: type[Model], most: int) -> Model:
    if len(content) > most:
        raise RequestError(413, f"the body may have up to {most:,} bytes.")
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise RequestError(422, validation_message(error.errors(include_url=False))) from None


def _gallery(api: APIRouter, state: ServerState) -> None:
    @api.get("/api/gallery", tags=["gallery"], responses=_errors())
    async def about() -> models.GalleryModel:
        """What is served, and what made it."""
        gallery = state.gallery
        about, rows = gallery.store.about, gallery.rows
        threshold = await asyncio.to_thread(lambda: gallery.threshold)
        return models.GalleryModel(
            name=gallery.name,
            items=len(rows),
            classes=rows.num_classes,
            dim=about.dim,
            known_called_unknown=None if threshold is None else threshold.rejected,
            unknown_accepted=None if threshold is None else threshold.accepted,
            model=about.model,
            created=about.created,
        )

    @api.get("/api/count", tags=["gallery"], responses=_errors(404))
    async def count(label: Label = None) -> models.CountModel:
        """How many images there are, or of a class."""
        rows = state.gallery.rows
        if label is None:
            return models.CountModel(items=len(rows), classes=rows.num_classes)
        return models.CountModel(items=rows.class_size(label), classes=1)

    @api.get("/api/classes", tags=["gallery"], responses=_errors())
    async def classes(
        q: Annotated[str, Query(description="Names that hold this text.", max_length=200)] = "",
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> models.ClassesModel:
        """The classes and how many images each has."""
        names = classes_with(state.gallery.rows, q)
        some = [models.ClassModel(label=name, items=number) for name, number in names[offset : offset + limit]]
        return models.ClassesModel(total=len(names), classes=some)

    @api.get("/api/items", tags=["gallery"], responses=_errors(404))
    async def items(label: Label = None, limit: Limit = 100, offset: Offset = 0) -> models.ItemsModel:
        """The images of the gallery, or of a class."""
        rows = state.gallery.rows
        members = await asyncio.to_thread(rows.members, label)
        return models.ItemsModel(
            total=len(members), items=[rows.item(each) for each in members[offset : offset + limit]]
        )

    @api.get("/api/items/{item}", tags=["gallery"], responses=_errors(404))
    async def item(item: ItemId) -> models.Item:
        """One image."""
        return state.gallery.rows.item(item)


def _images(api: APIRouter, state: ServerState) -> None:
    @api.get(
        "/api/items/{item}/thumbnail",
        tags=["pictures"],
        response_class=Response,
        responses={**_errors(404), 200: _WEBP},
    )
    async def thumbnail(item: ItemId, v: Annotated[str, Query(max_length=40)] = "") -> Response:
        """The thumbnail of an image, up to 160 pixels."""
        gallery = state.gallery
        kept = _FOR_EVER if v == gallery.rows.mark(item) else "no-cache"
        content = await asyncio.to_thread(gallery.thumbnail, item)
        return Response(content, media_type="image/webp", headers={"Cache-Control": kept})

    @api.get(
        "/api/items/{item}/image",
        tags=["pictures"],
        response_class=FileResponse,
        responses={**_errors(403, 404, 415), 200: {"content": {"image/*": {}}, "description": "The file as it is."}},
    )
    async def image(item: ItemId) -> FileResponse:
        """The image's file, if it still lies in a folder that was indexed."""
        file, kind = await asyncio.to_thread(state.gallery.file, item)
        headers = {
            "Cache-Control": "private, max-age=60",
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "Accept-Ranges": "none",
        }
        return FileResponse(file, media_type=kind, headers=headers)


def _search(api: APIRouter, state: ServerState) -> None:
    @api.get("/api/items/{item}/neighbours", tags=["search"], responses=_errors(400, 404))
    async def by_item(item: ItemId, asked: Asked) -> models.SearchModel:
        """Search by an image of the gallery: the nearest others."""
        gallery = state.gallery
        known = gallery.rows.item(item)
        vector = await asyncio.to_thread(gallery.vector, item)
        answer = await state.search(gallery, vector, asked, leave_out=item)
        query = models.QueryModel(kind="item", id=item, label=known.label, width=known.width, height=known.height)
        return _search_model(query, answer)

    async def by_upload(gallery: ServedGallery, upload: Upload, asked: Search) -> models.SearchModel:
        query = models.QueryModel(kind="picture", id=upload.id, width=upload.width, height=upload.height)
        return _search_model(query, await state.search(gallery, upload.vector, asked))

    @api.post("/api/search", tags=["search"], responses=_errors(400, 404, 408, 415), openapi_extra=_UPLOAD)
    async def by_picture(request: Request, asked: Asked) -> models.SearchModel:
        """Search by an image. It is kept in memory for a while under the id of the answer, and never on disk."""
        gallery = state.gallery
        return await by_upload(gallery, await state.receive_upload(request, gallery), asked)

    @api.post("/api/search/vector", tags=["search"], responses=_errors(404, 408), openapi_extra=_VECTOR)
    async def by_vector(request: Request) -> models.SearchModel:
        """Search by a vector of the gallery's model."""
        gallery = state.gallery
        dim = gallery.store.about.dim
        body = await read_json(request, models.VectorModel, _A_NUMBER * dim + _OTHERS)
        asked = Search(body.k, body.label, body.where, body.exact)
        answer = await state.search(gallery, unit_vector(body.vector, dim), asked)
        return _search_model(models.QueryModel(kind="vector"), answer)

    @api.get("/api/pictures/{picture}/neighbours", tags=["search"], responses=_errors(400, 404))
    async def by_kept_picture(picture: UploadId, asked: Asked) -> models.SearchModel:
        """Search again by an image that was searched with a short while ago."""
        gallery = state.gallery
        return await by_upload(gallery, state.upload(picture, gallery), asked)

    @api.get(
        "/api/pictures/{picture}/thumbnail",
        tags=["pictures"],
        response_class=Response,
        responses={**_errors(404), 200: _WEBP},
    )
    async def picture_thumbnail(picture: UploadId) -> Response:
        """A thumbnail of what was searched with, up to 480 pixels."""
        content = state.upload(picture, state.gallery).thumbnail
        return Response(content, media_type="image/webp", headers={"Cache-Control": "private, max-age=600"})


def _map(api: APIRouter, state: ServerState) -> None:
    @api.get("/api/map", tags=["gallery"], responses=_errors())
    async def the_map() -> models.MapModel:
        """Two coordinates for each image, so that near ones are near; of a large gallery for some, drawn at random."""
        projection = await state.projector.project(state.gallery.rows)
        return await asyncio.to_thread(_map_model, projection, state.projector.working)


def classes_with(rows: Rows, text: str) -> list[tuple[str, int]]:
    """The classes whose names hold a text, and how many items they have."""
    wanted = text.strip().lower()
    return [(name, number) for name, number in rows.classes.items() if wanted in name.lower()]


async def _check_parameters(request: Request) -> None:
    """Refuse unknown parameters: who misspells one would take the answer for another.

    Not of what watches the server, which may add some of its own.
    """
    route = request.scope["route"]
    parts = (route.dependant, *route.dependant.dependencies)
    known = {field.alias for part in parts for field in part.query_params}
    for name in () if "server" in route.tags else request.query_params:
        if name not in known:
            takes = str(unknown_name("parameter", name[:100], known)) if known else "this address takes no parameters."
            raise RequestError(422, takes)


def _search_model(query: models.QueryModel, answer: Answer) -> models.SearchModel:
    found = answer.classification
    return models.SearchModel(
        query=query,
        threshold=None if found is None else found.threshold,
        best_guess=None if found is None else escaped(found.best_guess),
        probability=None if found is None else found.probability,
        accepted=None if found is None else found.accepted,
        found=answer.neighbours,
    )


def _map_model(projection: Projection, working: bool) -> models.MapModel:
    points, rows, ids = (projection.points * _SCALE).round().astype(int), projection.rows, projection.ids
    return models.MapModel(
        way=projection.way,
        working=working,
        scale=_SCALE,
        x=points[:, 0].tolist(),
        y=points[:, 1].tolist(),
        label=[rows.code(item) for item in ids],
        ids=ids,
        marks=[rows.mark(item) for item in ids],
        classes=list(rows.classes),
    )
