"""Networks that nothing trained, on test classes: as they are, whitened by PCA, whitened within the training classes.

    python -m benchmarks.pretrained CUB_200_2011 googlenet --pool max --weights FILE

A result is kept in benchmarks/results/pretrained.json in place of the one that was there of the same data, network and
pooling. Its rows stand in every table of docs/results.md where that network was trained on that data with that pooling.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from benchmarks.stored import RESULTS, pretrained
from benchmarks.timing import machine
from tammes.data import open_dataset
from tammes.io.files import write_atomically
from tammes.report.evaluation import evaluate_pretrained

FILE = RESULTS / "pretrained.json"
IN_PLANS = {"cub": "CUB_200_2011"}  # what plans call a data set


@dataclass(frozen=True)
class Options:
    """Measure a pretrained network on the test classes of a published data set."""

    data: Annotated[str, tyro.conf.Positional]
    """A folder with CUB-200-2011, CARS196 or another published data set."""
    network: Annotated[str, tyro.conf.Positional]
    weights: str = "imagenet"
    pool: str = "published"
    precision: Literal["no", "bf16"] = "no"
    """bf16: the backbone in bfloat16."""


def main(options: Options) -> None:
    network = {"weights": options.weights, "form": None, "size": None, "pool": options.pool}
    found = evaluate_pretrained(
        options.network, options.data, network, whiten=True, skip_bad=True, precision=options.precision
    )
    data = open_dataset(options.data).name
    named = {"data": IN_PLANS.get(data, data), "network": options.network, "pool": options.pool}
    kept = [each for each in pretrained() if {name: each[name] for name in named} != named]
    kept.append(named | {"precision": options.precision, "machine": machine(), "rows": found})
    kept.sort(key=lambda each: (each["data"], each["network"], each["pool"]))
    write_atomically(FILE, (json.dumps(kept, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
