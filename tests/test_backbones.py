"""Backbones by their names: ours, torchvision's and timm's, without their classifiers; and their ImageNet weights."""

from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import nn

from tammes import UserError
from tammes.models.backbones import backbone
from tammes.models.backbones.base import Backbone
from tammes.models.backbones.googlenet import GoogLeNet
from tammes.models.backbones.vgg16 import VGG16


@pytest.mark.parametrize(
    ("name", "features", "size", "shorter_side"),
    [
        ("conv4", 64, 28, 28),
        ("googlenet", 1024, 224, 256),
        ("vgg16", 512, 224, 256),
        ("resnet18", 512, 224, 256),
        ("timm:resnet10t", 512, 176, 201),
    ],
)
def test_a_backbone_gives_as_many_features_as_it_says(name: str, features: int, size: int, shorter_side: int) -> None:
    made = backbone(name)
    channels = 1 if made.mode == "L" else 3
    assert (made.features, made.size, made.shorter_side) == (features, size, shorter_side)
    with torch.no_grad():
        assert made.network.eval()(torch.zeros(2, channels, size, size)).shape == (2, features)
    assert len(made.mean) == len(made.std) == channels


def test_plain_names_are_the_published_networks_and_torchvision_keeps_its_own() -> None:
    assert isinstance(backbone("googlenet").network, GoogLeNet)
    assert isinstance(backbone("vgg16").network, VGG16)
    of_torchvision = backbone("torchvision:googlenet").network
    assert any(isinstance(module, nn.BatchNorm2d) for module in of_torchvision.modules())
    assert of_torchvision.train()(torch.zeros(2, 3, 224, 224)).shape == (2, 1024)  # its side heads are gone


def test_pixels_are_scaled_as_the_weights_want_them() -> None:
    caffe, vgg = backbone("googlenet"), backbone("vgg16")
    assert [round(255 * mean, 9) for mean in caffe.mean] == [123, 117, 104]  # red, green, blue
    assert [round(255 * std, 9) for std in caffe.std] == [1, 1, 1]
    assert (vgg.mean, vgg.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "conv5",
            r"^unknown backbone 'conv5'\. Did you mean 'conv4'.*"
            r" Known: conv4, googlenet, vgg16, resnet18, .*, every name of torchvision and timm, "
            r"hf-hub:owner/name and open_clip:MODEL\.",
        ),
        ("torchvision:resnet10t", r"^unknown backbone 'torchvision:resnet10t'\."),
        ("torchvision:conv4", r"^unknown backbone 'torchvision:conv4'\."),
        ("keras:vgg16", r"^unknown library 'keras' in backbone 'keras:vgg16'\. Known: timm, torchvision, "),
        ("squeezenet1_1", r"^torchvision.s squeezenet1_1 does not end in a linear layer, .* Try timm:squeezenet1_1\.$"),
        ("timm:test_vit.nosuchtag", r"^timm cannot make test_vit\.nosuchtag: Invalid pretrained tag \(nosuchtag\)"),
    ],
)
def test_names_that_are_no_backbone(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        backbone(name)


def test_weights_that_are_no_file() -> None:
    with pytest.raises(
        UserError,
        match=r"^unknown weights 'imagnet': `weights` is imagenet, none, or a file whose name ends in"
        r" \.safetensors, \.pt, \.pth or \.caffemodel\.$",
    ):
        backbone("conv4", weights="imagnet")
    with pytest.raises(UserError, match=r"^no weights file nowhere/w\.pt\. `weights` is imagenet, none, or a file\.$"):
        backbone("conv4", weights=Path("nowhere/w.pt"))


def test_a_file_of_weights(tmp_path: Path) -> None:
    source = backbone("conv4").network
    torch.save(source.state_dict(), tmp_path / "conv4.pt")
    target = backbone("conv4", weights=tmp_path / "conv4.pt").network
    assert same_weights(source, target)
    assert not same_weights(source, backbone("conv4").network)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    ones, others = one.state_dict(), other.state_dict()
    return list(ones) == list(others) and all(torch.equal(ones[name], others[name]) for name in ones)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conv4", r"^conv4 has no ImageNet weights: it is trained from scratch\. Use `weights='none'`\.$"),
        (
            "timm:coatnet_0_224",
            r"^timm has no ImageNet weights for coatnet_0_224\. Use `weights='none'`, or a file of them\.$",
        ),
    ],
)
def test_networks_without_imagenet_weights(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        backbone(name, weights="imagenet")


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where torch looks for downloaded weights, empty, on a machine without a network."""

    def no_network(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torch.hub.download_url_to_file", no_network)
    monkeypatch.setattr("torch.hub._hub_dir", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def test_imagenet_weights_of_torchvision_are_loaded(checkpoints: Path) -> None:
    from torchvision.models import get_model

    full = get_model("shufflenet_v2_x0_5", weights=None)
    torch.save(full.state_dict(), checkpoints / "shufflenetv2_x0.5-f707e7126e.pth")
    made = backbone("shufflenet_v2_x0_5", weights="imagenet")
    full.fc = nn.Identity()
    assert same_weights(made.network, full)


def test_imagenet_weights_of_vgg16_are_loaded_without_the_classifier(checkpoints: Path) -> None:
    from torchvision.models.vgg import cfgs, make_layers

    features = make_layers(cfgs["D"])
    tensors = {f"features.{name}": tensor for name, tensor in features.state_dict().items()}
    torch.save(tensors | {"classifier.0.weight": torch.zeros(4)}, checkpoints / "vgg16-397923af.pth")
    made = backbone("vgg16", weights="imagenet")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(made.network(images), features(images).amax((2, 3)))


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("resnet18", "https://download.pytorch.org/models/resnet18-f37072fd.pth"),
        ("vgg16", "https://download.pytorch.org/models/vgg16-397923af.pth"),
    ],
)
def test_without_a_network_it_says_what_to_get_and_where_to_put_it(checkpoints: Path, name: str, url: str) -> None:
    place = checkpoints / url.rpartition("/")[2]
    with pytest.raises(UserError) as caught:
        backbone(name, weights="imagenet")
    assert str(caught.value).startswith(
        f"no ImageNet weights for {name}: no network. Get {url} by other means and put it at {place},"
        " or give it as `weights=FILE`; `weights='none'` starts from random ones."
    )


def test_without_a_network_it_names_the_weights_of_this_machine(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, cache = tmp_path / "hub", tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setenv("TAMMES_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)

    def said() -> str:
        with pytest.raises(UserError) as caught:
            backbone("resnet34", weights="imagenet")
        return str(caught.value).partition("random ones.")[2]

    assert said().startswith(
        f" There are no weights on this machine, in {cache / 'weights'}, {checkpoints}, {tmp_path}"
    )
    (tmp_path / "googlenet.safetensors").touch()
    listed = f" Files of weights on this machine: {tmp_path / 'googlenet.safetensors'}. Use one with its network"
    assert said().startswith(listed)
    (checkpoints / "vgg16-397923af.pth").touch()
    snapshot = hub / "models--timm--resnet18.a1_in1k" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").touch()
    networks = " Networks whose weights are on this machine: vgg16, timm:resnet18.a1_in1k. Name one of them instead."
    assert said() == networks
    file = tmp_path / "weights" / "my-resnet34.pth"
    file.parent.mkdir()
    file.touch()
    assert said() == f" This file may have its weights: `weights={str(file)!r}`."


def test_without_a_network_for_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("cannot locate the file.\nMore about it.")

    monkeypatch.setattr("timm.create_model", no_network)
    monkeypatch.setattr("tammes.models.backbones.check_weights", lambda _: None)  # which builds it without numbers
    with pytest.raises(UserError) as caught:
        backbone("timm:resnet18", weights="imagenet")
    assert str(caught.value).startswith(
        "no ImageNet weights for resnet18: cannot locate the file. Get https://huggingface.co/timm/resnet18.a1_in1k"
        " by other means and give it as `weights=FILE`; `weights='none'` starts from random ones."
    )


def test_imagenet_weights_of_timm_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    asked = []
    original = timm.create_model

    def create(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        asked.append((name, pretrained))
        made: nn.Module = original(name, pretrained=False, num_classes=num_classes)
        return made

    monkeypatch.setattr("timm.create_model", create)
    assert isinstance(backbone("timm:test_resnet", weights="imagenet"), Backbone)
    assert asked[-1] == ("test_resnet", True)
