"""Keep what a plan found: benchmarks/results/plans/NAME.json, from which docs/results.md and the README are made.

    python -m benchmarks.store runs/cub-centroids-head [runs/…]

A trimmed copy of the results.json that `tammes benchmark` wrote: the rows of the table, and of each method its seeds,
minutes, commits, machines and command. No times of day, no folders of a machine: data and weights by their names. Then
docs/results.md and the README's tables are written.
"""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import tyro

from benchmarks.page import write_page
from benchmarks.stored import PLANS, RESULTS
from tammes.benchmark.tables import curve
from tammes.errors import UserError
from tammes.io.files import write_atomically

# A path from the root, up to and with the slash before its last name.
_FOLDERS = re.compile(r"(?<![\w./:])/(?:[^\s/'\",;:]+/)+")
DIGITS = 4


@dataclass(frozen=True)
class Options:
    """Store the results of benchmarks and write the page."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders that `tammes benchmark` has filled, such as runs/cub-centroids-head."""


def main(options: Options) -> None:
    for folder in options.folders:
        print(f"stored in {store(folder, RESULTS / 'plans')}")
    write_page()


def store(folder: Path, to: Path) -> Path:
    """The results of a benchmark's folder, trimmed, under the name of its plan."""
    file = folder / "results.json"
    if not file.exists():
        raise UserError(f"{folder} has no results.json: it is not the folder of a benchmark, or none of it has run.")
    results = json.loads(file.read_text())
    if "plan" not in results:
        raise UserError(
            f"{file} does not say which plan it is of. The same `tammes benchmark` command writes it again."
        )
    if not (PLANS / f"{results['plan']}.toml").exists():
        raise UserError(
            f"{file} is of a plan {results['plan']!r}, and there is no benchmarks/plans/{results['plan']}.toml: nobody"
            " could make it again. Put the plan there."
        )
    to.mkdir(parents=True, exist_ok=True)
    stored = to / f"{results['plan']}.json"
    text = json.dumps(trimmed(results), indent=1, ensure_ascii=False)
    write_atomically(stored, text.encode() + b"\n")
    return stored


def trimmed(results: dict[str, Any]) -> dict[str, Any]:
    """What is stored of the results of a plan."""
    cells, data = results["cells"], Path(results["data"]).name
    weights = next((cell["config"]["weights"] for cell in cells if "config" in cell), None)
    words = ["tammes benchmark", f"benchmarks/plans/{results['plan']}.toml"]
    words += [] if data == "glyphs" else ["--data", "DATASETS"]
    words += [] if weights in (None, "imagenet", "none") else ["--weights", shlex.quote(weights)]
    runs: dict[str, list[dict[str, Any]]] = {}
    for preset in results["tables"]:
        methods = dict.fromkeys(cell["method"] for cell in cells if cell["preset"] == preset)
        runs[preset] = [
            _run(method, [cell for cell in cells if (cell["preset"], cell["method"]) == (preset, method)])
            for method in methods
        ]
    pools = {cell["preset"]: cell["config"].get("pool", "published") for cell in cells if "config" in cell}
    found = {name: results[name] for name in ("plan", "title", "remarks", "tables")}
    return dict(_clean(found | {"data": data, "command": " ".join(words), "pools": pools, "runs": runs}))


def _run(method: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """How a method's rows were made: by the cells that have a result."""
    done = [cell for cell in cells if cell["state"] == "done"]
    return {
        "method": method,
        "seeds": [cell["seed"] for cell in done],
        "minutes": mean(cell["training_seconds"] for cell in done) / 60 if done else None,
        "commits": sorted({(cell["commit"] or "unknown")[:7] for cell in done}),
        "machines": sorted({_machine(cell["machine"]) for cell in done}),
        "command": named_only((done or cells)[0]["command"]),
    } | _epochs([cell for cell in done if "epochs" in cell])


def _epochs(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Every seed's figures and epochs; R@1 over minutes, the mean over seeds; and the bound of the first seed."""
    if not cells:
        return {}
    by_seed = [{name: cell.get(name) for name in ("seed", "schema", "images", "layers", "epochs")} for cell in cells]
    curves = [curve(cell["epochs"]) for cell in cells]
    shared = [epoch for epoch in curves[0] if all(epoch in each for each in curves)]
    bound = [line for line in cells[0]["epochs"] if "bound" in line]
    return {
        "by_seed": by_seed,
        "curve": [
            {"epoch": epoch, "minutes": mean(each[epoch][0] for each in curves)}
            | {"recall_at_1": mean(each[epoch][1] for each in curves)}
            for epoch in shared
        ],
        "bound": [{"epoch": line["epoch"], "loss": line["loss"]} | _over_triplets(line["bound"]) for line in bound],
    }


def _over_triplets(bound: dict[str, Any]) -> dict[str, Any]:
    sums = ("triplet_loss", "discriminative_loss", "gap", "certificate")
    return {name: bound[name] / max(1, bound["triplets"]) for name in sums} | {"epsilon": bound["epsilon"]}


def _machine(of: dict[str, Any]) -> str:
    threads = f"{of['threads']} thread{'s' * (of['threads'] > 1)}"
    return f"{of['processor']}, {threads}, torch {of['torch']}"


def named_only(command: str) -> str:
    """A command of `tammes train` without the folders of a machine, and without where its run went.

    >>> named_only("tammes train /data/My birds --out runs/x --weights /w/net.pt --lr 0.1")
    "tammes train 'My birds' --weights net.pt --lr 0.1"
    >>> named_only("tammes train '/data/My birds' --out 'runs/x y' --weights '/w/my net.pt'")
    "tammes train 'My birds' --weights 'my net.pt'"
    """
    data, *options = command.removeprefix("tammes train ").split(" --")
    words = ["tammes train", _name(data)]
    for option in options:
        flag, _, value = option.partition(" ")
        if flag != "out":
            words += [f"--{flag}", _name(value) if value.startswith(("/", "'/")) else value]
    return " ".join(word for word in words if word)


def _name(path: str) -> str:
    """The name of a file or folder as a shell takes it, of a path that is in quotes or, as once was, is not."""
    return shlex.quote(Path(path.removeprefix("'").removesuffix("'")).name)


def _clean(value: Any) -> Any:
    """Figures to a few digits, and files by their names."""
    if isinstance(value, dict):
        return {name: _clean(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, float):
        return round(value, DIGITS)
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        raise SystemExit(str(error)) from None
