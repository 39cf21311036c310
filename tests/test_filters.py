"""Conditions on columns: how they are read, and columns of a table on their way into a gallery and back."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tammes.cli import main
from tammes.errors import UserError
from tammes.gallery import store as store_module
from tammes.gallery.filters import And, In, Not, Or, Order, fits, kinds_in, parsed
from tammes.gallery.gallery import Gallery
from tammes.gallery.lance_columns import facts, fields_of
from tammes.models.embedder import Embedder, EmbedderConfig


@pytest.mark.parametrize(("text", "tree"), [
    ("a = 'x'", In("a", ("x",))),
    ("a = 'it''s'", In("a", ("it's",))),
    ('"list price" >= -1.5e3', Order("list price", ">=", -1500.0)),
    ('"a ""b""" <> 5', Not(In('a "b"', (5.0,)))),
    ("a != ''", Not(In("a", ("",)))),
    ("a IN ('x', 2, 'y')", In("a", ("x", 2.0, "y"))),
    ("a not in (1)", Not(In("a", (1.0,)))),
    ("a=1 and b<2 or c>3", Or((And((In("a", (1.0,)), Order("b", "<", 2.0))), Order("c", ">", 3.0)))),
    ("a=1 AND (b<2 or not c>3)", And((In("a", (1.0,)), Or((Order("b", "<", 2.0), Not(Order("c", ">", 3.0))))))),
    ("größe <= .5", Order("größe", "<=", 0.5)),
    ("a = '; DROP TABLE x; --'", In("a", ("; DROP TABLE x; --",))),
])  # fmt: skip
def test_a_condition_is_a_tree(text: str, tree: object) -> None:
    assert parsed(text) == tree


@pytest.mark.parametrize(("text", "wrong"), [
    ("", "expects the name of a column, got its end"),
    ("colour", "expects =, !=, <, <=, >, >= or `in`, got its end"),
    ("list price = 1", "(a name of several words stands in double quotes), got 'price = 1' at character 6"),
    ("colour = red", "expects a number, or a text in single quotes, got 'red' at character 10"),
    ("colour = 'red", "expects a closing quote, got \"'red\" at character 10"),
    ("colour = 'it's'", "expects `and`, `or` or the end, got \"s'\" at character 14"),
    ("colour < 'red'", "expects a number after <, as texts are compared by =, != and `in` only, got"),
    ("a = 1 b = 2", "expects `and`, `or` or the end, got 'b = 2' at character 7"),
    ("(a = 1", "expects a closing bracket, got its end"),
    ("a in 1", "expects an opening bracket, got '1' at character 6"),
    ("a in (1 2)", "expects a comma or a closing bracket, got '2)' at character 9"),
    ("a in ()", "expects a number, or a text in single quotes, got ')'"),
    ("1 = a", "expects the name of a column, got '1 = a'"),
    ("a = 1; drop", "expects a name, a sign, a number or a text in single quotes, got '; drop' at character 6"),
    ("a = 1e999", "expects a finite number"),
    ("a not = 1", "expects `in`, got '= 1'"),
    ("a = 007x", "expects a name, a sign, a number"),
    ("not " * 60 + "a = 1", "has more than 50 conditions inside each other"),
    ("a = '" + "x" * 10_000 + "'", "has 10,006 characters; 10,000 are allowed"),
])  # fmt: skip
def test_what_is_wrong_with_a_condition_is_said(text: str, wrong: str) -> None:
    with pytest.raises(UserError) as raised:
        parsed(text)
    assert wrong in str(raised.value)


@given(st.text(st.sampled_from("ab1.'\"()=<>!, notrd"), max_size=40))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        tree = parsed(text)
    except UserError:
        return
    assert kinds_in(tree)
    assert fits(tree, {}) in (True, False)


@given(st.dictionaries(st.text(min_size=1), st.text() | st.floats(allow_nan=False, allow_infinity=False)))
def test_columns_come_back_from_the_text_that_lance_keeps(fields: dict[str, str | float]) -> None:
    assert fields_of(facts(fields), "g") == fields


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of plain images in two colours and five prices; and scenes in which they are the left half."""
    folder, rng = tmp_path_factory.mktemp("shop"), np.random.default_rng(0)
    with (folder / "shop.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["path", "label", "colour", "price", "code", "split"])
        for number in range(10):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
            scene = np.concatenate([pixels, rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)], axis=1)
            Image.fromarray(scene).save(folder / f"scene{number}.png")
            colour = "red" if number % 2 else "it's blue"
            lines.writerow([f"{number}.png", f"class {number % 3}", colour, number * 5 or "", f"00{number}", "test"])
    return folder


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder(EmbedderConfig("conv4", 8)).eval()


@pytest.fixture
def gallery(shop: Path, embedder: Embedder, tmp_path: Path) -> Gallery:
    pytest.importorskip("lancedb", reason="LanceDB is not installed")
    gallery = Gallery(tmp_path / "gallery", embedder)
    assert gallery.add(shop / "shop.csv")["added"] == 10
    return gallery


def test_columns_of_a_table_can_be_asked_for(gallery: Gallery, shop: Path) -> None:
    def found(where: str) -> list[int]:
        hits = gallery.search(shop / "3.png", k=20, where=where)
        return sorted(int(Path(hit.path).stem) for hit in hits)

    assert gallery.store.get([str(shop / "4.png")])[0].fields == {"colour": "it's blue", "price": 20.0, "code": "004"}
    assert "price" not in gallery.store.get([str(shop / "0.png")])[0].fields
    assert found("colour = 'red' and price < 20") == [1, 3]
    assert found("colour = 'it''s blue'") == [0, 2, 4, 6, 8]
    assert found("code in ('001', '002') or price >= 45") == [1, 2, 9]
    assert found("not price < 1000") == [0]
    assert found("label = 'class 1' and width = 16") == [1, 4, 7]
    assert found("price = 20 and colour = 'red'") == []


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("color = 'red'", "unknown column 'color'. Did you mean 'colour'?"),
        ("color != 'red'", "unknown column 'color'. Did you mean 'colour'?"),  # every item would fit
        ("price < 20 or color = 'red'", "unknown column 'color'. Did you mean 'colour'?"),
        ("price = '20'", "'price' with a text, and it has numbers"),
        ("price in (20, '20')", "'price' with a text, and it has numbers"),
        ("colour != 5", "'colour' with a number, and it has texts"),
        ("code < 5", "'code' with a number, and it has texts"),
        ("label >= 1", "'label' with a number, and it has texts"),
        ("not width = 'wide'", "'width' with a text, and it has numbers"),
    ],
)
def test_a_column_that_is_not_there_or_of_another_kind_is_refused(
    gallery: Gallery, shop: Path, where: str, said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        gallery.search(shop / "3.png", where=where)


def test_a_column_that_only_the_last_items_have_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lancedb", reason="LanceDB is not installed")
    monkeypatch.setattr(store_module, "_FIRST", 1)
    vectors = np.eye(4, dtype=np.float32)
    gallery = Gallery.from_vectors(str(tmp_path / "gallery"), vectors, keys="abcd")
    rows = [replace(row, fields={"size": 3.0} if row.path == "d" else {}) for row in gallery.store.get(list("abcd"))]
    gallery.store.upsert(rows)
    assert [hit.path for hit in gallery.search(vectors[0], where="size = 3")] == ["d"]
    with pytest.raises(UserError, match="'size' with a text"):
        gallery.search(vectors[0], where="size = 'large'")


def test_a_table_that_changed_is_brought_up_to_date_without_embedding(gallery: Gallery, shop: Path) -> None:
    assert gallery.add(shop / "shop.csv")["same"] == 10
    text = (shop / "shop.csv").read_text()
    try:
        (shop / "shop.csv").write_text(text.replace("3.png,class 0,red,15", "3.png,class 0,green,99"))
        done = gallery.add(shop / "shop.csv")
    finally:
        (shop / "shop.csv").write_text(text)
    assert (done["added"], done["changed"], done["images_per_second"]) == (0, 0, None)
    assert gallery.store.get([str(shop / "3.png")])[0].fields == {"colour": "green", "price": 99.0, "code": "003"}


def scenes(shop: Path, kind: str) -> Path:
    """A table of the left halves of the scenes."""
    boxes = [(0, 0, 16, 16)] * 10
    if kind == "coco":
        images = [{"id": n, "file_name": f"scene{n}.png", "width": 32, "height": 16} for n in range(10)]
        annotations = [{"id": n, "image_id": n, "category_id": n % 3, "bbox": boxes[n]} for n in range(10)]
        categories = [{"id": n, "name": f"class {n}"} for n in range(3)]
        file = shop / "scenes.json"
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
        return file
    names = "x,y,width,height" if kind == "by size" else "x_1,y_1,x_2,y_2"
    lines = [f"scene{n}.png,class {n % 3},{','.join(map(str, boxes[n]))}" for n in range(10)]
    file = shop / "scenes.csv"
    file.write_text("\n".join([f"path,label,{names}", *lines]))
    return file


@pytest.mark.parametrize("kind", ["coco", "by size", "by corners"])
def test_what_is_in_a_box_is_the_image(shop: Path, embedder: Embedder, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("lancedb", reason="LanceDB is not installed")
    from tammes.data import open_dataset

    table = scenes(shop, kind)
    assert open_dataset(str(table)).read(4).size == (16, 16)
    gallery = Gallery(tmp_path / "gallery", embedder)
    gallery.add(table)
    for number in (0, 7):
        hit = gallery.search(shop / f"{number}.png", k=1)[0]
        assert hit.path == f"{shop / f'scene{number}.png'} 0,0,16,16"
        assert hit.distance < 1e-3
        assert hit.label == f"class {number % 3}"


def test_a_query_is_what_is_in_its_box(gallery: Gallery, shop: Path) -> None:
    from tammes.gallery.queries import query_box, query_images

    (image,) = query_images([str(shop / "scene5.png")], query_box("0,0,16,16"))
    assert gallery.search(image, k=1)[0].path == str(shop / "5.png")
    with pytest.raises(UserError, match="cannot cut .* is 32 x 16 pixels, its box ends at 40, 16"):
        query_images([str(shop / "scene5.png")], query_box("24,0,16,16"))
    for wrong in ("1,2,3", "a,b,c,d", "0,0,0,5", "-1,0,5,5", "1e999,0,1,1"):
        with pytest.raises(UserError, match="`box` must be x,y,width,height"):
            query_box(wrong)


def test_filters_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lancedb", reason="LanceDB is not installed")
    vectors = np.eye(4, dtype=np.float32)
    Gallery.from_vectors(str(tmp_path / "gallery"), vectors, keys="abcd", labels=["x", "x", "y", "y"])
    np.save(tmp_path / "queries.npy", vectors[:1])
    asked = ["search", str(tmp_path / "gallery"), str(tmp_path / "queries.npy"), "--json"]
    capsys.readouterr()
    main([*asked, "--where", "label = 'y' or path = 'b'"])
    found = json.loads(capsys.readouterr().out)["queries"][0]["found"]
    assert sorted(each["path"] for each in found) == ["b", "c", "d"]
    main([*asked[:-1], "--where", "path = 'z'"])
    assert capsys.readouterr().out == f"{asked[2]}, 0: no item of the gallery fits.\n"
    for where, said in (("label = y", "--where expects a number, or a text"), ("prize < 3", "unknown column 'prize'")):
        with pytest.raises(SystemExit):
            main([*asked, "--where", where])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda coco: coco.pop("images"), "images is missing"),
        (lambda coco: coco["annotations"][0].update(bbox=[1, 2]), "annotations"),
        (lambda coco: coco["annotations"][1].update(image_id=99), "annotation 2: there is no such image or category"),
        (lambda coco: coco["annotations"][1].update(bbox=[5, 5, 0, 0]), "annotation 2: the box 5, 5, 0, 0 is empty"),
    ],
)
def test_what_is_wrong_with_a_coco_file_is_said(
    shop: Path, tmp_path: Path, change: Callable[[Any], object], said: str
) -> None:
    from tammes.data.table import table_lines

    coco = json.loads(scenes(shop, "coco").read_text())
    change(coco)
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    with pytest.raises(UserError, match=said):
        table_lines(tmp_path / "coco.json")
