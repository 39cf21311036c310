"""`tammes embed`: vectors of images, or better ones of vectors, for any use."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes.cli.console import optional
from tammes.cli.outputs import place_for
from tammes.cli.train import check_data, of_vectors
from tammes.errors import UserError, check_whole
from tammes.io.console import KEPT, print_json, progress


@dataclass(frozen=True)
class Embed:
    """Turn a folder of images, or a file of vectors, into vectors with a trained model.

    The file holds `vectors` (images, dim), unit length, `labels` (the name of each image's class: in a folder, of its
    sub-folder) and `paths`. Of vectors it holds what their file does, in the same order, with other `vectors`.

    For example:

    tammes embed runs/photos photos/ --out vectors.npz

    tammes evaluate vectors.npz

    tammes embed runs/vectors vectors.npz --out new.npz
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder."""
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Any folder of images, with sub-folders or without; or any data that `tammes train` takes. For a run
    of vectors a .npz or .parquet file of them."""
    out: Path
    """The .npz file to write."""
    embedding: Annotated[Literal["penultimate", "last"] | None, optional("{penultimate,last}")] = None
    """Which layer the vectors are taken from, if not the one that the run chose."""
    batch_size: Annotated[int | None, optional("INT")] = None
    """Images at a time; by default as many as the device does best."""
    overwrite: bool = False
    """Replace the file if it exists."""
    skip_bad: bool = False
    """Leave out images that cannot be read, and say how many."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one."""
    json: bool = False
    """Print what was written as one JSON object."""


def embed(config: Embed) -> None:
    """Read, embed, write."""
    if config.batch_size is not None:
        check_whole("--batch-size", config.batch_size)
    out = place_for("--out", config.out, name="vectors.npz", suffixes=(".npz",), overwrite=config.overwrite)
    check_data(config.data)
    from tammes.training.run_folder import is_run, open_run

    run_of_vectors = is_run(config.model) and of_vectors(open_run(config.model).read("config").get("data", ""))
    if run_of_vectors:
        from tammes.cli.vectors_embed import embed_vectors

        embed_vectors(config, out)
        return
    if of_vectors(config.data):
        raise UserError(
            f"{config.model} was trained on images, and {config.data} holds vectors. Train on these: tammes train"
            f" {config.data}"
        )
    import numpy as np

    from tammes.cli.feeding import decoded_for
    from tammes.data import READERS, flat, open_dataset
    from tammes.io.files import write_atomically
    from tammes.io.machine import device
    from tammes.models.embedder import load
    from tammes.training.embedding import embed as vectors_of

    embedder, path = load(config.model, embedding=config.embedding).to(device(config.device)), Path(config.data)
    # Any folder will do: what is embedded needs no classes.
    plain = path.is_dir() and not any(recognised(path) for recognised, _ in READERS.values())
    dataset = flat(path) if plain else open_dataset(config.data)
    images = decoded_for(embedder, dataset, skip_bad=config.skip_bad)
    chosen = images.without_bad(np.arange(len(dataset)))
    with progress("embedding", f"Nothing was written. {KEPT}") as on_progress:
        vectors = vectors_of(embedder, images, chosen, batch_size=config.batch_size, on_progress=on_progress)
    content = BytesIO()
    labels, paths = np.array(dataset.class_names)[dataset.labels[chosen]], np.array(dataset.keys)[chosen]
    np.savez(content, vectors=vectors, labels=labels, paths=paths)
    write_atomically(out, content.getvalue())
    record = {"file": str(config.out), "images": len(vectors), "dim": vectors.shape[1], "skipped": len(images.bad)}
    if config.json:
        print_json(record)
        return
    skipped = f", {record['skipped']} unreadable left out" if record["skipped"] else ""
    print(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions in {config.out}{skipped}")
