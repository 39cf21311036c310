"""benchmarks/peers.py: the sides of a row do the same work, and what is stored and shown is what was measured."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import peers
from benchmarks.page import in_short, performance
from benchmarks.peer_work import WORK, measured
from benchmarks.peers import ROWS, Options, Row, Side, time_to_goal
from tammes.errors import UserError
from tammes.search import neighbours
from tammes.search.distance_tables import half_is_faster

pytestmark = pytest.mark.slow  # of scripts in benchmarks/, not of the package

SMALL: dict[str, Any] = {"items": 240, "dim": 8, "classes": 40, "queries": 10, "k": 3, "iterations": 3, "nmi": True}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("evaluation_tammes", "evaluation_pml"), ("R@1", "MAP@R")),
        (("kmeans_tammes", "kmeans_sklearn"), ("NMI", "iterations", "spread")),
        (("kmeans_tammes", "kmeans_faiss"), ("NMI", "spread")),  # faiss may make an iteration more, in which none moves
        (("neighbours_tammes", "neighbours_faiss", "neighbours_sklearn"), ("sum of the numbers found",)),
    ],
)
def test_the_sides_of_a_row_find_the_same(names: tuple[str, ...], said: tuple[str, ...]) -> None:
    found = [measured(name, SMALL) for name in names]
    for each in found:
        assert each["seconds"] > 0
        for name in said:
            assert each["said"][name] == pytest.approx(found[0]["said"][name], rel=1e-5)
        assert set(each["said"]) - set(said) <= {"iterations"}


@pytest.mark.parametrize("name", ["evaluation_tammes", "neighbours_tammes"])
def test_in_float32_only_the_same_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "half_is_faster", half_is_faster)  # put back afterwards
    as_it_is = measured(name, SMALL)["said"]
    assert measured(name, SMALL | {"single": True})["said"] == as_it_is
    assert not vars(neighbours)["half_is_faster"]()


def test_starts_leave_as_little_on_both_sides() -> None:
    given = SMALL | {"items": 2000}
    left = [measured(name, given)["said"]["left"] for name in ("starts_tammes", "starts_sklearn")]
    assert left[0] == pytest.approx(left[1], rel=0.1)


@pytest.mark.slow
def test_both_sides_find_the_same_vector(tmp_path: Path) -> None:
    row = ROWS["first-embedding"](Options(), tmp_path)
    found = [float(measured(side.work, side.given | {"warm": 0})["said"]["of its vector"]) for side in row.sides]
    assert len(found) == 3
    assert found == pytest.approx([found[0]] * 3, rel=1e-3)


def test_the_sides_of_the_image_pipeline_see_the_same_images(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / "abc"[number % 3]
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(256, size=(270, 300, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    names = ("pipeline_first_tammes", "pipeline_later_tammes", "pipeline_torchvision", "decoding", "copying")
    for workers in (0, 1):
        given = {"folder": str(tmp_path), "images": 6, "workers": workers}
        assert [measured(name, given)["said"] for name in names] == [{"images": 6}] * 5


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Two rows of which one has no data; of the other, ours is as quick as the limit and a peer is not installed."""

    def commands(_options: Options, _folder: Path) -> Row:
        given = {"python": sys.executable, "code": "pass", "repeat": 2}
        absent = Side("Peer", "program", {"python": sys.executable, "code": "import no_such_thing"})
        return Row(
            "nothing", "none", "By `pass`.", (Side("Tammes", "program", given), absent), Side("limit", "program", given)
        )

    def without_data(_options: Options, _folder: Path) -> Row:
        raise UserError("birds are not there.")

    monkeypatch.setattr(peers, "ROWS", {"import": commands, "head": without_data})
    return Options(turns=1, many=2, json=tmp_path / "peers.json")


@pytest.mark.slow
def test_a_row_is_measured_in_processes_of_its_own_and_stored(
    small: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers.main(small)
    stored = json.loads(small.json.read_text())
    assert list(stored["rows"]) == ["import"]
    row = stored["rows"]["import"]
    assert row["sides"][0]["ratio"] == 1
    assert row["limit"]["ratio"] == row["limit"]["seconds"] / row["sides"][0]["seconds"]
    assert row["limit"]["counted"] == 2, "it is short"
    assert row["limit"]["from_to"][0] <= row["limit"]["seconds"] <= row["limit"]["from_to"][1]
    assert row["sides"][1]["failed"] == "RuntimeError: ModuleNotFoundError: No module named 'no_such_thing'"
    assert 0 < row["sides"][0]["mb"] < 50, "an empty program, not what started it"
    assert row["machine"]["threads"] == 1
    assert "torch" in row["versions"]
    said = capsys.readouterr()
    assert "head: left out. birds are not there." in said.err
    assert "RuntimeError: ModuleNotFoundError" in said.out
    section = "\n".join(performance(stored))
    assert "## Nothing" in section
    assert "| Peer | RuntimeError: ModuleNotFoundError: No module named 'no_such_thing' |" in section

    monkeypatch.setattr(peers, "measured", lambda *_: pytest.fail("it is stored"))
    peers.main(small)


def test_a_row_that_is_not_known(small: Options) -> None:
    with pytest.raises(UserError, match="^unknown row 'imports'. Did you mean 'import'"):
        peers.main(Options(only=("imports",), json=small.json))


def test_every_row_names_work_that_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUB_200_2011", "omniglot"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TAMMES_DATA", str(tmp_path))
    for name, make in ROWS.items():
        if name not in ("load", "first-embedding"):  # they make a network
            row = make(Options(images=1), tmp_path)
            assert row.sides[0].name.startswith("Tammes")
            assert {side.work for side in (*row.sides, row.limit)} <= set(WORK)
    monkeypatch.delenv("TAMMES_DATA")
    with pytest.raises(UserError, match="^omniglot is not there: name the folder that holds it by TAMMES_DATA.$"):
        ROWS["omniglot"](Options(), tmp_path)


def turns(*recalls: list[float]) -> dict[str, Any]:
    return {"turns": [{"said": {"epoch_seconds": [1.0, 2.0, 4.0], "recalls": each}} for each in recalls]}


def test_the_goal_is_the_best_mean_of_the_first_side() -> None:
    sides = [turns([0.2, 0.6, 0.5], [0.4, 0.8, 0.5]), turns([0.1, 0.2, 0.9]), turns([0.1, 0.1, 0.2])]
    limit: dict[str, Any] = {"seconds": 1.5}
    assert time_to_goal(sides, limit)["goal"] == pytest.approx(0.7)
    assert limit == {"seconds": 1.0}, "two epochs of three, as the first side takes"
    assert [side["seconds"] for side in sides] == [3.0, 7.0, None]
    assert [side["in_all"] for side in sides] == [7.0] * 3


def side(name: str, seconds: float, ratio: float, mb: float, from_to: tuple[float, float]) -> dict[str, Any]:
    return {
        "name": name, "seconds": seconds, "ratio": ratio, "mb": mb, "counted": 3, "from_to": from_to, "said": None,
    }  # fmt: skip


def test_the_page_says_where_a_peer_is_faster() -> None:
    sides = [
        side("Tammes", 2.0, 1.0, 10.0, (1.9, 2.2)),
        side("Swift", 1.0, 0.5, 30.0, (0.9, 1.1)),
        side("Slow", 8.0, 4.0, 5.0, (8.0, 8.0)) | {"counted": 1, "said": {"R@1": 0.25}},
    ]
    limit = side("the product", 0.5, 0.25, 1.0, (0.4, 0.6))
    machine = {"processor": "Abacus", "threads": 1, "torch": "9", "commit": "0123456789"}
    row = {
        "title": "counting",
        "short": "count",
        "note": "",
        "sides": sides,
        "limit": limit,
        "machine": machine,
        "versions": {"torch": "9"},
    }
    text = "\n".join(performance({"rows": {"help": row}}))
    assert "Swift is 2.00 times as fast as Tammes." in text
    assert "| Slow | 8.00 |  | 4.00 | 5 | 1 | R@1 0.2500 |" in text
    assert "4.00 times the product" in text
    told = "| counting | 2.00 s | **0.50** (Swift) | 10 / 30 MB | 4.00 (the product) |"
    assert told in in_short({"rows": {"help": row}})
    assert told in text
    close = sides[1] | {"seconds": 1.9, "ratio": 0.95, "from_to": (1.8, 2.0)}
    level = row | {"sides": [sides[0], close]}
    told = "| counting | 2.00 s | within noise, **0.95** (Swift) | 10 / 30 MB |"
    assert told in "\n".join(in_short({"rows": {"help": level}}))
    assert "Swift is within noise of ours: its fastest turn" in "\n".join(performance({"rows": {"help": level}}))
    never = sides[1] | {"name": "Far", "seconds": None, "ratio": None, "best": 0.5}
    near = never | {"name": "Near", "best": 0.9}
    assert "| counting | 2.00 s | never there (Near) | 10 / 30 MB | 4.00 (the product) |" in in_short(
        {"rows": {"help": row | {"sides": [sides[0], never, near]}}}
    )
    assert in_short({"rows": {"googlenet-training": row}}) == ["Not measured yet.", ""]


def test_the_short_table_has_all_rows_that_have_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUB_200_2011", "omniglot"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TAMMES_DATA", str(tmp_path))
    stored: dict[str, Any] = {"rows": {}}
    for name, make in ROWS.items():
        row = make(Options(images=1), tmp_path)
        sides = [{"name": side.name, "seconds": 123.0, "ratio": 1.25, "mb": 9.0, "counted": 1} for side in row.sides]
        limit = {"name": row.limit.name, "seconds": 12.3, "ratio": 0.1}
        stored["rows"][name] = {"title": row.title, "short": row.short, "sides": sides, "limit": limit}
    told = in_short(stored)
    without = ("help", "googlenet-training", "googlenet-inference", "resnet18-training", "resnet18-inference")
    titles = [row["title"] for name, row in stored["rows"].items() if name not in without]
    assert [line.split(" | ")[0] for line in told if " | 123 s | " in line] == [f"| {title}" for title in titles]
    assert all("| 10.00 (" in line for line in told if " | 123 s | " in line), "each says how far the limit is"
