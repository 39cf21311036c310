"""Answers to requests that cannot be granted: a number for the program, a sentence for the person."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tammes.errors import shown

# What each status is called in the JSON answer.
CODES = {
    400: "bad_request",
    401: "token_needed",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    415: "not_an_image",
    421: "wrong_host",
    422: "not_valid",
    429: "too_many_requests",
    500: "fault",
    503: "busy",
    504: "took_too_long",
}


_LONGEST = 80  # characters from which on a value is not said back


class RefusedError(Exception):
    """A request that gets an error for an answer.

    Attributes:
        status: of HTTP.
        message: what was wrong, what is right.
        again_in: seconds after which it may be worth another try.
        allowed: the methods that the address does know, where it was asked with another.
    """

    def __init__(self, status: int, message: str, *, again_in: int | None = None, allowed: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.again_in, self.allowed = status, message, again_in, allowed


FAULT = "something went wrong on the server; its log says what."


def headers_of(request: Request, error: RefusedError) -> dict[str, str]:
    """What goes with the answer, whatever its form."""
    headers = {"Cache-Control": "no-store"}
    if error.again_in is not None:
        headers["Retry-After"] = str(error.again_in)
    if error.allowed is not None:
        headers["Allow"] = error.allowed
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if request.method not in ("GET", "HEAD"):
        headers["Connection"] = "close"  # whatever is left of its body is not read
    return headers


def as_json(request: Request, error: RefusedError) -> Response:
    content = {"error": CODES.get(error.status, "error"), "message": error.message}
    return JSONResponse(content, error.status, headers_of(request, error))


def wants_page(request: Request) -> bool:
    """Whether a person looks at the answer: a browser that opens an address, not a script that asks."""
    path = request.scope["path"]
    return not path.startswith(("/api/", "/static/", "/metrics")) and "text/html" in request.headers.get("accept", "")


def in_words(errors: Any) -> str:
    """What pydantic found wrong with a request, in one sentence."""
    said = []
    for error in errors[:5]:
        if error["type"] == "json_invalid":
            said.append(f"the body is no JSON: {error['ctx']['error']}, at character {error['loc'][-1]}")
            continue
        where = ".".join(str(part)[:100] for part in error["loc"] if part not in ("query", "body", "path"))
        given = error.get("input")
        # What is long is not said back; what is missing has for its value all that is there instead.
        told = shown(given) if isinstance(given, str | int | float) else ""
        got = f", got {told}" if told and len(told) < _LONGEST else ""
        said.append(f"{where or 'the body'}: {error['msg']}{got}")
    return "; ".join(said).encode(errors="backslashreplace").decode() + "."
