"""A folder for the Hugging Face hub: config.json, model.safetensors, a model card, a licence, an image.

For a timm backbone the files are in timm's format, with the embedding layer as its classifier:
`timm.create_model("hf-hub:owner/name", pretrained=True)` gives the vectors before normalisation.
"""

import json
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.export import LARGEST, check_difference, described, of_torch, vector_size
from tammes.geometry import normalise
from tammes.io.files import folder_inside, write_atomically
from tammes.io.hub import WRITING
from tammes.io.schema import read_json
from tammes.metrics import TITLES
from tammes.models.embedder import Embedder, load
from tammes.models.pooling import TIMM_NAMES
from tammes.training.run_folder import RunFolder
from tammes.training.verdict import PRETRAINED, WHITENED, describe

LIBRARY = "tammes"
LICENCES = {"apache-2.0": Path(__file__).with_name("apache-2.0.txt")}  # texts that are here, by the hub's names
PICTURE, LICENCE = "neighbours.png", "LICENSE"
_LEFT = 3600  # seconds after which nobody is writing any more
_SHOWN = ("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "mean_average_precision_at_r", "NMI")


@dataclass(frozen=True)
class Card:
    """The content of the model card that is not in the model.

    Attributes:
        name: the name of the model.
        owner: its owner on the hub.
        data: the training data.
        loss: the loss.
        results: the content of the run's results.json; None without.
        licence: the hub's name of the licence, such as apache-2.0.
        licence_text: the text of the licence; None without one.
        threshold: the same-class threshold; None if it was not calibrated.
    """

    name: str
    data: str
    loss: str
    results: dict[str, Any] | None = None
    licence: str = "unknown"
    licence_text: str | None = None
    threshold: float | None = None
    owner: str = "OWNER"


def card_of(
    run: RunFolder, *, hub_name: str | None = None, licence: str = "unknown", licence_text: str | None = None
) -> Card:
    """The model card of a run.

    Args:
        hub_name: OWNER/NAME; None leaves the owner open and uses the name of the run folder.
    """
    results, calibration = run.read("results"), run.read("calibration")
    config = run.read("config", needs=("data", "loss"))
    owner, _, name = (hub_name or f"OWNER/{run.folder.resolve().name}").partition("/")
    return Card(
        name=name,
        owner=owner,
        data=(results or {}).get("data") or Path(config["data"]).name,
        loss=config["loss"],
        results=results,
        licence=licence,
        licence_text=licence_text,
        threshold=None if calibration is None else calibration.get("threshold"),
    )


def export_to_folder(run: RunFolder, folder: Path, card: Card, photos: list[Image.Image]) -> dict[str, Any]:
    """Write or replace a hub folder for a run, after a comparison with PyTorch. Returns the results of the check."""
    embedder = load(run.folder)
    images = np.stack([embedder.prepared(photo) for photo in photos])
    picture = run.folder / PICTURE
    shown = picture.is_file() and not picture.is_symlink()  # what it leads to would be published
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{WRITING}*"):
        if not left.is_symlink() and time.time() - left.stat().st_mtime > _LEFT:  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=folder, prefix=WRITING) as temporary:
        new = Path(temporary)
        write_hub_folder(new, embedder, card, picture.read_bytes() if shown else None)
        difference = check_difference(of_torch(load(new))(images), of_torch(embedder)(images))
        written = sorted(new.iterdir(), key=lambda file: file.name == "config.json")  # it says what is there: last
        for file in written:
            file.replace(folder / file.name)
    for name in {LICENCE, PICTURE} - {file.name for file in written}:  # of the model that this one replaces
        (folder / name).unlink(missing_ok=True)
    licence = None if card.licence_text is None else card.licence
    return {"format": "hub", "images": len(images), "max_difference": difference, "licence": licence}


def write_hub_folder(folder: Path, embedder: Embedder, card: Card, picture: bytes | None = None) -> None:
    """Write all files atomically; config.json, by which the folder is recognised, last."""
    from safetensors.torch import save

    config, tensors = hub_files(embedder)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    if picture is not None:
        write_atomically(folder / PICTURE, picture)
    if card.licence_text is not None:
        write_atomically(folder / LICENCE, card.licence_text.encode())
    write_atomically(folder / "README.md", model_card(embedder, card, picture=picture is not None).encode())
    write_atomically(folder / "config.json", json.dumps(config, indent=1).encode() + b"\n")


def licence_text(licence: str, file: Path | None = None) -> str | None:
    """What the file LICENSE holds: that file's text, or one that is known here; None of a licence that is not stated.

    Raises:
        UserError: the text is not known, or the file cannot be read.
    """
    if file is not None:
        if licence == "unknown":
            raise UserError("`licence_file` is the text of `licence`: give its name too, such as `licence='mit'`.")
        if not file.is_file():
            raise UserError(f"no such file: {file}. `licence_file` is the text of the licence.")
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{file} is not text: `licence_file` is the text of the licence.") from None
    if licence == "unknown":
        return None
    if licence not in LICENCES:
        raise UserError(
            f"the text of the licence {licence!r} is not here, only that of {', '.join(LICENCES)}, and it goes with the"
            " model: `licence_file=FILE`"
        )
    return LICENCES[licence].read_text(encoding="utf-8")


def hub_files(embedder: Embedder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The content of config.json, and the weights, without the class layer if it is not the embedding."""
    config = embedder.config
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in embedder.state_dict().items()}
    if config.embedding == "penultimate":
        config = replace(config, class_dim=None)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("class_layer.")}
    about = {name: value for name, value in described(embedder).items() if name != "embedder"}
    about |= {"embedder": asdict(config), "classifier": None}
    as_timm = _as_timm(embedder) if type(embedder.backbone).__module__.startswith("timm.") else None
    if as_timm is None:
        return {"library_name": LIBRARY, LIBRARY: about}, tensors
    network, classifier, head = as_timm
    given = dict(network.pretrained_cfg)
    for name in ("source", "url", "file", "hf_hub_id", "hf_hub_filename", "state_dict"):  # where others' weights are
        given.pop(name, None)
    given |= {
        "interpolation": "lanczos",
        "crop_pct": embedder.size / embedder.shorter_side,
        "num_classes": config.dim,
        "classifier": classifier,
    }
    whole = {
        "architecture": given.pop("architecture"),
        "num_classes": config.dim,
        "num_features": head.in_features,
        "model_args": _pool_of(embedder),
        "pretrained_cfg": {name: value for name, value in given.items() if value is not None},
        "library_name": LIBRARY,
        LIBRARY: about | {"classifier": classifier},
    }
    return whole, {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}


def _pool_of(embedder: Embedder) -> dict[str, Any]:
    pool = embedder.config.pool
    return {} if pool == "published" else {"global_pool": TIMM_NAMES[pool]}


@torch.inference_mode()
def _as_timm(embedder: Embedder) -> tuple[Any, str, nn.Linear] | None:
    """The embedder as a timm network, with the name of its classifier; None if it is not one."""
    from timm import create_model

    config, head = embedder.config, embedder.penultimate
    if config.embedding != "penultimate" or not isinstance(head, nn.Linear) or config.pool == "gem":
        return None
    if config.size is not None:  # timm would build it for images of its own size
        return None
    network = create_model(config.backbone.rpartition(":")[2], num_classes=config.dim, **_pool_of(embedder)).eval()
    own = embedder.backbone.state_dict()
    new = {name: tensor.shape for name, tensor in network.state_dict().items() if name not in own}
    names = {name.rpartition(".")[0] for name in new}
    if len(names) != 1 or len(network.state_dict()) != len(own) + 2:
        return None
    classifier = names.pop()
    if new != {f"{classifier}.weight": head.weight.shape, f"{classifier}.bias": head.bias.shape}:
        return None
    of_head = {f"{classifier}.{name}": tensor for name, tensor in head.state_dict().items()}
    network.load_state_dict(own | of_head)
    was_training, noise = embedder.training, torch.rand(2, len(embedder.mode), embedder.size, embedder.size) * 255
    embedder.eval()
    apart = (normalise(network(embedder.normalised(noise))) - normalise(head(embedder.features(noise)))).abs().max()
    embedder.train(was_training)
    return (network, classifier, head) if float(apart) <= LARGEST else None


def model_card(embedder: Embedder, card: Card, *, picture: bool = False) -> str:
    """README.md: the hub's metadata with the results, and how to use the model."""
    from huggingface_hub import EvalResult, ModelCardData

    trained = (card.results or {}).get("trained") or {}
    shown = {name: trained[name] for name in _SHOWN if trained.get(name) is not None}
    results = [
        EvalResult(
            task_type="image-feature-extraction",
            task_name="Image retrieval, classes never seen in training",
            dataset_type=card.data,
            dataset_name=card.data,
            metric_type=name,
            metric_name=TITLES[name],
            metric_value=round(100 * value, 2),
        )
        for name, value in shown.items()
    ]
    data = ModelCardData(
        license=card.licence,
        library_name=LIBRARY,
        pipeline_tag="image-feature-extraction",
        tags=["metric-learning", "image-retrieval", "image-similarity", LIBRARY],
        model_name=card.name if results else None,
        eval_results=results or None,
    )
    config = embedder.config
    lines = [
        "---",
        data.to_yaml(),
        "---",
        "",
        f"# {card.name}",
        "",
        f"Turns an image into a vector of {vector_size(embedder)} numbers: images of one class lie close together, also"
        f" of classes that were not in training. {config.backbone}, {_made(card)} with"
        " [Tammes](https://pypi.org/project/tammes/).",
        "",
        "```python",
        "import tammes",
        "",
        f'vectors = tammes.load("hf://{card.owner}/{card.name}").encode(["one.jpg", "other.jpg"])',
        "```",
        "",
    ]
    if picture:
        lines += [f"![Queries and their nearest neighbours]({PICTURE})", ""]
    if shown:
        counts = f"{trained['queries']:,} images of {trained['classes']:,} classes that were not in training"
        names = list(shown)
        untrained = (card.results or {}).get("untrained") or {}
        lines += [f"Per cent, on {counts}:", "", "| | " + " | ".join(TITLES[name] for name in names) + " |"]
        lines += ["|---" * (len(names) + 1) + "|"]
        for what, row in (("before training", untrained), ("this model", shown)):
            cells = ["" if row.get(name) is None else f"{100 * row[name]:.2f}" for name in names]
            lines += [f"| {what} | " + " | ".join(cells) + " |"] if row else []
        lines += [""]
    if card.results is not None and describe(card.results):
        lines += [describe(card.results), ""]
    if card.threshold is not None:
        lines += [f"Two images up to {card.threshold:.4f} apart (Euclidean) are taken for the same class.", ""]
    side, size = embedder.shorter_side, embedder.size
    lines += [
        f"Images are {'grey' if embedder.mode == 'L' else 'RGB'}, scaled to a shorter side of {side} (Lanczos), the"
        f" square of {size} in the middle of them; `config.json` has the rest.",
        "",
        "Licence: "
        + (
            "not stated."
            if card.licence == "unknown"
            else f"{card.licence}" + (", see LICENSE." if card.licence_text else ".")
        ),
        "",
    ]
    return "\n".join(lines)


def _made(card: Card) -> str:
    """What was done to the pretrained network."""
    kept = ((card.results or {}).get("verdict") or {}).get("kept")
    if kept == PRETRAINED:
        return "its pretrained features as they are, compared"
    if kept == WHITENED:
        return f"its pretrained features whitened on {card.data}"
    return f"trained on {card.data} by the {card.loss} loss"


def check_folder(folder: Path, run: RunFolder, *, overwrite: bool) -> None:
    """Refuse a folder that holds something else."""
    if folder.parent.resolve() == run.folder.resolve():
        folder_inside(folder)  # in the run's folder, which may be untrusted, no link is followed
    # What a process that was killed left there is nothing yet.
    begun = folder.is_dir() and all(each.name.startswith(WRITING) for each in folder.iterdir())
    if folder.exists() and not begun:
        ours = False
        with suppress(UserError):  # what it says may be anything
            ours = LIBRARY in (read_json(folder / "config.json", dict[str, Any], "") or {})
        if not ours:
            raise UserError(f"{folder} exists and holds something else. Choose another `out`.")
        if not overwrite:
            raise UserError(f"{folder} exists. Pass `overwrite=True` to replace it.")
