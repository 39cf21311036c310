"""PostgreSQL as a gallery: crashes of the server and of a writer, several writers, the index, and passwords."""

import json
import multiprocessing
import os
import signal
import threading
import time
from itertools import count as numbers
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tammes.cli import main
from tammes.errors import UserError
from tammes.gallery import open_gallery, rebuild
from tammes.gallery import postgres as postgres_module
from tammes.gallery import store as store_module
from tammes.gallery.filters import parsed
from tammes.gallery.gallery import Gallery
from tammes.gallery.ranking import recall_at_10
from tammes.io.addresses import with_password, without_password
from tests.conftest import HANGS, in_one_thread
from tests.contracts.test_stores import ABOUT, filled, row, unit
from tests.several_processes import forks
from tests.test_gallery_stores import check_two_writers, written_by

pytestmark = pytest.mark.xdist_group("processes")
_NUMBERS = numbers()


@pytest.fixture
def uri(postgres: Any) -> str:
    return str(postgres.address(f"own{next(_NUMBERS)}"))


def test_two_may_write_at_once(uri: str) -> None:
    check_two_writers(uri)


@pytest.mark.slow
def test_several_programs_may_write_at_once_and_one_may_be_killed(uri: str) -> None:
    """Its rows are there or not; those of the others all are, and none twice."""
    spawn = multiprocessing.get_context("spawn")
    programs = [spawn.Process(target=written_by, args=(number, uri)) for number in range(3)]
    for program in programs:
        program.start()
    store = open_gallery(uri, create=ABOUT)
    while store.count() < 40:
        assert programs[2].is_alive()
        time.sleep(0.05)
    assert programs[2].pid is not None
    os.kill(programs[2].pid, signal.SIGKILL)
    for program in programs:
        program.join(HANGS)
    assert [program.exitcode for program in programs] == [0, 0, -signal.SIGKILL]
    written_by(2, uri)  # and it does its work again
    paths = [each.path for batch in store.rows(1000) for each in batch]
    assert len(paths) == len(set(paths)) == store.count() == 100 + 3 * 90


def test_what_was_written_outlasts_a_crash_of_the_server(postgres: Any, uri: str) -> None:
    """It is killed while rows are written; whoever has the gallery open goes on when it is back."""
    store, safe, failed = open_gallery(uri, create=ABOUT), 0, 0
    crash = threading.Thread(target=postgres.kill)
    while not failed:
        if safe == 5:
            crash.start()
        rows = [row(f"{number}", unit(1)[0]) for number in range(10 * safe, 10 * safe + 10)]
        try:
            store.upsert(rows)
            safe += 1
        except UserError:  # whether these rows were stored nobody knows: they are written again
            failed += 1
    crash.join()
    postgres.start()
    store.upsert(rows)
    assert store.count() == 10 * (safe + 1)
    assert set(open_gallery(uri).fingerprints()) == {f"{number}" for number in range(10 * (safe + 1))}


# `tammes index` is killed, or its server, in the middle of storing a batch


def index_with_a_fault(arguments: list[str], said: Path, environment: dict[str, str], at: int, wait_in: str) -> None:
    """Index five images at a time; before batch `at` is committed, be killed or, in a folder, wait for `go`."""
    from tammes.gallery import indexing
    from tammes.gallery.postgres import PostgresGallery

    indexing._BATCH = 5
    whole, calls = PostgresGallery._change, numbers(1)

    def change(self: PostgresGallery, action: Any) -> None:
        waiting = [next(calls) == at]

        def faulty(connection: Any) -> None:
            action(connection)
            if waiting.pop() if waiting else False:
                if not wait_in:
                    os.kill(os.getpid(), signal.SIGKILL)
                Path(wait_in, "reached").touch()
                while not Path(wait_in, "go").exists():
                    time.sleep(0.05)

        whole(self, faulty)

    PostgresGallery._change = change  # type: ignore[method-assign]
    in_one_thread(arguments, said, environment)


@pytest.fixture(scope="module")
def run(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "waves"
    main(["train", str(waves), "--out", str(folder), "--backbone", "conv4", "--dim", "8", "--epochs", "1"])
    return folder


@pytest.fixture
def indexing(run: Path, waves: Path, uri: str, tmp_path: Path) -> Any:
    """A `tammes index` under way with a fault to come, and the words of the command."""
    context = forks()
    words = ["index", str(run), str(waves), "--gallery", uri, "--json"]

    def start(at: int, wait_in: str = "") -> tuple[Any, list[str]]:
        given = (words, tmp_path / "said", dict(os.environ), at, wait_in)
        process = context.Process(target=index_with_a_fault, args=given, daemon=True)
        process.start()
        return process, words

    return start


def check_indexed(uri: str, waves: Path) -> None:
    """Every image once, each with its own vector."""
    rows = [row for part in open_gallery(uri).rows(1000) for row in part]
    assert sorted(row.path for row in rows) == sorted(map(str, waves.resolve().rglob("*.png")))
    assert len({row.vector.tobytes() for row in rows}) == 48
    assert open_gallery(uri).about.threshold


@pytest.mark.parametrize("at", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_index_that_was_killed_continues_where_it_stopped(
    at: int, indexing: Any, uri: str, waves: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, words = indexing(at)
    process.join(HANGS)
    assert process.exitcode == -signal.SIGKILL
    assert open_gallery(uri).count() == 5 * (at - 1)  # the batch that was cut short is not there at all
    capsys.readouterr()
    main(words)
    assert json.loads(capsys.readouterr().out)["added"] == 48 - 5 * (at - 1)
    check_indexed(uri, waves)


@pytest.mark.slow
@pytest.mark.parametrize("back", [True, False], ids=["and comes back", "and stays away"])
def test_the_server_crashes_while_index_stores(
    back: bool, postgres: Any, indexing: Any, uri: str, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it comes back at once `index` notices nothing; else it says so, and continues when it is there again."""
    process, words = indexing(4, str(tmp_path))
    while not (tmp_path / "reached").exists():
        assert process.is_alive()
        time.sleep(0.05)
    postgres.kill()
    if back:
        postgres.start()
    (tmp_path / "go").touch()
    process.join(HANGS)
    said = (tmp_path / "said").read_text()
    assert process.exitcode == (0 if back else 2), said
    if not back:
        assert "no PostgreSQL answers" in said
        postgres.start()
        assert open_gallery(uri).count() == 15
    capsys.readouterr()
    main(words)
    assert json.loads(capsys.readouterr().out)["added"] == (0 if back else 33)
    check_indexed(uri, waves)


def test_the_index_finds_what_an_exact_search_does(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_QUERIES", 20)
    store = open_gallery(uri, create=ABOUT)
    vectors = np.repeat(unit(40, seed=1), 25, axis=0) + np.float32(0.1) * unit(1000, seed=2)
    filled(store, vectors, lambda number: f"class {number % 7}")
    assert not store.optimise(exact_up_to=1000).indexed
    order = store.optimise(exact_up_to=999)
    assert order.indexed
    assert order.recall is not None
    assert order.recall > 0.95
    some = parsed("label in ('class 1', 'class 2') and not path = '00008.jpg'")
    cases: list[dict[str, Any]] = [{}, {"label": "class 3"}, {"where": some}]
    for how in cases:
        exact = store.search(vectors[:10], 10, exact=True, **how)
        by_few = store.search(vectors[:10], 10, **how)  # where a filter lets few rows through, all of them are compared
        assert by_few == exact or not how
        monkeypatch.setattr(postgres_module, "_FEW", 0)
        assert recall_at_10(store.search(vectors[:10], 10, **how), exact) > 0.95
        every = store.search(vectors[:1], 200, exact=True, **how)
        assert {len(hits) for hits in store.search(vectors[:10], 200, **how)} == {len(every[0])}
        monkeypatch.undo()
    store.upsert([row("new", -vectors[0])])
    assert store.search(-vectors[:1], 1)[0][0].path == "new"


def test_a_vector_too_long_for_an_index_is_searched_without(uri: str) -> None:
    from dataclasses import replace

    store = open_gallery(uri, create=replace(ABOUT, dim=2001))
    store.upsert([row(f"{number}", vector) for number, vector in enumerate(unit(5, dim=2001))])
    assert not store.optimise(exact_up_to=1).indexed
    assert store.search(unit(5, dim=2001)[2:3], 1)[0][0].path == "2"


def test_versions_change_with_rows(uri: str) -> None:
    store = open_gallery(uri, create=ABOUT)
    seen = [store.version()]
    for action in (
        lambda: filled(store, unit(3)),
        lambda: store.delete(["00001.jpg"]),
        lambda: rebuild(uri, ABOUT).swap(),
    ):
        assert open_gallery(uri).version() == seen[-1]
        action()
        seen.append(open_gallery(uri).version())
    assert len(set(seen)) == 4


def test_galleries_of_one_database_know_nothing_of_each_other(postgres: Any) -> None:
    one, other = (open_gallery(postgres.address(name), create=ABOUT) for name in ("it's%201", "other"))
    filled(one, unit(3))
    assert (one.count(), other.count()) == (3, 0)
    assert open_gallery(postgres.address("it's%201")).count() == 3


def test_a_reader_keeps_the_rows_as_they_were_when_it_began(uri: str) -> None:
    store = open_gallery(uri, create=ABOUT)
    filled(store, unit(50))
    reading = store.rows(10)
    first = next(reading)
    store.delete([f"{number:05}.jpg" for number in range(50)])
    assert len(first) + sum(map(len, reading)) == 50
    assert store.count() == 0


# Passwords

SECRET = "s3cr@t0p/q7:w9"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:1/photos",
        "postgresql://me:s3cr%40t0p%2Fq7%3Aw9@127.0.0.1:1/photos",
        "postgresql://127.0.0.1:1/photos?user=me&password=s3cr%40t0p",
        f"postgresql://me:{SECRET}@[::1/photos",
        f"mysql://me:{SECRET}@host/photos",
    ],
)
def test_a_password_is_never_shown(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg", reason="psycopg, the client of PostgreSQL, is not installed")
    np.save(tmp_path / "vectors.npy", unit(3))
    monkeypatch.chdir(tmp_path)
    for command in (
        ["index", "vectors.npy", "--gallery", address, "--debug"],
        ["search", address, "vectors.npy"],
        ["index", "vectors.npy", f"--gallery={address}", "--unknown-flag", "1"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(command)
        assert stopped.value.code == 2
    with pytest.raises(UserError) as raised:
        Gallery(address)
    said = "".join(capfd.readouterr()) + str(raised.value)
    assert "me" in said
    assert not any(part in said for part in ("s3cr", "t0p", "q7", "w9"))


def test_an_address_is_found_again_by_what_is_shown_of_it(postgres: Any) -> None:
    address = postgres.address("hidden").replace("postgres@", "postgres:s3cret@")
    gallery = Gallery.from_vectors(address, unit(3), keys=["a", "b", "c"])
    assert "s3cret" not in gallery.uri + repr(gallery)
    assert with_password(gallery.uri) == address
    assert Gallery(without_password(address)).search(item="a", k=1)[0].path in ("b", "c")


def test_a_server_that_does_not_answer_is_said_not_to() -> None:
    pytest.importorskip("psycopg", reason="psycopg, the client of PostgreSQL, is not installed")
    with pytest.raises(UserError, match=r"no PostgreSQL answers at postgresql://127.0.0.1:1/x: .*[Rr]efused"):
        open_gallery("postgresql://127.0.0.1:1/x")
