"""One cell of a table: train with some options, without a run folder, and keep the network."""

from dataclasses import replace

import torch

from tammes.models.embedder import Embedder
from tammes.training.build import (
    build_backbone,
    build_embedder,
    build_loss,
    build_optimizer,
    cut_of,
    freeze,
    init_layers,
)
from tammes.training.config import TrainConfig
from tammes.training.data import Data, keep_activations, training_batches
from tammes.training.loop import cosine, fit, halved_every
from tammes.training.objectives import Objective


def trained(config: TrainConfig, data: Data) -> tuple[Embedder, Data]:
    """The network after the last epoch, and the data with the activations that it was trained on, if on any."""
    embedder = build_embedder(config, build_backbone(config), data.num_classes)
    config = replace(config, cut=cut_of(config, embedder))
    loss = build_loss(config, data, embedder)
    data = replace(data, kept=keep_activations(config, data, freeze(config, embedder)))
    objective = Objective(embedder, loss, features=None if data.kept is None else data.kept.frozen.above)
    init_layers(config, data, objective)
    schedule = halved_every(config.halve_every) if config.schedule == "halve" else cosine(config.epochs)
    torch.manual_seed(config.seed)
    for _ in fit(
        objective,
        lambda epoch: training_batches(config, data, epoch),
        build_optimizer(config, objective),
        epochs=config.epochs,
        schedule=schedule,
        seed=config.seed,
    ):
        pass
    return embedder, data
