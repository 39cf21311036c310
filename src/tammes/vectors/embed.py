"""Vectors through a learner, a block at a time: from a file that is mapped into one that is whole or not there."""

from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy import ndarray

from tammes.data import Vectors
from tammes.io.console import progress
from tammes.io.files import written_whole
from tammes.training.run_folder import RunFolder
from tammes.vectors.learner import MetricLearner
from tammes.vectors.train import other_vectors, output_dtype


def embed_vectors(run: RunFolder, file: str, out: Path) -> tuple[int, int]:
    """Write what the learner of a run makes of the vectors of a file; how many there are, and their dimension."""
    learner = MetricLearner.load(run.folder)
    found = other_vectors(learner, run, file)
    return len(found), _written(learner, found, out)


def _written(learner: MetricLearner, found: Vectors, out: Path) -> int:
    """Write the new vectors, and what else the file had; their length."""
    shape, dtype = (len(found), learner.network_.dim), np.dtype(output_dtype(found.vectors))
    others = {name: getattr(found, name) for name in ("labels", "query", "gallery", "sequence", "paths")}
    with written_whole(out) as file, ZipFile(file, "w", ZIP_STORED) as archive, progress("embedding") as on_progress:
        with archive.open("vectors.npy", "w", force_zip64=True) as entry:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(entry, header)
            for part, block in learner._embedded_blocks(found.vectors):
                entry.write(block.astype(dtype).tobytes())
                on_progress(min(part.stop, len(found)), len(found))
        for name, array in others.items():
            if array is not None:
                _write(archive, name, array)
    return int(shape[1])


def _write(archive: ZipFile, name: str, array: ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
        np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)
