"""Smart mining: which triplets are mined, how hard they are, what a batch of them costs, and that all of it is kept."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tammes import UserError
from tammes.data.samplers import turns
from tammes.losses.mining import TWIN, random_triplets, smart_triplets, squared_distances_of
from tammes.losses.triplet_smart import SmartMiningLoss
from tests.oracles import SIX, SIX_LABELS, seeded, unit, unit_points
from tests.oracles_sets import (
    first_places,
    global_value,
    mining_lists,
    plain_global,
    random_problem,
    ratio_mean,
    squared,
)

HARDEST = [(0, 1, 2), (1, 0, 2), (2, 3, 1), (3, 2, 1), (4, 5, 3), (5, 4, 0)]


def tensor(points: list[list[float]]) -> Tensor:
    return torch.tensor(points, dtype=torch.float64)


def mined(
    points: list[list[float]], labels: list[int], hardness: float, neighbours: int = 256, seed: int = 0
) -> Tensor:
    return smart_triplets(
        tensor(points), torch.tensor(labels), hardness=hardness, neighbours=neighbours, generator=seeded(seed)
    )


def looked(loss: SmartMiningLoss, points: list[list[float]], labels: list[int], seed: int = 0) -> SmartMiningLoss:
    loss.look(tensor(points), torch.tensor(labels), generator=seeded(seed))
    return loss


# Mining


def test_the_hardest_triplets_of_six_points() -> None:
    assert mined(unit(SIX), SIX_LABELS, 1.0).tolist() == [list(each) for each in HARDEST]


@pytest.mark.parametrize("hardness", [1.0, 0.55, 0.2, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_each_anchor_draws_from_the_hardest_of_its_candidates(seed: int, hardness: float) -> None:
    points, labels = random_problem(seed, most=30)
    points, neighbours = unit(points), [1, 3, 256][seed % 3]
    found = {a: (p, n) for a, p, n in mined(points, labels, hardness, neighbours, seed).tolist()}
    for anchor in range(len(labels)):
        positive, negative = mining_lists(points, labels, anchor, neighbours, TWIN)
        assert (anchor in found) == (positive != [] and negative != [])
        if anchor in found:
            p, n = found[anchor]
            assert p in positive
            assert n in negative
            assert positive.index(p) < first_places(len(positive), hardness)
            assert negative.index(n) < first_places(len(negative), hardness)


def test_every_candidate_is_drawn_and_equally_often() -> None:
    """(1 - 0.7) * 20 is a little above 6 in floating point; the seventh must not be drawn."""
    points, labels = unit_points(480, 3, seed=0).tolist(), (torch.arange(480) // 4).tolist()
    lists = [mining_lists(points, labels, anchor, 20, TWIN) for anchor in range(480)]
    for hardness, places in [(0.0, (3, 20)), (0.45, (2, 11)), (0.7, (1, 6)), (1.0, (1, 1))]:
        triplets = [triplet for seed in range(3) for triplet in mined(points, labels, hardness, 20, seed).tolist()]
        for side, count in enumerate(places):
            drawn = Counter(lists[triplet[0]][side].index(triplet[1 + side]) for triplet in triplets)
            assert sorted(drawn) == list(range(count))
            share = len(triplets) / count
            assert max(abs(times - share) for times in drawn.values()) < 5 * share**0.5


def test_random_triplets_are_uniform_over_positives_and_negatives() -> None:
    labels = torch.tensor([5, -1, 5, 7, -1, 5, 9])
    draws = torch.stack([random_triplets(labels, generator=seeded(seed)) for seed in range(300)])  # (300, anchors, 3)
    assert draws[0, :, 0].tolist() == [0, 1, 2, 4, 5]
    for place, anchor in enumerate([0, 1, 2, 4, 5]):
        alike = [i for i in range(7) if labels[i] == labels[anchor] and i != anchor]
        other = [i for i in range(7) if labels[i] != labels[anchor]]
        for column, candidates in ((1, alike), (2, other)):
            drawn = Counter(draws[:, place, column].tolist())
            assert sorted(drawn) == candidates
            share = 300 / len(candidates)
            assert max(abs(times - share) for times in drawn.values()) <= 5 * share**0.5


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [3]])
def test_nothing_to_mine(labels: list[int]) -> None:
    points = unit_points(len(labels), 3, seed=0)
    empty = smart_triplets(points, torch.tensor(labels), hardness=0.5, neighbours=4, generator=seeded(0))
    assert empty.shape == random_triplets(torch.tensor(labels), generator=seeded(0)).shape == (0, 3)


def test_the_same_picture_under_two_labels_is_no_negative() -> None:
    """Image 2 is image 0, but for rounding; image 3 is near, image 4 far. A duplicate in the class is a positive."""
    points = unit([[1.0, 0.0], [1.0, 0.0], [1.0, 1e-5], [1.0, 0.1], [-1.0, 1.0]])
    triplets = mined(points, [0, 0, 1, 1, 2], 1.0).tolist()
    assert triplets == [[0, 1, 3], [1, 0, 3], [2, 3, 4], [3, 2, 0]]
    for seed in range(20):
        assert [n for a, _, n in mined(points, [0, 0, 1, 1, 2], 0.0, seed=seed).tolist() if a < 2].count(2) == 0


def test_where_all_neighbours_are_the_same_picture_they_are_taken() -> None:
    points = [[1.0, 0.0]] * 4
    triplets = mined(points, [0, 0, 1, 1], 0.0)
    assert triplets[:, 0].tolist() == [0, 1, 2, 3]
    assert triplets[:, 1].tolist() == [1, 0, 3, 2]
    assert set(triplets[:2, 2].tolist()) <= {2, 3}


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = unit_points(90, 5, seed=0).tolist(), (torch.arange(90) % 7).tolist()
    whole = mined(points, labels, 0.6, 20)
    monkeypatch.setattr("tammes.losses.mining._PAIRS_AT_ONCE", 1000)
    assert mined(points, labels, 0.6, 20).equal(whole)


def test_squared_distances_of_triplets() -> None:
    points = unit_points(6, 3, seed=0)
    to_positive, to_negative = squared_distances_of(points, torch.tensor(HARDEST))
    x = points.tolist()
    assert to_positive.tolist() == pytest.approx([squared(x[a], x[p]) for a, p, _ in HARDEST])
    assert to_negative.tolist() == pytest.approx([squared(x[a], x[n]) for a, _, n in HARDEST])


def test_triplets_of_two_thousand_images() -> None:
    labels = torch.arange(2000) % 40
    points = nn.functional.normalize(unit_points(40, 64, seed=0)[labels] + 0.3 * unit_points(2000, 64, seed=1)).float()
    triplets = smart_triplets(points, labels, hardness=0.2, neighbours=256, generator=seeded(0))
    assert triplets[:, 0].equal(torch.arange(2000))
    assert labels[triplets[:, 0]].equal(labels[triplets[:, 1]])
    assert not (triplets[:, 0] == triplets[:, 1]).any()
    assert not (labels[triplets[:, 0]] == labels[triplets[:, 2]]).any()


# The loss


def test_parts_of_the_hardest_triplets_of_six_points() -> None:
    rows = torch.tensor(HARDEST).flatten()
    value = SmartMiningLoss()(tensor(SIX)[rows], torch.tensor(SIX_LABELS)[rows])
    assert ratio_mean(unit(SIX), HARDEST) == pytest.approx(0.457607, abs=1e-6)
    assert global_value(unit(SIX), HARDEST) == pytest.approx(0.416329, abs=1e-6)
    assert value.item() == pytest.approx(0.457607 + 0.416329, abs=1e-6)


@pytest.mark.parametrize("options", [(0.01, 0.8, 0.4, 1.0), (0.3, 2.0, 1.0, 0.0), (0.1, 0.1, 0.05, 3.0)])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_value_and_gradient_equal_the_equation(count: int, options: tuple[float, float, float, float]) -> None:
    embeddings = torch.randn(3 * count, 4, generator=seeded(count), dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([-2, -2, 9]).repeat(count)
    margin, weight, gap, gamma = options
    ours = SmartMiningLoss(margin=margin, weight=weight, gap=gap, gamma=gamma)(embeddings, labels)
    theirs = plain_global(embeddings, [(3 * t, 3 * t + 1, 3 * t + 2) for t in range(count)], *options)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(value, embeddings)[0] for value in (ours, theirs)))


def test_order_of_the_triplets_does_not_matter() -> None:
    embeddings, labels = torch.randn(12, 4, generator=seeded(0)), torch.tensor([0, 0, 1, 1, 1, 0, 2, 2, 0, 1, 1, 2])
    order = torch.tensor([2, 0, 3, 1])
    turned = [each.view(4, 3, *each.shape[1:])[order].flatten(0, 1) for each in (embeddings, labels)]
    torch.testing.assert_close(SmartMiningLoss()(*turned), SmartMiningLoss()(embeddings, labels))


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ([0, 0, 1, 0], "; 4 rows are not a multiple of 3. "),
        ([0], "; 1 rows are not a multiple of 3. "),
        ([0, 0, 1, 0, 1, 2], "; those from row 3 have the classes 0, 1, 2. "),
        ([7, 7, 7], "; those from row 0 have the classes 7, 7, 7. "),
    ],
)
def test_a_batch_that_is_not_of_triplets(labels: list[int], what: str) -> None:
    with pytest.raises(UserError) as raised:
        SmartMiningLoss()(torch.randn(len(labels), 3, generator=seeded(0)), torch.tensor(labels))
    assert str(raised.value) == (
        f"a batch must be triplets: rows 3t, 3t + 1, 3t + 2 are an anchor, a positive and a negative{what}"
        "Take the images in the order of loss.order, whole triplets a batch; loss.look(...) mines them."
    )


# The look


def test_order_is_the_mined_triplets_shuffled() -> None:
    loss = SmartMiningLoss(hardness=1.0)
    assert loss.order is None
    orders = [looked(SmartMiningLoss(hardness=1.0), SIX, SIX_LABELS, seed).order for seed in (0, 0, 1)]
    assert all(order is not None for order in orders)
    first, again, other = (order for order in orders if order is not None)
    assert first.dtype == torch.int64
    assert sorted(first.view(-1, 3).tolist()) == [list(each) for each in HARDEST]
    assert first.equal(again)
    assert not first.equal(other)
    assert sorted(other.view(-1, 3).tolist()) == [list(each) for each in HARDEST]


def test_the_order_makes_batches_that_the_loss_takes() -> None:
    loss = looked(SmartMiningLoss(), SIX, SIX_LABELS)
    assert loss.order is not None
    assert loss(tensor(SIX)[loss.order], torch.tensor(SIX_LABELS)[loss.order]).isfinite()


@pytest.mark.parametrize(("classes", "expected"), [(0, 0.35), (24, 0.35), (25, 0.3), (45, 0.3), (46, 0.25), (50, 0.25)])
def test_hardness_follows_the_share_of_triplets_that_still_have_a_loss(classes: int, expected: float) -> None:
    """Fifty classes of two images; at the second look, those of so many of them are as far apart as from others."""
    labels = torch.arange(50).repeat_interleave(2)
    axes = torch.eye(100, dtype=torch.float64)
    loss = SmartMiningLoss(hardness=0.3)
    loss.look(axes[labels], labels, generator=seeded(0))
    assert loss.hardness_now.item() == pytest.approx(0.3)
    moved = torch.where((torch.arange(100) % 2 == 1) & (labels < classes), 50 + labels, labels)
    loss.look(axes[moved], labels, generator=seeded(1))
    assert loss.active.item() == pytest.approx(classes / 50)
    assert loss.hardness_now.item() == pytest.approx(expected)


@pytest.mark.parametrize(("hardness", "points"), [(1.0, "easy"), (0.0, "hard")])
def test_hardness_stays_between_0_and_1(hardness: float, points: str) -> None:
    labels = torch.arange(8) // 2
    where = torch.eye(4)[labels] if points == "easy" else torch.eye(8)
    loss = SmartMiningLoss(hardness=hardness)
    for seed in range(3):
        loss.look(where, labels, generator=seeded(seed))
    assert loss.active.item() == (0 if points == "easy" else 1)
    assert loss.hardness_now.item() == hardness


def test_hardness_takes_even_steps_and_mines_accordingly() -> None:
    """After nine easy looks from 0.2 it is 0.65: of 20 candidates 7, and not 8 for a rounding."""
    labels = torch.tensor([0] * 21 + [1] * 21)
    points = nn.functional.normalize(torch.eye(3, dtype=torch.float64)[labels] + 0.05 * unit_points(42, 3, seed=0))
    lists = [mining_lists(points.tolist(), labels.tolist(), anchor, 20) for anchor in range(42)]
    loss = SmartMiningLoss(neighbours=20)
    drawn = set()
    for seed in range(10):
        loss.look(points, labels, generator=seeded(seed))
    assert round(loss.hardness_now.item(), 6) == 0.65
    for seed in range(10):
        loss.hardness_now.fill_(0.6)
        loss.look(points, labels, generator=seeded(seed))
        assert loss.order is not None
        drawn |= {lists[a][1].index(n) for a, _, n in loss.order.view(-1, 3).tolist()}
    assert drawn == set(range(7))


def test_vectors_of_any_length_and_half_precision_are_looked_at_as_unit_vectors() -> None:
    loss = SmartMiningLoss(hardness=1.0)
    loss.look(torch.tensor(SIX).half() * 7, torch.tensor(SIX_LABELS, dtype=torch.uint8), generator=seeded(0))
    assert loss.order is not None
    assert sorted(loss.order.view(-1, 3).tolist()) == [list(each) for each in HARDEST]


def test_a_look_leaves_no_graph() -> None:
    points = torch.tensor(SIX, requires_grad=True)
    loss = SmartMiningLoss()
    for seed in range(2):
        loss.look(points, torch.tensor(SIX_LABELS), generator=seeded(seed))
    assert not loss.active.requires_grad
    assert not loss.hardness_now.requires_grad


def test_embeddings_that_are_not_finite() -> None:
    points = torch.tensor(SIX)
    points[3, 0], points[5, 1] = float("nan"), float("inf")
    with pytest.raises(
        UserError,
        match=r"^triplets cannot be mined: the embedding of image 3 is not finite \(2 of 6 are not\). Training has"
        r" diverged: lower the learning rate.$",
    ):
        SmartMiningLoss().look(points, torch.tensor(SIX_LABELS), generator=seeded(0))


@pytest.mark.parametrize("labels", [[0] * 6, [0, 1, 2, 3, 4, 5]])
def test_a_training_set_without_a_triplet(labels: list[int]) -> None:
    with pytest.raises(
        UserError,
        match="^there is no triplet to mine: the training set needs at least 2 classes, and one of them 2 images.$",
    ):
        looked(SmartMiningLoss(), SIX, labels)


@pytest.mark.parametrize("images", [6, 3])
def test_another_training_set(images: int) -> None:
    loss = looked(SmartMiningLoss(), SIX, SIX_LABELS)
    with pytest.raises(
        UserError,
        match="^the triplets of the last look were mined from other images",
    ):
        looked(loss, SIX[:images], [0, 1, 0, 2, 1, 2][:images])


# What is kept


@pytest.mark.parametrize(
    "state", [torch.zeros(2, 3).long(), torch.zeros(4).long(), torch.zeros(3), -torch.ones(3).long()]
)
def test_an_untrusted_order_is_checked(state: torch.Tensor) -> None:
    with pytest.raises(UserError, match=r"^an order of triplets cannot be \([2-4], ?3?\) of torch\."):
        SmartMiningLoss().set_extra_state(state)


def test_an_order_of_other_images_is_refused() -> None:
    with pytest.raises(UserError, match=r"^triplets were mined from other images: there is no image 7 of 2\.$"):
        turns(np.zeros(2, dtype=np.int64), batch_size=3, train=True, order=np.array([0, 1, 7]))


def test_a_checkpoint_keeps_the_order_and_the_hardness(tmp_path: Path) -> None:
    loss = SmartMiningLoss()
    for seed in range(3):
        looked(loss, SIX, SIX_LABELS, seed)
    save_file(nn.ModuleDict({"loss": loss}).state_dict(), tmp_path / "model.safetensors")
    other = SmartMiningLoss()
    nn.ModuleDict({"loss": other}).load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert other.order is not None
    assert loss.order is not None
    assert other.order.equal(loss.order)
    assert (other.hardness_now, other.active) == (loss.hardness_now, loss.active)
    looked(loss, SIX[::-1], SIX_LABELS, 9)
    looked(other, SIX[::-1], SIX_LABELS, 9)
    assert other.order.equal(loss.order)
    assert (other.hardness_now, other.active) == (loss.hardness_now, loss.active)


def test_a_checkpoint_from_before_the_first_look(tmp_path: Path) -> None:
    save_file(SmartMiningLoss().state_dict(), tmp_path / "model.safetensors")
    loss = looked(SmartMiningLoss(), SIX, SIX_LABELS)
    loss.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert loss.order is None


def test_half_precision_does_not_round_the_hardness() -> None:
    loss = SmartMiningLoss(hardness=0.35).to(torch.bfloat16)
    assert loss.hardness_now.item() == pytest.approx(0.35, abs=1e-7)


def test_least_where_classes_are_points_equally_far_apart() -> None:
    loss = SmartMiningLoss()
    corners, rows = torch.eye(3).repeat_interleave(2, 0), torch.tensor(HARDEST).flatten()
    assert loss(corners[rows], torch.tensor(SIX_LABELS)[rows]).item() == pytest.approx(loss.minimum, abs=1e-9)


def test_a_share_of_the_triplets_makes_a_shorter_epoch() -> None:
    whole, third = SmartMiningLoss(), SmartMiningLoss(share=1 / 3)
    orders = [looked(loss, unit(SIX), SIX_LABELS).order for loss in (whole, third)]
    assert orders[0] is not None
    assert orders[1] is not None
    assert (len(orders[0]), len(orders[1])) == (18, 6)  # six anchors; two of them, as many images as there are
    assert torch.equal(orders[0][:6], orders[1])


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_is_a_part_of_the_triplets(share: float) -> None:
    with pytest.raises(UserError, match=f"share .*got {share}"):
        SmartMiningLoss(share=share)
