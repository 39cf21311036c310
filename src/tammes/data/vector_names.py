"""The names that arrays and columns of a file of vectors may have."""

from collections.abc import Collection

# Our names first, then those of scikit-learn, pandas and vector stores.
NAMES = {
    "vectors": ("vectors", "vector", "embeddings", "embedding", "X"),
    "labels": ("labels", "label", "y"),
    "query": ("query",),
    "gallery": ("gallery",),
    "sequence": ("sequence",),
    "paths": ("paths", "path", "keys", "key", "ids", "id"),
}


def known_names(stored: Collection[str]) -> dict[str, str]:
    """The columns of a file that are used, by our names; of several synonyms the first.

    >>> known_names(["X", "y", "age"])
    {'vectors': 'X', 'labels': 'y'}
    """
    found = {ours: next((name for name in names if name in stored), None) for ours, names in NAMES.items()}
    return {ours: name for ours, name in found.items() if name is not None}
