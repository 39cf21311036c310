"""Weights from files: every form of them, all or nothing; Caffe's files, encoded here by hand."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tammes import UserError
from tammes.models.backbones import backbone
from tammes.models.backbones.caffemodel import read_caffemodel
from tammes.models.backbones.conv4 import Conv4
from tammes.models.backbones.googlenet import GoogLeNet
from tammes.models.backbones.vgg16 import VGG16
from tammes.models.backbones.weights import GOOGLENET_CHECKSUM, GOOGLENET_URL, load_weights
from tests.test_backbones_googlenet import caffe_tensors


def same(network: nn.Module, tensors: dict[str, Tensor]) -> bool:
    own = network.state_dict()
    return own.keys() == tensors.keys() and all(torch.equal(own[name], tensors[name]) for name in own)


@pytest.mark.parametrize(
    ("suffix", "form"),
    [
        *((suffix, form) for suffix in (".safetensors", ".pt", ".PTH") for form in ("own", "embedder", "classifier")),
        (".pth", "state_dict"),  # which holds more than tensors
        (".pth", "model"),
    ],
)
def test_a_file_of_conv4(tmp_path: Path, suffix: str, form: str) -> None:
    tensors = Conv4().state_dict()
    content: dict[str, object] = dict(tensors)
    if form == "embedder":
        content = {f"backbone.{name}": tensor for name, tensor in tensors.items()}
        content |= {"penultimate.weight": torch.zeros(2, 64), "class_layer.bias": torch.zeros(3)}
    if form == "classifier":
        content |= {
            f"{name}.weight": torch.zeros(2) for name in ("fc", "classifier.1", "head.fc", "heads.head", "aux1")
        }
    if form in ("state_dict", "model"):
        content = {form: content, "epoch": 3}
    file = tmp_path / f"weights{suffix}"
    if suffix != ".safetensors":
        torch.save(content, file)
    else:
        save_file({name: each for name, each in content.items() if isinstance(each, Tensor)}, file)
    network = Conv4()
    assert not same(network, tensors)
    load_weights(network, file)
    assert same(network, tensors)


def test_half_precision_is_read_into_float32(tmp_path: Path) -> None:
    tensors = {
        name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in Conv4().state_dict().items()
    }
    save_file(tensors, tmp_path / "half.safetensors")
    network = Conv4()
    load_weights(network, tmp_path / "half.safetensors")
    weight = network.state_dict()["blocks.0.0.weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, tensors["blocks.0.0.weight"].float())
    assert network.state_dict()["blocks.0.1.num_batches_tracked"].dtype == torch.int64


def test_older_files_lack_the_counter_of_batch_normalisation(tmp_path: Path) -> None:
    tensors = Conv4().state_dict()
    torch.save({name: each for name, each in tensors.items() if "num_batches" not in name}, tmp_path / "old.pt")
    network = Conv4()
    load_weights(network, tmp_path / "old.pt")
    assert same(network, tensors)


def without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if not key.startswith(name)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("blocks.2.0.bias"), "Tensors 1 missing: blocks.2.0.bias."),
        (
            without("blocks.2"),
            "Tensors 6 missing: blocks.2.0.weight, blocks.2.0.bias, blocks.2.1.weight, ….",
        ),
        (lambda tensors: tensors | {"extra": torch.zeros(1)}, "Tensors 1 not of this network: extra."),
        (lambda tensors: tensors | {"fcs.weight": torch.zeros(1)}, "Tensors 1 not of this network: fcs.weight."),
        (
            lambda tensors: tensors | {"blocks.0.0.weight": torch.zeros(64, 3, 3, 3)},
            "Tensors 1 of another shape: blocks.0.0.weight 64x3x3x3 instead of 64x1x3x3.",
        ),
        (
            lambda tensors: without("blocks.0.0.bias")(tensors) | {"a": torch.zeros(1), "b": torch.zeros(1)},
            "Tensors 1 missing: blocks.0.0.bias; 2 not of this network: a, b.",
        ),
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    network, file = Conv4(), tmp_path / "other.pt"
    torch.save(change(Conv4().state_dict()), file)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    expected = (
        f"the weights of {file} do not fit the network Conv4. {message}"
        " Use the file of this network, or the `backbone` of this file."
    )
    with pytest.raises(UserError, match=f"^{re.escape(expected)}$"):
        load_weights(network, file)
    assert same(network, before)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".caffemodel"])
@pytest.mark.parametrize("content", [b"", b"not a file of weights", b"\x80\x02}q\x00."])
def test_a_corrupt_file(tmp_path: Path, suffix: str, content: bytes) -> None:
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"^cannot read (the weights in )?{re.escape(str(file))}"):
        load_weights(GoogLeNet(), file)


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    for name, write in (("w.pt", torch.save), ("w.safetensors", save_file)):
        write(Conv4().state_dict(), tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1000])
        with pytest.raises(UserError, match=f"^cannot read the weights in .*{name}: "):
            load_weights(Conv4(), tmp_path / name)


def test_a_file_with_code_in_it_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "was-run",)  # type: ignore[return-value]

    torch.save({"blocks.0.0.weight": Code()}, tmp_path / "code.pt")
    with pytest.raises(UserError, match=r"^cannot read the weights in .*code\.pt: "):
        load_weights(Conv4(), tmp_path / "code.pt")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("content", [[torch.zeros(1)], {"epoch": 3}, {}, torch.zeros(3)])
def test_a_file_of_something_else(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(
        UserError, match=r"^cannot read the weights in .*other\.pt: it is not a dictionary of tensors.$"
    ):
        load_weights(Conv4(), tmp_path / "other.pt")


def test_vgg16_takes_its_own_names_and_torchvisions(tmp_path: Path) -> None:
    tensors = VGG16().state_dict()
    numbers = {"conv1": 0, "conv2": 5, "conv3": 10, "conv4": 17, "conv5": 24}
    theirs = {}
    for name, tensor in tensors.items():
        block, layer, kind = name.split(".")
        theirs[f"features.{numbers[block] + int(layer)}.{kind}"] = tensor
    assert "features.28.bias" in theirs
    for names in (tensors, theirs | {"classifier.6.bias": torch.zeros(1000)}):
        torch.save(names, tmp_path / "vgg16.pth")
        network = VGG16()
        load_weights(network, tmp_path / "vgg16.pth")
        assert same(network, tensors)
    torch.save(
        theirs | {"features.30.weight": torch.zeros(1), "features.40.bias": torch.zeros(1)}, tmp_path / "vgg19.pth"
    )
    with pytest.raises(UserError, match=r"Tensors 2 not of this network: conv5\.6\.weight, features\.40\.bias\."):
        load_weights(VGG16(), tmp_path / "vgg19.pth")


def test_torchvisions_own_classifier_layers_are_kept_where_they_are_features(tmp_path: Path) -> None:
    from torchvision.models import get_model

    full = get_model("mobilenet_v3_small", weights=None)
    torch.save(full.state_dict(), tmp_path / "full.pth")
    network = backbone("mobilenet_v3_small", weights=tmp_path / "full.pth").network
    assert torch.equal(network.state_dict()["classifier.0.weight"], full.classifier[0].weight)
    assert "classifier.3.weight" not in network.state_dict()


# ---------------------------------------------------------------------------------------------------- Caffe's files


def varint(value: int) -> bytes:
    lower, rest = value & 0x7F, value >> 7
    return bytes([lower | 0x80]) + varint(rest) if rest else bytes([lower])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def packed(tensor: Tensor) -> bytes:
    return np.ascontiguousarray(tensor.numpy(), "<f4").tobytes()


def old_layer(name: str, blobs: Iterable[Tensor]) -> bytes:
    """`layers` of a network, as BVLC's files have it: four sizes a blob, and much else that is of no interest."""
    encoded = b"".join(
        field(
            6,
            b"".join(field(i + 1, size) for i, size in enumerate((1,) * (4 - blob.ndim) + tuple(blob.shape)))
            + field(5, packed(blob)),
        )
        for blob in blobs
    )
    return field(2, field(2, b"data") + field(4, name.encode()) + field(5, 4) + encoded + b"\x3d" + bytes(4))


def new_layer(name: str, blobs: Iterable[Tensor]) -> bytes:
    """`layer` of a network, as Caffe writes it now."""
    encoded = b"".join(
        field(7, field(5, packed(blob)) + field(7, field(1, b"".join(varint(size) for size in blob.shape))))
        for blob in blobs
    )
    return field(100, field(1, name.encode()) + field(2, b"Convolution") + encoded)


def caffemodel(tensors: dict[str, Tensor], layer: Callable[[str, Iterable[Tensor]], bytes]) -> bytes:
    names = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    layers = [layer(name, (tensors[f"{name}.weight"], tensors[f"{name}.bias"])) for name in names]
    return field(1, b"GoogleNet") + layer("pool1/3x3_s2", ()) + b"".join(layers)


@pytest.mark.parametrize("layer", [old_layer, new_layer])
def test_a_caffemodel_and_caffes_names_are_the_same_network(
    tmp_path: Path, layer: Callable[[str, Iterable[Tensor]], bytes]
) -> None:
    tensors = caffe_tensors()
    with_heads = tensors | {
        f"{head}.{kind}": torch.zeros(shape)
        for head in ("loss1/conv", "loss3/classifier")
        for kind, shape in (("weight", (10, 4)), ("bias", (10,)))
    }
    (tmp_path / "g.caffemodel").write_bytes(caffemodel(with_heads, layer))
    save_file({name: tensor.half() for name, tensor in with_heads.items()}, tmp_path / "g.safetensors")
    from_caffemodel, from_names = GoogLeNet(), GoogLeNet()
    load_weights(from_caffemodel, tmp_path / "g.caffemodel")
    load_weights(from_names, tmp_path / "g.safetensors")
    own = from_caffemodel.state_dict()
    assert torch.equal(own["inception_4e.five_reduce.bias"], tensors["inception_4e/5x5_reduce.bias"])
    assert torch.equal(own["inception_3a.project.weight"], tensors["inception_3a/pool_proj.weight"])
    assert torch.equal(own["conv1.weight"][:, 0], tensors["conv1/7x7_s2.weight"][:, 2])  # red is last in Caffe
    for name, tensor in from_names.state_dict().items():
        assert torch.equal(tensor, own[name].half().float())
    # Under our own names it is for RGB already.
    torch.save(own, tmp_path / "ours.pt")
    load_weights(from_names, tmp_path / "ours.pt")
    assert same(from_names, own)


def test_a_caffemodel_of_another_network(tmp_path: Path) -> None:
    (tmp_path / "other.caffemodel").write_bytes(new_layer("fc6", (torch.zeros(2, 3), torch.zeros(2))))
    with pytest.raises(UserError, match=r"do not fit the network GoogLeNet\. Tensors 114 missing: .* 2 not of this"):
        load_weights(GoogLeNet(), tmp_path / "other.caffemodel")


def test_numbers_need_not_be_packed(tmp_path: Path) -> None:
    loose = b"".join(varint(5 << 3 | 5) + packed(torch.tensor([value])) for value in (1.0, 2.0))
    blob = loose + field(7, field(1, 2) + field(1, 1))
    (tmp_path / "m.caffemodel").write_bytes(field(100, field(1, b"a") + field(7, blob) + varint(9 << 3 | 1) + bytes(8)))
    assert torch.equal(read_caffemodel(tmp_path / "m.caffemodel")["a.weight"], torch.tensor([[1.0], [2.0]]))


def test_a_third_blob_is_not_taken_for_a_weight(tmp_path: Path) -> None:
    (tmp_path / "m.caffemodel").write_bytes(new_layer("bn", (torch.ones(2), torch.ones(2), torch.ones(1))))
    assert list(read_caffemodel(tmp_path / "m.caffemodel")) == ["bn.weight", "bn.bias", "bn.blob2"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it has no weights"),
        (new_layer("pool", ()), "it has no weights"),
        (new_layer("a", (torch.ones(3),))[:-1], "it ends too early"),
        (b"\x80", "it ends too early"),
        (b"\xff" * 11, "it has another format"),
        (b"\x0b", "it has another format"),
        (field(100, field(7, field(5, b"12345"))), "buffer size must be a multiple of element size"),
        (field(100, field(7, field(5, bytes(8)) + field(7, field(1, 3)))), "a tensor of shape [3] has 2 values"),
        (field(2, field(6, field(1, 2) + field(5, bytes(4)))), "a tensor of shape [2, 1, 1, 1] has 1 values"),
        (
            field(100, field(7, field(7, field(1, 0) + field(1, 1 << 62)))),
            f"a tensor of shape [0, {1 << 62}] has 0 values",
        ),
    ],
)
def test_a_broken_caffemodel(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "broken.caffemodel"
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"^{re.escape(f'cannot read {file} as a Caffe model: {reason}.')}$"):
        read_caffemodel(file)


def test_whatever_is_wrong_with_a_caffemodel_is_an_error_of_ours(tmp_path: Path) -> None:
    whole = old_layer("a", (torch.ones(2, 1, 3, 3), torch.ones(2))) + new_layer("b", (torch.ones(3), torch.ones(1)))
    random, file, refused = np.random.default_rng(0), tmp_path / "m.caffemodel", 0
    for _ in range(400):
        damaged = bytearray(whole)
        for place in random.integers(len(whole), size=3):
            damaged[place] = random.integers(256)
        file.write_bytes(damaged)
        try:
            read_caffemodel(file)
        except UserError:
            refused += 1
    assert 50 < refused < 400
    for length in range(len(old_layer("a", (torch.ones(2, 1, 3, 3), torch.ones(2))))):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError):
            read_caffemodel(file)


# -------------------------------------------------------------------------------------- GoogLeNet's ImageNet weights


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


def test_imagenet_weights_of_googlenet_are_looked_for_in_the_cache(cache: Path) -> None:
    tensors = caffe_tensors()
    (cache / "bvlc_googlenet.caffemodel").write_bytes(caffemodel(tensors, old_layer))
    made = backbone("googlenet", weights="imagenet")
    assert torch.equal(made.network.state_dict()["conv2.bias"], tensors["conv2/3x3.bias"])
    ours = GoogLeNet().state_dict()
    save_file(ours, cache / "googlenet.safetensors")
    assert same(backbone("googlenet", weights="imagenet").network, ours)


def test_imagenet_weights_of_googlenet_are_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, asked = caffe_tensors(), []

    def fetch(url: str, file: Path, *, checksum: str, on_progress: Callable[[int, int | None], None]) -> Path:
        asked.append((url, file, checksum))
        on_progress(1, None)
        on_progress(2, 2)
        file.write_bytes(caffemodel(tensors, old_layer))
        return file

    monkeypatch.setattr("tammes.io.downloads.fetch", fetch)
    made = backbone("googlenet", weights="imagenet")
    assert torch.equal(made.network.state_dict()["conv2.bias"], tensors["conv2/3x3.bias"])
    assert asked == [(GOOGLENET_URL, cache / "bvlc_googlenet.caffemodel", GOOGLENET_CHECKSUM)]


def test_without_a_network_it_says_what_to_get(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object, **__: object) -> Path:
        raise UserError(f"no network. Put the file at {cache} by hand.")

    monkeypatch.setattr("tammes.io.downloads.fetch", fetch)
    with pytest.raises(UserError) as caught:
        backbone("googlenet", weights="imagenet")
    assert str(caught.value).startswith(
        f"no weights for googlenet: no network. Put the file at {cache} by hand. Or use a file: `weights=FILE`."
    )
