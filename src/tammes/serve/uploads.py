"""The image in a request: its body as it is, or a field of a form."""

import re
import sys

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from tammes.serve.errors import RequestError

FIELD = "image"
_HOW = f"Send the file as the body, or as the field {FIELD!r} of a form: curl -F {FIELD}=@photo.jpg"
_IN_ADDRESS = ("k", "label", "where", "exact")  # as fields they would be overlooked, and the answer be another
_KIND = 1000  # characters of a header that are looked at; 64 KB of semicolons take half a second
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{1,200}")


async def read_upload(request: Request) -> bytes:
    """The content of the image file. The middleware has bounded the size of the body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _in_form(request)
    # The second is what curl says of --data-binary unless it is told otherwise: it is the file all the same.
    plain = ("", "application/x-www-form-urlencoded", "application/octet-stream")
    if kind not in plain and not kind.startswith("image/"):
        raise RequestError(415, f"the body has the content type {kind[:100]!r}, which is not an image. {_HOW}")
    return await request.body()


async def _in_form(request: Request) -> bytes:
    _, options = parse_options_header(request.headers["content-type"][:_KIND])
    boundary = options.get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise RequestError(400, f"the form cannot be read: its boundary is missing or not allowed. {_HOW}")
    # Nothing else of what the header says goes on: to decode a field in a character set of the client's choice can take
    # minutes (punycode). No other field is used, so they may be short.
    headers = Headers(raw=[(b"content-type", b'multipart/form-data; boundary="%s"' % boundary)])
    parser = MultiPartParser(headers, request.stream(), max_files=4, max_fields=16, max_part_size=4096)
    parser.spool_max_size = sys.maxsize  # never to disk
    try:
        form = await parser.parse()
    except (MultiPartException, ValueError, AssertionError, LookupError) as error:
        raise RequestError(400, f"the form cannot be read: {str(error).rstrip('.')}. {_HOW}") from None
    try:
        if misplaced := next((name for name in _IN_ADDRESS if name in form), None):
            raise RequestError(400, f"{misplaced!r} is a field of the form, and belongs in the address: ?{misplaced}=…")
        given = form.get(FIELD)
        if not isinstance(given, UploadFile):
            raise RequestError(400, f"the form has no file {FIELD!r}. {_HOW}")
        return await given.read()
    finally:
        await form.close()
