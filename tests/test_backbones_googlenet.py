"""GoogLeNet and VGG-16 as published, against slow doubles written from their descriptions."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from tammes.models.backbones import backbone
from tammes.models.backbones.cuts import cut_points
from tammes.models.backbones.googlenet import CUTS, GoogLeNet, from_caffe
from tammes.models.backbones.response_norm import ResponseNorm
from tammes.models.backbones.vgg16 import CUTS as VGG_CUTS
from tammes.models.backbones.vgg16 import VGG16, from_torchvision

# Outputs of 1x1, 3x3_reduce, 3x3, 5x5_reduce, 5x5, pool_proj: Table 1 of the paper.
TABLE = """
3a 64 96 128 16 32 32
3b 128 128 192 32 96 64
4a 192 96 208 16 48 64
4b 160 112 224 24 64 64
4c 128 128 256 24 64 64
4d 112 144 288 32 64 64
4e 256 160 320 32 128 128
5a 256 160 320 32 128 128
5b 384 192 384 48 128 128
"""
KINDS = {"1x1": 1, "3x3_reduce": 1, "3x3": 3, "5x5_reduce": 1, "5x5": 5, "pool_proj": 1}


def caffe_tensors() -> dict[str, Tensor]:
    """Random weights under Caffe's names, of a size that keeps the activations about as large as they are."""
    shapes = {"conv1/7x7_s2": (64, 3, 7, 7), "conv2/3x3_reduce": (64, 64, 1, 1), "conv2/3x3": (192, 64, 3, 3)}
    inputs = 192
    for line in TABLE.split("\n")[1:-1]:
        block, *numbers = line.split()
        widths = dict(zip(KINDS, map(int, numbers), strict=True))
        for kind, width in widths.items():
            before = widths["3x3_reduce"] if kind == "3x3" else widths["5x5_reduce"] if kind == "5x5" else inputs
            shapes[f"inception_{block}/{kind}"] = (width, before, KINDS[kind], KINDS[kind])
        inputs = widths["1x1"] + widths["3x3"] + widths["5x5"] + widths["pool_proj"]
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes.items():
        spread = (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
        tensors[f"{name}.weight"] = spread * torch.randn(shape, generator=generator)
        tensors[f"{name}.bias"] = 0.1 * torch.randn(shape[0], generator=generator)
    return tensors


def caffe_forward(tensors: dict[str, Tensor], images: Tensor) -> Tensor:
    """What Caffe computes: bvlc_googlenet's deploy.prototxt, line by line. Images are blue, green, red."""

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = tensors[f"{name}.weight"]
        padding = weight.shape[-1] // 2
        return functional.conv2d(x, weight, tensors[f"{name}.bias"], stride, padding).relu()

    def pool(x: Tensor) -> Tensor:
        return functional.max_pool2d(x, 3, 2, ceil_mode=True)

    x = functional.local_response_norm(pool(conv(images, "conv1/7x7_s2", 2)), 5, 1e-4, 0.75, 1)
    x = conv(conv(x, "conv2/3x3_reduce"), "conv2/3x3")
    x = pool(functional.local_response_norm(x, 5, 1e-4, 0.75, 1))
    for block in ("3a", "3b", "pool", "4a", "4b", "4c", "4d", "4e", "pool", "5a", "5b"):
        if block == "pool":
            x = pool(x)
            continue
        at = f"inception_{block}"
        one = conv(x, f"{at}/1x1")
        three = conv(conv(x, f"{at}/3x3_reduce"), f"{at}/3x3")
        five = conv(conv(x, f"{at}/5x5_reduce"), f"{at}/5x5")
        pooled = conv(functional.max_pool2d(x, 3, 1, 1), f"{at}/pool_proj")
        x = torch.cat((one, three, five, pooled), 1)
    return x.mean((2, 3))


def test_googlenet_computes_what_caffe_does() -> None:
    tensors, network = caffe_tensors(), GoogLeNet()
    network.load_state_dict(from_caffe(tensors))
    red_green_blue = 60 * torch.randn(2, 3, 97, 128)
    with torch.no_grad():
        ours, caffes = network(red_green_blue), caffe_forward(tensors, red_green_blue.flip(1))
    assert ours.shape == (2, 1024)
    assert caffes.std() > 1
    torch.testing.assert_close(ours, caffes, rtol=1e-4, atol=1e-4)


def test_googlenet_has_the_published_number_of_weights() -> None:
    network = GoogLeNet()
    assert sum(weight.numel() for weight in network.parameters()) == 6_998_552 - 1_025_000  # all, minus the classifier
    assert set(from_caffe(caffe_tensors())) == set(network.state_dict())


def test_googlenet_halves_an_image_five_times_rounding_up() -> None:
    sizes = []
    x = torch.zeros(1, 3, 224, 224)
    with torch.no_grad():
        for name, layer in GoogLeNet().named_children():
            x = layer(x)
            if name in ("conv1", "pool1", "pool2", "pool3", "pool4"):
                sizes.append(x.shape[-1])
    assert sizes == [112, 56, 28, 14, 7]


def test_random_weights_of_googlenet_are_caffes() -> None:
    first = GoogLeNet().conv1
    assert isinstance(first, nn.Conv2d)
    assert first.bias is not None
    assert torch.equal(first.bias, torch.full((64,), 0.2))
    bound = (3 / (3 * 7 * 7)) ** 0.5  # uniform, of variance 1 / inputs
    assert 0.99 * bound < first.weight.abs().max() <= bound
    assert first.weight.abs().mean().item() == pytest.approx(bound / 2, rel=0.03)


def test_the_places_where_ours_are_cut_are_those_that_are_found() -> None:
    assert set(CUTS) == set(cut_points(GoogLeNet())) - {"conv2"}
    assert tuple(point for point in cut_points(VGG16()) if "." not in point) == VGG_CUTS
    conv4 = backbone("conv4")
    assert conv4.cuts == cut_points(conv4.network)


def test_vgg16_is_torchvisions_up_to_the_last_convolution() -> None:
    from torchvision.models.vgg import cfgs, make_layers

    features, network = make_layers(cfgs["D"]), VGG16()
    network.load_state_dict(from_torchvision({f"features.{k}": v for k, v in features.state_dict().items()}))
    images = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        assert torch.equal(network(images), features[:-1](images).amax((2, 3)))
    assert sum(weight.numel() for weight in network.parameters()) == 14_714_688


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 64])
def test_response_norm_is_torchs(channels: int, memory_format: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(channels)
    images = (100 * torch.randn(3, channels, 5, 7, generator=generator)).contiguous(memory_format=memory_format)
    grad = torch.randn(images.shape, generator=generator)
    ours, torchs = images.clone().requires_grad_(), images.clone().requires_grad_()
    result = ResponseNorm()(ours)
    expected = functional.local_response_norm(torchs, 5, 1e-4, 0.75, 1)
    result.backward(grad)
    expected.backward(grad)
    assert result.is_contiguous(memory_format=memory_format)
    assert ours.grad is not None
    assert torchs.grad is not None
    assert ((result - expected).abs() <= 1e-6 * expected.abs().clamp(min=1)).all()
    torch.testing.assert_close(ours.grad, torchs.grad, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_response_norm() -> None:
    images = (200 * torch.randn(2, 7, 2, 3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(ResponseNorm(), images)


def test_response_norm_refuses_a_second_derivative() -> None:
    images = torch.randn(1, 4, 2, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match="second derivative of local response normalisation is not available"):
        torch.autograd.grad(ResponseNorm()(images).sum(), images, create_graph=True)


def test_response_norm_in_half_precision_does_not_overflow() -> None:
    images = torch.full((1, 5, 1, 1), 1000.0, dtype=torch.float16)
    result = ResponseNorm()(images)
    assert result.dtype == torch.float16
    expected = functional.local_response_norm(images.float(), 5, 1e-4, 0.75, 1)
    torch.testing.assert_close(result.float(), expected, rtol=1e-3, atol=0)


def test_response_norm_of_no_images() -> None:
    assert ResponseNorm()(torch.zeros(0, 4, 2, 2)).shape == (0, 4, 2, 2)


def test_an_exported_network_takes_any_number_of_images() -> None:
    images = 100 * torch.randn(2, 6, 3, 3)
    program = torch.export.export(ResponseNorm(), (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = 100 * torch.randn(5, 6, 3, 3)
    torch.testing.assert_close(program.module()(more), ResponseNorm()(more))


@pytest.mark.data
def test_the_published_weights_know_birds_by_their_colours() -> None:
    place = Path(os.environ.get("TAMMES_DATA", ""))
    file = place.parent / "weights" / "googlenet-bvlc-imagenet.fp16.safetensors"
    if "TAMMES_DATA" not in os.environ or not file.is_file() or not (place / "CUB_200_2011").is_dir():
        pytest.skip("needs the environment variable TAMMES_DATA: a folder that holds CUB_200_2011/, beside weights/")
    from safetensors.torch import load_file

    made, raw = backbone("googlenet", weights=file), load_file(file)
    mean, std = (255 * torch.tensor(each).view(3, 1, 1) for each in (made.mean, made.std))
    weight, bias = raw["loss3/classifier.weight"].float(), raw["loss3/classifier.bias"].float()
    for folder, imagenet_class in (
        ("002.Laysan_Albatross", 146),
        ("014.Indigo_Bunting", 14),
        ("047.American_Goldfinch", 11),
    ):
        pictures = sorted((place / "CUB_200_2011" / "images" / folder).iterdir())[:8]
        images = torch.stack([centre(picture) for picture in pictures])
        with torch.no_grad():
            features = made.network((images - mean) / std)
        found = (features @ weight.T + bias).argmax(1)
        assert (found == imagenet_class).sum() >= 7


def centre(picture: Path) -> Tensor:
    with Image.open(picture) as opened:
        image = opened.convert("RGB")
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    cropped = image.crop((left, top, left + 224, top + 224))
    return torch.from_numpy(np.array(cropped)).permute(2, 0, 1).float()
