"""The search: each method's learning rate and one hyper-parameter, chosen on validation classes, the same for all.

The training classes are cut into quarters. Every combination trains on three of them and is measured on the fourth,
for each quarter that the plan names; the best mean R@1 wins, the first of equals. If that has the lowest or the highest
learning rate and the plan says so, one rate beyond it is tried too. Test classes take no part: no image of them is
embedded.
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


def combinations(plan: Plan, out: Path, preset: str, method: Method) -> list[dict[str, Any]]:
    """The combinations that are tried for a method so far; empty without a search."""
    if plan.search is None:
        return []
    rates = method.rates or plan.search.lr
    found = _combined(rates, method)
    best = _best(plan, out, preset, method, found) if plan.search.widen else None
    more = None if best is None else beyond(rates, best["lr"])
    return found if more is None else found + _combined((more,), method)


def beyond(rates: tuple[float, ...], best: float) -> float | None:
    """One more rate beyond the best, if that is the lowest or highest of several; otherwise None.

    >>> beyond((0.01, 0.1, 1.0), 1.0), beyond((0.01, 0.1, 1.0), 0.01), beyond((0.01, 0.1, 1.0), 0.1)
    (10.0, 0.001, None)
    """
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return None
    next_to_it = ordered[1] if best == ordered[0] else ordered[-2]
    return float(f"{best * best / next_to_it:.6g}")


def _combined(rates: tuple[float, ...], method: Method) -> list[dict[str, Any]]:
    space = {"lr": rates, **method.search}
    return [dict(zip(space, values, strict=True)) for values in product(*space.values())]


def trials(plan: Plan, out: Path, preset: str, method: Method) -> list[Cell]:
    """The trainings of a method's search."""
    if plan.search is None:
        return []
    return _cells(plan, out, preset, method, combinations(plan, out, preset, method))


def _cells(plan: Plan, out: Path, preset: str, method: Method, tried: list[dict[str, Any]]) -> list[Cell]:
    assert plan.search is not None
    return [
        Cell(out, preset, method, plan.search.seed, quarter, changes)
        for changes in tried
        for quarter in plan.search.quarters
    ]


def chosen(plan: Plan, out: Path, preset: str, method: Method) -> dict[str, Any] | None:
    """The best combination on the validation classes; None while some are not finished.

    A combination that failed on a quarter cannot win; an error if all failed.
    """
    if plan.rates_from is not None:
        other = plan.rates_from
        same = next(each for each in other.methods if each.name == method.name)
        return chosen(other, out.parent / other.file.stem, preset, same)
    if plan.search is None:
        return {}
    tried = combinations(plan, out, preset, method)
    cells = _cells(plan, out, preset, method, tried)
    if any(cell.state not in (DONE, FAILED) for cell in cells):
        return None
    best = _best(plan, out, preset, method, tried)
    if best is None:
        first = next(result["error"] for result in (cell.result() or {} for cell in cells) if "error" in result)
        raise UserError(f"every combination of the search failed; the first: {first}")
    return best


def _best(plan: Plan, out: Path, preset: str, method: Method, tried: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The best of those that were tried; None while some are not finished, or if all failed."""
    cells = _cells(plan, out, preset, method, tried)
    if any(cell.state not in (DONE, FAILED) for cell in cells):
        return None
    scores: list[tuple[float, dict[str, Any]]] = []
    for changes in tried:
        results = [cell.result() or {} for cell in cells if cell.changes == changes]
        if not any("error" in result for result in results):
            scores.append((mean(result["recall_at_1"] for result in results), changes))
    return max(scores, key=lambda score: score[0])[1] if scores else None


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
