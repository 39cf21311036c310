"""Metrics: arrays in, numbers out."""

from tammes.metrics.retrieval import (
    NORMALISERS,
    TIES,
    TITLES,
    FirstHits,
    PerQuery,
    ami,
    evaluate,
    map_at_r,
    mean_reciprocal_rank,
    nmi,
    per_query,
    r_precision,
    recall_at_k,
)

__all__ = [
    "NORMALISERS",
    "TIES",
    "TITLES",
    "FirstHits",
    "PerQuery",
    "ami",
    "evaluate",
    "map_at_r",
    "mean_reciprocal_rank",
    "nmi",
    "per_query",
    "r_precision",
    "recall_at_k",
]
