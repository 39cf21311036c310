"""One cell of a table: train with some options, without a run folder, and keep the network."""

from tammes.cli import making
from tammes.cli.train import Train
from tammes.embedder import Embedder
from tammes.objectives import Objective
from tammes.training import cosine, fit, halved_every


def trained(config: Train, data: making.Data) -> Embedder:
    """The network after the last epoch."""
    embedder = making.make_embedder(config, data.num_classes)
    objective = Objective(embedder, making.make_loss(config, data, embedder))
    options = making.recipe(config)
    schedule = halved_every(options["halve_every"]) if options["schedule"] == "halve" else cosine(options["epochs"])
    for _ in fit(
        objective,
        lambda epoch: making.training_batches(config, data, epoch),
        making.make_optimizer(config, objective),
        epochs=options["epochs"],
        schedule=schedule,
        seed=config.seed,
    ):
        pass
    return embedder
