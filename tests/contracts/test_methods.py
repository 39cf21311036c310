"""What every method of the table promises, whatever its equation is."""

import re
from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tammes import UserError
from tammes.losses import LOSSES, METHODS
from tammes.losses.mining import random_triplets
from tammes.metrics import evaluate
from tests.oracles import seeded

CLASSES, DIM, EACH = 4, 4, 4
SIZES: dict[Any, Any] = {"centroids": CLASSES, "num_classes": CLASSES, "dim": DIM}
OF_PAIRS = sorted(name for name, method in METHODS.items() if not method.takes and not method.mines)
OF_CLASSES = sorted(name for name, method in METHODS.items() if method.takes)
MINING = sorted(name for name, method in METHODS.items() if method.mines)


@pytest.fixture(params=sorted(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(name: str, dtype: torch.dtype = torch.float32, classes: int = CLASSES) -> nn.Module:
    """The loss with what it learns itself at random, the same for the same name; as if training had begun."""
    torch.manual_seed(0)
    method = METHODS[name]
    loss = method.make({"centroids": classes, "num_classes": classes, "dim": classes}, {}).to(dtype)
    if method.sees != "batches":
        points, labels = torch.randn(32, classes, generator=seeded(9)).to(dtype), torch.arange(32) % classes
        loss.look(points, labels, generator=seeded(0))  # type: ignore[operator]
    return loss.eval()


def batch(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A batch as the method wants it, in `EACH` images of each class."""
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    embeddings = torch.randn(len(labels), DIM, generator=seeded(seed), dtype=torch.float64).to(dtype)
    rows = served(name, labels)
    return embeddings[rows], labels[rows]


def served(name: str, labels: Tensor) -> Tensor:
    """Which of the images make the batch: all in order, or triplets of them."""
    return random_triplets(labels, generator=seeded(1)).flatten() if METHODS[name].mines else torch.arange(len(labels))


def gradient(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
    z = embeddings.clone().requires_grad_()
    loss(z, labels).backward()
    assert z.grad is not None
    return z.grad


def shuffled(name: str, labels: Tensor) -> Tensor:
    """Another order of a batch that comes to the same: of images, or of what the method forms by their position."""
    random = seeded(5)
    if METHODS[name].mines:
        return (3 * torch.randperm(len(labels) // 3, generator=random)[:, None] + torch.arange(3)).flatten()
    if name in ("npair", "angular"):
        return (2 * torch.randperm(len(labels) // 2, generator=random)[:, None] + torch.arange(2)).flatten()
    if name == "prototypical":  # classes as they like, the images of each in their order
        mixed = labels[torch.randperm(len(labels), generator=random)]
        order = torch.empty_like(labels)
        for each in labels.unique():
            order[mixed == each] = torch.nonzero(labels == each).flatten()
        return order
    return torch.randperm(len(labels), generator=random)


def test_the_table_is_the_one_that_is_documented() -> None:
    assert list(LOSSES) == list(METHODS)
    for method in METHODS.values():
        assert method.summary
        assert not method.summary.endswith(".")
        assert "\n" not in method.summary
        assert method.equation.strip()
        assert method.cost
        assert any(char.isdigit() for char in method.reference), "a reference has a year"
        assert all(option.default is not option.empty for option in method.options.values())


@pytest.mark.parametrize("where", ["all in one point", "each class in one point", "opposite", "zero"])
def test_gradients_are_finite_at_coinciding_and_opposite_points(name: str, where: str) -> None:
    embeddings, labels = batch(name)
    if where == "all in one point":
        embeddings = torch.eye(DIM)[torch.zeros_like(labels)]
    elif where == "each class in one point":
        embeddings = torch.eye(DIM)[labels]
    elif where == "opposite":
        embeddings = torch.eye(DIM)[labels // 2] * (1 - 2 * (labels % 2))[:, None]
    else:
        embeddings[1] = 0
    loss = made(name)
    assert loss(embeddings, labels).isfinite()
    assert gradient(loss, embeddings, labels).isfinite().all()


def test_the_worst_placed_image_is_moved(name: str) -> None:
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    embeddings = torch.eye(DIM)[labels] + 0.01 * torch.randn(len(labels), DIM, generator=seeded(0))
    embeddings[0] = embeddings[7]  # an image of class 0 amid class 1
    rows = served(name, labels)
    moved = torch.zeros_like(embeddings).index_add_(0, rows, gradient(made(name), embeddings[rows], labels[rows]))
    assert moved[0].norm() > 1e-3 / len(labels)


def test_float32_agrees_with_float64(name: str) -> None:
    for seed in range(5):
        embeddings, labels = batch(name, torch.float64, seed)
        double, single = made(name, torch.float64), made(name)
        assert single(embeddings.float(), labels).item() == pytest.approx(double(embeddings, labels).item(), abs=2e-5)
        torch.testing.assert_close(
            gradient(single, embeddings.float(), labels).double(),
            gradient(double, embeddings, labels),
            atol=2e-5,
            rtol=1e-3,
        )


def test_order_of_the_batch_does_not_matter(name: str) -> None:
    embeddings, labels = batch(name, torch.float64)
    loss, order = made(name, torch.float64), shuffled(name, labels)
    assert not torch.equal(order, torch.arange(len(labels)))
    torch.testing.assert_close(loss(embeddings[order], labels[order]), loss(embeddings, labels))
    torch.testing.assert_close(
        gradient(loss, embeddings[order], labels[order]), gradient(loss, embeddings, labels)[order]
    )


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_batch_of_one_and_of_one_class_has_a_value_and_a_gradient(name: str, count: int) -> None:
    embeddings, labels = torch.randn(count, DIM, generator=seeded(0)), torch.full((count,), 2)
    for training in (True, False):
        loss = made(name).train(training)
        assert loss(embeddings, labels).isfinite()
        moved = gradient(loss, embeddings, labels)
        assert moved.isfinite().all()
        assert moved.norm() > 0


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("name", OF_PAIRS)
def test_a_batch_of_one_and_of_one_class_is_nothing_or_only_pulls(name: str, count: int) -> None:
    """There are no negatives: losses that compare with them are exactly 0, with a gradient of 0."""
    embeddings, labels = torch.randn(count, DIM, generator=seeded(0)), torch.full((count,), 2)
    loss = made(name)
    value, moved = loss(embeddings, labels), gradient(loss, embeddings, labels)
    assert value.isfinite()
    assert moved.isfinite().all()
    if count == 1 or name not in ("contrastive", "clustering", "npair"):
        assert value.item() == 0 or (name == "npair" and count > 1)
        assert moved.eq(0).all()


@pytest.mark.parametrize("name", OF_PAIRS + MINING)
def test_labels_may_be_any_integers(name: str) -> None:
    embeddings, labels = batch(name)
    loss = made(name)
    for others in (7 * labels - 3, (labels == 0).long() * 10**12 + labels, labels.to(torch.uint8)):
        torch.testing.assert_close(loss(embeddings, others), loss(embeddings, labels))


@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_label_out_of_range_is_named(name: str) -> None:
    with pytest.raises(UserError, match=r"^label 4 \(row 1 of the batch\) is outside 0..3 of 4 classes."):
        made(name)(torch.randn(2, DIM), torch.tensor([0, 4]))


@pytest.mark.parametrize("name", OF_CLASSES)
def test_embeddings_of_another_length_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"^embeddings must have shape \(batch, 4\), got \(2, 3\)\.$"):
        made(name)(torch.randn(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize("name", [name for name in OF_CLASSES if "dim" in METHODS[name].takes])
def test_too_few_classes_or_dimensions_are_refused(name: str) -> None:
    for classes, dim in ((1, 2), (2, 0)):
        with pytest.raises(UserError, match=f"needs at least 2 classes and 1 dimension, got {classes} and {dim}"):
            METHODS[name].make({"num_classes": classes, "dim": dim}, {})


@pytest.mark.parametrize("name", sorted(name for name, method in METHODS.items() if "form" in method.options))
def test_an_unknown_form_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # beartype would be first
    with pytest.raises(UserError, match=r"^unknown form 'nothing'\. .*Known: "):
        METHODS[name].make({"num_classes": CLASSES, "dim": DIM}, {"form": "nothing"})


OVER_AND_FINITE = ("must be above 0 and finite", (0.0, -1.0, float("inf"), float("nan")))
AT_LEAST_0 = ("must be at least 0 and finite", (-0.1, float("inf"), float("nan")))
REFUSED: list[tuple[str, str, str, tuple[float, ...]]] = [  # a method, an option, what it must be, and what it is not
    ("angular", "alpha", "must be between 1 and 80 degrees", (0.0, 0.785, 80.1, 90.0, -45.0, float("nan"))),
    ("angular", "angular_weight", *OVER_AND_FINITE),
    ("arcface", "margin", r"must be in \[0, pi/2\], an angle in radians", (28.6, -0.1, 200.0, float("nan"))),
    ("arcface", "scale", *OVER_AND_FINITE),
    ("center", "weight", *AT_LEAST_0),
    ("center", "alpha", r"must be in \(0, 1\]", (0.0, 1.5)),
    ("clustering", "gamma", *AT_LEAST_0),
    ("clustering", "passes", "must be at least 0", (-1,)),
    ("contrastive", "hardest", r"must be in \(0, 1\], the part of the pairs", (0.0, -0.1, 1.01, float("nan"))),
    ("contrastive", "margin", *OVER_AND_FINITE),
    ("deepncm", "every", "must be at least 1", (0,)),
    ("hard-discriminative", "temperature", r"must be from 1e-06 to 1e\+06", (0.0, 1e-300, float("inf"), float("nan"))),
    ("lifted", "margin", *OVER_AND_FINITE),
    ("multi-similarity", "alpha", *OVER_AND_FINITE),
    ("multi-similarity", "beta", *OVER_AND_FINITE),
    ("multi-similarity", "threshold", r"must be in \[-1, 1\], for it is a cosine", (1.5,)),
    ("multi-similarity", "epsilon", *AT_LEAST_0),
    ("normface", "scale", *OVER_AND_FINITE),
    ("normface", "temperature", r"must be from 1e-06 to 1e\+06", (-1.0,)),
    ("npair", "penalty", *AT_LEAST_0),
    ("proxy-anchor", "scale", *OVER_AND_FINITE),
    ("proxy-anchor", "margin", r"must be in \[0, 1\), for it is one of cosines", (1.0, -0.1, float("nan"))),
    ("proxy-nca", "scale", *OVER_AND_FINITE),
    ("triplet-semihard", "margin", *OVER_AND_FINITE),
    ("triplet-global", "margin", *OVER_AND_FINITE),
    ("triplet-global", "weight", *OVER_AND_FINITE),
    ("triplet-global", "gap", r"must be in \(0, 1\]", (0.0, 1.5)),
    ("triplet-global", "gamma", *AT_LEAST_0),
    ("triplet-smart", "gap", r"must be in \(0, 1\]", (2.0,)),
    ("triplet-smart", "neighbours", "must be at least 1", (0,)),
    ("triplet-smart", "hardness", r"must be in \[0, 1\]", (1.1, float("nan"))),
]
ASKED_TOGETHER: list[tuple[str, dict[str, Any], str]] = [  # options of which one leaves no room for another
    ("angular", {"form": "angular", "angular_weight": 1.0}, "angular_weight is for form='npair+angular'"),
    ("deepncm", {"form": "online", "every": 5}, "every is for form='condensation'"),
    ("deepncm", {"form": "online", "decay": 0.5}, "decay is for form='decay'; form='online'"),
    ("deepncm", {"decay": 0.5}, "decay is for form='decay'; form='condensation'"),
    ("deepncm", {"form": "decay", "decay": 1.0}, "decay must be in [0, 1), got 1.0: with 1 the means would never"),
    ("hard-discriminative", {"class_sizes": [1, 1, 1, 1]}, "class_sizes need a class with at least 2 images"),
    ("multi-similarity", {"epsilon": 0.2, "mine": False}, "epsilon is for mining; with mine=False all pairs count"),
    ("normface", {"margin": 1.0}, "margin is for form='contrastive' or 'triplet'; form='softmax' has none"),
    ("normface", {"temperature": 0.1, "scale": 5.0}, "temperature fixes the scale at 1 / temperature; give one"),
    (
        "normface",
        {"form": "contrastive", "temperature": 0.1},
        "temperature and scale are for form='softmax'; form='c",
    ),
    ("normface", {"form": "triplet", "scale": 5.0}, "temperature and scale are for form='softmax'; form='triplet'"),
    ("normface", {"form": "triplet", "margin": 0.0}, "margin must be above 0 and finite, got 0.0"),
    ("normface", {"form": "contrastive", "hardest": True}, "hardest is for form='triplet'; form='contrastive'"),
    ("normface", {"hardest": True}, "hardest is for form='triplet'; form='softmax'"),
    ("proxy-nca", {"include_positive": True, "smoothing": 1.0}, "smoothing must be in [0, 1), got 1.0"),
    ("proxy-nca", {"smoothing": 0.1}, "smoothing is for a softmax over all classes: add include_positive=True"),
    ("triplet", {"margin": 0.2}, "the plain form has no margin and no inactive triplets"),
    ("triplet", {"active_only": True}, "the plain form has no margin and no inactive triplets"),
    ("triplet", {"squared": True}, 'squared is for form="margin"; the plain form is defined with no squares'),
    ("triplet", {"form": "ratio", "squared": False}, 'squared is for form="margin"; the ratio form'),
    ("triplet", {"form": "margin", "margin": -0.2}, "margin must be above 0 and finite, got -0.2"),
]
SAYS: list[tuple[str, dict[str, Any], str]] = [
    ("angular", {}, "AngularLoss(alpha=45, form=npair+angular, angular_weight=2)"),
    ("angular", {"alpha": 36.0, "form": "angular"}, "AngularLoss(alpha=36, form=angular)"),
    ("arcface", {}, "ArcFaceLoss(4 classes in 4 dimensions, margin=0.5, scale=64)"),
    ("clustering", {"gamma": 0.5, "passes": 2}, "ClusteringLoss(gamma=0.5, passes=2)"),
    ("contrastive", {}, "ContrastiveLoss(form=squared, margin=1, hardest=1)"),
    ("deepncm", {"form": "decay"}, "DeepNCMLoss(4 classes in 4 dimensions, form='decay', decay=0.9)"),
    ("deepncm", {"form": "online"}, "DeepNCMLoss(4 classes in 4 dimensions, form='online')"),
    ("histogram", {}, "HistogramLoss(step=0.01)"),
    ("lifted", {}, "LiftedStructureLoss(margin=1)"),
    ("multi-similarity", {}, "MultiSimilarityLoss(alpha=2, beta=50, threshold=0.5, epsilon=0.1)"),
    ("multi-similarity", {"mine": False}, "MultiSimilarityLoss(alpha=2, beta=50, threshold=0.5, mine=False)"),
    ("normface", {}, "NormFaceLoss(4 classes in 4 dimensions, form='softmax', scale=10)"),
    ("npair", {}, "NPairLoss(penalty=0.002, form=softmax)"),
    ("proxy-anchor", {}, "ProxyAnchorLoss(4 classes in 4 dimensions, scale=32, margin=0.1)"),
    ("triplet", {}, "TripletLoss(form=plain)"),
    ("triplet", {"form": "margin"}, "TripletLoss(form=margin, margin=0.2, squared=True, active_only=False)"),
    ("triplet", {"form": "ratio"}, "TripletLoss(form=ratio, margin=0.01, active_only=False)"),
    ("triplet-semihard", {"margin": 0.3}, "TripletSemihardLoss(margin=0.3)"),
]


@pytest.mark.parametrize(("name", "option", "must", "values"), REFUSED)
def test_an_option_out_of_range_is_named_with_its_value(
    name: str, option: str, must: str, values: tuple[float, ...]
) -> None:
    for value in values:
        with pytest.raises(UserError, match=f"^{option} {must}.*{re.escape(str(value))}"):
            METHODS[name].make(SIZES, {option: value})


@pytest.mark.parametrize(("name", "options", "message"), ASKED_TOGETHER)
def test_options_that_exclude_each_other_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        METHODS[name].make(SIZES, options)


@pytest.mark.parametrize(("name", "options", "said"), SAYS)
def test_a_loss_says_its_options(name: str, options: dict[str, Any], said: str) -> None:
    assert repr(METHODS[name].make(SIZES, options)) == said


def test_how_many_images_of_a_class_a_batch_holds() -> None:
    found = {name: method.images_per_class for name, method in METHODS.items() if method.images_per_class > 1}
    four = {
        *("clustering", "contrastive", "histogram", "lifted", "multi-similarity", "prototypical"),
        *("triplet", "triplet-global", "triplet-naive", "triplet-semihard"),
    }
    assert found == {"angular": 2, "npair": 2} | dict.fromkeys(four, 4)


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
def test_what_a_loss_remembers_stays_in_full_precision_when_the_network_goes_to_half(
    name: str, to: torch.dtype
) -> None:
    loss, before = made(name), dict(made(name).named_buffers())
    nn.Sequential(nn.Linear(DIM, DIM), loss).to(to)
    for key, buffer in loss.named_buffers():
        assert torch.equal(buffer, before[key])
        assert buffer.dtype == before[key].dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_a_float32_loss_and_a_half_gradient(name: str, dtype: torch.dtype) -> None:
    embeddings, labels = batch(name)
    half, loss = embeddings.to(dtype), made(name)
    z = half.clone().requires_grad_()
    value = loss(z, labels)
    value.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(half.float(), labels).item(), abs=1e-6)
    assert z.grad is not None
    assert z.grad.dtype == dtype
    own = [parameter.grad for parameter in loss.parameters()]
    loss.zero_grad()
    torch.testing.assert_close(z.grad.float(), gradient(loss, half.float(), labels), rtol=0.02, atol=1e-3)
    torch.testing.assert_close(own, [parameter.grad for parameter in loss.parameters()], rtol=1e-5, atol=1e-5)


def test_autocast_does_not_change_the_loss(name: str) -> None:
    embeddings, labels = batch(name)
    loss = made(name)
    z = embeddings.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z, labels)
    value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(z.grad, gradient(loss, embeddings, labels))


def test_nan_is_not_hidden(name: str) -> None:
    embeddings, labels = batch(name)
    embeddings[1, 0] = float("nan")
    assert made(name)(embeddings, labels).isnan()


def test_an_empty_batch_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match="^the batch is empty"):
        made(name)(torch.empty(0, DIM), torch.empty(0, dtype=torch.long))


def test_round_trip_through_state_dict(name: str) -> None:
    embeddings, labels = batch(name)
    loss = made(name).train()
    loss(embeddings, labels)  # some change what they remember
    torch.manual_seed(1)
    other = METHODS[name].make(SIZES, {})
    other.load_state_dict(loss.state_dict())
    assert other.eval()(embeddings, labels) == loss.eval()(embeddings, labels)
    for key, tensor in loss.state_dict().items():
        assert isinstance(tensor, Tensor), f"{key} could not be saved"


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that anything made."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // each.element_size())
        return out


def test_memory_grows_with_the_square_of_the_batch_at_most(name: str) -> None:
    size = 96
    labels = torch.arange(size) // 4
    rows = served(name, labels)[:size]
    embeddings = torch.randn(size, size // 4, generator=seeded(0))
    loss = made(name, classes=size // 4)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        gradient(loss, embeddings[rows], labels[rows])
    assert 0 < largest.numbers <= 4 * size * size


def epochs_of(name: str, loss: nn.Module, layer: nn.Module, points: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """The batches of 30 epochs: all images in the order of their classes, or as the method mines them."""
    for epoch in range(30):
        sees = METHODS[name].sees
        if sees == "all images each epoch" or (sees == "all images once" and epoch == 0):
            with torch.no_grad():
                loss.look(layer(points), labels, generator=seeded(epoch))  # type: ignore[operator]
        mined: Tensor = loss.order if METHODS[name].mines else torch.arange(len(labels))  # type: ignore[assignment]
        for _ in range(4):
            yield mined


def test_thirty_epochs_separate_a_small_set(name: str) -> None:
    labels = torch.arange(CLASSES).repeat_interleave(8)
    centres = 2 * torch.eye(8)[:CLASSES]
    noise = torch.randn(len(labels), 8, generator=seeded(0)) * torch.tensor([0.3] * 4 + [3.0] * 4)
    points = centres[labels] + noise
    torch.manual_seed(0)
    layer, loss = nn.Linear(8, DIM), METHODS[name].make(SIZES, {})

    def recall() -> float:
        vectors = torch.nn.functional.normalize(layer(points)).detach().numpy()
        return float(evaluate(vectors, labels.numpy(), ks=(1,), clustering=False, bootstrap=0)["recall_at_1"])

    before = recall()
    optimizer = torch.optim.Adam([*layer.parameters(), *loss.parameters()], lr=0.03)
    for rows in epochs_of(name, loss, layer, points, labels):
        loss(layer(points[rows]), labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before < 0.6
    assert recall() > 0.85
