"""The search: each method's learning rate and one hyper-parameter, chosen on validation classes, the same for all.

The training classes are cut into quarters. Every combination trains on three of them and is measured on the fourth,
for each quarter that the plan names; the best mean R@1 wins, the first of equals. Test classes take no part: no image
of them is embedded.
"""

from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from tammes.benchmark.cells import DONE, FAILED, Cell
from tammes.benchmark.plan import QUARTERS, Method, Plan
from tammes.errors import UserError


def combinations(plan: Plan, method: Method) -> list[dict[str, Any]]:
    """All that is tried for a method; nothing where the plan has no search."""
    if plan.search is None:
        return []
    space = {"rate": plan.search.rate, **method.search}
    return [dict(zip(space, values, strict=True)) for values in product(*space.values())]


def trials(plan: Plan, out: Path, preset: str, method: Method) -> list[Cell]:
    """The trainings of a method's search."""
    if plan.search is None:
        return []
    return [
        Cell(out, preset, method, plan.search.seed, quarter, changes)
        for changes in combinations(plan, method)
        for quarter in plan.search.quarters
    ]


def chosen(plan: Plan, out: Path, preset: str, method: Method) -> dict[str, Any] | None:
    """The combination that is best on validation classes; None as long as some are not measured.

    A combination that failed on a quarter cannot win; an error if all failed.
    """
    if plan.search is None:
        return {}
    cells = trials(plan, out, preset, method)
    states = [cell.state for cell in cells]
    if any(state not in (DONE, FAILED) for state in states):
        return None
    scores: list[tuple[float, dict[str, Any]]] = []
    for changes in combinations(plan, method):
        results = [cell.result() or {} for cell in cells if cell.changes == changes]
        if not any("error" in result for result in results):
            scores.append((mean(result["recall_at_1"] for result in results), changes))
    if not scores:
        first = next(result["error"] for result in (cell.result() or {} for cell in cells) if "error" in result)
        raise UserError(f"every combination of the search failed; the first: {first}")
    return max(scores, key=lambda score: score[0])[1]


def quarter_of(classes: Int64[ndarray, " classes"], quarter: int) -> Int64[ndarray, " held_out"]:
    """A quarter of the classes: neighbours in the list, hence of one kind, which makes it as hard as the test.

    >>> quarter_of(np.arange(10), 1)
    array([3, 4, 5])
    """
    if len(classes) < 2 * len(QUARTERS):
        raise UserError(
            f"{len(classes)} training classes are too few to hold out quarters of them: there must be 8 or more."
            " Leave out [search]."
        )
    return np.array_split(classes, len(QUARTERS))[quarter]
