"""MetricLearner: metric learning on existing vectors, as a scikit-learn estimator.

Vectors of any model are mapped to unit vectors that are close together within a class, also for unseen classes. Arrays
are never copied as a whole, so a memory-mapped one may be larger than memory.
"""

from tammes.vectors.learner import MetricLearner

__all__ = ["MetricLearner"]
