"""The page of a benchmark, from results as `tammes benchmark` writes them; read back as XML."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from tammes.benchmark.cells import DONE, FAILED, WAITING
from tammes.benchmark.page import benchmark_sections
from tammes.benchmark.plan import slug
from tammes.benchmark.published import published_table
from tammes.benchmark.tables import BEST, MEASURES, UNTRAINED, Figure, Row, as_json
from tammes.report.page import Section, page

NASTY = "<script>alert(1)</script>"


def measured(first: float, half: float | None = 0.5, seeds: int = 3) -> dict[str, Figure]:
    """R@1 as given, every other measure one more than the one before."""
    return {name: Figure(first + number, half, seeds) for number, name in enumerate(MEASURES)}


def trained(method: str, first: float, half: float | None = 0.5, **more: Any) -> Row:
    given: dict[str, Any] = {
        "layer": "penultimate",
        "epoch": "last",
        "seeds": 3,
        "minutes": 2.0,
        "minutes_per_epoch": 0.5,
    }
    return Row(method, measures=measured(first, half), **given | more)


def untrained(first: float = 40.0, half: float | None = 0.0) -> Row:
    return Row(UNTRAINED, "", "last", measures=measured(first, half), seeds=3)


def cell(method: str, seed: int = 0, state: str = DONE, preset: str = "default", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"preset": preset, "method": method, "seed": seed, "state": state}
    found["command"] = f"tammes train birds --seed {seed}"
    if state == DONE:
        found["layers"] = {"penultimate": {"recall_at_1": 0.5 + seed / 100}}
        found |= {"training_seconds": 120.0 + 60 * seed, "config": {"epochs": 4}}
        found["machine"] = {"processor": "a processor", "threads": 1, "torch": "2.15.0"}
    return found | more


def results(rows: list[Row] | Mapping[str, list[Row]], cells: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    tables = rows if isinstance(rows, Mapping) else {"default": rows}
    given = {"plan": "birds-plan", "title": "Birds", "data": "birds", "paper": None, "remarks": ["How it was done."]}
    content = given | {"tables": as_json(tables), "cells": cells} | more
    return dict(json.loads(json.dumps(content)))  # as it is read from the file


def made(content: Mapping[str, Any], folder: Path, complexity: Mapping[str, Any] | None = None) -> dict[str, Element]:
    """The sections by their anchors; that they can be parsed is part of every test."""
    sections = benchmark_sections(content, folder, folder / "report.html", complexity)
    assert all(isinstance(section, Section) for section in sections)
    assert len({section.anchor for section in sections}) == len(sections)
    return {section.anchor: ElementTree.fromstring(f"<div>{section.body}</div>") for section in sections}


def said(element: Element | None) -> str:
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def table(element: Element) -> list[dict[str, Element]]:
    """The first table: a row each, by the titles of its columns."""
    titles = [said(head) for head in element.findall(".//table[1]/thead/tr/th")]
    body = element.find(".//table/tbody")
    assert body is not None
    for row in body:
        assert len(row) == len(titles)
    return [dict(zip(titles, row, strict=True)) for row in body]


def charts(element: Element) -> dict[str, Element]:
    return {said(figure.find("p")): figure for figure in element.iter("figure")}


def names_in(figure: Element, size: str = "wide") -> list[str]:
    """The labels of a chart, from its top."""
    texts = figure.findall(f"div[@data-size='{size}']/svg/text[@class='name']")
    return [each.findtext("title") or "" for each in texts]


TWO = [trained("one-hot", 52.0), trained("K-means", 50.0, difference=Figure(-2.0, 0.25, 3)), untrained()]
CELLS = [cell("one-hot", 0), cell("one-hot", 1), cell("K-means", 0), cell("K-means", 1)]


# ---- what was compared


def test_the_page_says_what_was_compared_and_how_to_repeat_it(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    compared = made(results(TWO, CELLS), folder)["compared"]
    text = said(compared)
    assert "How it was done." in text
    assert "4 of 4 trainings are done." in text
    assert (
        "The highest R@1 is that of one-hot: 52.00 ± 0.50. Next is K-means with"
        " 50.00 ± 0.50; the intervals do not overlap. Before training it is 40.00 ± 0.00." in text
    )
    assert said(compared.find(".//pre/code")) == f"tammes benchmark birds-plan.toml --out '{folder}'"
    assert "--data FOLDER" in text


def test_the_command_names_no_folder_that_is_the_usual_one() -> None:
    content = results(TWO, CELLS, data="glyphs")
    sections = benchmark_sections(content, Path("runs/birds-plan"), Path("runs/birds-plan/report.html"))
    compared = ElementTree.fromstring(f"<div>{sections[0].body}</div>")
    assert said(compared.find(".//pre/code")) == "tammes benchmark birds-plan.toml"
    assert "--data" not in said(compared)


def test_what_is_not_done_is_counted(tmp_path: Path) -> None:
    cells = [
        cell("a"),
        cell("b", 0, FAILED, error="no room"),
        cell("c", 0, WAITING),
        cell("c", 1, "running"),
    ]
    assert "1 of 4 trainings is done; 1 failed; 2 did not run yet." in said(
        made(results([trained("a", 50.0)], cells), tmp_path)["compared"]
    )


@pytest.mark.parametrize(
    ("second", "half", "text"),
    [(51.5, 0.5, "the intervals overlap"), (50.0, None, "one seed says nothing of how sure this is")],
)
def test_how_sure_the_order_is(second: float, half: float | None, text: str, tmp_path: Path) -> None:
    rows = [trained("a", 52.0, half), trained("b", second, half)]
    assert f"; {text}." in said(made(results(rows, CELLS), tmp_path)["compared"])


def test_a_training_that_made_things_worse_is_said_to_have(tmp_path: Path) -> None:
    rows = [trained("a", 50.0), untrained(51.0)]
    assert "Before training it is 51.00 ± 0.00, which is more." in said(
        made(results(rows, CELLS), tmp_path)["compared"]
    )


def test_each_preset_has_its_own_finding_and_results(tmp_path: Path) -> None:
    content = results({"default": TWO, "of the paper": [trained("one-hot", 60.0)]}, CELLS)
    sections = made(content, tmp_path)
    assert list(sections) == ["compared", "results-default", "results-of-the-paper", "time", "runs"]
    assert "Preset of the paper: The highest R@1 is that of one-hot: 60.00 ± 0.50." in said(sections["compared"])
    assert "Seconds an epoch, preset of the paper" in charts(sections["time"])


# ---- the table


def test_the_table_has_every_figure_with_its_interval_and_sorts_by_numbers(tmp_path: Path) -> None:
    first, second, last = table(made(results(TWO, CELLS), tmp_path)["results-default"])
    assert said(first["method"]) == "one-hot"
    for number, title in enumerate(MEASURES.values()):
        assert said(first[title]) == f"{52 + number}.00 ± 0.50"
        assert float(first[title].get("data-sort", "nan")) == 52 + number
    assert said(second["R@1 to the first row"]) == "-2.00 ± 0.25"
    assert said(first["R@1 to the first row"]) == ""
    assert (said(first["minutes to train"]), said(first["seconds an epoch"])) == ("2.00", "30.00")
    assert said(last["method"]) == UNTRAINED
    assert "min distance" not in first  # no row has one


def test_numeric_columns_are_marked_for_sorting_and_the_table_scrolls_by_itself(tmp_path: Path) -> None:
    body = made(results(TWO, CELLS), tmp_path)["results-default"]
    found = body.find("div[@class='scroll']/table[@class='sortable']")
    assert found is not None
    kinds = {said(head): head.get("class") for head in found.findall("thead/tr/th")}
    assert kinds["method"] is None
    assert {kinds[title] for title in (*MEASURES.values(), "seeds", "minutes to train")} == {"number"}


def marks(rows: list[Row], tmp_path: Path, title: str = "R@1") -> list[str]:
    found = table(made(results(rows, CELLS), tmp_path)["results-default"])
    return [
        "clear"
        if row[title].find("strong") is not None
        else "highest"
        if row[title].find("span[@class='highest']") is not None
        else ""
        for row in found
    ]


def test_the_highest_is_bold_only_if_its_interval_meets_no_other(tmp_path: Path) -> None:
    assert marks([trained("a", 52.0), trained("b", 50.9), untrained()], tmp_path) == ["clear", "", ""]
    assert marks([trained("a", 52.0), trained("b", 51.1), untrained()], tmp_path) == ["highest", "", ""]
    assert marks([trained("a", 50.0), trained("b", 51.1), untrained(55.0)], tmp_path) == ["", "", "clear"]
    assert marks([trained("a", 52.0), trained("b", 52.0)], tmp_path) == ["highest", "highest"]
    assert marks([trained("a", 52.0, None), trained("b", 20.0, None)], tmp_path) == ["highest", ""]
    assert marks([trained("a", 52.0)], tmp_path) == [""]


def test_a_best_epoch_is_not_marked_and_the_page_says_so(tmp_path: Path) -> None:
    rows = [trained("a", 50.0), trained("a", 60.0, epoch=BEST), trained("b", 40.0)]
    assert marks(rows, tmp_path) == ["clear", "", ""]
    text = "Rows of the best epoch are not marked: their epoch was chosen."
    assert text in said(made(results(rows, CELLS), tmp_path)["results-default"])
    assert text not in said(made(results(TWO, CELLS), tmp_path)["results-default"])


def test_the_papers_figures_stand_beside_ours(tmp_path: Path) -> None:
    paper = {"R@1": 51.43, "min distance": 1.21, "minutes": 54, "complexity": "O(NC)"}
    distances = {"min": 1.25, "max": 1.5, "mean": 1.4, "std": 0.1}
    rows = [trained("one-hot", 52.0, paper=paper, distances=distances), trained("K-means", 50.0), untrained()]
    body = made(results(rows, CELLS), tmp_path)["results-default"]
    first, second, _ = table(body)
    assert said(first["R@1"]) == "52.00 ± 0.50◇ 51.43"
    assert said(first["min distance"]) == "1.250◇ 1.210"
    assert said(first["max distance"]) == "1.500"
    assert said(first["minutes to train"]) == "2.00◇ 54.00"
    assert said(first["the paper's complexity"]) == "O(NC)"
    assert "◇" not in said(second["R@1"])
    assert "◇ is the paper's figure of the same method." in said(body)
    assert "◇" not in said(made(results(TWO, CELLS), tmp_path)["results-default"])
    diamonds = charts(body)["R@1"].findall("div[@data-size='wide']/svg/path[@class='hollow s1']/title")
    assert [each.text for each in diamonds] == ["one-hot, the paper: 51.43"]


# ---- charts


def test_charts_have_every_row_the_highest_first_and_those_without_a_result_last(tmp_path: Path) -> None:
    waiting = Row("waiting", "penultimate", "last", remark="3 of 3 not run yet")
    rows = [waiting, trained("low", 30.0), trained("high", 60.0), untrained()]
    found = charts(made(results(rows, CELLS), tmp_path)["results-default"])
    assert list(found) == ["R@1", "MAP@R", "NMI"]
    for figure in found.values():
        assert names_in(figure) == ["high", UNTRAINED, "low", "waiting"]
        assert "no result" in [each.text for each in figure.iter("text")]
    whiskers = [each.text for each in found["R@1"].findall("div[@data-size='wide']/svg/circle/title")]
    assert whiskers == ["high: 60.00 (59.50 to 60.50)", f"{UNTRAINED}: 40.00", "low: 30.00 (29.50 to 30.50)"]


def test_names_have_their_layer_where_there_are_two(tmp_path: Path) -> None:
    rows = [trained("a", 50.0), trained("a", 45.0, layer="last"), untrained()]
    sections = made(results(rows, CELLS), tmp_path)
    assert names_in(charts(sections["results-default"])["R@1"]) == ["a, penultimate layer", "a, last layer", UNTRAINED]
    assert [said(row["method"]) for row in table(sections["results-default"])] == [
        "a, penultimate layer",
        "a, last layer",
        UNTRAINED,
    ]
    assert "Images are compared by" not in said(sections["results-default"])
    one = made(results(TWO, CELLS), tmp_path)["results-default"]
    assert "Images are compared by the penultimate layer." in said(one)
    points = charts(sections["time"])["R@1 over minutes to train, by the penultimate layer"]
    assert names_in(points) == ["a"]  # each method once


def test_accuracy_stands_against_time_with_the_papers_minutes(tmp_path: Path) -> None:
    theirs = published_table("cub").rows
    rows = [
        trained("ours", 52.0, minutes=0.5, paper=dict(theirs["Discriminative"])),
        trained("semi-hard triplets", 45.0, minutes=8.0, paper=dict(theirs["Semi-hard"])),
        trained("N-pair", 46.0, minutes=4.0, paper=dict(theirs["N-pair"])),  # of which the paper has no minutes
        untrained(),
    ]
    body = made(results(rows, CELLS, paper="cub"), tmp_path)["time"]
    figure = charts(body)["R@1 over minutes to train"]
    drawn = figure.find("div[@data-size='wide']/svg")
    assert drawn is not None
    ours = [each.findtext("title") for each in drawn.findall("circle")]
    assert ours == [
        "ours: minutes to train, logarithmic 0.5, R@1, % 52.00 (51.50 to 52.50)",
        "semi-hard triplets: minutes to train, logarithmic 8.00, R@1, % 45.00 (44.50 to 45.50)",
        "N-pair: minutes to train, logarithmic 4.00, R@1, % 46.00 (45.50 to 46.50)",
    ]
    assert [each.findtext("title") for each in drawn.findall("path[@class='point s1']")] == [
        "ours: minutes to train, logarithmic 54.00, R@1, % 51.43",
        "semi-hard triplets: minutes to train, logarithmic 660.0, R@1, % 42.59",
    ]
    caption = said(figure.find("figcaption"))
    assert "Before training it is 40.00 ± 0.00." in caption
    assert "The paper's minutes are those of its authors' machine" in caption
    first = table(made(results(rows, CELLS, paper="cub"), tmp_path)["results-default"])[0]
    assert said(first["minutes to train"]) == "0.5◇ 54.00"


def test_seconds_an_epoch_have_the_fastest_and_the_slowest_seed(tmp_path: Path) -> None:
    body = made(results(TWO, CELLS), tmp_path)["time"]
    figure = charts(body)["Seconds an epoch"]
    drawn = figure.findall("div[@data-size='wide']/svg/circle/title")
    # 120 and 180 seconds in 4 epochs; the mean is that of the row.
    assert [each.text for each in drawn] == ["one-hot: 30.00 (30.00 to 45.00)", "K-means: 30.00 (30.00 to 45.00)"]
    assert "fastest and slowest seed" in said(figure)
    assert "Measured on a processor, 1 thread, torch 2.15.0." in said(body)
    assert "order of magnitude" not in said(body)


def test_times_that_differ_much_are_said_to_be_rough(tmp_path: Path) -> None:
    cells = [cell("one-hot", 0, training_seconds=100.0), cell("one-hot", 1, training_seconds=310.0), cell("K-means")]
    assert "the slowest seed took 3.10 times as long as the fastest" in said(
        made(results(TWO, cells), tmp_path)["time"]
    )


# ---- complexity


def grown(method: str, **more: Any) -> dict[str, Any]:
    axis = {"at": 64, "sizes": [128, 256, 512], "seconds": [0.1, 0.2, 0.4], "exponent": 1.0, "left_out": []}
    row = {"method": method, "paper": "O(NC)", "expected_n": 1, "expected_c": [0, 1], "over_n": axis, "over_c": axis}
    return row | {"note": ""} | more


COMPLEXITY = {
    "machine": {"processor": "a processor", "threads": 2, "torch": "2.15.0"},
    "dim": 128,
    "batch": 32,
    "rows": [
        grown("Softmax"),
        grown("Later", over_n=None, over_c=None, note="not there yet", paper=None),
        grown("Discriminative", over_c={"at": 9, "sizes": [8], "seconds": [0.1], "exponent": None, "left_out": []}),
    ],
    "grid": {"exponent_n": 0.987, "exponent_c": 0.929},
}


def test_measured_complexity_stands_beside_the_papers(tmp_path: Path) -> None:
    body = made(results(TWO, CELLS), tmp_path, COMPLEXITY)["complexity"]
    softmax, later, ours = table(body)
    assert [said(softmax[title]) for title in ("the paper's count", "N, measured", "N, formula", "C, formula")] == [
        "O(NC)", "1.00 at C = 64", "1", "0 to 1",
    ]  # fmt: skip
    assert said(softmax["C, measured"]) == "1.00 at N = 64"
    assert said(later["N, measured"]) == "not measured"
    assert said(later["remark"]) == "not there yet"
    assert said(ours["C, measured"]) == "not measured"
    over_n, over_c = charts(body).values()
    assert [each.text for each in over_n.findall("div[@data-size='narrow']/svg/path[@class='line s0']/title")] == [
        "Discriminative"
    ]
    assert [each.text for each in over_c.findall("div[@data-size='narrow']/svg/path[@class='line s1']/title")] == [
        "Softmax"
    ]
    text = said(body)
    assert "over N and C together grows with N^0.99 C^0.93." in text
    assert "128 dimensions in batches of 32" in text
    assert "Measured on a processor, 2 threads, torch 2.15.0, by python -m benchmarks.complexity." in text


def test_without_a_grid_nothing_is_said_of_both_together(tmp_path: Path) -> None:
    body = made(results(TWO, CELLS), tmp_path, COMPLEXITY | {"grid": None})["complexity"]
    assert "together" not in said(body)
    assert "complexity" not in made(results(TWO, CELLS), tmp_path)


# ---- the search


def test_what_was_chosen_among_how_many(tmp_path: Path) -> None:
    rows = [trained("a", 50.0, chosen="lr 0.1, push 0.5 of 8"), Row("b", "penultimate", "last"), untrained()]
    first, second = table(made(results(rows, CELLS), tmp_path)["search"])
    assert {title: said(shown) for title, shown in first.items()} == {
        "method": "a",
        "chosen": "lr 0.1, push 0.5",
        "among combinations": "8",
    }
    assert said(second["chosen"]) == "not chosen yet"
    assert "search" not in made(results(TWO, CELLS), tmp_path)


def test_what_each_preset_chose(tmp_path: Path) -> None:
    both = {"one": [trained("a", 50.0, chosen="lr 0.1 of 4")], "two": [trained("a", 50.0, chosen="lr 0.2 of 4")]}
    found = table(made(results(both, CELLS), tmp_path)["search"])
    assert [(said(row["preset"]), said(row["chosen"])) for row in found] == [("one", "lr 0.1"), ("two", "lr 0.2")]


# ---- every training


def test_every_training_has_its_figures_its_command_and_its_state(tmp_path: Path) -> None:
    cells = [cell("a", 1), cell("b", 0, FAILED, error="out of memory\nat once"), cell("c", 0, WAITING)]
    body = made(results([trained("a", 51.0)], cells), tmp_path)["runs"]
    done, failed, waiting = table(body)
    assert [said(done[title]) for title in ("method", "seed", "R@1", "minutes", "state")] == [
        "a",
        "1",
        "51.00",
        "3.00",
        "done",
    ]
    assert said(failed["state"]) == "failed: out of memory at once"
    assert "failed" in failed["state"].get("class", "")
    assert said(waiting["state"]) == "waiting"
    assert said(waiting["R@1"]) == ""
    assert said(done["command"].find("details/code")) == "tammes train birds --seed 1"


def test_two_layers_have_a_column_each(tmp_path: Path) -> None:
    layers = {"penultimate": {"recall_at_1": 0.5}, "last": {"recall_at_1": 0.25}}
    (found,) = table(made(results(TWO, [cell("a", layers=layers)]), tmp_path)["runs"])
    assert (said(found["R@1, penultimate layer"]), said(found["R@1, last layer"])) == ("50.00", "25.00")


def test_links_lead_to_the_report_of_a_run_or_to_its_folder_from_wherever_the_page_is(tmp_path: Path) -> None:
    folder = tmp_path / "my runs #1"
    with_report, without = (folder / "default" / slug(name) / "seed-0" for name in ("one-hot: 50 %", "K-means"))
    for run in (with_report, without):
        run.mkdir(parents=True)
    (with_report / "report.html").write_text("")
    out = tmp_path / "pages" / "page.html"
    content = results(TWO, [cell("one-hot: 50 %"), cell("K-means"), cell("not there")])
    sections = benchmark_sections(content, folder, out)
    found = ElementTree.fromstring(f"<div>{sections[-1].body}</div>").findall(".//a")
    assert [said(link) for link in found] == ["report", "folder"]
    for link, wanted in zip(found, (with_report / "report.html", without), strict=True):
        address = link.get("href", "")
        assert address.startswith("../my%20runs%20%231/")
        assert os.path.normpath(out.parent / unquote(address)) == str(wanted)


def test_more_than_twenty_trainings_are_folded_away(tmp_path: Path) -> None:
    def folded(number: int) -> bool:
        body = made(results(TWO, [cell("a", seed) for seed in range(number)]), tmp_path)["runs"]
        return body.find("details/summary") is not None

    assert not folded(20)
    assert folded(21)
    body = made(results(TWO, [cell("a", seed) for seed in range(21)]), tmp_path)["runs"]
    assert said(body.find("details/summary")) == "21 trainings"


# ---- results of all kinds


def test_a_benchmark_without_any_result_says_so(tmp_path: Path) -> None:
    rows = [Row("a", "penultimate", "last", remark="1 of 1 not run yet"), Row(UNTRAINED, "", "last")]
    sections = made(results(rows, [cell("a", 0, WAITING)]), tmp_path)
    assert list(sections) == ["compared", "results-default", "runs"]
    assert "No training has a result yet." in said(sections["results-default"])
    found = table(sections["results-default"])
    assert [said(row["remark"]) for row in found] == ["1 of 1 not run yet", "no result yet"]
    assert charts(sections["results-default"]) == {}
    assert "highest" not in said(sections["compared"])


def test_a_table_of_the_untrained_row_alone(tmp_path: Path) -> None:
    sections = made(results([untrained()], []), tmp_path)
    assert names_in(charts(sections["results-default"])["R@1"]) == [UNTRAINED]
    assert "0 of 0 trainings are done." in said(sections["compared"])


def test_one_seed_has_no_intervals(tmp_path: Path) -> None:
    rows = [trained("a", 50.0, None, difference=Figure(1.5, None, 1)), untrained(40.0, None)]
    body = made(results(rows, [cell("a")]), tmp_path)["results-default"]
    assert said(table(body)[0]["R@1"]) == "50.00"
    assert said(table(body)[0]["R@1 to the first row"]) == "+1.50"
    assert body.find(".//path[@class='whisker s0']") is None


def test_whatever_is_in_a_name_is_only_text(tmp_path: Path) -> None:
    rows = [trained(NASTY, 50.0, chosen=f"{NASTY} of 2", remark=NASTY, paper={NASTY: NASTY, "R@1": 50.0}), untrained()]
    cells = [cell(NASTY, preset=NASTY, command=NASTY), cell(NASTY, 1, FAILED, preset=NASTY, error=NASTY)]
    content = results({NASTY: rows, "b": rows}, cells, remarks=[NASTY], data=NASTY, plan=NASTY, title=NASTY)
    stored = COMPLEXITY | {"rows": [grown(NASTY, note=NASTY, paper=NASTY)], "machine": {"processor": NASTY}}
    sections = made(content, tmp_path, stored)
    for body in sections.values():
        assert body.find(".//script") is None
        assert NASTY in "".join(body.itertext())
    whole = page(NASTY, "", benchmark_sections(content, tmp_path, tmp_path / "report.html", stored))
    assert "alert(1)</script>" not in whole
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in whole
