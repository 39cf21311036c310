"""The discriminative loss: its equation, its gradient, its forms."""

import copy
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tammes import DiscriminativeLoss, HardDiscriminativeLoss, bound
from tammes.geometry import normalise
from tammes.losses import centroid_kernel, discriminative
from tests.oracles import (
    SIX,
    SIX_LABELS,
    TRIANGLE,
    UNEVEN_LABELS,
    discriminative_mean,
    plain_discriminative,
    seeded,
    unit_points,
)

SIZES = [3, 2, 1]


def case(batch: int, classes: int, dim: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    embeddings = torch.randn(batch, dim, generator=seeded(0), dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(classes, (batch,), generator=seeded(1))
    return embeddings, labels, unit_points(classes, dim, seed=2, dtype=dtype)


def gradient(loss: Tensor, embeddings: Tensor) -> Tensor:
    return torch.autograd.grad(loss, embeddings)[0]


@pytest.mark.parametrize(("batch", "classes", "dim"), [(1, 2, 2), (7, 5, 4), (32, 20, 64), (8, 2100, 3)])
def test_value_and_gradient_equal_the_equation(batch: int, classes: int, dim: int) -> None:
    embeddings, labels, centroids = case(batch, classes, dim)
    ours = DiscriminativeLoss(centroids, push=0.3)(embeddings, labels)
    x = normalise(embeddings.detach()).tolist()
    assert ours.item() == pytest.approx(discriminative_mean(x, labels.tolist(), centroids.tolist(), 0.3), abs=1e-12)
    plain = plain_discriminative(embeddings, labels, centroids, push=0.3)
    torch.testing.assert_close(gradient(ours, embeddings), gradient(plain, embeddings), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("batch", "classes"), [(1, 2), (7, 5), (32, 200)])
def test_one_hot_equals_the_general_path(batch: int, classes: int) -> None:
    embeddings, labels, _ = case(batch, classes, classes)
    one_hot = DiscriminativeLoss(classes)(embeddings, labels)
    general = DiscriminativeLoss(torch.eye(classes, dtype=torch.float64))(embeddings, labels)
    assert one_hot.item() == pytest.approx(general.item(), abs=1e-12)
    torch.testing.assert_close(gradient(one_hot, embeddings), gradient(general, embeddings), rtol=0, atol=1e-12)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("weighting", ["none", "balanced", "triplet"])
def test_float32_equals_float64_to_1e_6(one_hot: bool, weighting: discriminative.Weighting) -> None:
    embeddings, labels, centroids = case(64, 50, 50, torch.float32)
    sizes = torch.randint(1, 9, (50,), generator=seeded(3))
    results = []
    for dtype in (torch.float32, torch.float64):
        loss = DiscriminativeLoss(50 if one_hot else centroids.to(dtype), class_sizes=sizes, weighting=weighting)
        z = embeddings.detach().to(dtype).requires_grad_()
        value = loss(z, labels)
        results.append((value.double(), gradient(value, z).double()))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-6)


def close_case(one_hot: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings on and next to the own centroid, a wrong one, and opposite."""
    centroids = torch.eye(6, dtype=torch.float64) if one_hot else unit_points(6, 6, seed=2)
    labels = torch.arange(6).repeat(4)
    step = unit_points(24, 6, seed=3)
    radius = torch.tensor([1e-2, 0.2, 1e-2, 0.2]).repeat_interleave(6)[:, None]
    base = torch.cat([centroids, centroids, centroids.roll(1, 0), centroids.roll(2, 0)])
    return (base + radius * step).requires_grad_(), labels, centroids


@pytest.mark.parametrize("one_hot", [False, True])
def test_gradient_passes_gradcheck_far_from_and_close_to_the_centroids(one_hot: bool) -> None:
    embeddings, labels, centroids = close_case(one_hot)
    loss = DiscriminativeLoss(6 if one_hot else centroids)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), embeddings)
    plain = plain_discriminative(embeddings, labels, centroids)
    torch.testing.assert_close(gradient(loss(embeddings, labels), embeddings), gradient(plain, embeddings))


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("weighting", ["none", "balanced", "triplet"])
def test_weighted_gradient_passes_gradcheck(one_hot: bool, weighting: discriminative.Weighting) -> None:
    embeddings, labels, centroids = close_case(one_hot)
    sizes = [4, 1, 2, 7, 3, 5]
    loss = DiscriminativeLoss(6 if one_hot else centroids, class_sizes=sizes, weighting=weighting, push=0.7)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), embeddings)


@pytest.mark.parametrize("one_hot", [False, True])
def test_gradient_is_right_close_to_the_centroid_in_float32(one_hot: bool) -> None:
    embeddings, labels, centroids = close_case(one_hot)
    z = embeddings.detach().float().requires_grad_()
    ours = gradient(DiscriminativeLoss(6 if one_hot else centroids.float())(z, labels), z)
    exact = gradient(plain_discriminative(embeddings, labels, centroids), embeddings)
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-6)


def test_toy_values() -> None:
    four = torch.tensor(SIX[:4], dtype=torch.float64), torch.tensor(SIX_LABELS[:4])
    assert DiscriminativeLoss(2)(*four).item() == pytest.approx(0.258394, abs=1e-6)
    six, triangle = torch.tensor(SIX, dtype=torch.float64), torch.tensor(TRIANGLE, dtype=torch.float64)
    assert DiscriminativeLoss(triangle)(six, torch.tensor(SIX_LABELS)).item() == pytest.approx(0.088160, abs=1e-6)
    uneven = DiscriminativeLoss(triangle, class_sizes=SIZES, weighting="triplet")(six, torch.tensor(UNEVEN_LABELS))
    triplets = bound.num_triplets(torch.tensor(UNEVEN_LABELS))
    assert uneven.item() * 3 * triplets == pytest.approx(14.462862, abs=1e-6)


def test_triplet_weighting_is_the_mean_over_all_triplets() -> None:
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2 + [3])
    embeddings, centroids = unit_points(11, 4, seed=0), unit_points(4, 4, seed=1)
    loss = DiscriminativeLoss(centroids, class_sizes=labels.bincount(), weighting="triplet")
    exact = bound.discriminative_loss(embeddings, labels, centroids, reduction="mean")
    assert 3 * loss(embeddings, labels).item() == pytest.approx(exact.item(), abs=1e-12)


def test_balanced_weighting_is_the_mean_over_classes_of_their_means() -> None:
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    embeddings, centroids = unit_points(10, 4, seed=0), unit_points(3, 4, seed=1)
    loss = DiscriminativeLoss(centroids, class_sizes=labels.bincount(), weighting="balanced")
    plain = DiscriminativeLoss(centroids)
    means = [plain(embeddings[labels == m], labels[labels == m]) for m in range(3)]
    assert loss(embeddings, labels).item() == pytest.approx(torch.stack(means).mean().item(), abs=1e-12)


@pytest.mark.parametrize("push", [0.0, 1 / 3, 0.9])
def test_equal_sizes_make_the_three_weightings_the_same(push: float) -> None:
    embeddings, labels, centroids = case(9, 5, 4)
    values = [
        DiscriminativeLoss(centroids, class_sizes=[7] * 5, weighting=weighting, push=push)(embeddings, labels).item()
        for weighting in ("none", "balanced", "triplet")
    ]
    assert values == pytest.approx([values[0]] * 3, abs=1e-12)


def test_a_class_with_one_image_is_pulled_but_does_not_push_under_the_exact_weights() -> None:
    centroids = unit_points(3, 4, seed=1)
    loss = DiscriminativeLoss(centroids, class_sizes=SIZES, weighting="triplet")
    z = unit_points(1, 4, seed=0).requires_grad_()
    pull_only = torch.linalg.vector_norm(normalise(z) - centroids[2])
    ours, expected = gradient(loss(z, torch.tensor([2])), z), gradient(pull_only, z)
    torch.testing.assert_close(ours / ours.norm(), expected / expected.norm())


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4).filter(lambda n: max(n) > 1),
    st.floats(0, 1 / 3),
    st.integers(0, 999),
)
def test_three_times_the_loss_bounds_the_mean_triplet_loss_for_push_up_to_a_third(
    sizes: list[int], push: float, seed: int
) -> None:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    embeddings, centroids = unit_points(len(labels), 3, seed), unit_points(len(sizes), 3, seed + 1)
    loss = DiscriminativeLoss(centroids, class_sizes=sizes, weighting="triplet", push=push)
    assert 3 * loss(embeddings, labels) >= bound.triplet_loss(embeddings, labels, reduction="mean") - 1e-12


def test_a_push_above_a_third_can_fall_below_the_triplet_loss() -> None:
    centroids = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    loss = DiscriminativeLoss(centroids, push=0.5)
    assert 3 * loss(centroids[labels], labels) < bound.triplet_loss(centroids[labels], labels, reduction="mean")


@given(st.integers(2, 6), st.integers(2, 5), st.floats(0, 0.99), st.integers(0, 999))
def test_the_own_centroid_is_the_minimiser_for_every_push_below_one(
    classes: int, dim: int, push: float, seed: int
) -> None:
    centroids, x = unit_points(classes, dim, seed), unit_points(1, dim, seed + 1)
    loss, label = DiscriminativeLoss(centroids, push=push), torch.tensor([0])
    least, distance = loss(centroids[:1], label), torch.dist(x[0], centroids[0])
    assert loss(x, label) >= least + (1 - push) * distance - 1e-12
    assert loss(x, label) <= least + (1 + push) * distance + 1e-12


@pytest.mark.parametrize("weighting", ["none", "balanced", "triplet"])
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("given", [[4, 1, 2, 7, 3], [4, 1, 0, 7, 0]])
def test_minimum_is_the_value_where_every_image_is_its_centroid(
    weighting: discriminative.Weighting, one_hot: bool, given: list[int]
) -> None:
    """Also where some centroids are kept free: these repel, and have no part in the mean."""
    sizes = torch.tensor(given)
    labels = torch.repeat_interleave(torch.arange(5), sizes)
    centroids = torch.eye(5, dtype=torch.float64) if one_hot else unit_points(5, 5, seed=0)
    loss = DiscriminativeLoss(5 if one_hot else centroids, class_sizes=sizes, weighting=weighting)
    assert loss.minimum == pytest.approx(loss(centroids[labels], labels).item(), abs=1e-7)


def test_free_centroids_leave_images_their_weights() -> None:
    embeddings, labels = torch.randn(12, 5, generator=seeded(0)), torch.arange(3).repeat(4)
    kinds: tuple[discriminative.Weighting, ...] = ("none", "balanced")
    none, balanced = (
        DiscriminativeLoss(5, class_sizes=[4, 4, 4, 0, 0], weighting=weighting)(embeddings, labels).item()
        for weighting in kinds
    )
    assert balanced == pytest.approx(none, abs=1e-6)


def test_known_minima_of_equidistant_centroids() -> None:
    assert DiscriminativeLoss(100).minimum == pytest.approx(-0.471405, abs=1e-6)
    assert DiscriminativeLoss(torch.tensor(TRIANGLE)).minimum == pytest.approx(-(3**0.5) / 3, abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 7, 20, 1000])
@pytest.mark.parametrize("weighting", ["none", "triplet"])
def test_chunks_change_nothing(chunk: int, weighting: discriminative.Weighting) -> None:
    embeddings, labels, centroids = case(30, 20, 4)
    with torch.no_grad():
        embeddings[:5] = centroids[:5]  # close pairs too
    sizes = torch.arange(1, 21)
    values = []
    for chunk_classes in (None, chunk):
        loss = DiscriminativeLoss(centroids, class_sizes=sizes, weighting=weighting, chunk_classes=chunk_classes)
        value = loss(embeddings, labels)
        values.append((value, gradient(value, embeddings)))
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("weighting", ["none", "triplet"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_sampled_loss_is_unbiased_in_value_and_gradient(
    monkeypatch: pytest.MonkeyPatch, size: int, weighting: discriminative.Weighting
) -> None:
    embeddings, labels, centroids = case(8, 5, 3)
    loss = partial(DiscriminativeLoss, centroids, class_sizes=[2, 4, 1, 3, 6], weighting=weighting)
    exact, sampled = loss()(embeddings, labels), loss(sample_classes=size)
    values, gradients = [], []
    for subset in combinations(range(5), size):
        drawn = torch.tensor(subset)
        monkeypatch.setattr(centroid_kernel, "_sample", lambda *_, drawn=drawn: drawn)
        value = sampled(embeddings, labels)
        values.append(value)
        gradients.append(gradient(value, embeddings))
    torch.testing.assert_close(torch.stack(values).mean(), exact)
    torch.testing.assert_close(torch.stack(gradients).mean(0), gradient(exact, embeddings))


@pytest.mark.parametrize(("classes", "size"), [(10, 3), (10, 9), (4, 2)])
def test_every_class_is_drawn_equally_often_and_never_twice(classes: int, size: int) -> None:
    torch.manual_seed(0)
    counts = torch.zeros(classes)
    for _ in range(4000):
        drawn = centroid_kernel._sample(classes, size)
        assert len(drawn) == len(drawn.unique()) == size
        counts[drawn] += 1
    expected = 4000 * size / classes
    assert (counts - expected).abs().max() < 5 * expected**0.5


def test_sampling_is_reproducible_with_a_seed() -> None:
    embeddings, labels, centroids = case(8, 50, 3)
    loss = DiscriminativeLoss(centroids, sample_classes=5)
    values = []
    for _ in range(2):
        torch.manual_seed(7)
        values.append([loss(embeddings, labels).item() for _ in range(3)])
    assert values[0] == values[1]
    assert len(set(values[0])) == 3


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("weighting", ["none", "balanced", "triplet"])
@pytest.mark.parametrize("close", [False, True])
def test_the_kernel_has_the_value_and_the_gradient_of_the_equation(
    one_hot: bool, weighting: discriminative.Weighting, close: bool
) -> None:
    embeddings, labels, centroids = close_case(one_hot) if close else case(30, 6, 6)
    loss = DiscriminativeLoss(
        6 if one_hot else centroids, class_sizes=[3, 9, 4, 5, 8, 2], weighting=weighting, push=0.2
    ).double()
    each = loss.per_image(embeddings, labels)
    assert each.shape == labels.shape
    whole = loss(embeddings, labels)
    torch.testing.assert_close(whole, each.mean(), rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(whole, embeddings), gradient(each.mean(), embeddings), rtol=0, atol=1e-12)
    torch.testing.assert_close(loss(embeddings[4:5], labels[4:5]), each[4], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, about its internals
def test_a_compiled_loss_draws_the_same_classes_again_each_time() -> None:
    embeddings, labels, centroids = case(8, 50, 3)
    loss = DiscriminativeLoss(centroids, sample_classes=5)
    values = []
    for run in (loss, torch.compile(loss, backend="aot_eager")):
        torch.manual_seed(7)
        values.append([run(embeddings, labels).item() for _ in range(3)])
    assert values[0] == pytest.approx(values[1])
    assert len(set(values[1])) == 3


def test_the_operator_of_a_compiled_loss_has_its_value_and_refuses_a_second_derivative() -> None:
    embeddings, labels, centroids = case(8, 5, 3)
    for sample in (3, None):
        torch.manual_seed(7)
        value, _ = centroid_kernel._operator(embeddings, labels, centroids, 0.1, None, None, None, sample, 5)
        torch.manual_seed(7)
        plain = DiscriminativeLoss(centroids, push=0.4, sample_classes=sample)(embeddings, labels)
        torch.testing.assert_close(value, plain)
    with pytest.raises(RuntimeError, match="^the second derivative of the discriminative loss is not available"):
        torch.autograd.grad(value, embeddings, create_graph=True)


@pytest.mark.parametrize("loss_of", [DiscriminativeLoss, HardDiscriminativeLoss])
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(("dtype", "power"), [(torch.float32, 126), (torch.float64, 1020)])
def test_embeddings_whose_squares_overflow_have_the_loss_of_their_directions(
    loss_of: type[DiscriminativeLoss] | type[HardDiscriminativeLoss], one_hot: bool, dtype: torch.dtype, power: int
) -> None:
    loss = loss_of(5 if one_hot else normalise(torch.randn(5, 5, generator=torch.Generator().manual_seed(0))))
    points = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), dtype=dtype).clamp(-2, 2)
    labels = torch.arange(8) % 5
    small, large = points.clone().requires_grad_(), (points * 2.0**power).requires_grad_()
    values = [loss(small, labels), loss(large, labels)]
    for value in values:
        value.backward()
    assert small.grad is not None
    assert large.grad is not None
    torch.testing.assert_close(values[1], values[0])
    torch.testing.assert_close(large.grad * 2.0**power, small.grad, atol=1e-5, rtol=1e-3)
    assert torch.isnan(loss(large * float("inf"), labels))


def test_logits_are_negative_distances() -> None:
    embeddings, labels, centroids = case(8, 5, 5)
    logits = DiscriminativeLoss(centroids).get_logits(embeddings)
    torch.testing.assert_close(-logits, torch.cdist(normalise(embeddings), centroids))
    axes = DiscriminativeLoss(5).get_logits(embeddings)
    torch.testing.assert_close(-axes, torch.cdist(normalise(embeddings), torch.eye(5, dtype=torch.float64)))
    assert labels.shape == logits.argmax(1).shape


def test_centroids_are_saved_and_never_trained(tmp_path: Path) -> None:
    _, _, centroids = case(8, 5, 3, torch.float32)
    loss = DiscriminativeLoss(centroids)
    assert list(loss.parameters()) == []
    assert list(loss.state_dict()) == ["centroids"]
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    other = DiscriminativeLoss(unit_points(5, 3, seed=9, dtype=torch.float32))
    other.load_state_dict(torch.load(tmp_path / "loss.pt", weights_only=True))
    torch.testing.assert_close(other.centroids, centroids)
    assert copy.deepcopy(loss).state_dict().keys() == loss.state_dict().keys()


def test_minimum_follows_loaded_centroids() -> None:
    loss, other = (DiscriminativeLoss(unit_points(5, 3, seed=seed)) for seed in (1, 2))
    assert loss.minimum != other.minimum
    loss.load_state_dict(other.state_dict())
    assert loss.minimum == other.minimum


def test_one_hot_centroids_take_no_memory() -> None:
    loss = DiscriminativeLoss(1_000_000)
    assert sum(buffer.numel() for buffer in loss.buffers()) == 0


def test_the_graph_keeps_nothing_of_size_batch_times_classes() -> None:
    embeddings, labels, centroids = case(8, 500, 3)
    kept = []

    def pack(saved: Tensor) -> Tensor:
        kept.append(saved.numel())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        DiscriminativeLoss(centroids)(embeddings, labels)
    assert max(kept) <= embeddings.numel()


@pytest.mark.parametrize(
    ("classes", "block", "most"),
    [(250_000, 16_384, 64e6), pytest.param(1_000_000, 65_536, 256e6, marks=pytest.mark.slow)],
)
def test_many_classes_hold_no_more_than_a_few_blocks_beyond_the_centroids(
    classes: int, block: int, most: float
) -> None:
    """All cosines, or a copy of the centroids, would take twice as much as is allowed."""
    assert _largest_temporary(classes, 128, 128, block) < most


def _largest_temporary(classes: int, dim: int, batch: int, block: int) -> float:
    """Bytes of the live tensors at their peak, counted by watching every allocation of the profiler."""
    centroids = torch.randn(classes, dim, generator=seeded(0))
    loss = DiscriminativeLoss(centroids / centroids.norm(dim=1, keepdim=True), chunk_classes=block)
    del centroids
    embeddings = torch.randn(batch, dim, generator=seeded(1), requires_grad=True)
    labels = torch.randint(classes, (batch,), generator=seeded(2))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        loss(embeddings, labels).backward()
    live, peak = 0.0, 0.0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert peak > batch * block * 4  # the block itself was seen
    return peak


@pytest.mark.parametrize("kind", [DiscriminativeLoss, HardDiscriminativeLoss])
def test_the_least_value_of_very_many_classes_is_estimated_from_some(
    kind: type[DiscriminativeLoss] | type[HardDiscriminativeLoss], monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = kind(unit_points(300, 8, seed=0).float(), class_sizes=[3] * 300)
    exact = loss.minimum
    monkeypatch.setattr("tammes.losses.fixed_centroids.evenly_spaced_rows", lambda number: torch.arange(0, number, 3))
    assert loss.minimum != exact
    assert loss.minimum == pytest.approx(exact, rel=0.05)
