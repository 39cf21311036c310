"""What `benchmarks.peers` times: each function prepares a piece of work and returns it, to be done in its own process.

    python -m benchmarks.peer_work NAME '{"option": value}'

The last line that it prints is a JSON object: processor seconds (the median of some turns in this process; `wall` is
the time that passed), the memory that the work added at its peak, and what the work said of its result, by which the
sides of a row are seen to do the same.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from benchmarks.evaluation import Options as Drawn
from benchmarks.evaluation import drawn

Given = dict[str, Any]
Work = Callable[
    [], Any
]  # what it says of its result, or a function that looks at the result when the clock has stopped


# ---- evaluation


def _embeddings(given: Given) -> tuple[ndarray, ndarray]:
    return drawn(Drawn(items=given["items"], dim=given["dim"], classes=given["classes"]))


def evaluation_tammes(given: Given) -> Work:
    from tammes.metrics import evaluate

    vectors, labels = _embeddings(given)
    _choose_precision(given)
    return lambda: _retrieval(evaluate(vectors, labels, clustering=False, bootstrap=0))


def evaluation_pml(given: Given) -> Work:
    """As deep as MAP@R needs: by default it would rank all, which at 60,502 items are 29 GB of numbers."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    vectors, labels = (torch.from_numpy(each) for each in _embeddings(given))
    measures = ("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_reciprocal_rank")
    calculator = AccuracyCalculator(include=measures, k="max_bin_count", device=torch.device("cpu"))
    return lambda: _retrieval(calculator.get_accuracy(vectors, labels))


def evaluation_oml(given: Given) -> Work:
    """CMC@K, which is Recall@K, and MAP at the size of the largest class: it has no MAP@R."""
    from oml.functional.knn import batched_knn
    from oml.metrics.embeddings import calc_retrieval_metrics_rr
    from oml.retrieval.retrieval_results import RetrievalResults

    vectors, labels = (torch.from_numpy(each) for each in _embeddings(given))
    everyone, most = torch.arange(len(labels)), int(labels.bincount().max()) - 1

    def work() -> dict[str, float]:
        found = batched_knn(vectors, everyone, everyone, max(8, most), labels_gt=labels)
        ranked = RetrievalResults(*found)
        measured = calc_retrieval_metrics_rr(
            ranked, cmc_top_k=(1, 2, 4, 8), precision_top_k=(), map_top_k=(most,), verbose=False
        )
        return {"R@1": float(measured["cmc"][1]), f"MAP@{most}": float(measured["map"][most])}

    return work


def _retrieval(found: dict[str, Any]) -> dict[str, float]:
    return {"R@1": float(found["precision_at_1"]), "MAP@R": float(found["mean_average_precision_at_r"])}


def _choose_precision(given: Given) -> None:
    """By trying, as for every user; or float32 throughout, as on a processor that does not know bfloat16."""
    from tammes.search import neighbours
    from tammes.search.distance_tables import half_is_faster

    half_is_faster()  # the trial is made once in the life of a process
    if given.get("single"):
        setattr(neighbours, "half_is_faster", lambda: False)  # noqa: B010 - a type checker knows it as it is


def rough_products(given: Given) -> Work:
    """The bare matrix product, in bfloat16 where that is faster; without `queries`, of half of all pairs."""
    from tammes.search.distance_tables import half_is_faster

    dtype = torch.bfloat16 if half_is_faster() else torch.float32
    vectors = torch.randn(given["items"], given["dim"], generator=torch.Generator().manual_seed(0)).to(dtype)
    side, number = 3 << 10, given.get("queries")
    rows, every = range(0, number or len(vectors), side), range(0, len(vectors), side)
    starts = [(a, b) for a in rows for b in every if number is not None or b >= a]
    rooms: dict[tuple[int, int], torch.Tensor] = {}

    def work() -> None:
        for a, b in starts:
            left, right = vectors[a : min(a + side, number or len(vectors))], vectors[b : b + side]
            shape = (len(left), len(right))
            if shape not in rooms:
                rooms[shape] = torch.empty(shape, dtype=dtype)
            torch.mm(left, right.T, out=rooms[shape])

    return work


def products(given: Given) -> Work:
    """The bare matrix product of `queries` vectors with `items`, block by block, nothing kept."""
    vectors = np.random.default_rng(0).standard_normal((given["items"], given["dim"]), dtype=np.float32)
    queries = vectors[np.arange(given.get("queries", len(vectors))) % len(vectors)]  # there may be more of them
    # By NumPy's library and in blocks of this size, which were the fastest of those tried.
    starts = [(a, b) for b in range(0, len(vectors), 1 << 14) for a in range(0, len(queries), 1 << 10)]
    blocks = [(queries[a : a + (1 << 10)], vectors[b : b + (1 << 14)].T) for a, b in starts]
    rooms = {(len(a), b.shape[1]): np.empty((len(a), b.shape[1]), dtype=np.float32) for a, b in blocks}

    def work() -> None:
        for a, b in blocks:
            np.matmul(a, b, out=rooms[len(a), b.shape[1]])

    return work


# ---- K-means and NMI


def _first_centres(vectors: ndarray, clusters: int) -> ndarray:
    return np.array(vectors[np.random.default_rng(1).choice(len(vectors), clusters, replace=False)])


def _clustered(given: Given, clusters: Callable[[ndarray, ndarray, int], tuple[ndarray, int]]) -> Work:
    """K-means from the same centres, for at most as many iterations, and NMI of its clusters with the classes."""
    from sklearn.metrics import normalized_mutual_info_score

    vectors, labels = _embeddings(given)
    centres = _first_centres(vectors, given["classes"])

    def work() -> Work:
        found, iterations = clusters(vectors, centres, given["iterations"])
        measured = {"NMI": float(normalized_mutual_info_score(labels, found))} if given.get("nmi") else {}
        return lambda: measured | {"iterations": iterations, "spread": _spread(vectors, found)}

    return work


def _spread(vectors: ndarray, clusters: ndarray) -> float:
    """The mean squared distance of a vector from the mean of its cluster: what K-means makes small."""
    counts = np.maximum(np.bincount(clusters), 1)[:, None]
    sums = np.zeros((len(counts), vectors.shape[1]))
    np.add.at(sums, clusters, vectors)
    return float(np.square(vectors - (sums / counts)[clusters]).sum(axis=1).mean())


def kmeans_tammes(given: Given) -> Work:
    from tammes.search.kmeans import lloyd

    def clusters(vectors: ndarray, centres: ndarray, iterations: int) -> tuple[ndarray, int]:
        found = lloyd(vectors, centres, iterations=iterations)
        return found.clusters, found.iterations

    return _clustered(given, clusters)


def kmeans_faiss(given: Given) -> Work:
    import faiss

    def clusters(vectors: ndarray, centres: ndarray, iterations: int) -> tuple[ndarray, int]:
        # As PML calls it, from given centres. It takes a sample of more than 256 vectors a cluster: here of all.
        found = faiss.Kmeans(
            vectors.shape[1], len(centres), niter=iterations, min_points_per_centroid=1,
            max_points_per_centroid=len(vectors),
        )  # fmt: skip
        found.train(vectors, init_centroids=centres)
        return np.asarray(found.index.search(vectors, 1)[1][:, 0]), len(found.iteration_stats or [])

    return _clustered(given, clusters)


def kmeans_sklearn(given: Given) -> Work:
    import warnings

    from sklearn.cluster import KMeans

    def clusters(vectors: ndarray, centres: ndarray, iterations: int) -> tuple[ndarray, int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has not converged
            found = KMeans(len(centres), init=centres, n_init=1, max_iter=iterations, tol=0).fit(vectors)
        return np.asarray(found.labels_), int(found.n_iter_)

    return _clustered(given, clusters)


def _started(given: Given, starts: Callable[[ndarray, int, Any], ndarray]) -> Work:
    """Greedy k-means++, and how far the vectors then are from the nearest start."""
    vectors, _ = _embeddings(given)

    def work() -> Work:
        centres = starts(vectors, given["classes"], np.random.RandomState(given.get("seed", 0)))
        return lambda: {"left": float(np.mean(_to_the_nearest(vectors, centres)))}

    return work


def _to_the_nearest(vectors: ndarray, centres: ndarray) -> list[float]:
    return [float(np.square(centres - vector).sum(axis=1).min()) for vector in vectors[::20]]


def starts_tammes(given: Given) -> Work:
    from tammes.search.kmeans import plusplus

    return _started(given, lambda vectors, clusters, random: vectors[plusplus(vectors, clusters, random)])


def starts_sklearn(given: Given) -> Work:
    from sklearn.cluster import kmeans_plusplus

    return _started(given, lambda vectors, clusters, random: kmeans_plusplus(vectors, clusters, random_state=random)[0])


# ---- neighbours


def _shelf(given: Given) -> tuple[ndarray, ndarray]:
    vectors, _ = _embeddings(given)
    queries, _ = _embeddings(given | {"items": given["queries"] + 1, "classes": 1})
    return np.ascontiguousarray(queries[: given["queries"]] + vectors[: given["queries"]]), vectors


def neighbours_tammes(given: Given) -> Work:
    from tammes.search.neighbours import search

    queries, gallery = _shelf(given)
    _choose_precision(given)
    return lambda: _sums(search(queries, gallery, given["k"]).ids)


def neighbours_faiss(given: Given) -> Work:
    import faiss

    queries, gallery = _shelf(given)

    def work() -> dict[str, int]:
        index = faiss.IndexFlatL2(gallery.shape[1])
        index.add(gallery)
        return _sums(index.search(queries, given["k"])[1])

    return work


def neighbours_sklearn(given: Given) -> Work:
    from sklearn.neighbors import NearestNeighbors

    queries, gallery = _shelf(given)

    def work() -> dict[str, int]:
        found = NearestNeighbors(n_neighbors=given["k"], algorithm="brute").fit(gallery)
        return _sums(found.kneighbors(queries, return_distance=False))

    return work


def _sums(ids: ndarray) -> dict[str, int]:
    return {"sum of the numbers found": int(ids.sum())}


# ---- start-up


# A program that says at its end what it held at most. (What the system says of a child counts its parent's memory.)
_HELD = """import atexit
atexit.register(lambda: print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))))
"""


def program(given: Given) -> Work:
    """A program in a new process, from start to end."""

    def work() -> dict[str, Any]:
        ended = subprocess.run(
            [given["python"], "-c", _HELD + given["code"]], capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise RuntimeError((ended.stderr.strip().splitlines() or ["failed"])[-1])
        told = [line for line in ended.stdout.splitlines() if line.startswith("found ")]
        found = {"of its vector": " ".join(told[-1].split()[1:])} if told else {}
        return {"MB": float(ended.stdout.split()[-2]) / 1024} | found

    return work


# ---- images


def _photographs(given: Given) -> tuple[list[Path], Any]:
    """Some images of a data set, spread over it, and the data set of these alone."""
    from dataclasses import replace

    from tammes.data import open_dataset

    dataset = open_dataset(given["folder"])
    assert dataset.files is not None
    chosen = np.linspace(0, len(dataset) - 1, min(given["images"], len(dataset))).astype(np.int64)
    some = replace(
        dataset, keys=tuple(dataset.keys[index] for index in chosen), labels=dataset.labels[chosen],
        read=lambda index: dataset.read(int(chosen[index])), fingerprint=f"{dataset.fingerprint} {len(chosen)}",
        files=None,
    )  # fmt: skip
    return [Path(dataset.files[index]) for index in chosen], some


def _epoch(decoded: Any, labels: ndarray, number: int) -> int:
    from tammes.data.batches import batches

    seen = 0
    for pictures, _, _ in batches(
        decoded, np.arange(len(labels)), labels, batch_size=32, crop=224, train=True, epoch=number
    ):
        seen += len(pictures)
    return seen


def pipeline_first_tammes(given: Given) -> Work:
    from tempfile import TemporaryDirectory

    from tammes.data.image_cache import decode

    _, dataset = _photographs(given)

    def work() -> dict[str, int]:
        with TemporaryDirectory() as folder:
            decoded = decode(
                dataset, mode="RGB", shorter_side=256, cache=Path(folder), threads=max(1, given["workers"])
            )
            return {"images": _epoch(decoded, dataset.labels, 0)}

    return work


def pipeline_later_tammes(given: Given) -> Work:
    from tempfile import mkdtemp

    from tammes.data.image_cache import decode

    _, dataset = _photographs(given)
    decoded = decode(dataset, mode="RGB", shorter_side=256, cache=Path(mkdtemp()), threads=max(1, given["workers"]))
    decoded.file.unlink()  # it stays mapped, and is gone with the process
    return lambda: {"images": _epoch(decoded, dataset.labels, 1)}


def pipeline_torchvision(given: Given) -> Work:
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    files, _ = _photographs(given)
    wanted = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.RandomCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    names = {str(file) for file in files}
    folder = ImageFolder(str(files[0].parents[1]), transform=wanted, is_valid_file=names.__contains__, allow_empty=True)
    loader = DataLoader(
        folder, batch_size=32, shuffle=True, num_workers=given["workers"], persistent_workers=given["workers"] > 0
    )
    return lambda: {"images": sum(len(pictures) for pictures, _ in loader)}


def decoding(given: Given) -> Work:
    """Opening and decoding alone, by as many threads: what no pipeline that reads these files can go below."""
    from concurrent.futures import ThreadPoolExecutor

    from PIL import Image

    files, _ = _photographs(given)

    def one(file: Path) -> int:
        with Image.open(file) as picture:
            picture.load()
        return 1

    def work() -> dict[str, int]:
        if not given["workers"]:
            return {"images": sum(map(one, files))}
        with ThreadPoolExecutor(given["workers"]) as threads:
            return {"images": sum(threads.map(one, files))}

    return work


def copying(given: Given) -> Work:
    """The bytes of the crops of an epoch, copied from one place in memory to another."""
    batch, rounds = torch.zeros(32, 3, 224, 224, dtype=torch.uint8), -(-given["images"] // 32)
    source = torch.ones(given["images"], 3, 224, 224, dtype=torch.uint8)  # not zeros: those have no memory of their own

    def work() -> dict[str, int]:
        for number in range(rounds):
            part = source[32 * number : 32 * number + 32]
            batch[: len(part)] = part
        return {"images": len(source)}

    return work


# ---- training


def _head(given: Given) -> tuple[Any, Any, Any]:
    """`tammes train --train head`: its options, its data with GoogLeNet's features, its objective."""
    from dataclasses import replace

    from tammes.training.build import build_backbone, build_embedder, build_loss, freeze
    from tammes.training.config import resolve
    from tammes.training.data import keep_activations, load_data
    from tammes.training.objectives import Objective
    from tammes.training.options import TrainOptions

    options: TrainOptions = {
        "backbone": "googlenet", "weights": given["weights"], "device": "cpu", "train": "head",
        "centroids": "one-hot", "init": "random", "keep_init": False,
    }  # fmt: skip
    config = resolve(given["folder"], options)
    backbone = build_backbone(config)
    data = load_data(config, backbone)
    embedder = build_embedder(config, backbone, data.num_classes)
    kept = keep_activations(config, data, freeze(config, embedder))
    assert kept is not None, "head keeps features"
    data = replace(data, kept=kept)
    objective = Objective(embedder, build_loss(config, data, embedder), features=kept.frozen.above)
    return config, data, objective


def head_tammes(given: Given) -> Work:
    from tammes.training.build import build_optimizer
    from tammes.training.data import training_batches
    from tammes.training.loop import fit

    config, data, objective = _head(given)
    epochs = fit(
        objective,
        lambda number: training_batches(config, data, number),
        build_optimizer(config, objective),
        epochs=1000,
        schedule=lambda *_: 1.0,
    )
    return lambda: {"images": next(epochs).images}


def _features(given: Given) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Linear, int]:
    """The same features in memory, their labels, a new layer of the same shape, and the size of a batch."""
    config, data, _ = _head(given)
    features = data.kept.views.inputs(data.split.train)
    return features, torch.from_numpy(data.labels), torch.nn.Linear(features.shape[1], config.dim), config.batch_size


def _optimizer(*modules: torch.nn.Module) -> torch.optim.Optimizer:
    weights = [weight for module in modules for weight in module.parameters()]
    return torch.optim.SGD(weights, lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=True)


def head_pml_trainer(given: Given) -> Work:
    """PML's own trainer, with the loss of its that is most like a class layer with cross-entropy."""
    import logging

    from pytorch_metric_learning.losses import NormalizedSoftmaxLoss
    from pytorch_metric_learning.trainers import MetricLossOnly
    from torch.utils.data import TensorDataset

    logging.getLogger("PML").setLevel(logging.ERROR)
    features, labels, layer, size = _features(given)
    loss = NormalizedSoftmaxLoss(int(labels.max()) + 1, layer.out_features)
    optimizers = {"trunk_optimizer": _optimizer(layer), "metric_loss_optimizer": _optimizer(loss)}
    trainer = MetricLossOnly(
        models={"trunk": layer}, optimizers=optimizers, batch_size=size, loss_funcs={"metric_loss": loss},
        dataset=TensorDataset(features, labels), dataloader_num_workers=0, data_device=torch.device("cpu"),
        dtype=torch.float32,
    )  # fmt: skip

    def work() -> dict[str, int]:
        with Path(os.devnull).open("w") as nowhere:  # its progress bar
            kept, sys.stderr = sys.stderr, nowhere
            try:
                trainer.train(num_epochs=1)
            finally:
                sys.stderr = kept
        return {"images": len(labels) // size * size}

    return work


def head_pml_loop(given: Given) -> Work:
    """The loop of PML's examples: a DataLoader over the features, one of its losses, an optimizer."""
    from pytorch_metric_learning.losses import NormalizedSoftmaxLoss
    from torch.utils.data import DataLoader, TensorDataset

    features, labels, layer, size = _features(given)
    loss = NormalizedSoftmaxLoss(int(labels.max()) + 1, layer.out_features)
    optimizer = _optimizer(layer, loss)
    loader = DataLoader(TensorDataset(features, labels), batch_size=size, shuffle=True)
    return lambda: _loop(loader, layer, loss, optimizer)


def head_bare(given: Given) -> Work:
    """Our layers and loss over batches that are in memory already."""
    features, labels, layer, size = _features(given)
    from tammes import DiscriminativeLoss

    classes = int(labels.max()) + 1
    network, loss = (
        torch.nn.Sequential(layer, torch.nn.Linear(layer.out_features, classes)),
        DiscriminativeLoss(classes),
    )
    optimizer = _optimizer(network)
    ready = list(zip(features.split(size), labels.split(size), strict=True))
    return lambda: _loop(ready, network, loss, optimizer)


def _loop(batches: Any, network: torch.nn.Module, loss: Any, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    seen = 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss(network(inputs), labels).backward()
        optimizer.step()
        seen += len(labels)
    return {"images": seen}


def _drawings(given: Given, loss: str) -> tuple[Any, Any, Any]:
    """`tammes train` on Omniglot, a fifth of the training classes held out."""
    from tammes.training.build import build_backbone, build_embedder, build_loss
    from tammes.training.config import resolve
    from tammes.training.data import load_data
    from tammes.training.objectives import Objective
    from tammes.training.options import TrainOptions

    options: TrainOptions = {
        "backbone": "conv4", "device": "cpu", "loss": loss, "batch_size": 64, "epochs": given["epochs"],
        "val_classes": "0.2", "seed": given.get("seed", 0),
    }  # fmt: skip
    if "lr" in given:
        options |= {"lr": given["lr"], "backbone_lr": given["lr"]}
    config = resolve(given["folder"], options)
    backbone = build_backbone(config)
    data = load_data(config, backbone)
    embedder = build_embedder(config, backbone, data.num_classes)
    return config, data, Objective(embedder, build_loss(config, data, embedder))


def _watched(given: Given, epoch: Callable[[int], float], embedder: Any, data: Any) -> dict[str, Any]:
    """Seconds of training, and R@1 on the validation classes after each epoch."""
    from tammes.training.evaluation import evaluate_images

    seconds, recalls = [], []
    for number in range(1, given["epochs"] + 1):
        seconds.append(epoch(number))
        recalls.append(evaluate_images(embedder, data, data.split.val, quick=True)["recall_at_1"])
    return {"epoch_seconds": seconds, "recalls": recalls}


def omniglot_tammes(given: Given) -> Work:
    from tammes.training.build import build_optimizer
    from tammes.training.data import training_batches
    from tammes.training.loop import cosine, fit

    config, data, objective = _drawings(given, given["loss"])
    epochs = fit(
        objective,
        lambda number: training_batches(config, data, number, loss=objective.loss),
        build_optimizer(config, objective),
        epochs=given["epochs"],
        schedule=cosine(given["epochs"]),
        seed=config.seed,
    )

    def epoch(_: int) -> float:
        started = process_time()
        next(epochs)
        return process_time() - started

    return lambda: _watched(given, epoch, objective.embedder, data)


def omniglot_pml(given: Given) -> Work:
    """The same network, pictures, batches, rates and optimizer, by PML: its miner, loss and sampler, a DataLoader.

    By its own recipe, a margin of 0.2 on plain distances; or by ours, FaceNet's of 1 on squared ones (`margin`).
    """
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import TripletMarginMiner
    from pytorch_metric_learning.samplers import MPerClassSampler
    from torch.utils.data import DataLoader, Dataset
    from torchvision.transforms import RandomCrop

    from tammes.training.loop import cosine

    config, data, objective = _drawings(given, "triplet-semihard")
    network, labels = objective.embedder, data.labels
    moved = RandomCrop(data.size, padding=2, padding_mode="edge")

    class Drawings(Dataset[Any]):
        def __len__(self) -> int:
            return len(labels)

        def __getitem__(self, index: int) -> Any:
            return moved(torch.from_numpy(data.images[int(data.split.train[index])].copy())), int(labels[index])

    sampler = MPerClassSampler(labels, m=4, batch_size=64, length_before_new_iter=len(labels))
    loader = DataLoader(Drawings(), batch_size=64, sampler=sampler)
    margin = given.get("margin", 0.2)
    distance = LpDistance(power=2 if "margin" in given else 1)
    miner = TripletMarginMiner(margin=margin, type_of_triplets="semihard", distance=distance)
    loss = TripletMarginLoss(margin=margin, distance=distance)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.lr, weight_decay=5e-4, fused=True)

    def epoch(number: int) -> float:
        network.train()
        for group in optimizer.param_groups:
            group["lr"] = config.lr * cosine(given["epochs"])(number, 0)
        started = process_time()
        for pictures, own in loader:
            optimizer.zero_grad()
            vectors = network(pictures)
            loss(vectors, own, miner(vectors, own)).backward()
            optimizer.step()
        return process_time() - started

    return lambda: _watched(given, epoch, network, data)


def omniglot_network(given: Given) -> Work:
    """The steps of the same network over the same batches, without pictures to make or a loss."""
    from tammes.training.build import build_optimizer
    from tammes.training.data import training_batches

    config, data, objective = _drawings(given, "triplet-semihard")
    each_epoch = list(training_batches(config, data, 1, loss=objective.loss))
    optimizer = build_optimizer(config, objective)
    objective.train()

    def work() -> dict[str, int]:
        for pictures, *_ in given["epochs"] * each_epoch:
            optimizer.zero_grad()
            objective.embedder(pictures).sum().backward()
            optimizer.step()
        return {"steps": given["epochs"] * len(each_epoch)}

    return work


# ---- networks


def network(given: Given) -> Work:
    """A step of training, or the features of a batch, by a network in one of its forms."""
    from tammes.models.embedder import Embedder, EmbedderConfig

    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig(given["network"], 256, 100))
    form, train = given["form"], given["train"]
    layout = torch.channels_last if "channels last" in form else torch.contiguous_format
    body: Any = embedder.backbone.to(memory_format=layout)
    body.train(train)
    if "compiled" in form:
        body = torch.compile(body)
    images = torch.randn(given["batch"], 3, embedder.size, embedder.size).to(memory_format=layout)
    optimizer = torch.optim.SGD(embedder.backbone.parameters(), lr=1e-6, momentum=0.9, fused=True)
    half = torch.autocast("cpu", torch.bfloat16, enabled="bf16" in form)

    def training() -> None:
        optimizer.zero_grad()
        with half:
            value = body(images).float().square().mean()
        value.backward()
        optimizer.step()

    def inference() -> None:
        with torch.inference_mode(), half:
            body(images)

    return training if train else inference


def network_default(given: Given) -> Work:
    """The same by the Embedder as it is."""
    from tammes.models.embedder import Embedder, EmbedderConfig

    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig(given["network"], 256, 100)).train(given["train"])
    images = torch.randint(256, (given["batch"], 3, embedder.size, embedder.size), dtype=torch.uint8)
    optimizer = torch.optim.SGD(embedder.backbone.parameters(), lr=1e-6, momentum=0.9, fused=True)

    def training() -> None:
        optimizer.zero_grad()
        embedder.features(images).float().square().mean().backward()
        optimizer.step()

    def inference() -> None:
        with torch.inference_mode():
            embedder.features(images)

    return training if given["train"] else inference


def network_limit(given: Given) -> Work:
    """As many multiplications as the network has, three times as many to train it, as one kind of matrix product."""
    from torch.utils.flop_counter import FlopCounterMode

    from tammes.models.embedder import Embedder, EmbedderConfig

    embedder = Embedder(EmbedderConfig(given["network"], 256, 100)).eval()
    images = torch.zeros(given["batch"], 3, embedder.size, embedder.size)
    with FlopCounterMode(display=False) as counted, torch.inference_mode():
        embedder.features(images)
    wanted = counted.get_total_flops() * (3 if given["train"] else 1)
    side = 1024
    left, right, room = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)

    def work() -> dict[str, float]:
        done = 0
        while done < wanted:
            torch.mm(left, right, out=room)
            done += 2 * side**3
        return {"times as many": done / wanted}

    return work


# ---- running one of them


def held(name: str) -> float:
    """Megabytes of this process by a name of Linux's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def processor() -> float:
    """Processor seconds of this process and of those that it has started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def measured(name: str, given: Given) -> dict[str, Any]:
    """Seconds, megabytes and what the work says."""
    torch.set_num_threads(given.get("threads", 1))
    work = WORK[name](given)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = held("VmRSS")
    said: Any = None
    times: list[tuple[float, float]] = []
    for turn in range(given.get("warm", 0) + given.get("repeat", 1)):
        started = perf_counter(), processor()
        said = work()
        if turn >= given.get("warm", 0):
            times.append((perf_counter() - started[0], processor() - started[1]))
    memory = held("VmHWM") - before
    said = said() if callable(said) else said  # what is looked at is no part of the work
    if WORK[name] is program:
        memory = said.pop("MB")
    wall, seconds = (median(each) for each in zip(*times, strict=True))
    return {"seconds": wall if given.get("wall") else seconds, "wall": wall, "mb": memory, "said": said or None}


WORK: dict[str, Callable[[Given], Work]] = {
    each.__name__: each
    for each in (
        evaluation_tammes, evaluation_pml, evaluation_oml, products, rough_products, kmeans_tammes, kmeans_faiss,
        kmeans_sklearn, starts_tammes, starts_sklearn,
        neighbours_tammes, neighbours_faiss, neighbours_sklearn, program, pipeline_first_tammes, pipeline_later_tammes,
        pipeline_torchvision, decoding, copying, head_tammes, head_pml_trainer, head_pml_loop, head_bare,
        omniglot_tammes, omniglot_pml, omniglot_network, network, network_default, network_limit,
    )
}  # fmt: skip

if __name__ == "__main__":
    try:
        print("\n" + json.dumps(measured(sys.argv[1], json.loads(sys.argv[2]))))
    except ImportError as error:
        print("\n" + json.dumps({"failed": f"not installed: {error.name}"}))
    except Exception as error:  # whatever it is that a side cannot do is its result
        print("\n" + json.dumps({"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"}))
