"""The options of a training, on images and on vectors, as `tammes train` takes them. All may be left out."""

from pathlib import Path
from typing import Literal

from typing_extensions import TypedDict

Preset = Literal["default", "paper"]
Weighting = Literal["none", "balanced", "triplet"]
Part = Literal["all", "top", "head"]
Form = Literal["torchvision", "keras"]
Pool = Literal["published", "token", "mean", "max", "mean-max", "gem"]
Layer = Literal["penultimate", "last"]
OptimizerName = Literal["sgd", "adam"]
Schedule = Literal["halve", "cosine"]
Init = Literal["random", "pca", "whiten", "ridge"]
Sampler = Literal["shuffled", "balanced", "pk"]
Device = Literal["auto", "cpu"]
Precision = Literal["auto", "no", "bf16", "fp16"]
VectorMethod = Literal["gradient", "ridge"]


class TrainOptions(TypedDict, total=False):
    """The options of a training on images that were given; `resolve` fills in all others."""

    preset: Preset
    """Where options that are not given come from. paper is Do et al. (2019) to the letter, whatever the machine:
    googlenet, every layer, fresh random crops, one-hot centroids, batches of 128, 40 epochs; without a GPU that takes
    hours, and the time is said first. For glyphs and Omniglot it is conv4, without mirroring. (default: default)"""
    loss: str
    """discriminative (the paper's); hard-discriminative, which weighs hard negatives; softmax, the usual classifier;
    any other that `tammes losses` lists, also what is more than a loss: hdc, bier, daml, dvml; or pml: and the name of
    a loss of pytorch-metric-learning, such as pml:ProxyAnchorLoss. (default: discriminative)"""
    base: str
    """What hdc, bier, daml or dvml is built on: the loss of its own paper, or discriminative, the O(NC) loss in place
    of pairs and triplets; `tammes losses NAME` lists them."""
    loss_options: tuple[str, ...]
    """Options of the loss, such as margin=0.2; `tammes losses NAME` lists them."""
    miner: str
    """Which pairs or triplets of a batch a loss of pytorch-metric-learning looks at: pml:MultiSimilarityMiner, and so
    on."""
    miner_options: tuple[str, ...]
    """Options of the miner, such as epsilon=0.1; `tammes losses pml:NAME` lists them."""
    centroids: str
    """The class centroids: one-hot (the paper's), kmeans (the paper's other), simplex, place, …"""
    push: float
    """Weight of the term that pushes an image from the other classes' centroids; at most 1/3, the default, keeps the
    bound (discriminative and hard-discriminative only)."""
    weighting: Weighting
    """For classes of different size (discriminative only). (default: none)"""
    temperature: float
    """How soft the hard negatives are chosen (hard-discriminative; by default 0.1), or what cosines are divided by
    (normface; by default this is learned)."""
    backbone: str
    """googlenet and vgg16 (as the paper has them), conv4 (28 x 28 grey, for glyphs and Omniglot), or any name of
    torchvision or timm. (default: resnet50 for photos, googlenet with preset paper)"""
    weights: str
    """The backbone's weights before training: imagenet (downloaded; the default but for conv4), none (random), or a
    file (.safetensors, .pt; for googlenet also Caffe's)."""
    weights_form: Form
    """Which form of resnet50, 101 or 152 a file of weights is for, where it does not say: torchvision's, or the
    original one, which Keras has (stride in the first 1 x 1 convolution of a stage)."""
    train: Part
    """Which layers train: all; the top, above a cut, from activations that are computed once and kept; or only the
    head, the new layers. (default: all; top with a pretrained network where there is neither a GPU nor a processor that
    multiplies bfloat16)"""
    cut: str
    """The lowest module of the backbone that trains (with train top); googlenet: inception_5a."""
    views: int
    """Random crops of each image whose activations are kept; 0 for the one in the centre. (default: 4 with train top, 0
    with train head)"""
    pool: Pool
    """How the backbone's last map becomes a vector: by its mean, its maximum, the mean of both (mean-max) or the
    generalised mean with power 3 (gem) over all places; by the class token of a transformer (token); or as published
    with the network."""
    size: int
    """Height and width of the images that the backbone sees. (default: as published)"""
    dim: int
    """Dimension of an embedding. (default: 256; hdc 384, bier 512)"""
    class_layer: bool
    """A layer on top of the embedding, in which the centroids are; without it they are in the embedding itself."""
    centroid_dim: int
    """Outputs of the class layer. (default: one per class, or 512 beyond 4096 classes)"""
    embedding: Layer
    """Which layer images are compared by: penultimate, the one below the class layer (the paper's), or last, the class
    layer. (default: penultimate)"""
    epochs: int
    """Passes over the training images."""
    batch_size: int
    """Images in a batch."""
    optimizer: OptimizerName
    """Stochastic gradient descent with momentum, or Adam with decoupled weight decay."""
    lr: float
    """Learning rate of the new layers on top of the backbone. (default: the preset's; with sgd times what suits the
    loss)"""
    backbone_lr: float
    """Learning rate of the backbone."""
    proxy_lr: float
    """Learning rate of what a loss learns itself: proxies, class weights. (default: that of the new layers, times what
    suits the loss)"""
    momentum: float
    """Of sgd."""
    weight_decay: float
    """Of weights; biases and normalisation have none."""
    schedule: Schedule
    """How the learning rates fall."""
    halve_every: int
    """Epochs after which schedule halve halves them."""
    warmup: float
    """Epochs, or a part of one, over which the learning rates rise from 0 to where the schedule has them. (default:
    0)"""
    train_batch_norm: bool
    """Let batch normalisation of the backbone train: its statistics and its weights. (default: with random weights
    only; that of a pretrained network stays as it is)"""
    mirror: bool
    """Flip half of the images, drawn again each epoch."""
    shift: int
    """Pixels by which an image is padded before its random crop."""
    init: Init
    """Initialisation of the embedding layer: random (the paper's); pca, the principal directions of the features;
    whiten, the same after within-class whitening; or ridge, the same with a class layer that is not random either, but
    the ridge regression of the embeddings onto the centroids."""
    keep_init: bool
    """Keep the embedding layer as it was initialised (init pca, whiten or ridge), while the layers below and above it
    train."""
    sampler: Sampler
    """Which images make a batch: shuffled; balanced, where images of small classes are repeated, with other crops,
    until all classes are as large as the largest; or pk: several of each class, as losses of pairs need it. (default:
    what the loss needs)"""
    images_per_class: int
    """Of each class in a batch (sampler pk). (default: what the loss needs)"""
    accumulate: int
    """Batches whose gradients are added up before a step: the same as one large batch, for losses that look at each
    image on its own. (default: 1)"""
    test_classes: str
    """Classes to test on: a fraction, a number, or a file with one class name a line; 0 trains on everything. (default:
    the second half)"""
    val_classes: str
    """Training classes to hold out, a fraction or a number; 0 for none. The best on them is kept: the pretrained
    embedding, its whitening, or an epoch. (default: a fifth of 20 or more; none with preset paper)"""
    seed: int
    """Of everything that is random. (default: 0)"""
    device: Device
    """auto takes a GPU if there is one. (default: auto)"""
    precision: Precision
    """Mixed precision; weights, distances and evaluation stay in float32. auto: bf16 where layers of the backbone train
    on a processor that multiplies it (avx512_bf16, amx_bf16), otherwise no. (default: auto)"""
    sync_batch_norm: bool
    """With several GPUs, let batch normalisation see the whole batch instead of each GPU's share."""
    init_from: Path
    """A run: start from its weights."""
    reserve_classes: int
    """Centroids to keep free for classes that may come later (losses with centroids)."""
    continue_from: Path
    """A finished run: start a new one from it, with its options, on data with more classes. The old classes keep their
    centroids, the new ones get free ones (reserve_classes)."""
    compatible: float
    """With continue_from: keep the embeddings of old classes in place by a term of this weight, so that vectors of the
    old run still answer queries embedded by the new one; 1 is a good start."""
    skip_bad: bool
    """Leave out images that cannot be read, and say how many."""
    log_bound: bool
    """Log the paper's bound: L_d, L_t, their gap and its certificate each epoch, on 512 training images."""
    curve: tuple[int, ...]
    """After these epochs also measure R@1 on the test classes, to draw it over time. Nothing is chosen by it, and the
    time for it is not counted as training."""
    tensorboard: bool
    """Write curves for TensorBoard into the run folder."""


class VectorOptions(TypedDict, total=False):
    """The options that were given; the estimator has defaults for the others."""

    method: VectorMethod
    """gradient, or ridge: the regression onto the centroids in closed form, in seconds. (default: gradient)"""
    loss: str
    """discriminative (the paper's), hard-discriminative or softmax. (default: discriminative)"""
    loss_options: tuple[str, ...]
    """Options of the loss, such as push=0.2; `tammes losses NAME` lists them."""
    centroids: str
    """The class centroids: place, one-hot, kmeans, simplex, … (default: place)"""
    push: float
    """Weight of the term that pushes a vector from the other classes' centroids."""
    weighting: Weighting
    """For classes of different size (discriminative only). (default: none)"""
    temperature: float
    """How soft the hard negatives are chosen (hard-discriminative only)."""
    dim: int
    """Dimension of an embedding. (default: as the vectors have, up to 256)"""
    hidden: tuple[int, ...]
    """Widths of hidden layers between vectors and embedding; without them the map is linear."""
    class_layer: bool
    """A layer on top of the embedding, in which the centroids are."""
    centroid_dim: int
    """Outputs of the class layer. (default: one per class, at most 512)"""
    epochs: int
    """Passes over the training vectors. (default: as many as make 500 steps)"""
    batch_size: int
    """Vectors in a batch. (default: 256)"""
    lr: float
    """Learning rate. (default: 0.003)"""
    weight_decay: float
    """Of weights; biases have none. (default: 0.0005)"""
    test_classes: str
    """Classes to test on: a fraction, a number, or a file with one class name a line; 0 trains on everything. (default:
    the second half)"""
    val_classes: str
    """Training classes to hold out, a fraction or a number; 0 for none. (default: a fifth of 20 or more)"""
    seed: int
    """Of everything that is random. (default: 0)"""
