# %% [markdown]
# # A better metric for vectors that you already have
#
# Every digit below is a vector of 64 pixels with 64 more numbers behind them that say nothing about the digit, as parts
# of most vectors do. We learn from the digits 0 to 4 which directions matter, and search among the digits 5 to 9,
# which were never seen.
#
# Run it cell by cell, or whole: `python examples/vectors.py [picture.png]`. It takes a few seconds.

# %%
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE
from sklearn.preprocessing import normalize

from tammes import MetricLearner, evaluate

pixels, digits = load_digits(return_X_y=True)
noise = np.random.default_rng(0).normal(scale=8, size=pixels.shape)
vectors = np.hstack([pixels, noise]).astype(np.float32)
seen = digits < 5

# %% [markdown]
# Learn from the vectors and labels of the digits 0 to 4.

# %%
learner = MetricLearner(random_state=0).fit(vectors[seen], digits[seen])

# %% [markdown]
# Compare, on the digits 5 to 9: R@1 is the share of the vectors whose nearest other vector shows the same digit, MAP@R
# how many of all that do come first. It prints about
#
#     as they are  R@1  77.2   MAP@R  25.3
#     learned      R@1  89.1   MAP@R  40.5

# %%
unseen = digits[~seen]
before = normalize(vectors[~seen])
after = learner.transform(vectors[~seen])
measured = [evaluate(found, unseen, clustering=False, bootstrap=0) for found in (before, after)]
for name, result in zip(("as they are", "learned"), measured, strict=True):
    recall, precision = result["recall_at_1"], result["mean_average_precision_at_r"]
    print(f"{name:<12} R@1 {100 * recall:5.1f}   MAP@R {100 * precision:5.1f}")

# %% [markdown]
# Look at them: t-SNE of both, a colour for each digit.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 5))
for axis, found, name, result in zip(axes, (before, after), ("as they are", "learned"), measured, strict=True):
    x, y = TSNE(init="pca", random_state=0, max_iter=500).fit_transform(found).T
    for digit in np.unique(unseen):
        axis.scatter(x[unseen == digit], y[unseen == digit], s=8, label=str(digit))
    axis.set(title=f"{name}: R@1 {100 * result['recall_at_1']:.1f} %", xticks=[], yticks=[])
axes[1].legend(title="unseen digit", fontsize=8)
picture = Path(sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].endswith(".png") else "vectors.png")
figure.savefig(picture, dpi=100, bbox_inches="tight")
print(f"written to {picture}")
