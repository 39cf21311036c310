"""Embed the vectors of a file with a learner, block by block, into another file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy import ndarray

from tammes.data.vector_files import write_vectors
from tammes.io.console import progress
from tammes.training.run_folder import RunFolder
from tammes.vectors.learner import MetricLearner
from tammes.vectors.train import other_vectors, output_dtype


def embed_vectors(run: RunFolder, file: str, out: Path) -> tuple[int, int]:
    """Write the embeddings of the vectors of a file by a run's learner, with the other columns of the file.

    Returns:
        How many there are, and their dimension.
    """
    learner = MetricLearner.load(run.folder)
    found = other_vectors(learner, run, file, labelled=False)
    shape, dtype = (len(found), int(learner.network_.dim)), np.dtype(output_dtype(found.vectors))
    others = {name: getattr(found, name) for name in ("query", "gallery", "sequence", "paths")}
    with progress("embedding") as on_progress:

        def blocks() -> Iterator[ndarray]:
            for part, block in learner._embedded_blocks(found.vectors):
                yield block
                on_progress(min(part.stop, len(found)), len(found))

        write_vectors(out, blocks(), shape, dtype, {"labels": found.labels if found.labelled else None, **others})
    return shape
