"""MetricLearner against scikit-learn's and metric-learn's ways to learn a metric, on classes never seen.

    python -m benchmarks.estimators [--cub FOLDER --weights FILE] [--omniglot FOLDER] [--million] [--limit 600]

Fit time, the memory that a fit adds at its peak, R@1 and MAP@R. Each fit is a process of its own, on one thread, with a
limit of time and memory: one that meets it is recorded as such. Every method is measured by Euclidean distance and by
cosine, and the better of the two is shown, which helps the rivals only: our vectors have unit length. `growth` is the
slope of log(time) over log(vectors), on 100 classes in 64 dimensions. Cells that are in the results file already are
not run again.
"""

import json
import resource
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.scaling import exponent
from benchmarks.timing import machine
from benchmarks.vector_sets import Set, cub, digits, made_up, noisy_digits, omniglot_pixels
from tammes import MetricLearner, evaluate

MEASURES = ("recall_at_1", "mean_average_precision_at_r")
SIZES = (1000, 4000, 16000, 64000, 250_000, 1_000_000)  # of `growth`


@dataclass(frozen=True)
class Options:
    """Compare ways to learn a metric."""

    cub: Path | None = None
    """Where CUB-200-2011 is: GoogLeNet's features of it."""
    weights: str = "imagenet"
    """GoogLeNet's weights."""
    omniglot: Path | None = None
    """Where Omniglot's zips or folders are: its pixels."""
    million: bool = False
    """Also a million made-up vectors of 10,000 classes in 256 dimensions."""
    growth: bool = True
    """Also the growth of time with the number of vectors."""
    only: tuple[str, ...] = ()
    """Methods whose names contain one of these."""
    limit: int = 600
    """Seconds that a fit may take."""
    memory: float = 8.0
    """Gigabytes that it may take."""
    out: Path = Path("benchmarks/results/estimators.json")


def methods(growth: bool) -> dict[str, Callable[[], Any]]:
    """A function for each way that makes its estimator; None: the vectors as they are."""
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.neighbors import NeighborhoodComponentsAnalysis

    # As many epochs whatever the size: how many are needed is another question.
    ours: dict[str, Any] = {"epochs": 10, "validation_classes": 0} if growth else {}
    found: dict[str, Callable[[], Any]] = {
        "raw": lambda: None,
        "PCA, whitened": lambda: PCA(_components, whiten=True, random_state=0),
        "LDA": LinearDiscriminantAnalysis,
        "NCA": lambda: NeighborhoodComponentsAnalysis(random_state=0),
        "MetricLearner": lambda: MetricLearner(random_state=0, **ours),
        "MetricLearner, ridge": lambda: MetricLearner(method="ridge", random_state=0, **ours),
        "MetricLearner, hidden 512": lambda: MetricLearner(hidden=512, random_state=0, **ours),
    }
    try:
        metric_learn = import_module("metric_learn")
    except ImportError:
        return found
    return found | {"LMNN": lambda: _repaired(metric_learn).LMNN(random_state=0)}


_components = 0.99  # of the variance: whitening blows up what is left


def _repaired(metric_learn: Any) -> Any:
    """metric-learn 0.7 calls scikit-learn's checks by an argument that has since got another name."""
    from sklearn.utils import validation

    def renamed(check: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *data, force_all_finite=True, **more: check(*data, ensure_all_finite=force_all_finite, **more)

    metric_learn._util.check_array = renamed(validation.check_array)
    metric_learn._util.check_X_y = renamed(validation.check_X_y)
    return metric_learn


def make_set(name: str, options: Options) -> Set:
    kind, _, size = name.partition(" ")
    if kind == "growth":
        return made_up(int(size), 100, 64, test_classes=50)
    if kind == "medium":
        return made_up(4000, 100, 64, test_classes=50)
    if kind == "million":
        return made_up(1_000_000, 10_000, 256)
    if kind == "cub":
        return cub(options.cub or Path(), options.weights)
    if kind == "omniglot":
        return omniglot_pixels(options.omniglot or Path())
    return {"digits": digits, "noisy-digits": noisy_digits}[kind]()


def run(pipe: Connection, data: str, method: str, options: Options) -> None:
    """One cell, in a process of its own."""
    torch.set_num_threads(1)
    train, labels, test, test_labels = make_set(data, options)
    estimator = methods(data.startswith("growth"))[method]()
    allowed = int(options.memory * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    if hasattr(estimator, "n_components") and isinstance(estimator.n_components, float) and len(train) > 20_000:
        estimator.set_params(n_components=min(train.shape))  # a share of the variance costs a whole decomposition
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, started = _status("VmRSS"), perf_counter()
    try:
        if estimator is not None:
            estimator.fit(train, labels)
        seconds, peak = perf_counter() - started, _status("VmHWM") - before
        pipe.send(None)  # fitted: what follows has no limit of time
        found = np.asarray(test if estimator is None else estimator.transform(test), dtype=np.float64)
    except Exception as error:  # whatever it is that a method cannot do is its result
        pipe.send({"outcome": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"})
        return
    unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    quality = {
        distance: {name: evaluate(each, test_labels, ks=(1,), clustering=False, bootstrap=0)[name] for name in MEASURES}
        for distance, each in (("euclidean", found), ("cosine", unit))
    }
    pipe.send({"outcome": "finished", "seconds": seconds, "peak_mb": peak / 1024, "vectors": len(train), **quality})


def _status(name: str) -> float:
    """Kilobytes of this process by a name of Linux's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1])


def cell(data: str, method: str, options: Options) -> dict[str, Any]:
    """What a method does on a set, or what kept it from it."""
    context = get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(send, data, method, options))
    process.start()
    send.close()
    try:
        result = receive.recv() if receive.poll(options.limit) else {"outcome": f"not done in {options.limit} s"}
        result = receive.recv() if result is None else result
    except EOFError:
        result = {"outcome": "ended without a word, most likely for want of memory"}
    process.kill()
    process.join()
    return {"set": data, "method": method, **result}


def table(rows: list[dict[str, Any]], data: str) -> Table:
    shown = Table(title=data)
    for column in ("method", "seconds", "MB", "R@1", "MAP@R", "by"):
        shown.add_column(column, justify="left" if column == "method" else "right")
    for row in (row for row in rows if row["set"] == data):
        if row["outcome"] != "finished":
            shown.add_row(row["method"], row["outcome"])
            continue
        by = max(("euclidean", "cosine"), key=lambda distance: row[distance]["recall_at_1"])
        figures = [f"{100 * row[by][name]:.2f}" for name in MEASURES]
        shown.add_row(row["method"], f"{row['seconds']:.2f}", f"{row['peak_mb']:.0f}", *figures, by)
    return shown


def _beyond(rows: list[dict[str, Any]], data: str, method: str) -> dict[str, Any] | None:
    """The row of a method that did not get through with fewer vectors; None where it is to be tried."""
    sizes = [f"growth {size}" for size in SIZES]
    smaller = sizes[: sizes.index(data)] if data in sizes else []
    for row in rows:
        if row["set"] in smaller and row["method"] == method and row["outcome"] != "finished":
            return {"set": data, "method": method, "outcome": f"not tried: with fewer vectors {row['outcome']}"}
    return None


def slopes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The exponent of time in the number of vectors, of each method that finished at three sizes or more."""
    found = {}
    for method in methods(True):
        times = {
            row["vectors"]: row["seconds"]
            for row in rows
            if row["method"] == method and row["set"].startswith("growth") and row["outcome"] == "finished"
        }
        if len(times) >= 3 and method != "raw":
            found[method] = exponent(sorted(times), [times[size] for size in sorted(times)])
    return found


def main(options: Options) -> None:
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    done, console = {(row["set"], row["method"]) for row in rows}, Console()
    sets = ["digits", "noisy-digits", "medium"]
    sets += ["cub"] * (options.cub is not None) + ["omniglot"] * (options.omniglot is not None)
    sets += [f"growth {size}" for size in SIZES] * options.growth + ["million"] * options.million
    for data in sets:
        for method in methods(False):
            wanted = not options.only or any(each in method for each in options.only)
            if wanted and (data, method) not in done:
                rows.append(_beyond(rows, data, method) or cell(data, method, options))
                options.out.parent.mkdir(parents=True, exist_ok=True)
                stored = {"machine": machine(), "limit": options.limit, "rows": rows, "growth": slopes(rows)}
                options.out.write_text(json.dumps(stored, indent=1) + "\n")
        console.print(table(rows, data))
    for method, slope in slopes(rows).items():
        console.print(f"{method:<26} time grows with vectors^{slope:.2f}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
