"""What a user sees, who has no type checker in between: the errors for bad shapes, and torch.compile in one graph."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from textwrap import dedent

import pytest

from tammes.losses import WITH_CENTROIDS
from tests.conftest import HANGS

HAS_COMPILER = shutil.which("g++") is not None or shutil.which("clang++") is not None


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_errors_for_input_of_the_wrong_shape_or_type(printed_by: Callable[..., str]) -> None:
    printed = printed_by(
        """
        import torch
        from tammes import DiscriminativeLoss, HardDiscriminativeLoss, UserError, bound

        corners = torch.eye(3)
        bad = [
            lambda loss: loss(torch.randn(4, 2), torch.arange(4) % 3),
            lambda loss: loss(torch.randn(4), torch.arange(4) % 3),
            lambda loss: loss(torch.ones(4, 3, dtype=torch.long), torch.arange(4) % 3),
            lambda loss: loss(torch.randn(4, 3), torch.zeros(4)),
            lambda loss: loss(torch.randn(4, 3), torch.arange(3)),
            lambda loss: loss(torch.randn(4, 3), torch.zeros(4, 3, dtype=torch.long)),
            lambda loss: type(loss)(torch.ones(3)),
            lambda loss: type(loss)(torch.eye(3).long()),
        ]
        for loss in (DiscriminativeLoss(3), HardDiscriminativeLoss(corners)):
            for call in bad:
                try:
                    call(loss)
                except UserError as error:
                    print(error)
        import numpy as np
        from tammes.metrics import recall_at_k

        for call in (
            lambda: DiscriminativeLoss(3, weighting="balancd", class_sizes=[1, 2, 3]),
            lambda: bound.triplet_loss(corners[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]), reduction="maen"),
            lambda: recall_at_k(np.zeros((2, 3), dtype=int), np.zeros(3, dtype=int), 1),
        ):
            try:
                call()
            except UserError as error:
                print(error)
        """
    )
    of_one_loss = [
        "embeddings must have shape (batch, 3), got (4, 2).",
        "embeddings must have shape (batch, 3), got (4,).",
        "embeddings must be floating point, got torch.int64.",
        "labels must be integers, got torch.float32. Use labels.long().",
        "one label for each embedding: 4 embeddings, labels of shape (3,).",
        "one label for each embedding: 4 embeddings, labels of shape (4, 3).",
        "centroids must be floating point of shape (classes, dim), or a number of classes for one-hot ones;"
        " got torch.float32 of shape (3,).",
        "centroids must be floating point of shape (classes, dim), or a number of classes for one-hot ones;"
        " got torch.int64 of shape (3, 3).",
    ]
    others = [
        "unknown weighting 'balancd'. Did you mean 'balanced'? Known: balanced, none, triplet.",
        "reduction must be 'sum' or 'mean', got 'maen'.",
        "ranked must have shape (queries, depth) and labels (queries,), got (2, 3) and (3,).",
    ]
    assert printed.splitlines() == [*of_one_loss, *of_one_loss, *others]


@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",  # tracing and the derived backward are what a loss can break
        pytest.param(
            "inductor",  # the C++ that torch writes from them takes its time
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(not HAS_COMPILER, reason="torch.compile needs a C++ compiler: apt-get install g++"),
            ],
        ),
    ],
)
def test_torch_compile_takes_every_loss_and_ours_in_one_graph(printed_by: Callable[..., str], backend: str) -> None:
    printed = printed_by(
        """
        import sys
        import torch
        from tammes import DiscriminativeLoss, centroids
        from tammes.losses import WITH_CENTROIDS

        corners = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / 3**0.5
        labels = torch.arange(9) % 4
        losses = [make(corners) for make in WITH_CENTROIDS.values()] + [DiscriminativeLoss(4)]
        losses.append(DiscriminativeLoss(corners, class_sizes=[1, 2, 3, 4], weighting="triplet"))
        points = centroids.random(50, 8, generator=torch.Generator().manual_seed(0))
        losses.append(DiscriminativeLoss(points, sample_classes=10))
        for loss in losses:
            torch.compiler.reset()
            dim = 4 if loss.centroids is None else loss.centroids.shape[1]
            head, sampled = torch.nn.Linear(dim, dim), loss is losses[-1]
            step = loss if sampled else lambda z, labels: 2 * loss(head(z), labels)
            one_graph = type(loss) is DiscriminativeLoss and not sampled
            results = []
            for run in (step, torch.compile(step, fullgraph=one_graph, backend=sys.argv[1])):
                torch.manual_seed(0)
                z = torch.ones(9, dim).cumsum(0).sin().requires_grad_()
                value = run(z, labels)
                value.backward()
                results.append((value.detach(), z.grad))
            torch.testing.assert_close(results[0], results[1])
            print("same")
        """,
        backend,
    )
    assert printed.split() == ["same"] * (len(WITH_CENTROIDS) + 3)


def test_a_number_of_classes_may_come_from_numpy(printed_by: Callable[..., str]) -> None:
    printed = printed_by(
        "import numpy as np; from tammes import DiscriminativeLoss as L; print(L(np.int64(5)).num_classes)"
    )
    assert printed == "5\n"


def test_the_package_imports_without_torch_until_a_name_is_used(printed_by: Callable[..., str]) -> None:
    assert run("import sys, tammes; print('torch' in sys.modules, tammes.__version__ > '0')").split() == [
        "False",
        "True",
    ]
    assert printed_by("from tammes import *; print(DiscriminativeLoss(3), bound.__name__, centroids.__name__)") == (
        "DiscriminativeLoss(3 classes one-hot, push=0.333333, weighting='none') tammes.bound tammes.centroids\n"
    )


def test_the_loss_does_not_import_the_compiler(printed_by: Callable[..., str]) -> None:
    loaded = printed_by(
        "import sys, tammes; print(tammes.DiscriminativeLoss(3).num_classes, 'torch._dynamo' in sys.modules)"
    )
    assert loaded.split() == ["3", "False"], "it takes nearly as long as torch itself"


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import tammes

    with pytest.raises(AttributeError, match="^module 'tammes' has no attribute 'DiscriminatveLoss'$"):
        _ = tammes.DiscriminatveLoss


def test_a_reader_who_has_seen_enough_gets_no_traceback() -> None:
    command = f"{sys.executable} -m tammes train --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=HANGS)
    assert done.stdout.startswith("usage: tammes train")
    assert done.stderr == ""
