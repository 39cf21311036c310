"""`tammes data` from a server on this machine, from a folder, and with files that were put there by hand."""

import hashlib
import io
import json
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tammes.cli import main
from tammes.data import READERS, open_dataset
from tammes.data.published import DATASETS, Known, Published
from tammes.io import downloads


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "PAUSE", 0.001)


class Mirror:
    """A folder that is served, and what was asked of it."""

    def __init__(self, folder: Path, url: str, asked: list[str]) -> None:
        self.folder, self.url, self.asked = folder, url, asked


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    folder, asked = tmp_path / "mirror", list[str]()
    folder.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Mirror(folder, f"http://127.0.0.1:{running.server_address[1]}", asked)
    running.shutdown()
    thread.join()
    running.server_close()


def jpeg(seed: int) -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, "JPEG")
    return content.getvalue()


def tarred(file: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(file, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def zipped(file: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def cub_files() -> dict[str, bytes]:
    """Two images of each of the birds 1, 2, 101 and 102."""
    birds = {1: "001.Albatross", 2: "002.Auklet", 101: "101.Pelican", 102: "102.Phoebe"}
    images = [(number, f"{birds[number]}/{image}.jpg") for number in birds for image in range(2)]
    lists = {
        "classes.txt": [f"{number} {name}" for number, name in birds.items()],
        "images.txt": [f"{line} {path}" for line, (_, path) in enumerate(images, start=1)],
        "image_class_labels.txt": [f"{line} {number}" for line, (number, _) in enumerate(images, start=1)],
    }
    files = {f"CUB_200_2011/{name}": "\n".join(lines).encode() for name, lines in lists.items()}
    return files | {f"CUB_200_2011/images/{path}": jpeg(seed) for seed, (_, path) in enumerate(images)}


def cars_annotations(file: Path, field: str, rows: list[tuple[str, int]], *, names: bool = True) -> None:
    annotations = np.array(rows, dtype=[(field, object), ("class", object)])
    classes = np.array([f"Car {number}" for number in range(1, 197)], dtype=object)
    savemat(file, {"annotations": annotations, **({"class_names": classes} if names else {})})


CARS = [(f"{number:06}.jpg", label) for number, label in enumerate([1, 1, 2, 2, 99, 99, 100, 100], start=1)]


def put_cars_in_one(folder: Path) -> None:
    tarred(folder / "car_ims.tgz", {f"car_ims/{name}": jpeg(seed) for seed, (name, _) in enumerate(CARS)})
    cars_annotations(
        folder / "cars_annos.mat", "relative_im_path", [(f"car_ims/{name}", label) for name, label in CARS]
    )


def put_cars_in_two(folder: Path) -> None:
    halves = {"cars_train": CARS[::2], "cars_test": CARS[1::2]}
    for half, rows in halves.items():
        tarred(folder / f"{half}.tgz", {f"{half}/{name}": jpeg(int(name[:6])) for name, _ in rows})
    cars_annotations(folder / "cars_test_annos_withlabels.mat", "fname", halves["cars_test"], names=False)
    cars_annotations(folder / "train.mat", "fname", halves["cars_train"], names=False)
    savemat(folder / "meta.mat", {"class_names": np.array([f"Car {n}" for n in range(1, 197)], dtype=object)})
    kit = {"cars_train_annos.mat": "train.mat", "cars_meta.mat": "meta.mat"}
    tarred(folder / "car_devkit.tgz", {f"devkit/{name}": (folder / file).read_bytes() for name, file in kit.items()})
    for file in kit.values():
        (folder / file).unlink()


def put_sop(folder: Path) -> None:
    files: dict[str, bytes] = {}
    for name, classes in (("Ebay_train.txt", (1, 2)), ("Ebay_test.txt", (11319, 11320))):
        rows = [
            f"{10 * label + image} {label} 1 chair_final/{label}_{image}.JPG" for label in classes for image in range(2)
        ]
        files[f"Stanford_Online_Products/{name}"] = "\n".join(["image_id class_id super_class_id path", *rows]).encode()
        for row in rows:
            files[f"Stanford_Online_Products/{row.split()[-1]}"] = jpeg(int(row.split()[0]))
    zipped(folder / "Stanford_Online_Products.zip", files)


def put_inshop(images: Path, lists: Path) -> None:
    statuses = ["train"] * 4 + ["query", "gallery"] * 2
    rows = [f"img/id_{number // 2}/{number}.jpg id_{number // 2} {status}" for number, status in enumerate(statuses)]
    images.parent.mkdir(parents=True, exist_ok=True)
    lists.parent.mkdir(parents=True, exist_ok=True)
    zipped(images, {row.split()[0]: jpeg(number) for number, row in enumerate(rows)})
    lists.write_text("\n".join([str(len(rows)), "image_name item_id evaluation_status", *rows]))


def put_omniglot(folder: Path) -> None:
    for part, alphabet in (("images_background", "Greek"), ("images_evaluation", "Atlantean")):
        drawings = {
            f"{part}/{alphabet}/character0{character}/000{character}_0{drawing}.png": jpeg(10 * character + drawing)
            for character in range(1, 4)
            for drawing in range(2)
        }
        zipped(folder / f"{part}.zip", drawings)


def publish(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path, url: str | None = None) -> None:
    """Make the files in a folder the published ones: their checksums, and their address if they have one."""

    def published(file: Published) -> Published:
        place = folder / file.name
        digest = hashlib.md5(place.read_bytes()).hexdigest() if place.exists() else None
        checksum = f"md5:{digest}" if digest else file.checksum
        return replace(file, checksum=checksum, urls=() if url is None else (f"{url}/{file.name}",))

    known = DATASETS[name]
    ways = tuple(tuple(published(file) for file in way) for way in known.ways)
    monkeypatch.setitem(DATASETS, name, replace(known, ways=ways))


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(["data", *arguments])
    told = capsys.readouterr()
    said = ("downloading ", "unpacking ", "Stopped while unpacking ")  # no bar where there is no terminal
    assert all(line.startswith(said) for line in told.err.splitlines())
    return told.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["data", *arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_the_table_is_of_sets_that_can_be_read() -> None:
    assert set(DATASETS) == set(READERS)
    for known in DATASETS.values():
        assert isinstance(known, Known)
        files = [file for way in known.ways for file in way]
        assert all(file.urls for file in files) or known.by_hand
        for file in files:
            assert all(url.startswith(("https://", "http://")) for url in file.urls)
            kind, _, digest = (file.checksum or "md5:" + 32 * "0").partition(":")
            assert (kind, len(bytes.fromhex(digest))) == ("md5", 16)


def test_cub_is_downloaded_checked_unpacked_and_counted(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tarred(mirror.folder / "CUB_200_2011.tgz", cub_files())
    publish(monkeypatch, "cub", mirror.folder, mirror.url)
    to = tmp_path / "my birds"
    told = ran(capsys, "cub", "--to", str(to)).splitlines()
    assert told[0] == f"cub in {to}: 8 images of 4 classes"
    assert " ".join(told[1].split()) == "train 4 images of 2 classes"
    assert " ".join(told[2].split()) == "test 4 images of 2 classes"
    assert "note: CUB-200-2011 has 200 classes, this folder has 4." in told
    assert told[-2].startswith(f"{to / 'CUB_200_2011.tgz'} (")
    assert told[-2].endswith("kB) is no longer needed.")
    assert told[-1] == f"Next: tammes train '{to}'"
    for name, content in cub_files().items():
        assert (to / name).read_bytes() == content
    assert len(open_dataset(str(to))) == 8


def test_a_second_time_does_nothing_even_without_the_archive(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tarred(mirror.folder / "CUB_200_2011.tgz", cub_files())
    publish(monkeypatch, "cub", mirror.folder, mirror.url)
    first = json.loads(ran(capsys, "cub", "--to", str(tmp_path / "birds"), "--json"))
    assert first["no_longer_needed"] == [str(tmp_path / "birds" / "CUB_200_2011.tgz")]
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "birds").rglob("*.jpg")}
    (tmp_path / "birds" / "CUB_200_2011.tgz").unlink()
    second = json.loads(ran(capsys, "cub", "--to", str(tmp_path / "birds"), "--json"))
    assert mirror.asked == ["/CUB_200_2011.tgz"]
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "birds").rglob("*.jpg")} == before
    assert second == first | {"no_longer_needed": []}


def test_json_says_what_is_there(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_sop(mirror.folder)
    publish(monkeypatch, "sop", mirror.folder, mirror.url)
    found = json.loads(ran(capsys, "SOP", "--to", str(tmp_path / "sop"), "--json"))
    assert {name: found[name] for name in found if name not in ("remarks", "no_longer_needed")} == {
        "data": "sop",
        "folder": str(tmp_path / "sop"),
        "images": 8,
        "classes": 4,
        "train_images": 4,
        "train_classes": 2,
        "test_images": 4,
        "test_classes": 2,
        "next": f"tammes train {tmp_path / 'sop'}",
    }


def test_what_is_damaged_is_unpacked_again(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tarred(mirror.folder / "CUB_200_2011.tgz", cub_files())
    publish(monkeypatch, "cub", mirror.folder, mirror.url)
    to = tmp_path / "birds"
    ran(capsys, "cub", "--to", str(to))
    lost, cut = to / "CUB_200_2011/images/001.Albatross/0.jpg", to / "CUB_200_2011/images.txt"
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:20])
    ran(capsys, "cub", "--to", str(to))
    assert {name: (to / name).read_bytes() for name in cub_files()} == cub_files()
    assert mirror.asked == ["/CUB_200_2011.tgz"]  # it was still there


def test_an_unpacking_that_was_interrupted_is_done_again(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tarred(mirror.folder / "CUB_200_2011.tgz", cub_files())
    publish(monkeypatch, "cub", mirror.folder, mirror.url)
    to = tmp_path / "birds"
    move = downloads._move

    def stop(*_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "_move", stop)
    with pytest.raises(SystemExit) as stopped:
        main(["data", "cub", "--to", str(to)])
    assert stopped.value.code == 130
    assert [file.name for file in to.iterdir()] == ["CUB_200_2011.tgz"]
    monkeypatch.setattr(downloads, "_move", move)
    assert "8 images of 4 classes" in ran(capsys, "cub", "--to", str(to))


def test_data_that_was_unpacked_by_hand_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in cub_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    whole = replace(open_dataset(str(tmp_path)), remarks=())
    publish(monkeypatch, "cub", tmp_path)  # it has no address now
    assert "cub needs CUB_200_2011.tgz" in refused(capsys, "cub", "--to", str(tmp_path))  # 8 images are not all of CUB
    monkeypatch.setitem(DATASETS, "cub", replace(DATASETS["cub"], images=8))
    monkeypatch.setattr("tammes.data.open_dataset", lambda _: whole)
    assert "8 images of 4 classes" in ran(capsys, "cub", "--to", str(tmp_path))


def test_an_archive_put_there_by_hand_is_checked_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tarred(tmp_path / "CUB_200_2011.tgz", cub_files())
    text = refused(capsys, "cub", "--to", str(tmp_path))
    digest = hashlib.md5((tmp_path / "CUB_200_2011.tgz").read_bytes()).hexdigest()
    assert f"CUB_200_2011.tgz is not the published file: its checksum is md5:{digest}, not md5:97ece" in text
    assert f"or unpack it into {tmp_path} by hand if you trust it" in text
    assert (tmp_path / "CUB_200_2011.tgz").exists()
    publish(monkeypatch, "cub", tmp_path)
    assert "8 images of 4 classes" in ran(capsys, "cub", "--to", str(tmp_path))


def test_cars_says_where_to_get_it_and_goes_on_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused(capsys, "cars196", "--to", str(tmp_path))
    assert f"cars196 needs car_ims.tgz, which is not in {tmp_path}. Stanford no longer serves it. Put car_ims" in text
    assert "https://github.com/pytorch/vision/issues/7545" in text
    assert text.endswith("Then repeat the command.\n")
    put_cars_in_one(tmp_path)
    publish(monkeypatch, "cars196", tmp_path)
    annotations = (tmp_path / "cars_annos.mat").rename(tmp_path / "elsewhere")
    assert "cars196 needs cars_annos.mat" in refused(capsys, "cars196", "--to", str(tmp_path))
    annotations.rename(tmp_path / "cars_annos.mat")
    assert "8 images of 4 classes" in ran(capsys, "cars196", "--to", str(tmp_path))


def test_cars_in_its_other_form_is_taken_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_cars_in_two(tmp_path)
    publish(monkeypatch, "cars196", tmp_path)
    found = json.loads(ran(capsys, "cars196", "--to", str(tmp_path), "--json"))
    assert (found["images"], found["train_classes"], found["test_classes"]) == (8, 2, 2)
    assert len(found["no_longer_needed"]) == 3
    for file in found["no_longer_needed"]:
        Path(file).unlink()
    assert json.loads(ran(capsys, "cars196", "--to", str(tmp_path), "--json"))["images"] == 8


@pytest.mark.parametrize("deep", [False, True])
def test_inshop_is_taken_from_where_its_authors_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], deep: bool
) -> None:
    text = refused(capsys, "inshop", "--to", str(tmp_path))
    assert "inshop needs img.zip" in text
    assert "Put its Img/img.zip and Eval/list_eval_partition.txt there." in text
    images, lists = ("Img/img.zip", "Eval/list_eval_partition.txt") if deep else ("img.zip", "list_eval_partition.txt")
    put_inshop(tmp_path / images, tmp_path / lists)
    for _ in range(2):
        found = json.loads(ran(capsys, "inshop", "--to", str(tmp_path), "--json"))
        assert (found["images"], found["train_images"], found["test_images"]) == (8, 4, 4)
    assert (tmp_path / ("Img/img" if deep else "img")).is_dir()


def test_omniglot_is_downloaded_and_read_as_it_is(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_omniglot(mirror.folder)
    publish(monkeypatch, "omniglot", mirror.folder, mirror.url)
    to = tmp_path / "letters"
    told = ran(capsys, "omniglot", "--to", str(to))
    assert "12 images of 6 classes" in told
    assert "note: omniglot has 32,460 images, this folder has 12." in told
    assert "no longer needed" not in told
    assert sorted(file.name for file in to.iterdir()) == ["images_background.zip", "images_evaluation.zip"]
    (to / "images_background.zip").unlink()
    ran(capsys, "omniglot", "--to", str(to))  # a part of it is not all of it
    assert mirror.asked.count("/images_background.zip") == 2
    assert mirror.asked.count("/images_evaluation.zip") == 1


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_mirror_is_used_instead_of_the_official_address(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slash: str
) -> None:
    tarred(mirror.folder / "CUB_200_2011.tgz", cub_files())
    publish(monkeypatch, "cub", mirror.folder, "http://127.0.0.1:9/closed")
    assert "8 images" in ran(capsys, "cub", "--to", str(tmp_path / "birds"), "--from", mirror.url + slash)
    assert mirror.asked == ["/CUB_200_2011.tgz"]


def test_a_mirror_is_checked_too(tmp_path: Path, mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:
    tarred(mirror.folder / "CUB_200_2011.tgz", cub_files())
    text = refused(capsys, "cub", "--to", str(tmp_path / "birds"), "--from", mirror.url)
    assert "is not what was expected: its checksum is md5:" in text
    assert list((tmp_path / "birds").iterdir()) == []


def test_a_mirror_serves_what_has_no_official_address(
    tmp_path: Path, mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    put_inshop(mirror.folder / "img.zip", mirror.folder / "list_eval_partition.txt")
    assert "8 images" in ran(capsys, "inshop", "--to", str(tmp_path / "clothes"), "--from", mirror.url)


def test_archives_of_a_folder_are_used_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archives, to = tmp_path / "archives", tmp_path / "cars"
    archives.mkdir()
    put_cars_in_one(archives)
    publish(monkeypatch, "cars196", archives)
    told = ran(capsys, "cars196", "--to", str(to), "--from", str(archives))
    assert "8 images of 4 classes" in told
    assert "no longer needed" not in told  # they are not ours
    assert sorted(file.name for file in to.iterdir()) == [".car_ims.tgz.unpacked", "car_ims", "cars_annos.mat"]
    shutil.rmtree(archives)
    assert "8 images of 4 classes" in ran(capsys, "cars196", "--to", str(to))


def test_a_folder_without_the_archive_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "archives").mkdir()
    text = refused(capsys, "cub", "--to", str(tmp_path / "birds"), "--from", str(tmp_path / "archives"))
    assert f"cub needs CUB_200_2011.tgz, which is not in {tmp_path / 'birds'} or {tmp_path / 'archives'}." in text
    assert "Leave out --from to download it." in text
    text = refused(capsys, "cub", "--to", str(tmp_path / "birds"), "--from", "no/such/folder")
    assert "--from must be a folder or an address that begins with http; there is no no/such/folder." in text


def test_the_second_address_is_tried_where_the_first_fails(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_sop(mirror.folder)
    publish(monkeypatch, "sop", mirror.folder)
    (file,) = DATASETS["sop"].ways[0]
    urls = (f"{mirror.url}/gone.zip", f"{mirror.url}/{file.name}")
    monkeypatch.setitem(DATASETS, "sop", replace(DATASETS["sop"], ways=((replace(file, urls=urls),),)))
    assert "8 images of 4 classes" in ran(capsys, "sop", "--to", str(tmp_path / "products"))
    assert mirror.asked == ["/gone.zip", f"/{file.name}"]


def test_where_every_address_fails_all_is_said(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = DATASETS["sop"].ways[0]
    urls = (f"{mirror.url}/a.zip", f"{mirror.url}/b.zip")
    monkeypatch.setitem(DATASETS, "sop", replace(DATASETS["sop"], ways=((replace(file, urls=urls),),)))
    text = refused(capsys, "sop", "--to", str(tmp_path / "products"))
    for url in urls:
        assert f"cannot download {url}: the server says 404 File not found." in text
    assert f"put the file at {tmp_path / 'products' / file.name} by hand" in text
    assert "https://cvgl.stanford.edu/projects/lifted_struct/" in text


def test_an_archive_of_something_else_is_not_passed_off_as_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tarred(tmp_path / "CUB_200_2011.tgz", {f"{name}/0.jpg": jpeg(number) for number, name in enumerate("abcd")})
    publish(monkeypatch, "cub", tmp_path)
    assert f"the files in {tmp_path} are not cub." in refused(capsys, "cub", "--to", str(tmp_path))


def test_an_unknown_name_gets_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, "cars169", "--to", str(tmp_path))
    assert text == (
        "tammes: unknown data set 'cars169'. Did you mean 'cars196'?"
        " Known: cars196, cub, glyphs, inshop, omniglot, sop.\n"
    )


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert "--to must be a folder" in refused(capsys, "cub", "--to", str(tmp_path / "file"))


def test_help_shows_examples_and_no_underscore(capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "--help"])
    told = capsys.readouterr().out
    assert "tammes data cub --to data/cub" in told
    assert "--from ADDRESS|FOLDER" in told
    assert "from_" not in told


@pytest.mark.slow
def test_the_embedded_characters_are_written_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tammes.data import glyphs

    whole = glyphs()
    few = replace(whole, keys=whole.keys[:30], labels=whole.labels[:30])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tammes.data.glyphs", lambda: few)
        main(["data", "glyphs", "--to", str(tmp_path / "g"), "--json"])
        assert json.loads(capsys.readouterr().out)["images"] == 30
        files = sorted((tmp_path / "g").rglob("*.png"))
        assert len(files) == 30
        written = {file: file.stat().st_mtime_ns for file in files}
        main(["data", "glyphs", "--to", str(tmp_path / "g")])  # again: what is there is left alone
        assert {file: file.stat().st_mtime_ns for file in files} == written
    number = 7
    file = (
        tmp_path / "g" / whole.class_names[whole.labels[number]] / f"{'-'.join(whole.keys[number].split('/')[1:])}.png"
    )
    with Image.open(file) as image:
        assert np.array_equal(np.asarray(image), np.asarray(whole.read(number)))
    assert "drawn here" in refused(capsys, "glyphs", "--to", str(tmp_path / "g"), "--from", "x")
    assert "is a file" in refused(capsys, "glyphs", "--to", str(files[0]))
