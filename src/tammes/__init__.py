"""Deep metric learning in linear time: the discriminative loss of Do et al. (CVPR 2019) and its class centroids."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tammes.bound as bound
    import tammes.centroids as centroids
    from tammes.errors import UserError
    from tammes.gallery.gallery import Gallery
    from tammes.io.hub import push_to_hub
    from tammes.losses import DiscriminativeLoss, HardDiscriminativeLoss
    from tammes.metrics import evaluate
    from tammes.models.embedder import load
    from tammes.models.pretrained import pretrained
    from tammes.run import Run, load_run, train
    from tammes.vectors import MetricLearner

__version__ = "0.2.0"
__all__ = [
    "DiscriminativeLoss",
    "Gallery",
    "HardDiscriminativeLoss",
    "MetricLearner",
    "Run",
    "UserError",
    "bound",
    "centroids",
    "evaluate",
    "load",
    "load_run",
    "pretrained",
    "push_to_hub",
    "train",
]

# Each name is imported when it is first used: `tammes --help` need not wait for torch.
_HOME = {
    "DiscriminativeLoss": "tammes.losses",
    "Gallery": "tammes.gallery.gallery",
    "HardDiscriminativeLoss": "tammes.losses",
    "MetricLearner": "tammes.vectors",
    "UserError": "tammes.errors",
    "evaluate": "tammes.metrics",
    "load": "tammes.models.embedder",
    "pretrained": "tammes.models.pretrained",
    "push_to_hub": "tammes.io.hub",
    **dict.fromkeys(("Run", "load_run", "train"), "tammes.run"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tammes' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name) if name in _HOME else import_module(f"tammes.{name}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
