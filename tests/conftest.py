"""One thread a test process: the tests run side by side, and small tensors only wait for a second thread."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# A machine that is busy is no fault of the code.
settings.register_profile("tammes", deadline=None)
settings.load_profile("tammes")


def in_one_thread(*arguments: str) -> None:
    """With as many threads as the tests have: sums in another order differ in their last digit."""
    from tammes.cli import main  # not before pytest has set up the check of shapes

    torch.set_num_threads(1)
    main(arguments)


@pytest.fixture(scope="session")
def started() -> Callable[..., BaseProcess]:
    """Start a command in a process of its own, to be killed at its work.

    All are forks of one process that has imported what they need, which takes longer than their work. Tests that use it
    are in one group, `killed`, so that there is one such process. LanceDB, which has a thread, is not imported before.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tammes.cli.job", "tests.conftest"])

    def start(*arguments: str) -> BaseProcess:
        process = context.Process(target=in_one_thread, args=arguments, daemon=True)
        process.start()
        return process

    return start
