"""The pages: plain HTML made here, which a little JavaScript makes pleasant. Every state of it has an address."""

import asyncio
from collections import Counter
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy import ndarray

from tammes import __version__
from tammes.serve import api
from tammes.serve.api import Id, K, Label, Name
from tammes.serve.errors import RefusedError, headers_of
from tammes.serve.examples import examples
from tammes.serve.gallery import Gallery
from tammes.serve.middleware import COOKIE, cookie_of, same_token
from tammes.serve.reports import Report, policy
from tammes.serve.rows import Catalogue, Item, shown
from tammes.serve.state import Found, Site

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
_STARTS = 24  # pictures to begin with
_TINY = 64  # pixels
_SUGGESTED = 300  # classes whose names a page holds; of more the script asks as one types
_LONGEST_FORM = 4096  # bytes, of the one with the token

Page = Annotated[int, Query(ge=1, le=10**6)]


def routes(site: Site, app: FastAPI) -> APIRouter:
    """The routes of the pages."""
    pages = APIRouter(default_response_class=HTMLResponse)

    @pages.get("/static/{name}")
    async def static(name: str, v: str = "") -> Response:
        if name not in _FILES:
            raise RefusedError(404, f"there is no file {name!r}.")
        content, digest = _static(name)
        lasting = "public, max-age=31536000, immutable" if v == digest else "no-cache"
        return Response(content, media_type=_KINDS[Path(name).suffix], headers={"Cache-Control": lasting})

    @pages.get("/favicon.ico")
    async def icon() -> Response:
        return RedirectResponse(_address("icon.svg"))

    @pages.get("/api")
    async def interface(request: Request) -> HTMLResponse:
        base = str(request.base_url).rstrip("/")
        return _page(site, "api.html", here="api", document=examples(app.openapi(), site, base))

    if site.token is not None:
        _log_in(pages, site, site.token)
    _reports(pages, site)
    if site.has_gallery:
        _gallery(pages, site)
    else:

        @pages.get("/")
        async def start() -> Response:
            return RedirectResponse("/runs")

    return pages


def error_page(site: Site, request: Request, error: RefusedError) -> Response:
    """What a person is told who opened an address in vain."""
    if error.status == 401:
        asked = request.scope["path"] + (f"?{query}" if (query := request.url.query) else "")
        return RedirectResponse(
            f"/login{_query(to=_other_than_start(asked))}", status_code=303, headers={"Cache-Control": "no-store"}
        )
    page = _page(site, "error.html", here="", status=error.status, message=error.message)
    page.status_code = error.status
    page.headers.update(headers_of(request, error))
    return page


def _gallery(pages: APIRouter, site: Site) -> None:
    @pages.get("/")
    async def start() -> HTMLResponse:
        catalogue = site.gallery.catalogue
        numbers = _some(catalogue)
        await asyncio.to_thread(site.gallery.read_thumbnails, catalogue, numbers)
        return _page(site, "start.html", here="search", items=[catalogue.item(number) for number in numbers])

    @pages.post("/search")
    async def search(request: Request, k: K = 24, label: Label = None) -> Response:
        """A form that is sent without a script."""
        upload = await site.uploaded(request, site.gallery)
        return RedirectResponse(f"/picture/{upload.id}{_query(k=k, label=label)}", status_code=303)

    @pages.get("/item/{item}")
    async def item(item: Id, k: K = 24, label: Label = None) -> HTMLResponse:
        gallery = site.gallery
        catalogue, number = site.found(item, gallery)
        vector = await asyncio.to_thread(gallery.vector, number, catalogue)
        found = await _near(site, gallery, vector, k, label, leave_out=catalogue.paths[number])
        known = catalogue.item(number)
        return await _results(
            site, gallery, found, k, label, item=known, address=f"/item/{item}", shown=f"/api/items/{item}/image",
            small=api.thumbnail_address(known), width=known.width, height=known.height,
        )  # fmt: skip

    @pages.get("/picture/{picture}")
    async def picture(picture: Name, k: K = 24, label: Label = None) -> HTMLResponse:
        gallery = site.gallery
        upload = site.upload(picture, gallery)
        found = await _near(site, gallery, upload.vector, k, label)
        return await _results(
            site, gallery, found, k, label, item=None, address=f"/picture/{picture}",
            shown=f"/api/pictures/{picture}/thumbnail", small="", width=upload.width, height=upload.height,
        )  # fmt: skip

    @pages.get("/classes")
    async def classes(q: Annotated[str, Query(max_length=200)] = "", page: Page = 1) -> HTMLResponse:
        catalogue = site.gallery.catalogue
        names = api.classes_with(site, q)
        some = names[(page - 1) * _CLASSES : page * _CLASSES]
        covers = [catalogue.some_of(name, 1)[0] for name, _ in some]
        await asyncio.to_thread(site.gallery.read_thumbnails, catalogue, covers)
        cards = [
            {"name": name, "number": number, "cover": catalogue.item(cover), "address": f"/class{_query(name=name)}"}
            for (name, number), cover in zip(some, covers, strict=True)
        ]
        return _page(
            site, "classes.html", here="classes", cards=cards, total=len(names), q=q,
            **_pager("/classes", page, len(names), _CLASSES, q=q or None),
        )  # fmt: skip

    @pages.get("/class")
    async def one_class(name: Annotated[str, Query(max_length=1000)] = "", page: Page = 1) -> HTMLResponse:
        catalogue = site.gallery.catalogue
        if name not in catalogue.real_label:
            raise RefusedError(404, f"the gallery has no class {name!r}.")
        members = await asyncio.to_thread(catalogue.members, name)
        some = members[(page - 1) * _CARDS : page * _CARDS]
        await asyncio.to_thread(site.gallery.read_thumbnails, catalogue, some)
        return _page(
            site, "class.html", here="classes", name=name, total=len(members),
            items=[catalogue.item(number) for number in some],
            **_pager("/class", page, len(members), _CARDS, name=name),
        )  # fmt: skip

    @pages.get("/map")
    async def the_map() -> HTMLResponse:
        return _page(site, "map.html", here="map")


def _reports(pages: APIRouter, site: Site) -> None:
    @pages.get("/runs")
    async def runs() -> HTMLResponse:
        if not site.has_reports:
            raise RefusedError(404, "no reports are served here: tammes serve RUNS serves those of a folder of runs.")
        found = list((await site.reports()).values())
        return _page(
            site, "runs.html", here="runs", rows=[_row(each) for each in found if each.kind == "run"],
            benchmarks=[each for each in found if each.kind == "benchmark"],
        )  # fmt: skip

    @pages.get("/runs/{name:path}/report.html")
    async def report(name: str) -> FileResponse:
        found = (await site.reports()).get(name)
        if found is None or found.file is None:
            raise RefusedError(404, f"there is no report of {name!r}.")
        headers = {"Content-Security-Policy": policy(), "Cache-Control": "no-cache"}
        return FileResponse(found.file, media_type="text/html", headers=headers)


def _log_in(pages: APIRouter, site: Site, token: str) -> None:
    @pages.get("/login")
    async def ask(wrong: bool = False, to: Annotated[str, Query(max_length=2000)] = "/") -> HTMLResponse:
        return _page(site, "login.html", here="", wrong=wrong, to=_on_this_site(to), gallery=None)

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
        # Lax: whoever follows a link to an address here is known; what another site sends is refused by the guard.
        answer.set_cookie(
            COOKIE, cookie_of(token), httponly=True, samesite="lax", secure=request.url.scheme == "https",
            max_age=30 * 86400,
        )  # fmt: skip
        return answer


def _other_than_start(address: str) -> str | None:
    return None if address == "/" else address


def _on_this_site(address: str) -> str:
    """Where to go on after the token was given: an address of this site and no other."""
    plain = address.startswith("/") and not address.startswith("//") and "\\" not in address and address.isprintable()
    return address if plain else "/"


async def _near(site: Site, gallery: Gallery, vector: ndarray, k: int, label: str | None, **more: Any) -> Found:
    """What is near; nothing if there is no such class, which the page then says."""
    if label and label not in gallery.catalogue.real_label:
        return Found([], None)
    return await site.neighbours(vector, k, label or None, gallery=gallery, **more)


async def _results(
    site: Site, gallery: Gallery, answer: Found, k: int, label: str | None, *, address: str, **about: Any
) -> HTMLResponse:
    catalogue, found, judged = gallery.catalogue, answer.neighbours, answer.judged
    numbers = [number for each in found if (number := catalogue.number(each.item.id)) is not None]
    await asyncio.to_thread(gallery.read_thumbnails, catalogue, numbers)
    among = Counter(each.item.label for each in found)
    label = label or None
    return _page(
        site, "results.html", here="search", found=found, k=k, label=label, address=address,
        judged=judged, guess="" if judged is None else shown(judged.best_guess),
        end=1.05 * max([0.0 if judged is None else judged.threshold, *(each.distance for each in found)]) or 1.0,
        rates="" if judged is None or gallery.opened.threshold is None else gallery.opened.threshold.in_words(),
        numbers=sorted({*_NUMBERS, k}), classes=list(catalogue.classes)[:_SUGGESTED],
        more_classes=len(catalogue.classes) > _SUGGESTED,
        no_such_class=label is not None and label not in catalogue.real_label,
        among=[(name, number, f"{address}{_query(k=k, label=name)}") for name, number in among.most_common(8)],
        everything=f"{address}{_query(k=k)}", **about,
    )  # fmt: skip


def _row(report: Report) -> dict[str, Any]:
    """What the table of runs says of one."""
    trained = report.results.get("trained") or {}
    return {
        "report": report,
        "data": Path(str(report.config.get("data", ""))).name,
        "loss": report.config.get("loss", ""),
        "backbone": report.config.get("backbone", ""),
        "recall": trained.get("recall_at_1"),
        "nmi": trained.get("NMI"),
    }


def _some(catalogue: Catalogue) -> list[int]:
    """Items to begin with: one of a class, classes from the whole of the list; of few classes several."""
    names = list(catalogue.classes)
    if not names:
        return []
    rounds = -(-_STARTS // len(names))
    apart = max(1, len(names) // _STARTS)
    return [number for name in names[::apart][:_STARTS] for number in catalogue.some_of(name, rounds)][:_STARTS]


def _pager(path: str, page: int, total: int, size: int, **kept: str | None) -> dict[str, Any]:
    last = max(1, -(-total // size))
    if page > last:
        raise RefusedError(404, f"there are {last} pages.")
    return {
        "page": page,
        "last": last,
        "before": f"{path}{_query(**kept, page=page - 1 if page > 2 else None)}" if page > 1 else None,
        "after": f"{path}{_query(**kept, page=page + 1)}" if page < last else None,
    }


def _query(**values: Any) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _page(site: Site, template: str, **values: Any) -> HTMLResponse:
    gallery = site.gallery if site.has_gallery else None
    shared = {
        "version": __version__, "gallery": gallery, "site": site, "static": _address, "limits": site.limits,
        "thumbnail": api.thumbnail_address, "tiny": _tiny,
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
