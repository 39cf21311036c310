"""Error responses: a code for programs, a sentence for people."""

from typing import Any

from starlette.exceptions import HTTPException
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
FAULT = "something went wrong on the server; its log says what."
TOO_MANY_UPLOADS = "too many images at once. Try again in a moment."
_LONGEST = 80  # characters from which on a value is not quoted


class RequestError(HTTPException):
    """A request that is answered with an error.

    Attributes:
        status_code: of HTTP.
        detail: what was wrong, what is right.
        headers: of the answer.
    """

    def __init__(
        self, status: int, message: str, *, retry_after: int | None = None, headers: dict[str, str] | None = None
    ) -> None:
        retry = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, {**(headers or {}), **retry})


def error_headers(request: Request, error: HTTPException) -> dict[str, str]:
    """The headers of an error response, JSON or page."""
    headers = {"Cache-Control": "no-store", **(error.headers or {})}
    if error.status_code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if request.method not in ("GET", "HEAD"):
        headers["Connection"] = "close"  # the rest of its body is not read
    return headers


def error_response(request: Request, error: HTTPException) -> Response:
    """An error as JSON."""
    content = {"error": CODES.get(error.status_code, "error"), "message": error.detail}
    return JSONResponse(content, error.status_code, error_headers(request, error))


def wants_page(request: Request) -> bool:
    """Whether a person looks at the answer: a browser that opens an address, not a script that asks."""
    path = request.scope["path"]
    return not path.startswith(("/api/", "/static/", "/metrics")) and "text/html" in request.headers.get("accept", "")


def validation_message(errors: Any) -> str:
    """What pydantic found wrong with a request, in one sentence."""
    messages = []
    for error in errors[:5]:
        where = ".".join(str(part)[:100] for part in error["loc"] if part not in ("query", "body", "path"))
        given = error.get("input")
        # A long value is not quoted, nor a class; where a field is missing, the input is everything else.
        quoted = shown(given) if isinstance(given, str | int | float) and where != "label" else ""
        got = f", got {quoted}" if quoted and len(quoted) < _LONGEST else ""
        messages.append(f"{where or 'the body'}: {error['msg']}{got}")
    return "; ".join(messages).encode(errors="backslashreplace").decode() + "."
