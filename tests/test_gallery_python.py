"""Galleries from Python: images by any embedder, vectors of any model, and the same gallery on the command line."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from torch import nn

import tammes
from tammes import Gallery, UserError
from tammes.cli import main
from tammes.gallery import About, open_gallery
from tammes.gallery.classification import SearchResult
from tammes.gallery.model import model_digest, model_of
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.models.origin import Network, file_digest
from tammes.serve.gallery import GalleryWatcher
from tammes.serve.state import ServerState
from tammes.training.run_folder import RunFolder
from tests.commands import answer, refused, striped_set
from tests.serve.conftest import inside
from tests.test_gallery import SMALL

pytest.importorskip("lancedb")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return striped_set(tmp_path_factory.mktemp("photos"), classes=6, images=6, size=32)


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tammes.Run:
    folder = tmp_path_factory.mktemp("runs") / "stripes"
    main(["train", str(photos), "--out", str(folder), *SMALL, "--epochs", "1"])
    return tammes.load_run(folder)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of conv4 in a file, as a network that somebody has published."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "conv4.safetensors"
    network = Embedder(EmbedderConfig("conv4")).backbone
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, file)
    return file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "gallery"


def clusters(classes: int = 6, each: int = 10, dim: int = 16, seed: int = 0) -> tuple[ndarray, ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return rng.normal(size=(classes, dim))[labels] + 0.3 * rng.normal(size=(len(labels), dim)), labels


def same_answers(one: SearchResult, other: Any) -> bool:
    return [hit.path for hit in one] == [hit.path for hit in other]


def test_a_folder_is_added_searched_and_classified(run: tammes.Run, photos: Path, place: Path) -> None:
    gallery = Gallery(place, run.embedder)
    assert len(gallery) == 0
    done = gallery.add(photos)
    assert (done["added"], done["images"], len(gallery)) == (36, 36, 36)
    file = photos / "class 2" / "3.png"
    found = gallery.search(file, k=4)
    assert found[0].path == str(file)
    assert found[0].distance == pytest.approx(0, abs=1e-3)
    assert len(found) == 4
    assert "class 2" in repr(found)
    vector = run.embedder.encode(file)
    assert same_answers(found, gallery.search(vector[0], k=4))
    assert same_answers(found, gallery.search(torch.from_numpy(vector), k=4)[0])
    assert same_answers(found, gallery.search([Image.open(file)], k=4)[0])
    assert [hit.path for hit in gallery.search(item=str(file), k=3)] == [hit.path for hit in found][1:]
    assert {hit.label for hit in gallery.search(str(file), k=3, label="class 1")} == {"class 1"}
    judged = gallery.classify([file, photos / "class 0" / "0.png"])
    assert [each.nearest != str(file) for each in judged] == [True, True]  # an image does not vote for itself
    assert gallery.classify(file).distance == pytest.approx(judged[0].distance, abs=1e-4)
    assert gallery.add(photos)["same"] == 36


def test_files_are_added_with_their_classes_and_the_table_lists_them(
    run: tammes.Run, photos: Path, place: Path, tmp_path: Path
) -> None:
    gallery = Gallery(place, run)
    files = [photos / "class 0" / "0.png", str(photos / "class 1" / "1.png")]
    assert gallery.add(files, labels=["zero", None])["added"] == 2
    table = gallery.to_pandas(vectors=True)
    assert table.columns.tolist() == ["path", "label", "width", "height", "vector"]
    assert table["label"].tolist() == ["zero", ""]
    assert table["width"].tolist() == [32, 32]
    np.testing.assert_allclose(table["vector"][0], run.embedder.encode(files[0])[0], atol=1e-5)
    (tmp_path / "no image.png").write_bytes(b"no image")
    done = gallery.add([tmp_path / "no image.png", files[0]], labels=["", "zero"])
    assert (done["same"], len(done["broken"]), len(gallery)) == (1, 1, 2)
    assert gallery.add([files[0]], labels=["another"])["relabelled"] == 1
    assert gallery.to_pandas()["label"][0] == "another"


def test_duplicates_are_found(run: tammes.Run, photos: Path, place: Path, tmp_path: Path) -> None:
    image = Image.open(photos / "class 0" / "0.png")
    for name in ("one", "other"):
        image.save(tmp_path / f"{name}.png")
    gallery = Gallery(place, run.folder)
    gallery.add([tmp_path / "one.png", tmp_path / "other.png", photos / "class 3" / "0.png"])
    (group,) = gallery.duplicates(threshold=0.01)
    assert [Path(path).name for path in group.paths] == ["one.png", "other.png"]
    assert group.identical


@pytest.mark.parametrize("how", ["run", "folder", "text", "load", "embedder"])
def test_all_that_may_stand_for_the_model_of_a_run_open_the_same_gallery(
    how: str, run: tammes.Run, photos: Path, place: Path
) -> None:
    main(["index", str(run.folder), str(photos), "--gallery", str(place)])
    given: Any = {
        "run": run,
        "folder": run.folder,
        "text": str(run.folder),
        "load": tammes.load(run.folder),
        "embedder": run.embedder,
    }[how]
    gallery = Gallery(place, given)
    about = gallery.store.about
    assert (about.kind, about.run, about.model) == ("run", str(run.folder), model_digest(RunFolder(run.folder)))
    assert gallery.trained_on
    assert gallery.search(photos / "class 0" / "0.png", k=1)[0].label == "class 0"


def test_without_an_embedder_the_gallery_says_what_made_it(run: tammes.Run, photos: Path, place: Path) -> None:
    made = Gallery(place, run)
    made.add(photos)
    file = photos / "class 4" / "0.png"
    assert same_answers(Gallery(place).search(file), made.search(file))


def test_a_pretrained_network_is_rebuilt_by_the_record(
    weights: Path, photos: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery = Gallery(place, tammes.pretrained("conv4", weights=weights))
    gallery.add(photos)
    about = open_gallery(str(place)).about
    assert (about.kind, about.run) == ("pretrained", "")
    assert about.network == Network("conv4", str(weights), file_digest(weights), 28, "published", None)
    file = str(photos / "class 1" / "2.png")
    found = [hit.path for hit in gallery.search(file, k=5)]
    assert [hit.path for hit in Gallery(place).search(file, k=5)] == found
    typed = answer(capsys, "search", str(place), file, "-k", "5")
    assert [each["path"] for each in typed["queries"][0]["found"]] == found

    moved = weights.rename(tmp_path / "moved.safetensors")
    try:
        said = refused(capsys, "search", str(place), file)
        assert str(weights) in said
        assert "--model FILE" in said
        typed = answer(capsys, "search", str(place), file, "-k", "5", "--model", str(moved))
        assert [each["path"] for each in typed["queries"][0]["found"]] == found
        other = tmp_path / "other.safetensors"
        other.write_bytes(moved.read_bytes() + b" ")
        assert "SHA-256" in refused(capsys, "search", str(place), file, "--model", str(other))
    finally:
        moved.rename(weights)
    torch.manual_seed(5)
    with pytest.raises(UserError, match="another model"):
        Gallery(place, tammes.pretrained("conv4", weights="none"))


def test_a_module_is_recorded_and_the_command_line_says_what_is_missing(
    photos: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    own = Embedder(EmbedderConfig("conv4", dim=8)).eval()
    gallery = Gallery(place, own)
    gallery.add(photos)
    assert open_gallery(str(place)).about.kind == "module"
    file = str(photos / "class 1" / "2.png")
    assert "tammes.Gallery(path, embedder)" in refused(capsys, "search", str(place), file)
    assert answer(capsys, "search", str(place), "--item", file, "-k", "2")["queries"][0]["query"] == file
    assert gallery.search(file, k=2)[0].path == file
    with pytest.raises(UserError, match="another model"):
        Gallery(place, Embedder(EmbedderConfig("conv4", dim=8)))


def test_a_run_with_a_module_of_the_callers_own(
    photos: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU())
    wants: dict[str, Any] = {"size": 24, "mean": 0.5, "std": 0.25}
    small = wants | {"dim": 8, "batch_size": 16, "epochs": 1, "test_classes": 3}
    run = tammes.train(photos, backbone=module, out=tmp_path / "own", **small)
    Gallery(place, run).add(photos)
    about = open_gallery(str(place)).about
    assert (about.kind, about.run) == ("run", str(tmp_path / "own"))
    file = photos / "class 1" / "2.png"
    again = tammes.load(tmp_path / "own", backbone=module)
    assert Gallery(place, again).search(file, k=1)[0].path == str(file)
    assert "backbone=module" in refused(capsys, "search", str(place), str(file))
    assert answer(capsys, "search", str(place), "--item", str(file))["queries"][0]["found"]
    with inside(ServerState(GalleryWatcher(str(place), None, "cpu"))) as here:
        assert here.get("/api/count").json()["items"] == 36
        assert "module" in here.post("/api/search", content=file.read_bytes()).json()["message"]
    own = Gallery(tmp_path / "pretrained", tammes.pretrained(module, **wants))
    own.add([file])
    assert own.store.about.kind == "module"
    assert own.search(file)[0].path == str(file)


def test_an_embedder_that_was_changed_after_loading_is_not_taken_for_its_run(
    run: tammes.Run, photos: Path, place: Path
) -> None:
    Gallery(place, run).add(photos)
    changed = load(run.folder)
    with torch.no_grad():
        changed.embedding_layers()[0].weight.mul_(-1)
    for other in (changed, load(run.folder, embedding="last")):
        with pytest.raises(UserError, match="another model"):
            Gallery(place, other)


def test_vectors_make_a_gallery_without_a_network(place: Path) -> None:
    vectors, labels = clusters()
    gallery = Gallery.from_vectors(place, vectors, keys=[f"item {n}" for n in range(60)], labels=labels)
    assert (len(gallery), gallery.store.about.kind) == (60, "vectors")
    found = gallery.search(7 * vectors[12], k=3)  # compared by their cosine
    assert (found[0].path, found[0].label) == ("item 12", "1")
    assert found[0].distance == pytest.approx(0, abs=1e-6)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = np.argsort(np.linalg.norm(unit - unit[12], axis=1))[:3]
    assert [hit.path for hit in found] == [f"item {n}" for n in nearest]
    assert gallery.classify(vectors[:20]) == [gallery.classify(each) for each in vectors[:20]]
    assert gallery.classify(vectors[25]).best_guess == "2"
    assert gallery.duplicates() == []
    assert gallery.add(vectors[:2] * 2, keys=["item 0", "new"], labels=["0", "0"])["added"] == 1
    assert len(gallery) == 61


def test_an_embedder_may_be_given_to_vectors_that_it_made(run: tammes.Run, photos: Path, place: Path) -> None:
    files = sorted(photos.rglob("*.png"))
    labels = [file.parent.name for file in files]
    Gallery.from_vectors(place, run.embedder.encode(files), keys=list(map(str, files)), labels=labels)
    gallery = Gallery(place, run)
    assert gallery.search(files[3], k=1)[0].path == str(files[3])
    assert gallery.add([files[3]], labels=["again"])["changed"] == 1
    torch.manual_seed(0)
    with pytest.raises(UserError, match="16 numbers"):
        Gallery(place, Embedder(EmbedderConfig("conv4", dim=8)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keys": ["a"] * 60}, "'a' is there 60 times"),
        ({"keys": ["a"]}, "keys must have one for each of 60 vectors, got 1"),
        ({"labels": ["a"]}, "labels must have one for each of 60 vectors, got 1"),
        ({"keys": ["", *map(str, range(59))]}, "the key of vector 0 is empty"),
        ({"vectors": np.zeros((2, 3))}, "'0' is zero or not finite"),
        ({"vectors": np.full((2, 3), np.nan)}, "'0' is zero or not finite"),
        ({"vectors": np.ones(3)}, r"in the shape \(3,\)"),
        ({"vectors": [[1.0], [1.0, 2.0]]}, "vectors must all have the same number"),
        ({"vectors": np.array(["a"])}, "vectors must be numbers"),
    ],
)
def test_vectors_that_cannot_be_stored(given: dict[str, Any], said: str, place: Path) -> None:
    vectors, labels = clusters()
    with pytest.raises(UserError, match=said):
        Gallery.from_vectors(
            place, **({"vectors": vectors, "labels": labels if "vectors" not in given else None} | given)
        )


def test_what_python_refuses(run: tammes.Run, photos: Path, place: Path, tmp_path: Path) -> None:
    vectors, labels = clusters()
    gallery = Gallery.from_vectors(place, vectors, labels=labels)
    file = photos / "class 0" / "0.png"
    for call, said in (
        (lambda: gallery.search(file), "made of vectors"),
        (lambda: gallery.search(vectors[0], k=0), "k must be at least 1, got 0"),
        (lambda: gallery.search(vectors[0], label="7"), "unknown label '7'"),
        (lambda: gallery.search(vectors[:, :3]), "vectors of 16 numbers"),
        (lambda: gallery.search(item="none"), "has no 'none'"),
        (lambda: gallery.search(), "a query or an item"),
        (lambda: gallery.search(photos / "none.png"), "none.png"),
        (lambda: gallery.search(photos), "is a folder"),
        (lambda: gallery.add(vectors), "keys are needed"),
        (lambda: gallery.add([file], keys=["a"]), "keys are for vectors"),
        (lambda: gallery.add([Image.new("L", (9, 9))]), "needs a path"),
        (lambda: gallery.duplicates(-1), "threshold must be"),
        (lambda: Gallery.from_vectors(place, vectors), "overwrite=True"),
        (lambda: Gallery(tmp_path / "none"), "there is no gallery"),
        (lambda: Gallery(tmp_path / "none", run, create=False), "there is no gallery"),
        (lambda: Gallery(tmp_path / "none", photos), "no run in"),
        (lambda: model_of(torch.nn.Linear(2, 2)), "Gallery.from_vectors"),
        (lambda: Gallery(tmp_path / "new", run).add(photos, labels=["a"]), "labels are for files and vectors"),
    ):
        with pytest.raises(UserError, match=said):
            call()
    assert not (tmp_path / "none").exists()
    assert len(Gallery.from_vectors(place, vectors[:5], overwrite=True)) == 5


def test_a_gallery_in_qdrant_is_the_same() -> None:
    pytest.importorskip("qdrant_client")
    vectors, labels = clusters()
    gallery = Gallery.from_vectors("qdrant://:memory:/python", vectors, labels=labels)
    assert gallery.search(vectors[3], k=1)[0].path == "3"
    assert gallery.store.about.kind == "vectors"
    assert len(Gallery.from_vectors("qdrant://:memory:/python", vectors[:9], overwrite=True)) == 9


def test_records_of_older_versions_are_of_runs_and_damaged_ones_are_refused() -> None:
    old = {"model": "a", "run": "/r", "dim": 2, "roots": ["/p"], "created": "", "format": 1, "threshold": ""}
    read = About.from_json(json.dumps(old), "g")
    assert (read.kind, read.network, read.run) == ("run", None, "/r")
    kept = replace(read, run="", kind="pretrained", network=Network("googlenet", "/w", "00", 224))
    assert About.from_json(kept.to_json(), "g") == kept
    for change in (
        {"run": ""},
        {"kind": "other"},
        {"kind": ["run"]},
        {"kind": "pretrained"},
        {"kind": "pretrained", "network": {"name": 3}},
        {"kind": "pretrained", "network": {"name": "a", "weights": "a\0b"}},
        {"kind": "module", "network": {"name": "a", "more": 1}},
    ):
        with pytest.raises(UserError, match="gallery g"):
            About.from_json(json.dumps(old | change), "g")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same vectors in all kinds of files."""
    folder = tmp_path_factory.mktemp("files")
    vectors, labels = clusters()
    paths = np.array([f"item {n}" for n in range(60)])
    np.savez(folder / "vectors.npz", vectors=vectors, labels=labels, paths=paths)
    np.savez(folder / "sklearn.npz", X=vectors, y=labels)
    np.save(folder / "alone.npy", vectors)
    import pandas

    table = pandas.DataFrame(vectors, columns=[f"dim_{n}" for n in range(16)])
    table.assign(label=labels, key=paths, age=labels * 2).to_parquet(folder / "wide.parquet")
    return folder


@pytest.mark.parametrize(
    ("name", "key", "label"),
    [
        ("vectors.npz", "item 12", "1"),
        ("wide.parquet", "item 12", "1"),
        ("sklearn.npz", "sklearn.npz#12", "1"),
        ("alone.npy", "alone.npy#12", ""),
    ],
)
def test_vectors_are_indexed_and_searched_on_the_command_line(
    name: str, key: str, label: str, files: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = answer(capsys, "index", str(files / name), "--gallery", str(place))
    assert (done["images"], done["added"]) == (60, 60)
    assert answer(capsys, "index", str(files / name), "--gallery", str(place))["same"] == 60
    found = answer(capsys, "search", str(place), str(files / "alone.npy"), "-k", "1")["queries"]
    assert len(found) == 60
    assert (found[12]["found"][0]["path"], found[12]["found"][0]["label"]) == (key, label)
    like = answer(capsys, "search", str(place), "--item", key, "-k", "2")["queries"][0]["found"]
    assert key not in [each["path"] for each in like]
    assert answer(capsys, "duplicates", str(place))["groups"] == []


def test_several_files_of_vectors_add_up_and_a_rebuild_replaces_them(
    files: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = str(files / "vectors.npz"), str(files / "alone.npy")
    assert answer(capsys, "index", *both, "--gallery", str(place))["images"] == 120
    assert answer(capsys, "index", both[0], "--gallery", str(place), "--rebuild", "--no-labels")["images"] == 60
    assert open_gallery(str(place)).labels() == {"": 60}
    assert answer(capsys, "index", both[0], "--gallery", str(place))["changed"] == 60
    assert set(open_gallery(str(place)).labels()) == set("012345")


def test_index_says_how_images_and_vectors_are_told_apart(
    run: tammes.Run, photos: Path, files: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, to = str(files / "vectors.npz"), ("--gallery", str(place))
    assert "which model embeds" in refused(capsys, "index", str(photos), *to)
    assert f"tammes index {file} --gallery" in refused(capsys, "index", str(run.folder), file, *to)
    assert "indexed alone" in refused(capsys, "index", str(photos), file, *to)
    assert "no such file" in refused(capsys, "index", str(files / "none.npz"), *to)
    assert not place.exists()
    main(["index", str(run.folder), str(photos), *to])
    assert "--rebuild" in refused(capsys, "index", file, *to)
    assert "--empty-folders" in refused(capsys, "index", file, *to, "--rebuild")
    main(["index", file, *to, "--rebuild", "--empty-folders"])
    assert "another model" in refused(capsys, "index", str(run.folder), str(photos), *to)
    said = refused(capsys, "index", str(run.folder), str(photos), *to, "--rebuild")
    assert "60 items" in said
    assert "--empty-folders" in said


@pytest.mark.parametrize("what", ["vectors.npz", "wide.parquet", "gallery", "images"])
def test_a_report_of_vectors(
    what: str, run: tammes.Run, photos: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = str(files / what)
    if what == "gallery":
        vectors, labels = clusters()
        Gallery.from_vectors(tmp_path / "gallery", [*vectors, vectors[0]], labels=[*labels.tolist(), None])
        asked = str(tmp_path / "gallery")
    if what == "images":
        Gallery(tmp_path / "images", run).add(photos)
        asked = str(tmp_path / "images")
    out = tmp_path / "page.html"
    main(["report", asked, "--map", "pca", "--out", str(out)])
    page = out.read_text()
    for title in ("Result", "What it finds", "What it mixes up", "Class by class", "Same-class threshold"):
        assert title in page
    assert ("data:image/webp" in page) == (what == "images")
    assert ("1, which are left out" in page) == (what == "gallery")
    assert "is for the report of a run" in refused(capsys, "report", asked, "--skip-bad")
    assert "give it alone" in refused(capsys, "report", asked, str(run.folder))


def test_a_report_needs_labels_and_stands_beside_its_vectors(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "labels are needed" in refused(capsys, "report", str(files / "alone.npy"))
    Gallery.from_vectors(tmp_path / "plain.v2", clusters()[0])
    assert "two or more classes" in refused(capsys, "report", str(tmp_path / "plain.v2"))
    vectors, labels = clusters()
    Gallery.from_vectors(tmp_path / "plain.v2", vectors, labels=labels, overwrite=True)
    main(["report", str(tmp_path / "plain.v2"), "--map", "none"])
    assert (tmp_path / "plain.v2.html").exists()
    assert "--overwrite" in refused(capsys, "report", str(tmp_path / "plain.v2"), "--map", "none")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    vectors, labels = clusters()
    place = tmp_path_factory.mktemp("served") / "gallery"
    Gallery.from_vectors(place, vectors, keys=[f"a/{n}" for n in range(60)], labels=labels)
    with inside(ServerState(GalleryWatcher(str(place), None, "cpu"))) as here:
        yield here


def test_a_gallery_of_vectors_is_served(served: Any, photos: Path) -> None:
    item = served.get("/api/items?limit=1").json()["items"][0]
    assert item["name"] == "a/0"
    found = served.get(f"/api/items/{item['id']}/neighbours?k=2").json()["found"]
    assert [each["label"] for each in found] == ["0", "0"]
    vector = clusters()[0][12].tolist()
    by_vector = served.post("/api/search/vector", json={"vector": vector, "k": 1}).json()
    assert by_vector["found"][0]["name"] == "a/12"
    with (photos / "class 0" / "0.png").open("rb") as image:
        refusal = served.post("/api/search", files={"image": image})
    assert refusal.status_code == 422
    assert "made of vectors" in refusal.json()["message"]
    for page in ("/", "/classes", "/class?name=1", f"/item/{item['id']}", "/map"):
        shown = served.get(page, headers={"Accept": "text/html"})
        assert shown.status_code == 200
        assert "Choose an image" not in shown.text
        assert "/thumbnail" not in shown.text
    assert "a/0" in served.get(f"/item/{item['id']}", headers={"Accept": "text/html"}).text
