"""The pictures of pages for the README: two places of a page side by side, as a browser shows them.

python -m benchmarks.screenshot runs/demo/report.html --out docs/pictures/report.png
python -m benchmarks.screenshot http://127.0.0.1:8000 --out docs/pictures/page.png  # while `tammes serve` runs
"""

import shutil
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from PIL import Image

from tammes.errors import UserError
from tammes.io.files import write_atomically

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH, HEIGHT, GAP = 1180, 1000, 24


@dataclass(frozen=True)
class Options:
    """Draw the picture of a report."""

    report: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE | ADDRESS")]
    """The HTML file of a report, or where a gallery is served."""
    out: Path = Path("docs/pictures/report.png")
    """Where the picture goes."""
    places: tuple[str, ...] = ()
    """Headings that the parts begin with, `result` the top of the page; of a site its addresses, such as /map."""


def main(options: Options) -> None:
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise UserError("no Chromium here: apt-get install chromium")
    parts = []
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for number, place in enumerate(options.places or _places(options.report)):
            page = started.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                reduced_motion="reduce",
                color_scheme="dark" if number % 2 else "light",
            )
            if _is_site(options.report):
                page.goto(options.report.rstrip("/") + place, wait_until="networkidle")
            else:
                page.goto(Path(options.report).absolute().as_uri())
                if number:
                    page.evaluate("place => document.getElementById(place).scrollIntoView()", place)
            if place.endswith("map"):
                page.wait_for_timeout(1500)
                _rest_on_a_point(page)
            parts.append(Image.open(BytesIO(page.screenshot())).convert("RGB"))
            page.close()
        started.close()
    sheet = Image.new("RGB", (sum(part.width for part in parts) + GAP * (len(parts) - 1), HEIGHT), "white")
    left = 0
    for part in parts:
        sheet.paste(part, (left, 0))
        left += part.width + GAP
    sheet = sheet.resize((sheet.width // 2, sheet.height // 2), Image.Resampling.LANCZOS)
    content = BytesIO()
    sheet.quantize(256).save(content, format="PNG", optimize=True)
    write_atomically(options.out, content.getvalue())
    print(f"{options.out}: {len(content.getvalue()) // 1000} kB")


def _is_site(report: str) -> bool:
    return report.startswith("http")


def _places(report: str) -> tuple[str, ...]:
    """A page of results and the map."""
    if not _is_site(report):
        return ("result", "map")
    import httpx

    count = httpx.get(f"{report}/api/count").json()["items"]
    items = httpx.get(f"{report}/api/items", params={"limit": 1, "offset": count // 3}).json()["items"]
    return (f"/item/{items[0]['id']}", "/map")


def _rest_on_a_point(page: "Page") -> None:
    box = page.locator("canvas").bounding_box()
    if box is None:
        return
    page.mouse.move(box["x"] + 0.45 * box["width"], box["y"] + 0.55 * box["height"])
    for step in range(40):
        if page.locator(".card").is_visible():
            break
        page.mouse.move(box["x"] + (0.45 + 0.005 * step) * box["width"], box["y"] + 0.5 * box["height"])
    page.wait_for_timeout(500)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
