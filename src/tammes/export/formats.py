"""Export formats: ONNX, ONNX in 8 bits, torch.export, safetensors."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy import ndarray
from torch import nn

from tammes.errors import UserError
from tammes.export import Runner, described, for_export, of_torch
from tammes.export.preprocessing import OfPicture
from tammes.models.embedder import Embedder

INPUT, PICTURE, OUTPUT = "images", "picture", "vectors"  # names in the ONNX graph
# What may be in 8 bits: all that onnxruntime knows of, or what multiplies by weights alone. What lies between is then
# left in float, which is nearer where maps of different ranges are joined, as in GoogLeNet: in 8 bits they share one.
IN_8_BITS: dict[str, list[str] | None] = {"every operator": None, "multiplications": ["Conv", "Gemm", "MatMul"]}


def onnx_file(embedder: Embedder, *, with_preprocessing: bool = False) -> bytes:
    """The embedder as one ONNX file.

    Its input is `images`, float (batch, channels, size, size) in 0..255, any number of them; with preprocessing
    `picture`, uint8 (height, width, channels) of any size. Its output is `vectors`, (batch, dim).
    """
    _needed("onnx", "onnxscript")
    own, dynamic = for_export(embedder), torch.export.Dim.DYNAMIC
    channels, size = len(own.mode), own.size
    network: nn.Module = OfPicture(own).eval() if with_preprocessing else own
    if with_preprocessing:  # two sides that are no multiples of anything, so that nothing is taken for equal
        example = torch.zeros(own.shorter_side + 37, own.shorter_side + 11, channels, dtype=torch.uint8)
        shapes = ({0: dynamic, 1: dynamic},)
    else:
        example, shapes = torch.zeros(2, channels, size, size), ({0: dynamic},)
    with _without_words():
        program = torch.onnx.export(
            network,
            (example,),
            dynamo=True,
            verbose=False,
            input_names=[PICTURE if with_preprocessing else INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=shapes,
        )
    assert program is not None
    model: Any = program.model_proto
    _name_axes(model, ("height", "width") if with_preprocessing else ("batch",))
    entry = model.metadata_props.add()
    entry.key, entry.value = "tammes", json.dumps(described(embedder))
    content: bytes = model.SerializeToString()
    return content


def nearest_in_8_bits(
    content: bytes,
    images: UInt8[ndarray, "images channels height width"],
    held_out: UInt8[ndarray, "others channels height width"],
) -> tuple[bytes, dict[str, float]]:
    """The ONNX file in 8 bits whose vectors of held-out images are nearest to its own, of each choice of operators.

    Args:
        images: give the ranges of activations.
        held_out: decide which operators stay in float. Of training classes, like the others: what it costs is measured
            on the test classes, which must not have been looked at.

    Returns:
        The file, and by choice the mean distance of a vector to that of the file in float, the chosen one first.
    """
    expected = of_onnx(content)(held_out)
    made = {name: in_8_bits(content, images, operators) for name, operators in IN_8_BITS.items()}
    apart = {
        name: float(np.linalg.norm(of_onnx(small)(held_out) - expected, axis=1).mean()) for name, small in made.items()
    }
    ordered = dict(sorted(apart.items(), key=lambda each: each[1]))
    return made[next(iter(ordered))], ordered


def in_8_bits(
    content: bytes, images: UInt8[ndarray, "images channels height width"], operators: list[str] | None = None
) -> bytes:
    """The same ONNX file with weights and activations of 8 bits; these images give the ranges of activations.

    Args:
        operators: kinds that are in 8 bits; None for all that onnxruntime knows of.
    """
    _needed("onnx", "onnxruntime")
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(images)

        def get_next(self) -> dict[str, ndarray] | None:
            image = next(self.rest, None)
            return None if image is None else {INPUT: image[None].astype(np.float32)}

    with TemporaryDirectory() as folder, _without_words():
        plain, ready, small = (Path(folder) / f"{name}.onnx" for name in ("plain", "ready", "small"))
        plain.write_bytes(content)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        quantize_static(
            ready,
            small,
            Images(),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=operators,
        )
        return small.read_bytes()


def torch_program(embedder: Embedder) -> bytes:
    """The embedder as a `torch.export` program: `torch.export.load(file).module()` needs no code of ours."""
    own = for_export(embedder)
    content, example = BytesIO(), torch.zeros(2, len(own.mode), own.size, own.size)
    with _without_words():
        program = torch.export.export(own, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.export.save(program, content)
    return content.getvalue()


def safetensors_file(embedder: Embedder) -> bytes:
    """All weights under the embedder's names, with its config in the file's metadata."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in embedder.state_dict().items()}
    return save(tensors, metadata={"format": "pt", "tammes": json.dumps(described(embedder))})


def of_onnx(content: bytes, *, threads: int | None = None) -> Runner:
    """An ONNX file that takes images, as a runner."""
    session = onnx_session(content, threads=threads)
    return lambda images: session.run(None, {INPUT: images.astype(np.float32)})[0]


def onnx_session(content: bytes, *, threads: int | None = None) -> Any:
    """An ONNX file ready to run on the CPU."""
    _needed("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or torch.get_num_threads()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def of_program(content: bytes) -> Runner:
    """A program of torch.export as a runner."""
    return of_torch(torch.export.load(BytesIO(content)).module())


def of_safetensors(content: bytes, embedder: Embedder) -> Runner:
    """The weights of a file in a network of this shape, as a runner."""
    from safetensors.torch import load

    other = Embedder(embedder.config)
    other.load_state_dict(load(content))
    return of_torch(other.eval())


def _needed(*packages: str) -> None:
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise UserError(f"ONNX needs the package {missing[0]}: pip install 'tammes[export]'.")


def _name_axes(model: Any, words: tuple[str, ...]) -> None:
    """Axes of any length by words instead of the exporter's symbols, in the values on the way too."""
    given = model.graph.input[0].type.tensor_type.shape.dim
    known = dict(zip([axis.dim_param for axis in given if axis.dim_param], words, strict=True))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in known:
                axis.dim_param = known[axis.dim_param]


@contextmanager
def _without_words() -> Iterator[None]:
    """Silence the exporters' warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
