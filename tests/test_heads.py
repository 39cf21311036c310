"""Heads of an embedding, and features from several depths of a network."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tammes import UserError
from tammes.geometry import normalise
from tammes.models.backbones import backbone
from tammes.models.backbones.cuts import default_depths
from tammes.models.backbones.depths import Depths
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.models.feature_cache import Frozen
from tammes.models.heads import Layers, joined, parted
from tests.oracles import seeded

IMAGES = torch.randint(256, (3, 1, 28, 28), generator=seeded(0), dtype=torch.uint8)
OF_DEPTHS = EmbedderConfig("conv4", 12, heads=(3, 4, 5), head_weights=(1.0, 1.0, 2.0), depths=("blocks.2", "blocks.3"))


def embedder(config: EmbedderConfig = OF_DEPTHS) -> Embedder:
    torch.manual_seed(0)
    return Embedder(config).eval()


def test_heads_are_scaled_to_unit_length_and_then_by_their_weights() -> None:
    outputs = torch.randn(6, 5, generator=seeded(0), dtype=torch.float64)
    unit = joined(outputs, (2, 3), (1.0, 3.0))
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(unit[:, :2], normalise(outputs[:, :2]) / 10**0.5)
    torch.testing.assert_close(unit[:, 2:], normalise(outputs[:, 2:]) * 3 / 10**0.5)


def test_without_heads_there_is_one() -> None:
    outputs = torch.randn(6, 5, generator=seeded(0))
    assert [part.shape[1] for part in parted(outputs, ())] == [5]
    torch.testing.assert_close(joined(outputs, (), ()), normalise(outputs))


def test_each_layer_sees_features_of_its_own_only() -> None:
    layers = Layers((2, 3), (4, 1))
    features = torch.randn(6, 5, generator=seeded(0))
    other = features.clone()
    other[:, 2:] += 1
    before, after = layers(features), layers(other)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("pool", ["published", "mean", "max"])
def test_depths_are_what_enters_these_parts_pooled(pool: str) -> None:
    network = backbone("conv4").network.eval()
    seen: dict[str, torch.Tensor] = {}
    for name in ("blocks.2", "blocks.3"):
        network.get_submodule(name).register_forward_pre_hook(lambda _, given, name=name: seen.update({name: given[0]}))
    images = torch.randn(2, 1, 28, 28, generator=seeded(1))
    end = network(images)
    pooled = [maps.amax((2, 3)) if pool == "max" else maps.mean((2, 3)) for maps in seen.values()]
    depths = Depths(network, ("blocks.2", "blocks.3"), pool)  # type: ignore[arg-type]
    torch.testing.assert_close(depths(images), torch.cat([*pooled, end], dim=1))
    assert depths.sizes(1, 28) == [64, 64, 64]


def test_asking_for_sizes_leaves_a_network_as_it_is() -> None:
    network = backbone("conv4").network.train()
    network.get_submodule("blocks.0").eval()
    before = [part.training for part in network.modules()]
    Depths(network, ("blocks.2",), "max").sizes(1, 28)
    assert [part.training for part in network.modules()] == before
    assert all(part.num_batches_tracked == 0 for part in network.modules() if isinstance(part, nn.BatchNorm2d))


def test_an_embedder_of_several_depths_goes_to_a_file_and_back(tmp_path: Path) -> None:
    made = embedder()
    made.save(tmp_path)
    again = load(tmp_path)
    assert again.config == made.config
    assert torch.equal(again(IMAGES), made(IMAGES))
    assert made.features(IMAGES).shape == (3, 192)
    assert made(IMAGES).shape == (3, 12)
    torch.testing.assert_close(made(IMAGES).norm(dim=1), torch.ones(3))


def test_the_stages_are_the_network_itself() -> None:
    made = embedder()
    assert not any("stage" in name or "_depths" in name for name in made.state_dict())
    before = made(IMAGES)
    with torch.no_grad():
        made.backbone.get_submodule("blocks.0.0").weight.mul_(-1)  # type: ignore[operator]
    assert not torch.equal(made(IMAGES), before)


def test_the_backbones_own_features_are_the_last() -> None:
    made = embedder()
    plain = embedder(EmbedderConfig("conv4", 12))
    plain.backbone.load_state_dict(made.backbone.state_dict())
    torch.testing.assert_close(made.of_backbone(made.features(IMAGES)), plain.features(IMAGES))
    assert plain.of_backbone(plain.features(IMAGES)).shape == (3, 64)


@pytest.mark.parametrize("at", [None, "blocks.1", "blocks.2"])
def test_a_frozen_part_below_all_depths_gives_the_same_features(at: str | None) -> None:
    made = embedder()
    whole = made.features(IMAGES)
    frozen = Frozen(made, at)
    torch.testing.assert_close(frozen.above(frozen.below(IMAGES)), whole)
    trained = {name for name, weight in made.backbone.named_parameters() if weight.requires_grad}
    assert trained == {
        name for name, _ in made.backbone.named_parameters() if at is not None and name.split(".")[1] >= at[-1]
    }


def test_a_cut_above_a_depth_is_refused() -> None:
    with pytest.raises(UserError) as error:
        Frozen(embedder(), "blocks.3")
    assert str(error.value) == (
        "the input of blocks.2 is used as features, so the cut cannot be above it: 'blocks.3'."
        " Use `cut='blocks.2'` or lower."
    )


def test_each_head_begins_as_the_principal_directions_of_its_own_features() -> None:
    made = embedder()
    features = torch.zeros(40, 192)
    for begin, strong in ((0, 5), (64, 7), (128, 11)):
        features[:, begin + strong] = torch.randn(40, generator=seeded(begin)) * 10
    features += 0.01 * torch.randn(40, 192, generator=seeded(1))
    made.init_from(features)
    assert [int(layer.weight[0].abs().argmax()) for layer in made.new_layers()] == [5, 7, 11]


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit dim=4"):
        EmbedderConfig("conv4", 4, heads=(1, 2), head_weights=(1.0, 1.0))
    with pytest.raises(ValueError, match="1 depths need 2 heads"):
        EmbedderConfig("conv4", 4, heads=(4,), head_weights=(1.0,), depths=("blocks.2",))


def test_depths_are_far_apart() -> None:
    assert default_depths({"a": 0.9, "b": 0.6, "c": 0.5, "d": 0.3, "e": 0.1}) == ("b", "d")
    assert default_depths({"a": 0.9, "b": 0.2}) == ()
    assert default_depths({"a": 0.9}) == ()
    assert backbone("googlenet").depths == ("inception_4b", "inception_4e")
    assert backbone("resnet18").depths == ("layer2.1", "layer4")


def test_maps_that_are_no_maps_are_refused() -> None:
    network = nn.Sequential()
    network.add_module("one", nn.Linear(4, 4))
    network.add_module("two", nn.Linear(4, 4))
    with pytest.raises(UserError, match=r"this network has \(4,\) there. Use a convolutional"):
        Depths(network, ("two",), "max")(torch.zeros(2, 4))
