"""The picture in a request: its body as it is, or a part of a form."""

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tammes.web.refusals import RefusedError

FIELD = "image"
_HOW = f"Send the file as the body, or as the field {FIELD!r} of a form: curl -F {FIELD}=@photo.jpg"


async def picture_in(request: Request) -> bytes:
    """The content of the picture's file. The guard has bounded the size of the body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _in_form(request)
    if kind == "application/x-www-form-urlencoded":
        # What curl says of --data-binary unless it is told otherwise: it is the file all the same.
        return await request.body()
    if kind and not kind.startswith("image/") and kind != "application/octet-stream":
        raise RefusedError(415, f"the body is of kind {kind!r}, which is no picture. {_HOW}")
    return await request.body()


async def _in_form(request: Request) -> bytes:
    try:
        async with request.form(max_files=4, max_fields=16) as form:
            given = form.get(FIELD)
            if not isinstance(given, UploadFile):
                raise RefusedError(400, f"the form has no file {FIELD!r}. {_HOW}")
            return await given.read()
    except HTTPException as error:
        raise RefusedError(400, f"the form cannot be read: {error.detail}. {_HOW}") from None
    except (ValueError, KeyError, AssertionError, LookupError) as error:
        raise RefusedError(400, f"the form cannot be read: {error}. {_HOW}") from None
