"""HDC: three heads, each on harder pairs or images than the one before."""

from math import ceil, floor
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from tammes import UserError
from tammes.losses import DiscriminativeLoss
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.models.heads import parted
from tammes.training.objectives.base import Base, ClassLayer
from tammes.training.objectives.hdc import HDC, METHOD, cascade, hardest, last_counts_twice, level
from tests.oracles import seeded
from tests.oracles_objectives import problem as problem_of
from tests.oracles_objectives import sum_of, value_and_gradients
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, apart, pairs, unit_rows

HEADS = (4, 3, 5)
FEATURES = 192
CLASSES = 4
FRACTIONS = (1.0, 0.5, 0.2)
PAIRS = Base("contrastive")
IMAGES = Base("discriminative", lambda dim: ClassLayer(dim, DiscriminativeLoss(CLASSES)))
TOY_HEADS = [TOY, TOY + torch.tensor([0.1, 0.0]), TOY + torch.tensor([0.0, 0.2])]


def embedder(dtype: torch.dtype = torch.float64) -> Embedder:
    torch.manual_seed(0)
    config = EmbedderConfig(
        "conv4", sum(HEADS), heads=HEADS, head_weights=last_counts_twice(HEADS), depths=("blocks.2", "blocks.3")
    )
    return Embedder(config).to(dtype)


def problem(sizes: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    return problem_of(sizes, seed=seed, features=FEATURES)


def made(base: Base, dtype: torch.dtype = torch.float64, /, **options: Any) -> HDC:
    torch.manual_seed(1)
    return HDC(base, HEADS, **options).to(dtype)


def heads_of(network: Embedder, features: Tensor) -> tuple[Tensor, ...]:
    return parted(network.penultimate(features), HEADS)


def first_largest(terms: list[tuple[Tensor, Any]], count: int) -> list[tuple[Tensor, Any]]:
    """By size, the largest first; those equal by what they are of, as the batch has them."""
    return sorted(terms, key=lambda term: (-term[0].item(), term[1]))[:count]


def mean(terms: list[Tensor], x: Tensor) -> Tensor:
    return sum(terms, start=0 * x.sum()) / max(1, len(terms))


def slow_cascade(heads: list[Tensor], y: list[int], fractions: tuple[float, ...], margin: float) -> Tensor:
    """One pair after the other; a head is given the list that the one before has left."""
    positive, negative = pairs(y)
    near, far = positive, negative
    total = torch.zeros((), dtype=heads[0].dtype)
    for head, fraction in zip(heads, fractions, strict=True):
        x = unit_rows(head)
        pull = first_largest([(apart(x, *pair) ** 2, pair) for pair in near], ceil(fraction * len(positive)))
        close = first_largest([(-apart(x, *pair), pair) for pair in far], ceil(fraction * len(negative)))
        near, far = [pair for _, pair in pull], [pair for _, pair in close]
        push = [((margin - apart(x, *pair)).clamp_min(0) ** 2, pair) for pair in far]
        total = total + mean([term for term, _ in pull + push], head)
    return total


def slow_level(head: Tensor, y: list[int], fraction: float, margin: float) -> Tensor:
    x, (positive, negative) = unit_rows(head), pairs(y)
    pull = [(apart(x, *pair) ** 2, pair) for pair in positive if apart(x, *pair) > 0]
    push = [(10 * (margin - apart(x, *pair) ** 2).clamp_min(0), pair) for pair in negative for _ in range(2)]
    least = int(floor(fraction * len(pull)) + floor(fraction * len(push)) == 0)
    kept = first_largest(pull, max(least, floor(fraction * len(pull))))
    kept += first_largest(push, max(least, floor(fraction * len(push))))
    above = sum(term.item() > 0 for term, _ in kept)
    return sum((term for term, _ in kept), start=0 * head.sum()) / max(1, above)


def slow_images(heads: tuple[Tensor, ...], y: list[int], layers: nn.ModuleList, form: str) -> Tensor:
    """The value of an image by the equation: distance to its axis, less a third of the mean of the others."""
    kept, total = list(range(len(y))), torch.zeros((), dtype=heads[0].dtype)
    for head, layer, fraction in zip(heads, layers, FRACTIONS, strict=True):
        assert isinstance(layer, ClassLayer)
        values = []
        for i in kept if form == "cascade" else range(len(y)):
            z = layer.layer.weight @ head[i] + layer.layer.bias
            z = z / z.square().sum().sqrt()
            to = [(z - axis).square().sum().sqrt() for axis in torch.eye(CLASSES, dtype=z.dtype)]
            others = [to[m] for m in range(CLASSES) if m != y[i]]
            values.append((to[y[i]] - sum(others, start=0 * z.sum()) / (3 * len(others)), i))
        values = first_largest(values, ceil(fraction * len(y)))
        kept = sorted(i for _, i in values)
        total = total + mean([value for value, _ in values], head)
    return total


@pytest.mark.parametrize("sizes", [*SIZES, [2], [1, 1]])
@pytest.mark.parametrize(
    ("margin", "second", "third"),
    [(1.0, 0.5, 0.2), (0.5, 0.9, 0.4), (1.9, 0.3, 0.3), (1.4, 1.0, 1.0), (1.4, 0.01, 0.01)],
)
def test_value_and_gradient_equal_loops_over_pairs(
    sizes: list[int], margin: float, second: float, third: float
) -> None:
    (features, labels), network = problem(sizes), embedder()
    y, fractions = labels.tolist(), (1.0, second, third)

    def slow_released(z: Tensor) -> Tensor:
        levels = zip(heads_of(network, z), fractions, strict=True)
        return torch.stack([slow_level(head, y, part, margin) for head, part in levels]).sum()

    def slow(z: Tensor) -> Tensor:
        return slow_cascade(list(heads_of(network, z)), y, fractions, margin)

    for form, oracle in (("cascade", slow), ("released", slow_released)):
        loss = made(PAIRS, form=form, margin=margin, second=second, third=third)
        ours = value_and_gradients(network, sum_of(loss, labels, network), features)
        torch.testing.assert_close(ours, value_and_gradients(network, oracle, features), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("form", ["cascade", "released"])
def test_value_and_gradient_equal_loops_over_images(sizes: list[int], form: str) -> None:
    (features, labels), network, loss = problem(sizes), embedder(), made(IMAGES, form=form)
    ours = value_and_gradients(network, sum_of(loss, labels, network), features, loss)
    theirs = value_and_gradients(
        network, lambda z: slow_images(heads_of(network, z), labels.tolist(), loss.bases, form), features, loss
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_toy() -> None:
    assert level(TOY, TOY_LABELS, fraction=1.0, margin=1.0).item() == pytest.approx(4.297583, abs=1e-6)
    assert level(TOY, TOY_LABELS, fraction=0.5, margin=1.0).item() == pytest.approx(5.229899, abs=1e-6)
    released = [level(x, TOY_LABELS, fraction=part, margin=1.0) for x, part in zip(TOY_HEADS, FRACTIONS, strict=True)]
    assert torch.stack(released).sum().item() == pytest.approx(17.692244, abs=1e-6)
    assert cascade(TOY_HEADS, TOY_LABELS, fractions=FRACTIONS, margin=1.0).item() == pytest.approx(1.354398, abs=1e-6)


def test_a_head_of_the_cascade_sees_only_what_the_one_before_has_kept() -> None:
    """The pair 0, 1 is in one point in the first two heads and far apart in the third, where it is hardest."""
    angles = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 2.5, 0.3]], dtype=torch.float64)
    heads = [torch.stack([row.cos(), row.sin()], dim=1) for row in angles]
    labels, fractions = torch.tensor([0, 0, 0]), (1.0, 0.5, 0.2)
    chord = [2 * torch.tensor(angle / 2).sin().item() ** 2 * 2 for angle in (1.0, 0.3, 2.2)]
    value = cascade(heads, labels, fractions=fractions, margin=1.0).item()
    assert value == pytest.approx(chord[0] * 2 / 3 + chord[0] + chord[2], abs=1e-6)
    free = cascade(heads[2:], labels, fractions=(0.2,), margin=1.0).item()
    assert free == pytest.approx(4 * torch.tensor(1.25).sin().item() ** 2, abs=1e-6)


def test_images_that_the_second_head_finds_easy_are_not_seen_by_the_third() -> None:
    (features, labels), network, loss = problem([3, 3, 3, 1]), embedder(), made(IMAGES)
    z = features.clone().requires_grad_()
    loss(z, labels, network)["loss"].backward()
    assert z.grad is not None
    seen = [part.abs().sum(1).nonzero().flatten() for part in z.grad.split(64, dim=1)]
    _, second, third = (
        layer.per_image(head, labels)  # type: ignore[operator]
        for layer, head in zip(loss.bases, heads_of(network, features), strict=True)
    )
    assert seen[0].tolist() == list(range(10))
    assert seen[1].tolist() == hardest(second, 5).tolist()
    assert seen[2].tolist() == seen[1][hardest(third[seen[1]], 2)].tolist() != hardest(third, 2).tolist()


def test_the_hardest_are_the_first_of_equal_ones_in_their_order() -> None:
    values = torch.tensor([1.0, 3.0, 1.0, 2.0, 3.0, 1.0])
    assert hardest(values, 4).tolist() == [0, 1, 3, 4]
    assert hardest(values, 1).tolist() == [1]
    assert hardest(values, 9).tolist() == [0, 1, 2, 3, 4, 5]
    assert hardest(torch.tensor([5.0, float("nan"), 6.0]), 1).tolist() == [1]
    assert hardest(values[:0], 1).tolist() == []


@pytest.mark.parametrize(("fraction", "count"), [(0.07, 7), (0.29, 29), (0.2, 20), (0.071, 8)])
def test_a_fraction_of_a_hundred_is_what_it_says(fraction: float, count: int) -> None:
    """Though 0.07 * 100 is above 7, and 0.29 * 100 below 29."""
    network = embedder()
    loss = made(IMAGES, second=1.0, third=fraction)
    z = torch.randn(100, FEATURES, generator=seeded(0), dtype=torch.float64).requires_grad_()
    loss(z, torch.arange(100) % CLASSES, network)["loss"].backward()
    assert z.grad is not None
    assert int(z.grad[:, 128:].abs().sum(1).gt(0).sum()) == count


def test_a_floor_of_a_hundred_positive_pairs_is_what_it_says() -> None:
    x = torch.randn(200, 3, generator=seeded(0), dtype=torch.float64).requires_grad_()
    labels = torch.arange(100).repeat_interleave(2)
    value = level(x, labels, fraction=0.29, margin=1e-9)  # negatives cost nothing
    value.backward()
    assert x.grad is not None
    assert int(x.grad.abs().sum(1).gt(0).sum()) == 58


def test_too_few_pairs_for_the_released_form_leave_the_hardest_of_each_kind() -> None:
    x, labels = TOY[:3], torch.tensor([0, 0, 1])
    unit = unit_rows(x)
    closest = min(apart(unit, 0, 2).item(), apart(unit, 1, 2).item()) ** 2
    expected = (apart(unit, 0, 1).item() ** 2 + 10 * (1 - closest)) / 2
    assert level(x, labels, fraction=0.2, margin=1.0).item() == pytest.approx(expected, abs=1e-9)


def test_the_released_form_leaves_out_positive_pairs_in_one_point() -> None:
    """Five of six pairs remain, and half of them are two; of six they would be three."""
    x, labels = TOY[[0, 0, 3, 4]], torch.tensor([0, 0, 0, 0])
    costs = sorted((apart(unit_rows(x), *pair).item() ** 2 for pair in pairs([0] * 4)[0]), reverse=True)
    value = level(x, labels, fraction=0.5, margin=1.0).item()
    assert costs[4] > 0 == costs[5]
    assert value == pytest.approx(sum(costs[:2]) / 2, abs=1e-9)


BOTH = pytest.mark.parametrize("base", [PAIRS, IMAGES], ids=["pairs", "images"])
FORMS = pytest.mark.parametrize("form", ["cascade", "released"])


@BOTH
@FORMS
@pytest.mark.parametrize("where", ["one image", "one class", "no two of a class", "all in one point", "zero"])
def test_edges_have_a_finite_value_and_gradient(base: Base, form: str, where: str) -> None:
    features, labels = problem([2, 2, 2])
    features, labels = (features[:1], labels[:1]) if where == "one image" else (features, labels)
    if where == "one class":
        labels = torch.full_like(labels, 3)
    elif where == "no two of a class":
        features, labels = features[:4], torch.arange(4)
    elif where == "all in one point":
        features = features[:1].repeat(len(labels), 1)
    elif where == "zero":
        features = torch.zeros_like(features)
    loss, network = made(base, torch.float32, form=form), embedder(torch.float32)
    z = features.float().requires_grad_()
    value = loss(z, labels, network)["loss"]
    value.backward()
    assert value.isfinite()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    if base is PAIRS and where == "one image":
        assert value.item() == 0
        assert z.grad.eq(0).all()
    if base is PAIRS and where == "one class":
        assert value.item() > 0


@BOTH
@FORMS
@pytest.mark.parametrize("column", [0, 100, 191])
@pytest.mark.parametrize("count", [1, 6])
def test_a_nan_in_any_head_is_not_hidden(base: Base, form: str, column: int, count: int) -> None:
    network, (features, labels) = embedder(), problem([2, 2, 2])
    for row in range(count):
        spoilt = features[:count].clone()
        spoilt[row, column] = float("nan")
        assert made(base, form=form)(spoilt, labels[:count], network)["loss"].isnan()


@BOTH
@FORMS
def test_order_of_the_batch_does_not_matter_where_no_two_are_equally_hard(base: Base, form: str) -> None:
    (features, labels), network = problem([3, 4, 2]), embedder()
    loss = made(base, form=form, **({"margin": 4.5} if base is PAIRS else {}))  # no negative pair is beyond it
    order = torch.randperm(len(labels), generator=seeded(5))
    here, there = (
        value_and_gradients(network, sum_of(loss, labels[rows], network), features[rows])
        for rows in (torch.arange(len(labels)), order)
    )
    torch.testing.assert_close(there[0], here[0])
    torch.testing.assert_close(there[1], here[1][order])


def test_of_negatives_beyond_the_margin_the_nearest_are_kept() -> None:
    """In the first head no pair costs anything, and images 0 and 2 are nearest; in the second only they cost."""
    corners = torch.eye(3, dtype=torch.float64)
    first = unit_rows(corners + 0.05 * corners[[2, 1, 0]])
    heads, labels = [first, corners[[0, 1, 0]]], torch.arange(3)
    for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2]):
        turned = [head[order] for head in heads]
        for fractions, expected in (((1.0, 1.0), 1 / 3), ((0.5, 0.5), 1 / 2), ((0.3, 0.3), 1.0)):
            found = cascade(turned, labels, fractions=fractions, margin=1.0)
            assert found.item() == pytest.approx(expected, abs=1e-12)


@BOTH
@FORMS
def test_float32_agrees_with_float64(base: Base, form: str) -> None:
    (features, labels), results = problem([3, 4, 2]), []
    for dtype in (torch.float32, torch.float64):
        network, loss = embedder(dtype), made(base, dtype, form=form)
        found = value_and_gradients(network, sum_of(loss, labels, network), features.to(dtype))
        results.append([each.double() for each in found])
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=2e-5)


def test_the_discriminative_loss_itself_may_be_on_a_head() -> None:
    features, labels = problem([3, 4, 2])
    network = embedder()
    centroids = [torch.nn.functional.normalize(torch.randn(CLASSES, dim, generator=seeded(dim))) for dim in HEADS]
    loss = HDC(Base("discriminative", lambda dim: DiscriminativeLoss(centroids[HEADS.index(dim)])), HEADS, second=1.0)
    assert not list(loss.parameters())
    every = HDC(
        Base("discriminative", lambda dim: DiscriminativeLoss(centroids[HEADS.index(dim)])),
        HEADS,
        second=1.0,
        third=1.0,
    )
    means = [each(head, labels) for each, head in zip(every.bases, heads_of(network, features), strict=True)]
    torch.testing.assert_close(every(features, labels, network)["loss"], torch.stack(means).sum(), rtol=1e-6, atol=1e-6)
    assert loss(features, labels, network)["loss"] > every(features, labels, network)["loss"]


def test_bad_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("second", "third"):
        for fraction in (0.0, -0.1, 1.1, float("nan")):
            with pytest.raises(
                UserError,
                match=rf"^{name} must be in .0, 1., the share that the {name} head sees, got {fraction}\.$",
            ):
                made(PAIRS, **{name: fraction})
    with pytest.raises(UserError, match=r"^third must be at most second, which is 0\.3, got 0\.4\.$"):
        made(PAIRS, second=0.3, third=0.4)
    for margin in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UserError, match=rf"^margin must be above 0 and finite, got {margin}\.$"):
            made(PAIRS, margin=margin)
    with pytest.raises(
        UserError, match=r"^margin is for pairs, and the discriminative loss has none: drop margin=0\.5\.$"
    ):
        made(IMAGES, margin=0.5)
    with pytest.raises(UserError, match=r"^HDC has 3 heads, got 2\.$"):
        HDC(PAIRS, (4, 4))
    with pytest.raises(UserError, match=r"^unknown base of HDC 'npair'\. Known: contrastive, discriminative\.$"):
        HDC(Base("npair"), HEADS)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # beartype would be first
    with pytest.raises(
        UserError, match=r"^unknown form 'cascaded'\. Did you mean 'cascade'\? Known: cascade, released\.$"
    ):
        HDC(PAIRS, HEADS, form="cascaded")  # type: ignore[arg-type]


def test_what_it_says_of_itself() -> None:
    assert (
        made(PAIRS).extra_repr() == "base=contrastive, heads=(4, 3, 5), form=cascade, margin=1, second=0.5, third=0.2"
    )
    assert made(IMAGES).extra_repr() == "base=discriminative, heads=(4, 3, 5), form=cascade, second=0.5, third=0.2"
    assert METHOD.head_sizes(384) == (128, 128, 128)
    assert METHOD.weigh is not None
    assert METHOD.weigh((128, 128, 128)) == (1.0, 1.0, 2.0)
    assert METHOD.built_on(None).images_per_class == 4
    assert METHOD.built_on("discriminative").images_per_class == 1
    assert METHOD.parse(["form=released", "second=0.4"]) == {"form": "released", "second": 0.4}
    assert METHOD.source == "Yuan et al. 2017"
    assert isinstance(METHOD.make({"base": PAIRS, "heads": HEADS}, {"third": 0.1}), HDC)
