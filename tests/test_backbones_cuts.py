"""Cutting networks in two: the halves compute what the whole does, with its very weights; or it says why not."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tammes import UserError
from tammes.models.backbones import backbone
from tammes.models.backbones.cuts import cut, cut_points, default_cut, shares_above


def small_transformer() -> nn.Module:
    from torchvision.models import VisionTransformer

    network: nn.Module = VisionTransformer(32, 8, num_layers=4, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10)
    return network


def small_image_tower() -> nn.Module:
    pytest.importorskip("open_clip")
    from open_clip.transformer import VisionTransformer

    network: nn.Module = VisionTransformer(32, 8, width=16, layers=4, heads=2, mlp_ratio=2.0, output_dim=8)
    return network


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int], tuple[str, ...]]] = {
    # name: the network, channels and size of its images, some of the places where it can be cut
    "conv4": (lambda: backbone("conv4").network, (1, 28), ("blocks.1", "blocks.2", "blocks.3")),
    "googlenet": (lambda: backbone("googlenet").network, (3, 64), ("conv2_reduce", "inception_3a", "inception_5b")),
    "vgg16": (lambda: backbone("vgg16").network, (3, 32), ("conv2", "conv5", "conv5.4")),
    "resnet18": (lambda: backbone("resnet18").network, (3, 64), ("layer1", "layer1.1", "layer4", "layer4.1")),
    "mobilenet": (lambda: backbone("mobilenet_v3_small").network, (3, 64), ("features.1", "features.12", "classifier")),
    "googlenet with batch normalisation": (
        lambda: backbone("torchvision:googlenet").network,
        (3, 64),
        ("inception3a", "inception5b"),
    ),
    "transformer of torchvision": (
        small_transformer,
        (3, 32),
        ("encoder", "encoder.layers", "encoder.layers.encoder_layer_1", "encoder.layers.encoder_layer_3"),
    ),
    "image tower of open_clip": (
        small_image_tower,
        (3, 32),
        ("transformer", "transformer.resblocks.1", "transformer.resblocks.3"),
    ),
    "timm's resnet": (lambda: backbone("timm:test_resnet").network, (3, 64), ("layer1", "layer4")),
    "timm's efficientnet": (lambda: backbone("timm:test_efficientnet").network, (3, 64), ("blocks", "conv_head")),
    "timm's convnext": (lambda: backbone("timm:test_convnext").network, (3, 64), ("stages", "stages.3")),
    "timm's fastvit": (lambda: backbone("timm:fastvit_t8").network, (3, 64), ("stem.1", "stages.1", "final_conv")),
    "timm's transformer": (lambda: backbone("timm:test_vit").network, (3, 160), ("blocks", "blocks.5")),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_halves_compute_what_the_whole_does(name: str) -> None:
    make, (channels, size), expected = NETWORKS[name]
    network = make().eval()
    points = cut_points(network)
    assert [point for point in points if point in expected] == list(expected)
    images = torch.randn(2, channels, size, size)
    with torch.no_grad():
        whole = network(images)
        for point in {*expected, *points[::4], points[-1]}:
            below, above = cut(network, point)
            activations = below(images)
            assert torch.equal(above(activations), whole), point
            assert not torch.equal(activations, images), point


@pytest.mark.parametrize("name", NETWORKS)
def test_the_halves_have_the_very_weights_of_the_whole(name: str) -> None:
    network = NETWORKS[name][0]()
    point = cut_points(network)[-1]
    below, above = cut(network, point)
    lower, upper = dict(below.named_parameters()), dict(above.named_parameters())
    assert not set(lower) & set(upper)
    whole = dict(network.named_parameters())
    assert all({**lower, **upper}[parameter] is whole[parameter] for parameter in whole)
    assert all(parameter.startswith(point) or parameter in upper for parameter in whole if parameter not in lower)
    assert set(below.state_dict()) | set(above.state_dict()) == set(network.state_dict())


def test_each_half_has_its_own_mode() -> None:
    network = backbone("resnet18").network.train()
    below, above = cut(network, "layer4")
    below.eval()
    assert above.training
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with torch.no_grad():
        above(below(torch.randn(2, 3, 64, 64)))
    changed = {name for name, buffer in network.named_buffers() if not torch.equal(buffer, before[name])}
    assert changed == {name for name in before if name.startswith("layer4.")}


def test_only_what_is_above_gets_a_gradient() -> None:
    network = backbone("googlenet").network
    below, above = cut(network, "inception_5a")
    with torch.no_grad():
        activations = below(torch.randn(1, 3, 64, 64))
    assert activations.shape == (1, 832, 2, 2)  # what enters inception_5a
    above(activations).sum().backward()
    trained = {name for name, weight in network.named_parameters() if weight.grad is not None}
    assert trained == {
        name for name, _ in network.named_parameters() if name.startswith(("inception_5a", "inception_5b"))
    }


def test_tracing_leaves_the_mode_as_it_was() -> None:
    network = backbone("conv4").network.eval()
    network.get_submodule("blocks").train()
    before = {name: module.training for name, module in network.named_modules()}
    cut(network, "blocks.1")
    assert {name: module.training for name, module in network.named_modules()} == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv4", "blocks.2"),
        ("googlenet", "inception_5a"),
        ("vgg16", "conv5"),
        ("resnet18", "layer4"),
        ("timm:test_vit", "blocks.5"),
    ],
)
def test_where_a_backbone_is_cut_if_no_place_is_named(name: str, expected: str) -> None:
    made = backbone(name)
    assert made.default_cut == expected
    assert expected in made.cuts
    cut(made.network, expected)


def test_the_share_of_the_computation_above_a_place() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),  # 8 * 3 * 9 weights at 16 * 16 places: 55,296
        nn.Conv2d(8, 4, 1, stride=2),  # 4 * 8 at 8 * 8: 2,048
        nn.Flatten(),
        nn.Linear(256, 10),  # 2,560
    )
    output, above = shares_above(network, torch.zeros(2, 3, 16, 16), ("1", "3"))
    assert output.shape == (2, 10)
    assert above == {"1": pytest.approx(4_608 / 59_904), "3": pytest.approx(2_560 / 59_904)}
    assert network(torch.zeros(2, 3, 16, 16)).shape == (2, 10)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_attention_is_counted() -> None:
    _, above = shares_above(small_transformer().eval(), torch.zeros(1, 3, 32, 32), ("encoder.layers.encoder_layer_2",))
    layer, beginning, end = 17 * (4 * 16 * 16 + 2 * 16 * 32), 16 * 16 * 3 * 64, 16 * 10
    assert above == {"encoder.layers.encoder_layer_2": pytest.approx((2 * layer + end) / (4 * layer + beginning + end))}


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ({"a": 0.9, "b": 0.25, "c": 0.1}, "b"),
        ({"a": 0.9, "b": 0.5}, "b"),
        ({}, None),
    ],
)
def test_the_lowest_place_that_leaves_a_quarter(above: dict[str, float], expected: str | None) -> None:
    assert default_cut(above) == expected


class Awkward(nn.Module):
    """A network with everything that stands in the way of a cut."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        if kind == "tied":
            self.third.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        if self.kind == "looks" and one.sum() > 0:
            one = -one
        if self.kind == "dropout":
            one = functional.dropout(one, training=self.training)
        if self.kind == "noise":
            one = one + torch.randn(4)
        if self.kind == "constant":
            one = one + torch.arange(4)
        if self.kind == "weight on both sides":
            one = one * self.scale
        two = self.second(one)
        if self.kind == "twice":
            two = self.second(two)
        if self.kind == "past":
            two = two + one
        if self.kind == "part on both sides":
            two = self.first(two)
        if self.kind == "weight on both sides":
            two = two * self.scale
        result: Tensor = self.third(two)
        return result


@pytest.mark.parametrize(
    ("kind", "at", "reason", "places"),
    [
        ("plain", "secnd", "has no part 'secnd'. Did you mean 'second'?", "second, third"),
        ("plain", "", "has no part ''.", "second, third"),
        ("plain", "unused", "cannot be cut at 'unused': it is called 0 times instead of once.", "second, third"),
        ("twice", "second", "cannot be cut at 'second': it is called 2 times instead of once.", "third"),
        (
            "tied",
            "second",
            "cannot be cut at 'second': modules or weights are used both before and after it.",
            None,
        ),
        (
            "part on both sides",
            "second",
            "cannot be cut at 'second': modules or weights are used both before and after it.",
            "third",
        ),
        (
            "weight on both sides",
            "second",
            "cannot be cut at 'second': modules or weights are used both before and after it.",
            "third",
        ),
        (
            "looks",
            "second",
            "cannot be cut at 'second': its computation cannot be traced (symbolically traced variables cannot be used"
            " as inputs to control flow).",
            None,
        ),
        (
            "dropout",
            "second",
            "cannot be cut at 'second': its computation outside of its modules depends on the training mode, or is"
            " random.",
            None,
        ),
        (
            "noise",
            "second",
            "cannot be cut at 'second': its computation outside of its modules depends on the training mode, or is"
            " random.",
            None,
        ),
    ],
)
def test_what_cannot_be_cut(kind: str, at: str, reason: str, places: str | None) -> None:
    network = Awkward(kind)
    where = f"It can be cut at: {places}." if places else "It cannot be cut anywhere: train all of it."
    with pytest.raises(UserError, match=f"^{re.escape(f'the network Awkward {reason} {where}')}$"):
        cut(network, at)


@pytest.mark.parametrize("kind", ["past", "constant"])  # past: the sum takes what goes into the part, still one tensor
def test_what_looks_awkward_but_can_be_cut(kind: str) -> None:
    network, images = Awkward(kind), torch.randn(3, 4)
    below, above = cut(network, "second")
    assert torch.equal(above(below(images)), network(images))


def test_a_residual_block_cannot_be_cut_in_its_middle() -> None:
    with pytest.raises(
        UserError, match=r"cannot be cut at 'layer4\.1\.conv2': 2 tensors cross the cut instead of one."
    ):
        cut(backbone("resnet18").network, "layer4.1.conv2")


def test_positions_that_every_layer_uses_may_be_on_both_sides() -> None:
    class Positions(nn.Module):
        positions: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("positions", torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(self.first(x) + self.positions.sin()) + self.positions.sin().cos()
            return result

    network, images = Positions(), torch.randn(2, 4)
    below, above = cut(network, "second")
    assert torch.equal(above(below(images)), network(images))


def test_what_else_a_network_could_be_given_stays_at_its_default() -> None:
    class Masked(nn.Sequential):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            for layer in self:
                x = layer(x if mask is None else x * mask)
            return x

    network, images = Masked(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4)
    below, above = cut(network, "1")
    assert torch.equal(above(below(images)), network(images))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet50", "layer4"),
        ("mobilenet_v3_large", "features.14"),
        ("efficientnet_b0", "features.6.2"),
        ("convnext_tiny", "features.5.8"),
        ("vit_b_16", "encoder.layers.encoder_layer_9"),
        ("densenet121", "features.transition3"),
        ("swin_t", "features.6"),
        ("torchvision:vgg16", "features.21"),
        ("timm:resnet18", "layer4"),
        ("timm:efficientnet_b0", "blocks.5.2"),
        ("timm:vit_tiny_patch16_224", "blocks.9"),
        ("timm:convnext_atto", "stages.3"),
        ("timm:eva02_tiny_patch14_224", "blocks.9"),
        ("timm:regnety_002", "s4"),
    ],
)
def test_networks_in_their_full_size(name: str, expected: str) -> None:
    made = backbone(name)
    assert made.default_cut == expected
    below, above = cut(made.network.eval(), expected)
    images = torch.randn(1, 3, made.size, made.size)
    with torch.no_grad():
        assert torch.equal(above(below(images)), made.network(images))
