"""The benchmark of complexity: its naive methods against loops, its fits, what it keeps and what it leaves out."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, permutations
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import complexity
from benchmarks.complexity import Axis, Method, Options, all_pairs, all_triplets, semi_hard
from benchmarks.timing import medians
from tammes.benchmark.published import published_table
from tammes.bound import num_triplets, triplet_loss
from tammes.errors import UserError
from tammes.losses import LOSSES

pytestmark = pytest.mark.slow  # of scripts in benchmarks/, not of the package

LABELS = torch.tensor([2, 0, 0, 1, 2, 0, 1, 2, 2, 5])  # of different sizes, one of them alone, not in order


@pytest.fixture
def embeddings() -> Tensor:
    drawn = torch.randn(len(LABELS), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return nn.functional.normalize(drawn)


def apart(embeddings: Tensor, first: int, second: int) -> Tensor:
    return (embeddings[first] - embeddings[second]).square().sum().sqrt()


def looped(value: Callable[[Tensor], Tensor], embeddings: Tensor) -> tuple[float, Tensor]:
    """A loop's value and its gradient by autograd."""
    given = embeddings.clone().requires_grad_()
    found = value(given)
    return found.item(), torch.autograd.grad(found, given)[0]


def triplets() -> Iterator[tuple[int, int, int]]:
    for i, j, k in permutations(range(len(LABELS)), 3):
        if LABELS[i] == LABELS[j] != LABELS[k]:
            yield i, j, k


@pytest.mark.parametrize("side", [1, 4, 512])
def test_all_pairs_are_a_loop_over_them(embeddings: Tensor, side: int) -> None:
    def loop(given: Tensor) -> Tensor:
        total = given.new_zeros(())
        for i, j in combinations(range(len(LABELS)), 2):
            d = apart(given, i, j)
            total = total + (d**2 / 2 if LABELS[i] == LABELS[j] else (1.2 - d).clamp(min=0) ** 2 / 2)
        return total

    value, gradient = looped(loop, embeddings)
    found = all_pairs(embeddings, LABELS, margin=1.2, side=side)
    assert found[0] == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(found[1], gradient)


@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_all_triplets_are_a_loop_over_them(embeddings: Tensor, block: int) -> None:
    value, gradient = looped(
        lambda given: torch.stack([apart(given, i, j) - apart(given, i, k) for i, j, k in triplets()]).sum(), embeddings
    )
    found = all_triplets(embeddings, LABELS, block=block)
    assert found[0] == pytest.approx(value, rel=1e-12)
    assert found[0] == pytest.approx(triplet_loss(embeddings, LABELS).item(), rel=1e-12)
    torch.testing.assert_close(found[1], gradient)


def test_every_triplet_is_visited_by_itself(embeddings: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    visited = []
    summed = Tensor.sum

    def counted(each: Tensor, *more: Any, **named: Any) -> Tensor:
        if each.ndim == 3:
            visited.append(each.numel())
        return summed(each, *more, **named)

    monkeypatch.setattr(Tensor, "sum", counted)
    all_triplets(embeddings, LABELS, block=40)
    assert sum(visited) == num_triplets(LABELS) == len(list(triplets()))
    assert max(visited) <= 40  # in blocks: the largest class alone has 72


def test_semi_hard_is_a_loop_over_the_positive_pairs(embeddings: Tensor) -> None:
    kinds = set()

    def loop(given: Tensor) -> Tensor:
        values = []
        for i, j in permutations(range(len(LABELS)), 2):
            if LABELS[i] != LABELS[j]:
                continue
            positive = apart(given, i, j) ** 2
            negatives = [apart(given, i, k) ** 2 for k in range(len(LABELS)) if LABELS[k] != LABELS[i]]
            farther = [each for each in negatives if each > positive]
            kinds.add(bool(farther))
            values.append((positive - (min(farther) if farther else max(negatives)) + 0.5).clamp(min=0))
        return torch.stack(values).mean()

    value, gradient = looped(loop, embeddings)
    assert kinds == {True, False}  # both rules are met
    found = looped(lambda given: semi_hard(given, LABELS, margin=0.5), embeddings)
    assert found[0] == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(found[1], gradient)


def test_nearest_mean_is_cross_entropy_over_squared_distances_to_the_class_means(embeddings: Tensor) -> None:
    labels = LABELS.clamp(max=2)
    means = complexity.class_means(embeddings, labels, 3)
    for label in range(3):
        torch.testing.assert_close(means[label], embeddings[labels == label].mean(dim=0))
    total = 0.0
    for point, own in zip(embeddings, labels.tolist(), strict=True):
        logits = [-(point - mean).square().sum().item() for mean in means]
        total += log(sum(exp(each) for each in logits)) - logits[own]
    found = complexity.nearest_mean(embeddings, labels, means).item()
    assert found == pytest.approx(total / len(labels), rel=1e-12)


def test_the_means_are_taken_once_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], complexity.class_means

    def counted(whole: Tensor, labels: Tensor, classes: int) -> Tensor:
        seen.append(len(whole))
        return real(whole, labels, classes)

    monkeypatch.setattr(complexity, "class_means", counted)
    epoch = complexity.centroids(24, 4, Options(dim=5, batch=8))
    seen.clear()
    epoch()
    assert seen == [24, 24, 24]  # the whole set each time


def test_an_epoch_sees_every_image_once_and_leaves_no_gradient_behind() -> None:
    weight, seen = torch.ones(5, requires_grad=True), []

    def value(embeddings: Tensor, labels: Tensor) -> Tensor:
        assert weight.grad is None
        assert embeddings.is_leaf
        seen.append(labels.tolist())
        return (embeddings @ weight).sum()

    complexity.in_batches(value, complexity.cyclic(10, 4), Options(dim=5, batch=4), weight)()
    assert seen == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]]


def test_the_rows_are_the_papers_in_its_order_then_ours() -> None:
    names = [method.name for method in complexity.methods()]
    paper = list(published_table("complexity").rows)
    assert names[: len(paper)] == paper
    assert names[len(paper) :] == ["Discriminative, 256 classes sampled", "Hard-discriminative"]


@pytest.mark.parametrize("method", complexity.methods(), ids=lambda method: method.name)
def test_the_sizes_can_be_run(method: Method) -> None:
    batch = Options().batch
    for axis in (method.over_n, method.over_c):
        assert list(axis.sizes) == sorted(set(axis.sizes))
        assert len(axis.sizes) > 2
    assert all(size % batch == 0 for size in (*method.over_n.sizes, method.over_c.at))
    if not isinstance(method.epoch, str):
        method.epoch(256, 8 if "sampled" not in method.name else 512, Options(dim=4))()


def test_the_exponents_of_n_and_c_together() -> None:
    images, classes = [1, 2, 4], [10, 20, 80]
    seconds = [[3e-9 * n**1.1 * c**0.9 for c in classes] for n in images]
    assert complexity.joint_exponents(images, classes, seconds) == pytest.approx((1.1, 0.9, 0), abs=1e-12)
    seconds[1][1] *= 1.5  # in the middle of N: p stays, and most of it is residual
    over_n, over_c, residual = complexity.joint_exponents(images, classes, seconds)
    assert over_n == pytest.approx(1.1)
    assert over_c != pytest.approx(0.9)
    assert 0.3 < residual < log(1.5)


def tiny(name: str = "Discriminative", **more: Any) -> Method:
    axis = Axis((16, 32, 64), 16, 1)
    return Method(name, **{"epoch": complexity.discriminative, "over_n": axis, "over_c": axis, **more})


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr(complexity, "GRID", ((8, 16, 32), (4, 8, 16)))
    monkeypatch.setattr(complexity, "methods", lambda: [tiny(), tiny("Softmax", epoch=complexity.softmax)])
    return Options(dim=4, batch=8, rounds=3, json=tmp_path / "new" / "complexity.json")


def ran(options: Options) -> Any:
    complexity.main(options)
    return json.loads(options.json.read_text())


def test_what_is_written_and_shown(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    found = ran(options)
    assert (found["dim"], found["batch"], found["machine"]["threads"]) == (4, 8, 1)
    row = found["rows"][0]
    assert (row["method"], row["paper"], row["expected_n"], row["expected_c"]) == ("Discriminative", "O(NC)", 1, 1)
    for axis in (row["over_n"], row["over_c"]):
        assert (axis["at"], axis["sizes"], axis["left_out"]) == (16, [16, 32, 64], [])
        upper = [log(each) for each in axis["seconds"][1:]]
        assert axis["exponent"] == pytest.approx((upper[1] - upper[0]) / log(2))
    grid = found["grid"]
    fit = complexity.joint_exponents(grid["n"], grid["c"], grid["seconds"])
    assert (grid["exponent_n"], grid["exponent_c"], grid["largest_residual"]) == pytest.approx(fit)
    shown = " ".join(capsys.readouterr().out.split())
    assert "over N, C = 16 16: " in shown
    assert "Discriminative, N 8-32 and C 4-16 together: time grows with N^" in shown


def test_what_is_there_is_not_measured_again_unless_asked(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ran(options)
    measured = []
    real = medians

    def counted(steps: dict[str, Any], *more: Any, **named: Any) -> dict[str, float]:
        measured.append(len(steps))
        return real(steps, *more, **named)

    monkeypatch.setattr(complexity, "medians", counted)
    again = ran(options)
    assert measured == []
    assert (again["rows"], again["grid"]) == (first["rows"], first["grid"])
    ran(replace(options, again=True, only=("DISC",)))
    assert measured == [3, 3]
    ran(replace(options, again=True, only=("grid",)))
    assert measured == [3, 3, 9]
    monkeypatch.setattr(complexity, "methods", lambda: [tiny(over_c=Axis((8, 16, 32), 16, 1)), tiny("Softmax")])
    ran(options)  # other sizes
    assert measured == [3, 3, 9, 3, 3]
    ran(replace(options, rounds=6))  # other options: everything
    assert measured == [3, 3, 9, 3, 3, 3, 3, 3, 3, 9]


def test_rows_of_other_options_are_not_lost_for_a_part(options: Options) -> None:
    before = ran(options)
    with pytest.raises(UserError) as refusal:
        complexity.main(replace(options, dim=5, only=("soft",)))
    assert str(refusal.value) == (
        f"{options.json} holds rows of other options or of another machine, and --only would lose them."
        " Leave out --only, or write to another file with --json."
    )
    assert json.loads(options.json.read_text()) == before


def sleeping(cost: Callable[[int, int], float], clock: list[float]) -> Callable[[int, int, Options], Any]:
    """A method whose epochs take what `cost` says, by a clock that is not the wall's."""

    def epoch(images: int, classes: int, _: Options) -> Any:
        def run() -> None:
            clock[0] += cost(images, classes)

        return run

    return epoch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(complexity, "perf_counter", lambda: now[0])
    monkeypatch.setattr("benchmarks.timing.time.perf_counter", lambda: now[0])
    return now


def test_sizes_above_the_limit_are_left_out_before_they_are_run(options: Options, clock: list[float]) -> None:
    asked = []

    def cost(images: int, classes: int) -> float:
        asked.append((images, classes))
        return images**3 / classes / 1000

    method = tiny(
        "Trip.-naive",
        epoch=sleeping(cost, clock),
        over_n=Axis((10, 20, 30, 40), 8, 3),
        over_c=Axis((4, 8, 16, 32), 20, -1),
    )
    row = complexity.make_row(method, replace(options, limit=4.0))
    assert (row["over_n"]["sizes"], row["over_n"]["left_out"]) == ([10, 20, 30], [40])
    assert row["over_n"]["seconds"] == pytest.approx([1 / 8, 1, 27 / 8])
    assert row["over_n"]["exponent"] == pytest.approx(3)
    assert row["over_c"]["exponent"] == pytest.approx(-1)
    assert (40, 8) not in asked
    assert row["note"] == "N = 40 left out: over 4 s an epoch, measured or foreseen"
    row = complexity.make_row(method, replace(options, limit=1.0))
    assert (row["over_c"]["sizes"], row["over_c"]["left_out"]) == ([8, 16, 32], [4])  # few classes cost most
    assert row["over_n"]["exponent"] is None
    assert row["note"] == (
        "N = 30, 40 left out: over 1 s an epoch, measured or foreseen; too few sizes for an exponent in N;"
        " C = 4 left out: over 1 s an epoch, measured or foreseen"
    )


def test_a_size_that_is_slower_than_foreseen_is_left_out_too(options: Options, clock: list[float]) -> None:
    method = tiny(epoch=sleeping(lambda images, _: float(images > 20), clock))
    found = complexity.measure(method, "over_n", replace(options, limit=0.5))
    assert (found["sizes"], found["left_out"]) == ([16], [32, 64])


def test_an_exponent_between_two_is_shown_as_such(
    options: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = tiny("Centroids", over_c=Axis((8, 16, 32), 16, (0, 1)))
    monkeypatch.setattr(complexity, "methods", lambda: [method])
    assert ran(options)["rows"][0]["expected_c"] == [0, 1]
    assert "0 to 1" in capsys.readouterr().out


def test_a_method_whose_loss_is_not_there_yet_says_so_and_comes_alive_with_it(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("proxy-nca", "proxy"):
        monkeypatch.delitem(LOSSES, name, raising=False)

    def row() -> Any:
        method = tiny("Trip.-proxy", epoch=complexity.of_a_loss("proxy-nca", "proxy"))
        monkeypatch.setattr(complexity, "methods", lambda: [method])
        return ran(options)["rows"][0]

    absent = row()
    assert (absent["paper"], absent["over_n"], absent["over_c"]) == ("O(NP^2)", None, None)
    assert absent["note"] == "not there yet: tammes.losses has none of proxy-nca, proxy"

    made = []

    class Proxies(nn.Module):
        def __init__(self, num_classes: int, dim: int, *, scale: float = 1.0) -> None:
            super().__init__()
            made.append((num_classes, dim, scale))
            self.proxies = nn.Parameter(torch.ones(num_classes, dim))

        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(embeddings @ self.proxies.T, labels)

    monkeypatch.setitem(LOSSES, "proxy", Proxies)
    present = row()
    assert present["over_n"]["sizes"] == [16, 32, 64]
    assert present["note"] == ""
    assert made == [(16, 4, 1.0)] * 3 + [(16, 4, 1.0), (32, 4, 1.0), (64, 4, 1.0)]

    class Strange(nn.Module):
        def __init__(self, num_classes: int, colour: str) -> None:  # noqa: ARG002
            super().__init__()

    monkeypatch.setitem(LOSSES, "proxy-nca", Strange)
    assert complexity.of_a_loss("proxy-nca", "proxy") == (
        "tammes.losses has proxy-nca, but what colour should be is not known here"
    )
