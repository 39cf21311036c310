"""The picture of a report for the README: two places of the page side by side, as a browser shows them.

python -m benchmarks.screenshot runs/demo/report.html --out docs/pictures/report.png
"""

import shutil
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated

import tyro
from PIL import Image

from tammes.errors import UserError
from tammes.runtime import write_atomically

WIDTH, HEIGHT, GAP = 1180, 1000, 24


@dataclass(frozen=True)
class Options:
    """Draw the picture of a report."""

    report: Annotated[Path, tyro.conf.Positional]
    """The HTML file."""
    out: Path = Path("docs/pictures/report.png")
    """Where the picture goes."""
    places: tuple[str, ...] = ("result", "map")
    """Headings that the parts begin with; `result` shows the top of the page."""


def main(options: Options) -> None:
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise UserError("no Chromium here: apt-get install chromium")
    parts = []
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for number, place in enumerate(options.places):
            page = started.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                reduced_motion="reduce",
                color_scheme="dark" if number % 2 else "light",
            )
            page.goto(options.report.absolute().as_uri())
            if number:
                page.evaluate("place => document.getElementById(place).scrollIntoView()", place)
                box = page.locator("canvas").bounding_box()
                if place == "map" and box is not None:
                    page.mouse.move(box["x"] + 0.45 * box["width"], box["y"] + 0.55 * box["height"])
                    for step in range(40):  # until it rests on a point
                        if page.locator(".card").is_visible():
                            break
                        page.mouse.move(box["x"] + (0.45 + 0.005 * step) * box["width"], box["y"] + 0.5 * box["height"])
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


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
