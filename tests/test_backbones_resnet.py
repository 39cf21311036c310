"""Our residual networks are torchvision's, to the last bit, without its import."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tammes.backbones import backbone
from tammes.backbones.cuts import cut_points, default_cut, default_depths, shares_above
from tammes.backbones.resnet import KINDS, ResNet
from tammes.embedder import Embedder, EmbedderConfig


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


def test_a_model_is_loaded_and_used_without_torchvision(tmp_path: Path) -> None:
    Embedder(EmbedderConfig("resnet18", 8)).save(tmp_path)
    code = (
        "import sys, tammes\nfrom PIL import Image\n"
        f"vectors = tammes.load({str(tmp_path)!r}).encode(Image.new('RGB', (300, 260)))\n"
        "print(vectors.shape, *sorted({'torchvision', 'timm', 'torch._dynamo'} & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.stdout == "(1, 8)\n", said.stderr[-2000:]
