"""What every method that is more than a loss promises, on each loss that it can be built on."""

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from tammes import UserError
from tammes.losses import METHODS as LOSSES
from tammes.losses import DiscriminativeLoss
from tammes.metrics import evaluate
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.training.objectives import METHODS, MORE_THAN_LOSSES, Base, ClassLayer, Objective, find_method
from tests.oracles import seeded, unit_points

CLASSES, DIM, EACH = 4, 16, 4
BUILT = [(name, base) for name, method in MORE_THAN_LOSSES.items() for base in method.bases]


@pytest.fixture(params=BUILT, ids="-on-".join)
def built(request: pytest.FixtureRequest) -> tuple[str, str]:
    name, base = request.param
    return name, base


def made(name: str, base: str, *, placed: bool = False) -> tuple[nn.Module, Embedder]:
    """The method and an embedder for it, the same for the same names.

    Args:
        placed: have the centroids in the embedding itself, without a class layer.
    """

    def discriminative(dim: int) -> nn.Module:
        loss = DiscriminativeLoss(unit_points(CLASSES, dim, seed=0).float() if placed else CLASSES)
        return loss if placed else ClassLayer(dim, loss)

    torch.manual_seed(0)
    method = find_method(name, base=base)
    heads = method.head_sizes(DIM)
    weights = () if method.weigh is None else method.weigh(heads)
    depths = ("blocks.2", "blocks.3") if method.depths else ()
    embedder = Embedder(EmbedderConfig("conv4", DIM, heads=heads, head_weights=weights, depths=depths))
    other = LOSSES.get(base)
    kinds = {"discriminative": discriminative, **({} if other is None else {base: lambda _: other.make({}, {})})}
    made_of = {"base": Base(base, kinds.get(base)), "heads": heads, "features": 64, "dim": DIM, "num_classes": CLASSES}
    if base == "discriminative":
        made_of["base"] = Base(base, discriminative)
    return method.make(made_of, {}), embedder  # type: ignore[arg-type]


def batch(embedder: Embedder, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features as the backbone of this embedder gives them, `EACH` of each class."""
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    width = sum(layer.in_features for layer in embedder.new_layers())
    return torch.randn(len(labels), width, generator=seeded(seed)), labels


def total(parts: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(parts.values())).sum()


def test_the_table_is_the_one_that_is_documented() -> None:
    assert list(METHODS) == [*LOSSES, *MORE_THAN_LOSSES]
    for method in MORE_THAN_LOSSES.values():
        assert method.on == "features"
        assert "discriminative" in method.bases
        assert next(iter(method.bases)) != "discriminative", "its own comes first"
        assert method.summary
        assert not method.summary.endswith(".")
        assert method.equation.strip()
        assert any(char.isdigit() for char in method.reference), "a reference has a year"
        assert all(option.default is not option.empty for option in method.options.values())


def test_the_embedder_is_trained_by_the_part_named_loss(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)
    parts = loss(features, labels, embedder)
    assert all(part.shape == () and part.dtype == torch.float32 for part in parts.values())
    parts["loss"].backward()
    assert all(layer.weight.grad is not None and layer.weight.grad.norm() > 0 for layer in embedder.new_layers())


def test_the_trunk_gets_a_gradient(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)
    features.requires_grad_()
    total(loss(features, labels, embedder)).backward()
    assert features.grad is not None
    assert (features.grad.norm(dim=1) > 0).float().mean() > 0.5


def test_everything_that_it_learns_itself_gets_a_gradient(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)
    total(loss(features, labels, embedder)).backward()
    assert all(weight.grad is not None for weight in loss.parameters())
    assert built[1] == "discriminative" or built[0] in ("daml", "dvml") or not list(loss.parameters())


@pytest.mark.parametrize("where", ["all in one point", "each class in one point", "zero"])
def test_gradients_are_finite_at_coinciding_points(built: tuple[str, str], where: str) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)
    if where == "zero":
        features = torch.zeros_like(features)
    else:
        features = features[torch.zeros_like(labels) if where == "all in one point" else labels]
    features = features.clone().requires_grad_()
    value = total(loss(features, labels, embedder))
    value.backward()
    assert value.isfinite()
    assert features.grad is not None
    assert features.grad.isfinite().all()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in embedder.parameters())


@pytest.mark.parametrize("count", [1, 5])
def test_a_batch_of_one_and_of_one_class_is_finite(built: tuple[str, str], count: int) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)[0][:count], torch.full((count,), 2)
    value = total(loss(features, labels, embedder))
    assert value.isfinite()
    value.backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in loss.parameters())


def test_nan_is_not_hidden(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)
    for row in range(0, len(labels), 3):
        spoilt = features.clone()
        spoilt[row, 0] = float("nan")
        assert all(part.isnan() for part in loss(spoilt, labels, embedder).values())
        if built[0] != "daml":  # which sees nothing of an image without a pair
            alone = loss(spoilt[row : row + 1], labels[row : row + 1], embedder)
            assert all(part.isnan() for part in alone.values())


@pytest.mark.parametrize("built", [each for each in BUILT if each[1] != "discriminative"], ids="-on-".join)
def test_labels_may_be_any_integers_where_pairs_are_compared(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)
    found = []
    for others in (labels, 7 * labels - 3, labels.to(torch.uint8), labels * 10**12):
        torch.manual_seed(1)
        found.append(loss(features, others, embedder))
    for each in found[1:]:
        torch.testing.assert_close(each, found[0])


def test_an_empty_batch_is_an_error(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    width = batch(embedder)[0].shape[1]
    with pytest.raises(UserError, match="^the batch is empty"):
        loss(torch.empty(0, width), torch.empty(0, dtype=torch.long), embedder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_a_float32_loss_and_a_half_gradient(built: tuple[str, str], dtype: torch.dtype) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)
    half = features.to(dtype).requires_grad_()
    found = []
    for given in (half, half.detach().float()):
        torch.manual_seed(1)
        found.append(loss(given, labels, embedder))
    for name, part in found[0].items():
        assert part.dtype == torch.float32
        assert part.item() == found[1][name].item()
    total(found[0]).backward()
    assert half.grad is not None
    assert half.grad.dtype == dtype
    assert half.grad.isfinite().all()
    assert half.grad.abs().max() > 0


def test_autocast_changes_little(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    features, labels = batch(embedder)
    torch.manual_seed(1)
    exact = loss(features, labels, embedder)
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(features, labels, embedder)
    for name, part in found.items():
        assert part.dtype == torch.float32
        assert part.item() == pytest.approx(exact[name].item(), rel=0.05, abs=0.05)


def test_round_trip_through_state_dict(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    with torch.no_grad():
        for weight in loss.parameters():
            weight.add_(0.1)
    other, _ = made(*built)
    other.load_state_dict(loss.state_dict())
    features, labels = batch(embedder)
    values = []
    for each in (loss, other):
        torch.manual_seed(1)
        values.append(total(each(features, labels, embedder)))
    assert values[0] == values[1]


@pytest.mark.parametrize("name", list(MORE_THAN_LOSSES))
def test_centroids_may_be_in_the_embedding_itself(name: str) -> None:
    loss, embedder = made(name, "discriminative", placed=True)
    features, labels = batch(embedder)
    assert not any(isinstance(module, ClassLayer) for module in loss.modules())
    total(loss(features, labels, embedder)).backward()
    assert embedder.new_layers()[0].weight.grad is not None


@pytest.mark.parametrize("name", list(MORE_THAN_LOSSES))
def test_a_label_out_of_range_is_named(name: str) -> None:
    loss, embedder = made(name, "discriminative")
    features, labels = batch(embedder)
    with pytest.raises(UserError, match=r"^label 9 \(row \d+ of the batch\) is outside 0..3 of 4 classes."):
        loss(features, torch.where(labels == 3, 9, labels), embedder)


def test_forty_epochs_separate_a_small_set(built: tuple[str, str]) -> None:
    loss, embedder = made(*built)
    labels = torch.arange(CLASSES).repeat_interleave(8)
    width = batch(embedder)[0].shape[1]
    third = width // 3  # of the features: what a depth has, where there are several
    features = torch.randn(len(labels), width, generator=seeded(0)) * torch.linspace(0.1, 1.5, third).repeat(4)[:width]
    for begin in (0, third, 2 * third):
        features[:, begin : begin + CLASSES] += 1.5 * torch.eye(CLASSES)[labels]
    objective = Objective(embedder, loss, features=lambda inputs: inputs, on_features=True)

    def recall() -> float:
        with torch.no_grad():
            vectors = embedder.embedding(features).numpy()
        return float(evaluate(vectors, labels.numpy(), ks=(1,), clustering=False, bootstrap=0)["recall_at_1"])

    before = recall()
    trained = [*(weight for layer in embedder.new_layers() for weight in layer.parameters()), *loss.parameters()]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    for epoch in range(1, 41):
        objective.begin(epoch, 40)
        total(objective(features, labels)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before < 0.8
    assert recall() > 0.9


@pytest.mark.parametrize("name", [name for name, method in MORE_THAN_LOSSES.items() if "form" in method.options])
def test_an_unknown_form_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # beartype would be first
    base = next(iter(MORE_THAN_LOSSES[name].bases))
    with pytest.raises(UserError, match=r"^unknown form 'nothing'\. .*Known: "):
        find_method(name, base=base).make({"base": Base(base), "heads": (4, 4, 4)}, {"form": "nothing"})


def test_a_base_that_there_is_not_is_named() -> None:
    with pytest.raises(UserError) as error:
        find_method("hdc", base="triplet")
    assert str(error.value) == "unknown base of HDC 'triplet'. Known: contrastive, discriminative."
    with pytest.raises(UserError) as error:
        find_method("softmax", base="discriminative")
    assert str(error.value) == (
        "`base` is for objectives that are built on another loss, and softmax is a loss: drop `base`."
    )


def test_a_base_changes_what_is_declared() -> None:
    assert find_method("hdc").images_per_class == 4
    assert find_method("hdc", base="discriminative").images_per_class == 1
    assert find_method("bier").head_sizes(512) == (96, 160, 256)
    assert find_method("hdc").head_sizes(256) == (85, 86, 85)
    with pytest.raises(UserError, match="^BIER has 3 heads: `dim` must be at least 16, got 2.$"):
        find_method("bier").head_sizes(2)
