"""The histogram loss."""

import pytest
import torch

from tammes import UserError
from tammes.losses.histogram import HistogramLoss
from tests.oracles import seeded
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, assert_equals, histogram, problem


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("step", [0.05, 0.4, 1.0])
def test_value_and_gradient_equal_the_equation(sizes: list[int], step: float) -> None:
    assert_equals(HistogramLoss(step=step), histogram(step), *problem(sizes))


def test_toy() -> None:
    assert HistogramLoss(step=0.2)(TOY, TOY_LABELS).item() == pytest.approx(0.253114, abs=1e-6)
    assert HistogramLoss()(TOY, TOY_LABELS).item() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # theirs
def test_equal_to_pytorch_metric_learning_away_from_1() -> None:
    from pytorch_metric_learning.losses import HistogramLoss as Theirs

    results = []
    for loss in (HistogramLoss(step=0.02), Theirs(n_bins=100)):
        x, labels = problem([5, 4, 3, 6], dim=5)
        value = loss(x.requires_grad_(), labels)
        results.append((value.detach(), torch.autograd.grad(value, x)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)  # theirs counts in float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [0.01, 0.5, 2.0])
def test_a_cosine_of_1_and_a_bit_above_and_of_minus_1(dtype: torch.dtype, step: float) -> None:
    """Each of 40 directions three times, and its opposite: among so many cosines some round above 1."""
    half = torch.randn(40, 50, generator=seeded(0), dtype=dtype)
    x = torch.cat([half, half, half, -half]).requires_grad_()
    unit = torch.nn.functional.normalize(x.detach())
    assert (unit @ unit.T).max() > 1
    value = HistogramLoss(step=step)(x, torch.arange(160) % 40)
    value.backward()
    assert 0 <= value.item() <= 1 + 1e-6
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_every_positive_pair_coincides_and_every_negative_is_opposite() -> None:
    x = torch.tensor([[0.6, 0.8], [0.6, 0.8], [-0.6, -0.8]], requires_grad=True)
    loss = HistogramLoss()
    assert loss(x, torch.tensor([0, 0, 1])).item() == loss.minimum == 0
    assert loss(x, torch.tensor([0, 1, 0])).item() == pytest.approx(1.0, abs=1e-6)


def test_it_is_the_probability_that_a_negative_pair_is_more_alike_than_a_positive_one() -> None:
    x, labels = problem([6, 7, 5], dim=4)
    unit = torch.nn.functional.normalize(x)
    cosine = unit @ unit.T
    same, upper = labels[:, None] == labels, torch.ones(18, 18).triu(1).bool()
    positive, negative = cosine[same & upper], cosine[~same & upper]
    probability = (negative[:, None] > positive).double().mean().item()
    assert 0.2 < probability < 0.8
    assert HistogramLoss(step=1e-4)(x, labels).item() == pytest.approx(probability, abs=1e-3)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]])
def test_with_one_kind_of_pairs_the_loss_is_zero(labels: list[int]) -> None:
    x = TOY.clone().requires_grad_()
    value = HistogramLoss()(x, torch.tensor(labels))
    value.backward()
    assert value.item() == 0
    assert x.grad is not None
    assert x.grad.eq(0).all()


@pytest.mark.parametrize(
    ("step", "nearest"),
    [(0.3, " The nearest is 0.285714."), (1.5, " The nearest is 2."), (0.0, ""), (2.5, ""), (float("nan"), "")],
)
def test_a_step_that_does_not_fit(step: float, nearest: str) -> None:
    with pytest.raises(
        UserError, match=rf"^step must be 2 divided by a whole number, as 0.01 or 0.02 are, got {step}\.{nearest}$"
    ):
        HistogramLoss(step=step)


@pytest.mark.parametrize(("step", "bins"), [(2.0, 1), (2 / 3, 3), (0.1, 20), (0.01, 200)])
def test_steps_that_fit(step: float, bins: int) -> None:
    assert HistogramLoss(step=step).bins == bins
