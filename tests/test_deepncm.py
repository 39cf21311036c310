"""DeepNCM: the nearest class mean, and the three ways in which the means follow the network."""

import pytest
import torch
from torch import Tensor

from tammes import UserError
from tammes.losses.deepncm import DeepNCMLoss, Form
from tests.oracles import seeded
from tests.oracles_points import POINTS, X, Y, gradients, nearest_mean, problem, with_points

FORMS: list[Form] = ["condensation", "online", "decay"]


def with_means(loss: DeepNCMLoss, means: Tensor, images: int = 1) -> DeepNCMLoss:
    with_points(loss, "means", means)
    loss.counts.fill_(images)
    return loss


def batches(count: int, classes: int = 4, dim: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [problem(5, classes, dim, seed)[:2] for seed in range(count)]


def test_toy() -> None:
    loss = with_means(DeepNCMLoss(3, 2, form="decay"), POINTS)
    assert loss(X, Y).item() == pytest.approx(0.410518, abs=1e-6)
    assert loss.means[1, 0].item() == pytest.approx(0.185, abs=1e-6)
    assert loss(X, Y).item() == pytest.approx(0.410600, abs=1e-6)


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), [(1, 2, 2, 0), (7, 5, 4, 10), (24, 8, 6, 20)])
@pytest.mark.parametrize("form", FORMS)
def test_equals_its_equation_with_the_old_means(batch: int, classes: int, dim: int, seed: int, form: Form) -> None:
    x, y, means = problem(batch, classes, dim, seed)
    loss = with_means(DeepNCMLoss(classes, dim, form=form), means)
    # The backward comes when the means have moved on.
    torch.testing.assert_close(gradients(lambda z: loss(z, y), x), gradients(lambda z: nearest_mean(z, y, means), x))
    assert not torch.equal(loss.means, means)


def test_online_means_are_those_of_all_images_so_far() -> None:
    loss, seen = DeepNCMLoss(4, 3, form="online").double(), batches(8)
    for x, y in seen:
        loss(x, y)
    everything, labels = torch.cat([x for x, _ in seen]), torch.cat([y for _, y in seen])
    assert set(labels.tolist()) == {0, 1, 2, 3}
    for label in range(4):
        torch.testing.assert_close(loss.means[label], everything[labels == label].mean(0))
    assert loss.counts.tolist() == labels.bincount(minlength=4).tolist()


def test_condensation_makes_the_past_count_as_one_image() -> None:
    loss = with_means(DeepNCMLoss(4, 3, every=3), problem(1, 4, 3, 99)[2], images=7)
    means, counts = loss.means.tolist(), [7] * 4
    for call, (x, y) in enumerate(batches(8), start=1):
        loss(x, y)
        for image, label in zip(x.tolist(), y.tolist(), strict=True):
            counts[label] += 1
            means[label] = [u + (v - u) / counts[label] for u, v in zip(means[label], image, strict=True)]
        if call in (3, 6):
            counts = [1] * 4
        torch.testing.assert_close(loss.means, torch.tensor(means, dtype=torch.float64))
        assert loss.counts.tolist() == counts


def test_decay_forgets_and_classes_not_in_the_batch_stay() -> None:
    means = problem(1, 4, 3, 99)[2]
    loss = with_means(DeepNCMLoss(4, 3, form="decay", decay=0.7), means)
    for x, y in batches(8):
        loss(x, y)
        for label in set(y.tolist()):
            means[label] = 0.7 * means[label] + 0.3 * x[y == label].mean(0)
        torch.testing.assert_close(loss.means, means)


@pytest.mark.parametrize("form", FORMS)
def test_a_class_begins_at_its_mean_in_the_first_batch_that_has_it(form: Form) -> None:
    loss = DeepNCMLoss(3, 2, form=form).double()
    means = torch.stack([X[:2].mean(0), X[2:4].mean(0), torch.zeros(2)])  # the third is not known yet
    assert loss(X[:4], Y[:4]).item() == pytest.approx(nearest_mean(X[:4], Y[:4], means).item(), abs=1e-12)
    torch.testing.assert_close(loss.means, means)
    assert loss.counts.tolist() == [2, 2, 0]
    means[2] = X[5]
    assert loss(X[5:], Y[5:]).item() == pytest.approx(nearest_mean(X[5:], Y[5:], means).item(), abs=1e-12)
    torch.testing.assert_close(loss.means, means)


def test_a_class_never_seen_is_not_made_known_by_condensation() -> None:
    loss = DeepNCMLoss(3, 2, every=1)
    loss(X[:4].float(), Y[:4])
    assert loss.counts.tolist() == [1, 1, 0]


@pytest.mark.parametrize("form", FORMS)
def test_look_begins_with_the_means_of_all_images(form: Form) -> None:
    loss = DeepNCMLoss(3, 2, form=form).double()
    for _ in range(5):
        loss(-X, Y)
    labels = torch.tensor([0, 0, 0, 2, 2, 2])
    loss.look(X, labels, generator=seeded(0))
    torch.testing.assert_close(loss.means, torch.stack([X[:3].mean(0), torch.zeros(2).double(), X[3:].mean(0)]))
    assert loss.counts.tolist() == [3, 0, 3]
    assert loss.calls.item() == 0


@pytest.mark.parametrize("form", FORMS)
def test_evaluation_moves_nothing(form: Form) -> None:
    loss = DeepNCMLoss(3, 2, form=form).double()
    loss(X[:4], Y[:4])
    before = {name: each.clone() for name, each in loss.state_dict().items()}
    value = loss.eval()(X, Y)
    assert value.item() == pytest.approx(nearest_mean(X, Y, loss.means).item(), abs=1e-12)
    assert all(torch.equal(before[name], each) for name, each in loss.state_dict().items())


def test_nothing_of_its_own_trains_and_all_is_saved() -> None:
    loss = DeepNCMLoss(3, 2)
    assert list(loss.parameters()) == []
    loss(X.float(), Y)
    other = DeepNCMLoss(3, 2)
    other.load_state_dict(loss.state_dict())
    for _ in range(3):
        assert other(X.float(), Y) == loss(X.float(), Y)


def test_logits_are_negative_squared_distances() -> None:
    loss = with_means(DeepNCMLoss(3, 2), POINTS)
    apart = torch.stack([(X - mean).square().sum(1) for mean in POINTS], dim=1)  # (6, 3)
    torch.testing.assert_close(loss.get_logits(X), -apart)


def test_minimum_is_approached() -> None:
    loss = with_means(DeepNCMLoss(2, 1), torch.tensor([[20.0], [-20.0]]))
    assert 0 <= loss(torch.tensor([[20.0], [-20.0]]), torch.tensor([0, 1])).item() - loss.minimum < 1e-9


def test_bad_batches_move_nothing() -> None:
    loss = DeepNCMLoss(3, 2)
    with pytest.raises(UserError, match=r"^label 3 \(row 4 of the batch\) is outside 0..2 of 3 classes."):
        loss(X.float(), Y + torch.tensor([0, 0, 0, 0, 1, 0]))
    with pytest.raises(UserError, match=r"^label 5 \(row 4 of the batch\) is outside 0..2 of 3 classes."):
        loss.look(X.float(), Y + torch.tensor([0, 0, 0, 0, 3, 0]), generator=seeded(0))
    with pytest.raises(UserError, match=r"^embeddings must have shape \(batch, 2\), got \(6, 1\).$"):
        loss(X[:, :1].float(), Y)
    assert loss.means.eq(0).all()
    assert loss.counts.eq(0).all()
