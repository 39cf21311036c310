"""Search over HTTP with an exported model: onnxruntime, NumPy, Pillow and Starlette. No PyTorch, no Tammes.

    tammes export runs/photos --with-preprocessing --out model.onnx
    tammes embed runs/photos photos/ --out gallery.npz
    uvicorn server:app --host 127.0.0.1 --port 8000      # in a folder with these two files
    curl --data-binary @photo.jpg 'http://127.0.0.1:8000/search?k=5'

MODEL and GALLERY name other files. The answer lists the nearest images of the gallery, the nearest first:

    {"found": [{"path": "photos/heron/1.jpg", "label": "heron", "distance": 0.412}, …]}
"""

import io
import os

import numpy as np
import onnxruntime
from PIL import Image, ImageOps
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

MOST_BYTES = 20_000_000
Image.MAX_IMAGE_PIXELS = 32_000_000  # Pillow refuses images of twice as many

model = onnxruntime.InferenceSession(os.environ.get("MODEL", "model.onnx"), providers=["CPUExecutionProvider"])
channels = model.get_inputs()[0].shape[-1]
with np.load(os.environ.get("GALLERY", "gallery.npz")) as file:
    vectors, paths, labels = file["vectors"], file["paths"], file["labels"]


def nearest(data: bytes, k: int) -> list[dict[str, object]]:
    """The k images of the gallery whose embeddings are closest to that of an image file."""
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG", "PNG", "WEBP"]) as image:
            pixels = np.asarray(ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB"))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise HTTPException(415, f"not a JPEG, PNG or WebP image that can be read: {error}") from None
    (query,) = model.run(None, {"picture": pixels.reshape(*pixels.shape[:2], channels)})[0]
    cosines = vectors @ query  # of unit vectors: the larger, the nearer
    order = np.argsort(-cosines, kind="stable")[:k]
    return [
        {"path": str(paths[i]), "label": str(labels[i]), "distance": float(np.sqrt(max(0.0, 2 - 2 * cosines[i])))}
        for i in order
    ]


async def search(request: Request) -> JSONResponse:
    try:
        k = int(request.query_params.get("k", 10))
    except ValueError:
        k = 0
    if not 1 <= k <= 1000:
        raise HTTPException(422, "k must be a whole number from 1 to 1000")
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            raise HTTPException(413, f"more than {MOST_BYTES} bytes")
    return JSONResponse({"found": await run_in_threadpool(nearest, data, k)})


async def health(_: Request) -> JSONResponse:
    return JSONResponse({"images": len(vectors)})


app = Starlette(routes=[Route("/search", search, methods=["POST"]), Route("/health", health)])
