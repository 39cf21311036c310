"""Trainings that are given Python objects: data, networks and transforms of the caller's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

import tammes
from tammes import UserError
from tammes.cli import main
from tammes.data import TEST, TRAIN, Dataset, dataset_of, open_dataset
from tammes.data.batches import batches
from tammes.data.image_cache import decode
from tammes.data.transforms import Transform

WANTS: dict[str, Any] = {"size": 24, "mean": 0.5, "std": 0.25}
SMALL: dict[str, Any] = WANTS | {"dim": 8, "batch_size": 16, "epochs": 2, "test_classes": 4}


class Maps(nn.Module):
    """A network that ends in maps."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first, self.second = nn.Conv2d(1, 8, 3, 2), nn.Conv2d(8, 16, 3, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.second(torch.relu(self.first(images)))
        return found


def jitter(image: Image.Image) -> Image.Image:
    """At random, by all three generators that a transform may use."""
    turned = v2.RandomRotation(20)(image)
    shifted = np.roll(np.asarray(turned), np.random.randint(5), axis=0)
    return v2.RandomCrop(24)(Image.fromarray(shifted))  # type: ignore[no-any-return]


def same_weights(one: tammes.Run, other: tammes.Run) -> bool:
    ours, theirs = one.embedder.state_dict(), other.embedder.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def run(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> tammes.Run:
    return tammes.train(waves, backbone=Maps(), transform=jitter, out=tmp_path_factory.mktemp("runs") / "own", **SMALL)


@pytest.mark.xdist_group("export")  # the exporter takes seconds to import
def test_a_module_is_trained_and_its_run_can_do_what_runs_can(run: tammes.Run, waves: Path, tmp_path: Path) -> None:
    before, after = Maps().state_dict(), run.embedder.backbone.network.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert run.evaluate(clustering=False)["trained"]["recall_at_1"] == run.metrics["recall_at_1"]
    assert run.evaluate(waves, clustering=False)["trained"]["classes"] == 8
    assert "module:Maps" in run.report(tmp_path / "page.html").read_text()
    assert run.export(tmp_path / "model.onnx").stat().st_size > 1000


def test_the_callers_module_is_left_as_it_is(waves: Path, tmp_path: Path) -> None:
    module = Maps()
    tammes.train(waves, backbone=module, out=tmp_path / "run", **SMALL | {"epochs": 1})
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), Maps().parameters(), strict=True))


def test_a_run_with_a_module_is_loaded_with_one_like_it(run: tammes.Run, waves: Path) -> None:
    image = next(waves.rglob("*.png"))
    found = tammes.load(run.folder, backbone=Maps()).encode(image)
    np.testing.assert_array_equal(found, run.embedder.encode(image))
    again = tammes.load_run(run.folder, backbone=Maps(), transform=jitter)
    assert again.evaluate(clustering=False)["trained"]["recall_at_1"] == run.metrics["recall_at_1"]
    with pytest.raises(UserError, match=r"Maps.*backbone=module"):
        tammes.load(run.folder)
    with pytest.raises(UserError, match="not those of the network"):
        tammes.load(run.folder, backbone=nn.Conv2d(1, 4, 3))


@pytest.mark.parametrize(
    "command", [["evaluate"], ["report"], ["embed", "DATA", "--out", "OUT"], ["train", "--resume"]]
)
def test_the_command_line_says_what_such_a_run_lacks(
    command: list[str], run: tammes.Run, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.folder
    if "--resume" in command:
        folder = tmp_path / "run"
        with pytest.raises(RuntimeError):
            tammes.train(waves, backbone=Maps(), out=folder, on_epoch=_fail, **SMALL)
    words = [str(waves) if each == "DATA" else str(tmp_path / "x.npz") if each == "OUT" else each for each in command]
    with pytest.raises(SystemExit, match="2"):
        main([*words, str(folder)] if "--resume" in words else [words[0], str(folder), *words[1:]])
    assert "backbone=module" in capsys.readouterr().err


def _fail(_run: tammes.Run, _epoch: dict[str, Any]) -> None:
    raise RuntimeError("stop here")


def test_a_run_with_module_transforms_and_data_resumes_to_the_same_weights(waves: Path, tmp_path: Path) -> None:
    pairs = [(image, image.parent.name) for image in sorted(waves.rglob("*.png"))]
    objects: dict[str, Any] = {"backbone": Maps(), "transform": jitter, "eval_transform": v2.CenterCrop(24)}
    whole = tammes.train(pairs, out=tmp_path / "whole", **objects, **SMALL)
    with pytest.raises(RuntimeError, match="stop here"):
        tammes.train(pairs, out=tmp_path / "run", on_epoch=_fail, **objects, **SMALL)
    resumed = tammes.load_run(tmp_path / "run", data=pairs, **objects).resume()
    assert same_weights(whole, resumed)
    assert resumed.metrics["recall_at_1"] == whole.metrics["recall_at_1"]


def test_a_network_of_timm_says_what_images_it_wants() -> None:
    import timm

    module = timm.create_model("resnet10t", num_classes=0)
    embedder = tammes.pretrained(module)
    wants: Any = module.pretrained_cfg
    assert embedder.size == wants["input_size"][-1]
    assert embedder.config.mean == wants["mean"]
    assert embedder.config.dim == module.num_features
    with pytest.raises(UserError, match="size, mean, std"):
        tammes.pretrained(Maps())


class Strange(nn.Module):
    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor) -> Any:
        return self.answer(images)


@pytest.mark.parametrize(
    ("answer", "given", "error"),
    [
        (lambda images: {"x": images}, {}, "must give a tensor, got dict"),
        (lambda images: images.flatten(), {}, r"must give vectors"),
        (lambda images: images @ torch.zeros(3, 3), {}, "does not accept images of 2x1x24x24"),
        (lambda images: images.flatten(1), {"mean": (0.5, 0.5)}, "mean must have 3 entries"),
        (lambda images: images.flatten(1), {"std": 0}, "std must be above 0"),
        (lambda images: images.flatten(1), {"mean": (0.5,) * 3}, "mean has 3 channels and std 1"),
        (lambda images: images.flatten(1), {"size": 0}, "size must be at least 1"),
        (lambda images: images.flatten(1), {"shorter_side": 5}, "shorter_side must be at least size=24"),
        (lambda images: images.flatten(1), {"weights": "imagenet"}, "leave out weights"),
        (lambda images: images.flatten(1), {"transform": jitter, "train": "head"}, "train='all'"),
        (lambda images: images.flatten(1), {"transform": jitter, "mirror": True}, "leave out mirror"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_work(
    answer: Callable[[Tensor], Any], given: dict[str, Any], error: str, waves: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=error):
        tammes.train(waves, backbone=Strange(answer), out=tmp_path / "run", **SMALL | given)
    assert not (tmp_path / "run").exists()


def test_a_named_network_takes_no_mean(waves: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mean is for a backbone that is a module"):
        tammes.train(waves, backbone="conv4", mean=0.5, out=tmp_path / "run")


def pictures(number: int = 24) -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (30, 30), dtype=np.uint8)) for _ in range(number)]


@pytest.mark.parametrize("kind", ["pillow", "array", "tensor", "path"])
def test_pairs_of_image_and_label_in_any_form_are_the_same_images(kind: str, tmp_path: Path) -> None:
    given: list[Any] = list(pictures())
    if kind == "array":
        given = [np.asarray(each) for each in given]
    if kind == "tensor":
        given = [torch.from_numpy(np.array(each))[None] for each in given]
    if kind == "path":
        for number, each in enumerate(given):
            each.save(tmp_path / f"{number}.png")
        given = [str(tmp_path / f"{number}.png") for number in range(len(given))]
    labels = [number % 12 for number in range(24)]
    found = dataset_of(list(zip(given, labels, strict=True)))
    assert found.class_names == tuple(str(number) for number in range(12))  # 2 before 10
    assert found.labels.tolist() == labels
    for number, picture in enumerate(pictures()):
        np.testing.assert_array_equal(np.asarray(found.read(number)), np.asarray(picture))


def test_the_fingerprint_of_pairs_follows_the_pixels_and_the_labels() -> None:
    given = pictures()
    labels = [number % 4 for number in range(24)]
    first = dataset_of(list(zip(given, labels, strict=True))).fingerprint
    assert dataset_of(list(zip(pictures(), map(str, labels), strict=True))).fingerprint == first
    other = pictures()
    other[3].putpixel((0, 0), (other[3].getpixel((0, 0)) + 1) % 256)  # type: ignore[operator]
    assert dataset_of(list(zip(other, labels, strict=True))).fingerprint != first
    assert dataset_of(list(zip(given, labels[::-1], strict=True))).fingerprint != first


def test_a_data_set_of_torchvision_keeps_its_class_names() -> None:
    from torchvision.datasets import FakeData

    class Named(FakeData):  # type: ignore[misc]
        targets = (0, 2, 2, 1)
        classes = ("cat", "dog", "bird")

    found = dataset_of(Named(4, (3, 8, 8), 3))
    assert found.class_names == ("bird", "cat", "dog")
    assert [found.class_names[label] for label in found.labels] == ["cat", "bird", "bird", "dog"]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (5, "data is a int"),
        ([], "data is empty"),
        ([1, 2], r"data\[0\] must be a pair"),
        ([("a.png", 1), ("b.png", "1")], "differ only in their type"),
        ([("a.png", 1), ("b.png", float("nan"))], "a label must be a whole number or a text, got nan"),
        ([("a.png", 1), ("b.png", 1)], "only one class"),
        ([(np.zeros((4, 4)), 0), (np.zeros((4, 4)), 1)], r"data\[0\] is a ndarray of float64 \(4, 4\)"),
        ([(np.zeros((0, 4), np.uint8), 0), (np.zeros((4, 4), np.uint8), 1)], r"\(0, 4\)"),
    ],
)
def test_data_that_cannot_be_used_is_refused(data: Any, error: str) -> None:
    with pytest.raises(UserError, match=error):
        dataset_of(data)


def test_a_hugging_face_data_set_is_taken_with_its_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcdefgh"))})
    labels = [number % 8 for number in range(24)]
    whole = datasets.Dataset.from_dict({"image": pictures(), "label": labels}, features=features)
    found = dataset_of(whole)
    assert (found.class_names, found.labels.tolist(), found.part) == (tuple("abcdefgh"), labels, None)
    np.testing.assert_array_equal(np.asarray(found.read(5)), np.asarray(pictures()[5]))
    assert dataset_of(whole).fingerprint == found.fingerprint != dataset_of(whole.select(range(16))).fingerprint
    parts = {"train": whole.select(range(12)), "validation": whole.select(range(12, 24))}
    split = dataset_of(datasets.DatasetDict(parts))
    assert split.part is not None
    assert split.part.tolist() == [TRAIN] * 12 + [TEST] * 12
    with pytest.raises(UserError, match=r"no label columns.*'label'"):
        dataset_of(whole.rename_column("label", "species").cast_column("species", datasets.Value("int64")))
    run = tammes.train(whole, backbone="conv4", epochs=1, dim=8, out=tmp_path / "run")
    assert run.config.data == "python:data"
    assert run.evaluate(clustering=False)["trained"]["recall_at_1"] == run.metrics["recall_at_1"]
    with pytest.raises(UserError, match="data=data"):
        tammes.load_run(run.folder).evaluate()


def test_data_from_python_trains_as_the_same_folder_does(waves: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"backbone": "conv4", "dim": 8, "epochs": 1, "batch_size": 16}
    folder = open_dataset(str(waves))
    pairs = [(folder.read(number), folder.class_names[label]) for number, label in enumerate(folder.labels)]
    runs = [
        tammes.train(data, out=tmp_path / name, **given) for name, data in (("a", waves), ("b", folder), ("c", pairs))
    ]
    assert same_weights(runs[0], runs[1])
    assert same_weights(runs[0], runs[2])


def decoded(tmp_path: Path) -> Any:
    labels = np.arange(24) % 4
    dataset = dataset_of([(each, str(label)) for each, label in zip(pictures(), labels, strict=True)])
    assert isinstance(dataset, Dataset)
    return decode(dataset, mode="L", cache=tmp_path), labels


def transformed(tmp_path: Path, function: Callable[[Any], Any], **options: Any) -> list[Tensor]:
    images, labels = decoded(tmp_path)
    given: dict[str, Any] = {
        "batch_size": 7,
        "train": True,
        "transform": Transform("transform", function),
        "seed": 3,
        "epoch": 2,
    }
    found = batches(images, np.arange(24), labels, **given | options)
    return [batch for batch, _, _ in found]


def test_transforms_draw_the_same_whoever_runs_them_and_leave_no_trace(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    first = transformed(tmp_path, jitter)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    again, by_workers = transformed(tmp_path, jitter), transformed(tmp_path, jitter, workers=2)
    for one, two, three in zip(first, again, by_workers, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert not torch.equal(first[0], transformed(tmp_path, jitter, epoch=3)[0])


def test_a_transform_may_be_of_tensors_and_give_floats(tmp_path: Path) -> None:
    plain = transformed(tmp_path, lambda image: image)[0]
    by_tensor = transformed(tmp_path, lambda pixels: pixels.new_tensor(pixels.numpy()))[0]
    floats = transformed(tmp_path, v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]))[0]
    assert torch.equal(plain, by_tensor)
    torch.testing.assert_close(plain.float(), floats)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda _: 5, "got a int"),
        (lambda _: torch.zeros(3, 4, 4), r"\(1, height, width\), got a tensor of \(3, 4, 4\)"),
        (lambda _: torch.full((1, 4, 4), 2.0), "from 2 to 2.*Normalize"),
        (lambda _: torch.zeros(1, 4, 4, dtype=torch.int64), "int64"),
        (lambda image: image.no_such_thing, "transform fails on an image of 30 x 30"),
        (lambda image: image.resize((int(np.random.randint(4, 30)), 8)), "all of a batch must have one size"),
    ],
)
def test_what_a_transform_must_not_give_is_refused(function: Callable[[Any], Any], error: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=error):
        transformed(tmp_path, function)


def test_an_evaluation_transform_is_used_wherever_images_are_embedded(waves: Path, tmp_path: Path) -> None:
    def left_half(image: Image.Image) -> Image.Image:
        return image.crop((0, 0, image.width // 2, image.height)).resize((24, 24))

    given = SMALL | {"epochs": 1}
    run = tammes.train(waves, backbone=Maps(), eval_transform=left_half, out=tmp_path / "run", **given)
    other = tammes.train(waves, backbone=Maps(), out=tmp_path / "other", **given)
    assert same_weights(run, other)
    image = Image.open(next(waves.rglob("*.png")))
    right = image.copy()
    right.paste(0, (image.width // 2 + 2, 0, image.width, image.height))
    np.testing.assert_allclose(run.embedder.encode(image), run.embedder.encode(right), atol=0.05)
    assert np.abs(other.embedder.encode(image) - other.embedder.encode(right)).max() > 0.05
    assert run.evaluate(clustering=False)["trained"]["recall_at_1"] == run.metrics["recall_at_1"]
    with pytest.raises(UserError, match="left_half.*eval_transform=transform"):
        tammes.load(run.folder, backbone=Maps())
