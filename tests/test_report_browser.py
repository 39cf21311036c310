"""Reports in a real browser: nothing complains, tables sort, the map shows pictures, the page fits a phone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from tammes.cli import main
from tests.conftest import HANGS, IN_A_BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

pytestmark = [pytest.mark.xdist_group("browser"), *IN_A_BROWSER]
NASTY = ["<b>bold", "\"quoted\" & 'so'", "plain", "<img src=x onerror=alert(1)>", "Grün 鳥", "x" * 60]
SMALL = ("--backbone", "conv4", "--dim", "16", "--batch-size", "8", "--shift", "2", "--epochs", "2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes with names that a page could stumble over; stripes of a class's own angle, in much noise."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    for number, name in enumerate([*NASTY, *(f"class {n}" for n in range(6))]):
        folder = root / name
        folder.mkdir()
        for image in range(6):
            wave = np.sin((x * np.cos(number * 0.5) + y * np.sin(number * 0.5)) * 0.5 + rng.uniform(0, 6))
            pixels = 128 + 60 * wave + rng.normal(0, 40, (28, 28))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"it's <i>{image}.png")
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its report; every class of the nasty names is one of the test."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "test.txt").write_text("\n".join(NASTY))
    main(["train", str(photos), "--out", str(folder / "run"), "--test-classes", str(folder / "test.txt"),
          "--val-classes", "2", "--log-bound", *SMALL])  # fmt: skip
    main(["report", str(folder / "run"), "--map", "pca"])
    return folder / "run"


@pytest.fixture
def opened(browser: "Browser") -> Iterator[Any]:
    """A function that opens a file and remembers whatever the page complains about; complaints fail the test."""
    complaints: list[str] = []
    pages: list[Page] = []

    def console(said: "ConsoleMessage") -> None:
        if said.type in ("error", "warning"):
            complaints.append(said.text)

    def dialog(shown: "Dialog") -> None:
        complaints.append(f"dialog {shown.message}")
        shown.dismiss()

    def request(sent: "Request") -> None:
        if sent.url.startswith("http"):
            complaints.append(sent.url)

    def open_file(file: Path, width: int = 1440, **options: Any) -> "Page":
        page = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce", **options)
        page.set_default_timeout(1000 * HANGS)
        page.on("console", console)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", dialog)
        page.on("request", request)
        page.goto(file.as_uri())
        pages.append(page)
        return page

    yield open_file
    for page in pages:
        page.close()
    assert complaints == []


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_of_a_run_fits(run: Path, opened: Any, width: int, colours: str) -> None:
    page = opened(run / "report.html", width, color_scheme=colours)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    headings = page.locator("h2").all_inner_texts()
    assert headings == [
        "Result", "Training", "Centroids", "What it finds", "What it mixes up", "Class by class",
        "Map of the embeddings", "Same-class threshold",
    ]  # fmt: skip
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (colours == "dark")


def test_the_button_changes_between_light_and_dark(run: Path, opened: Any) -> None:
    page = opened(run / "report.html", color_scheme="light")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_names_of_classes_and_files_are_shown_as_they_are(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    listed = page.locator("#classes-table tbody tr td:nth-child(2)").all_inner_texts()
    assert sorted(listed) == sorted(NASTY)
    assert page.locator("#classes-table b, #classes-table i:not(.meter i)").count() == 0
    assert "it's <i>" in page.locator(".found img").first.get_attribute("title")
    assert sorted(page.locator(".map-classes li span").all_inner_texts()) == sorted(NASTY)


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_round(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    cells = page.locator("#classes-table tbody tr td:nth-child(4)")

    def recalls() -> list[float]:
        return [float(text) for text in cells.all_inner_texts()]

    assert recalls() == sorted(recalls())
    heading = page.locator("#classes-table th", has_text="R@1")
    heading.click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert recalls() == sorted(recalls(), reverse=True)
    heading.locator("button").press("Enter")
    assert recalls() == sorted(recalls())
    page.locator("#classes-table th", has_text="class").first.click()
    names = page.locator("#classes-table tbody tr td:nth-child(2)").all_inner_texts()
    in_order = page.evaluate(
        "names => names.sort((a, b) => a.toLowerCase().localeCompare(b.toLowerCase(), undefined, {numeric: true}))",
        names,
    )
    assert names == in_order


def test_the_table_of_classes_can_be_searched(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    page.fill("input[data-filters]", "grün")
    assert page.locator("#classes-table tbody tr:visible").count() >= 1
    assert page.locator("#classes-table tbody tr:visible").count() < len(NASTY)


def test_tabs_show_other_queries(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    assert page.locator(".panel:visible").count() == 1
    page.click("#tab-worst")
    assert page.locator(".panel:visible").get_attribute("id") == "queries-worst"
    page.keyboard.press("ArrowLeft")
    assert page.locator(".panel:visible").get_attribute("id") == "queries-best"


@pytest.mark.slow
def test_frames_tell_right_from_wrong(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    for row in page.locator("#queries-random .found").all():
        query = row.locator("figure.query img").get_attribute("alt").partition(": ")[0]
        for figure in row.locator("figure:not(.query)").all():
            said = figure.locator("img").get_attribute("alt")
            same = said.partition(": ")[0] == query
            assert (figure.get_attribute("class") == "right") == same
            assert figure.locator("figcaption").inner_text()[0] == ("✓" if same else "✗")
            assert said.endswith(", the same class" if same else ", another class")


def point(page: "Page", number: int) -> tuple[float, float]:
    """Where on the screen a point of the map is, by the same numbers that the page has."""
    data = json.loads(page.locator("#map-data").text_content() or "")
    page.locator("#map-of-items canvas").scroll_into_view_if_needed()
    box = page.locator("#map-of-items canvas").bounding_box()
    assert box is not None
    side = 0.94 * min(box["width"], box["height"])
    x, y = (data[axis][number] / data["scale"] - 0.5 for axis in ("x", "y"))
    return box["x"] + box["width"] / 2 + x * side, box["y"] + box["height"] / 2 + y * side


@pytest.mark.slow
def test_resting_on_a_point_of_the_map_shows_its_picture(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    data = json.loads(page.locator("#map-data").text_content())
    card = page.locator("#map-of-items .card")
    assert card.is_hidden()
    number = int(np.argmax(data["x"]))  # at the border: no other covers it
    page.mouse.move(*point(page, number))
    assert card.is_visible()
    assert card.locator(".item").inner_text() == data["items"][number]
    assert card.locator(".class").inner_text() == data["classes"][data["label"][number]]
    assert card.locator(".thumb").evaluate("thumb => thumb.style.backgroundImage").startswith('url("data:image/webp')
    box = page.locator("#map-of-items canvas").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    assert card.is_hidden()


@pytest.mark.slow
def test_a_class_that_is_switched_off_is_not_on_the_map(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    data = json.loads(page.locator("#map-data").text_content())
    card, number = page.locator("#map-of-items .card"), int(np.argmax(data["x"]))
    name = data["classes"][data["label"][number]]
    page.fill(".map-classes input[type=search]", name)
    page.locator(".map-classes li:visible input").uncheck()
    page.mouse.move(*point(page, number))
    assert card.is_hidden() or card.locator(".class").inner_text() != name
    page.fill(".map-classes input[type=search]", "")
    page.click(".map-classes [data-do=none]")
    page.mouse.move(*point(page, int(np.argmin(data["x"]))))
    assert card.is_hidden()
    page.click(".map-classes [data-do=all]")
    page.mouse.move(*point(page, number))
    assert card.is_visible()


def test_the_map_comes_nearer_and_goes_back(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    data = json.loads(page.locator("#map-data").text_content())
    number = int(np.argmax(data["x"]))
    page.click("#map-of-items [data-do=in]")
    page.mouse.move(*point(page, number))
    card = page.locator("#map-of-items .card")
    assert card.is_hidden() or card.locator(".item").inner_text() != data["items"][number]
    page.click("#map-of-items [data-do=whole]")
    page.mouse.move(*point(page, number))
    assert card.locator(".item").inner_text() == data["items"][number]
    page.locator("#map-of-items canvas").press("ArrowRight")
    assert card.is_visible()  # what stands in the middle now
    page.mouse.move(0, 0)
    page.mouse.move(*point(page, number))
    assert card.is_hidden() or card.locator(".item").inner_text() != data["items"][number]


@pytest.mark.slow
def test_on_paper_every_group_of_queries_is_there(run: Path, opened: Any) -> None:
    page = opened(run / "report.html")
    page.emulate_media(media="print")
    assert page.locator(".panel:visible").count() == 3
    assert page.locator("nav").is_hidden()


@pytest.mark.slow
def test_several_runs_stand_on_one_page_with_links_to_their_own(
    run: Path, photos: Path, tmp_path: Path, opened: Any
) -> None:
    other = tmp_path / "other & <so>"
    main(["train", str(photos), "--out", str(other), "--loss", "softmax", *SMALL])
    main(["report", str(run), str(other), "--map", "none", "--out", str(tmp_path / "both.html")])
    page = opened(tmp_path / "both.html", 390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    links = page.locator("table.sortable a")
    assert links.count() == 2
    links.nth(1).click()
    assert "softmax loss" in page.locator("h1").inner_text()


def test_a_run_of_vectors_has_a_page_without_pictures(tmp_path: Path, opened: Any) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([f"kind <{n}>" for n in range(12)], 8)
    centres = rng.normal(size=(12, 6))
    vectors = (centres[np.repeat(np.arange(12), 8)] + 0.6 * rng.normal(size=(96, 6))).astype(np.float32)
    np.savez(tmp_path / "x.npz", vectors=vectors, labels=labels)
    main(["train", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), "--epochs", "2"])
    main(["report", str(tmp_path / "run")])
    page = opened(tmp_path / "run" / "report.html", 390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("img").count() == 0
    data = json.loads(page.locator("#map-data").text_content())
    page.mouse.move(*point(page, int(np.argmax(data["y"]))))  # at the lower border: no button covers it
    assert page.locator("#map-of-items .card .class").inner_text().startswith("kind <")
