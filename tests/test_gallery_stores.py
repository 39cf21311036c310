"""What LanceDB and Qdrant have alone as stores of a gallery; what all stores promise is in contracts/test_stores.py."""

import json
import multiprocessing
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tammes.errors import UserError
from tammes.gallery import lance, lance_tables, open_gallery, qdrant, rebuild
from tammes.gallery import store as store_module
from tammes.gallery.duplicates import duplicates
from tammes.gallery.items import Hit, as_it_was, storable
from tammes.gallery.ranking import Block, nearest, ranked, recall_at_10
from tammes.search.neighbours import search
from tests.conftest import HANGS
from tests.contracts.test_stores import ABOUT, AT_ONCE, DIM, filled, row, unit

pytest.importorskip("lancedb")
pytest.importorskip("qdrant_client")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "gallery")


@given(st.text(st.characters() | st.characters(categories=["Cs"]) | st.just("\ue000")))
def test_every_text_can_be_stored_and_comes_back(text: str) -> None:
    storable(text).encode()  # raises no error
    assert as_it_was(storable(text), "g") == text


@given(st.lists(st.text(st.sampled_from("\ue000\udce9dce9"), max_size=6), min_size=2, max_size=2, unique=True))
def test_no_two_texts_are_stored_alike(texts: list[str]) -> None:
    assert storable(texts[0]) != storable(texts[1])


def test_names_from_the_file_system_come_back_as_bytes() -> None:
    name = b"caf\xe9 \xff.jpg"
    assert os.fsencode(as_it_was(storable(os.fsdecode(name)), "g")) == name


@given(st.text(st.sampled_from("\ue000d80ef")))
def test_a_stored_text_is_one_that_can_be_stored_or_is_refused(stored: str) -> None:
    with suppress(UserError):
        assert storable(as_it_was(stored, "g")) == stored


def test_a_name_that_nothing_of_ours_stores_is_refused(folder: str) -> None:
    import pyarrow

    strange_items(folder, path=(pyarrow.string(), ["\ue000ffff\ue000d800"], False))
    name = re.escape(r"'\ue000ffff\ue000d800'")
    store = open_gallery(folder)
    for action in (store.fingerprints, lambda: store.search(unit(1), 1), lambda: list(store.rows(5))):
        with pytest.raises(UserError, match=f"gallery {folder} holds a name that is not valid: {name}. Rebuild it: "):
            action()


def test_a_pass_over_blocks_is_one_search_over_all() -> None:
    vectors = np.repeat(unit(30), 5, axis=0)[np.random.default_rng(0).permutation(150)]
    paths = [f"{number:03}" for number in np.random.default_rng(1).permutation(150)]
    order = np.argsort(paths)
    truth = search(vectors[:20], vectors[order], 12)
    parts = np.array_split(np.arange(150), [1, 2, 50, 50, 120])
    blocks = [Block([paths[n] for n in part], ["x"] * len(part), vectors[part]) for part in parts]
    found = nearest(vectors[:20], blocks, 12)
    assert [[hit.path for hit in hits] for hits in found] == [[paths[order[n]] for n in ids] for ids in truth.ids]


def test_recall_takes_what_is_as_near_for_found() -> None:
    exact = [[Hit("a", "", 0.1), Hit("b", "", 0.2)], [Hit("a", "", 0.1), Hit("b", "", 0.2)], []]
    found = [[Hit("a", "", 0.1), Hit("tied", "", 0.2)], [Hit("b", "", 0.2), Hit("c", "", 0.3)], []]
    assert recall_at_10(found, exact) == 0.75


def test_a_place_of_another_kind_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"http://x cannot be a gallery. Give a folder, s3://…, gs://…, az://…, postgresql://host"
    ):
        open_gallery("http://x")


@pytest.mark.parametrize(("uri", "module", "match"), [
    ("gallery", "lancedb", r"needs LanceDB: pip install 'tammes\[gallery\]'"),
    ("qdrant://:memory:/x", "qdrant_client", r"needs its client: pip install 'tammes\[qdrant\]'"),
])  # fmt: skip
def test_without_the_extra_the_error_says_what_to_install(
    uri: str, module: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        if name == module:
            raise ModuleNotFoundError(name)
        return import_module(name)

    monkeypatch.setattr(lance_tables, "import_module", missing)
    monkeypatch.setattr(qdrant, "import_module", missing)
    monkeypatch.chdir(tmp_path)
    qdrant._client.cache_clear()
    with pytest.raises(UserError, match=match):
        open_gallery(uri, create=ABOUT)


# LanceDB


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"precious")
    actions: list[Callable[[], object]] = [
        lambda: open_gallery(str(tmp_path)),
        lambda: open_gallery(str(tmp_path), create=ABOUT),
        lambda: rebuild(str(tmp_path), ABOUT),
    ]
    for action in actions:
        with pytest.raises(
            UserError,
            match=r"is not a gallery: it holds photo.jpg. Choose another folder; a new gallery needs an empty one\.",
        ):
            action()
    assert [file.name for file in tmp_path.iterdir()] == ["photo.jpg"]
    with pytest.raises(UserError, match="is a file. A gallery is a folder"):
        open_gallery(str(tmp_path / "photo.jpg"), create=ABOUT)


def test_looking_for_a_gallery_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no gallery"):
        open_gallery(str(tmp_path / "nowhere"))
    assert list(tmp_path.iterdir()) == []


def test_a_gallery_may_lie_in_an_empty_folder_or_one_that_was_begun(tmp_path: Path) -> None:
    assert open_gallery(str(tmp_path), create=ABOUT).count() == 0
    begun = tmp_path / "begun"
    (begun / "items-20260101T000000Z-abcd.lance").mkdir(parents=True)  # killed before it was whole
    store = open_gallery(str(begun), create=ABOUT)
    assert store.optimise(rest=AT_ONCE).removed == ("items-20260101T000000Z-abcd",)
    assert store.count() == 0


def test_the_folder_may_have_a_strange_name_too(tmp_path: Path) -> None:
    uri = str(tmp_path / "it's #1 100% %20 ü ?x=1 &")
    filled(open_gallery(uri, create=ABOUT), unit(3))
    assert open_gallery(uri).count() == 3


@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "half"])
@pytest.mark.parametrize("which", ["data/*", "_versions/*.manifest"])
def test_a_damaged_file_is_said_to_be(folder: str, which: str, content: bytes | None) -> None:
    filled(open_gallery(folder, create=ABOUT), unit(50))
    for file in Path(folder).glob(f"items-*.lance/{which}"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if content is None else content)
    with pytest.raises(UserError, match="cannot read the gallery .*may be damaged: .*Rebuild it: tammes index"):
        open_gallery(folder).search(unit(1), 3)
    with pytest.raises(UserError, match="may be damaged"):
        list(open_gallery(folder).rows(10))


@pytest.mark.parametrize("times", [15, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_gallery_with_bytes_changed_anywhere_answers_or_is_said_to_be_damaged(folder: str, times: int) -> None:
    """LanceDB has no checksums: a changed number of a vector is not noticed. But nothing crashes or hangs."""
    store = open_gallery(folder, create=ABOUT)
    for seed in range(3):
        store.upsert([row(f"{seed} {number}.jpg", vector) for number, vector in enumerate(unit(20, seed))])
    files, rng = sorted(file for file in Path(folder).rglob("*") if file.is_file()), np.random.default_rng(0)
    refused = 0
    for _ in range(times):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=rng.choice([1, 4])):
            damaged[place] = (0, 255, int(rng.integers(256)))[rng.integers(3)]
        file.write_bytes(damaged)
        try:
            opened = open_gallery(folder)
            for queries in (1, 20):
                assert all(np.isfinite(hit.distance) for hits in opened.search(unit(queries), 3) for hit in hits)
            list(opened.rows(10, thumbnails=True))
            opened.labels()
            opened.get(["0 1.jpg"])
        except UserError:
            refused += 1
        file.write_bytes(whole)
    print(f"{refused} of {times} refused")
    assert 0 < refused < times
    assert open_gallery(folder).count() == 60


def strange_items(folder: str, **columns: Any) -> None:
    """Put an untrusted table into the place of the items."""
    import pyarrow

    shutil.rmtree(folder, ignore_errors=True)
    open_gallery(folder, create=ABOUT)
    database = lance_tables.connect(folder)
    name = lance_tables.what_is_current(folder, database)["items"]
    fields = {field.name: field for field in lance_tables.schema_of(DIM)}
    given = {"path": ["a.jpg"], "vector": [[0.5] * DIM], "label": ["x"], "width": [1], "height": [1]}
    given |= {"fingerprint": ["f"], "thumbnail": [b""]}
    fields |= {
        column: pyarrow.field(column, kind, nullable=nullable) for column, (kind, _, nullable) in columns.items()
    }
    given |= {column: values for column, (_, values, _) in columns.items()}
    schema = pyarrow.schema([fields[column] for column in given])
    database.drop_table(name)
    database.create_table(name, pyarrow.table(given, schema=schema))


def test_columns_of_an_untrusted_gallery_are_what_they_should_be(folder: str) -> None:
    import pyarrow

    strange_items(folder)
    assert open_gallery(folder).search(unit(1), 1)[0][0].path == "a.jpg"  # the others differ from it in one thing only
    numbers_of = pyarrow.float32()
    for column, strange in {
        "vector": (pyarrow.list_(numbers_of, DIM - 1), [[0.5] * (DIM - 1)], False),
        "path": (pyarrow.int64(), [1], False),
        "label": (pyarrow.string(), [None], True),
        "thumbnail": (pyarrow.string(), ["x"], False),
        "more": (pyarrow.string(), ["x"], False),
    }.items():
        strange_items(folder, **{column: strange})
        with pytest.raises(UserError) as raised:
            open_gallery(folder)
        assert str(raised.value) == (
            f"the gallery {folder} does not hold what it says: paths, labels and vectors of 8 numbers. Rebuild it:"
            f" tammes index MODEL FOLDER --gallery {folder} --rebuild"
        )


@pytest.mark.parametrize("dim", [0, -1, 9, 10**12])
def test_vectors_of_an_untrusted_gallery_are_as_long_as_it_says(folder: str, dim: int) -> None:
    said(folder, about=replace(ABOUT, dim=dim).to_json())
    with pytest.raises(UserError, match=f"does not hold what it says: paths, labels and vectors of {dim} numbers"):
        open_gallery(folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 3e38, -1e19, 1e15])
def test_vectors_of_an_untrusted_gallery_are_finite_and_not_too_large(folder: str, number: float) -> None:
    strange_items(folder)
    (file,) = Path(folder).glob("items-*.lance/data/*")  # LanceDB itself would not write them
    before, after = (np.full(DIM, each, np.float32).tobytes() for each in (0.5, number))
    assert before in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(before, after))
    wrong = f"the gallery {folder} holds vectors that are not finite numbers below 1e\\+15. Rebuild it: tammes index"
    with pytest.raises(UserError, match=wrong):
        open_gallery(folder).search(unit(20), 1)
    with suppress(UserError):
        assert open_gallery(folder).search(unit(1), 1) == [[]]  # LanceDB leaves out what has no distance
    with pytest.raises(UserError, match=wrong):
        list(open_gallery(folder).rows(10))


def test_paths_of_an_untrusted_gallery_are_keys(folder: str) -> None:
    strange_items(
        folder,
        **{name: (lance_tables.schema_of(DIM).field(name).type, [value] * 3, False) for name, value in {
            "path": "a.jpg", "vector": [0.5] * DIM, "label": "x", "width": 1, "height": 1, "fingerprint": "f",
            "thumbnail": b"",
        }.items()},
    )  # fmt: skip
    with pytest.raises(
        UserError, match=f"the gallery {folder} holds 3 images with 1 paths: each must have its own. Rebuild it"
    ):
        open_gallery(folder).fingerprints()


@pytest.mark.parametrize("fingerprint", ["", "abc"])
def test_untrusted_fingerprints_make_no_files_the_same(folder: str, fingerprint: str) -> None:
    store = open_gallery(folder, create=ABOUT)
    store.upsert([row(name, unit(1)[0], fingerprint=fingerprint) for name in "ab"])
    (group,) = duplicates(store, 0.1)
    assert (group.paths, group.identical) == (("a", "b"), False)


@pytest.mark.parametrize("path", ["\0", "/photos/\0", "\ud800", ""])
@pytest.mark.parametrize("name", ["roots", "run"])
def test_untrusted_roots_may_be_folders(folder: str, name: str, path: str) -> None:
    strange = replace(ABOUT, roots=("/photos", path)) if name == "roots" else replace(ABOUT, run=path)
    said(folder, about=strange.to_json())
    with pytest.raises(UserError, match="says of its model.* Rebuild it"):
        open_gallery(folder)


def test_a_gallery_whose_items_are_missing_says_how_to_rebuild_it(folder: str) -> None:
    said(folder, items="items-nowhere")
    with pytest.raises(
        UserError, match=f"{folder} is not whole: its table items-nowhere is not there. Rebuild it: tammes index"
    ):
        open_gallery(folder)
    rebuild(folder, ABOUT).swap()
    assert open_gallery(folder).count() == 0


def test_a_gallery_that_goes_away_while_it_is_open_is_said_to_be_gone(folder: str) -> None:
    store = open_gallery(folder, create=ABOUT)
    filled(store, unit(3))
    shutil.rmtree(folder)
    for action in (lambda: store.get(["00000.jpg"]), lambda: store.search(unit(1), 1), store.count):
        with pytest.raises(UserError, match=f"there is no gallery {folder}"):
            action()


def said(folder: str, **changes: str) -> None:
    """Let a gallery say other things of itself."""
    import pyarrow

    open_gallery(folder, create=ABOUT)
    database = lance_tables.connect(folder)
    current = lance_tables.what_is_current(folder, database) | changes
    database.drop_table("about")
    database.create_table("about", pyarrow.table({"name": ["current"], "said": [json.dumps(current)]}))


@pytest.mark.parametrize(
    "changes",
    [
        {"items": "../elsewhere"},
        {"items": "items-../../elsewhere"},
        {"items": "/etc"},
        {"items": "about"},
        {"since": "yesterday"},
        {"since": "2026-01-01"},
    ],
    ids=str,
)
def test_an_untrusted_gallery_does_not_lead_out_of_its_folder(folder: str, changes: dict[str, str]) -> None:
    outside = Path(folder).parent / "elsewhere.lance"
    said(folder, **changes)
    outside.mkdir()
    with pytest.raises(UserError, match="may be damaged: .*(makes no sense|isoformat).* Rebuild it"):
        open_gallery(folder)
    assert list(outside.iterdir()) == []


def test_what_a_killed_program_left_of_its_rows_is_removed_after_a_week(folder: str) -> None:
    """Not at once: nobody can tell whether another program is still writing it."""
    store = open_gallery(folder, create=ABOUT)
    for number in range(lance._FEW):
        store.upsert([row(f"{number}.jpg", unit(1)[0])])
    (place,) = Path(folder).glob("items-*.lance/data")
    fresh, old = place / f"{'1' * 24}{'0' * 26}.lance", place / f"{'0' * 24}{'1' * 26}.lance"
    for file in (fresh, old):
        shutil.copy(next(place.iterdir()), file)
    week = time.time() - 8 * 24 * 3600
    os.utime(old, (week, week))
    store.optimise()
    assert (fresh.exists(), old.exists()) == (True, False)
    assert store.count() == lance._FEW


def test_names_of_tables_that_are_not_ours_are_left_alone(folder: str) -> None:
    import pyarrow

    store = open_gallery(folder, create=ABOUT)
    filled(store, unit(3))
    lance_tables.connect(folder).create_table("items-of-another", pyarrow.table({"a": [1]}))
    (Path(folder) / "items-never-whole.lance").mkdir()
    store.optimise(rest=AT_ONCE)
    assert (Path(folder) / "items-never-whole.lance").exists()


def test_a_damaged_gallery_is_replaced_by_a_rebuild(folder: str) -> None:
    filled(open_gallery(folder, create=ABOUT), unit(50))
    for file in Path(folder).glob("items-*.lance/data/*"):
        file.write_bytes(b"")
    new = rebuild(folder, ABOUT)
    filled(new, unit(20))
    new.swap()
    assert open_gallery(folder).count() == 20


@pytest.mark.parametrize("which", ["data/*", "_versions/*.manifest"])
def test_a_damaged_about_is_reported_and_replaced_by_a_rebuild(folder: str, which: str) -> None:
    open_gallery(folder, create=ABOUT)
    for file in Path(folder).glob(f"about.lance/{which}"):
        file.write_bytes(b"garbage")
    with pytest.raises(UserError, match="may be damaged"):
        open_gallery(folder)
    rebuild(folder, ABOUT).swap()
    assert open_gallery(folder).about == ABOUT


def test_a_gallery_that_was_begun_and_never_whole_is_begun_again(folder: str) -> None:
    (Path(folder) / "about.lance" / "data").mkdir(parents=True)
    with pytest.raises(UserError, match="there is no gallery"):
        open_gallery(folder)
    assert open_gallery(folder, create=ABOUT).count() == 0
    assert open_gallery(folder).about == ABOUT


def test_a_full_disk_is_no_damage(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("lance error: LanceError(IO): No space left on device (os error 28), /rustc/abc/x.rs:1:2")

    store = open_gallery(folder, create=ABOUT)
    monkeypatch.setattr(lance, "_merge", full)
    with pytest.raises(
        UserError, match=r"cannot write to the gallery .*: .*No space left on device \(os error 28\)\.$"
    ):
        filled(store, unit(3))


def written_by(number: int, folder: str) -> None:
    store = open_gallery(folder, create=ABOUT)
    for start in range(0, 100, 10):
        store.upsert([row(f"shared {n}", unit(1, seed=n)[0], f"by {number}") for n in range(start, start + 10)])
        store.upsert([row(f"own {number} {n}", unit(1, seed=n)[0]) for n in range(start, start + 10)])
        store.delete([f"own {number} {start}"])
    store.optimise()


def check_written(folder: str) -> None:
    store = open_gallery(folder)
    assert store.count() == 100 + 2 * 90
    paths = [each.path for batch in store.rows(1000) for each in batch]
    assert len(paths) == len(set(paths))


def check_two_writers(folder: str) -> None:
    """Both make it, write the same rows and rows of their own, and put it in order while the other still writes."""
    with ThreadPoolExecutor(2) as pool:
        for written in [pool.submit(written_by, number, folder) for number in (0, 1)]:
            written.result()
    check_written(folder)


def test_two_may_write_at_once(folder: str) -> None:
    check_two_writers(folder)


@pytest.mark.slow
def test_two_programs_may_write_at_once(folder: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    programs = [spawn.Process(target=written_by, args=(number, folder)) for number in (0, 1)]
    for program in programs:
        program.start()
    for program in programs:
        program.join(HANGS)
        assert program.exitcode == 0
    check_written(folder)


def test_a_reader_works_while_others_write_and_put_in_order(folder: str) -> None:
    store = open_gallery(folder, create=ABOUT)
    filled(store, unit(50))
    reader, wrong, done = open_gallery(folder), [], threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                if len(reader.search(unit(1), 50)[0]) != 50:
                    wrong.append("rows are missing")
                if len(reader.search(unit(20), 50)[5]) != 50:
                    wrong.append("rows are missing")
                if [each.path for each in reader.get(["00003.jpg"])] != ["00003.jpg"]:
                    wrong.append("a row is missing")
            except UserError as error:
                wrong.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(60):
        filled(store, unit(50, seed=number))
        if number % 20 == 19:
            store.optimise()
    done.set()
    thread.join()
    assert wrong == []


def test_a_reader_of_all_rows_is_told_that_they_have_moved(folder: str) -> None:
    store = open_gallery(folder, create=ABOUT)
    filled(store, unit(20))
    for file in Path(folder).glob("items-*.lance/data/*"):
        file.unlink()
    with pytest.raises(UserError, match="put in order by another program while all of it was read. Do it again"):
        list(open_gallery(folder).rows(1))


@pytest.mark.parametrize("disk", ["as it is", "in memory"])
def test_many_writes_are_merged_as_they_come(folder: str, disk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance, "_MANY", 20)
    fast = Path("/dev/shm")
    with TemporaryDirectory(dir=fast if disk == "in memory" and fast.is_dir() else Path(folder).parent) as where:
        store = open_gallery(f"{where}/gallery", create=ABOUT)
        for number in range(45):
            store.upsert([row(f"{number}", unit(1)[0])])
        assert len(list(Path(where).glob("gallery/items-*.lance/data/*"))) == 1 + 5
        assert store.count() == 45


def test_order_frees_the_room_of_what_was_replaced(folder: str) -> None:
    store = open_gallery(folder, create=ABOUT)
    for number in range(30):
        filled(store, unit(200, seed=number))

    def size() -> int:
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())

    before = size()
    store.optimise()
    assert size() < before / 5
    assert store.count() == 200


def test_a_large_gallery_is_searched_by_an_index(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_QUERIES", 30)
    store = open_gallery(folder, create=ABOUT)
    vectors = np.repeat(unit(60, seed=1), 50, axis=0) + np.float32(0.1) * unit(3000, seed=2)
    filled(store, vectors, lambda number: f"class {number % 7}")
    assert not store.optimise(exact_up_to=3000).indexed
    order = store.optimise(exact_up_to=2999)
    assert order.indexed
    assert order.recall is not None
    assert order.recall > 0.95
    exact = store.search(vectors[:30], 10, exact=True)
    assert recall_at_10(store.search(vectors[:30], 10), exact) > 0.95
    of_class = store.search(vectors[:30], 10, label="class 3", exact=True)
    assert recall_at_10(store.search(vectors[:30], 10, label="class 3"), of_class) > 0.95
    assert all(hit.label == "class 3" for hits in of_class for hit in hits)
    # What is written after the index is found as well, before it is in the index and after.
    new = -unit(1, seed=9)[0]
    store.upsert([row("new", new), row("00000.jpg", -new)])
    for _ in range(2):
        assert store.search(new[None], 1)[0][0].path == "new"
        assert store.search(-new[None], 1)[0][0].path == "00000.jpg"
        assert store.optimise(exact_up_to=2999).indexed
    # Grown many times, it is trained again.
    filled(store, np.tile(vectors, (5, 1)) + np.float32(0.05) * unit(15_000, seed=3))
    grown = store.optimise(exact_up_to=2999)
    assert grown.recall is not None
    assert grown.recall > 0.9
    assert open_gallery(folder).search(new[None], 1)[0][0].path == "new"


def test_what_is_written_is_synchronised_before_it_is_reported(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of the table that was there when `upsert` returned, and the folders of their names."""
    synchronised: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synchronised.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    store = open_gallery(folder, create=ABOUT)
    for action in (
        lambda: filled(store, unit(10)),
        lambda: filled(store, unit(5)),
        lambda: store.delete(["00007.jpg"]),
        lambda: rebuild(folder, ABOUT).swap(),
    ):
        action()
        files = {str(file) for file in Path(folder).rglob("*") if file.name != "latest_version_hint.json"}
        assert files <= synchronised
    assert {folder, str(Path(folder).parent)} <= synchronised


def test_a_gallery_in_object_storage_is_the_same(tmp_path: Path) -> None:
    """A folder by its address: LanceDB goes through the same object store as for s3://."""
    uri = f"file://{tmp_path}/gallery"
    with pytest.raises(UserError, match="there is no gallery file://"):
        lance.open_store(uri, None)
    store = lance.open_store(uri, ABOUT)
    filled(store, unit(30))
    assert lance.open_store(uri, None).count() == 30
    new = lance.rebuild(uri, replace(ABOUT, model="new"))
    filled(new, unit(4))
    new.swap()
    assert lance.open_store(uri, None).about.model == "new"
    assert store.count() == 30
    assert store.replaced()
    assert len(new.optimise(rest=AT_ONCE).removed) == 1
    with pytest.raises(UserError, match="was rebuilt since it was opened"):
        store.count()


# Qdrant


def test_a_place_in_qdrant_has_a_name() -> None:
    for wrong in ("qdrant://host:6333", "qdrant:///name", "qdrant://host:6333/", "qdrant://h/a/b", "qdrant://h/a--b"):
        with pytest.raises(UserError, match="write qdrant://host:port/name, or qdrant\\+https"):
            open_gallery(wrong)


def test_a_server_that_does_not_answer_is_said_not_to() -> None:
    with pytest.raises(UserError, match="no Qdrant answers at qdrant://127.0.0.1:1/x.*Is the server running"):
        open_gallery("qdrant://127.0.0.1:1/x")


def test_a_collection_of_someone_else_is_left_alone() -> None:
    from qdrant_client import models

    client = qdrant._client(":memory:")
    client.create_collection("theirs", vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT))
    there = models.CreateAlias(collection_name="theirs", alias_name="alias")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=there)])
    for name in ("theirs", "alias"):
        with pytest.raises(UserError, match="is not a gallery: Qdrant has a collection of that name"):
            open_gallery(f"qdrant://:memory:/{name}", create=ABOUT)


def test_an_index_of_the_server_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory Qdrant has none; say that it has, and let it miss every second neighbour."""
    store = open_gallery("qdrant://:memory:/measured", create=ABOUT)
    filled(store, unit(60))
    monkeypatch.setattr(qdrant.QdrantGallery, "indexed", lambda _: True)
    monkeypatch.setattr(store_module, "_QUERIES", 20)
    assert store.optimise().recall == 1.0

    def missing(*args: Any, complete: bool) -> list[Hit]:
        hits = ranked(*args, complete=complete)
        return hits if complete else hits[::2]

    monkeypatch.setattr(store_module, "ranked", missing)
    assert store.optimise().recall == 0.5


def test_a_key_of_qdrant_goes_over_tls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("qdrant_client.QdrantClient", lambda **how: asked.append(how))
    monkeypatch.setenv("QDRANT_API_KEY", "s3cret")
    qdrant._client.cache_clear()
    for uri in (
        "qdrant+https://cloud.example/name",
        "qdrant+https://cloud.example:6334/name",
        "qdrant://localhost/name",
    ):
        qdrant._client(qdrant._location_and_name(uri)[0])
    assert [(each["url"], each["port"], each["api_key"]) for each in asked] == [
        ("https://cloud.example", 443, "s3cret"),
        ("https://cloud.example:6334", 443, "s3cret"),
        ("http://localhost", 6333, "s3cret"),
    ]
    with pytest.raises(UserError, match=r"cloud.example would get it unencrypted. Write qdrant\+https://") as raised:
        open_gallery("qdrant://cloud.example/name")
    assert "s3cret" not in str(raised.value)
    qdrant._client.cache_clear()
