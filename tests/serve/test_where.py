"""Filters in the API and on the page, over a gallery that was indexed from a table."""

import csv
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest

from tammes.cli import main
from tammes.gallery import open_gallery
from tammes.gallery.items import item_id
from tammes.serve.gallery import GalleryWatcher
from tammes.serve.limits import Limits
from tammes.serve.state import ServerState
from tests.serve.conftest import Inside, inside

PAGE = {"accept": "text/html"}
RED = "colour = 'red' and price < 6"


@pytest.fixture(scope="module")
def table(photos: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of three classes; every other image is red, and image n costs n."""
    folder = tmp_path_factory.mktemp("table")
    with (folder / "table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "colour", "price"])
        for name in ("plain", "class 0", "class 1"):
            for n, image in enumerate(sorted((photos / name).iterdir())):
                rows.writerow([image, name, ("red", "blue")[n % 2], n])
    main(["index", str(run), str(folder / "table.csv"), "--gallery", str(folder / "gallery")])
    return folder / "gallery"


@pytest.fixture(scope="module")
def site(table: Path) -> Iterator[Inside]:
    with inside(ServerState(GalleryWatcher(str(table), None, "cpu"), limits=Limits(rate=0.0))) as here:
        yield here


@pytest.fixture(scope="module")
def first(table: Path) -> str:
    return item_id(min(path for path in open_gallery(str(table)).fingerprints() if "plain" in path))


def prices(answer: httpx.Response) -> set[tuple[str, int]]:
    """The class and the number of each image that was found."""
    assert answer.status_code == 200, answer.text
    return {(each["label"], int(each["name"][-5])) for each in answer.json()["found"]}


def test_the_api_finds_what_fits(site: Inside, first: str, photos: Path) -> None:
    wanted = {(name, n) for name in ("plain", "class 0", "class 1") for n in (0, 2, 4)}
    picture = {"image": (photos / "plain" / "it's <i>0.png").read_bytes()}
    answer = site.post("/api/search", params={"k": 50, "where": RED}, files=picture)
    assert prices(answer) == wanted
    kept = f"/api/pictures/{answer.json()['query']['id']}/neighbours"
    assert prices(site.get(kept, params={"k": 50, "where": RED})) == wanted
    by_item = f"/api/items/{first}/neighbours"
    assert prices(site.get(by_item, params={"k": 50, "where": RED})) == wanted - {("plain", 0)}
    of_class = {"k": 50, "where": RED, "label": "class 1"}
    assert prices(site.get(by_item, params=of_class)) == {("class 1", n) for n in (0, 2, 4)}
    store = site.state.gallery.store
    vector = next(iter(store.get(list(store.fingerprints())[:1]))).vector
    body = {"vector": vector.tolist(), "k": 50, "where": RED}
    assert prices(site.post("/api/search/vector", json=body)) == wanted


WRONG = [
    ("colour is red", "got 'is red' at character 8"),
    ("colour = red", "a text in single quotes"),
    ("color = 'red'", "unknown column 'color'. Did you mean 'colour'?"),
    ("price != '6'", "the column 'price' with a text, and it has numbers"),
    ("colour = '<b>'' or", "got"),
]


@pytest.mark.parametrize(("where", "said"), WRONG)
def test_a_wrong_filter_is_refused_in_words(site: Inside, first: str, where: str, said: str) -> None:
    answer = site.get(f"/api/items/{first}/neighbours", params={"where": where})
    assert answer.status_code == 400
    assert said in answer.json()["message"]
    page = site.get(f"/item/{first}", params={"where": where}, headers=PAGE)
    assert page.status_code == 400
    text = unescape(page.text)
    alert = text.partition('role="alert">')[2].partition("</p>")[0]
    assert said[1:] in alert
    assert "`where" not in alert  # which is for who writes Python
    assert f'name="where" value="{where}"' in text  # to be put right
    assert "<b>" not in page.text
    assert 'id="found"' not in text


def test_the_page_shows_what_fits_and_keeps_the_filter(site: Inside, first: str) -> None:
    text = site.get(f"/item/{first}", params={"k": 48, "where": f" {RED} "}, headers=PAGE).text
    assert text.count('<span class="class"') == 8
    assert f'value="{RED}"' in unescape(text)
    carried = "where=colour+%3D+%27red%27+and+price+%3C+6"
    for link in (f"?k=48&amp;label=class+1&amp;{carried}", f"?k=48&amp;{carried}"):  # of a class, and of an image
        assert link in text
    everything = site.get(f"/item/{first}?k=48&where=", headers=PAGE)
    assert everything.status_code == 200
    assert everything.text.count('<span class="class"') == 23
    nothing = site.get(f"/item/{first}", params={"where": "price > 100"}, headers=PAGE)
    assert nothing.status_code == 200
    assert "Nothing was found that fits the filter." in nothing.text
