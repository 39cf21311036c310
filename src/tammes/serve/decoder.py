"""A process that turns one uploaded picture after the other into pixels: `python -m tammes.serve.decoder BYTES PIXELS`.

It reads a JSON line and the file's bytes from standard input, and writes a JSON line and the results to standard
output. It knows nothing of the gallery or the token, writes no file, may take so much memory and no more (where the
system can hold it to that), and whoever started it ends it when it takes too long: a file that makes a decoder crash,
swell or hang ends this process and nothing else. It has the rights of the server's user. It does not import torch.
"""

import json
import sys
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tammes.data.images import FORMATS, centre, check_shape, open_picture, small
from tammes.errors import UserError

_SHOWN = 480  # longer side of what the page shows of an upload, in pixels
_MESSAGE = 300  # characters; some quote the file


def decoded(content: bytes, mode: Any, shorter_side: int, size: int) -> tuple[dict[str, Any], bytes, bytes]:
    """What is said of a picture, its pixels as a network sees it, and a small picture of it."""
    image = open_picture(BytesIO(content), name="the picture")
    check_shape(image)
    pixels = centre(image, mode, shorter_side=shorter_side, size=size)
    return {"width": image.width, "height": image.height}, pixels.tobytes(), small(image, _SHOWN, effort=0)


def main(most_bytes: int, most_pixels: int) -> None:
    """Decode until standard input ends."""
    Image.MAX_IMAGE_PIXELS = most_pixels
    warnings.simplefilter("ignore")  # about broken metadata; the picture decides
    Image.init()
    for kind in set(Image.OPEN) - set(FORMATS):  # so that nothing can choose it: PostScript's starts a program
        del Image.OPEN[kind]
    _limit(most_bytes)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while line := source.readline():
        asked = json.loads(line)
        content = source.read(asked["bytes"])
        pixels, shown = b"", b""
        try:
            said, pixels, shown = decoded(content, asked["mode"], asked["shorter_side"], asked["size"])
        except UserError as error:
            said = {"error": str(error)[:_MESSAGE]}
        except MemoryError:
            said = {"error": "cannot read the picture: it takes too much memory to open. Make it smaller."}
        except Exception:  # what a library did not expect of a file
            said = {"error": "cannot read the picture: it is broken."}
        sink.write(json.dumps(said | {"shown": len(shown)}).encode() + b"\n" + pixels + shown)
        sink.flush()


def _limit(more: int) -> None:
    """Let this process grow by so many bytes from here on, and write no file, where the system can hold it to that."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    whole = pages * resource.getpagesize() + more
    for kind, most in ((resource.RLIMIT_AS, whole), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
