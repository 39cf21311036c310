"""Slow doubles of the losses with a point per class: loops over images and classes, for autograd in float64."""

from collections.abc import Callable
from math import pi, sin

import torch
from torch import Tensor, nn

from tests.oracles import SIX, SIX_LABELS, seeded

X, Y = torch.tensor(SIX, dtype=torch.float64), torch.tensor(SIX_LABELS)
# A point for each class of the six, neither of unit length nor their mean.
POINTS = torch.tensor([[0.9, 0.3], [0.2, 1.0], [-0.4, -0.8]], dtype=torch.float64)


def problem(batch: int, classes: int, dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, labels of uneven frequency, and a point per class."""
    labels = (classes * torch.rand(batch, generator=seeded(seed)).square()).long()  # low ones are frequent
    embeddings = torch.randn(batch, dim, generator=seeded(seed + 1), dtype=torch.float64)
    return embeddings, labels, torch.randn(classes, dim, generator=seeded(seed + 2), dtype=torch.float64)


def with_points(loss: nn.Module, name: str, points: Tensor) -> nn.Module:
    """The loss in float64, its proxies, centers or means where we say."""
    loss.double()
    with torch.no_grad():
        loss.get_parameter(name).copy_(points) if name == "proxies" else loss.get_buffer(name).copy_(points)
    return loss


def gradients(value: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The value and its gradient by each input."""
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    result = value(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves)]


def unit(vector: Tensor) -> Tensor:
    scaled: Tensor = vector / (vector * vector).sum() ** 0.5
    return scaled


def squared(one: Tensor, other: Tensor) -> Tensor:
    total: Tensor = ((one - other) * (one - other)).sum()
    return total


def cross_entropy(logits: list[Tensor], label: int) -> Tensor:
    total = sum((each - logits[label]).exp() for each in logits)
    assert isinstance(total, Tensor)
    return total.log()


def mean(terms: list[Tensor]) -> Tensor:
    total = sum(terms)
    assert isinstance(total, Tensor)
    return total / len(terms)


def hinge(value: Tensor) -> Tensor:
    return value if value > 0 else value * 0


def normface(x: Tensor, y: Tensor, proxies: Tensor, scale: float | Tensor) -> Tensor:
    terms = []
    for image, label in zip(x, y.tolist(), strict=True):
        terms.append(cross_entropy([scale * (unit(image) * unit(p)).sum() for p in proxies], label))
    return mean(terms)


def agents(x: Tensor, y: Tensor, proxies: Tensor, form: str, margin: float, hardest: bool = False) -> Tensor:
    terms = []
    for image, label in zip(x, y.tolist(), strict=True):
        apart = [squared(unit(image), unit(p)) for p in proxies]
        others = [apart[m] for m in range(len(proxies)) if m != label]
        if form == "contrastive":
            terms.append(sum((hinge(margin - each) for each in others), apart[label]))
        else:
            hinges = [hinge(margin + apart[label] - each) for each in others]
            terms.append(max(hinges) if hardest else mean(hinges) * len(hinges))
    return mean(terms)


def proxy_nca(x: Tensor, y: Tensor, proxies: Tensor, scale: float, included: bool, smoothing: float) -> Tensor:
    terms = []
    for image, label in zip(x, y.tolist(), strict=True):
        logits = [-squared(scale * unit(image), scale * unit(p)) for p in proxies]
        if not included:
            others = [each for m, each in enumerate(logits) if m != label]
            terms.append((mean([each.exp() for each in others]) * len(others)).log() - logits[label])
            continue
        truth = [smoothing / (len(logits) - 1)] * len(logits)
        truth[label] = 1 - smoothing
        terms.append(mean([t * cross_entropy(logits, m) for m, t in enumerate(truth)]) * len(logits))
    return mean(terms)


def proxy_anchor(x: Tensor, y: Tensor, proxies: Tensor, scale: float, margin: float) -> Tensor:
    pull, push = [], []
    for label, p in enumerate(proxies):
        own, others = torch.ones((), dtype=x.dtype), torch.ones((), dtype=x.dtype)
        for image, of in zip(x, y.tolist(), strict=True):
            cosine = (unit(image) * unit(p)).sum()
            if of == label:
                own = own + (-scale * (cosine - margin)).exp()
            else:
                others = others + (scale * (cosine + margin)).exp()
        push.append(others.log())
        if label in y.tolist():
            pull.append(own.log())
    return mean(pull) + mean(push)


def arcface(x: Tensor, y: Tensor, proxies: Tensor, margin: float, scale: float) -> Tensor:
    terms = []
    for image, label in zip(x, y.tolist(), strict=True):
        cosines = [(unit(image) * unit(p)).sum() for p in proxies]
        angle = cosines[label].acos()
        beyond = angle > pi - margin
        cosines[label] = cosines[label] - margin * sin(margin) if beyond else (angle + margin).cos()
        terms.append(cross_entropy([scale * each for each in cosines], label))
    return mean(terms)


def center(x: Tensor, y: Tensor, classifier: Tensor, bias: Tensor, centers: Tensor, weight: float) -> Tensor:
    terms = []
    for image, label in zip(x, y.tolist(), strict=True):
        logits = [(w * image).sum() + b for w, b in zip(classifier, bias, strict=True)]
        terms.append(cross_entropy(logits, label) + weight * squared(image, centers[label]) / 2)
    return mean(terms)


def moved_centers(x: Tensor, y: Tensor, centers: Tensor, alpha: float) -> Tensor:
    moved = []
    for label, point in enumerate(centers):
        step, images = torch.zeros_like(point), 0
        for image in x[y == label]:
            step, images = step + (point - image), images + 1
        moved.append(point - alpha * step / (1 + images))
    return torch.stack(moved)


def nearest_mean(x: Tensor, y: Tensor, means: Tensor) -> Tensor:
    return mean(
        [cross_entropy([-squared(image, u) for u in means], label) for image, label in zip(x, y.tolist(), strict=True)]
    )


def prototypical(x: Tensor, y: Tensor, shot: int) -> Tensor:
    labels = sorted(set(y.tolist()))
    support = {label: [i for i in range(len(y)) if y[i] == label][:shot] for label in labels}
    prototypes = [mean([x[i] for i in support[label]]) for label in labels]
    terms = []
    for i, label in enumerate(y.tolist()):
        if i not in support[label]:
            terms.append(cross_entropy([-squared(x[i], r) for r in prototypes], labels.index(label)))
    return mean(terms)
