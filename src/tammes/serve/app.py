"""The ASGI application: the routes of the API and the pages, behind the middleware."""

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
from tammes.serve.errors import FAULT, RequestError, error_response, validation_message, wants_page
from tammes.serve.middleware import RequestMiddleware
from tammes.serve.state import ServerState

_DESCRIPTION = """Search a gallery of images by an image, by one of its items, or by a vector.

An error is a JSON object with `error`, for a program, and `message`, for a person. Where the server was started with
a token, every request carries it: `Authorization: Bearer TOKEN`."""
_MESSAGES = {
    404: "there is nothing at this address. /openapi.json lists the addresses there are.",
    405: "this address does not take that method. /openapi.json lists the methods of each.",
}


def application(state: ServerState, *, hosts: Iterable[str] | None = None) -> ASGIApp:
    """The application, for an ASGI server.

    Args:
        hosts: the allowed host names; None for any.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await state.start()
        except Exception as error:
            state.failed = error  # uvicorn says no more than that it failed
            raise
        try:
            yield
        finally:
            await state.close()

    app = FastAPI(
        title="Tammes", version=__version__, description=_DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None
    )

    def respond(request: Request, error: RequestError) -> Response:
        return pages.error_page(state, request, error) if wants_page(request) else error_response(request, error)

    async def handle(request: Request, error: Exception) -> Response:
        return respond(request, _request_error(error))

    for kind in (HTTPException, RequestValidationError, UserError, Exception):
        app.add_exception_handler(kind, handle)
    app.include_router(api.routes(state))
    app.include_router(pages.routes(state, app), include_in_schema=False)
    return RequestMiddleware(app, state.limits, state.telemetry, token=state.token, hosts=hosts, respond=respond)


def _request_error(error: Exception) -> RequestError:
    """Turn any exception into the error response for the client."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RequestValidationError):
        return RequestError(422, validation_message(error.errors()))
    if isinstance(error, HTTPException):  # of FastAPI itself
        headers = dict(error.headers or {})
        if "GET" in headers.get("Allow", ""):
            headers["Allow"] += ", HEAD"  # which the middleware answers
        message = _MESSAGES.get(error.status_code, f"{error.detail}.")
        return RequestError(error.status_code, message, headers=headers)
    if isinstance(error, UserError):
        print(f"tammes: {error}", file=sys.stderr, flush=True)
        return RequestError(503, "the gallery cannot be read at the moment; the server's log says why.", retry_after=5)
    return RequestError(500, FAULT)
