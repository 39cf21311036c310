"""Exported models give PyTorch's vectors, take any batch and any picture, and are not written where they do not."""

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.export import FORMS, Options
from benchmarks.export import main as benchmark
from tammes import UserError, load
from tammes.cli import main
from tammes.data.images import centre
from tammes.export import check_difference, described, for_export, images_per_second, of_torch, vector_size
from tammes.export.formats import (
    IN_8_BITS,
    nearest_in_8_bits,
    of_onnx,
    of_program,
    onnx_file,
    onnx_session,
    torch_program,
)
from tammes.export.hub_folder import Card, hub_files, licence_text, model_card, write_hub_folder
from tammes.export.preprocessing import Centred
from tammes.models.embedder import Embedder, EmbedderConfig
from tests.test_architecture import ROOT

pytestmark = pytest.mark.xdist_group("export")  # the exporter takes seconds to import
SIZES = [(301, 217), (100, 333), (28, 28), (29, 28), (37, 91), (7, 5), (1, 3), (400, 777)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, waves: Path) -> Path:
    out = tmp_path_factory.mktemp("export") / "run"
    main(
        [
            "train",
            str(waves),
            "--backbone",
            "conv4",
            "--epochs",
            "1",
            "--dim",
            "16",
            "--device",
            "cpu",
            "--out",
            str(out),
        ]
    )
    return out


@pytest.fixture(scope="module")
def embedder(run: Path) -> Embedder:
    return load(run)


@pytest.fixture(scope="module")
def content(embedder: Embedder) -> bytes:
    return onnx_file(embedder)


def images(number: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (number, 1, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize(("shorter_side", "size"), [(28, 28), (37, 30)])
def test_a_picture_is_scaled_and_cropped_as_pillow_does_to_the_bit(
    height: int, width: int, shorter_side: int, size: int
) -> None:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    expected = centre(Image.fromarray(pixels), "RGB", shorter_side=shorter_side, size=size)
    found = Centred(shorter_side, size)(torch.from_numpy(pixels)).numpy()
    np.testing.assert_array_equal(found, expected)


def test_onnx_gives_the_vectors_of_pytorch_for_any_number_of_images(embedder: Embedder, content: bytes) -> None:
    runs, expected = of_onnx(content), of_torch(embedder)
    for number in (1, 2, 7):
        check_difference(runs(images(number)), expected(images(number)), largest=1e-5)
    assert [(each.name, each.shape) for each in onnx_session(content).get_inputs()] == [
        ("images", ["batch", 1, 28, 28])
    ]
    assert images_per_second(runs, images(2), seconds=0.0) > 0


def test_the_onnx_file_says_how_its_images_are_made(embedder: Embedder, content: bytes) -> None:
    said = json.loads(onnx_session(content).get_modelmeta().custom_metadata_map["tammes"])
    assert said == json.loads(json.dumps(described(embedder)))
    assert said["preprocessing"]["resize"]["shorter_side"] == 28
    assert said["vectors"]["dim"] == 16


@pytest.mark.slow
def test_onnx_with_preprocessing_takes_pictures_of_any_size(embedder: Embedder) -> None:
    session = onnx_session(onnx_file(embedder, with_preprocessing=True))
    for height, width in SIZES:
        pixels = np.random.default_rng(width).integers(0, 256, (height, width, 1), dtype=np.uint8)
        found = session.run(None, {"picture": pixels})[0]
        check_difference(found, embedder.encode(Image.fromarray(pixels[:, :, 0])), largest=1e-4)


def test_eight_bits_are_smaller_and_near(embedder: Embedder, content: bytes) -> None:
    small, apart = nearest_in_8_bits(content, images(16), images(20)[16:])
    assert len(small) < len(content) / 2
    assert 0 < np.abs(of_onnx(small)(images(4)) - of_torch(embedder)(images(4))).max() < 0.1
    assert set(apart) == set(IN_8_BITS)
    assert list(apart.values()) == sorted(apart.values())


def test_a_program_of_torch_export_needs_no_code_of_ours(embedder: Embedder) -> None:
    program = torch_program(embedder)
    for number in (1, 5):
        check_difference(of_program(program)(images(number)), of_torch(embedder)(images(number)), largest=1e-5)


def test_what_is_exported_is_a_copy(embedder: Embedder) -> None:
    copied = for_export(embedder.train())
    assert embedder.training
    assert not copied.training
    embedder.eval()


def test_a_difference_beyond_rounding_is_refused() -> None:
    vectors = np.zeros((2, 3), dtype=np.float32)
    assert check_difference(vectors, vectors + np.float32(5e-5)) == pytest.approx(5e-5)
    with pytest.raises(UserError, match=r"^the exported model differs from PyTorch by 0\.0002 on 2 images, more than"):
        check_difference(vectors, vectors + np.float32(2e-4))
    with pytest.raises(UserError, match="differs from PyTorch by nan"):
        check_difference(vectors * np.float32("nan"), vectors)


def test_the_command_writes_checks_and_says_what_it_saw(
    run: Path, embedder: Embedder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model.safetensors"
    main(["export", str(run), "--format", "safetensors", "--out", str(out), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["max_difference"] == 0
    assert set(record["images_per_second"]) == {"torch", "safetensors"}
    assert json.loads((tmp_path / "model.safetensors.json").read_text())["input"]["shape"] == ["batch", 1, 28, 28]
    with pytest.raises(SystemExit):
        main(["export", str(run), "--format", "safetensors", "--out", str(out)])
    assert f"{out} exists. Pass --overwrite to replace it." in capsys.readouterr().err
    before = out.read_bytes()
    monkeypatch.setattr("tammes.export.formats.of_safetensors", lambda *_: lambda given: of_torch(embedder)(given) + 1)
    with pytest.raises(SystemExit):
        main(["export", str(run), "--format", "safetensors", "--out", str(tmp_path / "other"), "--overwrite"])
    assert "differs from PyTorch by 1 on 16 images" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert out.read_bytes() == before


def test_the_command_measures_what_eight_bits_cost(
    run: Path, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tammes.export.formats.onnx_file", lambda _: content)  # made once above
    monkeypatch.setattr("tammes.export.images_per_second", lambda *_: 1.0)
    main(["export", str(run), "--int8", "--out", str(tmp_path / "small.onnx")])
    said = capsys.readouterr().out
    recall = json.loads((run / "results.json").read_text())["trained"]["recall_at_1"]
    assert f"where PyTorch has {100 * recall:.2f}:" in said
    assert "checked    in 8 bits: 16 images, largest difference to PyTorch" in said
    assert "onnx, int8" in said
    checked = json.loads((tmp_path / "small.onnx.json").read_text())["checked"]
    assert checked["max_difference"] > 1e-3  # that of 8 bits: of the other file it is below 1e-4
    about = checked["int8"]
    assert about["operators"] == min(about["distance"], key=about["distance"].get)
    assert f"in 8 bits  {about['operators']} (distance on 8 training images held out: " in said


@pytest.mark.slow
def test_the_benchmark_times_every_form(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    try:
        benchmark(Options(run, rounds=1, batch=2, json=tmp_path / "export.json"))
    finally:
        torch.set_num_threads(before)
    stored = json.loads((tmp_path / "export.json").read_text())
    assert [row["form"] for row in stored["rows"]] == ["PyTorch", *(name for name, _, _ in FORMS)]
    assert all(row["images_per_second"] > 0 for row in stored["rows"])
    assert [row["form"] for row in stored["rows"] if "int8" in row] == ["ONNX in 8 bits, onnxruntime"]
    assert capsys.readouterr().out.count("images/s") == 5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--format", "hub", "--int8"], "--int8 is for --format onnx, and this is hub: leave it out."),
        (["--push", "a/b"], "--push is for --format hub, and this is onnx: leave it out."),
        (["--int8", "--with-preprocessing"], "--int8 and --with-preprocessing are two files: export each by itself."),
        (["--int8", "--data", "x"], "--int8 is measured on the run's own test classes: leave --data out."),
        (["--out", "nowhere/x.onnx"], "--out nowhere/x.onnx: there is no folder nowhere. Make it first."),
    ],
)
def test_what_cannot_be_is_refused(
    run: Path, given: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["export", str(run), *given])
    assert capsys.readouterr().err == f"tammes: {expected}\n"


def test_a_missing_package_is_named_with_what_to_type(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"^ONNX needs the package onnx: pip install 'tammes\[export\]'\.$"):
        onnx_file(embedder)


def test_a_folder_for_the_hub_is_loaded_as_the_run_is(
    run: Path, embedder: Embedder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import ModelCard

    out = tmp_path / "waves"
    main(["export", str(run), "--format", "hub", "--out", str(out), "--licence", "apache-2.0"])
    assert sorted(file.name for file in out.iterdir()) == [
        "LICENSE",
        "README.md",
        "config.json",
        "model.safetensors",
        "neighbours.png",
    ]
    assert (out / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "Licence: apache-2.0, see LICENSE." in (out / "README.md").read_text()
    assert load(out).config.class_dim is None
    np.testing.assert_array_equal(of_torch(load(out))(images(3)), of_torch(embedder)(images(3)))
    card = ModelCard.load(out / "README.md").data
    trained = json.loads((run / "results.json").read_text())["trained"]
    measured = {each.metric_type: each.metric_value for each in card.eval_results or []}
    assert measured["recall_at_1"] == round(100 * trained["recall_at_1"], 2)
    assert (card.license, card.library_name, card.pipeline_tag) == ("apache-2.0", "tammes", "image-feature-extraction")
    capsys.readouterr()
    main(["export", str(run), "--format", "hub", "--out", str(out), "--overwrite"])
    assert "licence    not stated: --licence apache-2.0, or another with --licence-file FILE" in capsys.readouterr().out
    assert not (out / "LICENSE").exists()
    (tmp_path / "taken").mkdir()
    for content in ("{}", "[]", "{", "3"):
        (tmp_path / "taken" / "config.json").write_text(content)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(["export", str(run), "--format", "hub", "--out", str(tmp_path / "taken"), "--overwrite"])
        assert stopped.value.code == 2
        assert "exists and holds something else. Choose another --out." in capsys.readouterr().err


def test_the_text_of_a_licence_is_known_or_given(tmp_path: Path) -> None:
    assert licence_text("unknown") is None
    (tmp_path / "MIT").write_text("Do as you like.")
    assert licence_text("mit", tmp_path / "MIT") == "Do as you like."
    with pytest.raises(UserError, match="^the text of the licence 'mit' is not here, only that of apache-2.0, and it"):
        licence_text("mit")
    with pytest.raises(UserError, match="^`licence_file` is the text of `licence`: give its name too"):
        licence_text("unknown", tmp_path / "MIT")
    with pytest.raises(UserError, match="^no such file: "):
        licence_text("mit", tmp_path / "nothing")
    (tmp_path / "picture").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=" is not text: "):
        licence_text("mit", tmp_path / "picture")


@pytest.mark.parametrize("pool", ["published", "max"])
def test_timm_loads_a_backbone_of_its_own(tmp_path: Path, pool: str) -> None:
    import timm
    from timm.data.config import resolve_model_data_config

    config = EmbedderConfig("timm:mobilenetv3_small_050", 8, 5, pool=pool)  # type: ignore[arg-type]
    network = Embedder(config).eval()
    write_hub_folder(tmp_path, network, Card("small", "nothing", "no"))
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    given = torch.rand(2, 3, 224, 224) * 255
    with torch.inference_mode():
        vectors = torch.nn.functional.normalize(theirs(network.normalised(given)))
        torch.testing.assert_close(vectors, network(given), atol=1e-5, rtol=0)
        torch.testing.assert_close(load(tmp_path)(given), network(given))
    wants = resolve_model_data_config(theirs)
    assert (wants["interpolation"], round(224 / wants["crop_pct"])) == ("lanczos", network.shorter_side)
    assert timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=0)(given).shape == (2, 1024)


def test_vectors_of_the_class_layer_keep_it(tmp_path: Path) -> None:
    network = Embedder(EmbedderConfig("conv4", 8, 5, embedding="last")).eval()
    assert vector_size(network) == 5
    write_hub_folder(tmp_path, network, Card("last", "nothing", "no", threshold=0.5, owner="anna"))
    np.testing.assert_array_equal(of_torch(load(tmp_path))(images(2)), of_torch(network)(images(2)))
    text = (tmp_path / "README.md").read_text()
    assert "a vector of 5 numbers" in text
    assert 'tammes.load("hf://anna/last")' in text
    assert "up to 0.5000 apart" in text
    assert "Licence: not stated." in text


def test_a_card_without_results_has_no_table() -> None:
    network = Embedder(EmbedderConfig("conv4", 8))
    assert "Per cent" not in model_card(network, Card("new", "nothing", "no"))
    config, tensors = hub_files(network)
    assert config["tammes"]["embedder"]["dim"] == 8
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    assert BytesIO(json.dumps(config).encode()).read(1) == b"{"
