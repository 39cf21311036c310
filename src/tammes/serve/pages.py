"""The pages: HTML rendered here, and a little JavaScript. Every state of a page has an address."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy import ndarray

from tammes import __version__
from tammes.serve import api
from tammes.serve.api import ItemId, K, Label, UploadId, Where
from tammes.serve.errors import RequestError, error_headers
from tammes.serve.examples import examples
from tammes.serve.gallery import ServedGallery
from tammes.serve.middleware import COOKIE, cookie_of, same_token
from tammes.serve.models import Item
from tammes.serve.reports import policy
from tammes.serve.rows import Rows, escaped
from tammes.serve.state import Answer, Search, ServerState

_HERE = Path(__file__).parent
_REPORT = _HERE.parent / "report"
# The files that a page may ask for, and no others.
_FILES = {
    "style.css": _REPORT / "style.css",
    "theme.js": _REPORT / "theme.js",
    "map.js": _REPORT / "map.js",
    **{name: _HERE / "static" / name for name in ("site.css", "site.js", "wander.js", "icon.svg")},
}
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_NUMBERS = (8, 24, 48, 96)
_CARDS, _CLASSES = 60, 96  # of one page
_STARTS = 24  # images on the first page
_TINY = 64  # pixels
_SUGGESTED = 300  # classes whose names a page holds; of more the script asks as one types
_LONGEST_FORM = 4096  # bytes, of the one with the token

Page = Annotated[int, Query(ge=1, le=10**6)]


def _search_asked(k: K = 24, label: Label = None, where: Where = None) -> Search:
    return Search(k, label or None, (where or "").strip() or None)


Asked = Annotated[Search, Depends(_search_asked)]


def routes(state: ServerState, app: FastAPI) -> APIRouter:
    """The routes of the pages."""
    pages = APIRouter(default_response_class=HTMLResponse)

    @pages.get("/static/{name}")
    async def static(name: str, v: str = "") -> Response:
        if name not in _FILES:
            raise RequestError(404, f"there is no file {name!r}.")
        content, digest = _static(name)
        lasting = "public, max-age=31536000, immutable" if v == digest else "no-cache"
        return Response(content, media_type=_KINDS[Path(name).suffix], headers={"Cache-Control": lasting})

    @pages.get("/favicon.ico")
    async def icon() -> Response:
        return RedirectResponse(_address("icon.svg"))

    @pages.get("/api")
    async def interface(request: Request) -> HTMLResponse:
        base = str(request.base_url).rstrip("/")
        return _page(state, "api.html", here="api", document=examples(app.openapi(), state, base))

    if state.token is not None:
        _log_in(pages, state, state.token)
    _reports(pages, state)
    if state.has_gallery:
        _gallery(pages, state)
    else:

        @pages.get("/")
        async def start() -> Response:
            return RedirectResponse("/runs")

    return pages


def error_page(state: ServerState, request: Request, error: RequestError) -> Response:
    """An error as a page; without the token, the page that asks for it."""
    if error.status_code == 401:
        asked = request.scope["path"] + (f"?{query}" if (query := request.url.query) else "")
        return RedirectResponse(
            f"/login{_query(to=_other_than_start(asked))}", status_code=303, headers={"Cache-Control": "no-store"}
        )
    page = _page(state, "error.html", here="", status=error.status_code, message=error.detail)
    page.status_code = error.status_code
    page.headers.update(error_headers(request, error))
    return page


def _gallery(pages: APIRouter, state: ServerState) -> None:
    @pages.get("/")
    async def start() -> HTMLResponse:
        gallery = state.gallery
        return _page(state, "start.html", here="search", items=await _items(gallery, _some(gallery.rows)))

    @pages.post("/search")
    async def search(request: Request, k: K = 24, label: Label = None) -> Response:
        """A form that is sent without a script."""
        upload = await state.receive_upload(request, state.gallery)
        return RedirectResponse(f"/picture/{upload.id}{_query(k=k, label=label)}", status_code=303)

    @pages.get("/item/{item}")
    async def item(item: ItemId, asked: Asked) -> HTMLResponse:
        gallery = state.gallery
        known, vector = gallery.rows.item(item), await asyncio.to_thread(gallery.vector, item)
        return await _results(
            state, gallery, vector, asked, item=known, address=f"/item/{item}", shown=f"/api/items/{item}/image",
            small=known.thumbnail, width=known.width, height=known.height,
        )  # fmt: skip

    @pages.get("/picture/{picture}")
    async def picture(picture: UploadId, asked: Asked) -> HTMLResponse:
        gallery = state.gallery
        upload = state.upload(picture, gallery)
        return await _results(
            state, gallery, upload.vector, asked, item=None, address=f"/picture/{picture}",
            shown=f"/api/pictures/{picture}/thumbnail", small="", width=upload.width, height=upload.height,
        )  # fmt: skip

    @pages.get("/classes")
    async def classes(q: Annotated[str, Query(max_length=200)] = "", page: Page = 1) -> HTMLResponse:
        gallery = state.gallery
        names = api.classes_with(gallery.rows, q)
        some = names[(page - 1) * _CLASSES : page * _CLASSES]
        covers = await _items(gallery, [gallery.rows.some_of(name, 1)[0] for name, _ in some])
        cards = [
            {"name": name, "number": number, "cover": cover, "address": f"/class{_query(name=name)}"}
            for (name, number), cover in zip(some, covers, strict=True)
        ]
        return _page(
            state, "classes.html", here="classes", cards=cards, total=len(names), q=q,
            **_pager("/classes", page, len(names), _CLASSES, q=q or None),
        )  # fmt: skip

    @pages.get("/class")
    async def one_class(name: Annotated[str, Query(max_length=1000)] = "", page: Page = 1) -> HTMLResponse:
        gallery = state.gallery
        members = await asyncio.to_thread(gallery.rows.members, name)
        return _page(
            state, "class.html", here="classes", name=name, total=len(members),
            items=await _items(gallery, members[(page - 1) * _CARDS : page * _CARDS]),
            **_pager("/class", page, len(members), _CARDS, name=name),
        )  # fmt: skip

    @pages.get("/map")
    async def the_map() -> HTMLResponse:
        return _page(state, "map.html", here="map")


def _reports(pages: APIRouter, state: ServerState) -> None:
    @pages.get("/runs")
    async def runs() -> HTMLResponse:
        if not state.has_reports:
            raise RequestError(404, "no reports are served here: tammes serve RUNS serves those of a folder of runs.")
        found = list((await state.reports()).values())
        return _page(
            state, "runs.html", here="runs", runs=[each for each in found if each.kind == "run"],
            benchmarks=[each for each in found if each.kind == "benchmark"],
        )  # fmt: skip

    @pages.get("/runs/{name:path}/report.html")
    async def report(name: str) -> FileResponse:
        found = (await state.reports()).get(name)
        if found is None or found.file is None:
            raise RequestError(404, f"there is no report of {name!r}.")
        headers = {"Content-Security-Policy": policy(), "Cache-Control": "no-cache"}
        return FileResponse(found.file, media_type="text/html", headers=headers)


def _log_in(pages: APIRouter, state: ServerState, token: str) -> None:
    @pages.get("/login")
    async def ask(wrong: bool = False, to: Annotated[str, Query(max_length=2000)] = "/") -> HTMLResponse:
        return _page(state, "login.html", here="", wrong=wrong, to=_on_this_site(to), gallery=None)

    @pages.post("/login")
    async def log_in(request: Request) -> Response:
        # Read by hand: a form's parser lets the client choose how its text is decoded, which may take minutes.
        body = (await request.body())[:_LONGEST_FORM].decode(errors="replace")
        try:
            fields = parse_qs(body, max_num_fields=4)
        except ValueError:
            fields = {}
        to = _on_this_site(fields.get("to", ["/"])[0])
        if not same_token(fields.get("token", [""])[0].strip(), token):
            return RedirectResponse(f"/login{_query(wrong='true', to=_other_than_start(to))}", status_code=303)
        answer = RedirectResponse(to, status_code=303)
        # Lax: who follows a link to here stays logged in; the middleware refuses what another site sends.
        answer.set_cookie(
            COOKIE, cookie_of(token), httponly=True, samesite="lax", secure=request.url.scheme == "https",
            max_age=30 * 86400,
        )  # fmt: skip
        return answer


def _other_than_start(address: str) -> str | None:
    return None if address == "/" else address


def _on_this_site(address: str) -> str:
    """Where to continue after the token was given: an address of this site and no other."""
    plain = address.startswith("/") and not address.startswith("//") and "\\" not in address and address.isprintable()
    return address if plain else "/"


async def _items(gallery: ServedGallery, ids: Sequence[str]) -> list[Item]:
    """The items of these ids; their thumbnails are in memory when the browser asks for them."""
    items = [gallery.rows.item(each) for each in ids]
    await asyncio.to_thread(gallery.load_thumbnails, ids)
    return items


async def _results(
    state: ServerState, gallery: ServedGallery, vector: ndarray, asked: Search, *, item: Item | None, address: str,
    **about: Any,
) -> HTMLResponse:  # fmt: skip
    """The page of a search; in a class that does not exist, or by a wrong filter, it finds nothing, and says so."""
    k, label, where, rows = asked.k, asked.label, asked.where, gallery.rows
    no_such_class = label is not None and label not in rows.classes
    answer, wrong = Answer([], None), ""
    if not no_such_class:
        try:
            answer = await state.search(gallery, vector, asked, leave_out=None if item is None else item.id)
        except RequestError as error:
            if error.status_code != 400:
                raise
            wrong = re.sub('`where="(.*)"`', r"\1", error.detail).replace("`where`", "Where")
    found, judged = answer.neighbours, answer.classification
    await asyncio.to_thread(gallery.load_thumbnails, [each.id for each in found])
    among, classes = Counter(each.label for each in found), list(rows.classes)
    page = _page(
        state, "results.html", here="search", found=found, k=k, label=label, where=where, wrong=wrong, address=address,
        judged=judged, guess="" if judged is None else escaped(judged.best_guess),
        end=1.05 * max([0.0 if judged is None else judged.threshold, *(each.distance for each in found)]) or 1.0,
        rates="" if judged is None or gallery.threshold is None else gallery.threshold.describe(),
        numbers=sorted({*_NUMBERS, k}), classes=classes[:_SUGGESTED], more_classes=len(classes) > _SUGGESTED,
        no_such_class=no_such_class,
        among=[(name, n, f"{address}{_query(k=k, label=name, where=where)}") for name, n in among.most_common(8)],
        carried=_query(k=None if k == 24 else k, where=where),
        all_classes=f"{address}{_query(k=k, where=where)}", everything=f"{address}{_query(k=k)}", item=item, **about,
    )  # fmt: skip
    page.status_code = 400 if wrong else 200
    return page


def _some(rows: Rows) -> list[str]:
    """Items to begin with: one of a class, classes from the whole of the list; of few classes several."""
    names = list(rows.classes)
    if not names:
        return []
    rounds = -(-_STARTS // len(names))
    apart = max(1, len(names) // _STARTS)
    return [item for name in names[::apart][:_STARTS] for item in rows.some_of(name, rounds)][:_STARTS]


def _pager(path: str, page: int, total: int, size: int, **kept: str | None) -> dict[str, Any]:
    last = max(1, -(-total // size))
    if page > last:
        raise RequestError(404, f"there are {last} pages.")
    return {
        "page": page,
        "last": last,
        "before": f"{path}{_query(**kept, page=page - 1 if page > 2 else None)}" if page > 1 else None,
        "after": f"{path}{_query(**kept, page=page + 1)}" if page < last else None,
    }


def _query(**values: Any) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _page(state: ServerState, template: str, **values: Any) -> HTMLResponse:
    gallery = state.gallery if state.has_gallery else None
    shared = {
        "version": __version__, "gallery": gallery, "state": state, "static": _address, "limits": state.limits,
        "tiny": _tiny,
    }  # fmt: skip
    return HTMLResponse(_environment().get_template(template).render({**shared, **values}))


def _tiny(item: Item) -> Markup:
    """How the image of very few pixels is drawn: as they are, not as a blur."""
    return Markup(' class="tiny"' if max(item.width, item.height) <= _TINY else "")


@cache
def _static(name: str) -> tuple[bytes, str]:
    content = _FILES[name].read_bytes()
    return content, sha256(content).hexdigest()[:12]


def _address(name: str) -> str:
    """An address that changes with the file, so that a browser may keep it for ever."""
    return f"/static/{name}?v={_static(name)[1]}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["thousands"] = lambda number: f"{number:,}"
    return environment
