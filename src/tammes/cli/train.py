"""`tammes train`: from a folder of images, or a file of vectors, to a trained, evaluated model in a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes.cli.console import default, optional
from tammes.errors import UserError


@dataclass(frozen=True)
class Train:
    """Train an embedder on images, or a metric on vectors, and evaluate it on classes that it has not seen.

    Vectors of any model, in a .npz or .parquet file, are learned from as by tammes.MetricLearner; options for images
    are then refused.

    For example:

    tammes train

    tammes train photos/ --backbone resnet18 --epochs 20 --out runs/photos

    tammes train omniglot/ --centroids one-hot --seed 3

    tammes train photos/ --preset paper --test-classes 0.5 --val-classes 0.1

    tammes train CUB_200_2011/ --backbone googlenet --train head

    tammes train vectors.npz --out runs/vectors

    tammes train --resume runs/photos

    tammes train more-photos/ --continue-from runs/photos --compatible 1 --out runs/more

    torchrun --nproc-per-node 4 -m tammes train photos/
    """

    data: Annotated[str, tyro.conf.Positional] = default("glyphs")
    """A folder with one sub-folder of images per class; a folder with CUB-200-2011, CARS196, Stanford Online Products,
    In-Shop or Omniglot; a .csv file with columns path and label; the word glyphs: the embedded data set, characters of
    many scripts; or a .npz or .parquet file with `vectors` and `labels`."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """The run folder to make; by default runs/ and a name that says what it is."""
    preset: Literal["default", "paper"] = default("default")
    """Where options that are not given come from. paper is Do et al. (2019) to the letter, whatever the machine:
    googlenet, every layer, fresh random crops, one-hot centroids, batches of 128, 40 epochs; without a GPU that takes
    many hours, and the time is said first. For glyphs and Omniglot it is conv4, without mirroring."""

    loss: str = default("discriminative")
    """discriminative (the paper's); hard-discriminative: the nearest wrong class counts most; softmax, the usual
    classifier; any other that `tammes losses` lists (those of a class layer for vectors too), also what is more than a
    loss: hdc, bier, daml, dvml; or pml: and the name of one of pytorch-metric-learning, such as pml:ProxyAnchorLoss."""
    base: Annotated[str | None, optional("NAME")] = None
    """What hdc, bier, daml or dvml is built on: the loss of its own paper, or discriminative, the O(NC) loss in place
    of pairs and triplets; `tammes losses NAME` lists them."""
    loss_options: Annotated[tuple[str, ...], optional("NAME=VALUE …")] = ()
    """Options of the loss, such as margin=0.2; `tammes losses NAME` lists them."""
    miner: Annotated[str | None, optional("pml:NAME")] = None
    """Which pairs or triplets of a batch a loss of pytorch-metric-learning looks at: pml:MultiSimilarityMiner, …"""
    miner_options: Annotated[tuple[str, ...], optional("NAME=VALUE …")] = ()
    """Options of the miner, such as epsilon=0.1; `tammes losses pml:NAME` lists them."""
    centroids: Annotated[str | None, optional("KIND")] = None
    """Where the class centroids are: one-hot (the paper's), kmeans (the paper's other), simplex, place, …"""
    push: Annotated[float | None, optional("FLOAT")] = None
    """Weight of the term that pushes an image from the other classes' centroids; at most 1/3, the default, keeps the
    bound (discriminative and hard-discriminative only)."""
    weighting: Literal["none", "balanced", "triplet"] = default("none")
    """For classes of different size (discriminative only)."""
    temperature: Annotated[float | None, optional("FLOAT")] = None
    """How soft the nearest wrong class is chosen (hard-discriminative; by default 0.1), or what cosines are divided by
    (normface; by default this is learned)."""

    backbone: Annotated[str | None, optional("NAME")] = None
    """conv4 (28 x 28 grey, for glyphs and Omniglot), googlenet and vgg16 (as the paper has them), or any name of
    torchvision or timm (resnet18 for folders, googlenet with preset paper)."""
    weights: Annotated[str | None, optional("imagenet|none|FILE")] = None
    """What the backbone starts from: imagenet (downloaded; the default but for conv4), none (random), or a file of
    weights (.safetensors, .pt; for googlenet also Caffe's)."""
    weights_form: Annotated[Literal["torchvision", "keras"] | None, optional("{torchvision,keras}")] = None
    """Which form of resnet50, 101 or 152 a file of weights is of, where it does not say: torchvision's, or the original
    one, which Keras has (stride in the first 1 x 1 convolution of a stage)."""
    train: Annotated[Literal["all", "top", "head"] | None, optional("{all,top,head}")] = None
    """Which part of the network trains: all of it; the top, above a cut, from activations that are computed once and
    kept; or only the new layers. By default all with a GPU, with random weights or with preset paper, otherwise top."""
    cut: Annotated[str | None, optional("MODULE")] = None
    """The module of the backbone that the trained part begins with (--train top); googlenet: inception_5a."""
    views: Annotated[int | None, optional("INT")] = None
    """Random crops of each image whose activations are kept; 0 for the one in the centre. By default 4 with --train
    top, 0 with --train head."""
    pool: Annotated[Literal["published", "mean", "max"] | None, optional("{published,mean,max}")] = None
    """How the backbone's last map becomes a vector: by its mean or maximum over all places, or as it was published with
    the network."""
    dim: Annotated[int | None, optional("INT")] = None
    """Length of an embedding: 256 (hdc 384, bier 512), or for vectors of fewer columns as many as these."""
    hidden: Annotated[tuple[int, ...], optional("INT INT …")] = ()
    """Widths of hidden layers between vectors and embedding; without them the map is linear (vectors only)."""
    method: Annotated[Literal["gradient", "ridge"] | None, optional("{gradient,ridge}")] = None
    """gradient, or ridge: the regression onto the centroids in closed form, in seconds (vectors only)."""
    class_layer: bool = True
    """A layer on top of the embedding, in which the centroids are; without it they are in the embedding itself."""
    centroid_dim: Annotated[int | None, optional("INT")] = None
    """Outputs of the class layer: by default one per class, or 512 beyond 4096 classes (vectors: beyond 512)."""
    embedding: Literal["penultimate", "last"] = default("penultimate")
    """Which layer images are compared by: the one below the class layer (the paper's), or the class layer."""

    epochs: Annotated[int | None, optional("INT")] = None
    """Passes over the training images, or vectors."""
    batch_size: Annotated[int | None, optional("INT")] = None
    """Images, or vectors, in a batch."""
    optimizer: Annotated[Literal["sgd", "adam"] | None, optional("{sgd,adam}")] = None
    """Stochastic gradient descent with momentum, or Adam with decoupled weight decay."""
    rate: Annotated[float | None, optional("FLOAT")] = None
    """Learning rate of the new layers on top of the backbone. By default the preset's; with sgd times what suits the
    loss."""
    backbone_rate: Annotated[float | None, optional("FLOAT")] = None
    """Learning rate of the backbone."""
    proxy_rate: Annotated[float | None, optional("FLOAT")] = None
    """Learning rate of what a loss learns itself: proxies, class weights. By default that of the new layers, times what
    suits the loss."""
    momentum: Annotated[float | None, optional("FLOAT")] = None
    """Of sgd."""
    weight_decay: Annotated[float | None, optional("FLOAT")] = None
    """Of weights; biases and normalisation have none."""
    schedule: Annotated[Literal["halve", "cosine"] | None, optional("{halve,cosine}")] = None
    """How the learning rates fall."""
    halve_every: Annotated[int | None, optional("INT")] = None
    """Epochs after which schedule halve halves them."""
    mirror: Annotated[bool | None, optional("{True,False}")] = None
    """Flip half of the images, fresh each epoch."""
    shift: Annotated[int | None, optional("INT")] = None
    """Pixels by which an image is padded before its random crop."""
    start: Annotated[Literal["random", "pca", "whiten"] | None, optional("{random,pca,whiten}")] = None
    """What the penultimate layer begins as: random (the paper's); pca, the principal directions of the features; or
    whiten, the same after directions in which the images of a class differ much have been made short."""
    keep_start: Annotated[bool | None, optional("{True,False}")] = None
    """Let the penultimate layer stay as it began (--start pca or whiten), while what lies below and above it trains."""
    sampler: Annotated[Literal["shuffled", "balanced", "pk"] | None, optional("{shuffled,balanced,pk}")] = None
    """Which images make a batch: shuffled; balanced, where images of small classes are repeated, with fresh crops,
    until all classes are as large as the largest; or pk: several of each class, as losses of pairs need it. By default
    what the loss needs."""
    images_per_class: Annotated[int | None, optional("INT")] = None
    """Of each class that is in a batch (--sampler pk); by default as the loss has it."""
    accumulate: int = default(1)
    """Batches whose gradients are added up before a step: the same as one large batch, for losses that look at each
    image on its own."""

    test_classes: Annotated[str | None, optional("NUMBER|FILE")] = None
    """Classes to test on: a fraction, a number, or a file with one class name a line. By default the second half."""
    val_classes: Annotated[str | None, optional("NUMBER")] = None
    """Training classes to hold out, a fraction or a number; 0 for none. What is best on them is kept: the pretrained
    embedding, its whitening, or an epoch. By default a fifth of 20 or more; none with preset paper."""
    seed: int = default(0)
    """Of everything that is random."""
    device: Annotated[Literal["auto", "cpu"], tyro.conf.arg()] = default("auto")
    """auto takes a GPU if there is one."""
    precision: Literal["auto", "no", "bf16", "fp16"] = default("auto")
    """Mixed precision; weights, distances and evaluation stay in float32. auto: bf16 where layers of the backbone train
    on a processor that multiplies it (avx512_bf16, amx_bf16), otherwise no."""
    sync_batch_norm: bool = False
    """With several GPUs, let batch normalisation see the whole batch instead of each GPU's share."""

    resume: Annotated[Path | None, optional("RUN")] = None
    """Go on with a run that was interrupted, with its own options."""
    init_from: Annotated[Path | None, optional("RUN")] = None
    """Start a new run from the weights of another."""
    reserve_classes: Annotated[int | None, optional("INT")] = None
    """Centroids to keep free for classes that may come later (losses with centroids)."""
    continue_from: Annotated[Path | None, optional("RUN")] = None
    """Start a new run from a finished one, with its options, on data with more classes: the old ones keep their
    centroids, the new ones get free ones (--reserve-classes)."""
    compatible: Annotated[float | None, optional("WEIGHT")] = None
    """With --continue-from: hold the embeddings of old classes in place by a term of this weight, so that vectors of
    the old run still answer queries embedded by the new; 1 is a good start."""
    overwrite: bool = False
    """Replace the run folder if it exists."""
    skip_bad: bool = False
    """Leave out images that cannot be read, and say how many."""
    log_bound: bool = False
    """Watch the paper's bound: L_d, L_t, their gap and its certificate each epoch, on 512 training images."""
    curve: Annotated[tuple[int, ...], optional("EPOCH EPOCH …")] = ()
    """After these epochs also measure R@1 on the test classes, to draw it over time. Nothing is chosen by it, and the
    time for it is not counted as training."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run folder."""
    json: bool = False
    """Print the results as one JSON object."""


def of_vectors(data: str | Path) -> bool:
    """Whether data is a file of vectors, by its name."""
    return Path(data).suffix.lower() in (".npz", ".parquet") and not Path(data).is_dir()


def train(config: Train) -> None:
    """Train, evaluate, show; in one process, or in those that a launcher has started together."""
    from tammes.training.distributed import agreed, joined

    with joined():
        agreed(lambda: _check_places(config))
        if agreed(lambda: _of_vectors(config)):
            from tammes.cli.vectors_job import run_vectors_job

            run_vectors_job(config)
        else:
            from tammes.cli.job import run_job

            run_job(config)


def check_out(config: Train) -> None:
    """Refuse to replace what the new run begins with, however it is called."""
    if config.out is None:
        return
    for name in ("init_from", "continue_from", "weights"):
        given = getattr(config, name)
        if given is not None and Path(given).exists():
            source, out = Path(given).resolve(), Path(config.out).resolve()
            flag = "--" + name.replace("_", "-")
            if source == out:
                raise UserError(f"{flag} and --out are the same folder. Choose another --out.")
            if source.is_relative_to(out):
                raise UserError(f"{flag} {given} lies in --out {config.out}. Choose another --out.")


def check_data(data: str | None) -> None:
    """Refuse images that are not there at all, before anything that takes long to import is needed."""
    if data is not None and not of_vectors(data):
        from tammes.data import check_place

        check_place(data)


def _check_places(config: Train) -> None:
    """Refuse data that is not there, and a run that is, before what trains is even imported."""
    if config.resume is not None:
        return
    from tammes.training.distributed import is_first
    from tammes.training.run_folder import check_new

    check_data(config.data)
    check_out(config)
    if config.out is not None and is_first():
        check_new(config.out, overwrite=config.overwrite)


def _of_vectors(config: Train) -> bool:
    from tammes.training.distributed import number
    from tammes.training.run_folder import open_run

    data = config.data if config.resume is None else open_run(config.resume).read("config").get("data", "")
    if of_vectors(data) and number() > 1:
        raise UserError(f"vectors are learned from in one process: start it with `tammes train {data}` alone.")
    return of_vectors(data)
