"""BIER: heads of one layer, each on what those before it get wrong."""

from math import exp, log
from typing import Any, get_args

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from tammes import UserError
from tammes.losses import DiscriminativeLoss
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.models.heads import parted
from tammes.training.objectives.base import Base, ClassLayer
from tammes.training.objectives.bier import BIER, METHOD, Form, activation_loss, by_size, deviance, weighed
from tests.oracles import seeded
from tests.oracles_objectives import problem, sum_of, value_and_gradients
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, unit_rows

HEADS = (2, 3, 5)
FEATURES = 64
CLASSES = 4
PAIRS = Base("deviance")
IMAGES = Base("discriminative", lambda dim: ClassLayer(dim, DiscriminativeLoss(CLASSES)))
TOY_HEADS = [TOY, TOY.flip(1) * torch.tensor([0.5, -1.0])]
USUAL: dict[str, Any] = {"alpha": 2.0, "beta": 0.5, "cost": 25.0, "shrinkage": 0.06}
BOTH = pytest.mark.parametrize("base", [PAIRS, IMAGES], ids=["pairs", "images"])


def embedder(dtype: torch.dtype = torch.float64) -> Embedder:
    torch.manual_seed(0)
    made = Embedder(EmbedderConfig("conv4", sum(HEADS), heads=HEADS, head_weights=by_size(HEADS))).to(dtype)
    nn.init.normal_(made.penultimate.bias, std=0.1)  # type: ignore[arg-type]
    return made


def made(base: Base, dtype: torch.dtype = torch.float64, /, **options: Any) -> BIER:
    """Without diversity, where it is not asked for."""
    torch.manual_seed(1)
    return BIER(base, HEADS, **({"diversity": 0.0} | options)).to(dtype)


def heads_of(network: Embedder, features: Tensor) -> tuple[Tensor, ...]:
    return parted(network.penultimate(features), HEADS)


def slow_deviance(heads: list[Tensor], y: list[int], form: str, **options: float) -> Tensor:
    """One pair after the other; what a pair has gathered so far is a number, without a gradient."""
    alpha, beta, cost, shrinkage = (options[name] for name in ("alpha", "beta", "cost", "shrinkage"))
    every = [(i, j) for i in range(len(y)) for j in range(len(y))]
    alike = sum(y[i] == y[j] for i, j in every)
    total = torch.zeros((), dtype=heads[0].dtype)
    rows = [unit_rows(head) for head in heads]
    for i, j in every:
        if i == j:
            continue
        same = y[i] == y[j]
        number, so_far, weight = alike if same else len(every) - alike, 0.5 if form == "shrinkage" else 0.0, 1.0
        for k, x in enumerate(rows):
            active = alpha * (x[i] @ x[j] - beta) * (1 if same else -cost)
            total = total + weight * torch.logaddexp(-active, torch.zeros_like(active)) / number / len(rows)
            if form == "shrinkage":
                so_far = so_far + shrinkage * active.item()
            else:
                so_far = so_far * (1 - 2 / (2 + k)) + active.item() * 2 / (2 + k)
            weight = 1 / (1 + exp(so_far)) * (2 if form == "shrinkage" and not same else 1)
    return total


def slow_images(heads: tuple[Tensor, ...], y: list[int], layers: nn.ModuleList) -> Tensor:
    """The value of an image by the equation: distance to its axis, less a third of the mean of the others."""
    least = -(2**0.5) / 3  # at its own axis, sqrt 2 from all others
    weights, left = [1.0] * len(y), [0.0] * len(y)
    total = torch.zeros((), dtype=heads[0].dtype)
    for k, (head, layer) in enumerate(zip(heads, layers, strict=True)):
        assert isinstance(layer, ClassLayer)
        for i, label in enumerate(y):
            z = layer.layer.weight @ head[i] + layer.layer.bias
            z = z / z.square().sum().sqrt()
            to = [(z - axis).square().sum().sqrt() for axis in torch.eye(CLASSES, dtype=z.dtype)]
            others = [to[m] for m in range(CLASSES) if m != label]
            value = to[label] - sum(others, start=0 * z.sum()) / (3 * len(others))
            total = total + weights[i] * value / len(y) / len(heads)
            left[i] = left[i] * k / (2 + k) + max(0.0, value.item() - least) * 2 / (2 + k)
        weights = [each * len(y) / sum(left) for each in left]
    return total


def slow_activation_loss(heads: list[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=heads[0].dtype)
    for i, first in enumerate(heads):
        for second in heads[i + 1 :]:
            terms = [
                (f[a] * g[b]) ** 2
                for f, g in zip(first, second, strict=True)
                for a in range(len(f))
                for b in range(len(g))
            ]
            total = total + torch.stack(terms).mean()
    return total


@pytest.mark.parametrize("sizes", [*SIZES, [3], [1, 1]])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shrinkage": 0.0},
        {"shrinkage": 1.0},
        {"alpha": 0.3, "beta": -1.0, "cost": 1.0},
        {"alpha": 5.0, "beta": 1.0},
    ],
    ids=str,
)
def test_value_and_gradient_equal_loops_over_pairs(sizes: list[int], options: dict[str, float]) -> None:
    (features, labels), network = problem(sizes), embedder()
    for form in ("shrinkage",) if "shrinkage" in options else ("shrinkage", "eta"):
        loss = made(PAIRS, form=form, **options)

        def slow(z: Tensor, form: str = form) -> Tensor:
            return slow_deviance(list(heads_of(network, z)), labels.tolist(), form, **{**USUAL, **options})

        ours = value_and_gradients(network, sum_of(loss, labels, network), features)
        torch.testing.assert_close(ours, value_and_gradients(network, slow, features), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("sizes", SIZES)
def test_value_and_gradient_equal_loops_over_images(sizes: list[int]) -> None:
    (features, labels), network, loss = problem(sizes), embedder(), made(IMAGES)
    ours = value_and_gradients(network, sum_of(loss, labels, network), features, loss)
    theirs = value_and_gradients(
        network, lambda z: slow_images(heads_of(network, z), labels.tolist(), loss.bases), features, loss
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_toy() -> None:
    assert deviance(TOY_HEADS, TOY_LABELS, form="shrinkage", **USUAL).item() == pytest.approx(4.492066, abs=1e-6)
    assert deviance(TOY_HEADS, TOY_LABELS, form="eta", **USUAL).item() == pytest.approx(3.982123, abs=1e-6)
    assert activation_loss(TOY_HEADS).item() == pytest.approx(0.146844, abs=1e-6)


def test_a_pair_that_the_first_head_gets_wrong_moves_the_second_more() -> None:
    """Two negative pairs that the second head sees alike, one of them close in the first."""
    first = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]], dtype=torch.float64)
    for form in get_args(Form):
        second = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, -0.6]], dtype=torch.float64).requires_grad_()
        labels = torch.tensor([0, 1, 2])
        deviance([first, second], labels, form=form, **{**USUAL, "cost": 1.0, "shrinkage": 1.0}).backward()
        assert second.grad is not None
        assert second.grad[1].norm() > 1.1 * second.grad[2].norm()


def test_images_are_weighed_by_what_the_heads_before_have_left() -> None:
    values = [torch.tensor(each) for each in ([1.0, 4.0], [1.0, 2.0], [6.0, 3.0])]
    # Left above the minima: (0, 3), weights (0, 2); then (0, 3) / 3 + 2 (0.5, 1.5) / 3 = (1/3, 2), weights (2/7, 12/7).
    expected = (2.5 + 2.0 + (6 * 2 / 7 + 3 * 12 / 7) / 2) / 3
    assert weighed(values, [1.0, 0.5, 0.0]).item() == pytest.approx(expected, abs=1e-6)
    assert weighed(values[:1], [1.0]).item() == 2.5


def test_where_nothing_is_left_all_images_weigh_the_same() -> None:
    values = [torch.tensor([1.0, 1.0]), torch.tensor([5.0, 3.0])]
    assert weighed(values, [1.0, 0.0]).item() == (1.0 + 4.0) / 2


def test_an_image_below_the_minimum_has_nothing_left() -> None:
    """The minimum is that of the mean, so that of a single class may be lower; no weight is below 0."""
    values = [torch.tensor([0.5, 3.0]), torch.tensor([5.0, 3.0])]
    assert weighed(values, [1.0, 0.0]).item() == (1.75 + 2 * 3.0 / 2) / 2


def test_the_minimum_is_that_of_the_loss_on_each_head() -> None:
    centroids = [torch.nn.functional.normalize(torch.randn(CLASSES, dim, generator=seeded(dim))) for dim in HEADS]
    own = Base("discriminative", lambda dim: DiscriminativeLoss(centroids[HEADS.index(dim)], push=0.2))
    loss = BIER(own, HEADS)
    assert not list(loss.parameters())
    assert loss.minima == pytest.approx(
        [each(points, torch.arange(4)).item() for each, points in zip(loss.bases, centroids, strict=True)]
    )
    assert made(IMAGES).minima == pytest.approx([-(2**0.5) / 3] * 3)
    (features, labels), network = problem([3, 4, 2]), embedder()
    values = [each.per_image(head, labels) for each, head in zip(loss.bases, heads_of(network, features), strict=True)]  # type: ignore[operator]
    assert loss(features, labels, network)["loss"] == weighed(values, loss.minima)


def test_activation_loss_equals_loops_over_coordinates() -> None:
    heads = [torch.randn(4, dim, generator=seeded(dim), dtype=torch.float64).requires_grad_() for dim in HEADS]
    ours, theirs = activation_loss(heads), slow_activation_loss(heads)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, heads), torch.autograd.grad(theirs, heads))
    assert activation_loss(heads[:1]).item() == 0


@BOTH
def test_diversity_is_a_part_of_its_own_that_trains_the_layer_only(base: Base) -> None:
    (features, labels), network = problem([3, 4, 2]), embedder()
    loss, plain = made(base, diversity=3.0, unit_weights=0.2), made(base)
    z = features.clone().requires_grad_()
    parts = loss(z, labels, network)
    assert list(parts) == ["loss", "diversity"]
    assert list(plain(z, labels, network)) == ["loss"]
    assert parts["loss"] == plain(z, labels, network)["loss"]

    length = (sum(row.square().sum() for row in features) / len(features)) ** 0.5
    assert isinstance(network.penultimate, nn.Linear)
    penalty = torch.stack([(row.square().sum() - 1) ** 2 for row in network.penultimate.weight]).mean()
    activation = slow_activation_loss([head / length for head in heads_of(network, features)])
    expected = 3.0 * (activation + 0.2 * penalty)
    torch.testing.assert_close(parts["diversity"], expected)
    layer = list(network.penultimate.parameters())
    found = torch.autograd.grad(parts["diversity"], [z, *layer], allow_unused=True)
    assert found[0] is None
    torch.testing.assert_close(found[1:], torch.autograd.grad(expected, layer))


def test_diversity_does_not_depend_on_the_scale_of_the_features() -> None:
    (features, labels), network = problem([3, 4, 2]), embedder()
    nn.init.zeros_(network.penultimate.bias)  # type: ignore[arg-type]
    loss = made(PAIRS, diversity=1.0, unit_weights=0.0)
    expected = loss(features, labels, network)["diversity"]
    assert expected > 0
    for scale in (1e-3, 50.0):
        torch.testing.assert_close(loss(scale * features, labels, network)["diversity"], expected)
    assert loss(0 * features, labels, network)["diversity"].item() == 0


def test_rows_become_unit_vectors_instead_of_vanishing() -> None:
    (features, labels), network = problem([3, 4, 2]), embedder()
    loss = made(PAIRS, diversity=1.0, unit_weights=10.0)
    optimizer = torch.optim.Adam(network.penultimate.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        loss(features, labels, network)["diversity"].backward()
        optimizer.step()
    assert isinstance(network.penultimate, nn.Linear)
    torch.testing.assert_close(network.penultimate.weight.norm(dim=1), torch.ones(10).double(), atol=0.02, rtol=0)


def test_a_layer_that_is_kept_cannot_be_made_diverse() -> None:
    (features, labels), network = problem([3, 4, 2]), embedder()
    network.penultimate.requires_grad_(False)
    assert made(PAIRS)(features, labels, network)["loss"].isfinite()
    with pytest.raises(
        UserError,
        match="^diversity trains the embedding layer, which `keep_init` freezes",
    ):
        made(PAIRS, diversity=0.1)(features, labels, network)


def test_the_steepest_deviance_does_not_overflow_float32() -> None:
    """log(exp(150) + 1) would."""
    x = torch.eye(2)[[0, 0]].requires_grad_()
    value = deviance([x], torch.tensor([0, 1]), form="eta", **{**USUAL, "cost": 150.0})
    value.backward()
    assert value.item() == pytest.approx(150.0)
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("form", get_args(Form))
def test_a_batch_without_negatives_or_positives_has_the_other_part(form: Form) -> None:
    x = [TOY[:2]]
    cosine = float(unit_rows(TOY)[0] @ unit_rows(TOY)[1])
    one_class = deviance(x, torch.tensor([5, 5]), form=form, **USUAL)
    assert one_class.item() == pytest.approx(
        log(1 + exp(-2 * (cosine - 0.5))) / 2, abs=1e-9
    )  # 2 of 4 with the diagonal
    two_classes = deviance(x, torch.tensor([5, 6]), form=form, **USUAL)
    assert two_classes.item() == pytest.approx(log(1 + exp(50 * (cosine - 0.5))), abs=1e-9)


@BOTH
@pytest.mark.parametrize("where", ["one image", "one class", "no two of a class", "all in one point", "zero"])
def test_edges_have_a_finite_value_and_gradient(base: Base, where: str) -> None:
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
    for options in [{}, {"form": "eta"}] if base is PAIRS else [{}]:
        network = embedder(torch.float32)
        z = features.float().requires_grad_()
        parts = made(base, torch.float32, diversity=0.5, **options)(z, labels, network)
        (parts["loss"] + parts["diversity"]).backward()
        assert parts["loss"].isfinite()
        assert z.grad is not None
        assert z.grad.isfinite().all()
        for weights in network.penultimate.parameters():
            assert weights.grad is not None
            assert weights.grad.isfinite().all()
        if base is PAIRS and where == "one image":
            assert parts["loss"].item() == 0
            assert z.grad.eq(0).all()


def test_an_output_of_no_length_has_a_finite_gradient() -> None:
    x = torch.zeros(3, 2).requires_grad_()
    deviance([x, x], torch.tensor([0, 0, 1]), form="shrinkage", **USUAL).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@BOTH
def test_order_of_the_batch_does_not_matter(base: Base) -> None:
    (features, labels), network, loss = problem([3, 4, 2]), embedder(), made(base)
    order = torch.randperm(len(labels), generator=seeded(5))
    here, there = (
        value_and_gradients(network, sum_of(loss, labels[rows], network), features[rows])
        for rows in (torch.arange(len(labels)), order)
    )
    torch.testing.assert_close(there[0], here[0])
    torch.testing.assert_close(there[1], here[1][order])


@BOTH
def test_float32_agrees_with_float64(base: Base) -> None:
    (features, labels), results = problem([3, 4, 2]), []
    for dtype in (torch.float32, torch.float64):
        network, loss = embedder(torch.float32).to(dtype), made(base, dtype, diversity=0.5)
        found = value_and_gradients(network, sum_of(loss, labels, network), features.to(dtype))
        results.append([each.double() for each in found])
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=2e-5)


def test_bad_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alpha", "cost"):
        for value in (0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(UserError, match=rf"^{name} must be above 0 and finite, got {value}\.$"):
                made(PAIRS, **{name: value})
    for value in (-1.1, 1.1, float("nan")):
        with pytest.raises(UserError, match=rf"^beta must be in \[-1, 1\], for it is a cosine, got {value}\.$"):
            made(PAIRS, beta=value)
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match=rf"^shrinkage must be in \[0, 1\], got {value}\.$"):
            made(PAIRS, shrinkage=value)
    for name in ("diversity", "unit_weights"):
        for value in (-0.1, float("inf"), float("nan")):
            with pytest.raises(UserError, match=rf"^{name} must be at least 0 and finite, got {value}\.$"):
                made(PAIRS, **{name: value})
    with pytest.raises(UserError, match=r"^shrinkage is for form=shrinkage, form=eta has none: drop shrinkage=0\.1\.$"):
        made(PAIRS, form="eta", shrinkage=0.1)
    with pytest.raises(UserError, match=r"^unit_weights is a part of diversity, which is 0: drop unit_weights=0\.5\.$"):
        made(PAIRS, unit_weights=0.5)
    with pytest.raises(UserError, match=r"^unknown base of BIER 'npair'\. Known: deviance, discriminative\.$"):
        BIER(Base("npair"), HEADS)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # beartype would be first
    with pytest.raises(UserError, match=r"^unknown form 'etas'\. Did you mean 'eta'\? Known: eta, shrinkage\.$"):
        BIER(PAIRS, HEADS, form="etas")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("form", "eta"), ("alpha", 1.0), ("beta", 0.4), ("cost", 10.0), ("shrinkage", 0.1)]
)
def test_options_of_pairs_are_refused_for_images(name: str, value: str | float) -> None:
    with pytest.raises(
        UserError, match=rf"^{name} is for pairs, and the discriminative loss has none: drop {name}={value}[.]$"
    ):
        made(IMAGES, **{name: value})
    assert made(IMAGES, **USUAL, form="shrinkage", diversity=0.2, unit_weights=1.0).diversity == 0.2


def test_what_it_says_of_itself() -> None:
    assert made(PAIRS).extra_repr() == (
        "base=deviance, heads=(2, 3, 5), form=shrinkage, alpha=2, beta=0.5, cost=25, shrinkage=0.06"
    )
    assert made(PAIRS, form="eta", diversity=0.5).extra_repr() == (
        "base=deviance, heads=(2, 3, 5), form=eta, alpha=2, beta=0.5, cost=25, diversity=0.5, unit_weights=0.02"
    )
    assert made(IMAGES).extra_repr() == "base=discriminative, heads=(2, 3, 5)"
    usual = BIER(IMAGES, HEADS).extra_repr()
    assert usual == "base=discriminative, heads=(2, 3, 5), diversity=250, unit_weights=0.02", "as its paper has it"
    assert METHOD.head_sizes(512) == (96, 160, 256)
    assert METHOD.weigh is not None
    assert METHOD.weigh((96, 160, 256)) == (0.1875, 0.3125, 0.5)
    assert METHOD.built_on(None).images_per_class == 4
    assert METHOD.built_on("discriminative").images_per_class == 1
    assert METHOD.parse(["form=eta", "diversity=0.4"]) == {"form": "eta", "diversity": 0.4}
    assert METHOD.source == "Opitz et al. 2017"
    assert isinstance(METHOD.make({"base": PAIRS, "heads": HEADS}, {"alpha": 1.0}), BIER)
