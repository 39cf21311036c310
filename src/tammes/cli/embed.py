"""`tammes embed`: turn images, or vectors, into vectors with a model."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tammes.cli.console import optional
from tammes.cli.options import Device, InPrecision, Json, Pooling, Size, SkipBad, Weights, WeightsForm, network_options
from tammes.errors import UserError, check_whole
from tammes.io.console import print_json
from tammes.io.files import is_vector_file
from tammes.io.outputs import place_for


@dataclass(frozen=True)
class Embed:
    """Turn a folder of images, or a file of vectors, into vectors with a model.

    A .npz or .parquet file holds `vectors` (images, dim), of norm 1, `labels` (the class of each image: in a folder,
    the name of its sub-folder) and `paths`; a .npy file only the vectors. If the data are vectors, the new file has
    everything that theirs has, in the same order, with new `vectors`. `tammes evaluate`, `train`, `index` and `report`
    read it.

    `torchrun --nproc-per-node 4 -m tammes embed …` shares the images out over processes. If it is stopped and run
    again, features that were already computed come from the cache.

    For example:
        tammes embed resnet50 photos/ --out vectors.npz
        tammes embed runs/photos photos/ --out vectors.npz
        tammes embed runs/photos photos/ --out vectors.parquet
        tammes evaluate vectors.npz
        tammes embed runs/vectors vectors.npz --out new.npz
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run folder, a model on the hub (hf://owner/name), or a pretrained network: `tammes models` lists them."""
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Any folder of images, with sub-folders or without, or any other data that `tammes train` takes. For a run of
    vectors, a .npz, .parquet or .npy file of vectors."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.npz|.parquet|.npy")]
    """The file to write."""
    weights: Weights = None
    weights_form: WeightsForm = None
    size: Size = None
    pool: Pooling = None
    whiten: bool = False
    """Of a pretrained network: whiten its features, in closed form, down to 256 dimensions: within the classes of this
    data if it has two or more, otherwise by PCA. Results on the same classes are then too good; `tammes evaluate
    --whiten` measures on other classes."""
    precision: InPrecision = None
    embedding: Annotated[Literal["penultimate", "last"] | None, optional("{penultimate,last}")] = None
    """The layer that vectors are taken from, if not the one that the run uses."""
    batch_size: Annotated[int | None, optional("INT")] = None
    """Images at a time. (default: as many as suit the device)"""
    overwrite: bool = False
    """Replace the file if it exists."""
    skip_bad: SkipBad = False
    verify: bool = False
    """Decode every image again. Otherwise an image that was replaced by one of the same size and time is taken from the
    cache."""
    device: Device = "auto"
    json: Json = False


def embed(config: Embed) -> None:
    """Read, embed, write, say what was written."""
    from tammes.training.distributed import agreed, is_first, joined

    with joined():
        first, (out, of_vectors) = is_first(), agreed(lambda: _checked(config))
        record = _vectors(config, out) if of_vectors else _images(config, out)
    if not first:
        return
    record = {"file": str(config.out)} | record
    if config.json:
        print_json(record)
        return
    skipped = f", {record['skipped']} unreadable left out" if record.get("skipped") else ""
    number = record.get("images", record.get("vectors"))
    print(f"{number} vectors of {record['dim']} dimensions in {config.out}{skipped}")


def _checked(config: Embed) -> tuple[Path, bool]:
    """The file to write, and whether the model is one of vectors."""
    if config.batch_size is not None:
        check_whole("`batch_size`", config.batch_size)
    from tammes.data.vector_files import WRITTEN, check_writable

    out = place_for("out", config.out, name="vectors.npz", suffixes=WRITTEN, overwrite=config.overwrite)
    check_writable(out)
    if not is_vector_file(config.data):
        from tammes.data import check_place

        check_place(config.data)
    from tammes.io.environment import launched
    from tammes.training.run_folder import is_run, open_run

    run = Path(config.model)
    of_vectors = is_run(run) and open_run(run).of_vectors
    if of_vectors and launched().number > 1:
        raise UserError(
            f"embedding vectors takes one process: start `tammes embed {config.model} …` without a launcher."
        )
    return out, of_vectors


def _vectors(config: Embed, out: Path) -> dict[str, Any]:
    known = {field.name: field.default for field in fields(Embed)}
    for option in (
        "weights",
        "weights_form",
        "size",
        "pool",
        "whiten",
        "precision",
        "embedding",
        "batch_size",
        "skip_bad",
        "verify",
        "device",
    ):
        if getattr(config, option) != known[option]:
            raise UserError(f"`{option}` is for images, and {config.model} was trained on vectors: leave it out.")
    from tammes.training.run_folder import open_run
    from tammes.vectors.embed import embed_vectors

    number, dim = embed_vectors(open_run(Path(config.model)), config.data, out)
    return {"vectors": number, "dim": dim}


def _images(config: Embed, out: Path) -> dict[str, Any]:
    if is_vector_file(data := config.data):
        what = f"{config.model} embeds images, and {data} holds vectors."
        raise UserError(f"{what} Train on these: tammes train {data}")
    from tammes.io.machine import device
    from tammes.models.embedder import load
    from tammes.models.pretrained import check_trained, load_model, names_network
    from tammes.training.distributed import one_a_host_first
    from tammes.training.embedding import embed_images

    how, precision = network_options(config), config.precision or "no"
    if names_network(config.model):
        if config.embedding is not None:
            raise UserError(f"`embedding` is for a run; {config.model} is compared by its features: leave it out.")
        embedder = one_a_host_first(
            lambda: load_model(config.model, precision=precision, **how)
        )  # which may download it
    else:
        check_trained(config.model, how | {"whiten": config.whiten or None})
        embedder = one_a_host_first(lambda: load(config.model, embedding=config.embedding, precision=precision))
    embedder = embedder.to(device(config.device))
    options = {name: getattr(config, name) for name in ("whiten", "batch_size", "skip_bad", "verify")}
    return embed_images(embedder, config.data, out, **options)
