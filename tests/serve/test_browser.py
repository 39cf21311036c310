"""The pages in a real browser, as a person uses them: nothing complains, and every way to a picture finds the same."""

import base64
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tammes.serve.gallery import GalleryWatcher
from tammes.serve.limits import Limits
from tammes.serve.state import ServerState
from tests.conftest import HANGS, IN_A_BROWSER
from tests.serve.conftest import NASTY, Server, listening

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

pytestmark = IN_A_BROWSER
WIDTHS = [(1440, 900), (390, 844)]
OTHER_VIEWS = (("light", WIDTHS[0]), ("dark", WIDTHS[1]))
PAGES = ["/", "/classes", "/map", "/api", "/runs"]


@pytest.fixture
def window(browser: "Browser") -> Iterator[Callable[..., "Page"]]:
    """A function that opens a window; whatever its pages complain about fails the test."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def open_window(width: int = 1440, height: int = 900, **options: Any) -> "Page":
        context = browser.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce", permissions=["camera"], **options
        )
        context.set_default_timeout(1000 * HANGS)
        contexts.append(context)
        page = context.new_page()

        def heard(message: "ConsoleMessage") -> None:
            if message.type in ("error", "warning"):
                complaints.append(f"{page.url}: {message.text}")

        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"{page.url} opened a dialog: {dialog.message}"))
        return page

    yield open_window
    for context in contexts:
        context.close()
    assert complaints == []


def photo(photos: Path, name: str, number: int = 3) -> Path:
    return photos / name / f"it's <i>{number}.png"


def until(page: "Page", condition: str) -> None:
    """Wait; playwright's own way evaluates a text in the page, which the page's policy forbids."""
    for _ in range(int(10 * HANGS)):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never: {condition}")


def labels(page: "Page") -> list[str]:
    return page.locator("#found .class").all_text_contents()


def distances(page: "Page") -> list[float]:
    said = page.locator("#found .distance").all_text_contents()
    return [float(text.removeprefix("distance")) for text in said]


def choose(page: "Page", address: str, file: Path) -> None:
    page.goto(address)
    page.set_input_files("#picture", file)
    page.wait_for_url("**/picture/*")


@pytest.mark.parametrize("size", WIDTHS, ids=["wide", "phone"])
def test_a_picture_that_is_chosen_finds_what_the_api_finds(
    window: Callable[..., "Page"], server: Server, photos: Path, size: tuple[int, int]
) -> None:
    file = photo(photos, "plain")
    answer = server.post("/api/search?k=24", files={"image": file.read_bytes()}).json()
    page = window(*size)
    choose(page, server.address, file)
    assert labels(page) == [each["label"] for each in answer["found"]]
    assert distances(page) == [round(each["distance"], 3) for each in answer["found"]]
    assert distances(page)[0] == 0
    assert page.locator("#found li .hidden", has_text="within threshold").all_text_contents() == [
        f"within threshold: {'yes' if each['within_threshold'] else 'no'}" for each in answer["found"]
    ]
    marks = page.locator("#found .limit").evaluate_all("all => all.map((mark) => mark.getBoundingClientRect().left)")
    bars = page.locator("#found .all + rect").evaluate_all("all => all.map((bar) => bar.getBoundingClientRect().right)")
    for mark, bar, each in zip(marks, bars, answer["found"], strict=True):
        if abs(each["distance"] - answer["threshold"]) > 0.05 * answer["threshold"]:
            assert (bar < mark) == each["within_threshold"]
    said = page.locator(".judged").inner_text()
    assert answer["best_guess"] in said
    assert said.endswith(f"Within threshold: {'yes' if answer['accepted'] else 'no'}")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    loaded = "[...document.querySelectorAll('.asked img, #found img')].every((i) => i.complete && i.naturalWidth)"
    until(page, loaded)


@pytest.mark.slow
def test_click_on_filter_and_go_back_and_forth(window: Callable[..., "Page"], server: Server, photos: Path) -> None:
    page = window()
    choose(page, server.address, photo(photos, "plain"))
    first = page.url
    found = labels(page)
    page.locator("#found a").nth(1).click()
    page.wait_for_url("**/item/*")
    second = page.url
    assert page.locator(".asked h1").inner_text() == found[1]
    page.fill("form.narrow input[type=search]", NASTY[1])
    page.keyboard.press("Enter")
    page.wait_for_url("**label=*")
    assert set(labels(page)) == {NASTY[1]}
    page.select_option("form.narrow select", "8")
    page.wait_for_url("**k=8")
    assert len(labels(page)) <= 8
    assert set(labels(page)) == {NASTY[1]}
    page.click("text=All classes")
    page.wait_for_url(lambda url: "label" not in url)
    page.go_back()
    assert set(labels(page)) == {NASTY[1]}
    page.go_back()
    page.go_back()
    assert page.url == second
    page.go_back()
    assert page.url == first
    assert labels(page) == found
    page.go_forward()
    assert page.url == second


@pytest.mark.slow
def test_an_address_can_be_shared(window: Callable[..., "Page"], server: Server, photos: Path) -> None:
    page = window()
    choose(page, server.address, photo(photos, NASTY[0]))
    other = window()
    other.goto(page.url)
    assert labels(other) == labels(page)
    assert distances(other) == distances(page)


@pytest.mark.slow
def test_a_chip_shows_only_its_class(window: Callable[..., "Page"], server: Server, photos: Path) -> None:
    page = window()
    choose(page, server.address, photo(photos, "class 1"))
    chip = page.locator(".chips a").first
    name = re.sub(r"\s+\d+$", "", chip.inner_text())
    chip.click()
    page.wait_for_url("**label=*")
    assert set(labels(page)) == {name}


HAND_OVER = """([kind, data]) => {
  const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
  const given = new DataTransfer();
  given.items.add(new File([bytes], "x.png", { type: "image/png" }));
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: given, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: given, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["drop", "paste"])
def test_a_picture_can_be_dropped_and_pasted(
    window: Callable[..., "Page"], server: Server, photos: Path, how: str
) -> None:
    content = base64.b64encode(photo(photos, "Grün 鳥").read_bytes()).decode()
    page = window()
    page.goto(f"{server.address}/classes")  # anywhere
    if how == "drop":
        page.evaluate(HAND_OVER, ["dragenter", content])
        assert page.locator(".dropping").is_visible()
    page.evaluate(HAND_OVER, [how, content])
    page.wait_for_url("**/picture/*")
    assert labels(page)[0] == "Grün 鳥"
    assert distances(page)[0] == 0


@pytest.mark.slow
def test_a_picture_can_be_taken(window: Callable[..., "Page"], server: Server) -> None:
    page = window()
    page.goto(server.address)
    page.click("[data-take]")
    until(page, "document.querySelector('#camera video').videoWidth > 0")
    page.click("[data-camera=take]")
    page.wait_for_url("**/picture/*")
    assert len(labels(page)) == 24
    page.go_back()
    page.click("[data-take]")
    page.wait_for_selector("#camera[open]")
    page.click("[data-camera=cancel]")
    assert not page.locator("#camera").is_visible()


def test_a_picture_of_the_gallery_starts_a_search(window: Callable[..., "Page"], server: Server) -> None:
    page = window()
    page.goto(server.address)
    start = page.locator(".cards a").first
    name = start.inner_text()
    start.click()
    page.wait_for_url("**/item/*")
    assert page.locator(".asked h1").inner_text() == name
    assert 0 not in distances(page)  # itself is left out
    until(page, "document.querySelector('.asked img').naturalWidth == 40")  # the file, which is no larger


def test_classes_are_browsed(window: Callable[..., "Page"], server: Server) -> None:
    page = window()
    page.goto(f"{server.address}/classes")
    names = page.locator(".cards .class").all_text_contents()
    assert set(NASTY) <= set(names)
    for name in NASTY:
        page.goto(f"{server.address}/classes")
        page.get_by_text(name, exact=True).first.click()
        assert page.locator("h1").inner_text() == name
        assert page.locator(".cards li").count() == 8
    page.goto(f"{server.address}/classes")
    page.fill("input[name=q]", "CLASS")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=CLASS")
    assert page.locator(".cards .class").all_text_contents() == ["class 0", "class 1", "class 2"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(WIDTHS[0], marks=pytest.mark.slow), WIDTHS[1]], ids=["wide", "phone"])
def test_the_map_shows_images_and_leads_to_them(
    window: Callable[..., "Page"], server: Server, size: tuple[int, int]
) -> None:
    page = window(*size)
    page.goto(f"{server.address}/map")
    until(page, "document.getElementById('map-state').textContent.includes('80 images')")
    until(page, "!document.getElementById('map-state').textContent.includes('being made')")
    page.wait_for_timeout(300)
    canvas = page.locator("canvas")
    drawn = canvas.evaluate(
        "(c) => { const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;"
        " for (let i = 3; i < p.length; i += 4) if (p[i]) n += 1; return n; }"
    )
    assert drawn > 1000
    places = server.get("/api/map").json()
    box = canvas.bounding_box()
    assert box is not None
    side = min(box["width"], box["height"]) * 0.94
    x = box["width"] / 2 + (places["x"][0] / places["scale"] - 0.5) * side
    y = box["height"] / 2 + (places["y"][0] / places["scale"] - 0.5) * side
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": x, "y": y})
    card = page.locator(".card")
    card.wait_for(state="visible")
    canvas.click(position={"x": x, "y": y})
    page.wait_for_url("**/item/*")
    assert page.locator(".asked h1").inner_text() in places["classes"]
    page.go_back()
    until(page, "document.getElementById('map-state').textContent.includes('80 images')")
    canvas.focus()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
        if card.is_visible():
            break
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize(
    ("scheme", "size"),
    [("light", WIDTHS[1]), ("dark", WIDTHS[0]), *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHER_VIEWS)],
    ids=["light-phone", "dark-wide", "light-wide", "dark-phone"],
)
def test_every_page_fits_and_says_nothing(
    window: Callable[..., "Page"], server: Server, size: tuple[int, int], scheme: str
) -> None:
    page = window(*size, color_scheme=scheme)
    for path in [*PAGES, "/classes?q=nothing-like-it"]:
        page.goto(server.address + path)
        if path == "/map":  # which a script draws
            page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        assert page.locator("h1").count() == 1, path
        unnamed = "[...document.querySelectorAll('a, button, input, select')].filter((each) =>"
        unnamed += " !(each.textContent.trim() || each.ariaLabel || each.labels?.length || each.querySelector('img')))"
        assert page.evaluate(f"{unnamed}.map((each) => each.outerHTML)") == [], path
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 23, 26)") == (scheme == "dark")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
    page.goto(f"{server.address}/classes")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background  # it is remembered


def test_it_can_be_used_by_keyboard_alone(window: Callable[..., "Page"], server: Server, photos: Path) -> None:
    page = window()
    choose(page, server.address, photo(photos, "plain"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("[...document.querySelectorAll('#found a')].indexOf(document.activeElement)")
    assert focused > 1
    page.keyboard.press("ArrowUp")
    assert page.evaluate("[...document.querySelectorAll('#found a')].indexOf(document.activeElement)") == 1
    there = page.evaluate("document.activeElement.getAttribute('href')")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{there}")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "label"
    page.goto(server.address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_what_is_no_picture_is_told(browser: "Browser", server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"<svg onload=alert(1)>")
    page = browser.new_page()  # the browser itself notes an answer that is an error
    page.set_default_timeout(1000 * HANGS)
    page.goto(server.address)
    page.set_input_files("#picture", tmp_path / "x.png")
    alert = page.locator("[role=alert] p")
    alert.wait_for(state="visible")
    assert alert.inner_text().startswith("Sorry: cannot read the image: it is SVG, not one of JPEG, ")
    assert not page.locator(".waiting").is_visible()
    page.click("[role=alert] button")
    assert not alert.is_visible()
    page.goto(f"{server.address}/picture/{'a' * 16}")
    assert page.locator("h1").inner_text() == "This image is no longer in memory. Search with it again."
    page.goto(f"{server.address}/item/{'0' * 16}")
    assert page.locator("h1").inner_text() == f"The gallery has no item '{'0' * 16}'."
    page.close()


@pytest.mark.slow
def test_a_picture_that_is_too_large_is_made_smaller_first(
    window: Callable[..., "Page"], gallery: Path, tmp_path: Path
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    limits = Limits(upload_pixels=500_000, upload_bytes=1_000_000)
    with listening(ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=limits)) as server:
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        refused = httpx.post(f"{address}/api/search", content=(tmp_path / "large.png").read_bytes()).json()
        assert refused["error"] == "too_large"
        page = window()
        choose(page, address, tmp_path / "large.png")
        assert page.locator(".asked .note").first.inner_text().startswith("81")  # 816 × 612
        page.context.close()


def test_without_a_script_it_still_works(window: Callable[..., "Page"], server: Server, photos: Path) -> None:
    page = window(java_script_enabled=False)
    page.goto(server.address)
    page.set_input_files("#picture", photo(photos, "plain"))
    page.click("noscript button, form.chooser button:not([type])")
    page.wait_for_url("**/picture/*")
    assert labels(page)[0] == "plain"


def test_the_token_is_asked_for_once(window: Callable[..., "Page"], gallery: Path) -> None:
    state = ServerState(GalleryWatcher(str(gallery), None, "cpu"), token="a-long-enough-token")
    with listening(state) as server:
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        page = window()
        page.goto(address)
        assert page.url.endswith("/login")
        page.fill("#token", "something else!")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=This is not the token.")
        page.fill("#token", "a-long-enough-token")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:has-text('Find similar images')")
        page.goto(f"{address}/classes")
        assert page.locator(".cards li").count() == len(NASTY) + 3
        until(page, "[...document.querySelectorAll('.cards img')].slice(0, 5).every((i) => i.naturalWidth)")
        page.context.close()


def test_a_report_is_served_and_works(window: Callable[..., "Page"], server: Server) -> None:
    page = window()
    page.goto(f"{server.address}/runs")
    page.click("table.runs a")
    page.wait_for_url("**/report.html")
    assert page.locator("#map-of-items canvas").count() == 1
    page.locator("[role=tab]").nth(1).click()
    assert page.locator("[role=tab]").nth(1).get_attribute("aria-selected") == "true"
    assert page.evaluate("origin") == "null"  # it knows nothing of this site


@pytest.mark.slow
def test_a_rotated_photo_is_searched_upright(
    window: Callable[..., "Page"], server: Server, photos: Path, tmp_path: Path
) -> None:
    with Image.open(photo(photos, "plain")) as image:
        turned = image.transpose(Image.Transpose.ROTATE_90)
        exif = Image.Exif()
        exif[0x0112] = 6
        content = BytesIO()
        turned.save(content, format="PNG", exif=exif)
    (tmp_path / "turned.png").write_bytes(content.getvalue())
    page = window()
    choose(page, server.address, tmp_path / "turned.png")
    assert labels(page)[0] == "plain"
    assert distances(page)[0] == 0
