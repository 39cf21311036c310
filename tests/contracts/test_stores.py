"""What every store of a gallery promises: LanceDB in a folder, PostgreSQL, Qdrant, and a custom one."""

import runpy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import count as numbers
from pathlib import Path
from secrets import token_hex

import numpy as np
import pytest
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery import About, Row, Store, open_gallery, rebuild
from tammes.gallery.filters import And, Filter, In, Not, Or, Order, fits, parsed
from tammes.gallery.items import FORMAT
from tammes.search.neighbours import search
from tests.test_architecture import ROOT

DIM = 8
ABOUT = About(model="abc123", run="/runs/one", dim=DIM, roots=("/photos",), created="2026-01-02T03:04:05+00:00")
AT_ONCE = timedelta(0)
_NUMBERS, _RUN = numbers(), token_hex(4)
STRANGE = [
    "it's",
    '"double" quotes',
    "back\\slash \\n \\' \\",
    "100% %20 _ * ? %s %(name)s",
    "a new\nline and\ttab",
    "spaces  and ; -- '' OR 1=1",
    "ünïcödé 图片 🦜",
    "not unicode \udce9\udcff.jpg",
    "private \ue000 and \ue000dce9",
    "e\u0301 and \u00e9",
    "a zero \0 byte, and \x1d1e\x1d \x1e \x1f",
    "",
]

# One server for all tests of one worker.
STORES = ["lance", "qdrant", pytest.param("postgres", marks=pytest.mark.xdist_group("processes")), "memory"]
needs_a_database = pytest.mark.parametrize("uri", STORES[:-1], indirect=True)  # not of a custom store in memory


@pytest.fixture(params=STORES)
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = f"test-{_RUN}-{next(_NUMBERS)}"  # a server of Qdrant has those of other runs
    match request.param:
        case "lance":
            pytest.importorskip("lancedb", reason="LanceDB is not installed")
            return str(tmp_path / "gallery")
        case "qdrant":
            pytest.importorskip("qdrant_client", reason="Qdrant's client is not installed")
            return str(request.getfixturevalue("qdrant")) + name
        case "postgres":
            return str(request.getfixturevalue("postgres").address(name))
    runpy.run_path(str(ROOT / "examples" / "custom_store.py"))
    return f"memory://{name}"


@pytest.fixture
def store(uri: str) -> Store:
    return open_gallery(uri, create=ABOUT)


def unit(count: int, seed: int = 0, dim: int = DIM) -> ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def row(path: str, vector: ndarray, label: str = "", fingerprint: str = "f") -> Row:
    return Row(path, vector, label, 640, 480, fingerprint, b"\x00\xff" + path.encode(errors="surrogateescape"))


def filled(store: Store, vectors: ndarray, labels: Callable[[int], str] = lambda _: "") -> list[Row]:
    rows = [row(f"{number:05}.jpg", vector, labels(number)) for number, vector in enumerate(vectors)]
    store.upsert(rows)
    return rows


def same(one: Row, other: Row) -> bool:
    """Rows hold arrays, which know no plain equality."""
    return bool((one.vector == other.vector).all()) and replace(one, vector=other.vector).__dict__ == other.__dict__


def test_an_empty_gallery_has_nothing(store: Store) -> None:
    assert store.count() == 0
    assert store.fingerprints() == {}
    assert store.labels() == {}
    assert list(store.rows(10)) == []
    assert store.search(unit(3), 5) == [[], [], []]
    assert store.search(unit(40), 5, exact=True) == [[]] * 40
    assert store.search(np.zeros((0, DIM), np.float32), 5) == []
    store.upsert([])
    store.delete([])
    store.delete(["nothing"])
    assert store.get([]) == []


def test_a_new_row_is_there_whole(store: Store) -> None:
    rows = filled(store, unit(5), lambda number: "cat" if number % 2 else "")
    got = store.get(["00003.jpg", "00000.jpg", "00003.jpg"])
    assert [each.path for each in got] == ["00003.jpg", "00000.jpg", "00003.jpg"]
    assert same(got[0], rows[3])
    assert same(got[1], rows[0])
    assert store.count() == 5
    assert store.labels() == {"": 3, "cat": 2}


def test_a_row_with_the_same_path_takes_the_place_of_the_old(store: Store) -> None:
    filled(store, unit(4))
    new = row("00002.jpg", -unit(1, seed=9)[0], "dog", "changed")
    store.upsert([new, row("more.jpg", unit(1)[0])])
    assert store.count() == 5
    assert same(store.get(["00002.jpg"])[0], new)
    assert store.fingerprints()["00002.jpg"] == "changed"
    store.upsert([new])
    assert store.count() == 5


def test_deleted_rows_are_gone(store: Store) -> None:
    filled(store, unit(6))
    store.delete(["00001.jpg", "00004.jpg", "never there"])
    assert sorted(store.fingerprints()) == ["00000.jpg", "00002.jpg", "00003.jpg", "00005.jpg"]
    with pytest.raises(UserError, match=r"has no '00001.jpg', '00004.jpg' \(2 of the paths asked for\)"):
        store.get(["00000.jpg", "00001.jpg", "00004.jpg"])


def test_of_many_missing_paths_a_few_are_named(store: Store) -> None:
    with pytest.raises(UserError, match=r"'4', … \(9 of the paths asked for\)"):
        store.get(list("012345678"))


def test_all_rows_come_in_batches(store: Store) -> None:
    rows = {each.path: each for each in filled(store, unit(25))}
    batches = list(store.rows(10))
    assert max(map(len, batches)) <= 10
    every = [each for batch in batches for each in batch]
    assert sorted(each.path for each in every) == sorted(rows)
    assert all(same(each, replace(rows[each.path], thumbnail=b"")) for each in every)
    with_pictures = [each for batch in store.rows(10, thumbnails=True) for each in batch]
    assert all(same(each, rows[each.path]) for each in with_pictures)


def test_strange_names_are_names(store: Store) -> None:
    rows = [row(path, vector, label=path) for path, vector in zip(STRANGE, unit(len(STRANGE)), strict=True)]
    store.upsert(rows)
    store.upsert(rows)
    assert store.count() == len(STRANGE)
    assert set(store.fingerprints()) == set(STRANGE)
    assert store.labels() == dict.fromkeys(STRANGE, 1)
    assert all(same(one, other) for one, other in zip(store.get(STRANGE), rows, strict=True))
    for each in rows:
        assert [hit.path for hit in store.search(each.vector[None], 3, label=each.label)[0]] == [each.path]
        assert store.search(each.vector[None], 1)[0][0].path == each.path
        assert store.search(each.vector[None], 1, leave_out=[each.path])[0][0].path != each.path
    for gone in range(1, len(STRANGE)):
        store.delete([STRANGE[gone]])
        assert store.count() == len(STRANGE) - gone
    assert set(store.fingerprints()) == {STRANGE[0]}


SETS = {
    "random": unit(300),
    "clustered": np.repeat(unit(6), 50, axis=0) + np.float32(1e-4) * unit(300, seed=1),
    "duplicated": np.repeat(unit(5, seed=2), 60, axis=0),
    # Distances that float32 cannot tell apart, far from the origin.
    "nearly tied": 3 + 2.0**-20 * np.random.default_rng(3).integers(0, 3, (300, DIM)),
    "mirrored": np.concatenate([np.roll(unit(1, seed=4)[0], shift)[None] for shift in range(DIM)] * 30),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_exact_search_is_that_of_neighbours(store: Store, name: str) -> None:
    compare(store, name, queries=5)


@pytest.mark.parametrize("name", SETS)
def test_exact_search_for_many_in_one_pass_is_that_of_neighbours(tmp_path: Path, name: str) -> None:
    compare(open_gallery(str(tmp_path / "gallery"), create=ABOUT), name, queries=40)


def compare(store: Store, name: str, queries: int) -> None:
    vectors = SETS[name].astype(np.float32)[np.random.default_rng(5).permutation(len(SETS[name]))]
    rows = filled(store, vectors, lambda number: "ab"[number % 2])
    chosen = np.arange(queries) * 3 % len(vectors)
    asked = vectors[chosen]
    for k in (1, 10, 70):
        truth = search(asked, vectors, k)
        found = store.search(asked, k)
        for ids, distances, hits in zip(truth.ids, truth.distances, found, strict=True):
            assert [hit.path for hit in hits] == [rows[number].path for number in ids]
            assert [hit.distance for hit in hits] == distances.tolist()
            assert all(hit.label == rows[number].label for hit, number in zip(hits, ids, strict=True))
    assert found == store.search(asked, 70, exact=True)
    own = search(asked, vectors, 10, itself=chosen)
    without = store.search(asked, 10, leave_out=[rows[number].path for number in chosen])
    assert [[hit.path for hit in hits] for hits in without] == [[rows[n].path for n in ids] for ids in own.ids]
    assert own.distances.tolist() == [[hit.distance for hit in hits] for hits in without]
    of_class = store.search(asked, 10, label="b")
    truth = search(asked, vectors[1::2], 10)
    assert [[hit.path for hit in hits] for hits in of_class] == [[rows[2 * n + 1].path for n in i] for i in truth.ids]


def test_fewer_rows_than_asked_for_are_all_of_them(store: Store) -> None:
    rows = filled(store, unit(7), lambda number: "cat" if number < 2 else "dog")
    for queries in (1, 30):
        asked = unit(queries, seed=3)
        assert {len(hits) for hits in store.search(asked, 50)} == {7}
        assert {len(hits) for hits in store.search(asked, 50, label="cat")} == {2}
        assert {len(hits) for hits in store.search(asked, 50, label="bird")} == {0}
        left = store.search(asked, 50, leave_out=[rows[0].path] * (queries - 1) + [None])
        assert [len(hits) for hits in left] == [6] * (queries - 1) + [7]


def test_what_a_query_must_be(store: Store) -> None:
    filled(store, unit(3))
    with pytest.raises(UserError, match=r"vectors of 8 numbers; the queries have shape \(2, 5\)"):
        store.search(unit(2, dim=5), 1)
    with pytest.raises(UserError, match="k must be at least 1, got 0"):
        store.search(unit(2), 0)
    with pytest.raises(UserError, match="for each of 2 queries, got 1"):
        store.search(unit(2), 1, leave_out=["x"])
    with pytest.raises(UserError, match="queries must be finite numbers"):
        store.search(np.full((1, DIM), np.nan, np.float32), 1)
    with pytest.raises(UserError, match="queries must be numbers below 1e\\+15"):
        store.search(np.full((1, DIM), 1e20, np.float32), 1)


def test_what_a_row_must_be(store: Store) -> None:
    fine = row("fine", unit(1)[0])
    with pytest.raises(UserError, match="vectors of 8 numbers; that of 'short' has 5"):
        store.upsert([fine, row("short", unit(1, dim=5)[0])])
    for wrong in (np.nan, np.inf, 1e16):
        vector = unit(1)[0].copy()
        vector[3] = wrong
        with pytest.raises(UserError, match="must be finite numbers below 1e\\+15: that of 'wrong' is not"):
            store.upsert([fine, row("wrong", vector)])
    with pytest.raises(UserError, match="'fine' is among the rows more than once"):
        store.upsert([fine, row("other", unit(1)[0]), fine])
    assert store.count() == 0


def test_where_there_is_no_gallery_the_error_says_how_to_make_one(uri: str) -> None:
    with pytest.raises(UserError, match="there is no gallery .*Make it: tammes index MODEL FOLDER --gallery "):
        open_gallery(uri)


def test_a_gallery_is_opened_again_as_it_was(uri: str, store: Store) -> None:
    filled(store, unit(3))
    again = open_gallery(uri)
    assert again.about == ABOUT
    assert again.count() == 3
    other = open_gallery(uri, create=replace(ABOUT, model="another"))
    assert other.about == ABOUT
    assert other.count() == 3


def test_what_is_said_of_it_can_be_changed_but_not_what_it_is(uri: str, store: Store) -> None:
    filled(store, unit(3))
    store.describe(roots=["/photos/inside", "/not unicode \udce9"], threshold="{}")
    more = replace(ABOUT, roots=("/photos", "/not unicode \udce9"), threshold="{}")
    assert store.about == more
    assert open_gallery(uri).about == more
    assert open_gallery(uri).count() == 3


def test_who_describes_a_gallery_undoes_nothing_that_others_wrote(uri: str, store: Store) -> None:
    """Each has opened it before any other wrote."""
    stores = [store, *(open_gallery(uri) for _ in range(3))]

    def describe(number: int) -> None:
        stores[number].describe(roots=[f"/more/{number}"])
        stores[number].describe(threshold=f"{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(describe, range(4)))
    stores[0].describe(threshold="last")
    about = open_gallery(uri).about
    assert sorted(about.roots) == ["/more/0", "/more/1", "/more/2", "/more/3", "/photos"]
    assert about.threshold == "last"


def test_a_gallery_that_was_replaced_is_not_described_again(uri: str, store: Store) -> None:
    rebuild(uri, replace(ABOUT, roots=("/others",))).swap()
    store.describe(roots=["/more"])
    assert open_gallery(uri).about.roots == ("/others",)


@needs_a_database
def test_a_gallery_of_another_format_is_refused(uri: str) -> None:
    rebuild(uri, replace(ABOUT, format=FORMAT + 1)).swap()
    with pytest.raises(UserError, match=f"is of format {FORMAT + 1}, and this version reads {FORMAT}.*--rebuild"):
        open_gallery(uri)


@needs_a_database
def test_what_does_not_say_what_made_it_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(About, "to_json", lambda _: '{"format": 1, "colour": "blue"}')
    rebuild(uri, ABOUT).swap()
    with pytest.raises(UserError, match="says of its model.* Rebuild it"):
        open_gallery(uri)


def test_a_reader_sees_what_is_written_from_its_next_call_on(uri: str, store: Store) -> None:
    reader = open_gallery(uri)
    filled(store, unit(20))
    assert reader.count() == 20
    store.delete(["00003.jpg"])
    assert "00003.jpg" not in reader.fingerprints()
    store.upsert([row("new", -unit(1)[0])])
    assert reader.search(-unit(1), 1)[0][0].path == "new"
    store.optimise()
    assert reader.count() == 20


def test_a_rebuild_takes_the_place_in_one_step(uri: str, store: Store) -> None:
    old = filled(store, unit(10))
    reader = open_gallery(uri)
    about = replace(ABOUT, model="new", dim=4)
    new = rebuild(uri, about)
    new.upsert([row("only", unit(1, dim=4)[0])])
    assert open_gallery(uri).about == ABOUT
    assert open_gallery(uri).count() == reader.count() == 10
    assert not reader.replaced()
    new.swap()
    assert open_gallery(uri).about == about
    assert open_gallery(uri).count() == new.count() == 1
    assert reader.replaced()
    assert not new.replaced()
    assert reader.about == ABOUT
    assert reader.search(old[4].vector[None], 1)[0][0].path == old[4].path  # it continues with what it opened
    new.upsert([row("two", unit(2, dim=4)[1])])
    assert open_gallery(uri).count() == 2


@needs_a_database
def test_the_old_gallery_rests_before_it_is_removed(uri: str, store: Store) -> None:
    filled(store, unit(10))
    reader = open_gallery(uri)
    new = rebuild(uri, ABOUT)
    new.swap()
    assert new.optimise().removed == ()
    assert reader.count() == 10
    assert len(new.optimise(rest=AT_ONCE).removed) == 1
    assert new.optimise(rest=AT_ONCE).removed == ()
    for action in (reader.count, lambda: reader.search(unit(1), 1), lambda: list(reader.rows(5))):
        with pytest.raises(UserError, match=r"was rebuilt since it was opened. Open it again\."):
            action()
    assert open_gallery(uri).count() == 0


@needs_a_database
def test_a_rebuild_that_was_abandoned_leaves_the_old_and_is_removed(uri: str, store: Store) -> None:
    filled(store, unit(10))
    half = rebuild(uri, replace(ABOUT, model="new"))
    half.upsert([row("half", unit(1)[0])])
    assert store.optimise().removed == ()
    assert half.count() == 1
    del half
    again = open_gallery(uri)
    assert again.about == ABOUT
    assert len(again.optimise(rest=AT_ONCE).removed) == 1
    assert again.count() == 10
    done = rebuild(uri, replace(ABOUT, model="newer"))
    done.swap()
    assert open_gallery(uri).about.model == "newer"


def test_a_rebuild_where_there_is_nothing_makes_a_gallery(uri: str) -> None:
    new = rebuild(uri, ABOUT)
    new.upsert([row("a", unit(1)[0])])
    assert new.optimise(rest=AT_ONCE).removed == ()
    with pytest.raises(UserError, match="there is no gallery"):
        open_gallery(uri)
    new.swap()
    assert open_gallery(uri).count() == 1


def test_order_may_be_put_again_and_again(store: Store) -> None:
    for number in range(20):
        store.upsert([row(f"{number}", unit(1, seed=number)[0]), row("often", unit(1, seed=number)[0])])
    before = {path: store.get([path])[0] for path in store.fingerprints()}
    for _ in range(3):
        order = store.optimise()
        assert (order.rows, order.indexed, order.recall, order.removed) == (21, False, None, ())
    assert all(same(store.get([path])[0], each) for path, each in before.items())


# Filters

COLOURS = ["red", "blue", "it's", "100% %s", "\x1fprice\x1en1.0\x1f", "", *STRANGE]
NAMES = ["colour", "price", "list price", 'a "quoted" name', "it's; --", "ünï.cödé[0]", "%s", "-2d", "fields", "id"]


def stocked(store: Store) -> dict[str, dict[str, str | float]]:
    """Rows with columns of many kinds; the values of each by its path."""
    rng, rows = np.random.default_rng(0), []
    for number, vector in enumerate(unit(60, seed=7)):
        values: dict[str, str | float] = {}
        for name in NAMES:
            kind = rng.integers(4)
            if kind == 0:
                values[name] = COLOURS[rng.integers(len(COLOURS))]
            elif kind in (1, 2):
                values[name] = float(rng.choice([-2.5, 0, 1, 1.0, 20, 1e-7, 1e16, 123456789.125]))
        made = row(f"{number:05}.jpg", vector, label="ab"[number % 2])
        rows.append(replace(made, width=100 * (number % 5), fields=values))
    store.upsert(rows)
    assert store.get([rows[0].path])[0].fields == rows[0].fields
    assert {each.path: each.fields for part in store.rows(7) for each in part} == {r.path: r.fields for r in rows}
    own: list[dict[str, str | float]]
    own = [{"path": r.path, "label": r.label, "width": float(r.width), "height": float(r.height)} for r in rows]
    return {r.path: dict(r.fields) | each for r, each in zip(rows, own, strict=True)}


VALUES: list[str | float] = [
    *COLOURS,
    "12",
    "a",
    "00003.jpg",
    -2.5,
    0.0,
    1.0,
    20.0,
    1e-7,
    1e16,
    123456789.125,
    200.0,
    480.0,
]


def drawn_filter(rng: np.random.Generator, depth: int = 3) -> Filter:
    kind = rng.integers(5 if depth else 2)
    if kind == 0:
        name = str(rng.choice([*NAMES, "label", "path", "width", "height", "never"]))
        return In(name, tuple(VALUES[number] for number in rng.integers(len(VALUES), size=rng.integers(1, 4))))
    if kind == 1:
        name, value = str(rng.choice([*NAMES, "width", "label"])), float(rng.choice([-2.5, 1.0, 1e-7, 200.0, 1e16]))
        return Order(name, str(rng.choice(["<", "<=", ">", ">="])), value)
    if kind == 2:
        return Not(drawn_filter(rng, depth - 1))
    parts = tuple(drawn_filter(rng, depth - 1) for _ in range(2))
    return And(parts) if kind == 3 else Or(parts)


def check_filter(store: Store, values: dict[str, dict[str, str | float]], where: Filter) -> None:
    wanted = {path for path, each in values.items() if fits(where, each)}
    assert {hit.path for hit in store.search(unit(1), 100, where=where)[0]} == wanted
    assert {hit.path for hit in store.search(unit(20), 100, where=where)[11]} == wanted  # in one pass
    both = {path for path in wanted if values[path]["label"] == "a"}
    assert {hit.path for hit in store.search(unit(1), 100, where=where, label="a")[0]} == both


def test_a_filter_means_the_same_in_every_store(store: Store) -> None:
    """Names and values are hostile: quotes, placeholders, the very characters that a store puts between them."""
    values = stocked(store)
    for text in [
        "price < 20",
        "colour = 'it''s' or \"list price\" >= 1e16",
        "not (colour in ('red', 'blue', 1) or price = 20)",
        "colour != 'red' and label = 'a'",
        '"a ""quoted"" name" not in (\'100% %s\', -2.5)',
        "width > 150.5 and width <= 400 and height = 480",
        "path in ('00003.jpg', '00004.jpg') and not path = '00004.jpg'",
        "label < 5 or width = '100'",
        "never = 'x' or not never != 'x'",
    ]:
        check_filter(store, values, parsed(text))

    for seed in range(10):
        check_filter(store, values, drawn_filter(np.random.default_rng(seed)))
    assert store.count() == 60


def test_a_filter_ranks_as_without_the_others(store: Store) -> None:
    values = stocked(store)
    where = parsed("price <= 1")
    paths = sorted(path for path, each in values.items() if fits(where, each))
    vectors = np.stack([each.vector for each in store.get(paths)])
    truth = search(unit(3, seed=9), vectors, 4)
    found = store.search(unit(3, seed=9), 4, where=where)
    assert [[hit.path for hit in hits] for hits in found] == [[paths[n] for n in ids] for ids in truth.ids]


@pytest.mark.parametrize("fields", [{"": 1.0}, {"path": "x"}, {"x" * 201: 1.0}, {"price": float("nan")}])
def test_what_a_column_must_be(store: Store, fields: dict[str, str | float]) -> None:
    with pytest.raises(UserError, match="a name has 1 to 200 characters|must be a text or a finite number"):
        store.upsert([replace(row("a", unit(1)[0]), fields=fields)])
