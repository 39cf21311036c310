"""Deep adversarial metric learning: the generator, the embedder, and what neither learns from the other."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tammes import UserError
from tammes.geometry import normalise, rms_norm
from tammes.losses import DiscriminativeLoss, NPairLoss
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.training.objectives.base import Base, ClassLayer
from tammes.training.objectives.daml import DAML, METHOD, generator_loss, negatives_in_order, triplet_loss
from tests.oracles import seeded
from tests.oracles_objectives import FEATURES, problem
from tests.oracles_objectives import embedder_of as embedder_of_length
from tests.oracles_pairs import SIZES, TOY, pairs_by_position

BASES = ["npair", "triplet", "discriminative"]
DIM, CLASSES = 5, 4
SYNTHETIC_TOY = torch.tensor([[-0.2, 0.9], [0.0, 0.9], [-0.5, -0.6]], dtype=torch.float64)


def base_of(name: str) -> Base:
    return Base(name, (lambda dim: ClassLayer(dim, DiscriminativeLoss(CLASSES))) if name == "discriminative" else None)


def made(base: str, dtype: torch.dtype = torch.float64, **options: Any) -> DAML:
    torch.manual_seed(0)
    daml = DAML(base_of(base), FEATURES, DIM, **{"hidden": 6, **options})
    with torch.no_grad():
        for parameter in daml.generator.parameters():  # biases at random too
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=seeded(1)))
    return daml.to(dtype)


def embedder_of(dtype: torch.dtype = torch.float64) -> Embedder:
    return embedder_of_length(DIM, dtype)


def batch(sizes: list[int], dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    return problem(sizes, dtype, seed, scale=0.3)


def squared(x: Tensor, y: Tensor) -> Tensor:
    return (x - y) @ (x - y)


def unit(x: Tensor) -> Tensor:
    return x / (x @ x).sqrt()


def triplets_of(y: list[int]) -> list[tuple[int, int, int]]:
    """Walk on from each pair to the next of another class."""
    found, triplets = sorted(pairs_by_position(y)), []
    for i, (a, p) in enumerate(found):
        others = [other for other, n in found[i + 1 :] + found[:i] if y[other] != y[a]]
        if others:
            triplets.append((a, p, dict(found)[others[0]]))
    return triplets


def oracle(daml: DAML, embedder: Embedder, x: Tensor, y: list[int]) -> tuple[Tensor, Tensor]:
    """The loss and the generator's, one triplet at a time."""
    layer = embedder.penultimate
    assert isinstance(layer, nn.Linear)
    weight, bias = layer.weight, layer.bias
    length = (sum(float(each @ each) for each in x.detach()) / len(x)) ** 0.5
    of_generator, of_triplets, negatives = [], [], []
    scaled = [each.detach() / length for each in x]
    embedded = [weight.detach() @ each.detach() + bias.detach() for each in x]
    typical = (sum(float(each @ each) for each in embedded) / len(x)) ** 0.5
    for a, p, n in triplets_of(y):
        now = torch.cat([scaled[a], scaled[p], scaled[n]])
        for number in (0, 2, 4):
            now = daml.generator[number].weight @ now + daml.generator[number].bias  # type: ignore[operator]
            now = now.clamp_min(0) if number < 4 else now
        e_a, e_p, e_made = (
            weight.detach() @ each + bias.detach() for each in (x[a].detach(), x[p].detach(), now * length)
        )
        if daml.on != "npair":
            e_a, e_p, e_made = unit(e_a), unit(e_p), unit(e_made)
        else:
            e_a, e_p, e_made = e_a / typical, e_p / typical, e_made / typical
        farther = (squared(e_made, e_a) - squared(e_p, e_a) - daml.margin).clamp_min(0)
        near = squared(now, scaled[a]) + daml.to_negative * squared(now, scaled[n])
        of_generator.append(near + daml.adversarial * farther)
        negative = weight @ (now.detach() * length if daml.synthetic else x[n]) + bias
        negatives.append((negative, y[n]))
        e_a, e_p, e_n = unit(weight @ x[a] + bias), unit(weight @ x[p] + bias), unit(negative)
        of_triplets.append((squared(e_a, e_p) - squared(e_a, e_n) + daml.margin).clamp_min(0))
    z = [weight @ each + bias for each in x]
    generator = torch.stack(of_generator).mean()
    if daml.on == "triplet":
        return torch.stack(of_triplets).mean(), generator
    terms = []
    if daml.on == "npair":
        for a, p in pairs_by_position(y):
            odds = sum((z[a] @ e - z[a] @ z[p]).exp() for e, label in negatives if label != y[a])
            terms.append((1 + odds).log() + 0.002 / 4 * (z[a] @ z[a] + z[p] @ z[p]))
        return torch.stack(terms).mean(), generator
    assert isinstance(daml.base, ClassLayer)
    every = [(z[i], y[i]) for a, p, _ in triplets_of(y) for i in (a, p)] + negatives
    for e, label in every:
        point = unit(daml.base.layer.weight @ e + daml.base.layer.bias)
        apart = [squared(point, axis).sqrt() for axis in torch.eye(CLASSES, dtype=x.dtype)]
        terms.append(apart[label] - (torch.stack(apart).sum() - apart[label]) / (CLASSES - 1) / 3)
    return torch.stack(terms).mean(), generator


def learned(embedder: Embedder, daml: DAML) -> list[Tensor]:
    return [*embedder.penultimate.parameters(), *daml.parameters()]


@pytest.mark.parametrize("sizes", [*SIZES, [4, 4, 2]])
@pytest.mark.parametrize("synthetic", [True, False], ids=["synthetic", "real"])
@pytest.mark.parametrize("base", BASES)
def test_values_and_gradients_equal_the_equations(base: str, synthetic: bool, sizes: list[int]) -> None:
    embedder, (features, labels) = embedder_of(), batch(sizes)
    daml = made(base, margin=0.4)
    daml.synthetic = synthetic
    x = features.clone().requires_grad_()
    parts = daml(x, labels, embedder)
    assert list(parts) == ["loss", "generator"]
    for ours, theirs in zip(parts.values(), oracle(daml, embedder, x, labels.tolist()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
        pair = [
            torch.autograd.grad(each, [x, *learned(embedder, daml)], allow_unused=True, materialize_grads=True)
            for each in (ours, theirs)
        ]
        assert any(each.abs().max() > 1e-6 for each in pair[0])
        torch.testing.assert_close(*pair, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"to_negative": 0.0, "adversarial": 0.0},
        {"to_negative": 1e3, "adversarial": 1e4, "margin": 1e-3},
        {"margin": 10.0, "hidden": 1},
        {"hidden": 40},
    ],
    ids=str,
)
@pytest.mark.parametrize("base", BASES)
def test_options_at_both_ends_of_their_range_equal_the_equations(base: str, options: dict[str, Any]) -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 4, 3], seed=5)
    daml = made(base, **options)
    ours, theirs = daml(features, labels, embedder), oracle(daml, embedder, features, labels.tolist())
    torch.testing.assert_close(tuple(ours.values()), theirs, rtol=1e-9, atol=1e-10)


def test_toy() -> None:
    a, p, n = TOY[[0, 2, 4]], TOY[[1, 3, 5]], TOY[[2, 1, 0]]
    embedded = [normalise(each) for each in (a, p, SYNTHETIC_TOY)]
    value = generator_loss(a, n, SYNTHETIC_TOY, *embedded, to_negative=1.0, adversarial=50.0, margin=0.2)
    assert value.item() == pytest.approx(18.711217, abs=1e-6)
    assert triplet_loss(*embedded, margin=1.0).item() == pytest.approx(1.303344, abs=1e-6)


@pytest.mark.parametrize("labels", [[3, 3, 1, 1, 1, 3], [0, 1, 2], [5, 5, 5, 2], [7, 2, 2], [1, 0, 1, 1, 0, 0, 1]])
def test_the_negative_is_of_the_next_pair_of_another_class(labels: list[int]) -> None:
    expected = []
    for i, own in enumerate(labels):
        around = [*range(i + 1, len(labels)), *range(i)]
        expected.append(next(j for j in around if labels[j] != own))
    assert negatives_in_order(torch.tensor(labels)).tolist() == expected


@pytest.mark.parametrize("labels", [[], [4], [4, 4, 4]])
def test_pairs_of_one_class_have_no_negative(labels: list[int]) -> None:
    assert negatives_in_order(torch.tensor(labels, dtype=torch.int64)).tolist() == [-1] * len(labels)


@pytest.mark.parametrize("sizes", [[2, 2, 2, 2], [2, 3, 2], [2], [4]])
def test_with_real_negatives_and_one_pair_of_a_class_it_is_the_npair_loss(sizes: list[int]) -> None:
    embedder, (features, labels) = embedder_of(), batch(sizes)
    daml = made("npair")
    daml.synthetic = False
    value = daml(features, labels, embedder)["loss"]
    torch.testing.assert_close(value, NPairLoss()(embedder.penultimate(features), labels))
    assert value.item() > 0


@pytest.mark.parametrize("base", BASES)
def test_neither_the_embedder_nor_the_generator_learns_from_the_part_of_the_other(base: str) -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 2, 2])
    daml, x = made(base), features.requires_grad_()
    of_embedder = [x, *embedder.penultimate.parameters()]
    for part, own, others in (
        ("loss", of_embedder, [*daml.generator.parameters()]),
        ("generator", [*daml.generator.parameters()], of_embedder),
    ):
        value = daml(x, labels, embedder)[part]
        gradients = torch.autograd.grad(value, [*own, *others], allow_unused=True)
        assert all(each is not None and each.abs().max() > 0 for each in gradients[: len(own)])
        assert all(each is None for each in gradients[len(own) :])


@pytest.mark.parametrize(
    ("warm_up", "epochs", "first_synthetic"),
    [(0.5, 10, 6), (0.5, 5, 3), (0.0, 3, 1), (0.29, 100, 30), (0.7, 10, 8), (0.99, 10, 10), (0.5, 1, 1), (0.5, 2, 2)],
)
def test_which_epochs_have_synthetic_negatives(warm_up: float, epochs: int, first_synthetic: int) -> None:
    daml = made("triplet", warm_up=warm_up)
    assert daml.synthetic, "before any epoch"
    for epoch in [*range(1, epochs + 1), *range(epochs, 0, -1)]:  # from the two numbers alone, whatever came before
        daml.begin(epoch, epochs)
        assert daml.synthetic is (epoch >= first_synthetic)


def test_the_generator_learns_in_the_warm_up_too() -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 2, 2])
    daml = made("npair")
    values = []
    for epoch in (1, 10):
        daml.begin(epoch, 10)
        values.append(daml(features, labels, embedder))
    assert values[0]["generator"] == values[1]["generator"]
    assert values[0]["generator"].requires_grad
    assert values[0]["loss"] != values[1]["loss"]


@pytest.mark.parametrize("factor", [1e-4, 1e4])
@pytest.mark.parametrize("base", ["npair", "triplet"])
def test_the_length_of_the_features_does_not_matter(base: str, factor: float) -> None:
    """Where the layer makes the same embeddings of them."""
    (features, labels), daml = batch([2, 2, 4]), made(base)
    torch.manual_seed(3)
    other = Embedder(EmbedderConfig("conv4", DIM)).double()
    before = daml(features, labels, other)
    with torch.no_grad():
        assert isinstance(other.penultimate, nn.Linear)
        other.penultimate.weight /= factor
    torch.testing.assert_close(daml(features * factor, labels, other), before)


def test_typical_length_is_the_root_of_the_mean_square_and_has_no_gradient() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0]], requires_grad=True)
    length = rms_norm(x)
    assert length.item() == pytest.approx(13**0.5)
    assert not length.requires_grad
    assert rms_norm(torch.zeros(2, 3)).item() == 1
    assert rms_norm(torch.full((2, 3), 1e30)).item() == pytest.approx(3**0.5 * 1e30)


@pytest.mark.parametrize("synthetic", [True, False], ids=["synthetic", "real"])
@pytest.mark.parametrize("base", BASES)
def test_values_and_gradients_are_finite_in_any_batch(base: str, synthetic: bool) -> None:
    every = [[2], [1] * 5, [0, 1, 2, 3], [0, 1, 0, 2], [0, 0, 1, 1, 2, 2]]
    for labels, where in product(every, ("apart", "in one point", "at zero")):
        embedder, daml = embedder_of(torch.float32), made(base, torch.float32)
        daml.synthetic = synthetic
        x = torch.randn(len(labels), FEATURES, generator=seeded(0))
        if where != "apart":
            x = x[:1].repeat(len(labels), 1) * (where == "in one point")
        x.requires_grad_()
        parts = daml(x, torch.tensor(labels), embedder)
        assert all(part.isfinite() and part.grad_fn is not None for part in parts.values())
        gradients = torch.autograd.grad(sum(parts.values()), [x, *learned(embedder, daml)])
        assert all(each.isfinite().all() for each in gradients)
        if len(triplets_of(labels)) == 0:
            assert parts["generator"] == 0
            assert base != "triplet" or parts["loss"] == 0


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [2, 2, 2], [3]])
def test_without_negatives_the_discriminative_loss_takes_all_images_as_they_are(labels: list[int]) -> None:
    embedder, (features, _) = embedder_of(), batch([len(labels)])
    daml = made("discriminative")
    assert daml.base is not None
    expected = daml.base(embedder.penultimate(features), torch.tensor(labels))
    torch.testing.assert_close(daml(features, torch.tensor(labels), embedder)["loss"], expected)
    assert expected != 0


def test_the_discriminative_loss_may_stand_without_a_class_layer() -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 2])
    daml = DAML(Base("discriminative", DiscriminativeLoss), FEATURES, DIM, hidden=3).double()
    daml.synthetic = False
    rows = torch.tensor(triplets_of(labels.tolist())).flatten()
    expected = DiscriminativeLoss(DIM)(embedder.penultimate(features)[rows], labels[rows])
    torch.testing.assert_close(daml(features, labels, embedder)["loss"], expected)


@pytest.mark.parametrize("base", ["npair", "triplet"])
def test_an_image_without_a_partner_is_not_moved(base: str) -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 2, 1])
    x = features.requires_grad_()
    gradient = torch.autograd.grad(made(base)(x, labels, embedder)["loss"], x)[0]
    assert gradient[labels == 2].eq(0).all()
    assert gradient[labels != 2].abs().amax(1).max() > 1e-6


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("base", BASES)
def test_nan_is_not_hidden(base: str, row: int) -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 2, 1])
    features[row, 3] = float("nan")
    for synthetic in (True, False):
        daml = made(base)
        daml.synthetic = synthetic
        parts = daml(features, labels, embedder)
        assert parts["loss"].isnan()
        assert parts["generator"].isnan()


@pytest.mark.parametrize("base", BASES)
def test_float32_agrees_with_float64(base: str) -> None:
    features, labels = batch([2, 4, 3, 2])
    double = made(base)(features, labels, embedder_of())
    single = made(base, torch.float32)(features.float(), labels, embedder_of(torch.float32))
    for name, value in single.items():
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(double[name].item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("base", BASES)
def test_with_which_pair_the_batch_begins_does_not_matter(base: str) -> None:
    """But the order of the pairs does: it says which is whose negative."""
    embedder, (features, _) = embedder_of(), batch([8])
    labels, daml = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), made(base)
    before, after = (daml(features.roll(by, 0), labels.roll(by), embedder) for by in (0, 4))
    torch.testing.assert_close(after, before)
    order = torch.tensor([0, 1, 4, 5, 2, 3, 6, 7])
    assert not torch.isclose(daml(features[order], labels[order], embedder)["generator"], before["generator"])


def test_the_generator_learns_to_make_negatives_that_are_hard() -> None:
    embedder, (features, labels) = embedder_of(torch.float32), batch([4, 4, 4], torch.float32)
    daml = made("triplet", torch.float32, hidden=32)
    optimizer = torch.optim.Adam(daml.generator.parameters(), lr=0.01)
    values = []
    for _ in range(100):
        parts = daml(features, labels, embedder)
        values.append((parts["loss"].item(), parts["generator"].item()))
        parts["generator"].backward()
        optimizer.step()
        optimizer.zero_grad()
    daml.synthetic = False
    real = daml(features, labels, embedder)["loss"].item()
    assert values[-1][1] < 0.5 * values[0][1]
    assert values[-1][0] > real + 0.1, "to the embedder they are worse than real ones"


def test_bad_options() -> None:
    for name in ("to_negative", "adversarial"):
        for value in (-1.0, float("inf"), float("nan")):
            with pytest.raises(UserError, match=rf"^{name} must be at least 0 and finite, got {value}\.$"):
                DAML(base_of("npair"), FEATURES, DIM, **{name: value})  # type: ignore[arg-type]
    for value in (0.0, float("nan")):
        with pytest.raises(UserError, match=rf"^margin must be above 0 and finite, got {value}\.$"):
            made("npair", margin=value)
    with pytest.raises(UserError, match=r"^hidden must be at least 1, got 0\.$"):
        made("npair", hidden=0)
    for value in (-0.1, 1.0, float("nan")):
        with pytest.raises(
            UserError,
            match=rf"^warm_up must be in .0, 1., the share of the epochs with real negatives, got {value}\.$",
        ):
            made("npair", warm_up=value)
    with pytest.raises(
        UserError,
        match=r"^unknown base of DAML 'triplets'\. Did you mean 'triplet'\? Known: discriminative, npair, triplet\.$",
    ):
        made("triplets")
    with pytest.raises(ValueError, match="^the discriminative base cannot be made: it is a Base without make$"):
        DAML(Base("discriminative"), FEATURES, DIM)


def test_what_it_says_of_itself() -> None:
    assert made("triplet").extra_repr() == "base=triplet, to_negative=1, adversarial=50, margin=1, warm_up=0.5"
    assert [METHOD.built_on(base).images_per_class for base in BASES] == [2, 2, 2]
    assert next(iter(METHOD.bases)) == "npair"
    assert METHOD.source == "Duan et al. 2018"
    assert METHOD.parse(["adversarial=1", "hidden=64"]) == {"adversarial": 1.0, "hidden": 64}
    given = {"base": base_of("npair"), "features": 3, "dim": 2}
    daml = METHOD.make(given, {"warm_up": 0.0})  # type: ignore[arg-type]
    assert [tuple(each.shape) for each in daml.parameters()] == [(512, 9), (512,), (512, 512), (512,), (3, 512), (3,)]
