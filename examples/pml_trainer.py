# %% [markdown]
# # The discriminative loss in a trainer of pytorch-metric-learning
#
# `tammes.losses.to_pml.DiscriminativeLoss` is one of that library's losses: it goes where any of them goes. Here
# its trainer `MetricLossOnly` learns from the digits 0 to 4, and we search among the digits 5 to 9, which were
# never seen. Every digit is a vector of 64 pixels with 64 more numbers behind them that say nothing about it.
#
# Run it cell by cell, or whole: `python examples/pml_trainer.py`. It takes a few seconds and needs
# `pip install 'tammes[pml]'`.

# %%
import numpy as np
import torch
from pytorch_metric_learning.trainers import MetricLossOnly
from sklearn.datasets import load_digits
from torch import nn

from tammes import evaluate
from tammes.losses.to_pml import DiscriminativeLoss

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
noise = np.random.default_rng(0).normal(scale=8, size=pixels.shape)
vectors = torch.from_numpy(np.hstack([pixels, noise]).astype(np.float32) / 16)
seen = digits < 5

# %% [markdown]
# What we search by is the trunk: a linear map that begins as no map at all. On top of it a class layer has one output
# for each class, where the centroids are one-hot. The loss has nothing to train, so there is no optimizer for it, and
# it needs neither a miner nor a sampler.

# %%
trunk, class_layer = nn.Linear(128, 128, bias=False), nn.Linear(128, 5)
nn.init.eye_(trunk.weight)
trainer = MetricLossOnly(
    models={"trunk": trunk, "embedder": class_layer},
    optimizers={
        "trunk_optimizer": torch.optim.Adam(trunk.parameters(), lr=3e-3),
        "embedder_optimizer": torch.optim.Adam(class_layer.parameters(), lr=3e-3),
    },
    batch_size=64,
    loss_funcs={"metric_loss": DiscriminativeLoss(5)},
    dataset=torch.utils.data.TensorDataset(vectors[seen], torch.from_numpy(digits[seen])),
    data_device=torch.device("cpu"),
    dataloader_num_workers=0,
)


def measured() -> dict[str, float]:
    """R@1 and MAP@R of the digits never seen."""
    with torch.no_grad():
        found = nn.functional.normalize(trunk(vectors[~seen])).numpy()
    result: dict[str, float] = evaluate(found, digits[~seen], clustering=False, bootstrap=0)
    return result


# %% [markdown]
# It prints about
#
#     untrained  R@1  77.2   MAP@R  25.3
#     trained    R@1  84.6   MAP@R  33.0

# %%
before = measured()
trainer.train(num_epochs=10)
after = measured()
for name, result in (("untrained", before), ("trained", after)):
    recall, precision = result["recall_at_1"], result["mean_average_precision_at_r"]
    print(f"{name:<10} R@1 {100 * recall:5.1f}   MAP@R {100 * precision:5.1f}")
