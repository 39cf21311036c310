"""Every kind of mistake on the command line: one line that says what was wrong, what is right and what to type."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tammes.cli import COMMANDS, main
from tammes.io.machine import kill_as_interrupt
from tests.commands import ended, small_set
from tests.conftest import HANGS
from tests.test_architecture import ROOT

SMALL = ("--backbone", "conv4", "--dim", "8", "--epochs", "1", "--shift", "2")


@pytest.fixture
def here(waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands are typed in: photos/ has eight classes of six images."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(waves)
    return tmp_path


TRAIN = [
    ("--lr -1", "--lr must not be negative, got -1.0."),
    ("--lr nan", "--lr must be a finite number, got nan."),
    ("--lr inf", "--lr must be a finite number, got inf."),
    ("--backbone-lr -0.5", "--backbone-lr must not be negative, got -0.5."),
    ("--weight-decay inf", "--weight-decay must be a finite number, got inf."),
    ("--momentum 1.5", "--momentum must be below 1, got 1.5: steps would grow without"),
    ("--seed -1", "--seed must be a whole number from 0 to 18446744073709551615, got -1."),
    ("--seed 99999999999999999999", "--seed must be a whole number from 0 to 18446744073709551615, got 999"),
    ("--dim 0", "--dim must be at least 1, got 0."),
    ("--epochs 0", "--epochs must be at least 1, got 0."),
    ("--batch-size -8", "--batch-size must be at least 1, got -8."),
    ("--momentum 0.5", "--momentum is for --optimizer sgd, and this run has adam: leave it out, or add"),
    ("--halve-every 3", "--halve-every is for --schedule halve, and this run has cosine: leave it out, or add"),
    ("--train head --backbone-lr 1", "--backbone-lr is for trainable layers of the backbone; --train head"),
    ("--train head", "--shift is for random crops, and --train head caches only the centre crop of each image:"),
    ("--train top --views 0 --shift 0 --mirror", "--mirror is for random crops, and --train top caches only the"),
    ("--crop-area 0", "--crop-area is a share of an image, above 0 and up to 1, got 0.0."),
    ("--crop-area 0.5", "--crop-area scales crops of the image, and --shift pads it: leave one out."),
    (
        "--grow-from 96 --epochs 1",
        "--grow-from lets images grow from epoch to epoch, and this run has one epoch: leave it out.",
    ),
    ("--grow-from 16", "--grow-from must be at least 32, got 16."),
    ("--train top --grow-from 32", "--grow-from changes the input of the first layers, and --train top caches"),
    ("--train head --crop-area 0.5", "--crop-area changes the input of the first layers, and --train head"),
    ("--precision fp16 --device cpu", "--precision fp16 is for a GPU, and has no effect on a CPU: use bf16, or "),
    ("--shift 29", "--shift 29 exceeds the network's input of 28 pixels. Use 28 or less.\n"),
    ("--train top --shift 29", "--shift 29 exceeds the network's input of 28 pixels."),
    ("--loss hard-discriminative --temperature inf", "temperature must be from 1e-06 to 1e+06, got inf. Most use"),
    ("--push 5", "push must be in [0, 1), got 5.0: from 1 on the own centroid is no longer the minimum."),
    ("--push nan", "push must be in [0, 1), got nan: from 1 on the own centroid is no longer the minimum."),
    ("--test-classes -1", "--test-classes -1 is not a number of classes from 0 to 8."),
    (
        "--test-classes nan",
        "--test-classes nan is not a share of the classes: from 0 to below 1, or a whole number of them.",
    ),
    ("--test-classes 7", "1 of 8 classes would train; at least 2 must. Lower --test-classes."),
    ("--val-classes many", "--val-classes must be a fraction or a number of classes, got 'many'."),
    (
        "--images-per-class 10000 --sampler pk --batch-size 32",
        "a batch of 32 cannot hold classes of 10000 images each. Use --batch-size 10000.",
    ),
    ("--init-from nowhere", "no trained model in {here}/nowhere: embedder.json is missing. Train one: "),
    ("--weights nowhere.pt", "no weights file {here}/nowhere.pt. --weights is imagenet, none, or a file."),
    ("--centroids simplx", "unknown kind of centroids 'simplx'. Did you mean 'simplex'? Known: codes, kerdock, "),
    ("--loss-options margn=1", "'margn' is not an option of discriminative. Its options: weighting, push, "),
    ("--loss triplet --loss-options margin=nan", "margin of triplet must be a finite number, got 'nan'."),
    ("--loss pml:TripletMarginLoss --loss-options margin=inf", "margin of TripletMarginLoss must be a finite number, "),
    ("--hidden 8", "--hidden is for vectors, and this is not a .npz or .parquet file: leave it out."),
    ("--dim 100000000000", "out of memory: the network itself does not fit, for any batch size. Try a smaller"
                           " --backbone, --dim or --centroid-dim.\n"),
    ("--centroid-dim 100000000000", "out of memory: the network itself does not fit, for any batch size."),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), TRAIN, ids=[given for given, _ in TRAIN])
def test_what_cannot_be_trained_is_said(here: Path, capsys: pytest.CaptureFixture[str], given: str, text: str) -> None:
    code, said = ended(capsys, "train", "photos", "--out", "run", *SMALL, *given.split())
    assert code == 2, said
    assert f"tammes: {text.format(here=here)}" in said
    assert not (here / "run").exists()


COMMAND_LINES = [
    ("trian photos", "unknown command 'trian'. Did you mean 'train'? Known: benchmark, cache, calibrate, centroids, "),
    ("train nowhere", "no such folder: nowhere. Expected one sub-folder of images per class.\n"),
    ("train cub", "no such folder: cub. Give the folder with cub; `tammes data cub --to FOLDER` downloads it.\n"),
    ("train photos/\x000", "no such folder: photos/\\x000. Expected one sub-folder of images per class.\n"),
    ("train nowhere.csv", "no such file: nowhere.csv. Expected a CSV file with the columns path and label.\n"),
    ("train nowhere.npz", "no such file: nowhere.npz. Expected a .npz or .parquet file with `vectors` and `labels`.\n"),
    ("train --resume nowhere", "no run in nowhere: config.json or environment.json is missing. `tammes runs` lists"),
    ("doctor nowhere", "no such folder: nowhere. Expected one sub-folder of images per class.\n"),
    ("evaluate nowhere", "which images? nowhere is not a run; as a pretrained network it has none. For example"),
    ("embed nowhere photos --out x.npz", "no run nowhere, and unknown backbone 'nowhere'."),
    ("embed nowhere photos --out x.txt", "--out must end in .npz or .parquet or .npy, got 'x.txt'.\n"),
    ("embed nowhere photos --out no/x.npz", "--out no/x.npz: there is no folder no. Make it first.\n"),
    ("embed nowhere photos --out x.npz --batch-size 0", "--batch-size must be at least 1, got 0.\n"),
    ("embed nowhere  --out x.npz", "there is an empty argument after nowhere: perhaps a shell variable is not set."),
    ("serve ", "there is an empty argument after serve: perhaps a shell variable is not set. For the current"),
    ("cache --clear --remove x", "--clear removes everything, and --remove one entry: give one of the two.\n"),
    ("runs photos --remove runs/a", "--remove takes the run folder itself: leave out photos, as in: tammes runs"),
    ("duplicates g --threshold inf", "--threshold must be a finite number, 0 or more, got inf.\n"),
    ("label g photos --threshold nan", "--threshold must be a finite number, 0 or more, got nan.\n"),
    ("report", "which run? For example: tammes report runs/photos. `tammes runs` lists them.\n"),
    ("runs nowhere", "no such folder: nowhere. Train something first: tammes train\n"),
    ("runs --remove photos", "no run in photos: config.json or environment.json is missing. `tammes runs` lists"),
    ("index nowhere photos --gallery g", "no run nowhere, and unknown backbone 'nowhere'."),
    ("search nowhere a.png", "no such file: a.png.\n"),
    ("duplicates nowhere", "there is no gallery nowhere. Make it: tammes index MODEL FOLDER --gallery nowhere\n"),
    ("search nowhere a.png -k 0", "-k must be at least 1, got 0.\n"),
    ("search nowhere", "which image? For example: tammes search nowhere photo.jpg\n"),
    ("serve nowhere", "there is no gallery nowhere. Make it: tammes index MODEL FOLDER --gallery nowhere\n"),
    ("centroids 0 3", "num_classes must be at least 1, got 0.\n"),
    ("centroids 3 0", "dim must be at least 1, got 0.\n"),
    ("centroids 10000000 100000", "10000000 centroids of 100000 numbers are more than this machine has memory for."),
    ("losses tripplet", "unknown loss 'tripplet'. Did you mean 'triplet'? Known: angular, "),
    ("data cubs --to x", "unknown data set 'cubs'. Did you mean 'cub'? Known: cars196, cub, glyphs, inshop,"),
    ("cache --remove x", "unknown cache entry 'x'."),
    ("benchmark nowhere.toml", "cannot read the plan nowhere.toml: No such file or directory. docs/benchmark.md"),
    ("calibrate nowhere", "no run in nowhere: config.json or environment.json is missing. `tammes runs` lists"),
    (f"train photos --out {'x' * 300}", f"cannot use {'x' * 300}: File name too long.\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "text"), COMMAND_LINES, ids=[line.replace("\0", "0")[:40] for line, _ in COMMAND_LINES]
)
def test_what_cannot_be_done_is_said(here: Path, capsys: pytest.CaptureFixture[str], line: str, text: str) -> None:
    more = SMALL if line.startswith("train photos --out") else ()
    code, said = ended(capsys, *line.split(" "), *more)
    assert code == 2, said
    assert f"tammes: {text.format(here=here)}" in said


def test_a_command_that_runs_out_of_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def too_much(_given: list[str]) -> None:
        raise MemoryError

    monkeypatch.setattr("tammes.cli._run", too_much)
    with pytest.raises(SystemExit) as left:
        main(["losses"])
    assert left.value.code == 2
    assert capsys.readouterr().err == "tammes: out of memory: this needs more than there is. Give it less at a time.\n"


@pytest.fixture(scope="module")
def made(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/, runs of several kinds, and galleries that the first has made of class 0 and class 1."""
    root = tmp_path_factory.mktemp("made")
    (root / "photos").symlink_to(waves)
    for number in (0, 1):
        shutil.copytree(waves / f"class {number}", root / "some" / f"class {number}")
    runs = {"run": [], "softmax": ["--loss", "softmax"], "hdc": ["--loss", "hdc"], "whole": ["--test-classes", "0"]}
    for name, more in runs.items():
        main(["train", str(waves), "--out", str(root / name), *SMALL, *more])
    np.savez(root / "w.npz", vectors=np.random.default_rng(0).normal(size=(48, 8)), labels=np.arange(48) % 6)
    main(["train", str(root / "w.npz"), "--out", str(root / "of vectors"), "--epochs", "1"])
    main(["index", str(root / "run"), str(root / "some"), "--gallery", str(root / "g")])
    main(["index", str(root / "run"), str(root / "some" / "class 0"), "--gallery", str(root / "one"), "--no-labels"])
    small_set(root / "broken", ["a", "b"], 0)
    for name in ("a", "b"):
        (root / "broken" / name / "0.png").write_bytes(b"no image")
    np.save(root / "zero.npy", np.zeros(8))
    np.save(root / "short.npy", np.ones(7))
    np.save(root / "good.npy", np.ones(8))
    (root / "text.npy").write_text("text")
    (root / "zip.npy").write_bytes(b"PK\x03\x04")
    np.savez(root / "v.npz", vectors=np.eye(4), labels=np.array([0, 0, 1, 1]))
    (root / "empty").mkdir()
    (root / "plan").mkdir()
    (root / "plan" / "plan.json").write_text("{}")
    (root / "t.csv").write_text("path,label\n,x\n")
    shutil.copytree(root / "run", root / "odd")
    (root / "odd" / "config.json").write_text("[]")
    shutil.copytree(root / "run", root / "bare")
    (root / "bare" / "embedder.json").unlink()
    shutil.copytree(root / "run", root / "hollow")
    (root / "hollow" / "embedder.safetensors").unlink()
    shutil.copytree(root / "run", root / "folded")
    (root / "folded" / "config.json").unlink()
    (root / "folded" / "config.json").mkdir()
    main(["export", str(root / "run"), "--format", "hub", "--out", str(root / "hub")])
    shutil.copytree(root / "hub", root / "untrusted")
    (root / "untrusted" / "config.json").write_text('{"tammes": []}')
    return root


OF_WHAT_WAS_MADE = [
    ("search g - -", "standard input holds one image: give - once.\n"),
    ("search g --vector good.npy --sheet s.png", "--sheet shows the query images: leave it out"),
    ("search g photos/x.png --vector good.npy", "search with one of an image and --vector"),
    ("search g --vector zero.npy", "the vector of 'zero.npy, 0' is zero or not finite"),
    ("search g --vector text.npy", "text.npy is not a complete .npy file of numbers: "),
    ("search g --vector zip.npy", "zip.npy is not a complete .npy file of numbers: "),
    ("search g --vector none.npy", "no such file: none.npy.\n"),
    ("search g --vector short.npy", "short.npy has vectors of 7 numbers, and the gallery holds vectors of 8"),
    ("search g --vector good.npy --label cat", "unknown class 'cat'. Known: class 0, class 1.\n"),
    ("search g photos", "photos is a folder: give images. `tammes label` takes a folder.\n"),
    ("search g nowhere.png", "no such file: nowhere.png.\n"),
    ("index softmax some --gallery g", "g was made by another model, the model of "),
    ("index bare some --gallery g", "bare has no model of images: embedder.json is missing. A gallery is made by a"),
    ("index run photos --gallery g --rebuild", "g also has the images of "),
    ("label g photos --out l.csv --threshold 1 --unknown-rate 0.1", "--unknown-rate finds the threshold that "),
    ("serve g g", "one gallery at a time: got g and g. Start another server for the other.\n"),
    ("report run run", "a run is given twice: name each once.\n"),
    ("evaluate odd", "odd/config.json: it must be an object, got []. Restore the file from a copy, or train"),
    ("train --resume odd", "odd/config.json: it must be an object, got []. Restore the file from a copy, or"),
    ("evaluate v.npz photos", "DATA is for images, and v.npz holds vectors: leave it out.\n"),
    ("calibrate run v.npz", "run was trained on images, and v.npz holds vectors. Give it images.\n"),
    ("train --resume run --seed 0", "--resume takes the run's own options: leave out --seed.\n"),
    ("train glyphs --resume run", "--resume takes the run's own options: leave out DATA.\n"),
    ("train --resume run", "run has already finished. To see its results: tammes evaluate run\n"),
    ("train photos --continue-from softmax --out new", "softmax was trained with --loss softmax, which has no "),
    ("train photos --out run", "run is already a run. Resume it (tammes train --resume run), replace it with --o"),
    ("train photos --out some", "some exists and is not a run. Please choose another --out.\n"),
    ("train t.csv --out new", "t.csv, line 2: the path is empty.\n"),
    ("data glyphs --to empty --from x", "--from is for data sets that are downloaded; glyphs are drawn on this"),
    ("data cub --to t.csv", "--to must be a folder; t.csv is a file.\n"),
    ("train photos --init-from run --out run", "--init-from and --out are the same folder. Choose another --out.\n"),
    ("train photos --init-from hdc --out new", "--init-from has a different number of heads"),
    ("evaluate v.npz --seeds -1", "each of --seeds must be a whole number from 0 to 4294967295, got -1.\n"),
    ("evaluate v.npz --seeds 0 4294967296", "each of --seeds must be a whole number from 0 to 4294967295, got 42949"),
    ("evaluate v.npz --skip-bad", "--skip-bad is for images, and v.npz holds vectors: leave it out.\n"),
    ("report run --seed 4294967296", "--seed must be a whole number from 0 to 4294967295, got 4294967296.\n"),
    ("report of_vectors --skip-bad", "--skip-bad is for images, and of vectors was trained on vectors: leave it"),
    ("report plan --map tsne", "--map is for the report of a run, and plan is a benchmark: leave it out.\n"),
    ("report plan --skip-bad", "--skip-bad is for the report of a run, and plan is a benchmark: leave it out.\n"),
    ("report plan --seed 5", "--seed is for the report of a run, and plan is a benchmark: leave it out.\n"),
    ("doctor v.npz", "v.npz holds vectors, and doctor checks images. `tammes train v.npz` says what is wrong"),
    ("evaluate run --restarts 0", "--restarts must be at least 1, got 0.\n"),
    ("evaluate folded", "cannot read folded/config.json: Is a directory.\n"),
    ("embed hollow some --out x.npz", "no trained model in hollow: embedder.safetensors is missing.\n"),
    ("export of_vectors", "of vectors was trained on vectors: only models of images are exported.\n"),
    ("export run --out empty", "--out empty is a folder. Give it a name: --out empty/model.onnx\n"),
    ("export run --out x.onnx --data broken", "none of the images to check with can be read. Give others: --data "),
    ("export whole --int8 --out x.onnx", "whole was trained on all classes, so the cost of 8 bits cannot be"),
    ("export run --format hub --out hub", "hub exists. Pass --overwrite to replace it.\n"),
    ("label g photos -k 0", "-k must be at least 1, got 0.\n"),
    ("label g photos --out no/l.csv", "--out no/l.csv: there is no folder no. Make it first.\n"),
    ("label g broken --threshold 1", "none of the 2 images in broken can be read: cannot read broken/a/0.png: it is"),
    ("label one photos", "a threshold needs two or more classes in the gallery, one sub-folder each: it has"),
    ("search g some/class_0/0.png --sheet s.jpg", "--sheet must end in .png, got 's.jpg'.\n"),
    ("search g some/class_0/0.png --sheet no/s.png", "--sheet no/s.png: there is no folder no. Make it first.\n"),
    ("train photos --out run --weights run/embedder.safetensors", "--weights run/embedder.safetensors lies in --out"),
    ("train photos --init-from ./softmax/../run --out run", "--init-from and --out are the same folder. Choose"),
    ("index run some t.csv --gallery new", "t.csv, line 2: the path is empty.\n"),
    ("index run empty --gallery new", "no images in empty.\n"),
    ("index run some --gallery qdrant://host:99999/x", "qdrant://host:99999/x cannot be a gallery: write"),
    ("index run some --gallery qdrant://host:abc/x", "qdrant://host:abc/x cannot be a gallery: write qdrant://h"),
    ("train photos --out t.csv/run", "--out t.csv/run: t.csv is a file. Choose another --out.\n"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "text"), OF_WHAT_WAS_MADE, ids=[line for line, _ in OF_WHAT_WAS_MADE])
def test_what_cannot_be_done_with_what_was_made_is_said(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, text: str
) -> None:
    monkeypatch.chdir(made)
    small = SMALL if line.startswith(("train photos --out", "train photos --init")) else ()
    code, said = ended(capsys, *(word.replace("_", " ") for word in line.split(" ")), *small)
    assert code == 2, said
    assert text in said.replace(f"{made}/", "")
    assert said.splitlines()[-1].startswith("tammes: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_not_known_is_wrong_use(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(capsys, command, "--no-such-option")
    assert code == 2
    assert said.startswith("tammes: unknown option --no-such-option.")


@pytest.mark.parametrize(
    ("options", "images"),
    [
        (["--lr", "0", "--backbone-lr", "0"], 3),  # nothing moves
        (["--dim", "1"], 3),
        (["--batch-size", "100000"], 3),  # larger than the data
        (["--batch-size", "1"], 2),
        (["--test-classes", "2"], 1),  # two images train
    ],
)
def test_what_is_odd_but_right_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], images: int
) -> None:
    photos = small_set(tmp_path / "photos", ["a", "b"], images)
    small_set(photos, ["c", "d"], 2)
    code, said = ended(capsys, "train", str(photos), "--out", str(tmp_path / "run"), *SMALL, *options)
    assert code == 0, said
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0 <= results["trained"]["recall_at_1"] <= 1


def test_a_rate_that_is_too_high_is_said_and_no_such_weights_are_saved(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("train", "photos", *SMALL)
    code, said = ended(capsys, *given, "--out", "other", "--lr", "1e30", "--backbone-lr", "1e30")
    assert code == 2
    assert "the embeddings are not finite: the learning rate was too high. Try a tenth.\n" in said
    code, said = ended(capsys, *given, "--out", "run", "--lr", "1e39", "--backbone-lr", "1e39")
    assert code == 2
    assert "a weight is not a finite number at epoch 1, step 1. The likely cause is a learning rate that is too" in said
    assert "try a tenth. No epoch had ended yet.\n" in said
    assert not (here / "run" / "checkpoint.safetensors").exists()


def test_one_class_and_two_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = small_set(tmp_path / "one", ["only"])
    assert ended(capsys, "train", str(one), *SMALL) == (
        2,
        f"tammes: only one class in {one}: 'only'. At least two are needed. Expected one sub-folder of images per"
        " class.\n",
    )
    two = small_set(tmp_path / "two", ["a", "b"], 1)
    assert ended(capsys, "train", str(two), "--out", str(tmp_path / "run"), *SMALL)[1] == (
        "tammes: 1 of 2 classes would train; at least 2 must. Lower --test-classes.\n"
    )
    assert ended(capsys, "train", str(two), "--out", str(tmp_path / "run"), "--test-classes", "0", *SMALL)[0] == 0


def test_a_class_that_is_left_without_images_cannot_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = small_set(tmp_path / "photos", ["a", "b"], 3)
    for number in range(3):
        (photos / "a" / f"{number}.png").write_bytes(b"no image")
    given = ("train", str(photos), "--out", str(tmp_path / "run"), "--test-classes", "0", "--skip-bad", *SMALL)
    for loss in ("triplet-smart", "discriminative"):
        code, said = ended(capsys, *given, "--loss", loss)
        assert code == 2
        assert said.endswith(
            "tammes: 1 training classes remain without the images that cannot be read; at least 2 are needed."
            f" `tammes doctor {photos}` lists them.\n"
        )


def test_classes_that_differ_in_case_or_blanks_only_are_two_and_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = small_set(tmp_path / "photos", ["cat", "Cat", "cat ", "dog"])
    main(["doctor", str(photos)])
    said = capsys.readouterr().out
    assert "4 classes" in said
    assert "the classes 'Cat' and 'cat' differ only in case or blanks; they count as two classes." in said
    (tmp_path / "t.csv").write_text(
        "path,label\n" + "".join(f"photos/{name}/{n}.png,{name}\n" for name in ("cat", "Cat", "dog") for n in (0, 1))
    )
    main(["doctor", str(tmp_path / "t.csv")])
    assert "the classes 'Cat' and 'cat' differ only in case or blanks" in capsys.readouterr().out


ODD_NAMES = [
    b"a b", b"quo'te\"s", b"new\nline", "ünïcødé 中文".encode(), b"x" * 255, b"[bold]--dim*?", b"\xff\xfe", b"-rf",
]  # fmt: skip


def test_names_of_any_kind_go_through_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos, run, gallery = small_set(tmp_path / "photos", ODD_NAMES), tmp_path / "run", tmp_path / "gallery"
    commands = [
        ["doctor", str(photos)],
        ["train", str(photos), "--out", str(run), *SMALL],
        ["embed", str(run), str(photos), "--out", str(tmp_path / "v.npz")],
        ["index", str(run), str(photos), "--gallery", str(gallery)],
        ["index", str(run), str(photos), "--gallery", str(gallery)],
        ["label", str(gallery), str(photos), "--out", str(tmp_path / "l.csv")],
        ["report", str(run)],
    ]
    for command in commands:
        code, said = ended(capsys, *command)
        assert code == 0, f"{command}: {said}"
    for name in ODD_NAMES:
        query = f"{photos}/{os.fsdecode(name)}/0.png"
        main(["search", str(gallery), query, "-k", "99999999999999999999", "--json"])
        (found,) = json.loads(capsys.readouterr().out)["queries"]
        assert len(found["found"]) == 2 * len(ODD_NAMES)  # all there are
        assert found["found"][0]["path"] == query
        assert found["found"][0]["label"] == os.fsdecode(name)
    pipe = photos / "a b" / "pipe.png"
    os.mkfifo(pipe)  # who reads from it waits until somebody writes
    for command in (["index", str(run), str(photos), "--gallery", str(gallery)], ["doctor", str(photos)]):
        capsys.readouterr()
        with suppress(SystemExit):
            main(command)
        shown = "".join(capsys.readouterr())
        assert "pipe.png" in shown
        assert "a pipe, a device or the like" in shown


def test_links_in_a_circle_are_not_followed_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = small_set(tmp_path / "photos", ["a", "b", "c", "d"])
    (photos / "a" / "up").symlink_to(photos)
    (photos / "b" / "self").symlink_to("self")
    (photos / "e").symlink_to("e")
    code, said = ended(capsys, "train", str(photos), "--out", str(tmp_path / "run"), *SMALL)
    assert code == 0, said
    (photos / "c" / "gone.png").symlink_to("nowhere")
    code, said = ended(capsys, "train", str(photos), "--out", str(tmp_path / "again"), *SMALL)
    assert code == 2
    assert "2 of 16 images are missing" in said
    assert "  c/gone.png\n" in said


def test_folders_far_below_each_other_are_walked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = small_set(tmp_path / "photos", ["a", "b", "c", "d"])
    deep = photos / "a"
    for _ in range(1200):
        deep = deep / "x"
        deep.mkdir()
    shutil.copy(photos / "b" / "0.png", deep / "deep.png")
    try:
        main(["doctor", str(photos), "--json"])
        assert json.loads(capsys.readouterr().out)["images"] == 9
    finally:
        subprocess.run(["rm", "-rf", photos], check=True)  # too deep for Python's own


def test_very_many_labels_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = 200_000
    file = tmp_path / "v.npz"
    np.savez(file, vectors=np.ones((number, 2), np.float32), labels=np.arange(number))
    code, said = ended(capsys, "train", str(file), "--out", str(tmp_path / "run"))
    assert (code, said) == (
        2,
        "tammes: every test class has one vector only, so none could be found. Choose other classes.\n",
    )


def test_a_polite_kill_ends_every_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.data.open_dataset", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "glyphs"])
    assert stopped.value.code == 130
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_polite_kill_is_left_to_those_who_have_arranged_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> object:
        with kill_as_interrupt():
            return signal.getsignal(signal.SIGTERM)

    assert callable(ask())
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(ask).result() == signal.SIG_DFL
    with monkeypatch.context() as launcher:
        launcher.setenv("RANK", "0")
        launcher.setenv("WORLD_SIZE", "2")
        assert ask() == signal.SIG_DFL
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert ask() == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def ended_by(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS)


def test_a_process_that_was_forked_ends_by_the_signal() -> None:
    done = ended_by(
        "import os, signal, time\nfrom tammes.io.machine import kill_as_interrupt\n"
        "ready, begun = os.pipe()\n"
        "with kill_as_interrupt():\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.write(begun, b'x')\n"
        "        time.sleep(600)\n"
        "        os._exit(0)\n"
        "    os.read(ready, 1)\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    print(os.WTERMSIG(os.waitpid(child, 0)[1]))"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "15\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["tammes.io.machine", "tyro", "tammes.cli.train"])
def test_an_interrupt_while_the_commands_are_imported_shows_no_traceback(number: signal.Signals, module: str) -> None:
    """The signal comes at the moment in which this module is looked for."""
    done = ended_by(
        "import os, sys, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "class Look:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Look())\n"
        "sys.argv = ['tammes', '--version']\n"
        "from tammes.__main__ import main\n"
        "main()"
    )
    # A kill before there is anybody to hear it ends the process as it ends any.
    code = -number if (number, module) == (signal.SIGTERM, "tammes.io.machine") else 130
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_what_is_installed_is_what_can_be_interrupted() -> None:
    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["tammes"] == "tammes.__main__:main"
    )


def test_problems_that_were_found_end_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = small_set(tmp_path / "photos", ["a", "b"])
    (photos / "a" / "0.png").write_bytes(b"no image")
    assert ended(capsys, "doctor", str(photos))[0] == 1


def test_a_process_ends_with_the_code_and_the_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tammes", "doctor", "nowhere"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS)
    text = "tammes: no such folder: nowhere. Expected one sub-folder of images per class.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", text)


def test_the_documents_name_every_command_that_ends_with_1() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith("| 1 |"))
    files = [file for file in (ROOT / "src" / "tammes" / "cli").glob("*.py") if "SystemExit(1)" in file.read_text()]
    assert {file.stem for file in files} == set(re.findall(r"`(\w+)`", row))
