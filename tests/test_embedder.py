"""The Embedder: unit vectors, the paper's two layers, and a round trip through files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tammes import DiscriminativeLoss, UserError
from tammes.io.machine import images_at_once
from tammes.losses import SoftmaxLoss
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tests.oracles import seeded

IMAGES = torch.randint(256, (5, 1, 28, 28), generator=seeded(0), dtype=torch.uint8)


def made(**changes: object) -> Embedder:
    torch.manual_seed(0)
    options = {"backbone": "conv4", "dim": 16, "class_dim": 7, **changes}
    return Embedder(EmbedderConfig(**options)).eval()  # type: ignore[arg-type]


def test_an_image_that_cannot_be_read_leaves_the_mode_of_training(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    embedder = made().train()
    with pytest.raises(UserError):
        embedder.encode(tmp_path / "broken.png")
    assert embedder.training


def test_vectors_have_unit_length_and_the_asked_dimension() -> None:
    vectors = made()(IMAGES)
    assert vectors.shape == (5, 16)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(5))
    assert made(embedding="last")(IMAGES).shape == (5, 7)


def test_the_loss_sees_the_class_layer_on_the_layer_before_it_is_normalised() -> None:
    embedder = made()
    penultimate = embedder.penultimate(embedder.features(IMAGES))
    assert embedder.class_layer is not None
    torch.testing.assert_close(embedder.outputs(embedder.features(IMAGES)), embedder.class_layer(penultimate))
    plain = made(class_dim=None)
    assert plain.outputs(plain.features(IMAGES)).shape == (5, 16)


def test_bytes_and_floats_of_an_image_give_the_same_vector() -> None:
    embedder = made()
    torch.testing.assert_close(embedder(IMAGES), embedder(IMAGES.float()))


def test_new_layers_start_as_the_papers_lineage_has_them() -> None:
    embedder = made()
    assert [layer.out_features for layer in embedder.new_layers()] == [16, 7]
    assert all(layer.bias.eq(0).all() for layer in embedder.new_layers())


def test_started_from_features_it_keeps_what_spreads_them_most() -> None:
    embedder = made(dim=5)
    spread = torch.diag(torch.tensor([9.0, 8, 7, 6, 5] + [0.01] * 59))
    turn = torch.linalg.qr(torch.randn(64, 64, generator=seeded(1)))[0]
    features = torch.randn(500, 64, generator=seeded(0)) @ spread @ turn
    embedder.init_from(features)
    weight = embedder.new_layers()[0].weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(weight.T @ weight, turn[:5].T @ turn[:5], atol=1e-2, rtol=0)
    assert embedder.new_layers()[0].bias.eq(0).all()
    random = made(dim=5).new_layers()[0].weight.detach()
    embedder = made(dim=5)
    embedder.init_from(features[:4])  # four images spread in three directions
    weight = embedder.new_layers()[0].weight.detach()
    torch.testing.assert_close(weight[:3] @ weight[:3].T, torch.eye(3), atol=1e-5, rtol=0)
    assert torch.equal(weight[3:], random[3:])


def test_started_from_labelled_features_it_makes_short_what_differs_within_classes() -> None:
    embedder = made(dim=2)
    labels = torch.arange(8).repeat(60)
    features = torch.randn(480, 64, generator=seeded(0)) * 0.01
    features[:, 0] += labels  # tells the classes apart
    features[:, 1] += torch.randn(480, generator=seeded(1)) * 4  # differs most, but within classes
    embedder.init_from(features)
    assert embedder.new_layers()[0].weight[0, 1].abs() > 0.99
    embedder.init_from(features, labels)
    weight = embedder.new_layers()[0].weight.detach()
    assert weight[0, 0].abs() > 5 * weight[0, 1].abs()


def test_a_class_layer_in_closed_form_leads_to_the_centroids_and_leaves_the_embedding_its_directions() -> None:
    embedder, loss = made(dim=16, class_dim=7), DiscriminativeLoss(7)
    labels = torch.arange(7).repeat(30)
    features = 20 * torch.randn(7, 64, generator=seeded(0))[labels] + torch.randn(210, 64, generator=seeded(1))
    embedder.init_from(features, labels)
    before = embedder.embedding(features).detach()
    embedder.init_class_layer(features, loss.targets_of(labels))
    torch.testing.assert_close(embedder.embedding(features), before)
    assert 0.5 < embedder.penultimate(features).norm(dim=1).mean() < 2
    outputs = embedder.outputs(features)
    assert outputs.argmax(1).eq(labels).all()
    assert loss(outputs, labels) < loss(made(dim=16, class_dim=7).outputs(features), labels) - 0.3
    # Without regularisation it would be the least-squares solution: with it, outputs are a little shorter.
    assert outputs.gather(1, labels[:, None]).mean() < 1


def test_a_softmax_classifier_in_closed_form_has_the_scale_of_the_smallest_loss() -> None:
    embedder, loss = made(dim=16, class_dim=7), SoftmaxLoss(7)
    labels = torch.arange(7).repeat(30)
    features = 4 * torch.randn(7, 64, generator=seeded(0))[labels] + 9 * torch.randn(210, 64, generator=seeded(1))
    embedder.init_class_layer(features, loss.targets_of(labels), norm=3.0)
    assert 1.5 < embedder.penultimate(features).norm(dim=1).mean() < 6
    outputs = embedder.outputs(features)
    embedder.scale_outputs(loss.best_scale(outputs, labels))
    found = loss(embedder.outputs(features), labels)
    torch.testing.assert_close(
        embedder.outputs(features), outputs * loss.best_scale(outputs, labels), rtol=1e-4, atol=1e-4
    )
    assert found < loss(outputs, labels) - 0.1
    for factor in (0.8, 1.25):
        assert found < loss(factor * embedder.outputs(features), labels)


def test_a_round_trip_through_files_changes_nothing(tmp_path: Path) -> None:
    embedder = made()
    with torch.no_grad():
        embedder.train()(IMAGES)  # moves the running statistics, which are part of it
    embedder.eval().save(tmp_path)
    torch.testing.assert_close(load(tmp_path)(IMAGES), embedder(IMAGES), rtol=0, atol=0)
    assert load(tmp_path, embedding="last")(IMAGES).shape == (5, 7)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^no trained model in .*: embedder.json is missing. Train one: tammes train DATA"
    ):
        load(tmp_path)
    with pytest.raises(UserError, match=r"^`embedding='last'` needs the class layer."):
        EmbedderConfig("conv4", embedding="last")
    with pytest.raises(UserError, match=r"^`dim` must be at least 1, got 0.$"):
        EmbedderConfig("conv4", dim=0)
    with pytest.raises(UserError, match=r"^no images to encode.$"):
        made().encode([])
    with pytest.raises(UserError, match=r"^cannot encode a ndarray: give files, folders or Pillow images\. .*from"):
        made().encode(iter([np.zeros((8, 8, 3), dtype=np.uint8)]))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^batch_size must be at least 1, got 0\.$"):
        made().encode(Image.new("L", (28, 28)), batch_size=0)
    with pytest.raises(UserError, match=r"^an image of 0 x 5 pixels has nothing to encode: leave it out.$"):
        made().encode(Image.new("L", (0, 5)))
    closed = Image.new("L", (28, 28))
    closed.close()
    with pytest.raises(UserError, match=r"^a Pillow image cannot be read: Operation on closed image. Open it again"):
        made().encode([closed])
    with pytest.raises(UserError, match=r"^no such file or folder: .*nowhere.$"):
        made().encode(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"^no images in "):
        made().encode(tmp_path)


@pytest.mark.parametrize(("device", "large", "small"), [("cpu", 16, 1024), ("meta", 222, 1024)])
def test_how_many_images_go_together_depends_on_their_size_and_the_device(device: str, large: int, small: int) -> None:
    assert images_at_once(3 * 224 * 224, torch.device(device)) == large
    assert images_at_once(28 * 28, torch.device(device)) == small
    assert images_at_once(10**9, torch.device(device)) == 1  # never none
    assert Embedder(EmbedderConfig("conv4", 8, 3)).at_once == 1024


def test_vectors_do_not_depend_on_how_many_go_together() -> None:
    embedder = Embedder(EmbedderConfig("conv4", 8, 3)).eval()
    pictures = [Image.fromarray(np.random.default_rng(n).integers(0, 256, (30, 30), dtype=np.uint8)) for n in range(7)]
    np.testing.assert_allclose(embedder.encode(pictures, batch_size=2), embedder.encode(pictures), atol=1e-6)


def test_a_closed_form_is_of_the_same_form_of_the_network(tmp_path: Path) -> None:
    """Saved and loaded, it must not become torchvision's form with the weights of the other."""
    found = Embedder(EmbedderConfig("resnet50", 8, form="keras")).closed_form()
    assert found.config.form == "keras"
    found.save(tmp_path)
    images = torch.randint(256, (1, 3, 224, 224), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(images), found(images))
