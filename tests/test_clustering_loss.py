"""The clustering loss: its search against one that scores every set again, its value, its gradient."""

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from tammes.losses.clustering import ClusteringLoss, clustering_loss
from tests.oracles import SIX, SIX_LABELS, seeded, unit
from tests.oracles_sets import EIGHT, EIGHT_LABELS, SlowClustering, geometric_nmi, random_problem, tied_problem


def test_value_of_six_points() -> None:
    value = ClusteringLoss()(torch.tensor(SIX, dtype=torch.float64), torch.tensor(SIX_LABELS))
    assert value.item() == pytest.approx(1.497323, abs=1e-6)


@pytest.mark.parametrize(("passes", "expected"), [(0, 4.335732), (1, 4.424382), (5, 4.424382)])
def test_value_of_eight_points_that_are_not_on_the_sphere(passes: int, expected: float) -> None:
    value = clustering_loss(torch.tensor(EIGHT, dtype=torch.float64), torch.tensor(EIGHT_LABELS), 1.0, passes)
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_value_and_gradient_equal_those_of_the_slow_search() -> None:
    zeros, refinements = 0, 0
    for seed in range(45):
        points, labels = random_problem(seed)
        gamma, passes = [0.0, 0.3, 1.0, 30.0, 1e4][seed % 5], [0, 1, 5][seed // 5 % 3]
        slow = SlowClustering(unit(points), labels, gamma)
        medoids = slow.search(passes)
        embeddings = torch.tensor(points, dtype=torch.float64, requires_grad=True)
        ours = ClusteringLoss(gamma=gamma, passes=passes)(embeddings, torch.tensor(labels))
        assert ours.item() == pytest.approx(slow.value(medoids), rel=1e-9, abs=1e-9), seed
        theirs = slow.plain(embeddings / embeddings.norm(dim=1, keepdim=True), medoids)
        gradients = [torch.autograd.grad(value, embeddings)[0] for value in (ours, theirs)]
        if theirs.item() > 1e-9:  # at 0 the hinge has a corner
            torch.testing.assert_close(*gradients)
        zeros += theirs.item() == 0
        refinements += passes > 0 and abs(slow.value(slow.search(0)) - slow.value(medoids)) > 1e-6
    assert zeros > 2, "some are 0, and refinement changes some: the problems are of every kind"
    assert refinements > 2


def test_ties_go_to_the_first_image_as_in_the_slow_search() -> None:
    for seed in range(60):
        points, labels = tied_problem(seed)
        gamma = [1.0, 30.0, 1e4][seed % 3]
        slow = SlowClustering(unit(points), labels, gamma)
        value = ClusteringLoss(gamma=gamma)(torch.tensor(points, dtype=torch.float64), torch.tensor(labels)).item()
        assert value == pytest.approx(slow.value(slow.search(5)), rel=1e-9, abs=1e-9), seed


@pytest.mark.parametrize("seed", [0, 1])
def test_larger_batches_equal_the_slow_search(seed: int) -> None:
    embeddings = torch.randn(24, 6, generator=seeded(seed), dtype=torch.float64)
    labels = torch.randint(8, (24,), generator=seeded(seed + 100))
    slow = SlowClustering(unit(embeddings.tolist()), labels.tolist(), 1.0)
    value = ClusteringLoss()(embeddings, labels).item()
    assert value == pytest.approx(slow.value(slow.search(5)), abs=1e-9)
    assert value > 0


def test_the_slow_nmi_is_that_of_scikit_learn() -> None:
    for seed in range(5):
        a, b = (torch.randint(4, (15,), generator=seeded(seed + shift)).tolist() for shift in (0, 1000))
        expected = normalized_mutual_info_score(a, b, average_method="geometric")
        assert geometric_nmi(a, b) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("labels", [[4], [4, 4, 4, 4], [1, 2, 3, 0]], ids=["one image", "one class", "all classes"])
def test_a_batch_with_one_clustering_only_is_exactly_zero_and_has_a_gradient(labels: list[int]) -> None:
    embeddings = torch.randn(len(labels), 3, generator=seeded(0), requires_grad=True)
    value = ClusteringLoss(gamma=1000.0)(embeddings, torch.tensor(labels))
    value.backward()
    assert value.item() == 0
    assert embeddings.grad is not None
    assert embeddings.grad.eq(0).all()


def test_classes_that_are_points_apart_are_exactly_zero() -> None:
    loss = ClusteringLoss()
    for seed in range(5):
        labels = torch.randint(7, (20,), generator=seeded(seed))
        assert loss(torch.eye(7)[labels], labels).item() == loss.minimum == 0


def test_all_images_at_one_place() -> None:
    """No clustering costs anything, and each medoid but the first is alone with itself: sizes 3, 1."""
    value = ClusteringLoss(passes=0)(torch.ones(4, 2, dtype=torch.float64), torch.tensor([0, 0, 1, 1]))
    assert value.item() == pytest.approx(1 - geometric_nmi([0, 0, 1, 1], [0, 1, 0, 0]), abs=1e-9)
