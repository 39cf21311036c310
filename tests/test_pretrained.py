"""Pretrained networks as models: any name, size and pooling; searched, embedded and evaluated without training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import tammes
from tammes import UserError
from tammes.cli import main
from tammes.gallery.model import recorded_classes
from tammes.models.backbones import backbone
from tammes.models.embedder import checked_precision
from tammes.models.feature_cache import Frozen
from tammes.models.pooling import GEM_POWER, GeM, MeanMaxPool
from tammes.models.pretrained import load_model, with_whitening
from tammes.models.whitening import directions


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of random weights for resnet18."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(backbone("resnet18").network.state_dict(), file)
    return file


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of four images: noise around a colour of the class."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(4):
        (root / f"class {number}").mkdir()
        for image in range(4):
            pixels = random.normal(40 + 50 * number, 30, (80, 80, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"class {number}" / f"{image}.jpg")
    return root


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def typed(*words: object) -> str:
        capsys.readouterr()
        main(list(map(str, words)))
        return capsys.readouterr().out

    return typed


def test_generalised_mean_is_its_equation() -> None:
    maps = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    expected = [[(channel**GEM_POWER).mean() ** (1 / GEM_POWER) for channel in image] for image in maps]
    torch.testing.assert_close(GeM()(maps)[:, :, 0, 0], torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_generalised_mean_has_a_finite_gradient_where_a_map_is_zero_or_negative() -> None:
    maps = torch.tensor([[[[0.0, -1.0], [0.0, 0.0]]]], requires_grad=True)
    GeM()(maps).sum().backward()
    assert maps.grad is not None
    assert maps.grad.isfinite().all()


def test_mean_max_lies_in_the_middle() -> None:
    maps = torch.tensor([[[[1.0, 3.0], [0.0, 0.0]]]])
    assert MeanMaxPool()(maps).item() == 2.0


@pytest.mark.parametrize(
    ("name", "pool", "size"),
    [
        ("googlenet", "gem", 96),
        ("resnet18", "mean-max", 64),
        ("timm:test_vit", "token", 96),
        ("timm:test_vit", "mean-max", 128),
        ("timm:test_vit", "mean", 160),
        ("timm:test_resnet", "gem", 96),
        ("timm:test_convnext", "gem", 96),
    ],
)
def test_any_network_sees_images_of_another_size_and_has_another_pooling(name: str, pool: str, size: int) -> None:
    made = backbone(name, pool=pool, size=size)  # type: ignore[arg-type]
    published = backbone(name)
    assert made.size == size
    assert made.shorter_side == round(size * published.shorter_side / published.size)
    with torch.inference_mode():
        assert made.network.eval()(torch.rand(2, 3, size, size)).shape == (2, made.features)


def test_position_embeddings_are_interpolated() -> None:
    torch.manual_seed(0)
    published = backbone("timm:test_vit")
    torch.manual_seed(0)
    smaller = backbone("timm:test_vit", size=published.size // 2)
    before, after = (each.network.get_parameter("pos_embed") for each in (published, smaller))
    assert after.shape[1] < before.shape[1]
    torch.testing.assert_close(before[:, 0], after[:, 0])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {"pool": "token"}, "has no class token"),
        ("timm:test_vit", {"size": 100}, "test_vit does not accept images of 100 x 100"),
        ("timm:test_vit", {"pool": "gem"}, "cannot have `pool='gem'`"),
        ("vit_b_32", {"size": 160}, "vit_b_32 does not accept images of 160 x 160"),
        ("resnet18", {"size": 0}, "`size` must be at least 1"),
        ("hf-hub:owner", {"weights": "imagenet"}, "hf-hub:owner is not a network on the hub: hf-hub:owner/name"),
        ("resnet18", {"size": 10**6}, "`size` must be at most"),
    ],
)
def test_what_a_network_cannot_be_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        backbone(name, **options)  # type: ignore[arg-type]


def test_the_image_tower_of_open_clip_is_a_network() -> None:
    pytest.importorskip("open_clip")
    made = backbone("open_clip:ViT-B-32-256")
    assert (made.size, made.features) == (256, 512)
    assert backbone("open_clip:ViT-B-32-256/datacomp_s34b_b86k").features == 512  # nothing is downloaded for no weights
    with pytest.raises(UserError, match="unknown open_clip model 'ViT-B-33'. The nearest are ViT-B-32, "):
        backbone("open_clip:ViT-B-33")
    with pytest.raises(
        UserError, match="has several sets of weights. Name one, such as open_clip:ViT-B-32/openai: openai, "
    ):
        backbone("open_clip:ViT-B-32", weights="imagenet")


def test_a_size_trains_and_comes_back_with_the_run(photos: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"weights": "none", "train": "all", "epochs": 1, "batch_size": 8}
    trained = tammes.train(photos, backbone="timm:test_vit", size=96, out=tmp_path / "run", **options)
    assert tammes.load(trained.folder).size == 96
    np.testing.assert_array_equal(trained.embedder.encode(photos), tammes.load(trained.folder).encode(photos))


def test_a_folder_is_indexed_and_searched_without_training(
    photos: Path, weights: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    gallery = tmp_path / "gallery"
    said = run(
        "index", "resnet18", photos, "--weights", weights, "--size", 64, "--pool", "max", "--gallery", gallery, "--json"
    )
    images = sorted(photos.rglob("*.jpg"))
    assert json.loads(said)["added"] == len(images)
    (query,) = json.loads(run("search", gallery, images[0], "-k", 3, "--json"))["queries"]
    assert query["found"][0]["path"] == str(images[0].resolve())
    assert query["found"][0]["distance"] < 1e-3


def test_a_folder_is_embedded_and_evaluated_without_training(
    photos: Path, weights: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    out = tmp_path / "vectors.npz"
    run("embed", "resnet18", photos, "--weights", weights, "--size", 64, "--out", out)
    with np.load(out) as file:
        assert file["vectors"].shape == (len(sorted(photos.rglob("*.jpg"))), 512)
    rows = json.loads(run("evaluate", "resnet18", photos, "--weights", weights, "--size", 64, "--json"))
    assert rows.keys() == {"pretrained"}
    of_file = json.loads(run("evaluate", out, "--json"))["vectors"]
    assert rows["pretrained"]["recall_at_1"] == pytest.approx(of_file["recall_at_1"], abs=0.1)  # half precision
    whitened = json.loads(run("evaluate", "resnet18", photos, "--weights", weights, "--size", 64, "--whiten", "--json"))
    assert whitened.keys() == {"pretrained", "whitened", "pca_whitened"}
    assert whitened["whitened"]["classes"] < rows["pretrained"]["classes"]  # the others decide the whitening


def test_whitening_without_labels_is_damped_pca_whitening() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, 6)) * [5.0, 3.0, 1.0, 0.5, 0.1, 0.0] + 7
    found = (vectors - vectors.mean(axis=0)) @ directions(vectors, None, whiten=True)
    scatter = np.linalg.eigvalsh(np.cov(vectors.T))[::-1]
    spread, expected = found.var(axis=0), scatter / (scatter + scatter.mean())
    np.testing.assert_allclose(spread / spread.sum(), expected / expected.sum(), atol=1e-9)
    covariance = np.cov(found.T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-9)


def test_a_gallery_keeps_its_whitening_and_needs_no_option_for_it(
    photos: Path, weights: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    gallery, network = tmp_path / "gallery", ["--weights", weights, "--size", 64, "--json"]
    first = [photos / f"class {number}" for number in range(3)]
    root = tmp_path / "some"
    root.mkdir()
    for folder in first:
        (root / folder.name).symlink_to(folder)
    run("index", "resnet18", root, "--whiten", "--gallery", gallery, *network)
    kept = tammes.Gallery(gallery).store.about
    assert kept.network is not None
    assert kept.network.whitening
    assert kept.dim == 11  # 12 images span no more
    seen = [folder.name for folder in first]
    assert tammes.Gallery(gallery).trained_on == recorded_classes(kept) == seen  # a threshold on them is a guess
    more = json.loads(run("index", "resnet18", photos, "--gallery", gallery, *network))
    assert more["added"] == 4 + 12  # under another path
    assert tammes.Gallery(gallery).store.about.network == kept.network
    image = photos / "class 3" / "0.jpg"
    (query,) = json.loads(run("search", gallery, image, "-k", 1, "--json"))["queries"]
    assert query["found"][0]["path"] == str(image.resolve())
    assert query["found"][0]["distance"] < 1e-3
    by_name = tammes.Gallery(gallery, tammes.pretrained("resnet18", weights=weights, size=64, whiten=root))
    assert by_name.search(image).hits[0].distance < 1e-3  # found in the same way, it is the same


def test_a_whitening_of_labels_and_one_without_are_two(photos: Path, weights: Path) -> None:
    of_classes = tammes.pretrained("resnet18", weights=weights, size=64, whiten=photos)
    flat = tammes.pretrained("resnet18", weights=weights, size=64, whiten=photos / "class 0")
    assert not of_classes.new_layers()[0].bias.any()
    assert flat.new_layers()[0].bias.any()  # seen from the mean
    assert flat.config.dim == 3
    assert of_classes.origin.classes() == [f"class {number}" for number in range(4)]  # type: ignore[union-attr]
    assert flat.origin.classes() == []  # type: ignore[union-attr]


def test_what_cannot_be_whitened_is_refused(
    photos: Path, weights: Path, tmp_path: Path, run: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    network = ["--weights", weights, "--size", 64, "--gallery", tmp_path / "gallery"]
    run("index", "resnet18", photos, *network)
    with pytest.raises(SystemExit):
        main(list(map(str, ["index", "resnet18", photos, "--whiten", *network])))
    assert "was made without whitening: leave out --whiten, or make it again with --rebuild" in capsys.readouterr().err
    text = tammes.pretrained("resnet18", weights=weights, size=64, whiten=photos).origin.whitening  # type: ignore[union-attr]
    with pytest.raises(UserError, match="the whitening does not fit resnet18"):
        with_whitening(tammes.pretrained("resnet18", weights=weights, size=64), text[:-4])
    one = tmp_path / "one"
    one.mkdir()
    (one / "0.jpg").symlink_to(photos / "class 0" / "0.jpg")
    with pytest.raises(UserError, match="`whiten` needs at least two readable images, and there are 1"):
        tammes.pretrained("resnet18", weights=weights, size=64, whiten=one)


def test_features_are_computed_once_for_every_command(
    photos: Path, weights: Path, tmp_path: Path, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "cache"))
    network = ["--weights", weights, "--size", 70]  # of images of 80 pixels, which are not scaled
    run("index", "resnet18", photos, *network, "--gallery", tmp_path / "gallery")
    computed: list[int] = []
    below = Frozen.below

    def counted(self: Frozen, images: torch.Tensor) -> torch.Tensor:
        computed.append(len(images))
        return below(self, images)

    monkeypatch.setattr(Frozen, "below", counted)
    run("embed", "resnet18", photos, *network, "--out", tmp_path / "vectors.npz")
    run("embed", "resnet18", photos, *network, "--whiten", "--out", tmp_path / "whitened.npz")
    run("evaluate", "resnet18", photos, *network)
    run("index", "resnet18", photos, *network, "--whiten", "--gallery", tmp_path / "whitened")
    for number in ("0", "2"):
        words = [
            "--backbone",
            "resnet18",
            "--train",
            "head",
            "--epochs",
            1,
            "--batch-size",
            4,
            "--test-classes",
            number,
        ]
        run("train", photos, *network, *words, "--out", tmp_path / f"run {number}")
    assert computed == []
    run("embed", "resnet18", photos, "--weights", weights, "--size", 96, "--out", tmp_path / "larger.npz")
    assert sum(computed) == 16
    run("index", "resnet18", photos, "--weights", weights, "--size", 96, "--gallery", tmp_path / "larger")
    assert sum(computed) == 16  # scaled images too


def test_a_gallery_keeps_the_precision_of_its_network(
    photos: Path, weights: Path, tmp_path: Path, run: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    gallery, network = tmp_path / "gallery", ["--weights", weights, "--size", 64]
    run("index", "resnet18", photos / "class 0", "--precision", "bf16", "--gallery", gallery, *network)
    run("index", "resnet18", photos / "class 1", "--gallery", gallery, *network)
    found = tammes.Gallery(gallery)
    assert found.embedder.precision == found.store.about.precision == "bf16"
    expected = tammes.pretrained("resnet18", weights=weights, size=64, precision="bf16")
    image = photos / "class 1" / "0.jpg"
    (row,) = found.store.get([str(image)])
    np.testing.assert_allclose(row.vector, expected.encode(image)[0], atol=2e-3)
    assert tammes.Gallery(gallery, expected).search(image).hits[0].distance < 2e-3
    with pytest.raises(UserError, match=r"made by another model, resnet18 .*, in bfloat16: its vectors cannot be"):
        tammes.Gallery(gallery, tammes.pretrained("resnet18", weights=weights, size=64))
    with pytest.raises(SystemExit):
        main(list(map(str, ["index", "resnet18", photos, "--precision", "no", "--gallery", gallery, *network])))
    assert "in bfloat16: its vectors cannot be compared" in " ".join(capsys.readouterr().err.split())
    run("index", "resnet18", photos, "--precision", "no", "--gallery", gallery, *network, "--rebuild")
    assert tammes.Gallery(gallery).embedder.precision == "no"


def test_a_run_is_indexed_embedded_and_evaluated_in_bfloat16(
    photos: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    trained = tammes.train(photos, backbone="conv4", epochs=1, batch_size=8, out=tmp_path / "run")
    run("index", trained.folder, photos, "--precision", "bf16", "--gallery", tmp_path / "gallery")
    gallery = tammes.Gallery(tmp_path / "gallery")
    assert gallery.embedder.precision == "bf16"
    expected = tammes.load(trained.folder, precision="bf16").encode(photos)
    assert not np.array_equal(expected, tammes.load(trained.folder).encode(photos))
    for precision, exact in (("bf16", True), ("no", False)):
        out = tmp_path / f"{precision}.npy"
        run("embed", trained.folder, photos, "--precision", precision, "--out", out)
        assert np.allclose(np.load(out), expected, atol=1e-5) == exact
    rows = [
        json.loads(run("evaluate", trained.folder, photos, *how, "--json")) for how in ([], ["--precision", "bf16"])
    ]
    assert rows[0].keys() == rows[1].keys() == {"untrained", "trained"}
    with pytest.raises(UserError, match=r"unknown precision 'bf61'\. Did you mean 'bf16'"):
        checked_precision("bf61")


def test_a_processor_without_bfloat16_is_said_once(
    photos: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tammes.models.embedder, "multiplies_bfloat16", lambda: False)
    tammes.models.embedder._say_if_slow.cache_clear()
    embedder = tammes.pretrained("resnet18", weights=weights, size=64, precision="bf16")
    for _ in range(2):
        embedder.encode(photos / "class 0")
    assert capsys.readouterr().err.count("no bfloat16 instructions") == 1


def test_options_of_a_network_are_refused_for_a_trained_model(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="`size` is for a pretrained network"):
        load_model(tmp_path / "run", size=64)
    with pytest.raises(UserError, match="no such run: runs/nothing"):
        load_model("runs/nothing")
    with pytest.raises(UserError, match=r"unknown backbone 'resnet51'\. Did you mean"):
        load_model("resnet51")


def test_models_are_listed_by_a_word_in_their_name(run: Callable[..., str]) -> None:
    listed = {each["name"]: each for each in json.loads(run("models", "resnet18", "--json"))["models"]}
    assert listed["resnet18"]["dim"] == 512
    assert listed["resnet18"]["parameters"] == 11_176_512
    assert "torchvision:resnet18" in listed
    assert "resnet50" in run("models")
    with pytest.raises(SystemExit):
        run("models", "nosuchnetwork")
