"""One cell of a table: train with some options, without a run folder, and keep the network."""

from dataclasses import replace

import torch

from tammes.cli import feeding, making, networks
from tammes.cli.options import recipe, resolved
from tammes.cli.train import Train
from tammes.models.embedder import Embedder
from tammes.training.loop import cosine, fit, halved_every
from tammes.training.objectives import Objective


def trained(config: Train, data: feeding.Data) -> tuple[Embedder, feeding.Data]:
    """The network after the last epoch, and the data with the activations that it was trained on, if on any."""
    config = resolved(config)
    embedder = networks.make_embedder(config, data.num_classes)
    if config.train == "top" and config.cut is None:
        config = replace(config, cut=embedder.default_cut)
    loss = making.make_loss(config, data, embedder)
    data = replace(data, kept=feeding.keep(config, data, networks.freeze(config, embedder)))
    objective = Objective(embedder, loss, features=None if data.kept is None else data.kept.frozen.above)
    making.start_layers(config, data, objective)
    options = recipe(config)
    schedule = halved_every(options["halve_every"]) if options["schedule"] == "halve" else cosine(options["epochs"])
    torch.manual_seed(config.seed)
    for _ in fit(
        objective,
        lambda epoch: feeding.training_batches(config, data, epoch),
        making.make_optimizer(config, objective),
        epochs=options["epochs"],
        schedule=schedule,
        seed=config.seed,
    ):
        pass
    return embedder, data
