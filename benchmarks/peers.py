"""How fast is everything around the loss, beside the libraries that people use for it?

    python -m benchmarks.peers                                    # all rows but those that are stored
    python -m benchmarks.peers --only evaluation kmeans --again   # these rows again
    TAMMES_DATA=datasets python -m benchmarks.peers --weights googlenet.safetensors --oml-python other-venv/bin/python

Every turn of every side is a process of its own, on one thread; the sides of a row take turns, and the median of a
side's turns counts, in processor seconds: what else the machine does hardly counts. Only rows with several workers
count what passed: nothing else should run beside them. A side that takes longer than --long seconds has one turn, one
that takes less than --short more of them; the fastest and the slowest are kept beside the median.
Memory is what the work added at its peak to what the process held with its libraries and data loaded. The limit is what
the work cannot do without: the bare matrix product, the decoding or the copying alone. Rows on real data look for
CUB_200_2011 and omniglot in the folder that the environment variable TAMMES_DATA names, and are left out without. What
is timed is in peer_work.py; the results go to docs/performance.md and README.md by `make results`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import inf, log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.throughput import photographs
from benchmarks.timing import machine
from tammes.errors import UserError, unknown_name
from tammes.io.environment import data_folder

OURS = "Tammes"
IN_SINGLE = f"{OURS}, float32 only"
_PRECISION = (
    "Where the processor multiplies bfloat16 faster (AMD since Zen 4, Intel since Cooper Lake), ours looks for"
    " candidates by that, and the limit is in it too; elsewhere it takes what the line of float32 says. What is found"
    " is the same."
)
PACKAGES = (
    *("tammes", "torch", "torchvision", "numpy", "pillow", "scikit-learn", "faiss-cpu", "pytorch-metric-learning"),
)


@dataclass(frozen=True)
class Options:
    """Time Tammes and its peers, row by row."""

    only: tuple[str, ...] = ()
    """These rows."""
    again: bool = False
    """Measure rows that are stored already."""
    turns: int = 3
    """Of each side of a row."""
    long: float = 60.0
    """Seconds; a side that takes longer has one turn, unless turns are seeds."""
    short: float = 7.0
    """Seconds; a row whose sides all take less has --many turns."""
    many: int = 7
    limit: float = 1800.0
    """Seconds after which a turn is ended and counts as not done."""
    items: int = 60_502
    """Vectors that are evaluated; as many as the test images of Stanford Online Products."""
    classes: int = 11_316
    dim: int = 512
    queries: int = 6_050
    """Of the row about neighbours."""
    iterations: int = 20
    """Of K-means, whatever the library."""
    images: int = 600
    """Of the image pipeline."""
    workers: int = 2
    """Of the rows of the image pipeline that have several: threads of ours, processes of torchvision's."""
    epochs: int = 5
    """Of the training on Omniglot."""
    batch: int = 8
    """Images of a step of a network."""
    weights: str = "imagenet"
    """GoogLeNet's, for the features of birds."""
    oml_python: Path | None = None
    """The interpreter of an environment with open-metric-learning, where it is not in this one."""
    remark: str = ""
    """What should be known of the machine, such as what else it did meanwhile."""
    json: Path = Path("benchmarks/results/peers.json")
    """Where the figures go, after each row."""


class Side(NamedTuple):
    """One implementation of a row's work."""

    name: str
    work: str
    given: dict[str, Any]
    python: Path | None = None


class Row(NamedTuple):
    """What is compared, ours first; and the side that is the limit of all."""

    title: str
    short: str
    note: str
    sides: tuple[Side, ...]
    limit: Side
    finish: Callable[[list[dict[str, Any]], dict[str, Any]], dict[str, Any]] | None = None


# ---- rows


def evaluation(options: Options, _: Path) -> Row:
    given = {"items": options.items, "dim": options.dim, "classes": options.classes}
    return Row(
        f"Recall@K and MAP@R of {options.items:,} x {options.dim}, {options.classes:,} classes",
        f"Recall@K, MAP@R of {options.items:,} x {options.dim}",
        "PML ranks as deep as the largest class (k='max_bin_count') and has no Recall@K beyond K = 1; OML has no MAP@R,"
        f" but MAP at the size of the largest class. {_PRECISION}",
        (
            Side(OURS, "evaluation_tammes", given),
            Side(IN_SINGLE, "evaluation_tammes", given | {"single": True}),
            Side("PML AccuracyCalculator, faiss", "evaluation_pml", given),
            Side("OML", "evaluation_oml", given, options.oml_python),
        ),
        Side("the matrix product of half of all pairs", "rough_products", given),
    )


def nmi(options: Options, _: Path) -> Row:
    given = {
        "items": options.items, "dim": options.dim, "classes": options.classes, "iterations": options.iterations,
        "nmi": True,
    }  # fmt: skip
    return Row(
        f"NMI of the same from given centres: {options.classes:,} clusters, at most {options.iterations} iterations",
        f"NMI, {options.classes:,} clusters from given centres",
        "K-means from the same centres, one start, and NMI of its clusters with the classes. faiss's K-means is what"
        " PML calls, from vectors drawn blindly, as here. What `tammes.evaluate` starts from is the next row.",
        (
            Side(OURS, "kmeans_tammes", given),
            Side("faiss, as PML", "kmeans_faiss", given),
            Side("scikit-learn", "kmeans_sklearn", given),
        ),
        Side("the matrix product of the first iteration", "products", given | {"queries": options.classes}),
    )


def starts(options: Options, _: Path) -> Row:
    items, classes = max(2, options.items // 5), max(2, options.classes // 5)
    given = {"items": items, "dim": options.dim, "classes": classes}
    candidates = classes * (2 + int(log(classes)))
    return Row(
        f"greedy k-means++ of {items:,} x {options.dim}, {classes:,} clusters",
        f"k-means++ of {items:,} x {options.dim}, {classes:,} clusters",
        "The same method with other random numbers. faiss has none: it starts from vectors drawn blindly.",
        (Side(OURS, "starts_tammes", given), Side("scikit-learn", "starts_sklearn", given)),
        Side("the matrix product of the candidates", "products", given | {"items": items, "queries": candidates}),
    )


def kmeans(options: Options, _: Path) -> Row:
    items, classes = max(2, options.items // 10), max(2, options.classes // 100)
    given = {"items": items, "dim": options.dim, "classes": classes, "iterations": options.iterations}
    often = {"warm": 1, "repeat": 15}
    return Row(
        f"K-means of {items:,} x {options.dim}, {classes} clusters, at most {options.iterations} iterations",
        f"K-means of {items:,} x {options.dim}",
        "From the same first centres.",
        (
            Side(OURS, "kmeans_tammes", given | often),
            Side("faiss", "kmeans_faiss", given | often),
            Side("scikit-learn", "kmeans_sklearn", given | often),
        ),
        Side("the matrix product of the first iteration", "products", given | {"queries": classes} | often),
    )


def neighbours(options: Options, _: Path) -> Row:
    given = {
        "items": options.items, "dim": options.dim, "classes": options.classes, "queries": options.queries, "k": 10,
    }  # fmt: skip
    return Row(
        f"The 10 nearest of {options.items:,} x {options.dim} to {options.queries:,} queries",
        f"10 nearest of {options.items:,}",
        "Ours are in the order of float64 distances, with ties known as ties; the others' in that of float32."
        f" {_PRECISION}",
        (
            Side(OURS, "neighbours_tammes", given),
            Side(IN_SINGLE, "neighbours_tammes", given | {"single": True}),
            Side("faiss IndexFlatL2", "neighbours_faiss", given),
            Side("scikit-learn, brute", "neighbours_sklearn", given),
        ),
        Side("the matrix product", "rough_products", given),
    )


def _program(name: str, code: str, python: Path | None = None) -> Side:
    return Side(name, "program", {"python": str(python or sys.executable), "code": code, "repeat": 1, "warm": 1})


_NOTHING = _program("an empty Python program", "pass")
_TORCH = _program("import torch", "import torch")


def help_(_options: Options, _: Path) -> Row:
    return Row(
        "`tammes --help`",
        "`tammes --help`",
        "No peer has a command line.",
        (_program(OURS, "import sys; sys.argv = ['tammes', '--help']\nfrom tammes.cli import main\nmain()"),),
        _NOTHING,
    )


def imported(options: Options, _: Path) -> Row:
    return Row(
        "`import tammes`",
        "`import tammes`",
        "Ours imports the rest when it is first used: what that costs is in the rows below.",
        (
            _program(OURS, "import tammes"),
            _program("PML", "import pytorch_metric_learning.losses"),
            _program("OML", "import oml.losses", options.oml_python),
            _program("faiss", "import faiss"),
        ),
        _NOTHING,
    )


def first_loss(options: Options, _: Path) -> Row:
    use = "\nimport torch\nloss(torch.randn(8, 64, requires_grad=True), torch.arange(8) // 2).backward()"
    return Row(
        "from nothing to the first gradient of a loss",
        "first gradient of a loss",
        "",
        (
            _program(OURS, f"import tammes\nloss = tammes.DiscriminativeLoss(64){use}"),
            _program("PML", f"from pytorch_metric_learning.losses import TripletMarginLoss as L\nloss = L(){use}"),
            _program("OML", f"from oml.losses import ArcFaceLoss as L\nloss = L(64, 8){use}", options.oml_python),
        ),
        _TORCH,
    )


_NETWORK = """
import torch, torchvision
model = network = torchvision.models.resnet18()
network.fc = torch.nn.Identity()
network.load_state_dict(torch.load({file!r}, weights_only=True))
network.eval()
"""
_BY_PML = """
from pytorch_metric_learning.utils.inference import InferenceModel
model = InferenceModel(network, data_device=torch.device("cpu")).get_embeddings
"""
_THEIR_VECTOR = """
from PIL import Image
from torchvision import transforms
steps = transforms.Compose(
    [transforms.Resize(256, transforms.InterpolationMode.LANCZOS), transforms.CenterCrop(224), transforms.ToTensor(),
     transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
)
image = steps(Image.open({picture!r}).convert("RGB"))[None]
with torch.inference_mode():
    found = torch.nn.functional.normalize(model(image))
"""
_SAY = "\nprint('found', f'{float(found.reshape(-1).__abs__().sum()):.2f}')"


def _saved(folder: Path) -> tuple[str, str]:
    """A ResNet-18 in a folder, as we load it and as users of torchvision do: two programs."""
    from tammes.models.embedder import Embedder, EmbedderConfig

    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig("resnet18", 512))
    layer = embedder.new_layers()[0]
    torch.nn.init.eye_(layer.weight)  # so that its vector is that of the network alone
    torch.nn.init.zeros_(layer.bias)
    embedder.save(folder)
    torch.save(embedder.backbone.state_dict(), folder / "theirs.pt")
    return f"import tammes\nmodel = tammes.load({str(folder)!r})", _NETWORK.format(file=str(folder / "theirs.pt"))


_FROM_PML = "torchvision's network as it is, and in PML's InferenceModel."


def load(_options: Options, folder: Path) -> Row:
    ours, theirs = _saved(folder)
    return Row(
        "from nothing to a saved ResNet-18 by `tammes.load`",
        "`tammes.load` of a ResNet-18",
        _FROM_PML,
        (
            _program(OURS, ours),
            _program("torchvision", theirs),
            _program("PML and torchvision", theirs + _BY_PML),
        ),
        _TORCH,
    )


def first_embedding(_options: Options, folder: Path) -> Row:
    ours, theirs = _saved(folder)
    picture = folder / "picture.jpg"
    noise = np.random.default_rng(0).integers(256, size=(12, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((500, 375)).save(picture)
    vector = _THEIR_VECTOR.format(picture=str(picture)) + _SAY
    return Row(
        "from nothing to a saved ResNet-18's first embedding of an image",
        "its first embedding",
        f"{_FROM_PML} Found is the sum of the vector's numbers without their signs.",
        (
            _program(OURS, f"{ours}\nfound = model.encode({str(picture)!r}){_SAY}"),
            _program("torchvision", theirs + vector),
            _program("PML and torchvision", theirs + _BY_PML + vector),
        ),
        _TORCH,
    )


def _data(name: str) -> Path:
    folder = data_folder()
    if folder is None or not (folder / name).exists():
        raise UserError(f"{name} is not there: name the folder that holds it by TAMMES_DATA.")
    return folder / name


_PHOTOGRAPHS = (
    "Made-up photographs of 500 x 375 in JPEG: decode, scale to 256, crop 224, mirror, batches of 32. Ours scales by"
    " Lanczos and keeps the pixels on disk, from where later epochs copy them; torchvision scales by a cheaper filter,"
    " and decodes again in each."
)
_PASSED = (
    "Seconds that passed, with as many threads of ours as torchvision has processes; the memory of those is not in its"
    " MB."
)


def _pipeline(first: bool, several: bool) -> Callable[[Options, Path], Row]:
    """An epoch of photographs: in one process, by the processor's clock, or by several workers, by the wall's."""

    def row(options: Options, folder: Path) -> Row:
        photographs(folder, options.images)
        workers = options.workers if several else 0
        given = {
            "folder": str(folder), "images": options.images, "workers": workers, "wall": several,
            "warm": 0 if first else 1, "repeat": 1 if first else 5,
        }  # fmt: skip
        epoch, by = "the first epoch" if first else "each later epoch", f"{workers} workers" if several else ""
        return Row(
            f"{epoch} of {options.images:,} photographs, {by or 'one process'}",
            ", ".join(filter(None, [f"{epoch} of {options.images:,} photographs", by])),
            " ".join([_PHOTOGRAPHS] + [_PASSED] * several),
            (
                Side(OURS, "pipeline_first_tammes" if first else "pipeline_later_tammes", given),
                Side("torchvision ImageFolder, DataLoader", "pipeline_torchvision", given),
            ),
            Side("decoding alone", "decoding", given) if first else Side("copying the crops", "copying", given),
        )

    return row


def head(options: Options, _: Path) -> Row:
    given = {"folder": str(_data("CUB_200_2011")), "weights": options.weights, "warm": 1, "repeat": 5}
    return Row(
        "an epoch of `head` on GoogLeNet's features of 5,864 birds, batches of 32",
        "an epoch of `head` on CUB's features",
        "Two new layers and the discriminative loss; PML: one new layer, and its NormalizedSoftmaxLoss, whose weights"
        " are the other.",
        (
            Side(OURS, "head_tammes", given),
            Side("PML's trainer MetricLossOnly", "head_pml_trainer", given),
            Side("a loop with a DataLoader and PML's loss", "head_pml_loop", given),
        ),
        Side("our layers and loss over tensors in memory", "head_bare", given),
    )


def omniglot(options: Options, _: Path) -> Row:
    given = {"folder": str(_data("omniglot")), "epochs": options.epochs}
    semi, own, theirs = f"{OURS}, semi-hard triplets", f"{OURS}, discriminative", "PML, semi-hard triplets"
    once, twice = options.epochs, 2 * options.epochs
    return Row(
        "Omniglot, semi-hard triplets here and in PML: seconds of training until R@1 on validation classes is the best"
        f" of ours in {options.epochs} epochs",
        "Omniglot, our semi-hard triplets and PML's",
        "Both sides are semi-hard triplets; the discriminative loss has a row of its own, and takes longer. conv4 from"
        " scratch, batches of 64, fused AdamW, the rate falling to 0 over so many epochs; looked at after"
        " each; a turn is a seed. Ours is FaceNet's recipe, a margin of 1 on squared distances and one semi-hard"
        " negative for each pair; PML's own has 0.2 on distances and all semi-hard triplets, and was tried with our"
        " margin too. The seconds of an epoch are beside: what is left of the difference was learned in it.",
        (
            Side(f"{semi}, {once} epochs", "omniglot_tammes", given | {"loss": "triplet-semihard"}),
            Side(f"{theirs}, {once} epochs", "omniglot_pml", given),
            Side(f"{semi}, {twice} epochs", "omniglot_tammes", given | {"loss": "triplet-semihard", "epochs": twice}),
            Side(f"{theirs}, {twice} epochs", "omniglot_pml", given | {"epochs": twice}),
            Side(f"{theirs} with our margin, {twice} epochs", "omniglot_pml", given | {"epochs": twice, "margin": 1.0}),
            Side(f"{own}, {twice} epochs", "omniglot_tammes", given | {"loss": "discriminative", "epochs": twice}),
        ),
        Side("the network's steps alone, in as many epochs", "omniglot_network", given),
        finish=time_to_goal,
    )


def time_to_goal(sides: list[dict[str, Any]], limit: dict[str, Any]) -> dict[str, Any]:
    """Seconds until the mean R@1 over seeds is what the first side has at best; None where it never is.

    The limit is that of all its epochs, and becomes that of as many as the first side takes.
    """
    curves = []
    for side in sides:
        found = [turn["said"] for turn in side["turns"]]
        curves.append(
            (
                np.cumsum([each["epoch_seconds"] for each in found], axis=1).mean(axis=0),
                np.mean([each["recalls"] for each in found], axis=0),
            )
        )
    goal = float(curves[0][1].max())
    if "failed" not in limit:
        limit["seconds"] *= (int(curves[0][1].argmax()) + 1) / len(curves[0][1])
    for side, (seconds, recalls) in zip(sides, curves, strict=True):
        there = np.flatnonzero(recalls >= goal)
        side["seconds"] = float(seconds[there[0]]) if len(there) else None
        side["best"], side["in_all"] = float(recalls.max()), float(seconds[-1])
        side["epoch_seconds"] = side["in_all"] / len(seconds)
    return {"goal": goal}


FORMS = ("plain", "channels last", "channels last, bf16", "channels last, compiled", "channels last, compiled, bf16")


def _network(name: str, train: bool) -> Callable[[Options, Path], Row]:
    def row(options: Options, _: Path) -> Row:
        given = {"network": name, "train": train, "batch": options.batch, "warm": 2, "repeat": 5}
        forms = (Side(form, "network", given | {"form": form}) for form in FORMS)
        return Row(
            f"{name}: {'a step of training' if train else 'inference'}, {options.batch} images",
            f"{name}, {'training' if train else 'inference'}",
            "Forms of the same network; ours is what the Embedder does by itself. bf16 by autocast.",
            (Side(OURS, "network_default", given), *forms),
            Side("as many multiplications in matrix products", "network_limit", given),
        )

    return row


ROWS: dict[str, Callable[[Options, Path], Row]] = {
    "evaluation": evaluation,
    "nmi": nmi,
    "starts": starts,
    "neighbours": neighbours,
    "kmeans": kmeans,
    "help": help_,
    "import": imported,
    "first-loss": first_loss,
    "load": load,
    "first-embedding": first_embedding,
    "pipeline-first": _pipeline(first=True, several=False),
    "pipeline-later": _pipeline(first=False, several=False),
    "pipeline-first-workers": _pipeline(first=True, several=True),
    "pipeline-later-workers": _pipeline(first=False, several=True),
    "head": head,
    "omniglot": omniglot,
    "googlenet-inference": _network("googlenet", train=False),
    "googlenet-training": _network("googlenet", train=True),
    "resnet18-inference": _network("resnet18", train=False),
    "resnet18-training": _network("resnet18", train=True),
}


# ---- measuring


def turn(side: Side, options: Options, number: int) -> dict[str, Any]:
    """One turn of a side, in a process of its own."""
    given = side.given | {"threads": 1, "seed": number}
    code = [str(side.python or sys.executable), "-W", "ignore", "-m", "benchmarks.peer_work"]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    try:
        ended = subprocess.run(
            [*code, side.work, json.dumps(given)],
            capture_output=True, text=True, check=False, timeout=options.limit, env=os.environ | threads,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {options.limit:g} s"}
    try:
        return dict(json.loads(ended.stdout.splitlines()[-1]))
    except (IndexError, json.JSONDecodeError):
        return {
            "failed": f"ended with {ended.returncode}: {(ended.stderr.splitlines() or ['without a word'])[-1][:200]}"
        }


def measured(row: Row, options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """All sides of a row, in turns."""
    sides = [*row.sides, row.limit]
    turns: list[list[dict[str, Any]]] = [[] for _ in sides]
    for number in range(max(options.turns, options.many)):
        if number >= options.turns and (row.finish is not None or _longest(turns) > options.short):
            break
        for side, own in zip(sides, turns, strict=True):
            long = own and (own[-1].get("seconds", 0) > options.long and row.finish is None)
            if own and ("failed" in own[-1] or long):
                continue
            own.append(turn(side, options, number))
            took = own[-1].get("failed") or f"{own[-1]['seconds']:.3g} s, {own[-1]['mb']:.0f} MB"
            say(f"{row.title}: {side.name}, turn {number + 1}: {took}")
    found = [_side(side, own) for side, own in zip(sides, turns, strict=True)]
    result: dict[str, Any] = {"title": row.title, "short": row.short, "note": row.note}
    done = [each for each in found[: len(row.sides)] if "failed" not in each]
    if row.finish is not None and done and done[0]["name"] == row.sides[0].name:
        result |= row.finish(done, found[-1])
    for each in found:
        del each["turns"]
    ours = found[0].get("seconds")
    for each in found:
        each["ratio"] = each["seconds"] / ours if ours and each.get("seconds") else None
    return result | {
        "sides": found[: len(row.sides)],
        "limit": found[-1],
        "machine": machine() | {"remark": options.remark},
        "versions": versions(options),
    }


def _longest(turns: list[list[dict[str, Any]]]) -> float:
    return max((float(each["seconds"]) for own in turns for each in own if "seconds" in each), default=inf)


def _side(side: Side, turns: list[dict[str, Any]]) -> dict[str, Any]:
    done = [each for each in turns if "failed" not in each]
    if not done:
        return {"name": side.name, "turns": turns, "failed": turns[-1]["failed"]}
    return {
        "name": side.name,
        "turns": done,
        "seconds": median(each["seconds"] for each in done),
        "wall": median(each["wall"] for each in done),
        "counted": len(done),
        "from_to": [min(each["seconds"] for each in done), max(each["seconds"] for each in done)],
        "mb": max(each["mb"] for each in done),
        "said": done[-1]["said"],
    }


def versions(options: Options) -> dict[str, str]:
    """What the sides were."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    ask = "from importlib.metadata import version; print(version('open-metric-learning'))"
    python = str(options.oml_python or sys.executable)
    oml = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return found | ({} if oml.returncode else {"open-metric-learning": oml.stdout.strip()})


def table(row: dict[str, Any]) -> Table:
    shown = Table(title=row["title"])
    for column in ("", "seconds", "/ ours", "MB", "said"):
        shown.add_column(column, justify="left" if column in ("", "said") else "right")
    for side in (*row["sides"], row["limit"]):
        if "failed" in side:
            shown.add_row(side["name"], "-", "", "", side["failed"])
            continue
        seconds = "never" if side["seconds"] is None else f"{side['seconds']:.4g}"
        ratio = "" if side["ratio"] is None else f"{side['ratio']:.2f}"
        said = (
            "" if side["said"] is None else ", ".join(f"{name} {_short(value)}" for name, value in side["said"].items())
        )
        shown.add_row(side["name"], seconds, ratio, f"{side['mb']:.0f}", said)
    return shown


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value) if isinstance(value, int | str) else "…"


def main(options: Options) -> None:
    torch.set_num_threads(1)
    options = replace(options, json=options.json.absolute())
    for name in options.only:
        if name not in ROWS:
            raise unknown_name("row", name, ROWS)
    stored = json.loads(options.json.read_text()) if options.json.exists() else {"rows": {}}
    console, err = Console(), Console(stderr=True)
    for name, make in ROWS.items():
        if (options.only and name not in options.only) or (name in stored["rows"] and not options.again):
            continue
        with TemporaryDirectory() as folder:
            try:
                row = make(options, Path(folder))
            except UserError as error:
                err.print(f"{name}: left out. {error}")
                continue
            stored["rows"][name] = measured(row, options, err.print)
        # Always in the order of ROWS, whichever were measured first.
        stored["rows"] = {each: stored["rows"][each] for each in ROWS if each in stored["rows"]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(stored, indent=1) + "\n")
        console.print(table(stored["rows"][name]))


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        raise SystemExit(f"peers: {error}") from None
