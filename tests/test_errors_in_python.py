"""The same mistakes made in Python, or by the world around a command: each text, as `tammes.UserError`."""

import json
import shutil
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.io import savemat
from torch import nn

import tammes
from tammes import DiscriminativeLoss, UserError
from tammes.cli import main
from tests.commands import ended
from tests.test_errors import SMALL
from tests.test_omniglot import pack


def refused(work: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as refusal:
        work()
    return str(refusal.value)


LOSSES: list[tuple[dict[str, Any], str]] = [
    ({"chunk_classes": 0}, "chunk_classes must be at least 1, got 0."),
    ({"sample_classes": 1}, "sample_classes must be at least 2, got 1."),
    ({"sample_classes": 6}, "sample_classes must be at most 5, got 6."),
    ({"weighting": "balanced"}, "weighting='balanced' needs class_sizes, the training images of each class."),
    (
        {"weighting": "triplet", "class_sizes": [1] * 5},
        "weighting='triplet' needs a class with at least 2 images: there is no triplet here.",
    ),
]


@pytest.mark.parametrize(("options", "text"), LOSSES, ids=[str(options) for options, _ in LOSSES])
def test_options_of_the_loss(options: dict[str, Any], text: str) -> None:
    assert refused(lambda: DiscriminativeLoss(torch.eye(5), **options)) == text


WRONG_KINDS = {
    "evaluate(V, L, ks=[1.5])": "each of ks must be a whole number, got 1.5.",
    "evaluate(V, L, ks=1)": "ks must be a list of whole numbers, such as ks=[1, 2], got 1.",
    "evaluate(V, L, seeds=0)": "seeds must be a list of whole numbers, such as seeds=[1, 2], got 0.",
    "evaluate(V, L, restarts=1.5)": "restarts must be a whole number, got 1.5.",
    "evaluate(V, L, bootstrap=1.5)": "bootstrap, the number of resamples, must be a whole number, got 1.5.",
    "evaluate(V, L, bootstrap_seed=-1)": "bootstrap_seed must be a whole number from 0 to 18446744073709551615, got"
    " -1.",
    "evaluate(V[:1], L[:1])": "there is nothing to find but the query itself: at least 2 vectors are needed.",
    "evaluate(torch.tensor(V).to_sparse(), L)": "vectors must be a tensor that holds all of its numbers, got one of"
    " layout torch.sparse_coo.",
    "evaluate(V, torch.tensor(L).to('meta'))": "labels must be a tensor that holds all of its numbers, got a meta"
    " tensor.",
    "evaluate(V, L, ties=None)": "unknown ties 'None'. Known: expected, index.",
    "evaluate(torch.quantize_per_tensor(torch.tensor(V).float(), 0.1, 0, torch.qint8), L)": "vectors must have a"
    " dtype that NumPy supports, got torch.qint8. Use vectors.dequantize(), or vectors.float().",
    "evaluate(np.ma.masked_greater(V, 2.5), L)": "vectors has a mask that hides 3 of its entries. Fill them in:"
    " vectors.filled(…), or leave their rows out.",
    "evaluate([[1.0], [1.0, 2.0]], [0, 0])": "vectors must be a table or a list of one kind:"
    " its rows differ in length.",
    "evaluate(V, [None, 'a'] * 24)": "labels must be all integers or all strings, got NoneType and str.",
    "recall_at_k([[0, 1], [1, 0]], [0, 1], 1.0)": "k must be a whole number, got 1.0.",
    "recall_at_k([[0, 1], [1, 0]], [0, 1], True)": "k must be a whole number, got True.",
    "recall_at_k([[0, 1], [1, 0]], [0, 1], 1, [[0.0, 0.5], [0, 0]])": "groups must be whole numbers, the same for tied"
    " items, got float64.",
    "place(2.5, 3)": "num_classes must be a whole number, got 2.5.",
    "place('3', 3)": "num_classes must be a whole number, got '3'.",
    "place(40, 3, generator=3)": "generator must be such as torch.Generator().manual_seed(0), got 3.",
    "place(10**9, 10**9)": "1000000000 centroids of 1000000000 numbers are more than this machine has memory"
    " for. Lower dim, or the number of classes.",
    "load('nowhere', embedding='x')": "unknown embedding 'x'. Known: last, penultimate.",
    "embed(Embedder(EmbedderConfig('conv4')), None, [0], batch_size=0)": "batch_size must be at least 1, got 0.",
    "DiscriminativeLoss(np.eye(2))": "centroids must be a tensor of shape (classes, dim), or a whole number of classes"
    " for one-hot ones; got array([[1., 0.], [0., 1.]]).",
    "DiscriminativeLoss(2.5)": "centroids must be a tensor of shape (classes, dim), or a whole number of classes for"
    " one-hot ones; got 2.5.",
    "DiscriminativeLoss(3, push='x')": "push must be in [0, 1), got x: from 1 on the own centroid is no longer the"
    " minimum.",
    "DiscriminativeLoss(torch.eye(3), sample_classes=2.5)": "sample_classes must be a whole number, got 2.5.",
    "DiscriminativeLoss(torch.eye(3), chunk_classes=1.5)": "chunk_classes must be a whole number, got 1.5.",
    "DiscriminativeLoss(3)(torch.eye(3), [0, 1, 2])": "labels must be a tensor, got list: torch.as_tensor(labels) makes"
    " one.",
    "DiscriminativeLoss(3)(np.eye(3), torch.arange(3))": "embeddings must be a tensor, got ndarray:"
    " torch.as_tensor(embeddings) makes one.",
}


def test_wrong_kinds_of_values(printed_by: Callable[..., str]) -> None:
    """In a process without the check of types that the tests have."""
    printed = printed_by(
        """
        import sys, json, numpy as np, torch
        from tammes import DiscriminativeLoss, UserError, evaluate, load
        from tammes.models.embedder import Embedder, EmbedderConfig
        from tammes.training.embedding import embed
        from tammes.centroids import place
        from tammes.metrics import recall_at_k

        assert recall_at_k([[0, 1], [1, 0]], [0, 1], 1) == 1
        eights = torch.eye(4).to(torch.float8_e5m2)
        assert evaluate(eights, [0, 0, 1, 1], ks=[1], clustering=False)["gallery"] == 4
        V, L, said = np.random.default_rng(0).normal(size=(48, 8)), np.arange(48) % 6, {}
        for line in json.loads(sys.argv[1]):
            try:
                eval(line)
            except UserError as error:
                said[line] = str(error)
        print(json.dumps(said))
        """,
        json.dumps(list(WRONG_KINDS)),
    )
    assert json.loads(printed) == WRONG_KINDS


def test_one_hot_centroids_are_never_parted() -> None:
    for options in ({"chunk_classes": 2}, {"sample_classes": 3}):
        assert refused(lambda options=options: DiscriminativeLoss(5, **options)) == (  # type: ignore[misc]
            "one-hot centroids need every coordinate of an embedding for its norm, so chunk_classes and"
            " sample_classes save nothing. Use centroids in fewer dimensions: centroids.place(num_classes, dim)."
        )


def test_nothing_to_measure() -> None:
    from tammes.metrics import nmi, recall_at_k

    none = np.zeros(0, dtype=np.int64)
    assert (
        refused(lambda: recall_at_k(np.zeros((0, 3), dtype=np.int64), none, 1))
        == "nothing is ranked: got shape (0, 3)."
    )
    assert refused(lambda: nmi([], [])) == "labels are empty."


def test_classes_that_have_no_words(tmp_path: Path) -> None:
    days = np.array(["2026-01-01", "2026-01-02"] * 20, dtype="datetime64[D]")
    learner = tammes.MetricLearner().fit(np.random.default_rng(0).normal(size=(40, 4)), days)
    assert refused(lambda: learner.save(tmp_path)) == (
        "classes of the kind datetime64[D] cannot be saved: learn from whole numbers or text."
    )


def test_a_backbone_that_gives_maps() -> None:
    from tammes.models.backbones.base import measured

    assert refused(lambda: measured(nn.Conv2d(3, 4, 3), 8, 8, (0.0,) * 3, (1.0,) * 3)) == (
        "the backbone gives features of shape (1, 4, 6, 6); one vector per image is needed."
    )


def test_a_backbone_that_cannot_be_cut() -> None:
    """None that comes with us; one that somebody adds may be a single layer."""
    from tammes.models.backbones import backbone
    from tammes.models.embedder import Embedder, EmbedderConfig
    from tammes.training.build import build_embedder, cut_of
    from tests.configs import config_of

    embedder = Embedder(EmbedderConfig("conv4", 8))
    embedder.default_cut = None
    config = config_of(backbone="conv4", train="top")
    assert refused(lambda: cut_of(config, embedder)) == (
        "conv4 has no default cut: name one of its modules with `cut`, or use `train='all'`."
    )
    made = replace(backbone("conv4"), depths=())
    assert refused(lambda: build_embedder(config_of(loss="hdc"), made, 4)) == (
        "`loss='hdc'` uses features from several depths, which conv4 does not offer."
        " Use another backbone: googlenet, resnet18, …"
    )


def test_tensorboard_that_is_not_installed(
    waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, said = ended(capsys, "train", str(waves), "--out", str(tmp_path / "run"), *SMALL, "--tensorboard")
    assert (code, said) == (2, "tammes: --tensorboard needs the package tensorboard: pip install 'tammes[track]'.\n")


def test_annotations_of_cars_that_name_nothing(tmp_path: Path) -> None:
    (tmp_path / "car_ims").mkdir()
    names, none = np.array(["a", "b"], dtype=object), np.zeros((1, 0), [("relative_im_path", "O"), ("class", "O")])
    savemat(tmp_path / "cars_annos.mat", {"class_names": names, "annotations": none})
    from tammes.data import cars196

    assert refused(lambda: cars196(tmp_path)) == (
        f"the annotations in {tmp_path} name no images. The data set is incomplete: download it again."
    )


def test_a_list_that_is_a_folder(tmp_path: Path) -> None:
    from tammes.data.files import text
    from tammes.data.table import table

    assert refused(lambda: text(tmp_path)) == f"cannot read {tmp_path}: Is a directory."
    assert refused(lambda: table(tmp_path)) == f"cannot read {tmp_path}: Is a directory."


def test_a_folder_that_is_gone_when_it_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = import_module("tammes.data.folder")  # a function has the same name
    (tmp_path / "a" / "deep").mkdir(parents=True)
    visible = folder._visible

    def seen(place: Path) -> Any:
        found = list(visible(place))
        if place == tmp_path / "a":
            (place / "deep").rmdir()
        return found

    monkeypatch.setattr(folder, "_visible", seen)
    assert refused(lambda: folder.images_below(tmp_path)) == (
        f"cannot look into {tmp_path}/a/deep: No such file or directory."
    )


def test_a_drawing_that_is_damaged_in_its_zip(tmp_path: Path) -> None:
    from tammes.data import omniglot

    file = pack(tmp_path, "images_background", {"Greek": 2}, ZIP_STORED)
    pack(tmp_path, "images_evaluation", {"Latin": 2})
    content = bytearray(file.read_bytes())
    with ZipFile(BytesIO(content)) as archive:
        name = next(each for each in archive.infolist() if each.filename.endswith("character01/0001_01.png"))
    content[name.header_offset + 30 + len(name.filename) + name.file_size - 1] ^= 1
    file.write_bytes(content)
    characters = omniglot(tmp_path)
    assert refused(lambda: characters.read(0)) == (
        f"cannot read {file}: Bad CRC-32 for file '{name.filename}'. Download it again."
    )


def test_an_archive_that_goes_nowhere(tmp_path: Path) -> None:
    from tammes.io.downloads import unpack

    archive, file = tmp_path / "a.zip", tmp_path / "file"
    with ZipFile(archive, "w") as made:
        made.writestr("a.txt", "a")
    file.touch()
    assert refused(lambda: unpack(archive, file)) == f"cannot unpack {archive} into {file}: File exists."


def test_a_model_of_the_hub_that_says_nothing_of_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"tammes": []}')
    save_file({}, tmp_path / "model.safetensors")
    said = refused(lambda: tammes.load(tmp_path))
    assert said.startswith(f"{tmp_path}/config.json: tammes must be an object, got [].")


def test_tensors_of_a_kind_that_is_not_known(tmp_path: Path) -> None:
    """Whole by its length, and without a checksum, as files once were: only who reads it sees what is wrong."""
    from tammes.io.tensor_files import DamagedError, read_tensors

    file = tmp_path / "a.safetensors"
    header = json.dumps({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(DamagedError, match=f"^{file} is damaged: .*F99"):
        read_tensors(file)


def test_frozen_weights_that_are_damaged(tmp_path: Path) -> None:
    from tammes.training.checkpoints import load_weights, save_checkpoint, save_frozen
    from tammes.training.loop import Position
    from tammes.training.run_folder import RunFolder

    network, file = nn.Linear(2, 2), tmp_path / "frozen.safetensors"
    network.bias.requires_grad_(False)
    save_checkpoint(RunFolder(tmp_path), network, torch.optim.SGD([network.weight], lr=0.1), Position())
    save_frozen(RunFolder(tmp_path), network)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    said = refused(lambda: load_weights(RunFolder(tmp_path), network))
    assert said.startswith(f"{file} is damaged: ")
    assert said.endswith(" The run cannot be resumed: start over with `overwrite=True`.")


def test_a_gallery_where_none_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tammes.gallery import lance_tables

    assert refused(lambda: lance_tables.table_names("nonsense://x")).startswith(
        "cannot open a gallery at nonsense://x: "
    )
    place = str(tmp_path)
    assert refused(lambda: lance_tables.new_items(place, lance_tables.connect(place), 0)).startswith(
        f"cannot make a gallery at {place}: "
    )

    class Unreachable:
        def list_tables(self) -> None:
            raise OSError("the network is down")

    monkeypatch.setattr(lance_tables, "connect", lambda _: Unreachable())
    assert refused(lambda: lance_tables.table_names("s3://shelf/g")) == "cannot read s3://shelf/g: the network is down"


def test_a_gallery_that_another_rebuilds_meanwhile(
    waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = import_module("tammes.gallery.update")
    shutil.copytree(waves / "class 0", tmp_path / "photos" / "class 0")
    run, photos, gallery = (str(tmp_path / name) for name in ("run", "photos", "g"))
    main(["train", str(waves), "--out", run, *SMALL])
    main(["index", run, photos, "--gallery", gallery])
    shutil.copytree(waves / "class 1", tmp_path / "photos" / "class 1")
    embed = index._embed

    def disturbed(*given: Any) -> Any:
        monkeypatch.setattr(index, "_embed", embed)
        main(["index", run, photos, "--gallery", gallery, "--rebuild"])
        return embed(*given)

    monkeypatch.setattr(index, "_embed", disturbed)
    code, said = ended(capsys, "index", run, photos, "--gallery", gallery)
    assert code == 2
    assert said.endswith(
        f"tammes: {gallery} was rebuilt by another program meanwhile, and does not have these images. The same command"
        " adds them.\n"
    )
    assert ended(capsys, "index", run, photos, "--gallery", gallery)[0] == 0
