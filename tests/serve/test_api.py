"""The JSON API: it finds what `tammes search` finds, and says in words what it cannot do."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from io import BytesIO, StringIO
from itertools import pairwise
from pathlib import Path
from threading import get_ident
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from numpy import ndarray
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from pydantic import model_validator

from tammes.cli import main
from tammes.gallery import About, Row, Store, open_gallery
from tammes.gallery.model import model_digest
from tammes.gallery.trust import trust
from tammes.serve import api, pages
from tammes.serve.errors import validation_message as said_of
from tammes.serve.gallery import GalleryWatcher
from tammes.serve.limits import Limits
from tammes.serve.models import VectorModel
from tammes.serve.rows import Rows, escaped
from tammes.serve.state import ServerState
from tammes.training.run_folder import RunFolder
from tests.commands import stripes
from tests.serve.conftest import NASTY, Inside, Server, inside

FREE = Limits(rate=0.0)
NOT_UNICODE = os.fsdecode(b"caf\xe9 \xff.png")


def png(number: int = 4, seed: int = 7) -> bytes:
    content = BytesIO()
    stripes(number, np.random.default_rng(seed), 40).save(content, "PNG")
    return content.getvalue()


def name_of(photos: Path, path: str) -> str:
    return escaped(os.path.relpath(path, photos))


def found(answer: httpx.Response) -> list[tuple[str, str, float]]:
    """What was found: names, classes and distances, to the last digit."""
    assert answer.status_code == 200, answer.text
    return [(each["name"], each["label"], each["distance"]) for each in answer.json()["found"]]


def refused(answer: httpx.Response, status: int) -> str:
    """The message of a refusal."""
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert set(said) == {"error", "message"}
    return str(said["message"])


@pytest.fixture(scope="module")
def store(gallery: Path) -> Store:
    return open_gallery(str(gallery))


@pytest.fixture(scope="module")
def items(server: Server) -> list[dict[str, Any]]:
    """Every item, as the API lists them."""
    answer = server.get("/api/items", params={"limit": 500}).json()
    assert answer["total"] == len(answer["items"])
    return list(answer["items"])


@pytest.fixture(scope="module")
def paths(photos: Path, store: Store) -> dict[str, str]:
    """The path of each item by its name."""
    return {name_of(photos, path): path for path in store.fingerprints()}


@pytest.fixture(scope="module")
def searched(
    gallery: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[tuple[str, str, float]]]:
    """What `tammes search --json` finds."""
    query = tmp_path_factory.mktemp("query") / "query"

    @cache
    def search(content: bytes, *options: str) -> list[tuple[str, str, float]]:
        query.write_bytes(content)
        with redirect_stdout(StringIO()) as said:
            main(["search", str(gallery), str(query), "--json", *options])
        hits = json.loads(said.getvalue())["queries"][0]["found"]
        return [(name_of(photos, hit["path"]), hit["label"], hit["distance"]) for hit in hits]

    return search


WAYS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "a form": lambda content: {"files": {"image": ("it's.png", content, "image/png")}},
    "a form that does not say what it holds": lambda content: {"files": {"image": ("x", content)}},
    "image/png": lambda content: {"content": content, "headers": {"Content-Type": "image/png"}},
    "image/jpeg for a PNG": lambda content: {"content": content, "headers": {"Content-Type": "image/jpeg"}},
    "octet-stream": lambda content: {"content": content, "headers": {"Content-Type": "application/octet-stream"}},
    "curl --data-binary": lambda content: {
        "content": content,
        "headers": {"Content-Type": "application/x-www-form-urlencoded"},
    },
    "no kind": lambda content: {"content": content},
    "in pieces": lambda content: {"content": iter([content[:100], content[100:]])},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_upload_finds_what_the_command_finds(
    server: Server, searched: Callable[..., list[tuple[str, str, float]]], way: str
) -> None:
    content = png()
    answer = server.post("/api/search", params={"k": 12}, **WAYS[way](content))
    hits = found(answer)
    assert hits == searched(content, "-k", "12")
    assert len(hits) == 12
    assert all(one[2] <= other[2] for one, other in pairwise(hits))
    query = answer.json()["query"]
    assert (query["kind"], query["label"], query["width"], query["height"]) == ("picture", None, 40, 40)


def test_an_upload_among_one_class_finds_what_the_command_finds(
    server: Server, searched: Callable[..., list[tuple[str, str, float]]]
) -> None:
    for label in NASTY:
        params: dict[str, Any] = {"label": label, "k": 3, "exact": "true"}
        hits = found(server.post("/api/search", params=params, content=png()))
        assert hits == searched(png(), "-k", "3", "--label", label, "--exact")
        assert {hit[1] for hit in hits} == {label}


def test_a_kept_picture_is_searched_with_again(server: Server) -> None:
    answer = server.post("/api/search", content=png())
    kept = answer.json()["query"]["id"]
    again = server.get(f"/api/pictures/{kept}/neighbours")
    assert again.json() == answer.json()
    assert found(server.get(f"/api/pictures/{kept}/neighbours", params={"k": 20}))[:8] == found(answer)
    picture = server.get(f"/api/pictures/{kept}/thumbnail")
    assert picture.headers["content-type"] == "image/webp"
    assert picture.headers["cache-control"] == "private, max-age=600"  # no longer than it may be kept here
    assert Image.open(BytesIO(picture.content)).size == (40, 40)


def test_each_upload_has_an_id_of_its_own(server: Server) -> None:
    one, other = (server.post("/api/search", content=png()).json()["query"]["id"] for _ in range(2))
    assert one != other


def test_a_refusal_reaches_a_client_that_is_still_sending(server: Server) -> None:
    """A connection that is closed while a body is left unread is reset, and the answer lost."""
    for size in (10, 10_000, 5_000_000):
        for _ in range(3):
            assert refused(server.post("/api/search", params={"k": 0}, content=bytes(size)), 422).startswith("k: ")
    said = refused(server.post("/api/search", content=bytes(30_000_000)), 413)
    assert said == "this request may have up to 20 MB. Make the image smaller."
    said = refused(server.post("/nothing", content=bytes(30_000_000)), 413)
    assert said == "this request may have up to 2 MB."


def test_a_picture_that_is_not_kept(server: Server) -> None:
    for rest in ("neighbours", "thumbnail"):
        said = refused(server.get(f"/api/pictures/{'A' * 16}/{rest}"), 404)
        assert said == "this image is no longer in memory. Search with it again."
        refused(server.get(f"/api/pictures/{'A' * 15}/{rest}"), 422)


def test_the_oldest_pictures_are_forgotten(gallery: Path) -> None:
    limits = Limits(rate=0.0, remembered=2)
    with inside(ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=limits)) as here:
        ids = [here.post("/api/search", content=png(seed=seed)).json()["query"]["id"] for seed in range(3)]
        statuses = [here.get(f"/api/pictures/{each}/neighbours").status_code for each in ids]
    assert statuses == [404, 200, 200]


def test_a_search_by_item_is_that_of_the_store(
    server: Server, store: Store, items: list[dict[str, Any]], paths: dict[str, str], photos: Path
) -> None:
    for item in items[::20]:
        row = store.get([paths[item["name"]]])[0]
        for k, label in ((5, None), (200, None), (4, row.label)):
            params = {"k": k} | ({} if label is None else {"label": label})
            answer = server.get(f"/api/items/{item['id']}/neighbours", params=params)
            hits = store.search(row.vector[None], k, label=label, leave_out=[row.path])[0]
            assert found(answer) == [(name_of(photos, hit.path), hit.label, hit.distance) for hit in hits]
            assert item["id"] not in [each["id"] for each in answer.json()["found"]]
        assert answer.json()["query"] == {
            "kind": "item", "id": item["id"], "label": item["label"], "width": 40, "height": 40,
        }  # fmt: skip


def test_a_search_by_vector_is_that_of_the_store(server: Server, store: Store, photos: Path) -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-300, 1.0, 1e300):
        given = rng.standard_normal(16) * scale
        unit = (given / np.abs(given).max()) / np.linalg.norm(given / np.abs(given).max())
        hits = store.search(unit.astype(np.float32)[None], 9)[0]
        answer = server.post("/api/search/vector", json={"vector": given.tolist(), "k": 9})
        assert found(answer) == [(name_of(photos, hit.path), hit.label, hit.distance) for hit in hits]
        assert answer.json()["query"] == {"kind": "vector", "id": None, "label": None, "width": None, "height": None}


def test_neighbours_are_as_far_in_both_directions(server: Server, items: list[dict[str, Any]]) -> None:
    some = {item["id"] for item in items[::5]}
    far: dict[tuple[str, str], float] = {}
    for one in some:
        answer = server.get(f"/api/items/{one}/neighbours", params={"k": 200}).json()
        far |= {(one, each["id"]): each["distance"] for each in answer["found"] if each["id"] in some}
    assert len(far) == len(some) * (len(some) - 1)
    assert all(far[other, one] == distance for (one, other), distance in far.items())


def test_more_neighbours_than_there_are_items(server: Server, items: list[dict[str, Any]]) -> None:
    assert len(found(server.post("/api/search", params={"k": 200}, content=png()))) == len(items) == 80
    label = {"label": "plain", "k": 200}
    assert len(found(server.get(f"/api/items/{items[0]['id']}/neighbours", params=label))) == 8
    member = next(item for item in items if item["label"] == "plain")
    assert len(found(server.get(f"/api/items/{member['id']}/neighbours", params=label))) == 7


@pytest.mark.parametrize("k", ["0", "-1", "201", "8.5", "many", "", "1e2", "9" * 30])
def test_a_number_of_neighbours_that_is_none(server: Server, items: list[dict[str, Any]], k: str) -> None:
    where = f"/api/items/{items[0]['id']}/neighbours"
    assert refused(server.get(where, params={"k": k}), 422).startswith("k: ")
    assert refused(server.post("/api/search", params={"k": k}, content=png()), 422).startswith("k: ")
    assert refused(server.post("/api/search/vector", json={"vector": [1.0] * 16, "k": k}), 422).startswith("k: ")


@pytest.mark.parametrize("label", ["nothing like it", "", "Plain", "plain ", "plain' OR 1=1 --", "\x00", "鳥"])
def test_an_unknown_class(server: Server, items: list[dict[str, Any]], label: str) -> None:
    ways = [
        server.get(f"/api/items/{items[0]['id']}/neighbours", params={"label": label}),
        server.post("/api/search", params={"label": label}, content=png()),
        server.post("/api/search/vector", json={"vector": [1.0] * 16, "label": label}),
        server.get("/api/count", params={"label": label}),
        server.get("/api/items", params={"label": label}),
    ]
    for answer in ways:
        said = refused(answer, 404)
        assert said == "the gallery has no class of that name. GET /api/classes lists the classes."


def test_an_unknown_item(server: Server) -> None:
    for rest in ("", "/neighbours", "/thumbnail", "/image"):
        assert refused(server.get(f"/api/items/{'0' * 16}{rest}"), 404) == f"the gallery has no item '{'0' * 16}'."
        for wrong in ("0" * 15, "0" * 17, "G" * 16, "A" * 16, "0" * 15 + "%0a", "%00" * 16, "٣" * 16):
            assert refused(server.get(f"/api/items/{wrong}{rest}"), 422).startswith("item: ")


VECTORS: dict[str, tuple[str, str]] = {
    "too short": (json.dumps([1.0] * 15), "vector: the gallery holds vectors of 16 numbers, got 15."),
    "too long": (json.dumps([1.0] * 17), "vector: the gallery holds vectors of 16 numbers, got 17."),
    "NaN": (f"[NaN{', 1' * 15}]", "vector: the numbers must be finite and not all 0."),
    "infinite": (f"[-Infinity{', 1' * 15}]", "vector: the numbers must be finite and not all 0."),
    "1e999": (f"[1e999{', 1' * 15}]", "vector: the numbers must be finite and not all 0."),
    "zeros": (json.dumps([0.0] * 16), "vector: the numbers must be finite and not all 0."),
    "texts": (json.dumps(["1"] * 16), "vector.0: Input should be a valid number"),
    "booleans": (json.dumps([True] * 16), "vector.0: Input should be a valid number"),
    "nested": (json.dumps([[1.0] * 16]), "vector.0: Input should be a valid number"),
    "nothing": ("[]", "vector: List should have at least 1 item"),
    "null": ("null", "vector: Input should be a valid array"),
    "a text": ('"1, 2"', "vector: Input should be a valid array"),
    "an object": ("{}", "vector: Input should be a valid array"),
}


@pytest.mark.parametrize("what", VECTORS)
def test_a_vector_that_is_none(server: Server, what: str) -> None:
    vector, message = VECTORS[what]
    answer = server.post(
        "/api/search/vector", content=f'{{"vector": {vector}}}', headers={"Content-Type": "application/json"}
    )
    assert refused(answer, 422).startswith(message)
    assert len(answer.text) < 1000


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"[]", 422),
        (b'{"vector": [1], "more": 2}', 422),
        (b'{"\\ud800": 2}', 422),
        (b'{"vector": [1], "label": "\\ud800"}', 422),
        (b"\xff\xfe{", 422),
        (b"[" * 200_000, 413),
        (b"9" * 9_000, 422),
    ],
)
def test_a_body_that_is_no_request_for_a_search_by_vector(server: Server, body: bytes, status: int) -> None:
    answer = server.post("/api/search/vector", content=body, headers={"Content-Type": "application/json"})
    assert len(refused(answer, status)) < 500


@pytest.mark.parametrize(("body", "message"), [
    ('{"vector": [1], "k": true}', "k: Input should be a valid integer, got True."),
    ('{"vector": [1], "k": "3"}', "k: Input should be a valid integer, got '3'."),
    ('{"vector": [1], "exact": "yes"}', "exact: Input should be a valid boolean, got 'yes'."),
    ('{"vector": [1], "kk": 3}', "kk: Extra inputs are not permitted, got 3."),
    ('{"k": 3}', "vector: Field required."),
    ('{"vector": [1,], ', "the body: Invalid JSON: "),
    ('[1]', "the body: Input should be an object"),
    (f'{{"vector": [1], "k": "{"9" * 1000}"}}', "k: Input should be a valid integer."),
])  # fmt: skip
def test_what_is_wrong_with_a_body_is_said_with_its_value(server: Server, body: str, message: str) -> None:
    answer = server.post("/api/search/vector", content=body, headers={"Content-Type": "application/json"})
    assert refused(answer, 422).startswith(message)


def test_parameters_that_an_address_does_not_know(server: Server, items: list[dict[str, Any]]) -> None:
    where = f"/api/items/{items[0]['id']}"
    told = refused(server.get(f"{where}/neighbours", params={"k": "3", "labels": "plain"}), 422)
    assert told == "unknown parameter 'labels'. Did you mean 'label'? Known: exact, k, label, where."
    assert refused(server.get(where, params={"k": "3"}), 422) == "this address takes no parameters."
    assert server.get("/api/health", params={"now": "1"}).status_code == 200
    assert refused(server.get(f"{where}/neighbours", params={"k": "many"}), 422).endswith(", got 'many'.")


def test_a_thumbnail_that_is_none_is_not_served(made: Callable[..., Inside], tmp_path: Path) -> None:
    here = made([(str(tmp_path / f"{number}.png"), unit(4)[number], "") for number in range(4)])
    large, store = BytesIO(), here.state.gallery.store
    Image.new("RGB", (161, 8), "red").save(large, "WEBP")
    rows = store.get([here.state.gallery.rows.path(each) for each in here.state.gallery.rows.ids])
    for row, content in zip(rows, (small(), b"", b"<script>alert(1)</script>", large.getvalue()), strict=True):
        store.upsert([replace(row, thumbnail=content)])
    answers = [here.get(f"/api/items/{each}/thumbnail") for each in here.state.gallery.rows.ids]
    assert [each.status_code for each in answers] == [200, 404, 404, 404]


@pytest.mark.parametrize("path", ["/photos/\0", "/photos/\ud800"])
def test_a_path_that_is_none_has_no_file(made: Callable[..., Inside], path: str) -> None:
    here = made([(path, unit(1)[0], "")])
    told = refused(here.get(f"/api/items/{here.state.gallery.rows.ids[0]}/image"), 404)
    assert told == "the file of this item no longer exists; its thumbnail is still there."


def test_a_gallery_that_goes_away_is_said_to_be_out_of_reach(
    made: Callable[..., Inside], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tammes.serve.rows.MAPPED", 1)
    here = made([(str(tmp_path / f"{number}.png"), unit(4)[number], "") for number in range(4)])
    here.state.gallery.rows = Rows(here.state.gallery.store, exact_up_to=3)  # the others are not kept
    shutil.rmtree(tmp_path / "gallery0")
    wanted = "the gallery cannot be read at the moment; the server's log says why."
    item = here.state.gallery.rows.ids[0]
    assert refused(here.get(f"/api/items/{item}/neighbours"), 503) == wanted
    assert refused(here.post("/api/search/vector", json={"vector": [1.0] * 16}), 503) == wanted
    assert here.get(f"/api/items/{item}/thumbnail").status_code == 404


def test_items_come_in_natural_order_page_by_page(server: Server, items: list[dict[str, Any]]) -> None:
    assert len(items) == 80
    assert len({item["id"] for item in items}) == 80
    assert [item["name"] for item in items if item["label"] == "plain"] == [f"plain/it's <i>{n}.png" for n in range(8)]
    some = [
        each
        for offset in range(0, 90, 30)
        for each in server.get("/api/items", params={"limit": 30, "offset": offset}).json()["items"]
    ]
    assert some == items
    for offset in (80, 81, 10**9):
        assert server.get("/api/items", params={"offset": offset}).json() == {"total": 80, "items": []}
    assert server.get(f"/api/items/{items[5]['id']}").json() == items[5]
    for label in NASTY:
        answer = server.get("/api/items", params={"label": label}).json()
        assert answer == {"total": 8, "items": [item for item in items if item["label"] == label]}
    for wrong in ({"offset": -1}, {"offset": 10**9 + 1}, {"limit": 0}, {"limit": 501}):
        refused(server.get("/api/items", params=wrong), 422)


def test_classes_and_counts(server: Server, store: Store) -> None:
    answer = server.get("/api/classes").json()
    assert {each["label"]: each["items"] for each in answer["classes"]} == store.labels()
    assert answer["total"] == 10
    assert server.get("/api/classes", params={"limit": 4, "offset": 4}).json()["classes"] == answer["classes"][4:8]
    assert server.get("/api/classes", params={"offset": 10}).json() == {"total": 10, "classes": []}
    assert server.get("/api/classes", params={"q": " CLASS "}).json()["total"] == 3
    assert server.get("/api/classes", params={"q": "<img"}).json()["classes"][0]["label"] == NASTY[3]
    assert server.get("/api/classes", params={"q": "none of them"}).json() == {"total": 0, "classes": []}
    assert server.get("/api/count").json() == {"items": 80, "classes": 10}
    for label in NASTY:
        assert server.get("/api/count", params={"label": label}).json() == {"items": 8, "classes": 1}


def test_what_is_served(server: Server, run: Path, store: Store) -> None:
    said = server.get("/api/gallery").json()
    assert (said["name"], said["items"], said["classes"], said["dim"]) == ("stripes", 80, 10, 16)
    assert said["model"] == model_digest(RunFolder(run))
    assert said["created"] == store.about.created
    held = json.loads(store.about.threshold)
    assert (said["known_called_unknown"], said["unknown_accepted"]) == (held["rejected"], held["accepted"])
    assert str(run) not in json.dumps(said)
    assert server.get("/api/health").json()["status"] == "ok"


def test_the_threshold_says_which_are_the_same(server: Server, items: list[dict[str, Any]]) -> None:
    answer = server.get(f"/api/items/{items[0]['id']}/neighbours", params={"k": 200}).json()
    assert answer["threshold"] is not None
    within = [each["within_threshold"] for each in answer["found"]]
    assert within == [each["distance"] <= answer["threshold"] for each in answer["found"]]
    assert len(set(within)) == 2
    assert answer["accepted"] == within[0]


def test_the_server_says_of_an_image_what_label_says(
    server: Server, gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(21)
    for number in range(10):
        stripes(number, rng, 40).save(tmp_path / f"{number}.png")
    capsys.readouterr()
    main(["label", str(gallery), str(tmp_path), "--json"])
    labelled = json.loads(capsys.readouterr().out)["images"]
    assert len(labelled) == 10
    for each in labelled:
        said = server.post("/api/search", files={"image": Path(each["file"]).read_bytes()}).json()
        assert (said["best_guess"], said["accepted"]) == (each["best_guess"], each["accepted"])
        assert said["threshold"] == pytest.approx(each["threshold"], rel=1e-4)
        assert said["probability"] == pytest.approx(each["probability"], abs=1e-3)


def test_a_filter_in_the_form_is_refused_instead_of_ignored(server: Server, items: list[dict[str, Any]]) -> None:
    image = {"image": server.get(items[0]["thumbnail"]).content}
    said = server.post("/api/search", files=image, data={"where": "width > 1"})
    assert said.status_code == 400
    assert "'where'" in said.json()["message"]


def test_a_thumbnail_is_kept_for_ever_only_under_its_own_address(server: Server, items: list[dict[str, Any]]) -> None:
    item = items[3]
    right = server.get(item["thumbnail"])
    assert right.headers["content-type"] == "image/webp"
    assert right.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert Image.open(BytesIO(right.content)).format == "WEBP"
    plain = item["thumbnail"].partition("?")[0]
    for wrong in (plain, f"{plain}?v=", f"{plain}?v=000000000000"):
        answer = server.get(wrong)
        assert answer.content == right.content
        assert answer.headers["cache-control"] == "no-cache"


def test_the_file_is_served_as_it_is(server: Server, items: list[dict[str, Any]], paths: dict[str, str]) -> None:
    item = items[11]
    answer = server.get(f"/api/items/{item['id']}/image")
    assert answer.content == Path(paths[item["name"]]).read_bytes()
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-disposition" not in answer.headers
    part = server.get(f"/api/items/{item['id']}/image", headers={"Range": "bytes=0-9"})
    assert (part.status_code, part.content) == (200, answer.content)
    assert server.get(f"/api/items/{item['id']}/image", headers={"Range": "nonsense"}).status_code == 200


def test_the_map_has_a_place_for_each_item(server: Server, items: list[dict[str, Any]]) -> None:
    found = server.get("/api/map").json()
    assert found["way"] in ("pca", "tsne")
    labels = {item["id"]: item["label"] for item in items}
    assert {one: found["classes"][code] for one, code in zip(found["ids"], found["label"], strict=True)} == labels
    assert all(0 <= place <= found["scale"] for axis in "xy" for place in found[axis])
    marks = {item["thumbnail"] for item in items}
    addresses = zip(found["ids"], found["marks"], strict=True)
    assert {f"/api/items/{one}/thumbnail?v={mark}" for one, mark in addresses} == marks


# Galleries of other kinds, inside this process.


def unit(count: int, seed: int = 0) -> ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def small() -> bytes:
    content = BytesIO()
    Image.new("RGB", (8, 8), "red").save(content, "WEBP")
    return content.getvalue()


@pytest.fixture
def made(run: Path, tmp_path: Path) -> Iterator[Callable[..., Inside]]:
    """A site of a gallery with these rows: path, vector, class."""
    opened: list[Inside] = []

    def make(
        rows: list[tuple[str, ndarray, str]], roots: tuple[str, ...] | None = None, uri: str | None = None
    ) -> Inside:
        uri = uri or str(tmp_path / f"gallery{len(opened)}")
        about = About(
            model_digest(RunFolder(run)),
            str(run),
            16,
            (str(tmp_path),) if roots is None else roots,
            "2026-01-02T03:04:05",
        )
        store = open_gallery(uri, create=about)
        trust(uri, about.roots)
        store.upsert([Row(path, vector, label, 8, 8, "f", small()) for path, vector, label in rows])
        opened.append(Inside(ServerState(GalleryWatcher(uri, None, "cpu"), limits=FREE)))
        return opened[-1]

    try:
        yield make
    finally:
        for each in opened:
            each.close()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("{" + ",".join(f'"{number}":0' for number in range(800)) + "}", 422, "vector: Field required"),
        ("{" + ",".join(f'"{number}":0' for number in range(170_000)) + "}", 413, "bytes"),
        ('{"vector": ' + "[" * 4000 + "]" * 4000 + "}", 422, ""),
        ('{"vector": [[1], [1]]}', 422, "vector.0"),
        ('{"vector": [' + ",".join(['"x"'] * 1500) + "]}", 422, "vector"),
        ('{"vector": [1], "label": "' + "x" * 1001 + '"}', 422, "at most 1000"),
        ("[" * 5000, 422, ""),
        ("nonsense", 422, "Invalid JSON"),
    ],
    ids=["keys", "many keys", "deep", "lists", "texts", "label", "brackets", "no JSON"],
)
def test_a_body_is_bounded_before_it_is_validated(
    body: str, status: int, message: str, made: Callable[..., Inside], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[int] = []

    def count(errors: Any) -> str:
        wrong.append(len(errors))
        return said_of(errors)

    monkeypatch.setattr("tammes.serve.api.validation_message", count)
    answer = made([]).post("/api/search/vector", content=body, headers={"Content-Type": "application/json"})
    assert message in refused(answer, status)
    assert "xxx" not in answer.text
    assert sum(wrong) < 1000  # errors, each of which takes a while to be made


def test_a_body_is_validated_in_a_thread(made: Callable[..., Inside], monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    class Noted(VectorModel):
        @model_validator(mode="before")
        @classmethod
        def note(cls, value: Any) -> Any:
            threads.append(get_ident())
            return value

    monkeypatch.setattr("tammes.serve.models.VectorModel", Noted)
    here = made([])
    assert found(here.post("/api/search/vector", json={"vector": [1.0] * 16})) == []
    assert "k: " in refused(here.post("/api/search/vector", json={"vector": [1.0] * 16, "k": 0}), 422)
    assert len(threads) == 2
    assert get_ident() not in threads  # of the event loop


def test_no_route_leaves_the_validation_of_a_body_to_the_event_loop(made: Callable[..., Inside]) -> None:
    routes = [*api.routes(made([]).state).routes, *pages.routes(made([]).state, FastAPI()).routes]
    bodies = [route.path for route in routes if isinstance(route, APIRoute) and route.body_field is not None]
    assert (len(routes) > 20, bodies) == (True, [])


def test_a_body_that_does_not_say_that_it_is_json(made: Callable[..., Inside]) -> None:
    """As a form of another site could send it."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = made([]).post("/api/search/vector", content=b'{"vector": [1]}', headers={"Content-Type": kind})
        assert "Content-Type: application/json" in refused(answer, 422)


@pytest.mark.parametrize("label", ["<b>secret", "secret\ud800", "secret " * 200])
def test_a_label_is_not_echoed(label: str, made: Callable[..., Inside]) -> None:
    body = json.dumps({"vector": [1.0] * 16, "label": label})
    answer = made([]).post("/api/search/vector", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code in (404, 422), "secret" in answer.text) == (True, False), answer.text


def test_an_empty_gallery(made: Callable[..., Inside]) -> None:
    here = made([])
    assert here.get("/api/count").json() == {"items": 0, "classes": 0}
    assert here.get("/api/items").json() == {"total": 0, "items": []}
    assert here.get("/api/classes").json() == {"total": 0, "classes": []}
    assert found(here.post("/api/search", content=png())) == []
    assert found(here.post("/api/search/vector", json={"vector": [1.0] * 16})) == []
    refused(here.post("/api/search/vector", json={"vector": [1.0] * 16, "label": ""}), 404)
    assert here.get("/api/map").json()["ids"] == []
    for page in ("/", "/classes", "/map", "/api", "/metrics", "/openapi.json"):
        assert here.get(page, headers={"Accept": "text/html"}).status_code == 200, page


def test_items_without_classes(made: Callable[..., Inside], tmp_path: Path) -> None:
    here = made([(str(tmp_path / f"{number}.jpg"), vector, "") for number, vector in enumerate(unit(5))])
    assert here.get("/api/classes").json() == {"total": 1, "classes": [{"label": "", "items": 5}]}
    assert here.get("/api/count", params={"label": ""}).json() == {"items": 5, "classes": 1}
    first = here.get("/api/items").json()["items"][0]
    answer = here.get(f"/api/items/{first['id']}/neighbours", params={"label": ""})
    assert [each[0] for each in found(answer)] != []
    assert answer.json()["query"]["label"] == ""
    for page in ("/", "/classes", "/map", f"/item/{first['id']}"):
        assert here.get(page, headers={"Accept": "text/html"}).status_code == 200, page


def test_a_duplicate_of_the_item_is_found(made: Callable[..., Inside], tmp_path: Path) -> None:
    same = unit(1)[0]
    rows = [(str(tmp_path / name), same, "") for name in "cab"] + [(str(tmp_path / "z"), unit(2)[1], "")]
    here = made(rows)
    ids = {each["name"]: each["id"] for each in here.get("/api/items").json()["items"]}
    assert [each[0] for each in found(here.get(f"/api/items/{ids['b']}/neighbours"))] == ["a", "c", "z"]
    assert [each[2] for each in found(here.get(f"/api/items/{ids['b']}/neighbours", params={"k": 2}))] == [0.0, 0.0]
    everyone = found(here.post("/api/search/vector", json={"vector": same.astype(float).tolist()}))
    assert [each[0] for each in everyone] == ["a", "b", "c", "z"]  # equally near ones by path


def test_a_gallery_in_qdrant(made: Callable[..., Inside], photos: Path, store: Store, server: Server) -> None:
    rows = [row for some in store.rows(1000) for row in some]
    here = made([(row.path, row.vector, row.label) for row in rows], (str(photos),), "qdrant://:memory:/served")
    assert here.get("/api/count").json() == server.get("/api/count").json()
    for options in ({"k": 12}, {"k": 5, "label": NASTY[0]}):
        theirs = found(server.post("/api/search", params=options, content=png()))
        assert found(here.post("/api/search", params=options, content=png())) == theirs
    item = here.get("/api/items").json()["items"][0]["id"]
    ours, theirs = (found(each.get(f"/api/items/{item}/neighbours")) for each in (here, server))
    assert ours == theirs


def test_names_of_several_folders_begin_with_the_folder(made: Callable[..., Inside], tmp_path: Path) -> None:
    paths = [str(tmp_path / each) for each in ("a/1.jpg", "b/x/1.jpg", "elsewhere/1.jpg")]
    here = made([(path, vector, "") for path, vector in zip(paths, unit(3), strict=True)], tuple(
        str(tmp_path / each) for each in "ab"
    ))  # fmt: skip
    assert [each["name"] for each in here.get("/api/items").json()["items"]] == ["a/1.jpg", "b/x/1.jpg", "1.jpg"]
    assert str(tmp_path) not in here.get("/api/items").text


def test_names_that_are_not_unicode(made: Callable[..., Inside], tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    (folder / NOT_UNICODE).write_bytes(png())
    rows = [
        (str(folder / NOT_UNICODE), unit(1)[0], "caf\udce9"),
        (str(tmp_path / "2.png"), unit(2)[1], "caf\\udce9"),  # which is what the other one looks like
        (str(tmp_path / "3.png"), unit(3)[2], "caf\\udce9"),
        (str(tmp_path / "4.png"), unit(4)[3], "caf\\udce9 (2)"),
    ]
    here = made(rows)
    classes = {each["label"]: each["items"] for each in here.get("/api/classes").json()["classes"]}
    assert sum(classes.values()) == 4
    assert len(classes) == 3
    assert here.get("/api/count").json() == {"items": 4, "classes": 3}
    items = here.get("/api/items").json()["items"]
    strange = next(each for each in items if each["name"].startswith("caf"))
    assert strange["name"] == "caf\\udce9/caf\\udce9 \\udcff.png"
    assert classes[strange["label"]] == 1
    only = found(here.post("/api/search/vector", json={"vector": [1.0] * 16, "label": strange["label"]}))
    assert [each[:2] for each in only] == [(strange["name"], strange["label"])]
    assert here.get(f"/api/items/{strange['id']}/image").content == png()
    place = here.get("/api/map").json()
    assert [place["classes"][code] for code in place["label"]] == [
        next(each["label"] for each in items if each["id"] == one) for one in place["ids"]
    ]
    for page in ("/", "/classes", f"/item/{strange['id']}"):
        assert here.get(page, headers={"Accept": "text/html"}).status_code == 200, page


# The files of items, in a folder `in` that was indexed.

KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "BMP": "image/bmp", "WEBP": "image/webp"}
NO_IMAGES = {
    "html": b"<!doctype html><script>alert(1)</script>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "text": b"a text",
    "empty": b"",
    "pdf": b"%PDF-1.7",
    "wave": b"RIFF0000WAVE",
    "tiff": b"II*\0",
}
GONE = ["gone", "folder", "dangling", "circle", "pipe", "gone/below"]
OUTSIDE = ["in/link.png", "in/behind a link/1.png", "out/1.png", "in/../out/1.png", "in2/1.png"]
FINE = ["in/a link within.png", "behind/1.png"]


@pytest.fixture(scope="module")
def files(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], httpx.Response]]:
    """Ask for the file of the item at a path."""
    root = tmp_path_factory.mktemp("files")
    for name in ("in", "out", "in2", "in/folder.png"):  # in2 begins as `in` does
        (root / name).mkdir()
    for name in ("in/1.png", "out/1.png", "in2/1.png"):
        (root / name).write_bytes(png())
    for kind in KINDS:
        Image.new("RGB", (9, 9)).save(root / "in" / f"{kind}.html", kind)
    for name, content in NO_IMAGES.items():
        (root / "in" / f"{name}.png").write_bytes(content)
    os.mkfifo(root / "in" / "pipe.png")
    links = {"dangling.png": "nowhere", "circle.png": "circle.png", "link.png": "../out/1.png",
             "behind a link": "../out", "a link within.png": "1.png", "../behind": "in"}  # fmt: skip
    for name, target in links.items():
        (root / "in" / name).symlink_to(target)
    paths = [f"in/{kind}.html" for kind in KINDS] + [f"in/{name}.png" for name in (*NO_IMAGES, *GONE)] + OUTSIDE + FINE
    about = About(
        model_digest(RunFolder(run)), str(run), 16, (str(root / "behind"), str(root / "in")), "2026-01-02T03:04:05"
    )
    store = open_gallery(str(root / "gallery"), create=about)
    trust(str(root / "gallery"), about.roots)
    store.upsert(
        [Row(str(root / path), vector, path, 8, 8, "f", small()) for path, vector in zip(paths, unit(99), strict=False)]
    )
    with inside(ServerState(GalleryWatcher(str(root / "gallery"), None, "cpu"), limits=FREE)) as here:

        def ask(path: str) -> httpx.Response:
            item = here.get("/api/items", params={"label": path}).json()["items"][0]["id"]
            assert here.get(f"/api/items/{item}/thumbnail").content == small()
            return here.get(f"/api/items/{item}/image")

        yield ask


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_of_the_kind_that_its_content_is(files: Callable[[str], httpx.Response], kind: str) -> None:
    answer = files(f"in/{kind}.html")
    assert (answer.status_code, answer.headers["content-type"]) == (200, KINDS[kind])


@pytest.mark.parametrize("what", NO_IMAGES)
def test_a_file_that_is_no_image_is_not_served(files: Callable[[str], httpx.Response], what: str) -> None:
    said = refused(files(f"in/{what}.png"), 415)
    assert said == "the file of this item is of a kind that browsers do not show; its thumbnail is."


@pytest.mark.parametrize("what", GONE)
def test_a_file_that_is_gone_or_has_become_something_else(files: Callable[[str], httpx.Response], what: str) -> None:
    said = refused(files(f"in/{what}.png"), 404)
    assert said == "the file of this item no longer exists; its thumbnail is still there."


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_link_that_leads_out_of_the_folder_is_not_followed(files: Callable[[str], httpx.Response], path: str) -> None:
    said = refused(files(path), 403)
    assert said == "the file of this item lies outside the folders that were indexed here."


@pytest.mark.parametrize("path", FINE)
def test_a_link_within_the_folder_and_a_folder_behind_a_link_are_fine(
    files: Callable[[str], httpx.Response], path: str
) -> None:
    assert files(path).content == png()


def test_a_folder_that_was_indexed_is_served_whatever_its_files_are_called(
    run: Path, tmp_path: Path, photos: Path
) -> None:
    """By `tammes index` itself, with a name whose bytes are no characters."""
    folder = tmp_path / "photos" / "one class"
    folder.mkdir(parents=True)
    for number, name in enumerate([NOT_UNICODE, 'it\'s "so" #1?.png', "%2e%2e%2f.png", "ünï 鳥.png"]):
        shutil.copy(photos / "plain" / f"it's <i>{number}.png", folder / name)
    main(["index", str(run), str(tmp_path / "photos"), "--gallery", str(tmp_path / "gallery")])
    with inside(ServerState(GalleryWatcher(str(tmp_path / "gallery"), None, "cpu"), limits=FREE)) as here:
        items = here.get("/api/items").json()["items"]
        assert sorted(each["name"] for each in items) == sorted(
            escaped(f"one class/{each.name}") for each in folder.iterdir()
        )
        for item in items:
            original = next(each for each in folder.iterdir() if escaped(each.name) == Path(item["name"]).name)
            assert here.get(f"/api/items/{item['id']}/image").content == original.read_bytes()
            assert len(found(here.get(f"/api/items/{item['id']}/neighbours"))) == 3


def test_a_gallery_too_large_for_memory_finds_the_same(
    gallery: Path, store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tammes.serve.rows.MAPPED", 5)
    watched = GalleryWatcher(str(gallery), None, "cpu")
    watched.current.rows = Rows(store, exact_up_to=3)
    assert not watched.current.rows.complete
    asked: list[int] = []
    search = type(store).search

    def counted(*given: Any, **options: Any) -> Any:
        asked.append(1)
        return search(*given, **options)

    monkeypatch.setattr(type(store), "search", counted)
    with inside(ServerState(watched, limits=FREE)) as here:
        for options in ({"k": 12}, {"k": 200}, {"k": 5, "label": NASTY[1]}, {"k": 5, "exact": "true"}):
            theirs = server.post("/api/search", params=options, content=png())
            assert found(here.post("/api/search", params=options, content=png())) == found(theirs)
        for item in here.get("/api/items", params={"limit": 500}).json()["items"][::9]:
            where = f"/api/items/{item['id']}/neighbours"
            assert here.get(where).json() == server.get(where).json()
            assert here.get(f"/api/items/{item['id']}").json() == server.get(f"/api/items/{item['id']}").json()
        assert len(here.get("/api/map").json()["ids"]) == 5
    assert len(asked) == 4 + 9 + 1  # once each, and again for the classes around an image that is sought in one class


def test_the_same_site_says_the_same_of_itself_on_its_page(server: Server) -> None:
    page = server.get("/api", headers={"Accept": "text/html"}).text
    for path in server.get("/openapi.json").json()["paths"]:
        assert f">{path}<" in page or path in page
    assert "curl" in page


# What Prometheus is told.


def metrics(where: Server | Inside) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = where.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_the_counters_move(gallery: Path) -> None:
    with inside(ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=FREE)) as here:
        before = metrics(here)
        here.post("/api/search", content=png())
        here.get("/api/items/0000000000000000")
        here.get("/api/items/ffffffffffffffff")
        for number in range(30):
            here.get(f"/nothing/{number}")
            here.request(f"M{number}", "/api/health")
        after = metrics(here)

    def moved(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after.get(key, 0) - before.get(key, 0)

    assert moved("tammes_requests_total", route="/api/search", method="POST", status="200") == 1
    assert moved("tammes_requests_total", route="/api/items/{item}", method="GET", status="404") == 2
    assert moved("tammes_requests_total", route="other", method="GET", status="404") == 30
    assert moved("tammes_request_seconds_count", route="/api/items/{item}") == 2
    assert moved("tammes_upload_bytes_total") == len(png())
    for name in ("decode", "embed", "search"):
        assert moved(f"tammes_{name}_seconds_count") == 1
        assert moved(f"tammes_{name}_seconds_sum") > 0
    assert after["tammes_gallery_items", ()] == 80
    assert after["tammes_requests_under_way", ()] == 1  # this one
    assert after["process_resident_memory_bytes", ()] > 1e6
    routes = {dict(labels).get("route") for _, labels in after}
    assert routes == {None, "other", "/metrics", "/api/search", "/api/items/{item}", "/api/health"}
    methods = {dict(labels).get("method") for name, labels in after if name == "tammes_requests_total"}
    assert methods == {"GET", "POST", "other"}
    assert not any(math.isnan(value) for value in after.values())
