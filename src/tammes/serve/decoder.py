"""A process that decodes one uploaded image after the other: `python -m tammes.serve.decoder BYTES PIXELS`.

It reads a JSON line and the file's bytes from standard input, and writes a JSON line and the results to standard
output. It knows nothing of the gallery or the token, writes no file, has a limit on its memory (where the system can
enforce one), and is killed when it takes too long: a file that makes a decoder crash, swell or hang ends this process
and nothing else. It has the rights of the server's user. It does not import torch.
"""

import json
import sys
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tammes.data.images import FORMATS, centre, check_shape, open_image, small
from tammes.errors import UserError

_THUMBNAIL = 480  # longer side of what the page shows of an upload, in pixels
_MESSAGE = 300  # characters of an error; some quote the file


def decoded(content: bytes, mode: Any, shorter_side: int, size: int) -> tuple[dict[str, Any], bytes, bytes]:
    """The size of an image, its pixels as a network sees it, and its thumbnail."""
    image = open_image(BytesIO(content), name="the image")
    check_shape(image)
    pixels = centre(image, mode, shorter_side=shorter_side, size=size)
    return {"width": image.width, "height": image.height}, pixels.tobytes(), small(image, _THUMBNAIL)


def main(most_bytes: int, most_pixels: int) -> None:
    """Decode until standard input ends."""
    Image.MAX_IMAGE_PIXELS = most_pixels
    warnings.simplefilter("ignore")  # about broken metadata; only the pixels matter
    Image.init()
    for kind in set(Image.OPEN) - set(FORMATS):  # so that nothing can choose it: PostScript's starts a program
        del Image.OPEN[kind]
    _limit(most_bytes)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while line := source.readline():
        asked = json.loads(line)
        content = source.read(asked["bytes"])
        pixels, thumbnail = b"", b""
        try:
            header, pixels, thumbnail = decoded(content, asked["mode"], asked["shorter_side"], asked["size"])
        except UserError as error:
            header = {"error": str(error)[:_MESSAGE]}
        except MemoryError:
            header = {"error": "cannot read the image: it takes too much memory to open. Make it smaller."}
        except Exception:  # what a library did not expect of a file
            header = {"error": "cannot read the image: it is broken."}
        sink.write(json.dumps(header | {"thumbnail": len(thumbnail)}).encode() + b"\n" + pixels + thumbnail)
        sink.flush()


def _limit(more: int) -> None:
    """Let this process grow by so many bytes from here on, and write no file, where the system can enforce it."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    whole = pages * resource.getpagesize() + more
    for kind, most in ((resource.RLIMIT_AS, whole), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
