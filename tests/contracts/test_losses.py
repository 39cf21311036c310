"""What every loss promises, at the places where published implementations break."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tammes import UserError
from tammes.losses import WITH_CENTROIDS as LOSSES
from tests.oracles import seeded, unit_points
from tests.test_distributed import ended, start

CORNERS = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / 3**0.5  # (4, 3): a tetrahedron


@pytest.fixture(params=sorted(LOSSES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def loss(name: str) -> nn.Module:
    return LOSSES[name](CORNERS)


@pytest.fixture(params=["corners", "one-hot"])
def either(request: pytest.FixtureRequest, name: str) -> tuple[nn.Module, Tensor]:
    """A loss and its centroids."""
    return (LOSSES[name](CORNERS), CORNERS) if request.param == "corners" else (LOSSES[name](4), torch.eye(4))


def gradient(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
    z = embeddings.clone().requires_grad_()
    loss(z, labels).backward()
    assert z.grad is not None
    return z.grad


@pytest.mark.parametrize("where", ["own", "other", "opposite"])
def test_gradient_is_finite_where_points_coincide(either: tuple[nn.Module, Tensor], where: str) -> None:
    loss, centroids = either
    place: dict[str, Callable[[Tensor], Tensor]] = {
        "own": lambda c: c,
        "other": lambda c: c.roll(1, 0),
        "opposite": lambda c: -c,
    }
    embeddings = place[where](centroids).repeat(2, 1)  # every point twice
    assert gradient(loss, embeddings, torch.arange(4).repeat(2)).isfinite().all()


def test_an_embedding_on_its_centroid_is_not_pulled(name: str, either: tuple[nn.Module, Tensor]) -> None:
    _, centroids = either
    pull_only = LOSSES[name](4 if len(centroids) == centroids.shape[1] else centroids, push=0.0)
    assert gradient(pull_only, centroids * 3, torch.arange(4)).abs().max() < 1e-6
    away = torch.nn.functional.normalize(centroids + 0.1 * centroids.roll(1, 0))
    assert gradient(pull_only, away * 3, torch.arange(4)).norm(dim=1).min() > 0.9 / 4 / 3


def test_the_worst_placed_image_is_moved(either: tuple[nn.Module, Tensor]) -> None:
    loss, centroids = either
    on_a_wrong_one = centroids.roll(1, 0)
    assert gradient(loss, on_a_wrong_one, torch.arange(4)).norm(dim=1).min() > 0.05 / 4


def test_length_of_an_embedding_does_not_matter(either: tuple[nn.Module, Tensor]) -> None:
    loss, centroids = either
    embeddings, labels = torch.randn(9, centroids.shape[1], generator=seeded(0)), torch.arange(9) % 4
    torch.testing.assert_close(loss(1000 * embeddings, labels), loss(embeddings, labels))


def test_rotation_of_embeddings_and_centroids_does_not_matter(name: str) -> None:
    turn = torch.linalg.qr(torch.randn(3, 3, generator=seeded(2)))[0]
    embeddings, labels = torch.randn(9, 3, generator=seeded(0)), torch.arange(9) % 4
    turned = LOSSES[name](CORNERS @ turn)(embeddings @ turn, labels)
    torch.testing.assert_close(turned, LOSSES[name](CORNERS)(embeddings, labels))


def test_batches_add_up(loss: nn.Module) -> None:
    """The loss of a batch is the mean over its images: accumulating gradients over parts is exact."""
    embeddings, labels = torch.randn(8, 3, generator=seeded(0)), torch.arange(8) % 4
    halves = torch.stack([loss(embeddings[:4], labels[:4]), loss(embeddings[4:], labels[4:])])
    torch.testing.assert_close(halves.mean(), loss(embeddings, labels))


def test_float32_agrees_with_float64_next_to_the_centroids(name: str) -> None:
    centroids, labels = unit_points(40, 32, seed=0), torch.arange(40)
    near = centroids + 1e-4 * unit_points(40, 32, seed=1)
    single = LOSSES[name](centroids.float())(near.float(), labels)
    assert single.item() == pytest.approx(LOSSES[name](centroids)(near, labels).item(), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_give_a_float32_loss_and_a_half_gradient(
    either: tuple[nn.Module, Tensor], dtype: torch.dtype
) -> None:
    loss, centroids = either
    embeddings = torch.randn(9, centroids.shape[1], generator=seeded(0)).to(dtype)
    labels = torch.arange(9) % 4
    z = embeddings.clone().requires_grad_()
    value = loss(z, labels)
    value.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(embeddings.float(), labels).item(), abs=1e-6)
    assert z.grad is not None
    assert z.grad.dtype == dtype
    torch.testing.assert_close(z.grad.float(), gradient(loss, embeddings.float(), labels), rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
def test_centroids_stay_in_float32_when_the_network_goes_to_half(name: str, to: torch.dtype) -> None:
    loss = LOSSES[name](CORNERS)
    nn.Sequential(nn.Linear(3, 3), loss).to(to)
    assert loss.centroids is not None
    torch.testing.assert_close(loss.centroids, CORNERS, rtol=0, atol=1e-7)
    assert LOSSES[name](CORNERS).double().centroids.dtype == torch.float64


def test_autocast_does_not_change_the_loss(either: tuple[nn.Module, Tensor]) -> None:
    loss, centroids = either
    embeddings, labels = torch.randn(9, centroids.shape[1], generator=seeded(0)), torch.arange(9) % 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gradient(loss, embeddings, labels)
        assert loss(embeddings, labels).dtype == torch.float32
    torch.testing.assert_close(inside, gradient(loss, embeddings, labels))


def test_second_derivative_is_refused(loss: nn.Module) -> None:
    z = torch.randn(5, 3, generator=seeded(0), requires_grad=True)
    with pytest.raises(RuntimeError, match="^the second derivative of .* is not available: call backward without"):
        torch.autograd.grad(loss(z, torch.arange(5) % 4), z, create_graph=True)


def test_an_embedding_of_zeros_has_a_value_and_no_gradient(either: tuple[nn.Module, Tensor]) -> None:
    loss, centroids = either
    embeddings, labels = torch.randn(4, centroids.shape[1], generator=seeded(0)), torch.arange(4)
    embeddings[1] = 0
    moved = gradient(loss, embeddings, labels)
    assert loss(embeddings, labels).isfinite()
    assert moved.isfinite().all()
    assert moved[1].eq(0).all()
    assert moved[[0, 2, 3]].norm(dim=1).min() > 0


def test_nan_in_an_embedding_is_not_hidden(either: tuple[nn.Module, Tensor]) -> None:
    loss, centroids = either
    embeddings = torch.randn(4, centroids.shape[1], generator=seeded(0))
    embeddings[1, 0] = float("nan")
    assert loss(embeddings, torch.arange(4)).isnan()


def test_an_embedding_whose_length_overflows_is_not_hidden(either: tuple[nn.Module, Tensor]) -> None:
    """It has the loss of its direction; its gradient, as much smaller as it is longer, is that of its direction too."""
    loss, centroids = either
    embeddings = torch.randn(4, centroids.shape[1], generator=seeded(0))
    value, own = loss(embeddings, torch.arange(4)), gradient(loss, embeddings, torch.arange(4))[1]
    embeddings[1] *= 1e30
    assert torch.allclose(loss(embeddings, torch.arange(4)), value)
    assert torch.allclose(1e30 * gradient(loss, embeddings, torch.arange(4))[1], own, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("label", [-1, 4, 2**40])
def test_a_label_out_of_range_is_named(loss: nn.Module, label: int) -> None:
    with pytest.raises(
        UserError,
        match=rf"^label {label} \(row 1 of the batch\) is outside 0..3 of 4 classes. Number the classes from 0 without",
    ):
        loss(torch.randn(3, 3), torch.tensor([0, label, 1]))


@pytest.mark.parametrize(
    ("centroids", "message"),
    [
        (1, "^a loss against centroids needs at least 2 classes, got 1.$"),
        (CORNERS[:1], "^a loss against centroids needs at least 2 classes, got 1.$"),
        (
            torch.cat([CORNERS[:2], 2 * CORNERS[2:]]),
            r"^centroids must have unit norm; that of class 2 has norm 2 \(2 of 4 are off\). Use torch.nn",
        ),
        (
            torch.full((3, 2), float("nan")),
            r"^centroids must have unit norm; that of class 0 has norm nan \(3 of 3 are off\).",
        ),
        (
            CORNERS[[0, 1, 2, 1]],
            "^classes 1 and 3 have the same centroid, so they cannot be separated.$",
        ),
    ],
)
def test_centroids_that_cannot_be_used(name: str, centroids: Tensor | int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        LOSSES[name](centroids)


@pytest.mark.parametrize("push", [-0.1, 1.0, float("nan")])
def test_push_out_of_range(name: str, push: float) -> None:
    with pytest.raises(UserError, match=rf"^push must be in \[0, 1\), got {push}: from 1 on the own centroid is no"):
        LOSSES[name](CORNERS, push=push)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([1, 2], r"^class_sizes must be 4 integers, one for each class, got torch.int64 of shape \(2,\).$"),
        ([1, 2, -1, 3], "^class 2 has -1 images; it must be 0 or more.$"),
        ([0, 0, 0, 0], "^class_sizes are all 0: at least one class must have images.$"),
    ],
)
def test_class_sizes_that_cannot_be_used(name: str, sizes: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LOSSES[name](CORNERS, class_sizes=sizes)


def _train_on_a_share(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    embeddings, labels = torch.randn(8, 3, generator=seeded(0)), torch.arange(8) % 4
    for name in LOSSES:
        network = DistributedDataParallel(_network())
        LOSSES[name](CORNERS)(network(embeddings[rank::2]), labels[rank::2]).backward()
        if rank == 0:
            torch.save([parameter.grad for parameter in network.parameters()], folder / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gradients of each loss, from two processes that are started once for all of them."""
    folder = tmp_path_factory.mktemp("processes")
    assert ended(start(2, folder, _train_on_a_share, folder), folder) == [0, 0]
    return folder


@pytest.mark.xdist_group("processes")
def test_two_processes_have_the_gradient_of_one(name: str, of_two_processes: Path) -> None:
    together = torch.load(of_two_processes / f"{name}.pt", weights_only=True)
    network = _network()
    embeddings, labels = torch.randn(8, 3, generator=seeded(0)), torch.arange(8) % 4
    LOSSES[name](CORNERS)(network(embeddings), labels).backward()
    alone = [parameter.grad for parameter in network.parameters()]
    torch.testing.assert_close(together, alone)
