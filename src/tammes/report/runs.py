"""Write the report of one run, or of several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tammes.data import check_data
from tammes.errors import UserError, check_seed
from tammes.io.console import working
from tammes.io.outputs import place_for
from tammes.metrics.verification import checked_fmr
from tammes.report import compare_page, look, run_page
from tammes.report.items import check_for_images, items_of
from tammes.report.page import write_page
from tammes.report.run import FMR, OPTIONS
from tammes.training.objects import NONE, Objects
from tammes.training.run_folder import RunFolder, open_finished


def report_runs(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    map: Literal["tsne", "pca", "none"] = "tsne",
    fmr: float = FMR,
    skip_bad: bool = False,
    device: Literal["auto", "cpu"] = "auto",
    seed: int = 0,
    overwrite: bool = False,
    objects: Objects = NONE,
) -> Path:
    """Write the report of a run; for several runs, a report for each and one that compares them. Returns the path.

    Args:
        out: by default report.html, in the folder of the run, or for several runs in the current folder.
        map: how the map of the embeddings is computed, if at all.
        fmr: the false match rate whose threshold is drawn, for a run that is not calibrated.
        skip_bad: leave out unreadable images.
        seed: random seed of the example queries, and of the items of a very large map.
        overwrite: replace `out`; the report in a run folder is always replaced.
        objects: the Python objects of the trainings.
    """
    file = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    own = out is None and len(folders) == 1
    place = file if own else place_for("out", file, name=file.name, suffixes=(".html", ".htm"), overwrite=overwrite)
    check_seed("`seed`", seed)
    checked_fmr(fmr)
    runs = [open_finished(folder, objects) for folder in folders]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise UserError("a run is given twice: name each once.")
    for run in runs:  # before anything is computed
        data = run.read("config", needs=OPTIONS)["data"]
        if run.read("results", needs=("trained",))["trained"] is not None:
            check_for_images(run, skip_bad=skip_bad)
            check_data(None if objects.dataset is not None else data)

    def page_of(run: RunFolder) -> str:
        if run.read("results")["trained"] is None:
            return run_page(run, None)
        items = items_of(run, skip_bad=skip_bad, on=device)
        with working("finding neighbours and confusions"):
            looked = look(items, way=None if map == "none" else map, seed=seed)
        with working("writing"):
            return run_page(run, looked, fmr=fmr)

    if len(runs) == 1:
        write_page(place, page_of(runs[0]))
    else:
        for run in runs:
            write_page(run.folder / "report.html", page_of(run))
        write_page(place, compare_page(runs, file))
    return file
