"""`tammes index`: make folders of images, or vectors, searchable."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tammes.cli.options import Device, InPrecision, Json, Pooling, Size, Weights, WeightsForm, network_options
from tammes.errors import UserError
from tammes.io.console import CONTINUE, if_stopped, print_json, printable, say
from tammes.io.files import is_vector_file

if TYPE_CHECKING:
    from tammes.gallery.update import Updated

SHOWN = 10  # broken images that are named


@dataclass(frozen=True)
class Index:
    """Embed the images of folders with a model, and store them where `tammes search` finds them.

    The model is a run, a model on the hub (hf://owner/name), or the name of a pretrained network, which needs no
    training; `tammes models` lists them.

    Run again, it embeds only what is new or changed and removes what is gone. It may be stopped at any moment, and two
    of them may run at once. `torchrun --nproc-per-node 4 -m tammes index …` shares the images out over processes. The
    class of an image is the first folder on its path below the outermost folder that was indexed.

    A table of images can be indexed too: a CSV file with a column `path`, or COCO's JSON. The class of an image is in
    its column `label`, a box in x, y, width and height; its other columns can be filtered by: `tammes search --where`.
    Images that are no longer in a table stay in the gallery until `--rebuild`.

    Vectors of any model are indexed as they are, without a MODEL: a .npz or .parquet file with `vectors` and optionally
    `labels` and `paths` (or `X` and `y`, or one column per number), or a .npy file. A vector whose path is already in
    the gallery replaces the old one. Such a gallery is searched by vectors and by its items.

    For example:
        tammes index resnet50 photos/ --gallery gallery
        tammes index resnet50 photos/ --whiten --gallery gallery
        tammes index runs/photos photos/ --gallery gallery
        tammes index runs/photos photos/ more/ --gallery s3://bucket/gallery
        tammes index runs/photos photos.csv --gallery postgresql://me@host/shop/photos
        tammes index runs/better photos/ --gallery gallery --rebuild
        tammes index vectors.npz --gallery gallery
    """

    what: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL] DATA…")]
    """A run of images, a model on the hub or a pretrained network, then folders of images (sub-folders included) or
    tables of them; or only files of vectors."""
    gallery: Annotated[str, tyro.conf.arg(metavar="FOLDER|s3://…|postgresql://…|qdrant://…")]
    """Where the gallery is, or will be created."""
    weights: Weights = None
    weights_form: WeightsForm = None
    size: Size = None
    pool: Pooling = None
    whiten: bool = False
    """Of a pretrained network: whiten its features, in closed form, down to 256 dimensions: within the classes of these
    images if sub-folders name them, otherwise by PCA. The gallery stores the whitening for searches and later images;
    --rebuild computes it again."""
    precision: InPrecision = None
    rebuild: bool = False
    """Build the gallery again from this data, with another model or from scratch. The old one stays in use until the
    new one is complete."""
    labels: bool = True
    """Do not use the names of sub-folders, or the labels of vectors, as classes."""
    empty_folders: bool = False
    """Remove images from the gallery even if a folder has none left, or a rebuild leaves it out."""
    verify: bool = False
    """Read every file again. Otherwise a file that was replaced by one of the same size and time keeps its vector."""
    trust_roots: bool = False
    """Let `tammes serve` hand out the files of all folders that the gallery names, even of those that you have not
    indexed into it on this machine."""
    device: Device = "auto"
    json: Json = False


def index(config: Index) -> None:
    """Compare, embed, store, show."""
    if not config.what:
        raise UserError(f"which images? For example: tammes index runs/photos photos/ --gallery {config.gallery}")
    files = [Path(each) for each in config.what if is_vector_file(each)]
    kept = "The gallery is as it was." if config.rebuild else "What the gallery holds is safe."
    from tammes.training.distributed import is_first, joined

    with if_stopped(then=f"{kept} {CONTINUE}"), joined():
        first = is_first()
        updated = (
            _of_vectors(config, files)
            if files
            else _of_images(config, config.what[0], tuple(map(Path, config.what[1:])))
        )
    if not first:
        return
    if config.json:
        print_json({"gallery": config.gallery, **updated.record()})
    else:
        _show(config.gallery, updated, "vectors" if files else "images")


def _of_images(config: Index, model: str, folders: tuple[Path, ...]) -> "Updated":
    from tammes.training.run_folder import is_run

    gallery = f"--gallery {quote(config.gallery)}"
    if not folders and Path(model).is_dir() and not is_run(Path(model)):
        raise UserError(
            f"which model embeds the images of {model}? Name it first, a pretrained network or a run: tammes index"
            f" resnet50 {quote(model)} {gallery}. `tammes models` and `tammes runs` list them."
        )
    if not folders:
        raise UserError(f"which images? For example: tammes index {quote(model)} photos/ {gallery}")
    from tammes.data.folder import check_folder
    from tammes.data.table import is_table, table_lines

    for folder in folders:
        if is_table(folder):
            table_lines(folder, labelled=False)  # says what is wrong with it
        else:
            check_folder(folder)
    from tammes.gallery.update import StoppedError, Update, update
    from tammes.gallery.whitening import model_for
    from tammes.training.train import stop_on_signal

    how = (config.rebuild, config.labels, config.empty_folders, config.trust_roots, config.verify)
    of_gallery: dict[str, Any] = {
        "whiten": config.whiten,
        "labelled": config.labels,
        "rebuild": config.rebuild,
        "precision": config.precision,
        "on": config.device,
    }
    made_by = model_for(model, config.gallery, folders, **of_gallery, **network_options(config))
    what = Update(config.gallery, made_by, folders, *how)
    try:
        return update(what, on=config.device, stopping=stop_on_signal)
    except StoppedError as stopped:
        say(f"Stopped; {stopped}")
        raise SystemExit(130) from None


def _of_vectors(config: Index, files: list[Path]) -> "Updated":
    for name in ("weights", "weights_form", "size", "pool", "whiten", "precision"):
        if getattr(config, name):
            raise UserError(f"`{name}` is for images, and {files[0]} holds vectors: leave it out.")
    other = next((Path(each) for each in config.what if Path(each) not in files), None)
    if other is not None:
        raise UserError(_not_with_vectors(other, files[0], config.gallery))
    from tammes.gallery.update import index_vectors, items_of_file

    parts = [items_of_file(file, labels=config.labels) for file in files]
    return index_vectors(config.gallery, parts, again=config.rebuild, empty_folders=config.empty_folders)


def _not_with_vectors(other: Path, file: Path, gallery: str) -> str:
    """Why vectors are not indexed together with something else, and what to type."""
    from tammes.training.run_folder import is_run, open_run

    alone = f"tammes index {quote(str(file))} --gallery {quote(gallery)}"
    if not is_run(other):
        return f"{file} holds vectors, which are indexed alone: {alone}. Leave out {other}."
    if open_run(other).of_vectors:
        new = file.with_name(f"{file.stem}-new{file.suffix}")
        return (
            f"{other} makes better vectors of {file}; index those: tammes embed {quote(str(other))} {quote(str(file))}"
            f" --out {quote(str(new))}, then tammes index {quote(str(new))} --gallery {quote(gallery)}"
        )
    return f"{other} embeds images, and {file} holds vectors, which are indexed as they are, without a run: {alone}"


def _show(gallery: str, updated: "Updated", kind: str) -> None:
    done, record = updated.done, updated.record()
    relabelled = f" {done.relabelled:,} of another class now," if done.relabelled else ""
    speed = f", {record['images_per_second']:.0f} {kind}/s" if record["images_per_second"] else ""
    print(
        f"{gallery}: {updated.images:,} {kind}; {done.added:,} added, {done.changed:,} changed,"
        f" {record['same']:,} unchanged,{relabelled} {done.removed:,} removed{speed}"
    )
    if updated.optimised.indexed:
        print(
            f"searched by an approximate index; its recall at 10 against exact search is {updated.optimised.recall:.3f}"
        )
    if done.broken:
        print(f"{len(done.broken)} images cannot be read and are not in it:")
        for reason in done.broken[:SHOWN]:
            print(f"  {printable(reason)}")
        if len(done.broken) > SHOWN:
            print("  … --json lists them all")
