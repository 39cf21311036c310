"""The parts of a site by themselves, and the process as whoever runs it sees it."""

import asyncio
import gc
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy import ndarray

from tammes import UserError
from tammes.cli import main
from tammes.gallery import About, Row, Store, open_gallery
from tammes.gallery.items import ITEM_ID, item_id
from tammes.gallery.lance import LanceGallery
from tammes.io.environment import bare_environment
from tammes.serve import server as site
from tammes.serve.errors import RequestError
from tammes.serve.gallery import GalleryWatcher, ServedGallery
from tammes.serve.limits import Limits
from tammes.serve.projection import Projector
from tammes.serve.rows import Rows, escaped
from tammes.serve.server import address_of, check_address, is_loopback, listen
from tammes.serve.state import ServerState, UploadSlots
from tests.serve.conftest import SMALL, WAIT, Inside, Server, eventually, inside, listening, serving
from tests.serve.test_api import found, png, refused

DIM = 4
ABOUT = About(model="abc123", run="/runs/one", dim=DIM, roots=("/photos",), created="2026-01-02T03:04:05")
FREE = Limits(rate=0.0)
PAGE = {"Accept": "text/html"}
_NUMBERS = count()


def row(path: str, vector: ndarray, label: str = "", fingerprint: str = "f") -> Row:
    return Row(path, vector.astype(np.float32), label, 8, 8, fingerprint, b"")


def stored(rows: list[Row]) -> Store:
    """A gallery in memory."""
    store = open_gallery(f"qdrant://:memory:/parts{next(_NUMBERS)}", create=ABOUT)
    store.upsert(rows)
    return store


def test_a_server_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> None:
        raise OSError("no more threads")

    state = ServerState(None)
    monkeypatch.setattr(state, "start", start)
    with (
        listen("127.0.0.1", 0) as door,
        pytest.raises(UserError, match=r"^the server could not start: no more threads\.$"),
    ):
        site.Server(state, "127.0.0.1").serve_at(door)


# The rows.

# Few different coordinates make many vectors that are the same, and many that are equally far from another.
VECTORS = st.lists(st.tuples(*[st.sampled_from([-1.0, 0.0, 0.5, 1.0])] * DIM), min_size=1, max_size=40)


@given(VECTORS, st.integers(1, 50), st.sampled_from([None, "a", "b"]), st.booleans(), st.randoms(use_true_random=False))
def test_rows_in_memory_find_what_the_store_finds(
    vectors: list[tuple[float, ...]], k: int, label: str | None, own: bool, random: Any
) -> None:
    paths = [f"/photos/{number:03}.jpg" for number in range(len(vectors))]
    random.shuffle(paths)
    rows = [
        row(path, np.array(each), "ab"[index % 2])
        for index, (path, each) in enumerate(zip(paths, vectors, strict=True))
    ]
    store = stored(rows)
    table = Rows(store)
    if label == "b" and len(rows) == 1:
        label = "a"
    asked = rows[0].vector if own else np.array([0.3, -0.2, 0.9, 0.1], dtype=np.float32)
    leave_out = rows[0].path if own else None
    ours = table.search(asked, k, label=label, leave_out=leave_out)
    assert ours == store.search(asked[None], k, label=label, leave_out=[leave_out], exact=True)[0]
    # And what one sees by looking at each.
    everyone = sorted(
        (float(np.linalg.norm(each.vector.astype(np.float64) - asked.astype(np.float64))), each.path)
        for each in rows
        if each.path != leave_out and label in (None, each.label)
    )[:k]
    assert [hit.path for hit in ours] == [path for _, path in everyone]
    np.testing.assert_allclose([hit.distance for hit in ours], [far for far, _ in everyone], rtol=1e-12, atol=1e-12)


def test_rows_in_memory_tell_vectors_apart_that_products_in_single_precision_do_not() -> None:
    rng = np.random.default_rng(0)
    middle = rng.standard_normal(DIM)
    middle /= np.linalg.norm(middle)
    vectors = (middle + 1e-4 * rng.standard_normal((500, DIM))).astype(np.float32)
    store = stored([row(f"/photos/{number:03}", vector) for number, vector in enumerate(vectors)])
    rows = Rows(store)
    for number in (0, 7):
        far = np.linalg.norm(vectors.astype(np.float64) - vectors[number].astype(np.float64), axis=1)
        order = np.argsort(far, kind="stable")[:10]
        hits = rows.search(vectors[number], 10)
        assert [hit.path for hit in hits] == [f"/photos/{each:03}" for each in order]


def test_a_gallery_too_large_for_memory_has_every_item_and_some_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.serve.rows.MAPPED", 3)
    vectors = np.eye(DIM)[np.arange(10) % DIM] * np.arange(1, 11)[:, None]
    given = [row(f"/photos/{name}", vector, "c") for name, vector in zip("jhfdbacegi", vectors, strict=True)]
    rows = Rows(stored(given), exact_up_to=3)
    assert len(rows) == 10
    assert not rows.complete
    assert rows.ids == [each.id for each in sorted(given, key=lambda each: each.path)]
    by_id = {each.id: each.vector for each in given}
    ids, kept = rows.sample()
    assert len(ids) == len(kept) == 3
    for item, vector in zip(ids, kept, strict=True):
        assert (vector == by_id[item]).all()
    assert Rows(stored(given), exact_up_to=10).complete


def test_one_id_from_the_store_to_the_page_that_says_nothing_of_where_the_file_is() -> None:
    given = [row("/photos/cats/1.jpg", np.eye(DIM)[0], "cats"), row("/photos/2.jpg", np.eye(DIM)[1])]
    store = stored(given)
    rows = Rows(store)
    for each in given:
        item = rows.item(each.id)
        assert item.id == each.id == item_id(each.path)
        assert re.fullmatch(ITEM_ID, item.id)
        assert rows.path(item.id) == each.path
        for hit in (*rows.search(each.vector, 1), *store.search(each.vector[None], 1)[0]):
            assert hit.id == each.id
    assert {rows.item(item).name for item in rows.ids} == {"cats/1.jpg", "2.jpg"}


@pytest.mark.parametrize("item", ["0" * 16, "/photos/1.jpg", "", "0", item_id("/photos/3.jpg")])
def test_an_id_of_nothing_is_refused(item: str) -> None:
    rows = Rows(stored([row("/photos/1.jpg", np.eye(DIM)[0])]))
    assert item not in rows
    for ask in (rows.item, rows.path, rows.mark, rows.code, rows.vector):
        with pytest.raises(RequestError, match="the gallery has no item") as refusal:
            ask(item)
        assert refusal.value.status_code == 404


def test_the_thumbnail_has_another_address_when_the_image_changes() -> None:
    vector = np.eye(DIM)[0]
    store = stored([row("/photos/1.jpg", vector, fingerprint="one")])
    item = item_id("/photos/1.jpg")
    before = Rows(store)
    assert Rows(store).item(item) == before.item(item)
    store.upsert([row("/photos/1.jpg", vector, fingerprint="other")])
    after = Rows(store)
    assert after.ids == before.ids
    assert after.mark(item) != before.mark(item)
    assert after.item(item).thumbnail != before.item(item).thumbnail


def test_classes_come_in_natural_order_and_are_told_apart_when_they_look_alike() -> None:
    labels = ["class 10", "class 9", "\udce9", "\\udce9", "\\udce9", ""]
    given = [row(f"/photos/{number}", np.eye(DIM)[0], label) for number, label in enumerate(labels)]
    rows = Rows(stored(given))
    assert sum(rows.classes.values()) == 6
    assert len(rows.classes) == 5
    assert next(iter(rows.classes)) == ""
    plain = [name for name in rows.classes if name.startswith("class")]
    assert plain == ["class 9", "class 10"]
    for each in given:
        name = rows.item(each.id).label
        assert rows.real_label(name) == each.label
        assert each.id in rows.members(name)
        assert list(rows.classes)[rows.code(each.id)] == name
    assert sorted(rows.members(None)) == sorted(each.id for each in given)


def test_a_name_is_escaped() -> None:
    assert escaped("Grün 鳥 'x'") == "Grün 鳥 'x'"
    assert escaped("caf\udce9") == "caf\\udce9"


# Embedding.


def test_an_image_gets_the_vector_of_the_model_also_after_one_that_is_none(gallery: Path) -> None:
    served = ServedGallery(str(gallery))
    embedder = served.embedder
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (5, 1, embedder.size, embedder.size), dtype=np.uint8)
    with pytest.raises(Exception, match="."):
        served.embed(np.zeros((7, 3, 3), dtype=np.uint8))
    alone = np.stack([served.embed(each) for each in pictures])
    with torch.inference_mode():
        together = embedder(torch.from_numpy(pictures)).numpy()
    np.testing.assert_allclose(alone, together, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, rtol=1e-5)


# The map.


def test_two_who_ask_for_the_map_at_once_get_the_same_and_one_process_makes_it(
    gallery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(open_gallery(str(gallery)))
    begun = []

    async def improve(*given: Any) -> None:
        begun.append(given)

    monkeypatch.setattr(Projector, "_improve", improve)
    monkeypatch.setattr("tammes.serve.projection._read_cache", lambda _: None)

    async def ask() -> None:
        projector = Projector()
        first, second = await asyncio.gather(projector.project(rows), projector.project(rows))
        assert first is second
        assert first.way == "pca"
        assert first.ids == rows.ids
        assert await projector.project(rows) is first
        await projector.close()
        assert not projector.working

    asyncio.run(ask())
    assert len(begun) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_process_that_makes_the_map_ends_with_the_server(gallery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.serve.projection._read_cache", lambda _: None)
    with inside(ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=FREE)) as here:
        assert here.get("/api/map").json()["working"]
        assert here.eventually(lambda: here.state.projector._process is not None)
        mine = here.state.projector._process.pid
        assert alive(mine)
        assert here.get("/api/map").json()["way"] == "pca"
    assert not alive(mine)


@pytest.mark.slow
def test_a_map_that_was_made_is_there_for_the_next_start(gallery: Path) -> None:
    rows = Rows(open_gallery(str(gallery)))

    async def ask() -> None:
        projector = Projector()
        await projector.project(rows)
        while projector.working:
            await asyncio.sleep(0.05)
        better = await projector.project(rows)
        assert better.way == "tsne"
        await projector.close()
        later = Projector()
        kept = await later.project(rows)
        assert kept.way == "tsne"
        assert (kept.points == better.points).all()
        assert not later.working
        await later.close()

    asyncio.run(ask())


# A gallery that changes.


@pytest.fixture
def changing(photos: Path, run: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Photos of a few classes and a gallery of them that may be changed."""
    folder, gallery = tmp_path / "photos", tmp_path / "gallery"
    for name in ("plain", "class 0"):
        shutil.copytree(photos / name, folder / name)
    main(["index", str(run), str(folder), "--gallery", str(gallery)])
    return folder, gallery


def test_a_server_goes_along_with_its_gallery(
    changing: tuple[Path, Path], run: Path, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tammes.serve.state._LOOK_EVERY", 0.05)
    folder, gallery = changing
    other = tmp_path / "other run"
    main(["train", str(photos), "--out", str(other), *SMALL[:2], "--dim", "8", *SMALL[4:-2], "--epochs", "1"])
    with listening(ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=FREE)) as serving_it:
        port = serving_it.servers[0].sockets[0].getsockname()[1]
        server = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT)

        def items() -> int:
            return int(server.get("/api/count").json()["items"])

        assert items() == 16
        kept = server.post("/api/search", content=png()).json()["query"]["id"]
        (folder / "new").mkdir()
        shutil.copy(photos / "class 1" / "it's <i>0.png", folder / "new" / "one.png")
        (folder / "plain" / "it's <i>3.png").unlink()
        (folder / "plain" / "it's <i>4.png").unlink()
        main(["index", str(run), str(folder), "--gallery", str(gallery)])
        assert eventually(lambda: items() == 15)
        names = [each["name"] for each in server.get("/api/items").json()["items"]]
        assert "new/one.png" in names
        assert "plain/it's <i>3.png" not in names
        assert found(server.get(f"/api/pictures/{kept}/neighbours"))  # the model is the same
        assert server.get("/api/classes", params={"q": "new"}).json()["total"] == 1
        assert "tammes_gallery_items 15.0" in server.get("/metrics").text

        main(["index", str(other), str(folder), "--gallery", str(gallery), "--rebuild"])
        assert eventually(lambda: server.get("/api/gallery").json()["dim"] == 8)
        assert refused(server.get(f"/api/pictures/{kept}/neighbours"), 404).startswith("this image is no longer")
        assert len(found(server.post("/api/search", params={"k": 20}, content=png()))) == 15
        assert refused(server.post("/api/search/vector", json={"vector": [1.0] * 16}), 422)
        assert len(found(server.post("/api/search/vector", json={"vector": [1.0] * 8}))) == 8
        server.close()


def test_a_gallery_whose_new_model_is_gone_goes_on_as_it_was(
    changing: tuple[Path, Path], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, gallery = changing
    other = tmp_path / "other"
    shutil.copytree(run, other)
    with (other / "embedder.json").open("a") as file:
        file.write(" ")  # another model, by its digest
    watched = GalleryWatcher(str(gallery), None, "cpu")
    threads = threading.active_count()
    assert not watched.refresh()
    main(["index", str(other), str(folder), "--gallery", str(gallery), "--rebuild"])
    shutil.rmtree(other)
    before = watched.current
    capsys.readouterr()
    assert not watched.refresh()
    assert watched.current is before
    said = capsys.readouterr().err
    assert "tammes: cannot read the changed gallery: " in said
    assert "which no longer exists" in said
    assert watched.pause >= 20.0  # not at once again
    assert len(before.neighbours(before.vector(before.rows.ids[0])[None], 3)[0].hits) == 3
    shutil.copytree(run, other)
    with (other / "embedder.json").open("a") as file:
        file.write(" ")
    (other / "embedder.safetensors").write_bytes(b"broken")
    assert not watched.refresh()
    assert "cannot read the changed gallery" in capsys.readouterr().err
    assert threading.active_count() == threads  # no thread was left behind
    shutil.copy(run / "embedder.safetensors", other)
    assert watched.refresh()
    assert watched.current is not before


def test_whatever_goes_wrong_while_it_is_read_again_does_not_end_the_watch(
    changing: tuple[Path, Path], run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, gallery = changing
    monkeypatch.setattr("tammes.serve.state._LOOK_EVERY", 0.05)
    monkeypatch.setattr("tammes.serve.gallery._AFTER_FAILURE", 0.1)
    watched = GalleryWatcher(str(gallery), None, "cpu")
    with inside(ServerState(watched, limits=FREE)) as here:
        version = type(watched.current.store).version

        def broken(_: Any) -> str:
            raise MemoryError("no room")

        monkeypatch.setattr(type(watched.current.store), "version", broken)
        assert here.eventually(lambda: watched.pause > 0)  # so it waits after a failure
        assert "tammes: cannot read the changed gallery: MemoryError: no room" in capsys.readouterr().err
        monkeypatch.setattr(type(watched.current.store), "version", version)
        (folder / "plain" / "it's <i>3.png").unlink()
        main(["index", str(run), str(folder), "--gallery", str(gallery)])
        assert here.eventually(lambda: here.get("/api/count").json()["items"] == 15)


def test_an_answer_is_of_one_gallery_though_another_takes_its_place(
    changing: tuple[Path, Path], tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a vector and its neighbours the gallery becomes one of another model, and of another length."""
    folder, gallery = changing
    other = tmp_path / "other"
    main(["train", str(photos), "--out", str(other), *SMALL[:2], "--dim", "8", *SMALL[4:-2], "--epochs", "1"])
    watched = GalleryWatcher(str(gallery), None, "cpu")
    with inside(ServerState(watched, limits=FREE)) as here:
        item = watched.current.rows.ids[0]
        expected = here.get(f"/api/items/{item}/neighbours").json()
        main(["index", str(other), str(folder), "--gallery", str(gallery), "--rebuild"])
        vector = ServedGallery.vector

        def swapped(gallery: ServedGallery, *given: Any) -> Any:
            answer = vector(gallery, *given)
            assert watched.refresh()
            return answer

        monkeypatch.setattr(ServedGallery, "vector", swapped)
        assert here.get(f"/api/items/{item}/neighbours").json() == expected
        assert here.get("/api/gallery").json()["dim"] == 8


# Reports.


@pytest.fixture(scope="module")
def runs(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all kinds of names, and some that lead elsewhere."""
    root = tmp_path_factory.mktemp("served") / "runs"
    wanted = ("config.json", "environment.json", "results.json", "report.html")
    for name in ("plain", 'it\'s a "run" <b>', "deep/er/ünï 鳥", "100% #1?", "no report", "linked report", "moved"):
        (root / name).mkdir(parents=True)
        for file in wanted:
            shutil.copy(run / file, root / name / file)
    (root / "no report" / "report.html").unlink()
    outside = root.parent / "outside"
    shutil.move(root / "moved", outside)
    (root / "a link out").symlink_to(outside)
    (root / "linked report" / "report.html").unlink()
    (root / "linked report" / "report.html").symlink_to(outside / "report.html")
    (root / "no run").mkdir()
    shutil.copy(run / "report.html", root / "no run")
    return root


@pytest.fixture(scope="module")
def reporting(runs: Path) -> Iterator[Inside]:
    with inside(ServerState(None, [runs], FREE)) as here:
        yield here


NAMES = ["plain", 'it\'s a "run" <b>', "deep/er/ünï 鳥", "100% #1?"]


def address(name: str) -> str:
    from urllib.parse import quote

    return f"/runs/{quote(name)}/report.html"


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_served_and_knows_nothing_of_the_site(reporting: Inside, run: Path, name: str) -> None:
    answer = reporting.get(address(name), headers=PAGE)
    assert answer.status_code == 200
    assert answer.content == (run / "report.html").read_bytes()
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("name", ["no report", "linked report", "a link out", "no run", "outside", "../outside", "."])
def test_a_report_that_is_none_or_lies_outside_is_not_served(reporting: Inside, name: str) -> None:
    answer = reporting.get(address(name))
    assert answer.status_code == 404


def test_all_runs_are_listed(reporting: Inside, runs: Path, run: Path) -> None:
    page = reporting.get("/runs", headers=PAGE).text
    trained = json.loads((run / "results.json").read_text())["trained"]
    for measure in ("recall_at_1", "NMI"):
        assert f'<td class="number">{100 * trained[measure]:.2f}</td>' in page
    for name in NAMES:
        assert address(name) in page.replace("&#39;", "'").replace("%27", "'") or address(name) in page
    assert "<b>" not in page
    assert "a link out" not in page
    assert str(runs) not in page
    assert reporting.get("/").headers["location"] == "/runs"
    refused(reporting.get("/api/gallery"), 404)
    assert list(reporting.get("/openapi.json").json()["paths"]) == ["/api/health", "/metrics"]


def test_a_report_that_was_removed_a_moment_ago_is_not_found(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "plain", tmp_path / "runs" / "one")
    with inside(ServerState(None, [tmp_path / "runs"], FREE)) as here:
        assert here.get(address("one")).status_code == 200
        (tmp_path / "runs" / "one" / "report.html").unlink()
        assert refused(here.get(address("one")), 404) == "there is no report of 'one'."


def test_runs_of_the_same_name_in_two_folders_are_both_served(runs: Path, tmp_path: Path) -> None:
    for folder in ("a", "b", "c/b"):
        shutil.copytree(runs / "plain", tmp_path / folder / "one")
        (tmp_path / folder / "one" / "report.html").write_text(f"<!doctype html>{folder}")
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c/b", tmp_path / "a" / "one"]
    with inside(ServerState(None, folders, FREE)) as here:
        texts = [here.get(address(name)).text for name in ("one", "b/one", "b/one 2")]
        assert here.get("/runs", headers=PAGE).text.count("report.html") == 3  # the last folder is in the first
    assert texts == ["<!doctype html>a", "<!doctype html>b", "<!doctype html>c/b"]


def test_without_folders_of_runs_there_are_no_reports(gallery: Path) -> None:
    with inside(ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=FREE)) as here:
        assert "no reports are served here" in refused(here.get("/runs"), 404)
        refused(here.get(address("stripes")), 404)


# The command.


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `tammes serve` says when it does not start."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_others_are_let_in_only_with_a_token(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, "anything", "--host", host)
    assert said.startswith(f"tammes: --host {host} lets other machines in")
    assert said.endswith("--token-file token.txt\n")
    check_address(host, "x" * 12)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9", "LOCALHOST"])
def test_this_machine_needs_none(host: str) -> None:
    assert is_loopback(host)
    check_address(host, None)


def test_a_token_that_will_not_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "a token of 11 characters can be guessed: it must have 12 or more." in told(capsys, "x", "--token", "x" * 11)
    for odd in ("with a space in it", "naïve-and-longer", "tab\tin-the-token"):
        said = told(capsys, "x", "--token", odd)
        assert said == "tammes: a token may have only plain letters, digits and punctuation: it is sent in a header.\n"
    file = tmp_path / "token"
    assert f"--token-file {file} cannot be read: " in told(capsys, "x", "--token-file", str(file))
    for empty in ("", "\n", "   \nx"):
        file.write_text(empty)
        said = told(capsys, "x", "--token-file", str(file))
        assert said == f"tammes: --token-file {file} is empty: its first line is the token.\n"
    file.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in told(capsys, "x", "--token-file", str(file))
    file.write_text("short\n")
    assert "a token of 5 characters" in told(capsys, "x", "--token-file", str(file))
    said = told(capsys, "x", "--token-file", str(file), "--token", "x" * 20)
    assert said == "tammes: --token and --token-file are two ways to give one secret: use one of them.\n"


def test_what_there_is_nothing_to_serve_of(
    gallery: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = ("--port", "0")
    assert told(capsys, *port) == "tammes: serve what? For example: tammes serve gallery. `tammes index` makes one.\n"
    nowhere = str(tmp_path / "nowhere")
    assert f"tammes: there is no gallery {nowhere}. Make it: " in told(capsys, nowhere, *port)
    assert not Path(nowhere).exists()
    said = told(capsys, str(gallery), nowhere, *port)
    assert said == f"tammes: no such gallery or folder of runs: {nowhere}.\n"
    copy = shutil.copytree(gallery, tmp_path / "copy")
    said = told(capsys, str(gallery), str(copy), *port)
    assert said.startswith(f"tammes: one gallery at a time: got {gallery} and {copy}. ")
    (tmp_path / "empty").mkdir()
    assert "there is no gallery" in told(capsys, str(tmp_path / "empty"), *port)
    (tmp_path / "file").write_text("")
    assert "is a file" in told(capsys, str(tmp_path / "file"), *port)
    assert "cannot be a gallery" in told(capsys, "ftp://host/gallery", *port)
    said = told(capsys, str(run), "--model", str(run), *port)
    assert said == "tammes: --model is for a gallery, and only reports are served.\n"


def test_a_port_that_cannot_be_had(gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = told(capsys, str(gallery), "--port", str(port))
    assert said == (
        f"tammes: cannot listen at 127.0.0.1, port {port}: Address already in use. Choose another: --port 0 takes one"
        " that is free.\n"
    )
    for port in (-1, 65536):
        assert told(capsys, str(gallery), "--port", str(port)) == f"tammes: --port must be 0 to 65535, got {port}.\n"
    for host in ("not.a.host.invalid", "a..b", "x" * 70, "8.8.8.8"):
        assert f"cannot listen at {host}, port 0: " in told(
            capsys, str(gallery), "--host", host, "--token", "x" * 20, "--port", "0"
        )


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_limits_that_are_no_limits(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--max-upload", "--max-pixels"):
        said = told(capsys, "x", flag, value)
        assert said == "tammes: --max-upload and --max-pixels must be numbers above 0: an image has to fit.\n"
    if value != "0":
        assert told(capsys, "x", "--rate", value).startswith("tammes: --rate must be 0 (no limit) or more")


def test_what_serving_needs_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "tammes.serve.server")
    monkeypatch.delattr("tammes.serve.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert told(capsys, "x") == "tammes: serving needs uvicorn: pip install 'tammes[web]'\n"


def test_where_it_listens() -> None:
    with listen("127.0.0.1", 0) as one:
        assert address_of(one) == f"http://127.0.0.1:{one.getsockname()[1]}"
        # Without it an answer of two parts takes 40 ms longer than it has to.
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with listen("0.0.0.0", 0) as everywhere:
        assert address_of(everywhere) == f"http://{socket.gethostname()}:{everywhere.getsockname()[1]}"
    if socket.has_dualstack_ipv6():
        with listen("::1", 0) as six:
            assert address_of(six) == f"http://[::1]:{six.getsockname()[1]}"


def children(process: int) -> set[int]:
    """The processes that a process has started and that are still there."""
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").iterdir():
        found |= {int(each) for each in (task / "children").read_text().split()}
    return found


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def accepts(url: httpx.URL) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((url.host, url.port or 0), timeout=WAIT).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_server_that_is_told_to_stop_finishes_what_is_under_way(gallery: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    with serving(str(gallery), "--token-file", str(tmp_path / "token")) as server:
        assert refused(server.get("/api/count"), 401)
        server.client.headers["Authorization"] = "Bearer 0123456789abcdef"
        assert server.get("/api/count").json()["items"] == 80
        expected = found(server.post("/api/search", content=png()))
        mine = children(server.process.pid)
        assert mine
        url, content = httpx.URL(server.address), png()
        assert url.port is not None
        with socket.create_connection((url.host, url.port), timeout=WAIT) as connection:
            connection.sendall(
                b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdef\r\n"
                + f"Content-Length: {len(content)}\r\n\r\n".encode() + content[:500]
            )  # fmt: skip
            assert eventually(lambda: "tammes_requests_under_way 2.0" in server.get("/metrics").text)
            server.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: not accepts(url))
            assert server.process.poll() is None
            connection.sendall(content[500:])
            answer = b""
            while part := connection.recv(100_000):
                answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        hits = json.loads(body)["found"]
        assert [(each["name"], each["label"], each["distance"]) for each in hits] == expected
        assert server.process.wait(WAIT) == 0
        assert not any(alive(each) for each in mine)


def test_ctrl_c_ends_a_server(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which has imported everything already."""
    seen: list[httpx.Response] = []

    def look(config: Any, gallery: Any, where: str) -> None:
        def ask() -> None:
            try:
                seen.append(httpx.get(f"{where}/runs", headers=PAGE))
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        assert (config.what, gallery) == ((str(runs),), None)
        threading.Thread(target=ask).start()

    monkeypatch.setattr(sys.modules["tammes.cli.serve"], "_ready", look)  # the package has a function of that name
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(runs), "--port", "0"])
    assert ended.value.code == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert capsys.readouterr().err == "stopped.\n"
    assert seen[0].status_code == 200
    assert address("plain") in seen[0].text


def test_the_line_that_a_program_reads(server: Server, gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`serving` has read the address from it; here is the rest, and what a person reads."""
    from tammes.cli.serve import Serve, _ready

    watched = GalleryWatcher(str(gallery), None, "cpu")
    _ready(Serve((str(gallery),), json=True), watched, server.address)
    assert json.loads(capsys.readouterr().out) == {"address": server.address, "items": 80}
    _ready(Serve((str(gallery),)), watched, server.address)
    assert capsys.readouterr().out == f"stripes: 80 images in 10 classes\n{server.address}  (Ctrl-C stops it)\n"
    _ready(Serve(("runs",)), None, server.address)
    assert capsys.readouterr().out == f"{server.address}/runs  (Ctrl-C stops it)\n"
    _ready(Serve(("runs",), json=True), None, server.address)
    assert json.loads(capsys.readouterr().out) == {"address": server.address, "items": None}


def test_one_client_never_has_all_places() -> None:
    async def go() -> UploadSlots:
        slots = UploadSlots(Limits(uploads_at_once=3, wait_seconds=0.05))
        async with slots.slot("one"), slots.slot("one"):
            with pytest.raises(RequestError, match="too many images at once"):
                async with slots.slot("one"):
                    raise AssertionError("a third place for one client")
            async with slots.slot("other"):  # there is one left for somebody else
                with pytest.raises(RequestError, match="too many images at once"):
                    async with slots.slot("third"):
                        raise AssertionError("a fourth place")
        async with slots.slot("one"), slots.slot("other"), slots.slot("third"):
            pass
        return slots

    slots = asyncio.run(go())
    gc.collect()
    assert not slots._clients  # nobody is remembered


def test_a_single_place_is_for_anybody() -> None:
    async def go() -> None:
        slots = UploadSlots(Limits(uploads_at_once=1, wait_seconds=0.05))
        for client in ("one", "one", "other"):
            async with slots.slot(client):
                pass

    asyncio.run(go())


def test_a_folder_that_is_added_is_served_too(changing: tuple[Path, Path], run: Path, tmp_path: Path) -> None:
    """Its rows come before the word that it belongs to the gallery."""
    _, gallery = changing
    added = tmp_path / "added" / "new class"
    added.mkdir(parents=True)
    (added / "1.png").write_bytes(png())
    watched = GalleryWatcher(str(gallery), None, "cpu")
    main(["index", str(run), str(added.parent), "--gallery", str(gallery)])
    assert watched.refresh()
    rows = watched.current.rows
    item = rows.members("new class")[0]
    assert rows.item(item).name == "added/new class/1.png"
    assert watched.current.file(item)[1] == "image/png"
    # Described again, with no row changed.
    store = open_gallery(str(gallery))
    assert isinstance(store, LanceGallery)
    store._about = replace(store.about, roots=store.about.roots[:1])
    store._point_here("2026-01-02T03:04:05+00:00")
    assert watched.refresh()
    with pytest.raises(RequestError, match="outside the folders"):
        watched.current.file(item)


def test_a_version_that_changes_alone_changes_nothing(changing: tuple[Path, Path]) -> None:
    watched = GalleryWatcher(str(changing[1]), None, "cpu")
    before = watched.current.rows
    store, version = open_gallery(str(changing[1])), before.version
    store.upsert(next(iter(store.rows(1))))  # the same again
    assert not watched.refresh()
    assert watched.current.rows is before
    assert before.version == store.version() != version


def test_a_gallery_that_is_calibrated_meanwhile_is_noticed(changing: tuple[Path, Path], run: Path) -> None:
    watched = GalleryWatcher(str(changing[1]), run, "cpu")
    before = watched.current.threshold
    assert before is not None
    main(["calibrate", str(changing[1]), "--unknown-rate", "0.01"])
    watched.refresh()
    after = watched.current.threshold
    assert after is not None
    assert (before.asked, after.asked) == (None, 0.01)


def test_a_process_of_ours_is_given_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in str(bare_environment())


def test_more_pixels_may_take_more_memory() -> None:
    assert Limits().with_room_for_its_pixels() == Limits()
    assert Limits(upload_pixels=100_000_000).with_room_for_its_pixels().decode_bytes == 2_000_000_000
