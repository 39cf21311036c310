"""The triplet loss with the global loss: its equation over all triplets, without listing them."""

import pytest
import torch
from torch import Tensor

from tammes.losses.triplet_global import TripletGlobalLoss, global_part, ratio_triplet
from tests.oracles import SIX, SIX_LABELS, seeded, unit
from tests.oracles_sets import all_triplets, global_value, plain_global, random_problem, ratio_mean

SOME = [(0, 1, 2), (2, 3, 1), (4, 5, 0), (1, 0, 2), (3, 2, 1), (5, 4, 0)]


def squares(points: list[list[float]], chosen: list[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
    x, (a, p, n) = torch.tensor(points, dtype=torch.float64), torch.tensor(chosen).T
    return (x[a] - x[p]).square().sum(1), (x[a] - x[n]).square().sum(1)


def test_the_parts_of_six_triplets() -> None:
    to_positive, to_negative = squares(unit(SIX), SOME)
    ratio, rest = ratio_triplet(to_positive, to_negative, 0.01).mean(), global_part(to_positive, to_negative, 0.8, 0.4)
    assert ratio.item() == pytest.approx(0.457607, abs=1e-6)
    assert rest.item() == pytest.approx(0.427210, abs=1e-6)
    assert (ratio + rest).item() == pytest.approx(0.884817, abs=1e-6)
    assert ratio_mean(unit(SIX), SOME) == pytest.approx(0.457607, abs=1e-6)
    assert global_value(unit(SIX), SOME) == pytest.approx(0.427210, abs=1e-6)


def test_value_of_six_points_over_all_their_triplets() -> None:
    value = TripletGlobalLoss()(torch.tensor(SIX, dtype=torch.float64), torch.tensor(SIX_LABELS))
    chosen = all_triplets(SIX_LABELS)
    assert ratio_mean(unit(SIX), chosen) == pytest.approx(0.147850, abs=1e-6)
    assert value.item() == pytest.approx(0.147850 + global_value(unit(SIX), chosen), abs=1e-6)


@pytest.mark.parametrize("options", [(0.01, 0.8, 0.4, 1.0), (0.5, 2.0, 1.0, 0.0), (0.1, 0.1, 0.05, 3.0)])
@pytest.mark.parametrize("seed", [seed for seed in range(7) if all_triplets(random_problem(seed)[1]) and seed % 3])
def test_value_and_gradient_equal_the_equation(seed: int, options: tuple[float, float, float, float]) -> None:
    points, labels = random_problem(seed)
    margin, weight, gap, gamma = options
    embeddings = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    loss = TripletGlobalLoss(margin=margin, weight=weight, gap=gap, gamma=gamma)
    ours, theirs = loss(embeddings, torch.tensor(labels)), plain_global(embeddings, all_triplets(labels), *options)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(value, embeddings)[0] for value in (ours, theirs)))
    expected = gamma * ratio_mean(unit(points), all_triplets(labels), margin)
    expected += global_value(unit(points), all_triplets(labels), weight, gap)
    assert ours.item() == pytest.approx(expected, abs=1e-12)


def test_a_pair_counts_as_often_as_there_are_triplets_with_it() -> None:
    values = torch.tensor([0.4, 1.2, 2.0]), torch.tensor([1.0, 3.0])
    repeated = torch.tensor([0.4, 0.4, 1.2, 2.0, 2.0, 2.0]), torch.tensor([1.0, 3.0, 3.0, 3.0, 3.0, 1.0])
    counts = torch.tensor([2, 1, 3]), torch.tensor([2, 4])
    weighted = global_part(*values, 0.8, 0.4, positive_counts=counts[0], negative_counts=counts[1])
    torch.testing.assert_close(weighted, global_part(*repeated, 0.8, 0.4))
    assert (weighted - global_part(*values, 0.8, 0.4)).abs() > 1e-3


@pytest.mark.parametrize("labels", [[4], [4, 4, 4], [1, 2, 3]], ids=["one image", "one class", "no two of a class"])
def test_a_batch_without_a_triplet_is_zero_and_has_a_gradient(labels: list[int]) -> None:
    embeddings = torch.randn(len(labels), 3, generator=seeded(0), requires_grad=True)
    value = TripletGlobalLoss()(embeddings, torch.tensor(labels))
    value.backward()
    assert value.item() == 0
    assert embeddings.grad is not None
    assert embeddings.grad.eq(0).all()


def test_nothing_is_larger_than_all_pairs_of_a_batch() -> None:
    """300 images in classes of 30 have 2 million triplets."""
    embeddings, labels = torch.randn(300, 4, generator=seeded(0), requires_grad=True), torch.arange(300) // 30
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        TripletGlobalLoss()(embeddings, labels).backward()
    assert 300 * 300 <= max(kept) <= 300 * 301


def test_least_where_classes_are_points_equally_far_apart() -> None:
    corners = torch.eye(4).repeat_interleave(3, 0)
    loss = TripletGlobalLoss()
    assert loss(corners, torch.arange(12) // 3).item() == pytest.approx(loss.minimum, abs=1e-6)
    assert loss(torch.ones(12, 4), torch.arange(12) // 3).item() == pytest.approx(1 + 0.8 * 0.4, abs=1e-6)
