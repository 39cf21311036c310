"""The verdict on a training: whether it helped on the validation classes, and which candidate is kept.

Candidates are ordered by simplicity: the pretrained embedding, closed forms of it, then epochs. A candidate replaces a
simpler one only if its gain in R@1 is clear, that is, above what chance gives one time in six. Of the epochs, the best
is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from numpy import ndarray

from tammes.errors import UserError
from tammes.metrics import per_query

PRETRAINED, WHITENED, EPOCH = "pretrained", "whitened", "epoch "
REFIT = ", refit"  # suffix of the last epoch's name after a refit
FEWEST_TRAINING = 12  # training classes from which some are held out by default
SHARE, SHARE_OF_FEW, MANY = 0.2, 0.25, 20  # the share that is held out: SHARE_OF_FEW below MANY classes
SURE = 1.0  # standard errors, for many classes, by which a candidate must exceed a simpler one
FEWEST_JUDGED = 2  # validation classes: with a single class every neighbour is right


@dataclass
class Candidates:
    """The results on the validation classes so far, class by class, and the candidate that is kept.

    Attributes:
        queries: the number of queries of each validation class.
        right: for each candidate, how many queries of each class were right: the numerators of R@1.
        kept: the name of the candidate that is kept; "" initially.
    """

    queries: list[int] = field(default_factory=list)
    right: dict[str, list[float]] = field(default_factory=dict)
    kept: str = ""

    def add(self, name: str, queries: list[int], right: list[float]) -> bool:
        """Add a candidate that is not simpler than the earlier ones. Returns whether it is now the one to keep."""
        if self.right and queries != self.queries:
            raise UserError("the validation classes have changed since the earlier candidates were measured.")
        before, self.queries, self.right[name] = self.right.get(name), queries, right
        if self.kept == name and before is not None:  # an epoch that is trained again after resuming
            better = sum(right) > sum(before)
            self.right[name] = right if better else before
            return better
        among_epochs = is_epoch(self.kept) and is_epoch(name)
        if not self.kept or (self.gain(name, self.kept)[0] > 0 if among_epochs else self.is_clear(name, self.kept)):
            self.kept = name
            return True
        return False

    def recall(self, name: str) -> float:
        """R@1 of a candidate."""
        return sum(self.right[name]) / sum(self.queries)

    def gain(self, name: str, over: str) -> tuple[float, float]:
        """The difference of two candidates in R@1, and its standard error over classes.

        Both have the same queries, so the random variable is the difference of each class. R@1 is a mean over queries,
        a ratio of sums over classes, and this is the standard error of such a ratio. With classes of equal size it is
        the standard error of the mean difference.
        """
        queries = np.array(self.queries, dtype=np.float64)
        apart = np.array(self.right[name]) - np.array(self.right[over])
        gain = apart.sum() / queries.sum()
        spread = ((apart - gain * queries) ** 2).sum() * len(queries) / (len(queries) - 1)
        return float(gain), float(sqrt(spread) / queries.sum())

    def is_clear(self, name: str, over: str) -> bool:
        """Whether the gain of one candidate over another is above what chance gives one time in six.

        With few classes, their differences may agree by chance, so the error is at least that of the queries that
        changed, taken as independent; one more is counted, as two queries that both improved prove nothing.
        """
        gain, error = self.gain(name, over)
        changed = np.abs(np.array(self.right[name]) - np.array(self.right[over])).sum()
        return gain > sure(len(self.queries)) * max(error, sqrt(changed + 1) / sum(self.queries))

    def verdict(self) -> dict[str, Any]:
        """The verdict for results.json; see `run_schema.Verdict`."""
        trained = _trained(self.right)
        best = self.kept if self.kept in trained else max(trained, key=self.recall)
        gain, error = (100 * each for each in self.gain(best, PRETRAINED))
        return {
            "kept": self.kept,
            "judged": True,
            "candidates": {name: {"recall_at_1": self.recall(name)} for name in self.right},
            "gain": gain,
            "gain_interval": [gain - error, gain + error],
        }


def held_out(num_classes: int) -> float:
    """The share of the training classes that is held out by default."""
    if num_classes < FEWEST_TRAINING:
        return 0.0
    return SHARE if num_classes >= MANY else SHARE_OF_FEW


def sure(num_classes: int) -> float:
    """How many standard errors a gain must exceed, given the number of validation classes.

    Errors estimated from few classes are often too small; Student's t gives the number of them that is as unlikely as
    `SURE` with many classes: 1.8 for two classes, 1.3 for three, 1.1 for six.
    """
    from scipy.stats import norm, t

    return float(t.ppf(norm.cdf(SURE), max(1, num_classes - 1)))


def candidates_again(said: Mapping[str, Any], what: str, advice: str) -> Candidates:
    """The candidates of an interrupted run, validated, as the file may be damaged."""
    found = Candidates(list(said["queries"]), dict(said["right"]), said["kept"])
    alike = all(len(right) == len(found.queries) for right in found.right.values())
    if not alike or len(found.queries) < FEWEST_JUDGED or not {PRETRAINED, found.kept} <= found.right.keys():
        raise UserError(f"{what} lacks the results of each candidate on each validation class. {advice}")
    return found


def not_judged(kept: str) -> dict[str, Any]:
    """The verdict without validation classes."""
    return {"kept": kept, "judged": False, "candidates": {}, "gain": None, "gain_interval": None}


def is_epoch(name: str) -> bool:
    """Whether a candidate is an epoch."""
    return name.startswith(EPOCH)


def by_class(
    vectors: Float[ndarray, "items dim"], labels: Integer[ndarray, " items"], **masks: Any
) -> tuple[list[int], list[float]]:
    """The number of queries of each class, and how many of them have a nearest neighbour of their class.

    Args:
        masks: query, gallery and sequence, as in `tammes.metrics.evaluate`.
    """
    found = per_query(vectors, labels, ks=(1,), **masks)
    codes = np.unique(labels[found.queries], return_inverse=True)[1].reshape(-1)
    right = np.bincount(codes, weights=found.values["recall_at_1"])
    return np.bincount(codes).tolist(), right.round(6).tolist()


def describe(results: Mapping[str, Any]) -> str:
    """The verdict of results.json in one or two sentences; "" for a run without one."""
    found = results.get("verdict")
    if found is None:
        return ""
    kept = found["kept"]
    if not found["judged"]:
        said = f"No classes were held out, so it was not measured whether training helped: {kept} is kept."
        return said + _on_test(results)
    gain, (low, _) = found["gain"], found["gain_interval"]
    measured = f"{gain:+.1f} points of R@1"
    error = f"standard error {gain - low:.1f}"
    if kept in _trained(found["candidates"]):
        return f"Training helped on held-out classes ({measured}, {error}): {kept} is kept."
    clearly = "" if gain <= 0 else "clearly "
    told = f"{measured}, {error}" if gain > 0 else measured
    if kept == PRETRAINED:
        return f"Training did not {clearly}help on held-out classes ({told}): the pretrained embedding is kept."
    of_kept = 100 * (found["candidates"][kept]["recall_at_1"] - found["candidates"][PRETRAINED]["recall_at_1"])
    return (
        f"Training did not clearly help more than the closed form on held-out classes ({gain:+.1f} against"
        f" {of_kept:+.1f} points of R@1): the {kept} embedding is kept."
    )


def before_title(config: Mapping[str, Any] | None) -> str:
    """The title of a network before training: not pretrained if its weights are random."""
    given = config or {}
    random = given.get("weights") == "none" and not (given.get("init_from") or given.get("continue_from"))
    return "random weights" if random else "pretrained"


def measured_rows(results: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The test metrics of results.json by title: before training, kept, and the last epoch if it was not kept."""
    titles = {"untrained": before_title(config), "trained": kept_title(results), "last": "last epoch"}
    return {title: results[name] for name, title in titles.items() if results.get(name)}


def kept_title(results: Mapping[str, Any]) -> str:
    """The title of a run's model: not trained if the pretrained embedding was kept."""
    found = results.get("verdict") or {"judged": False}
    return f"kept: {found['kept']}" if found["judged"] else "trained"


def _trained(candidates: Mapping[str, Any]) -> list[str]:
    """The trained candidates: the epochs, or for vectors a closed form such as ridge."""
    return [name for name in candidates if is_epoch(name)] or list(candidates)[-1:]


def _on_test(results: Mapping[str, Any]) -> str:
    """A note if training made the test metrics worse, for runs without validation classes."""
    before, after = ((results.get(name) or {}).get("recall_at_1") for name in ("untrained", "trained"))
    if before is None or after is None or after >= before:
        return ""
    return f" On the test classes its R@1 is {100 * (before - after):.1f} points below the pretrained embedding's."
