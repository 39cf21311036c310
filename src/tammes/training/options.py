"""The options of `tammes train`, for images and for vectors. All are optional."""

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
    """Options of a training on images; `resolve` fills in those that are not given."""

    preset: Preset
    """Where the options that are not given come from. paper follows Do et al. (2019) exactly, on any machine:
    googlenet, every layer, fresh random crops, one-hot centroids, batches of 128, 40 epochs. Without a GPU that takes
    hours; an estimate is printed first. For glyphs and Omniglot it uses conv4 without mirroring. (default: default)"""
    loss: str
    """discriminative (the paper's); hard-discriminative, which gives hard negatives more weight; softmax, the usual
    classifier; any other that `tammes losses` lists, including methods that are more than a loss (hdc, bier, daml,
    dvml); or pml:NAME, a loss of pytorch-metric-learning such as pml:ProxyAnchorLoss. (default: discriminative)"""
    base: str
    """The loss that hdc, bier, daml or dvml is built on: that of its own paper, or discriminative, the O(NC) loss in
    place of pairs and triplets. `tammes losses NAME` lists them."""
    loss_options: tuple[str, ...]
    """Options of the loss, such as margin=0.2; `tammes losses NAME` lists them."""
    miner: str
    """Which pairs or triplets of a batch a loss of pytorch-metric-learning uses, such as pml:MultiSimilarityMiner."""
    miner_options: tuple[str, ...]
    """Options of the miner, such as epsilon=0.1; `tammes losses pml:NAME` lists them."""
    centroids: str
    """The class centroids: one-hot (the paper's), kmeans (the paper's alternative), simplex, place, …"""
    push: float
    """Weight of the term that pushes an image away from the centroids of other classes. Up to 1/3, the default, the
    loss is an upper bound on the triplet loss (discriminative and hard-discriminative only)."""
    weighting: Weighting
    """How classes of different size are weighted (discriminative only). (default: none)"""
    temperature: float
    """Temperature: softness of the choice of hard negatives (hard-discriminative; default 0.1), or divisor of the
    cosines (normface; learned by default)."""
    backbone: str
    """The network: googlenet or vgg16 (as in the paper), conv4 (28 x 28 grey images, for glyphs and Omniglot), or any
    name of torchvision or timm. (default: resnet50 for photos, googlenet with preset paper)"""
    weights: str
    """Initial weights of the backbone: imagenet (downloaded; the default except for conv4), none (random), or a file
    (.safetensors, .pt; for googlenet also Caffe's)."""
    weights_form: Form
    """Which form of resnet50, 101 or 152 a file of weights is for, if it does not say: torchvision's, or the original
    one, which Keras uses (stride in the first 1 x 1 convolution of a stage)."""
    train: Part
    """Which layers train: all; top, the layers above a cut, on activations that are computed once and cached; or head,
    only the new layers. (default: all; top for a pretrained network on a machine with neither a GPU nor bfloat16
    instructions)"""
    cut: str
    """The lowest module of the backbone that trains (train top), such as inception_5a of googlenet."""
    views: int
    """Random crops of each image whose activations are cached; 0 for the centre crop. (default: 4 with train top, 0
    with train head)"""
    pool: Pool
    """How the last feature map of the backbone is pooled: mean, max, mean-max (the mean of both), gem (generalised mean
    with power 3), token (the class token of a transformer), or as published with the network."""
    size: int
    """Height and width of the backbone's input. (default: as published)"""
    dim: int
    """Dimension of an embedding. (default: 256; hdc 384, bier 512)"""
    class_layer: bool
    """Add a class layer on top of the embedding, with the centroids in its output space. Without it the centroids are
    in the embedding space."""
    centroid_dim: int
    """Outputs of the class layer. (default: one per class, or 512 for more than 4096 classes)"""
    embedding: Layer
    """The layer that images are compared by: penultimate, the one below the class layer (the paper's), or last, the
    class layer. (default: penultimate)"""
    epochs: int
    """Passes over the training images."""
    batch_size: int
    """Images in a batch."""
    optimizer: OptimizerName
    """Stochastic gradient descent with momentum, or Adam with decoupled weight decay."""
    lr: float
    """Learning rate of the new layers on top of the backbone. (default: the preset's; with sgd multiplied by a factor
    of the loss)"""
    backbone_lr: float
    """Learning rate of the backbone."""
    proxy_lr: float
    """Learning rate of the loss's own parameters: proxies, class weights. (default: that of the new layers, multiplied
    by a factor of the loss)"""
    momentum: float
    """Momentum of sgd."""
    weight_decay: float
    """Weight decay; biases and normalisation layers have none."""
    schedule: Schedule
    """How the learning rates fall: halved every few epochs, or along a cosine."""
    halve_every: int
    """Epochs between two halvings (schedule halve)."""
    warmup: float
    """Epochs, or a fraction of one, over which the learning rates rise from 0. (default: 0)"""
    train_batch_norm: bool
    """Train batch normalisation of the backbone, both statistics and weights. (default: only with random weights; a
    pretrained network keeps its own)"""
    mirror: bool
    """Flip half of the images, chosen at random in each epoch."""
    shift: int
    """Padding of an image, in pixels, before its random crop."""
    crop_area: float
    """The smallest share of an image's area that a random crop covers, such as 0.3; crops are scaled to the size of the
    network's input. 1: crops of that size, none scaled. (default: the preset's)"""
    grow_from: int
    """Height and width of the training images in the first epoch; they grow evenly to the network's own in the last.
    Small images take less time. (default: the preset's)"""
    init: Init
    """Initialisation of the embedding layer: random (the paper's); pca, the principal directions of the features;
    whiten, the same after within-class whitening; or ridge, which is whiten with a class layer in closed form too: the
    ridge regression of the embeddings onto the centroids."""
    keep_init: bool
    """Freeze the embedding layer as it was initialised (init pca, whiten or ridge), while the layers below and above it
    train."""
    refit: bool
    """After the last epoch, compute the new layers again in closed form, from the features of the trained network
    (with keep_init). (default: the preset's)"""
    sampler: Sampler
    """How batches are made: shuffled; balanced, where images of small classes are repeated, with other crops, until all
    classes are as large as the largest; or pk, several images of each class, as losses of pairs need. (default: what
    the loss needs)"""
    images_per_class: int
    """Images of each class in a batch (sampler pk). (default: what the loss needs)"""
    accumulate: int
    """Batches whose gradients are summed before a step: equal to one large batch for losses that treat images
    independently. (default: 1)"""
    test_classes: str
    """Classes to test on: a fraction, a number, or a file with one class name per line; 0 trains on all classes.
    (default: the second half)"""
    val_classes: str
    """Training classes to hold out for validation: a fraction or a number; 0 for none. The embedding that is best on
    them is kept: the pretrained one, its whitening, or that of an epoch. (default: a fifth of 20 classes or more, a
    quarter of 12 to 19; none below 12 and with preset paper)"""
    seed: int
    """Random seed. (default: 0)"""
    device: Device
    """auto uses a GPU if there is one. (default: auto)"""
    precision: Precision
    """Mixed precision; weights, distances and evaluation stay in float32. auto is bf16 if layers of the backbone train
    on a processor with bfloat16 instructions (avx512_bf16, amx_bf16), otherwise no. (default: auto)"""
    sync_batch_norm: bool
    """With several GPUs: batch normalisation over the whole batch instead of each GPU's share."""
    init_from: Path
    """Start from the weights of this run."""
    reserve_classes: int
    """Centroids to reserve for classes that may come later (losses with centroids)."""
    continue_from: Path
    """Start a new run from this finished one, with its options, on data with more classes. The old classes keep their
    centroids, the new ones get reserved ones (reserve_classes)."""
    compatible: float
    """With continue_from: weight of a term that keeps the embeddings of old classes in place, so that vectors of the
    old run still match queries embedded by the new one. 1 is a good start."""
    skip_bad: bool
    """Leave out images that cannot be read, and say how many."""
    log_bound: bool
    """Log the paper's bound in each epoch, on 512 training images: L_d, L_t, their gap and its certificate."""
    curve: tuple[int, ...]
    """Also measure R@1 on the test classes after these epochs, for a curve over time. It does not influence the
    training, and does not count as training time."""
    tensorboard: bool
    """Write curves for TensorBoard into the run folder."""


class VectorOptions(TypedDict, total=False):
    """Options of a training on vectors; the estimator has defaults for those that are not given."""

    method: VectorMethod
    """gradient, or ridge: the regression onto the centroids, solved in closed form in seconds. (default: gradient)"""
    loss: str
    """discriminative (the paper's), hard-discriminative or softmax. (default: discriminative)"""
    loss_options: tuple[str, ...]
    """Options of the loss, such as push=0.2; `tammes losses NAME` lists them."""
    centroids: str
    """The class centroids: place, one-hot, kmeans, simplex, … (default: place)"""
    push: float
    """Weight of the term that pushes a vector away from the centroids of other classes."""
    weighting: Weighting
    """How classes of different size are weighted (discriminative only). (default: none)"""
    temperature: float
    """Temperature: softness of the choice of hard negatives (hard-discriminative only)."""
    dim: int
    """Dimension of an embedding. (default: that of the vectors, up to 256)"""
    hidden: tuple[int, ...]
    """Widths of hidden layers between vectors and embedding; without them the map is linear."""
    class_layer: bool
    """Add a class layer on top of the embedding, with the centroids in its output space."""
    centroid_dim: int
    """Outputs of the class layer. (default: one per class, at most 512)"""
    epochs: int
    """Passes over the training vectors. (default: as many as make 500 steps)"""
    batch_size: int
    """Vectors in a batch. (default: 256)"""
    lr: float
    """Learning rate. (default: 0.003)"""
    weight_decay: float
    """Weight decay; biases have none. (default: 0.0005)"""
    test_classes: str
    """Classes to test on: a fraction, a number, or a file with one class name per line; 0 trains on all classes.
    (default: the second half)"""
    val_classes: str
    """Training classes to hold out for validation: a fraction or a number; 0 for none. (default: a fifth, if there are
    20 or more)"""
    seed: int
    """Random seed. (default: 0)"""
