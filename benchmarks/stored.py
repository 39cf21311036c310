"""What is stored in benchmarks/results/, and how tables are drawn of it: shared by benchmarks/page.py and beside.py."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tammes.benchmark.plan import Plan
from tammes.benchmark.tables import MEASURES, Figure
from tammes.training.presets import recipe_of

ROOT = Path(__file__).parents[1]
RESULTS, PLANS = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "plans"

# Images that train and test, to estimate by; results say how many there were.
IMAGES = {"CUB_200_2011": (5864, 5924), "cars196": (8054, 8131)}
DATA_NAMES = {"CUB_200_2011": "CUB-200-2011", "cars196": "CARS196"}
# Rows of evaluation that no loss had a part in.
CLOSED_FORMS = {"pretrained": "pretrained", "pca_whitened": "PCA whitening", "whitened": "whitening"}
# Rows of stored plans (plan, preset, method) whose penultimate layer the training did not move: what they are instead.
_INITIAL = "did not move: the closed-form initialisation"
NOT_MOVED = {
    ("cub-layers-head", "default", "one-hot centroids"): "not trained: whitening in closed form",
    ("cub-softmax-top", "default", "softmax"): _INITIAL,
    ("cub-more-top", "default", "Proxy-Anchor"): _INITIAL,
    ("cub-more-top", "default", "multi-similarity"): _INITIAL,
    ("cub-more-top", "default", "ArcFace"): _INITIAL,
}


def read(file: Path) -> dict[str, Any] | None:
    return dict(json.loads(file.read_text())) if file.exists() else None


def drawn(shown: Mapping[str, Sequence[str]]) -> list[str]:
    """A Markdown table of its columns."""
    rows = [" | ".join(cell.replace("|", "/") for cell in cells) for cells in zip(*shown.values(), strict=True)]
    return [f"| {' | '.join(shown)} |", "|---" * len(shown) + "|", *(f"| {row} |" for row in rows), ""]


def pretrained(results: Path = RESULTS) -> list[dict[str, Any]]:
    """What `benchmarks.pretrained` has stored."""
    file = results / "pretrained.json"
    return list(json.loads(file.read_text())) if file.exists() else []


def closed_forms(data: str, network: str, pool: str, results: Path) -> dict[str, tuple[dict[str, Figure], str]]:
    """What a network reaches without training: title -> measures and commit; empty where it was not measured."""
    found = {}
    for each in pretrained(results):
        if (each["data"], each["network"], each["pool"]) == (data, network, pool):
            for name, title in CLOSED_FORMS.items():
                row = each["rows"].get(name, {})
                measures = {key: Figure(100 * row[key], None, 1) for key in MEASURES if row.get(key) is not None}
                if measures:
                    found[title] = measures, each["machine"]["commit"][:7]
    return found


def pools_of(data: str, network: str, results: Path) -> list[str]:
    """The poolings with which a network was measured before it was trained."""
    return [each["pool"] for each in pretrained(results) if (each["data"], each["network"]) == (data, network)]


def pooling(pool: str) -> str:
    return "pooling as published" if pool == "published" else f"{pool} pooling"


def figure(found: Figure | None) -> str:
    """A figure as a cell: its interval where seeds differ."""
    if found is None:
        return ""
    return f"{found.mean:.2f}" if not found.half else str(found)


def commits(found: Sequence[str]) -> str:
    """The commits of a row, short enough for a column: the first, and how many more there are."""
    return "" if not found else found[0] if len(found) == 1 else f"{found[0]} +{len(found) - 1}"


def minutes(found: float | None) -> str:
    return "" if found is None else f"{found:,.1f}" if found >= 1 else f"{found:.2f}"


def epochs_of(plan: Plan, preset: str) -> int:
    return int(plan.train.get("epochs", recipe_of(preset, plan.train["backbone"], plan.train["train"]).epochs))


def hours(plan: Plan, throughput: Mapping[str, Any] | None, trainings: int | None = None) -> float | None:
    """How long a plan that trains every layer takes, by the images/s that were measured of its network.

    Args:
        trainings: how many of its trainings; by default all.
    """
    rows = [] if throughput is None else throughput["rows"]
    speed = next((row["images_per_second"] for row in rows if row["backbone"] == plan.train["backbone"]), None)
    if speed is None or plan.train["train"] != "all" or plan.data not in IMAGES:
        return None
    of_all = sum(seed in method.seeds for seed in plan.seeds for method in plan.methods)
    images = sum(IMAGES[plan.data][0] * epochs_of(plan, preset) for preset in plan.presets)
    return float(images * (of_all if trainings is None else trainings) / speed / 3600)
