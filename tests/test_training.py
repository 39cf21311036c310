"""The training loop: it learns, adds up, stops, goes on, and says when the loss breaks."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tammes import DiscriminativeLoss, UserError
from tammes.training.loop import Batch, Epoch, Position, cosine, fit, halved_every, parameter_groups
from tests.oracles import seeded

IMAGES = torch.randn(50, 6, generator=seeded(0))
LABELS = torch.arange(50) % 4


class Toy(nn.Module):
    """Features instead of images, dropout to have something random, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
        self.loss = DiscriminativeLoss(4)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.network(images), labels)}


def batches(size: int) -> Callable[[int], Iterator[Batch]]:
    def of_epoch(epoch: int) -> Iterator[Batch]:
        order = torch.randperm(50, generator=seeded(epoch))
        return ((IMAGES[part], LABELS[part], part) for part in order.split(size))

    return of_epoch


def sgd(objective: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(objective.parameters(), lr=0.5, momentum=0.9)


def weights(objective: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in objective.parameters()])


def test_epochs_come_one_at_a_time_and_the_loss_falls() -> None:
    objective = Toy()
    epochs = list(fit(objective, batches(10), sgd(objective), epochs=8, schedule=halved_every(4)))
    assert [epoch.number for epoch in epochs] == list(range(1, 9))
    assert all(epoch.images == 50 and epoch.complete for epoch in epochs)
    assert epochs[-1].losses["loss"] < epochs[0].losses["loss"] - 0.1
    assert [epoch.rates[0] for epoch in epochs] == [0.5] * 4 + [0.25] * 4


def test_accumulated_batches_make_the_step_of_one_large_batch() -> None:
    results = []
    for size, accumulate in ((20, 1), (5, 4)):  # 50 images: the last group is smaller in both
        objective = Toy()
        objective.network[2] = nn.Identity()  # dropout would draw differently
        for _ in fit(objective, batches(size), sgd(objective), epochs=2, schedule=cosine(2), accumulate=accumulate):
            pass
        results.append(weights(objective))
    torch.testing.assert_close(results[0], results[1])


def test_a_batch_in_pieces_makes_the_same_step_and_counts_as_one() -> None:
    results, widest = [], []
    for at_once in (None, 3, 100):  # 20 = 6 × 3 + 2: pieces of different size
        objective, seen = Toy(), list[int]()
        objective.network[2] = nn.Identity()  # dropout would draw differently
        objective.network.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(len(given[0])))
        epochs = list(fit(objective, batches(20), sgd(objective), epochs=2, schedule=cosine(2), at_once=at_once))
        assert [epoch.images for epoch in epochs] == [50, 50]
        results.append((weights(objective), epochs[-1].losses["loss"]))
        widest.append(max(seen))
    assert widest == [20, 3, 20]
    for other, loss in results[1:]:
        torch.testing.assert_close(other, results[0][0])
        assert loss == pytest.approx(results[0][1], rel=1e-6)


def test_long_epochs_are_saved_within_and_gone_on_with_to_the_very_same_weights() -> None:
    whole, seen = Toy(), list[tuple[Any, ...]]()
    optimizer = sgd(whole)

    def save(position: Position) -> None:
        state = copy.deepcopy((whole.state_dict(), optimizer.state_dict(), position))
        seen.append((*state, torch.get_rng_state()))

    full = list(fit(whole, batches(10), optimizer, epochs=2, schedule=cosine(2), save=save, save_every=0.0))
    assert [(at.epoch, at.step) for _, _, at, _ in seen] == [(e, s) for e in (1, 2) for s in range(1, 6)]
    for weights_then, moments, position, random in (seen[2], seen[6]):
        part = Toy()
        part.load_state_dict(weights_then)
        again = sgd(part)
        again.load_state_dict(moments)
        torch.set_rng_state(random)
        rest = list(fit(part, batches(10), again, epochs=2, schedule=cosine(2), start=position))
        assert torch.equal(weights(part), weights(whole))
        assert rest[-1].losses == full[-1].losses


def test_short_epochs_are_not_saved_within() -> None:
    objective = Toy()
    saved: list[Position] = []
    list(fit(objective, batches(10), sgd(objective), epochs=1, schedule=cosine(1), save=saved.append))
    assert saved == []


def test_the_pieces_of_a_batch_are_of_about_one_size() -> None:
    objective, seen = Toy(), list[int]()
    objective.network.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    for _ in fit(objective, batches(50), sgd(objective), epochs=1, schedule=cosine(1), at_once=24):
        pass
    assert seen == [17, 17, 16]  # not 24, 24 and 2


def test_pieces_count_as_one_batch_where_training_stops() -> None:
    objective = Toy()
    epochs = list(
        fit(objective, batches(20), sgd(objective), epochs=1, schedule=cosine(1), at_once=3, stop=lambda: True)
    )
    assert (epochs[0].position.step, epochs[0].position.images) == (1, 20)


@pytest.mark.parametrize("steps", [1, 3, 5, 7])
def test_training_that_was_stopped_goes_on_to_the_very_same_weights(steps: int) -> None:
    whole = Toy()
    full = list(fit(whole, batches(10), sgd(whole), epochs=3, schedule=cosine(3)))
    part = Toy()
    optimizer, count = sgd(part), iter(range(1, 100))
    first = list(fit(part, batches(10), optimizer, epochs=3, schedule=cosine(3), stop=lambda: next(count) == steps))
    assert not first[-1].complete
    random, position = torch.get_rng_state(), copy.deepcopy(first[-1].position)
    torch.manual_seed(99)  # what happens in between must not matter
    torch.set_rng_state(random)
    second = list(fit(part, batches(10), optimizer, epochs=3, schedule=cosine(3), start=position))
    assert torch.equal(weights(part), weights(whole))
    assert second[-1].losses == full[-1].losses


def test_a_start_at_an_epoch_needs_no_random_state() -> None:
    whole, part = Toy(), Toy()
    list(fit(whole, batches(10), sgd(whole), epochs=3, schedule=cosine(3)))
    optimizer = sgd(part)
    epochs: Iterator[Epoch] = fit(part, batches(10), optimizer, epochs=3, schedule=cosine(3))
    next(epochs)
    torch.manual_seed(99)
    list(fit(part, batches(10), optimizer, epochs=3, schedule=cosine(3), start=Position(2)))
    assert torch.equal(weights(part), weights(whole))


def test_a_loss_that_is_not_finite_stops_with_its_place_and_a_likely_cause() -> None:
    objective = Toy()

    def broken(epoch: int) -> Iterator[Batch]:
        for number, (images, labels, indices) in enumerate(batches(10)(epoch)):
            yield (images * float("nan") if (epoch, number) == (2, 3) else images), labels, indices

    with pytest.raises(
        UserError,
        match=r"^the loss is not a finite number at epoch 2, step 4. The likely cause is a learning rate that is too"
        r" high \(now 0.5\): try a tenth. The checkpoint of the last good epoch is kept.$",
    ):
        list(fit(objective, broken, sgd(objective), epochs=3, schedule=halved_every(5), save=lambda _: None))


def test_the_papers_schedule() -> None:
    factor = halved_every(5)
    assert [factor(epoch, 0) for epoch in (1, 5, 6, 40)] == [1, 1, 0.5, 2**-7]


def test_biases_and_normalisation_have_no_weight_decay_and_new_layers_their_own_rate() -> None:
    network = nn.ModuleDict({"old": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), "new": nn.Linear(3, 4)})
    groups = parameter_groups([network["new"]], network, lr=0.1, backbone_lr=0.01, weight_decay=5e-4)
    said = {(g["lr"], g["weight_decay"]): sum(p.numel() for p in g["params"]) for g in groups}
    assert said == {(0.1, 5e-4): 12, (0.1, 0.0): 4, (0.01, 5e-4): 6, (0.01, 0.0): 3 + 6}


def test_layers_of_a_loss_have_its_rate_with_their_biases_and_a_scale_that_of_the_new_layers() -> None:
    """A generator whose biases ran ahead of its weights diverged whatever its rate was."""
    loss = nn.Module()
    loss.generator, loss.scale = nn.Linear(2, 3), nn.Parameter(torch.ones(()))
    groups = parameter_groups([], loss, lr=0.1, backbone_lr=0.01, weight_decay=0, proxies=loss, proxy_lr=0.001)
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    assert rates == {id(loss.generator.weight): 0.001, id(loss.generator.bias): 0.001, id(loss.scale): 0.1}


def test_memory_that_a_training_frees_is_kept_for_its_next_step_and_then_given_back(
    printed_by: Callable[..., str],
) -> None:
    """In a process of its own: what the C library does with memory is a matter of the whole process."""
    program = """
import resource, torch
from tammes.io.machine import kept_memory

def resident():  # MB
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20

def after_a_step():
    torch.ones(1 << 25)  # 128 MB
    return resident()

at_first, given_back = resident(), after_a_step()
with kept_memory():
    kept = after_a_step()
print(given_back - at_first, kept - at_first, resident() - at_first)
"""
    given_back, kept, at_last = map(int, printed_by(program).split())
    assert given_back < 64 < kept
    assert at_last < 64
