"""The command line: one file a command, with a frozen dataclass that is its options and a function that runs it.

Heavy modules are imported by the command that needs them, so that help appears at once.
"""

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Any

import tyro

from tammes import __version__
from tammes.cli.benchmark import Benchmark, benchmark
from tammes.cli.cache import Cache, cache
from tammes.cli.calibrate import Calibrate, calibrate
from tammes.cli.centroids import Centroids, centroids
from tammes.cli.data import Data, data
from tammes.cli.doctor import Doctor, doctor
from tammes.cli.duplicates import Duplicates, duplicates
from tammes.cli.embed import Embed, embed
from tammes.cli.evaluate import Evaluate, evaluate
from tammes.cli.index import Index, index
from tammes.cli.label import Label, label
from tammes.cli.losses import Losses, losses
from tammes.cli.report import Report, report
from tammes.cli.runs import Runs, runs
from tammes.cli.search import Search, search
from tammes.cli.serve import Serve, serve
from tammes.cli.train import Train, train
from tammes.errors import UserError, unknown_name

COMMANDS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "train": (Train, train),
    "evaluate": (Evaluate, evaluate),
    "calibrate": (Calibrate, calibrate),
    "embed": (Embed, embed),
    "report": (Report, report),
    "index": (Index, index),
    "search": (Search, search),
    "label": (Label, label),
    "duplicates": (Duplicates, duplicates),
    "serve": (Serve, serve),
    "runs": (Runs, runs),
    "data": (Data, data),
    "doctor": (Doctor, doctor),
    "losses": (Losses, losses),
    "centroids": (Centroids, centroids),
    "benchmark": (Benchmark, benchmark),
    "cache": (Cache, cache),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; what the user can put right is one line on stderr and exit code 2."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a file's name may hold what the terminal's encoding does not know
            stream.reconfigure(errors="backslashreplace")
    if given == ["--version"]:
        print(f"tammes {__version__}")
        return
    try:
        if given and not given[0].startswith("-") and given[0] not in COMMANDS:
            raise unknown_name("command", given[0], COMMANDS)
        config = tyro.extras.subcommand_cli_from_dict(
            {name: kind for name, (kind, _) in COMMANDS.items()},
            prog="tammes",
            description="Deep metric learning in linear time. `tammes COMMAND --help` explains a command.",
            args=given,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        run = next(function for kind, function in COMMANDS.values() if isinstance(config, kind))
        run(config)
    except UserError as error:
        print(f"tammes: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output has seen enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to flush has somewhere to go
        raise SystemExit(141) from None
