"""The application: a site's routes behind its guard."""

import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tammes import __version__
from tammes.errors import UserError
from tammes.serve import api, pages
from tammes.serve.errors import FAULT, RefusedError, as_json, in_words, wants_page
from tammes.serve.middleware import Guard
from tammes.serve.state import Site

_DESCRIPTION = """Search a gallery of images by a picture, by one of its items, or by a vector.

An error is a JSON object with `error`, for a program, and `message`, for a person. Where the server was started with
a token, every request carries it: `Authorization: Bearer TOKEN`."""


def application(site: Site, *, hosts: Iterable[str] | None = None) -> ASGIApp:
    """The whole, for an ASGI server.

    Args:
        hosts: the names that it may be called by; None: any.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        try:
            await site.start()
        except Exception as error:
            site.failed = error  # a server says of it no more than that
            raise
        try:
            yield
        finally:
            await site.close()

    app = FastAPI(
        title="Tammes", version=__version__, description=_DESCRIPTION, lifespan=life, docs_url=None, redoc_url=None
    )

    def respond(request: Request, error: RefusedError) -> Response:
        return pages.error_page(site, request, error) if wants_page(request) else as_json(request, error)

    async def refused(request: Request, error: Exception) -> Response:
        return respond(request, _as_refusal(error))

    for kind in (RefusedError, HTTPException, RequestValidationError, UserError, Exception):
        app.add_exception_handler(kind, refused)
    app.include_router(api.routes(site))
    app.include_router(pages.routes(site, app), include_in_schema=False)
    return Guard(app, site.limits, site.telemetry, token=site.token, hosts=hosts, respond=respond)


def _as_refusal(error: Exception) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error.__cause__, RefusedError):  # FastAPI wraps what happens while it reads a body
        return error.__cause__
    if isinstance(error, RequestValidationError):
        return RefusedError(422, in_words(error.errors()))
    if isinstance(error, HTTPException):
        told = {
            404: "there is nothing at this address. /openapi.json lists the addresses there are.",
            405: "this address cannot be asked that way. /openapi.json lists how each can be.",
        }
        allowed = (error.headers or {}).get("Allow")
        if allowed is not None and "GET" in allowed:
            allowed += ", HEAD"  # which the guard answers
        return RefusedError(error.status_code, told.get(error.status_code, f"{error.detail}."), allowed=allowed)
    if isinstance(error, UserError):
        print(f"tammes: {error}", file=sys.stderr, flush=True)
        return RefusedError(503, "the gallery cannot be read at the moment; the server's log says why.", again_in=5)
    return RefusedError(500, FAULT)
