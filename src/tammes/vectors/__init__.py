"""A better metric on vectors that are there already, as a scikit-learn estimator: MetricLearner.

Vectors of any model go in, unit vectors come out that are close together where the class is the same, also for classes
that were never seen. Nothing is copied whole: an array that is mapped into memory may be larger than it.
"""

from tammes.vectors.learner import MetricLearner

__all__ = ["MetricLearner"]
