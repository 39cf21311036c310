"""The losses, one file each: (embeddings (batch, dim), labels (batch,)) -> scalar."""

from collections.abc import Mapping

from torch import nn

from tammes.errors import UserError, unknown_name
from tammes.losses import (
    angular,
    arcface,
    center,
    clustering,
    contrastive,
    deepncm,
    discriminative,
    from_pml,
    hard_discriminative,
    histogram,
    lifted,
    multi_similarity,
    normface,
    npair,
    prototypical,
    proxy_anchor,
    proxy_nca,
    softmax,
    triplet,
    triplet_global,
    triplet_naive,
    triplet_semihard,
    triplet_smart,
)
from tammes.losses.angular import AngularLoss
from tammes.losses.arcface import ArcFaceLoss
from tammes.losses.center import CenterLoss
from tammes.losses.clustering import ClusteringLoss
from tammes.losses.contrastive import ContrastiveLoss
from tammes.losses.deepncm import DeepNCMLoss
from tammes.losses.discriminative import DiscriminativeLoss
from tammes.losses.hard_discriminative import HardDiscriminativeLoss
from tammes.losses.histogram import HistogramLoss
from tammes.losses.lifted import LiftedStructureLoss
from tammes.losses.method import Method
from tammes.losses.multi_similarity import MultiSimilarityLoss
from tammes.losses.normface import NormFaceLoss
from tammes.losses.npair import NPairLoss
from tammes.losses.prototypical import PrototypicalLoss
from tammes.losses.proxy_anchor import ProxyAnchorLoss
from tammes.losses.proxy_nca import ProxyNCALoss
from tammes.losses.softmax import SoftmaxLoss
from tammes.losses.triplet import TripletLoss
from tammes.losses.triplet_global import TripletGlobalLoss
from tammes.losses.triplet_naive import NaiveTripletLoss
from tammes.losses.triplet_semihard import TripletSemihardLoss
from tammes.losses.triplet_smart import SmartMiningLoss

METHODS: dict[str, Method] = {
    "discriminative": discriminative.METHOD,
    "hard-discriminative": hard_discriminative.METHOD,
    "softmax": softmax.METHOD,
    "normface": normface.METHOD,
    "contrastive": contrastive.METHOD,
    "triplet": triplet.METHOD,
    "triplet-naive": triplet_naive.METHOD,
    "triplet-semihard": triplet_semihard.METHOD,
    "lifted": lifted.METHOD,
    "npair": npair.METHOD,
    "triplet-global": triplet_global.METHOD,
    "clustering": clustering.METHOD,
    "triplet-smart": triplet_smart.METHOD,
    "proxy-nca": proxy_nca.METHOD,
    "histogram": histogram.METHOD,
    "center": center.METHOD,
    "deepncm": deepncm.METHOD,
    "prototypical": prototypical.METHOD,
    "angular": angular.METHOD,
    "proxy-anchor": proxy_anchor.METHOD,
    "multi-similarity": multi_similarity.METHOD,
    "arcface": arcface.METHOD,
}
LOSSES: dict[str, type[nn.Module]] = {name: method.loss for name, method in METHODS.items()}
# Losses that measure distances to fixed centroids take the centroids as their first argument.
WITH_CENTROIDS = {name: method.loss for name, method in METHODS.items() if "centroids" in method.takes}
# Losses on the outputs of the class layer that accept any batch and learn no parameters of their own.
OF_CLASS_LAYER = {
    name: method.loss for name, method in METHODS.items() if method.on == "class layer" and method.images_per_class == 1
}


def find_method(name: str, miner: str | None = None, known: Mapping[str, Method] | None = None) -> Method:
    """The method of a loss by its name: one of METHODS, or pml:NAME for a loss of pytorch-metric-learning.

    Args:
        known: all names that are allowed, if there are more than losses.
    """
    known = METHODS if known is None else known
    if name.startswith(from_pml.PREFIX):
        return from_pml.method_of(name, miner)
    if name not in known:
        raise unknown_name("loss", name, known)
    if miner is not None:
        raise UserError(f"`miner` is for a loss of pytorch-metric-learning, `loss='pml:NAME'`, not for {name}.")
    return known[name]


def find_miner(name: str) -> Method:
    """The method of a pytorch-metric-learning miner by its name: its constructor and options."""
    return from_pml.miner_of(name)


__all__ = [
    "LOSSES",
    "METHODS",
    "OF_CLASS_LAYER",
    "WITH_CENTROIDS",
    "AngularLoss",
    "ArcFaceLoss",
    "CenterLoss",
    "ClusteringLoss",
    "ContrastiveLoss",
    "DeepNCMLoss",
    "DiscriminativeLoss",
    "HardDiscriminativeLoss",
    "HistogramLoss",
    "LiftedStructureLoss",
    "Method",
    "MultiSimilarityLoss",
    "NPairLoss",
    "NaiveTripletLoss",
    "NormFaceLoss",
    "PrototypicalLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "SmartMiningLoss",
    "SoftmaxLoss",
    "TripletGlobalLoss",
    "TripletLoss",
    "TripletSemihardLoss",
    "find_method",
    "find_miner",
]
