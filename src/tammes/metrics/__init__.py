"""Metrics: arrays in, numbers out."""

from tammes.metrics.retrieval import (
    NORMALISERS,
    TIES,
    TITLES,
    FirstHits,
    PerQuery,
    ami,
    evaluate,
    nmi,
    per_query,
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
    "nmi",
    "per_query",
    "recall_at_k",
]
