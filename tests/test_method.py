"""What a method declares is what is served: options by their names, batches, looks at all images, rates of its own."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tammes import UserError
from tammes.cli import main
from tammes.data.samplers import Turn, turns
from tammes.losses import METHODS, Method
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.training.build import build_optimizer
from tammes.training.config import TrainConfig
from tammes.training.data import training_batches
from tammes.training.loop import Batch, cosine, fit
from tammes.training.objectives import METHODS as ALL
from tammes.training.objectives import Objective
from tests.configs import config_of


class Made(nn.Module):
    def __init__(
        self,
        num_classes: int,
        *,
        margin: float | None = None,
        form: Literal["one", "two"] = "one",
        hard: bool = False,
        every: int = 3,
        sizes: list[int] | None = None,
    ) -> None:
        super().__init__()
        self.given = (num_classes, margin, form, hard, every, sizes)


MADE = Method(Made, "the made one", "Makes", "f = 0", "B", "Maker 2000, Making", takes=("num_classes",))


def test_options_are_typed_as_the_loss_has_them() -> None:
    found = MADE.parse(["margin=1e-2", "form=two", "hard=True", "every=7"])
    assert found == {"margin": 0.01, "form": "two", "hard": True, "every": 7}
    assert MADE.parse(["margin=none", " hard = false"]) == {"margin": None, "hard": False}
    made = MADE.make({"num_classes": 4, "dim": 9}, found)
    assert made.given == (4, 0.01, "two", True, 7, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["margin"], "an option of a loss is NAME=VALUE, such as margin=0.2, got 'margin'."),
        (["colour=red"], "'colour' is not an option of the made one. Its options: margin, form, hard, every."),
        (["num_classes=3"], "'num_classes' is not an option of the made one."),
        (["margin=wide"], "margin of the made one must be a finite number, got 'wide'."),
        (["form=three"], "form of the made one must be one or two, got 'three'."),
        (["hard=1"], "hard of the made one must be True or False, got '1'."),
        (["every=1.5"], "every of the made one must be a whole number, got '1.5'."),
        (["sizes=[1]"], "sizes of the made one must be left out: it follows from the data, got '[1]'."),
        (["margin=1", "margin=2"], "the option margin is given twice."),
    ],
)
def test_options_that_cannot_be(given: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        MADE.parse(given)
    assert str(error.value).startswith(message)


def test_a_source_in_a_word_or_two() -> None:
    assert METHODS["npair"].source == "Sohn 2016"
    assert METHODS["discriminative"].source == "Do et al. 2019"
    assert METHODS["hard-discriminative"].source == "ours"
    assert METHODS["softmax"].source == "the usual classifier"
    assert METHODS["triplet-smart"].source == "Harwood et al. 2017"


def test_a_batch_in_words() -> None:
    assert METHODS["softmax"].batch == "any"
    assert METHODS["npair"].batch == "2 images of each class"
    assert METHODS["triplet-smart"].batch == "triplets that it mines"


# ---- batches


def test_mined_triplets_stay_together_in_a_batch_of_all_processes() -> None:
    labels, order = np.arange(9) % 3, np.array([0, 3, 1, 4, 1, 2, 0, 6, 5, 7, 4, 0, 8, 2, 1])
    for world_size in (1, 2):
        shares = [
            turns(labels, batch_size=7, train=True, order=order, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        found = [Turn(*map(np.concatenate, zip(*each, strict=True))) for each in zip(*shares, strict=True)]
        assert all(len(turn.positions) % 3 == 0 and len(turn.positions) <= 6 for turn in found)
        assert np.concatenate([turn.positions for turn in found]).tolist() == order.tolist()
        nth = np.concatenate([turn.repeats for turn in found])
        assert nth.tolist() == [order[:place].tolist().count(each) for place, each in enumerate(order)]


def test_a_batch_too_small_for_a_triplet() -> None:
    with pytest.raises(UserError, match="^a batch of 2 cannot hold a triplet. Use `batch_size=3` or more.$"):
        turns(np.arange(3), batch_size=2, train=True, order=np.arange(3))


# ---- looks at all images


class Looker(nn.Module):
    """Counts what it is shown."""

    def __init__(self, sees: str) -> None:
        super().__init__()
        self.sees, self.seen = sees, list[tuple[int, int]]()
        self.weight = nn.Parameter(torch.ones(3))

    def look(self, embeddings: Tensor, labels: Tensor, *, generator: torch.Generator) -> None:
        self.seen.append((len(labels), int(torch.randint(10**9, (), generator=generator))))
        assert len(embeddings) == len(labels)

    def forward(self, images: Tensor, _labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (images * self.weight).mean()}


def few(_epoch: int) -> list[Batch]:
    return [(torch.ones(2, 3), torch.arange(2), torch.arange(2))] * 2


@pytest.mark.parametrize(("sees", "looks"), [("batches", 0), ("all images once", 1), ("all images each epoch", 3)])
def test_fit_shows_all_images_as_declared(sees: str, looks: int) -> None:
    objective, asked = Looker(sees), list[int]()

    def everything() -> tuple[Tensor, Tensor]:
        asked.append(1)
        return torch.randn(11, 3), torch.arange(11)

    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    list(fit(objective, few, optimizer, epochs=3, schedule=cosine(3), everything=everything))
    assert len(asked) == looks
    assert [count for count, _ in objective.seen] == [11] * looks
    assert len({drawn for _, drawn in objective.seen}) == looks, "each epoch draws again"


def test_the_look_comes_before_the_batches_and_counts_as_time() -> None:
    objective, order = Looker("all images each epoch"), list[str]()

    def everything() -> tuple[Tensor, Tensor]:
        order.append("look")
        return torch.randn(2, 3), torch.arange(2)

    def batches(epoch: int) -> list[Batch]:
        order.append(f"batches {epoch}")
        return few(epoch)

    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    list(fit(objective, batches, optimizer, epochs=2, schedule=cosine(2), everything=everything))
    assert order == ["look", "batches 1", "look", "batches 2"]


def test_an_objective_that_looks_needs_something_to_see() -> None:
    objective = Looker("all images once")
    with pytest.raises(ValueError, match="the objective sees all images once: give fit"):
        next(fit(objective, few, torch.optim.SGD(objective.parameters(), lr=1.0), epochs=1, schedule=cosine(1)))


# ---- the command


SMALL = ("--backbone", "conv4", "--dim", "8", "--batch-size", "12", "--epochs", "2", "--device", "cpu")


# One loss of each kind always; tests/contracts/test_methods.py trains with every one.
KINDS = {(each.takes, each.on, each.sees, each.images_per_class > 1): name for name, each in reversed(METHODS.items())}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in KINDS.values() else pytest.mark.slow) for name in METHODS]
)
def test_every_loss_trains_by_the_same_command(
    name: str, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", str(waves), *SMALL, "--loss", name, "--out", str(tmp_path / "run"), "--json"])
    results = json.loads(capsys.readouterr().out)
    assert 0 <= results["trained"]["recall_at_1"] <= 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert ("hardness" in lines[1]) == (name == "triplet-smart")
    shape = json.loads((tmp_path / "run" / "embedder.json").read_text())
    assert (shape["class_dim"] is None) == (METHODS[name].on == "embedding")


@pytest.mark.parametrize("name", ["triplet-smart", "center", "deepncm", "proxy-nca"])
def test_a_method_that_remembers_goes_on_to_the_very_same_weights(
    name: str, waves: Path, tmp_path: Path, stopped_and_resumed: Callable[[list[str], Path, int], None]
) -> None:
    """Stopped in the middle of an epoch, and of what it has mined for it."""
    from safetensors.numpy import load_file

    given = ["train", str(waves), *SMALL, "--loss", name]
    main([*given, "--out", str(tmp_path / "whole")])

    stopped_and_resumed(given, tmp_path / "part", 3)
    whole, part = (load_file(tmp_path / run / "embedder.safetensors") for run in ("whole", "part"))
    assert all(np.array_equal(whole[key], part[key]) for key in whole)


def test_smart_mining_takes_negatives_from_the_whole_training_set(
    waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of three images: a negative cannot come from anywhere else."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    served = training_batches

    def watched(*given: Any) -> Any:
        found = served(*given)
        seen.extend((labels.numpy(), indices.numpy()) for _, labels, indices in found)
        return found

    monkeypatch.setattr("tammes.training.train.training_batches", watched)
    main(["train", str(waves), *SMALL, "--loss", "triplet-smart", "--batch-size", "3", "--out", str(tmp_path / "run")])
    mined = [(labels, indices) for labels, indices in seen if len(labels) == 3]
    assert len(mined) > 20
    for labels, indices in mined:
        assert labels[0] == labels[1] != labels[2]
        assert indices[0] != indices[1]
    assert len({int(indices[2]) for _, indices in mined}) > 3, "negatives are chosen, not one for all"


def test_the_record_of_smart_mining_says_how_many_images_a_batch_of_whole_triplets_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for asked, held in ((128, 126), (127, 126), (126, 126), (4, 3), (3, 3)):
        assert config_of("glyphs", loss="triplet-smart", batch_size=asked).batch_size == held
        said = capsys.readouterr().err
        assert (f"needs whole triplets: batches of {held} images" in said) == (asked != held)
    assert config_of("glyphs", loss="triplet", batch_size=128).batch_size == 128


def test_proxies_have_a_learning_rate_of_their_own() -> None:
    config = config_of("glyphs", loss="proxy-nca", lr=0.5, weight_decay=0.1, optimizer="sgd")
    loss = METHODS["proxy-nca"].make({"num_classes": 4, "dim": 8}, {})
    objective = Objective(Embedder(EmbedderConfig("conv4", 8)), loss)
    for asked, wanted in ((None, 0.5 * METHODS["proxy-nca"].proxy_lr), (3.0, 3.0)):
        groups = build_optimizer(replace(config, proxy_lr=asked), objective).param_groups
        own = next(group for group in groups if any(each is next(loss.parameters()) for each in group["params"]))
        assert own["lr"] == pytest.approx(wanted)
        assert own["weight_decay"] == 0
        assert sum(len(group["params"]) for group in groups) == len(list(objective.parameters()))


def test_a_loss_on_the_embedding_has_something_to_train_with_head() -> None:
    pairs, ours = (
        config_of("photos", backbone="googlenet", weights="none", train="head", loss=loss)
        for loss in ("triplet", "discriminative")
    )
    assert (pairs.keep_init, pairs.init, ours.keep_init, ours.init) == (False, "pca", False, "whiten")
    assert (pairs.sampler, pairs.images_per_class, ours.sampler, ours.images_per_class) == ("pk", 4, "shuffled", None)


def test_the_rate_that_suits_a_loss_is_its_default() -> None:
    photos = {"data": "photos", "backbone": "resnet18", "weights": "none"}  # by sgd
    assert len({method.lr for method in METHODS.values()}) > 2
    for name, method in METHODS.items():
        assert config_of(**photos, loss=name).lr == pytest.approx(config_of(**photos).lr * method.lr)
        assert config_of(**photos, loss=name, preset="paper").lr == pytest.approx(0.1 * method.lr), "any preset"
        assert config_of(**photos, loss=name, lr=0.7).lr == 0.7
        assert config_of("glyphs", loss=name).lr == 1e-3, "Adam needs no other"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--loss", "triplt"], "unknown loss 'triplt'. Did you mean 'triplet'"),
        (["--loss", "lifted", "--loss-options", "margn=1"], "'margn' is not an option of"),
        (
            ["--loss", "lifted", "--centroid-dim", "3"],
            "--loss lifted is computed on the embedding, without a class layer",
        ),
        (["--loss", "lifted", "--embedding", "last"], "computed on the embedding, without a class layer: drop --emb"),
        (["--loss", "lifted", "--no-class-layer"], "without a class layer: drop --no-class-layer."),
        (
            ["--loss", "triplet-smart", "--sampler", "pk"],
            "--loss triplet-smart mines its own batches: drop --sampler.",
        ),
        (["--sampler", "balanced", "--images-per-class", "3"], "--images-per-class is for --sampler pk."),
        (["--images-per-class", "3"], "--images-per-class is for --sampler pk: add it (--loss discriminative"),
        (["--push", "0.1", "--loss-options", "push=0.2"], "push is given twice: by --push and by --loss-options."),
        (
            ["--loss", "lifted", "--push", "0.1"],
            "--push is for --loss discriminative or hard-discriminative, not for li",
        ),
        (["--loss", "softmax", "--no-class-layer"], "--loss softmax needs one output per class: "),
        (
            ["--loss", "prototypical", "--images-per-class", "2"],
            "needs 3 images or more of each class in a batch, not 2.",
        ),
        (
            ["--loss", "triplet", "--batch-size", "4"],
            "a batch of 4 holds only one class of 4 images, and --loss triplet",
        ),
        (["--loss", "triplet", "--images-per-class", "1"], "needs 2 images or more of each class in a batch, not 1."),
        (
            ["--loss", "triplet", "--proxy-lr", "1"],
            "--proxy-lr is for the parameters of a loss, and triplet has",
        ),
        (["--loss", "triplet-smart", "--images-per-class", "4"], "mines its own batches: drop --images-per-class."),
        (
            ["--loss", "lifted", "--train", "head", "--init", "pca", "--keep-init"],
            "--keep-init and --train head leave no layer to train: --loss lifted is computed on the embedding",
        ),
        (["--proxy-lr", "-1"], "--proxy-lr must not be negative, got -1.0."),
    ],
)
def test_what_a_loss_cannot_use_is_refused(
    given: list[str], message: str, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(waves), *SMALL, "--out", str(tmp_path / "run"), *given])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", ["triplet", "npair", "triplet-smart", "prototypical"])
def test_classes_of_one_image_are_nothing_to_compare(
    loss: str, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(8):
        (tmp_path / "photos" / str(number)).mkdir(parents=True)
        for image in range(1 if number < 4 else 3):
            name = f"{image}.png"
            (tmp_path / "photos" / str(number) / name).write_bytes((waves / f"class {number}" / name).read_bytes())
    with pytest.raises(SystemExit):
        main(["train", str(tmp_path / "photos"), *SMALL, "--loss", loss, "--out", str(tmp_path / "run")])
    assert "images of a class, and no training class has more than 1. Add images, or choose" in capsys.readouterr().err


def test_batches_that_cannot_be_are_said_before_a_run_is_replaced(
    waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["train", str(waves), *SMALL, "--loss", "triplet", "--out", str(tmp_path / "run")]
    main(given)
    with pytest.raises(SystemExit):
        main([*given, "--batch-size", "30", "--overwrite"])
    assert "a batch of 30 cannot hold classes of 4 images each" in capsys.readouterr().err
    assert (tmp_path / "run" / "results.json").exists()


def test_a_learned_scale_trains_as_the_new_layers_do() -> None:
    config = config_of("photos", backbone="conv4", weights="none", loss="normface", optimizer="sgd")
    loss = METHODS["normface"].make({"num_classes": 4, "dim": 8}, {})
    objective = Objective(Embedder(EmbedderConfig("conv4", 8)), loss)

    def rate(config: TrainConfig, parameter: object) -> float:
        groups = build_optimizer(config, objective).param_groups
        return float(next(g["lr"] for g in groups if any(each is parameter for each in g["params"])))

    usual = config.lr
    assert rate(config, loss.proxies) == pytest.approx(usual * METHODS["normface"].proxy_lr)
    assert rate(config, loss.raw_scale) == pytest.approx(usual)
    assert rate(replace(config, preset="paper"), loss.proxies) == pytest.approx(rate(config, loss.proxies))
    assert rate(replace(config, optimizer="adam"), loss.proxies) == pytest.approx(usual), "both multiples or neither"


def test_options_of_a_loss_reach_it(waves: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    main(["train", str(waves), *SMALL, "--loss", "lifted", "--loss-options", "margin=0.25", "--out", str(run)])
    assert json.loads((run / "config.json").read_text())["loss_options"] == ["margin=0.25"]
    other = tmp_path / "other"
    main(["train", str(waves), *SMALL, "--loss", "lifted", "--out", str(other)])
    first = [json.loads((each / "metrics.jsonl").read_text().splitlines()[0])["loss"] for each in (run, other)]
    assert first[0] != first[1]
    assert "--loss-options margin=0.25" in json.loads((run / "results.json").read_text())["command"]


# ---- tammes losses


def test_losses_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["losses"])
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    for name, method in METHODS.items():
        line = next(line for line in lines if line.startswith(f"{name} "))
        assert all(part in line for part in (method.summary, method.cost, method.batch, method.source)), "one line each"


def test_one_loss_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    main(["losses", "lifted"])
    shown = capsys.readouterr().out
    assert METHODS["lifted"].equation.strip().splitlines()[0] in shown
    assert "margin = 1" in shown
    assert "tammes train DATA --loss lifted" in shown


def test_losses_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["losses", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(ALL)
    assert found["triplet-semihard"]["options"] == {"margin": 1.0}
    assert found["npair"]["batch"] == "2 images of each class"


def test_a_loss_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["losses", "lift"])
    assert "unknown loss 'lift'. Did you mean 'lifted'" in capsys.readouterr().err


def test_training_knows_no_loss_by_its_name() -> None:
    """What a method needs it declares."""
    source = Path(__file__).parents[1] / "src" / "tammes"
    for file in (
        "training/loop.py",
        "training/objectives/objective.py",
        "training/train.py",
        "training/build.py",
        "training/data.py",
        "training/config.py",
    ):
        text = (source / file).read_text()
        assert not re.search(r"loss (==|!=|in \()", text), file
