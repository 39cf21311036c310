"""Our residual networks are torchvision's, to the last bit, without its import."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tammes import UserError, evaluate
from tammes.data import open_dataset
from tammes.data.image_cache import decode
from tammes.data.splits import split
from tammes.models.backbones import backbone
from tammes.models.backbones.cuts import cut_points, default_cut, default_depths, shares_above
from tammes.models.backbones.resnet import KINDS, ResNet
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.training.embedding import embed
from tests.configs import config_of


def torchvisions(name: str) -> nn.Module:
    from torchvision.models import get_model

    network: nn.Module = get_model(name, weights=None)
    network.fc = nn.Identity()
    return network


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_same_seed_gives_the_same_network(name: str) -> None:
    torch.manual_seed(0)
    ours = backbone(name)
    torch.manual_seed(0)
    theirs = torchvisions(name)
    found, wanted = ours.network.state_dict(), theirs.state_dict()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[each], wanted[each]) for each in wanted)
    images = torch.randn(3, 3, 64, 48)
    for network in (ours.network, theirs):  # then both have the same running statistics
        network.train()
    assert torch.equal(ours.network(images), theirs(images))
    assert torch.equal(ours.network.eval()(images), theirs.eval()(images))
    assert ours.features == theirs(images).shape[1]


@pytest.mark.parametrize("name", KINDS)
def test_all_have_the_weights_of_torchvisions_and_are_cut_where_is_found(name: str) -> None:
    with torch.device("meta"):
        ours, theirs = ResNet(KINDS[name]), torchvisions(name)
    shapes = [{each: tensor.shape for each, tensor in network.state_dict().items()} for network in (ours, theirs)]
    assert shapes[0] == shapes[1]
    made = backbone(name)
    assert made.cuts == cut_points(made.network)
    with torch.no_grad():
        _, above = shares_above(made.network.eval(), torch.zeros(1, 3, 224, 224), made.cuts)
    assert made.default_cut == default_cut(above)
    assert made.depths == default_depths(above)


def test_a_model_is_loaded_and_used_without_torchvision(tmp_path: Path, printed_by: Callable[..., str]) -> None:
    Embedder(EmbedderConfig("resnet18", 8)).save(tmp_path)
    code = (
        "import sys, tammes\nfrom PIL import Image\n"
        f"vectors = tammes.load({str(tmp_path)!r}).encode(Image.new('RGB', (300, 260)))\n"
        "print(vectors.shape, *sorted({'torchvision', 'timm', 'torch._dynamo'} & sys.modules.keys()))"
    )
    assert printed_by(code) == "(1, 8)\n"


def test_the_original_form_has_its_stride_in_the_first_convolution_of_a_stage() -> None:
    torch.manual_seed(0)
    theirs: Any = torchvisions("resnet50").eval()
    for stage in (theirs.layer2, theirs.layer3, theirs.layer4):
        first = stage[0]
        first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
    torch.manual_seed(0)
    ours = backbone("resnet50", form="keras")
    images = torch.randn(2, 3, 64, 48)
    assert torch.equal(ours.network.eval()(images), theirs(images))
    assert not torch.equal(ours.network(images), torchvisions("resnet50").eval()(images))
    assert [round(255 * each, 3) for each in ours.mean] == [123.68, 116.779, 103.939]
    assert [255 * each for each in ours.std] == [1, 1, 1]


def file_of_weights(folder: Path, form: str | None) -> Path:
    tensors = {name: tensor.contiguous() for name, tensor in ResNet(KINDS["resnet50"]).state_dict().items()}
    save_file(tensors, folder / "weights.safetensors", metadata=None if form is None else {"form": form})
    return folder / "weights.safetensors"


def test_a_file_says_its_form_and_the_first_convolution_is_turned_to_rgb(tmp_path: Path) -> None:
    file = file_of_weights(tmp_path, "keras")
    made = backbone("resnet50", weights=file)
    assert made.form == "keras"
    given = load_file(file)
    assert torch.equal(made.network.state_dict()["conv1.weight"], given["conv1.weight"].flip(1))
    with pytest.raises(UserError, match="form keras, not torchvision"):
        backbone("resnet50", weights=file, form="torchvision")


def test_a_file_that_does_not_say_its_form_is_refused_until_it_is_said(tmp_path: Path) -> None:
    file = file_of_weights(tmp_path, None)
    with pytest.raises(UserError, match=r"`weights_form='torchvision'`, or `weights_form='keras'`"):
        backbone("resnet50", weights=file)
    assert backbone("resnet50", weights=file, form="keras").form == "keras"
    made = backbone("resnet50", weights=file, form="torchvision")
    assert torch.equal(made.network.state_dict()["conv1.weight"], load_file(file)["conv1.weight"])


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("resnet18", "none", "`weights_form` is for resnet50, resnet101, resnet152, not for resnet18"),
        ("torchvision:resnet50", "none", "not for torchvision:resnet50"),
        ("resnet50", "imagenet", "leave out `weights_form='keras'`"),
    ],
)
def test_a_form_that_there_is_not(name: str, weights: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        backbone(name, weights=weights, form="keras")


def test_a_saved_model_keeps_its_form_and_is_not_turned_again(tmp_path: Path) -> None:
    made = Embedder(EmbedderConfig("resnet50", 8, form="keras"))
    made.save(tmp_path)
    found = load(tmp_path)
    assert found.config.form == "keras"
    images = torch.randint(256, (1, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(found(images), made.eval()(images))
    again = backbone("resnet50", weights=tmp_path / "embedder.safetensors")
    assert again.form == "keras"
    assert torch.equal(again.network.state_dict()["conv1.weight"], made.backbone.state_dict()["conv1.weight"])


def test_a_training_finds_the_form_in_the_file_or_is_told(tmp_path: Path) -> None:
    file = str(file_of_weights(tmp_path, "keras"))
    assert config_of("photos", backbone="resnet50", weights=file).weights_form == "keras"
    assert config_of("photos", backbone="resnet50", weights="none").weights_form == "torchvision"
    assert config_of("photos", backbone="googlenet", weights="none").weights_form is None


@pytest.mark.data
def test_the_original_form_on_birds() -> None:
    place = Path(os.environ.get("TAMMES_DATA", ""))
    file = place.parent / "weights" / "resnet50-imagenet-keras.fp16.safetensors"
    if "TAMMES_DATA" not in os.environ or not file.is_file() or not (place / "CUB_200_2011").is_dir():
        pytest.skip("needs the environment variable TAMMES_DATA: a folder that holds CUB_200_2011/, beside weights/")
    embedder = Embedder(EmbedderConfig("resnet50", 8), weights=file).eval()
    birds = open_dataset(str(place / "CUB_200_2011"))
    decoded = decode(birds, mode=embedder.mode, shorter_side=embedder.shorter_side)
    test = split(birds).test
    vectors = embed(embedder, decoded, test, backbone_only=True)
    found = evaluate(vectors, birds.labels[test], clustering=False)
    recalls = [100 * found[f"recall_at_{k}"] for k in (1, 2, 4, 8)]
    assert recalls == pytest.approx([46.13, 59.00, 71.12, 81.58], abs=0.05)
