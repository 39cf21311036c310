"""Configurations as tests want them: a name for `resolve` that takes options as keywords."""

from typing import Any

from tammes.models.backbones import backbone
from tammes.training.build import build_backbone, build_embedder
from tammes.training.config import TrainConfig, resolve
from tammes.training.data import Data, load_data


def config_of(data: str = "glyphs", *, out: Any = None, **given: Any) -> TrainConfig:
    """The complete configuration with these options."""
    return resolve(data, given, out)  # type: ignore[arg-type]


def data_of(config: TrainConfig, classes: dict[str, Any] | None = None) -> Data:
    """The images of a configuration, decoded."""
    return load_data(config, backbone(config.backbone), classes)


def embedder_of(config: TrainConfig, num_classes: int) -> Any:
    """The network of a configuration before training."""
    return build_embedder(config, build_backbone(config), num_classes)
