"""The bridge to pytorch-metric-learning: its losses and miners in `tammes train`, and ours in its trainers."""

import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from inspect import isclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses, miners, reducers, regularizers, trainers
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

import tammes
from tammes import UserError
from tammes.benchmark.plan import Plan, read_plan
from tammes.cli import main
from tammes.losses import METHODS, find_method, find_miner, from_pml
from tammes.losses.to_pml import DiscriminativeLoss
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.training.build import build_optimizer
from tammes.training.objectives import Objective
from tests.configs import config_of
from tests.pml_processes import CORNERS, a_network, eight, in_two_processes
from tests.test_distributed import ended, start

ROOT = Path(__file__).parents[1]
CLASSES, DIM = 5, 8
NEEDED = {"pml:RankedListLoss": {"margin": 0.4, "Tn": 1.0}}
LOSSES, MINERS = from_pml.names("loss"), from_pml.names("miner")


def batch(images: int = 16, dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Four images of each of four classes, of different lengths."""
    return 3 * torch.randn(images, dim, generator=torch.Generator().manual_seed(0)), torch.arange(images) // 4


def made(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return find_method(name).make({"num_classes": CLASSES, "dim": DIM}, NEEDED.get(name, {}) | options)


def theirs(name: str) -> nn.Module:
    """The loss of the library itself, with the same random start."""
    given = {"num_classes": CLASSES, "embedding_size": DIM}
    if name == "pml:P2SGradLoss":
        given = {"num_classes": CLASSES, "descriptors_dim": DIM}
    elif not find_method(name).takes:
        given = {}
    elif name == "pml:MarginLoss":
        del given["embedding_size"]
    torch.manual_seed(0)
    loss: nn.Module = getattr(losses, name[4:])(**given, **NEEDED.get(name, {}))
    return loss


# ---- every name of the library


def test_every_name_is_either_used_or_refused_with_a_reason() -> None:
    for module, kind, used in ((losses, "loss", LOSSES), (miners, "miner", MINERS)):
        for name in (name for name, each in vars(module).items() if isclass(each)):
            find = find_method if kind == "loss" else find_miner
            if f"pml:{name}" in used:
                assert find(f"pml:{name}").title == name
            else:
                with pytest.raises(
                    UserError, match=f"^pml:{name} cannot be used for training: {from_pml.REFUSED[name]}.$"
                ):
                    find(f"pml:{name}")
    assert len(LOSSES) >= 25
    assert len(MINERS) == 9


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of the library's own use of NumPy
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_the_value_and_gradient_of_the_library(name: str) -> None:
    embeddings, labels = batch()
    alone = embeddings.clone().requires_grad_()
    # Two of them look at the length of an embedding.
    of_length = name in ("pml:LargeMarginSoftmaxLoss", "pml:SphereFaceLoss")
    expected = theirs(name)(alone if of_length else normalize(alone), labels)
    expected.backward()
    ours = embeddings.clone().requires_grad_()
    value = made(name)(ours, labels)
    value.backward()
    assert value.shape == ()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(ours.grad, alone.grad, rtol=1e-4, atol=1e-6)
    assert bool(ours.grad.abs().sum() > 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", LOSSES)
def test_proxies_stay_in_float32_and_move(name: str) -> None:
    """Handed bfloat16, the library casts its proxies in place, and small steps are lost."""
    embeddings, labels = batch()
    loss = made(name)
    before = [each.detach().clone() for each in loss.parameters()]
    layer = nn.Linear(DIM, DIM)
    optimizer = torch.optim.SGD([*layer.parameters(), *loss.parameters()], lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = layer(embeddings)
            assert outputs.dtype == torch.bfloat16
            value = loss(outputs, labels)
        assert value.dtype == torch.float32
        value.backward()
        optimizer.step()
    assert all(each.dtype == torch.float32 for each in loss.parameters())
    assert all(not torch.equal(now, then) for now, then in zip(loss.parameters(), before, strict=True))
    assert (find_method(name).images_per_class == 1) == bool(before), "what has proxies takes any batch"


def test_the_library_itself_casts_proxies() -> None:
    """If it no longer does, less need be said about it."""
    loss = theirs("pml:ProxyAnchorLoss")
    loss(normalize(batch()[0]).bfloat16(), batch()[1])
    assert next(loss.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_with_nothing_to_compare_can_be_differentiated(name: str) -> None:
    for labels in ([0, 1, 2, 3], [2, 2, 2, 2], [3]):
        embeddings = batch()[0][: len(labels)].requires_grad_()
        value = made(name)(embeddings, torch.tensor(labels))
        value.backward()
        assert bool(value.isfinite()), labels
        assert embeddings.grad is not None
        assert bool(embeddings.grad.isfinite().all()), labels
        if name == "pml:NCALoss" and len(labels) == len(set(labels)):
            assert value.item() == 0


@pytest.mark.parametrize("name", MINERS)
def test_a_miner_says_what_the_loss_looks_at(name: str) -> None:
    embeddings, labels = batch()
    loss = made("pml:TripletMarginLoss", margin=0.3)
    loss.miner = find_miner(name).make({}, {})
    torch.manual_seed(1)
    value = loss(embeddings, labels)
    torch.manual_seed(1)
    unit = normalize(embeddings)
    mined = getattr(miners, name[4:])()(unit, labels)
    torch.testing.assert_close(value, losses.TripletMarginLoss(margin=0.3)(unit, labels, mined))
    nothing = loss(embeddings[:3].requires_grad_(), torch.arange(3))
    nothing.backward()
    assert nothing.item() == 0


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_with_a_miner_or_without(name: str) -> None:
    miner = "pml:MultiSimilarityMiner"
    if name in ("pml:P2SGradLoss", "pml:PNPLoss", "pml:RankedListLoss"):
        with pytest.raises(UserError, match=f"^`loss={name!r}` looks .*: drop `miner`"):
            find_method(name, miner)
        return
    assert find_method(name, miner).images_per_class == 4
    loss, (embeddings, labels) = made(name), batch()
    loss.miner = find_miner(miner).make({}, {"epsilon": 0.1})
    loss(embeddings.requires_grad_(), labels).backward()
    assert embeddings.grad is not None
    assert bool(embeddings.grad.isfinite().all())


def test_why_some_are_refused() -> None:
    """The faults that are named are there; where one is gone, so may the refusal be."""
    torch.manual_seed(0)
    unit, labels = normalize(batch(24)[0]), torch.arange(24) // 4
    # Smooth AP by its definition, a loop; the library has it right only for as many classes as images of each.
    for images, right in ((16, True), (24, False)):
        x, y = unit[:images], labels[:images]
        cosines, total = x @ x.T, 0.0
        for i in range(images):
            same = [j for j in range(images) if y[j] == y[i]]
            above = {j: torch.sigmoid((cosines[i] - cosines[i, j]) / 0.01) for j in same}
            ranks = [(1 + sum(above[j][k] for k in same if k != j), 1 + above[j].sum() - 0.5) for j in same]
            total += sum(float(positive / all_) for positive, all_ in ranks) / len(same) / images
        assert (abs(float(losses.SmoothAPLoss()(x, y)) - (1 - total)) < 1e-4) == right
    twice = unit[:8].clone()
    twice[1] = twice[0]
    with pytest.raises((RuntimeError, UserWarning)):
        losses.HistogramLoss()(twice, labels[:8])
    moving = losses.DynamicSoftMarginLoss()
    moving(unit.clone().requires_grad_(), labels).backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        moving(unit.clone().requires_grad_(), labels).backward()
    # Every image as near as can be to its own class and far from others, and the loss is large all the same.
    perfect = torch.eye(4).repeat_interleave(4, 0)
    assert losses.InstanceLoss()(perfect, labels[:16]).item() > 30


def test_a_loss_that_has_no_answer_says_so() -> None:
    embeddings, labels = batch()
    embeddings[1] = embeddings[0]
    with pytest.raises(UserError, match="^pml:TupletMarginLoss is nan although all embeddings are finite. .* coincide"):
        made("pml:TupletMarginLoss")(embeddings, labels)
    # A network that has diverged is another matter, and is said where it trains.
    embeddings[2] = float("nan")
    assert made("pml:TripletMarginLoss", margin=2.0)(embeddings, labels).isnan()


def test_a_label_that_is_no_class() -> None:
    with pytest.raises(UserError, match="0..4"):
        made("pml:ProxyNCALoss")(batch()[0], torch.arange(16) % 6)


# ---- names and options


@pytest.mark.parametrize("name", [*LOSSES, *MINERS])
def test_every_option_can_be_typed_as_it_is_shown(name: str) -> None:
    method = find_method(name) if name in LOSSES else find_miner(name)
    for option, default in method.defaults.items():
        if (name, option) not in (("pml:RankedListLoss", "margin"), ("pml:RankedListLoss", "Tn")):
            given = method.parse([f"{option}={default}"])
            method.make({"num_classes": CLASSES, "dim": DIM}, NEEDED.get(name, {}) | given)
    assert not {"num_classes", "embedding_size", "descriptors_dim", "distance", "reducer"} & set(method.defaults)


def test_an_option_reaches_the_loss() -> None:
    method = find_method("pml:ProxyAnchorLoss")
    loss: Any = method.make({"num_classes": 3, "dim": 4}, method.parse(["margin=0.25", "alpha=16"]))
    assert (loss.loss.margin, loss.loss.alpha, tuple(loss.loss.proxies.shape)) == (0.25, 16.0, (3, 4))
    inherited: Any = made("pml:ProxyNCALoss", **find_method("pml:ProxyNCALoss").parse(["softmax_scale=3"]))
    assert inherited.loss.softmax_scale == 3
    assert find_method("pml:TripletMarginLoss").parse(["triplets-per-anchor=7", "swap=True"]) == {
        "triplets_per_anchor": 7,
        "swap": True,
    }
    assert find_method("pml:MarginLoss").parse(["triplets_per_anchor=all"]) == {}
    learned = made("pml:MarginLoss", learn_beta=True)
    assert [tuple(each.shape) for each in learned.parameters()] == [(CLASSES,)]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "pml:ProxyAnchorLoss",
            "marign=0.1",
            "unknown option of ProxyAnchorLoss 'marign'. Did you mean 'margin'? Known",
        ),
        ("pml:ProxyAnchorLoss", "margin=wide", "margin of ProxyAnchorLoss must be a finite number, got 'wide'."),
        ("pml:ProxyAnchorLoss", "margin", "an option of a loss is NAME=VALUE, such as margin=0.2, got 'margin'."),
        ("pml:ProxyAnchorLoss", "num_classes=3", "num_classes of ProxyAnchorLoss follows from the data: leave it out."),
        ("pml:ProxyAnchorLoss", "embedding-size=3", "embedding_size of ProxyAnchorLoss follows from the data"),
        ("pml:NPairsLoss", "distance=cosine", "NPairsLoss has no options that can be typed, got 'distance'."),
        ("pml:SphereFaceLoss", "margin=2.5", "margin of SphereFaceLoss must be a whole number, got '2.5'."),
        ("pml:FastAPLoss", "num_bins=2.5", "num_bins of FastAPLoss must be a whole number, got '2.5'."),
        ("pml:TripletMarginLoss", "swap=1", "swap of TripletMarginLoss must be True or False, got '1'."),
        ("pml:PNPLoss", "variant=X", "variant of PNPLoss must be Ds or Dq or Iu or Ib or O, got 'X'."),
        (
            "pml:TripletMarginMiner",
            "type_of_triplets=semi",
            "type_of_triplets of TripletMarginMiner must be all or hard",
        ),
        (
            "pml:RankedListLoss",
            "imbalance=0.3",
            "pml:RankedListLoss has no default for margin and Tn: add `loss_options={'margin': ",
        ),
        ("pml:SoftTripleLoss", "gamma=0", "pml:SoftTripleLoss does not take these options: float division by zero."),
        (
            "pml:BatchEasyHardMiner",
            "pos_strategy=semihard",
            "pml:BatchEasyHardMiner does not take these options: pos_str",
        ),
        (
            "pml:BatchHardMiner",
            "pos_strategy=easy",
            "BatchHardMiner has no options that can be typed, got 'pos_strategy'",
        ),
    ],
)
def test_options_that_cannot_be(name: str, given: str, message: str) -> None:
    method = find_miner(name) if name.endswith("Miner") else find_method(name)
    with pytest.raises(UserError) as error:
        method.make({"num_classes": 3, "dim": 4}, method.parse([given]))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("loss", "miner", "message"),
    [
        (
            "pml:ProxyAncorLoss",
            None,
            "unknown loss 'pml:ProxyAncorLoss'. Did you mean 'pml:ProxyAnchorLoss'? Known: pml:A",
        ),
        ("pml:BatchHardMiner", None, "pml:BatchHardMiner is a miner, not a loss: use `miner='pml:BatchHardMiner'`."),
        ("pml:CircleLoss", "pml:CircleLoss", "pml:CircleLoss is a loss, not a miner: use `loss='pml:CircleLoss'`."),
        (
            "pml:CircleLoss",
            "pml:BatchHrdMiner",
            "unknown miner 'pml:BatchHrdMiner'. Did you mean 'pml:BatchHardMiner'?",
        ),
        (
            "pml:CircleLoss",
            "hard",
            "`miner` is one of pytorch-metric-learning, such as pml:MultiSimilarityMiner, got 'h",
        ),
        (
            "triplet",
            "pml:BatchHardMiner",
            "`miner` is for a loss of pytorch-metric-learning, `loss='pml:NAME'`, not for tr",
        ),
        ("tripel", "pml:BatchHardMiner", "unknown loss 'tripel'. Did you mean 'triplet'?"),
    ],
)
def test_names_that_cannot_be(loss: str, miner: str | None, message: str) -> None:
    with pytest.raises(UserError) as error:
        find_method(loss, miner)
    assert str(error.value).startswith(message)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_pml, "import_module", lambda name: __import__(f"no_{name}"))
    with pytest.raises(UserError, match="^pml:… needs the package pytorch-metric-learning: pip install 'tammes.pml.'"):
        from_pml.names("loss")
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    with pytest.raises(
        UserError, match="^tammes.losses.to_pml needs the package pytorch-metric-learning: pip install 'tammes"
    ):
        runpy.run_path(str(ROOT / "src" / "tammes" / "losses" / "to_pml.py"))


def test_another_generation_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytorch_metric_learning.__version__", "3.1.0")
    with pytest.raises(UserError, match="^pytorch-metric-learning 3.1.0 is not known here: pip install 'tammes.pml.'"):
        from_pml.names("loss")


# ---- the command


SMALL = ("--backbone", "conv4", "--dim", "8", "--batch-size", "8", "--epochs", "2", "--device", "cpu")
ASKED = ("--loss", "pml:ProxyAnchorLoss", "--loss-options", "margin=0.2", "alpha=16")
MINED = ("--miner", "pml:DistanceWeightedMiner", "--miner-options", "cutoff=0.4")


def test_a_run_of_their_loss_and_miner_is_stopped_and_gone_on_with(
    waves: Path,
    tmp_path: Path,
    stopped_and_resumed: Callable[[list[str], Path, int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also evaluated and reported; the miner draws at random, so the checkpoint holds that too."""
    given = ["train", str(waves), *SMALL, *ASKED, *MINED, "--json"]
    main([*given, "--out", str(tmp_path / "whole")])
    results = json.loads(capsys.readouterr().out)
    assert "--loss pml:ProxyAnchorLoss --loss-options margin=0.2 alpha=16" in results["command"]
    assert "--miner pml:DistanceWeightedMiner --miner-options cutoff=0.4" in results["command"]
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert (config["sampler"], config["images_per_class"]) == ("pk", 4)
    assert json.loads((tmp_path / "whole" / "embedder.json").read_text())["class_dim"] is None

    stopped_and_resumed(given, tmp_path / "part", 2)
    whole, part = (load_file(tmp_path / run / "embedder.safetensors") for run in ("whole", "part"))
    assert all(np.array_equal(whole[key], part[key]) for key in whole)
    proxies = [load_file(tmp_path / run / "checkpoint.safetensors") for run in ("whole", "part")]
    key = next(key for key in proxies[0] if key.endswith("loss.loss.proxies"))
    assert np.array_equal(proxies[0][key], proxies[1][key])
    capsys.readouterr()
    main(["evaluate", str(tmp_path / "part"), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert rows["trained"]["recall_at_1"] == pytest.approx(results["trained"]["recall_at_1"])
    main(["report", str(tmp_path / "part")])
    assert "pml:ProxyAnchorLoss" in (tmp_path / "part" / "report.html").read_text()


def test_batches_and_folder_of_their_losses() -> None:
    pairs, proxies, mined, asked = (
        config_of(loss=loss, **given)
        for loss, given in (
            ("pml:TripletMarginLoss", {}),
            ("pml:ArcFaceLoss", {}),
            ("pml:ArcFaceLoss", {"miner": "pml:BatchHardMiner"}),
            ("pml:TripletMarginLoss", {"images_per_class": 2}),
        )
    )
    assert (pairs.sampler, pairs.images_per_class, str(pairs.out)) == ("pk", 4, "runs/glyphs-pml-TripletMarginLoss-0")
    assert (proxies.sampler, proxies.images_per_class) == ("shuffled", None)
    assert (mined.sampler, mined.images_per_class, asked.images_per_class) == ("pk", 4, 2)


def test_their_proxies_have_a_rate_of_their_own_and_no_decay() -> None:
    config = config_of(loss="pml:ArcFaceLoss", lr=0.5, weight_decay=0.1, optimizer="sgd")
    loss = made("pml:ArcFaceLoss")
    objective = Objective(Embedder(EmbedderConfig("conv4", DIM)), loss)
    for asked, wanted in ((None, 0.5 * from_pml.PROXY_LR), (3.0, 3.0)):
        groups = build_optimizer(replace(config, proxy_lr=asked), objective).param_groups
        own = next(group for group in groups if any(each is loss.loss.W for each in group["params"]))
        assert (own["lr"], own["weight_decay"]) == (pytest.approx(wanted), 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--loss", "pml:ArcFace"], "unknown loss 'pml:ArcFace'. Did you mean 'pml:ArcFaceLoss'?"),
        ([*ASKED, "--miner-options", "cutoff=1"], "--miner-options are those of a miner: add --miner pml:NAME"),
        ([*ASKED, *MINED, "epsilon=1"], "unknown option of DistanceWeightedMiner 'epsilon'. Known: cutoff, nonzero"),
        ([*ASKED, "--centroids", "place"], "--centroids is for --loss "),
        ([*ASKED, "--embedding", "last"], "--loss pml:ProxyAnchorLoss is computed on the embedding, without a class"),
        (["--miner", "pml:BatchHardMiner"], "--miner is for a loss of pytorch-metric-learning"),
        (["--loss", "pml:CrossBatchMemory"], "pml:CrossBatchMemory cannot be used for training: it wraps a loss"),
    ],
)
def test_commands_that_cannot_be(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "glyphs", *given])
    assert message in capsys.readouterr().err


def test_losses_are_explained_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*given: str) -> str:
        main(["losses", *given])
        return capsys.readouterr().out

    assert "`tammes losses pml:` lists them" in said()
    assert all(name in said("pml:") for name in [*LOSSES, *MINERS])
    assert json.loads(said("pml:", "--json")) == {"losses": LOSSES, "miners": MINERS}
    loss = said("pml:ProxyAnchorLoss")
    assert "    margin = 0.1\n    alpha = 32\n" in loss
    assert loss.endswith("tammes train DATA --loss pml:ProxyAnchorLoss\n")
    assert "margin and Tn must be given" in said("pml:RankedListLoss")
    miner = said("pml:MultiSimilarityMiner")
    assert "--miner-options NAME=VALUE …):\n    epsilon = 0.1\n" in miner
    assert miner.endswith("tammes train DATA --loss pml:NAME --miner pml:MultiSimilarityMiner\n")
    found = json.loads(said("pml:ArcFaceLoss", "--json"))["pml:ArcFaceLoss"]
    assert (found["batch"], found["options"]) == ("any", {"margin": 28.6, "scale": 64})
    assert not any(name.startswith("pml:") for name in METHODS)


def plan(folder: Path, method: str) -> Plan:
    file = folder / "plan.toml"
    file.write_text(f'data = "glyphs"\n[search]\nlr = [1]\n[[method]]\nname = "theirs"\n{method}\n')
    return read_plan(file)


def test_a_benchmark_of_their_loss(tmp_path: Path) -> None:
    text = 'loss = "pml:ProxyAnchorLoss"\nmargin = 0.2\nsearch = { alpha = [16, 32] }\n'
    (found,) = plan(tmp_path, text + 'miner = "pml:PairMarginMiner"\nminer-options = ["pos_margin=0.1"]').methods
    assert found.options == {
        "loss": "pml:ProxyAnchorLoss",
        "loss_options": ("margin=0.2",),
        "miner": "pml:PairMarginMiner",
        "miner_options": ("pos_margin=0.1",),
    }
    assert found.search == {"alpha": (16, 32)}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ('loss = "pml:ArcFce"', "method 'theirs': unknown loss 'pml:ArcFce'. Did you mean 'pml:ArcFaceLoss'?"),
        ('loss = "pml:ArcFaceLoss"\nmarign = 1', "'marign' is not an option of tammes train."),
        ('loss = "pml:ArcFaceLoss"\nmargin = "x"', "margin of ArcFaceLoss must be a finite number, got 'x'."),
        ('loss = "pml:ArcFaceLoss"\nminer-options = ["a=1"]', "method 'theirs': miner-options are those of a miner"),
        ('loss = "pml:ArcFaceLoss"\nminer = "pml:HDCMiner"\nminer-options = ["a=1"]', "unknown option of HDCMiner 'a'"),
        ('loss = "pml:ArcFaceLoss"\nminer = "pml:HDCMiner"\nminer-options = 3', "miner_options must be a list"),
        ('loss = "triplet"\nminer = "pml:HDCMiner"', "`miner` is for a loss of pytorch-metric-learning"),
    ],
)
def test_benchmarks_that_cannot_be(method: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        plan(tmp_path, method)
    assert message in str(error.value)


# ---- ours in theirs

SIZES = [3, 5, 7, 9, 2, 4]
WEIGHTED = [
    {},
    {"weighting": "balanced", "class_sizes": SIZES, "push": 0.2},
    {"weighting": "triplet", "class_sizes": SIZES},
]


def differentiated(loss: nn.Module, embeddings: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    own = embeddings.clone().requires_grad_()
    value: Tensor = loss(own, *given)
    value.backward()
    assert own.grad is not None
    return value.detach(), own.grad


def some(dim: int) -> tuple[Tensor, Tensor]:
    return torch.randn(20, dim, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 6


@pytest.mark.parametrize("options", WEIGHTED, ids=["none", "balanced", "triplet"])
@pytest.mark.parametrize("centroids", [CORNERS, 6], ids=["corners", "one-hot"])
def test_value_and_gradient_are_ours(centroids: Tensor | int, options: dict[str, Any]) -> None:
    embeddings, labels = some(4 if isinstance(centroids, Tensor) else 6)
    expected = differentiated(tammes.DiscriminativeLoss(centroids, **options), embeddings, labels)
    for reducer in (None, reducers.MeanReducer(), reducers.PerAnchorReducer()):
        found = differentiated(DiscriminativeLoss(centroids, reducer=reducer, **options), embeddings, labels)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", WEIGHTED, ids=["none", "balanced", "triplet"])
def test_a_reducer_gets_the_loss_of_each_image(options: dict[str, Any]) -> None:
    (embeddings, labels), ours = some(4), tammes.DiscriminativeLoss(CORNERS, **options)
    each = torch.stack([ours(embeddings[n : n + 1], labels[n : n + 1]) for n in range(20)])
    unreduced = DiscriminativeLoss(CORNERS, reducer=reducers.DoNothingReducer(), **options)(embeddings, labels)["loss"]
    torch.testing.assert_close(unreduced["losses"], each, rtol=0, atol=1e-6)
    total = DiscriminativeLoss(CORNERS, reducer=reducers.SumReducer(), **options)(embeddings, labels)
    torch.testing.assert_close(total, each.sum())
    high = reducers.ThresholdReducer(low=float(each.median()))
    above = DiscriminativeLoss(CORNERS, reducer=high, **options)(embeddings, labels)
    torch.testing.assert_close(above, each[each > each.median()].mean())


def test_an_image_counts_by_how_often_it_was_mined() -> None:
    (embeddings, labels), ours = some(4), tammes.DiscriminativeLoss(CORNERS)
    mined = (torch.tensor([0, 0, 1]), torch.tensor([6, 6, 7]), torch.tensor([3, 4, 5]))
    counts = torch.zeros(20)
    for part in mined:
        for n in part:
            counts[n] += 1
    each = torch.stack([ours(embeddings[n : n + 1], labels[n : n + 1]) for n in range(20)])
    found = DiscriminativeLoss(CORNERS)(embeddings, labels, mined)
    torch.testing.assert_close(found, (each * counts / counts.max()).mean())


def test_regularizer_and_records() -> None:
    embeddings, labels = some(4)
    loss = DiscriminativeLoss(CORNERS, embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.1)
    expected = tammes.DiscriminativeLoss(CORNERS)(embeddings, labels) + 0.1 * embeddings.norm(dim=1).mean()
    torch.testing.assert_close(loss(embeddings, labels), expected)
    watched = DiscriminativeLoss(CORNERS, collect_stats=True)
    watched(embeddings, labels)
    own = (normalize(embeddings) - CORNERS[labels]).norm(dim=1).mean()
    assert watched.own_distance == pytest.approx(own.item(), abs=1e-6)
    assert (watched._record_these, watched._record_these_stats) == (["num_classes", "dim", "push"], ["own_distance"])
    assert not hasattr(DiscriminativeLoss(CORNERS), "own_distance")
    torch.testing.assert_close(loss.get_logits(embeddings).argmax(1), (normalize(embeddings) @ CORNERS.T).argmax(1))
    assert not list(loss.parameters())


def test_in_low_precision_the_loss_is_in_full() -> None:
    embeddings, labels = some(4)
    for reducer in (None, reducers.SumReducer()):
        loss = DiscriminativeLoss(CORNERS, reducer=reducer)
        with torch.autocast("cpu", torch.bfloat16):
            found = loss(embeddings, labels)
        torch.testing.assert_close(found, loss(embeddings, labels))
        assert loss(embeddings.bfloat16(), labels).dtype == torch.float32
    assert loss.bfloat16().ours.centroids.dtype == torch.float32


def test_what_it_refuses() -> None:
    (embeddings, labels), loss = some(4), DiscriminativeLoss(CORNERS)
    with pytest.raises(UserError, match="distances to its centroids, not to other embeddings: leave out ref_emb"):
        loss(embeddings, labels, ref_emb=embeddings.clone(), ref_labels=labels)
    with pytest.raises(UserError, match="^the discriminative loss needs labels.$"):
        loss(embeddings)
    with pytest.raises(UserError, match="0..5"):
        loss(embeddings, labels + 1)
    from pytorch_metric_learning.distances import CosineSimilarity

    with pytest.raises(UserError, match="Euclidean distance of unit vectors only: leave out distance"):
        DiscriminativeLoss(CORNERS, distance=CosineSimilarity())
    sampled = DiscriminativeLoss(CORNERS, sample_classes=3, reducer=reducers.SumReducer())
    with pytest.raises(UserError, match="sample_classes is for the mean over a batch: leave out the reducer and the"):
        sampled(embeddings, labels)
    assert bool(DiscriminativeLoss(CORNERS, sample_classes=3)(embeddings, labels).isfinite())


# Of the trainer itself, which prints the loss.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner()], ids=["alone", "mined"])
@pytest.mark.parametrize("name", ["MetricLossOnly", "TrainWithClassifier"])
def test_it_trains_in_their_trainers(name: str, miner: nn.Module | None, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(48, 10), torch.arange(48) % 6
    inputs += 2 * torch.eye(10)[labels]
    models = {"trunk": nn.Linear(10, 8), "embedder": nn.Linear(8, 4)}
    functions: dict[str, nn.Module] = {"metric_loss": DiscriminativeLoss(CORNERS)}
    if name == "TrainWithClassifier":
        models["classifier"], functions["classifier_loss"] = nn.Linear(4, 6), nn.CrossEntropyLoss()
    trainer = getattr(trainers, name)(
        models=models,
        optimizers={f"{key}_optimizer": torch.optim.Adam(each.parameters(), lr=0.02) for key, each in models.items()},
        batch_size=16,
        loss_funcs=functions,
        dataset=torch.utils.data.TensorDataset(inputs, labels),
        mining_funcs={} if miner is None else {"tuple_miner": miner},
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
    )

    def now() -> float:
        with torch.no_grad():
            return float(functions["metric_loss"](models["embedder"](models["trunk"](inputs)), labels))

    before = now()
    trainer.train(num_epochs=8)
    capsys.readouterr()
    assert now() < before - 0.2


@pytest.mark.xdist_group("processes")
def test_two_processes_inside_their_wrapper_have_the_gradient_of_one(tmp_path: Path) -> None:
    assert ended(start(2, tmp_path, in_two_processes, tmp_path), tmp_path) == [0, 0]
    together = torch.load(tmp_path / "gradient.pt", weights_only=True)
    network, (inputs, labels) = a_network(), eight()
    tammes.DiscriminativeLoss(CORNERS)(network(inputs), labels).backward()
    torch.testing.assert_close(together, [parameter.grad for parameter in network.parameters()])
    for rank in range(2):
        said = (tmp_path / f"refused {rank}.txt").read_text()
        assert "leave out ref_emb (and efficient=True of DistributedLossWrapper)" in said


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    found = runpy.run_path(str(ROOT / "examples" / "pml_trainer.py"))
    assert found["after"]["recall_at_1"] > found["before"]["recall_at_1"] + 0.05
    assert "trained" in capsys.readouterr().out
