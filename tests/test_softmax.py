"""The usual classifier: cross-entropy of the class layer's outputs."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tammes import UserError
from tammes.losses import LOSSES, SoftmaxLoss
from tests.oracles import seeded

OUTPUTS = torch.randn(7, 4, generator=seeded(0), dtype=torch.float64)
LABELS = torch.tensor([0, 3, 3, 1, 2, 0, 1])


def by_hand(outputs: Tensor, labels: Tensor) -> float:
    total = 0.0
    for row, label in zip(outputs.tolist(), labels.tolist(), strict=True):
        shifted = np.array(row) - max(row)
        total += np.log(np.exp(shifted).sum()) - shifted[label]
    return total / len(labels)


def test_value() -> None:
    assert SoftmaxLoss(4)(OUTPUTS, LABELS).item() == pytest.approx(by_hand(OUTPUTS, LABELS), abs=1e-12)


def test_gradient_is_probability_less_truth() -> None:
    outputs = OUTPUTS.clone().requires_grad_()
    SoftmaxLoss(4)(outputs, LABELS).backward()
    expected = (OUTPUTS.softmax(1) - torch.eye(4, dtype=torch.float64)[LABELS]) / 7
    assert outputs.grad is not None
    torch.testing.assert_close(outputs.grad, expected)


def test_length_of_the_outputs_matters_and_large_ones_do_not_overflow() -> None:
    loss = SoftmaxLoss(4)
    assert loss(10 * OUTPUTS, LABELS) != loss(OUTPUTS, LABELS)
    assert loss(1e6 * OUTPUTS, LABELS).isfinite()


def test_half_precision_is_summed_in_full() -> None:
    assert SoftmaxLoss(4)(OUTPUTS.half(), LABELS).dtype == torch.float32


def test_nothing_of_its_own_trains_and_its_minimum_is_approached() -> None:
    loss = LOSSES["softmax"](4)
    assert list(loss.parameters()) == []
    assert 0 <= loss(1e3 * torch.eye(4), torch.arange(4)).item() - float(loss.minimum) < 1e-9  # type: ignore[arg-type]


def test_errors() -> None:
    with pytest.raises(UserError, match=r"softmax needs at least 2 classes, got 1\."):
        SoftmaxLoss(1)
    with pytest.raises(UserError, match=r"must have shape \(batch, 4\), got \(7, 3\)"):
        SoftmaxLoss(4)(OUTPUTS[:, :3], LABELS)
    with pytest.raises(UserError, match=r"label 4 \(row 0 of the batch\) is outside 0\.\.3"):
        SoftmaxLoss(4)(OUTPUTS, LABELS + 4)
