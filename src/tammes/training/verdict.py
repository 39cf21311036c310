"""The verdict on a training: whether it helped on validation classes, and which candidate is kept.

Candidates come in order of simplicity: the pretrained embedding, closed forms of it, then epochs. A candidate takes the
place of a simpler one only if its gain in R@1 is clear: more than chance gives one time in six. Of the epochs the best
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
REFIT = ", refit"  # of the last epoch
FEWEST_TRAINING = 12  # training classes from which some are held out by default ...
SHARE, SHARE_OF_FEW, MANY = 0.2, 0.25, 20  # ... and this share of them, of fewer than `MANY` the second
SURE = 1.0  # standard errors of many classes that a candidate must be above a simpler one
FEWEST_JUDGED = 2  # validation classes: of a single one every neighbour is right


@dataclass
class Candidates:
    """What has been measured on validation classes so far, class by class, and which candidate is kept.

    Attributes:
        queries: how many each validation class has.
        right: of each candidate, how many of these found their class: the numerators of R@1, class by class.
        kept: the name of the one that is kept; "" before there is any.
    """

    queries: list[int] = field(default_factory=list)
    right: dict[str, list[float]] = field(default_factory=dict)
    kept: str = ""

    def add(self, name: str, queries: list[int], right: list[float]) -> bool:
        """Take in a candidate that is no simpler than those before it; whether it is the one to keep."""
        if self.right and queries != self.queries:
            raise UserError("the validation classes are no longer those that the candidates before were measured on.")
        before, self.queries, self.right[name] = self.right.get(name), queries, right
        if self.kept == name and before is not None:  # measured again, as an epoch that is trained again
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
        """By how much the R@1 of one candidate is above another's, and the standard error over classes.

        The same queries are asked of both, so what is drawn at random is the difference of a class. R@1 is a mean over
        queries, that is a ratio of sums over classes, and this is the standard error of such a ratio. With classes of
        equal size it is that of the mean of the differences.
        """
        queries = np.array(self.queries, dtype=np.float64)
        apart = np.array(self.right[name]) - np.array(self.right[over])
        gain = apart.sum() / queries.sum()
        spread = ((apart - gain * queries) ** 2).sum() * len(queries) / (len(queries) - 1)
        return float(gain), float(sqrt(spread) / queries.sum())

    def is_clear(self, name: str, over: str) -> bool:
        """Whether one candidate is above another by more than chance gives one time in six.

        Few classes may differ alike by chance, so the error is no less than that of the queries that changed, each on
        its own; one more is counted, as two that both changed for the better are nothing yet.
        """
        gain, error = self.gain(name, over)
        changed = np.abs(np.array(self.right[name]) - np.array(self.right[over])).sum()
        return gain > sure(len(self.queries)) * max(error, sqrt(changed + 1) / sum(self.queries))

    def verdict(self) -> dict[str, Any]:
        """The verdict as results.json has it; `run_files.Verdict` says what it holds."""
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
    """Which share of so many training classes is held out by default."""
    if num_classes < FEWEST_TRAINING:
        return 0.0
    return SHARE if num_classes >= MANY else SHARE_OF_FEW


def sure(num_classes: int) -> float:
    """How many standard errors a gain must be above, of so many validation classes.

    An error that is estimated from few classes is often too small, and Student's t says how many of them are as
    unlikely as `SURE` of many: 1.8 of two classes, 1.3 of three, 1.1 of six.
    """
    from scipy.stats import norm, t

    return float(t.ppf(norm.cdf(SURE), max(1, num_classes - 1)))


def candidates_again(said: Mapping[str, Any], what: str, advice: str) -> Candidates:
    """Those that were written down before a run was stopped; the file may have been damaged since."""
    found = Candidates(list(said["queries"]), dict(said["right"]), said["kept"])
    alike = all(len(right) == len(found.queries) for right in found.right.values())
    if not alike or len(found.queries) < FEWEST_JUDGED or not {PRETRAINED, found.kept} <= found.right.keys():
        raise UserError(f"{what} does not say how each candidate did on each validation class. {advice}")
    return found


def not_judged(kept: str) -> dict[str, Any]:
    """The verdict where no classes were held out."""
    return {"kept": kept, "judged": False, "candidates": {}, "gain": None, "gain_interval": None}


def is_epoch(name: str) -> bool:
    """Whether a candidate is an epoch."""
    return name.startswith(EPOCH)


def by_class(
    vectors: Float[ndarray, "items dim"], labels: Integer[ndarray, " items"], **masks: Any
) -> tuple[list[int], list[float]]:
    """Queries of each class, and how many of them have a nearest neighbour of their class.

    Args:
        masks: query, gallery and sequence, as `tammes.metrics.evaluate` has them.
    """
    found = per_query(vectors, labels, ks=(1,), **masks)
    codes = np.unique(labels[found.queries], return_inverse=True)[1].reshape(-1)
    right = np.bincount(codes, weights=found.values["recall_at_1"])
    return np.bincount(codes).tolist(), right.round(6).tolist()


def describe(results: Mapping[str, Any]) -> str:
    """The verdict of results.json in one or two sentences; "" of a run that has none."""
    found = results.get("verdict")
    if found is None:
        return ""
    kept = found["kept"]
    if not found["judged"]:
        said = f"Whether training helped was not judged, as no classes were held out: {kept} is kept."
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
    """What a network is called before training: not pretrained where its weights are random."""
    given = config or {}
    random = given.get("weights") == "none" and not (given.get("init_from") or given.get("continue_from"))
    return "random weights" if random else "pretrained"


def measured_rows(results: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """What results.json has of the test classes, by what it is called: before training, what was kept, and the last
    epoch where that was not kept."""
    titles = {"untrained": before_title(config), "trained": kept_title(results), "last": "last epoch"}
    return {title: results[name] for name, title in titles.items() if results.get(name)}


def kept_title(results: Mapping[str, Any]) -> str:
    """What the row of a run's model is called: not trained where the pretrained embedding was kept."""
    found = results.get("verdict") or {"judged": False}
    return f"kept: {found['kept']}" if found["judged"] else "trained"


def _trained(candidates: Mapping[str, Any]) -> list[str]:
    """The candidates that training made: the epochs, or what took their place, such as ridge."""
    return [name for name in candidates if is_epoch(name)] or list(candidates)[-1:]


def _on_test(results: Mapping[str, Any]) -> str:
    """What the test classes say where nothing else does: a training that hurt does not pass in silence."""
    before, after = ((results.get(name) or {}).get("recall_at_1") for name in ("untrained", "trained"))
    if before is None or after is None or after >= before:
        return ""
    return f" On the test classes its R@1 is {100 * (before - after):.1f} points below the pretrained embedding's."
