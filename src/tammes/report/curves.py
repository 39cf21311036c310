"""The curves of training runs, epoch by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tammes.report.charts import Line, line_chart


def curves(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Markup]:
    """The curves of one or more runs by name: loss, R@1, learning rate, speed, and the bound if it was logged.

    Args:
        runs: the lines of metrics.jsonl of each.
    """

    def lines(key: str, title: str, times: float = 1.0) -> list[Line]:
        return [
            Line(name or title, [line["epoch"] for line in epochs], [_times(line.get(key), times) for line in epochs])
            for name, epochs in runs.items()
            if any(line.get(key) is not None for line in epochs)
        ]

    every = [line for epochs in runs.values() for line in epochs]
    title, unit = "Loss", "mean over the images"
    charts = [line_chart(lines("loss", "loss"), title=title, x_title="epoch", y_title=unit, levels=_minima(every))]
    recall = lines("val_recall_at_1", "R@1", 100.0)
    if recall:
        charts.append(line_chart(recall, title="R@1 on the validation classes", x_title="epoch", y_title="per cent"))
    charts.append(line_chart(lines("lr", "lr"), title="Learning rate", x_title="epoch", y_title="of the new layers"))
    charts.append(
        line_chart(lines("images_per_second", "speed"), title="Speed", x_title="epoch", y_title="items per second")
    )
    if len(runs) == 1:
        charts += bound_charts(next(iter(runs.values())))
    return charts


def _minima(every: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The minimum of the loss by its title in the chart, if all runs have the same one.

    It differs for vectors that are trained again on all classes.
    """
    found: dict[str, float] = {}
    for again, name in ((False, "known minimum"), (True, "known minimum, all classes")):
        lines = [line for line in every if line.get("on_all_classes", False) is again]
        if not all({"loss", "above_minimum"} <= line.keys() for line in lines):
            return {}
        least = [line["loss"] - line["above_minimum"] for line in lines]
        if least and max(least) - min(least) >= 1e-6:
            return {}
        if least and all(abs(least[0] - other) >= 1e-6 for other in found.values()):
            found[name] = min(least)
    return found


def _times(value: float | None, times: float) -> float | None:
    return None if value is None else value * times


def bound_charts(lines: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """The paper's quantities by epoch, as means over the triplets of the watched images, if they were logged."""
    epochs = [line for line in lines if "bound" in line]
    if not epochs:
        return []
    at = [line["epoch"] for line in epochs]

    def line(name: str, key: str) -> Line:
        return Line(name, at, [each["bound"][key] / max(1, each["bound"]["triplets"]) for each in epochs])

    images = "on a fixed sample of the training items, the mean over its triplets"
    return [
        line_chart(
            [line("L_d, the bound", "discriminative_loss"), line("L_t, the triplet loss", "triplet_loss")],
            title="The bound and the triplet loss",
            x_title="epoch",
            y_title="mean over triplets",
            caption=f"L_d is never below L_t; {images}.",
        ),
        line_chart(
            [line("gap, L_d - L_t", "gap"), line("certificate", "certificate"), line("the paper's Lemma", "lemma")],
            title="The gap, and what is proven about it",
            x_title="epoch",
            y_title="mean over triplets",
            log_y=True,
            caption="The gap is below the certificate, which is below the Lemma, at every epoch.",
        ),
        line_chart(
            [Line("ε", at, [each["bound"]["epsilon"] for each in epochs])],
            title="ε, twice the largest distance to the own centroid",
            x_title="epoch",
            y_title="distance",
        ),
    ]
