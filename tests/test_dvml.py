"""Deep variational metric learning: the four terms, the two phases, and what has a gradient in each."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tammes import UserError
from tammes.losses import DiscriminativeLoss, NPairLoss, TripletSemihardLoss
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.training.objectives.base import Base, ClassLayer
from tammes.training.objectives.dvml import DVML, METHOD, kl
from tests.oracles import seeded
from tests.oracles_objectives import FEATURES, problem
from tests.oracles_objectives import embedder_of as embedder_of_length
from tests.oracles_pairs import npair, semihard

BASES = ["npair", "triplet-semihard", "discriminative"]
DIM, CLASSES = 5, 4
WEIGHTS = {True: (1.0, 1.0, 0.1, 1.0), False: (0.8, 1.0, 0.2, 0.8)}  # by whether it is the first phase


def base_of(name: str) -> Base:
    makers = {
        "npair": lambda _: NPairLoss(),
        "triplet-semihard": lambda _: TripletSemihardLoss(),
        "discriminative": lambda dim: ClassLayer(dim, DiscriminativeLoss(CLASSES)),
    }
    return Base(name, makers[name])


def made(base: str, dtype: torch.dtype = torch.float64, **options: Any) -> DVML:
    torch.manual_seed(0)
    dvml = DVML(base_of(base), FEATURES, DIM, **{"hidden": 6, "draws": 3, **options})
    with torch.no_grad():
        for parameter in dvml.parameters():  # biases at random too
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=seeded(1)))
    return dvml.to(dtype)


def embedder_of(dtype: torch.dtype = torch.float64) -> Embedder:
    return embedder_of_length(DIM, dtype)


def batch(sizes: list[int], dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    return problem(sizes, dtype, seed, scale=0.3)


def parts_of(dvml: DVML, features: Tensor, labels: Tensor, embedder: Embedder, seed: int = 7) -> dict[str, Tensor]:
    """With the same draws for the same seed."""
    torch.manual_seed(seed)
    parts: dict[str, Tensor] = dvml(features, labels, embedder)
    return parts


def linear(layer: Any, x: Tensor) -> Tensor:
    result: Tensor = layer.weight @ x + layer.bias
    return result


def oracle(dvml: DVML, embedder: Embedder, x: Tensor, y: list[int], seed: int = 7) -> list[Tensor]:
    """The three parts, one image and one draw at a time; in the first phase the trunk is behind `detach`."""
    w1, w2, w3, w4 = WEIGHTS[dvml.first_phase]
    length = (sum(float(each @ each) for each in x.detach()) / len(x)) ** 0.5
    torch.manual_seed(seed)
    noise = torch.randn(dvml.draws, len(x), DIM, dtype=x.dtype)
    invariant, divergence, spread = [], [], []
    for f in x:
        inner = (f.detach() if dvml.first_phase else f) / length
        mu, lv = linear(dvml.mean, inner), linear(dvml.log_variance, inner)
        divergence.append(sum((b.exp() + a**2 - 1 - b) / 2 for a, b in zip(mu, lv, strict=True)))
        spread.append((mu, (lv.exp()).sqrt()))
        invariant.append(linear(embedder.penultimate, f))
    rebuilt, drawn = [], []
    unit = (sum(float(z.detach() @ z.detach()) for z in invariant) / len(x) / DIM) ** 0.5
    for draw in noise:
        moved = []
        for f, z, (mu, sigma), each in zip(x, invariant, spread, draw, strict=True):
            moved.append(z + unit * (mu + sigma * each))
            behind = linear(embedder.penultimate, f.detach()) if dvml.first_phase else z
            inside = linear(dvml.decoder[0], (behind / unit + mu + sigma * each) / DIM**0.5).clamp_min(0)
            gap = linear(dvml.decoder[2], inside) - f.detach() / length
            rebuilt.append(gap @ gap)
        drawn.append(base_oracle(dvml, torch.stack(moved), y))
    loss = w3 * torch.stack(drawn).mean() + w4 * base_oracle(dvml, torch.stack(invariant), y)
    return [loss, w1 * torch.stack(divergence).mean(), w2 * torch.stack(rebuilt).mean()]


def base_oracle(dvml: DVML, z: Tensor, y: list[int]) -> Tensor:
    if isinstance(dvml.base, NPairLoss):
        return npair(0.002)(z, y)
    if isinstance(dvml.base, TripletSemihardLoss):
        return semihard(1.0)(z, y)
    assert isinstance(dvml.base, ClassLayer)
    terms = []
    for each, label in zip(z, y, strict=True):
        point = linear(dvml.base.layer, each)
        point = point / (point @ point).sqrt()
        apart = [(point - axis).square().sum().sqrt() for axis in torch.eye(CLASSES, dtype=z.dtype)]
        terms.append(apart[label] - (torch.stack(apart).sum() - apart[label]) / (CLASSES - 1) / 3)
    return torch.stack(terms).mean()


def learned(embedder: Embedder, dvml: DVML) -> list[Tensor]:
    return [*embedder.penultimate.parameters(), *dvml.parameters()]


@pytest.mark.parametrize("sizes", [[2, 2, 2], [4, 1, 3]])
@pytest.mark.parametrize("first_phase", [True, False], ids=["first phase", "second phase"])
@pytest.mark.parametrize("base", BASES)
def test_values_and_gradients_equal_the_equations(base: str, first_phase: bool, sizes: list[int]) -> None:
    embedder, (features, labels) = embedder_of(), batch(sizes)
    dvml = made(base)
    dvml.first_phase = first_phase
    x = features.clone().requires_grad_()
    parts = parts_of(dvml, x, labels, embedder)
    assert list(parts) == ["loss", "kl", "reconstruction"]
    for ours, theirs in zip(parts.values(), oracle(dvml, embedder, x, labels.tolist()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
        pair = [
            torch.autograd.grad(
                each, [x, *learned(embedder, dvml)], retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for each in (ours, theirs)
        ]
        assert any(each.abs().max() > 1e-6 for each in pair[0])
        torch.testing.assert_close(*pair, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("options", [{"draws": 1, "hidden": 1}, {"draws": 30, "hidden": 20}], ids=str)
def test_options_at_both_ends_of_their_range_equal_the_equations(options: dict[str, Any]) -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 2], seed=5)
    dvml = made("npair", **options)
    ours = parts_of(dvml, features, labels, embedder).values()
    torch.testing.assert_close([*ours], oracle(dvml, embedder, features, labels.tolist()), rtol=1e-9, atol=1e-10)


def test_toy() -> None:
    mean = torch.tensor([[0.1, -0.2], [0.0, 0.3]], dtype=torch.float64)
    log_variance = torch.tensor([[-0.5, 0.2], [0.1, -0.3]], dtype=torch.float64)
    assert kl(mean, log_variance).item() == pytest.approx(0.078481, abs=1e-6)


def test_the_divergence_is_that_of_torch_and_zero_for_the_standard_normal_distribution() -> None:
    mean, log_variance = torch.randn(2, 6, 3, generator=seeded(0), dtype=torch.float64)
    normal = torch.distributions.Normal(mean, (log_variance / 2).exp())
    standard = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = torch.distributions.kl_divergence(normal, standard).sum(1).mean()
    torch.testing.assert_close(kl(mean, log_variance), expected)
    assert kl(torch.zeros(2, 3), torch.zeros(2, 3)) == 0


def test_the_divergence_of_nearly_standard_distributions_keeps_its_digits_in_float32() -> None:
    log_variance = torch.full((1, 1), 1e-3)
    assert kl(torch.zeros(1, 1), log_variance).item() == pytest.approx(1e-6 / 4, rel=1e-3)


def gradients(value: Tensor, of: list[Tensor]) -> list[bool]:
    """Which of them have a gradient that is not zero."""
    found = torch.autograd.grad(value, of, retain_graph=True, allow_unused=True)
    return [each is not None and bool(each.abs().max() > 0) for each in found]


@pytest.mark.parametrize(
    ("first_phase", "part", "expected"),
    [  # features, penultimate layer, mean, log-variance, decoder
        (True, "loss", [True, True, True, True, False]),
        (True, "kl", [False, False, True, True, False]),
        (True, "reconstruction", [False, True, True, True, True]),
        (False, "loss", [True, True, True, True, False]),
        (False, "kl", [True, False, True, True, False]),
        (False, "reconstruction", [True, True, True, True, True]),
    ],
)
def test_what_learns_from_which_part_in_which_phase(first_phase: bool, part: str, expected: list[bool]) -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 2])
    dvml, x = made("npair"), features.requires_grad_()
    dvml.first_phase = first_phase
    assert isinstance(embedder.penultimate, nn.Linear)
    of = [
        x,
        embedder.penultimate.weight,
        dvml.mean.weight,
        dvml.log_variance.weight,
        dvml.decoder[0].weight,
    ]
    assert gradients(parts_of(dvml, x, labels, embedder)[part], of) == expected  # type: ignore[arg-type]


def test_the_draws_move_the_trunk_only_through_the_embedding_in_the_first_phase() -> None:
    """With a base that is the sum of its input the gradient of both terms is that of z_I."""

    class Sum(nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return embeddings.sum() + 0 * labels.sum()

    embedder, (features, labels) = embedder_of(), batch([2, 2])
    x = features.requires_grad_()
    dvml = DVML(Base("npair", lambda _: Sum()), FEATURES, DIM, draws=4, hidden=3).double()
    of_sum = torch.autograd.grad(embedder.penultimate(x).sum(), x)[0]
    dvml.begin(1, 2)
    first = torch.autograd.grad(parts_of(dvml, x, labels, embedder)["loss"], x)[0]
    torch.testing.assert_close(first, 1.1 * of_sum)
    dvml.begin(2, 2)
    second = torch.autograd.grad(parts_of(dvml, x, labels, embedder)["loss"], x)[0]
    assert not torch.allclose(second, of_sum)


@pytest.mark.parametrize(
    ("first", "epochs", "last_of_first"),
    [(0.5, 10, 5), (0.5, 5, 2), (0.0, 3, 0), (1.0, 3, 3), (0.29, 100, 29), (0.7, 10, 7), (0.5, 1, 0), (1.0, 1, 1)],
)
def test_which_epochs_are_the_first_phase(first: float, epochs: int, last_of_first: int) -> None:
    dvml = made("npair", first=first)
    assert not dvml.first_phase, "before any epoch"
    for epoch in [*range(1, epochs + 1), *range(epochs, 0, -1)]:  # from the two numbers alone, whatever came before
        dvml.begin(epoch, epochs)
        assert dvml.first_phase is (epoch <= last_of_first)


def test_the_same_seed_draws_the_same_and_evaluation_draws_too() -> None:
    embedder, (features, labels) = embedder_of(), batch([2, 2])
    dvml = made("npair")
    once = parts_of(dvml, features, labels, embedder)
    assert parts_of(dvml, features, labels, embedder) == once
    assert parts_of(dvml.eval(), features, labels, embedder) == once
    other = parts_of(dvml, features, labels, embedder, seed=8)
    assert other["kl"] == once["kl"]
    assert other["loss"] != once["loss"]
    assert other["reconstruction"] != once["reconstruction"]


@pytest.mark.parametrize("value", [1e3, -1e3])
def test_the_log_variance_is_bounded(value: float) -> None:
    embedder, (features, labels) = embedder_of(torch.float32), batch([2, 2], torch.float32)
    dvml, found = made("npair", torch.float32), []
    with torch.no_grad():
        for each in (value, 10 if value > 0 else -10):
            dvml.log_variance.weight.zero_()
            dvml.log_variance.bias.fill_(each)
            found.append(parts_of(dvml, features, labels, embedder))
    assert found[0] == found[1]
    assert all(part.isfinite() for part in found[0].values())


@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_the_length_of_the_features_does_not_matter(factor: float) -> None:
    """Where the layer makes the same embeddings of them."""
    (features, labels), dvml = batch([2, 2, 4]), made("npair")
    torch.manual_seed(3)
    other = Embedder(EmbedderConfig("conv4", DIM)).double()
    before = parts_of(dvml, features, labels, other)
    with torch.no_grad():
        assert isinstance(other.penultimate, nn.Linear)
        other.penultimate.weight /= factor
    torch.testing.assert_close(parts_of(dvml, features * factor, labels, other), before)


@pytest.mark.parametrize("base", BASES)
def test_order_of_the_batch_does_not_matter(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the draws of each image going with it, and of pairs by position the pairs together."""
    embedder, (features, _) = embedder_of(), batch([8])
    dvml, labels = made(base), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    noise = torch.randn(3, 8, DIM, generator=seeded(0), dtype=torch.float64)
    order = torch.tensor([4, 5, 0, 1, 6, 7, 2, 3])
    monkeypatch.setattr(torch, "randn", lambda *_, **__: noise)
    before = dvml(features, labels, embedder)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: noise[:, order])
    torch.testing.assert_close(dvml(features[order], labels[order], embedder), before)


@pytest.mark.parametrize("first_phase", [True, False], ids=["first phase", "second phase"])
@pytest.mark.parametrize("base", BASES)
def test_values_and_gradients_are_finite_in_any_batch(base: str, first_phase: bool) -> None:
    for labels, where in product([[2], [1] * 5, [0, 1, 2, 3], [0, 0, 1, 1]], ("apart", "in one point", "at zero")):
        embedder, dvml = embedder_of(torch.float32), made(base, torch.float32, draws=2)
        dvml.first_phase = first_phase
        x = torch.randn(len(labels), FEATURES, generator=seeded(0))
        if where != "apart":
            x = x[:1].repeat(len(labels), 1) * (where == "in one point")
        x.requires_grad_()
        parts = dvml(x, torch.tensor(labels), embedder)
        assert all(part.isfinite() and part.grad_fn is not None for part in parts.values())
        found = torch.autograd.grad(sum(parts.values()), [x, *learned(embedder, dvml)])
        assert all(each.isfinite().all() for each in found)


@pytest.mark.parametrize("base", BASES)
def test_float32_agrees_with_float64(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = batch([2, 4, 3, 2])
    noise = torch.randn(3, len(labels), DIM, generator=seeded(0), dtype=torch.float64)
    both = made(base), made(base, torch.float32)
    monkeypatch.setattr(torch, "randn", lambda *_, dtype, **__: noise.to(dtype))
    double = both[0](features, labels, embedder_of())
    single = both[1](features.float(), labels, embedder_of(torch.float32))
    for name, value in single.items():
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(double[name].item(), rel=1e-5, abs=1e-5)


def test_the_decoder_learns_to_tell_the_features_of_images_apart() -> None:
    embedder, (features, labels) = embedder_of(torch.float32), batch([2, 2], torch.float32)
    torch.manual_seed(0)
    dvml = DVML(base_of("npair"), FEATURES, DIM, hidden=32, draws=3)
    optimizer = torch.optim.Adam(dvml.parameters(), lr=0.01)
    for _ in range(100):
        reconstruction = dvml(features, labels, embedder)["reconstruction"]
        reconstruction.backward()
        optimizer.step()
        optimizer.zero_grad()
    scaled = features / features.square().sum(1).mean().sqrt()
    if_all_alike = (scaled - scaled.mean(0)).square().sum(1).mean()
    assert reconstruction < 0.7 * if_all_alike


def test_bad_options() -> None:
    for name in ("draws", "hidden"):
        with pytest.raises(UserError, match=rf"^{name} must be at least 1, got 0\.$"):
            DVML(base_of("npair"), FEATURES, DIM, **{name: 0})
    for value in (-0.1, 1.01, float("nan")):
        with pytest.raises(
            UserError,
            match=rf"^first must be in .0, 1., the share of the epochs in the first phase, got {value}\.$",
        ):
            made("npair", first=value)
    with pytest.raises(
        UserError,
        match=r"^unknown base of DVML 'n-pair'\. Did you mean 'npair'\?"
        r" Known: discriminative, npair, triplet-semihard\.$",
    ):
        DVML(Base("n-pair", lambda _: NPairLoss()), FEATURES, DIM)
    with pytest.raises(ValueError, match="^the base npair cannot be made: it is a Base without make$"):
        DVML(Base("npair"), FEATURES, DIM)


def test_what_it_says_of_itself() -> None:
    assert made("npair").extra_repr() == "draws=3, first=0.5"
    assert [METHOD.built_on(base).images_per_class for base in BASES] == [2, 4, 1]
    assert next(iter(METHOD.bases)) == "npair"
    assert METHOD.source == "Lin et al. 2018"
    assert METHOD.parse(["draws=5", "first=0.2"]) == {"draws": 5, "first": 0.2}
    given = {"base": base_of("npair"), "features": 3, "dim": 2}
    dvml = METHOD.make(given, {"draws": 1})  # type: ignore[arg-type]
    shapes = [tuple(each.shape) for each in dvml.parameters()]
    assert shapes == [(2, 3), (2,), (2, 3), (2,), (512, 2), (512,), (3, 512), (3,)]
