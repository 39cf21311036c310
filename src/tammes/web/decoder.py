"""A process that turns one uploaded picture after the other into pixels: `python -m tammes.web.decoder BYTES PIXELS`.

It reads a JSON line and the file's bytes from standard input, and writes a JSON line and the results to standard
output. It holds no secret, may take so much memory and no more, and whoever started it ends it when it takes too long:
a file that makes a decoder crash, swell or hang ends this process and nothing else. It does not import torch.
"""

import json
import sys
import warnings
from io import BytesIO
from typing import Any

from PIL import Image

from tammes.datasets.pictures import centre, check_shape, open_picture, small
from tammes.errors import UserError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
_SHOWN = 480  # longer side of what the page shows of an upload, in pixels


def decoded(content: bytes, mode: Any, shorter_side: int, size: int) -> tuple[dict[str, Any], bytes, bytes]:
    """What is said of a picture, its pixels as a network sees it, and a small picture of it."""
    image = open_picture(BytesIO(content), name="the picture", formats=FORMATS)
    check_shape(image)
    pixels = centre(image, mode, shorter_side=shorter_side, size=size)
    return {"width": image.width, "height": image.height, "shape": pixels.shape}, pixels.tobytes(), small(image, _SHOWN)


def main(most_bytes: int, most_pixels: int) -> None:
    """Decode until standard input ends."""
    Image.MAX_IMAGE_PIXELS = most_pixels
    warnings.simplefilter("ignore")  # about broken metadata; the picture decides
    Image.init()
    _limit_memory(most_bytes)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while line := source.readline():
        asked = json.loads(line)
        content = source.read(asked["bytes"])
        pixels, shown = b"", b""
        try:
            said, pixels, shown = decoded(content, asked["mode"], asked["shorter_side"], asked["size"])
        except UserError as error:
            said = {"error": str(error)}
        except MemoryError:
            said = {"error": "cannot read the picture: it takes too much memory to open. Make it smaller."}
        said |= {"pixels": len(pixels), "shown": len(shown)}
        sink.write(json.dumps(said).encode() + b"\n" + pixels + shown)
        sink.flush()


def _limit_memory(more: int) -> None:
    """Let this process grow by so many bytes from here on, where the system can hold it to that."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    with open("/proc/self/statm") if sys.platform == "linux" else BytesIO(b"0") as file:  # noqa: PTH123
        pages = int(file.read().split()[0])
    whole = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (whole, whole))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
