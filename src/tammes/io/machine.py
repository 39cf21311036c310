"""The machine: device, processor, memory, and the record of it for each result."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any

from tammes.io.environment import launched, started_by_launcher

if TYPE_CHECKING:
    import torch

_RECORDED = (
    "tammes",
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "scipy",
    "scikit-learn",
    "pillow",
    "matplotlib",
)


def device(choice: str = "auto") -> "torch.device":
    """The device: "cpu", or with "auto" a GPU if there is one; each process has its own."""
    import torch

    if choice == "auto" and torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        assert found is not None
        if (here := launched()).number > 1:
            return torch.device(found.type, here.local_rank % torch.accelerator.device_count())
        return found
    return torch.device("cpu")


def has_gpu() -> bool:
    """Whether there is a GPU, or another accelerator that torch supports."""
    import torch

    return bool(torch.accelerator.is_available())


def processor_flags() -> set[str]:
    """The processor's flags as in /proc/cpuinfo; empty on other systems than Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return set(next(line for line in lines if line.lower().startswith(("flags", "features"))).split())
    except (OSError, StopIteration):
        return set()


def multiplies_bfloat16() -> bool:
    """Whether the processor has bfloat16 instructions; without, bfloat16 is emulated and slower than float32."""
    return not processor_flags().isdisjoint(("avx512_bf16", "amx_bf16"))


# Numbers of images that go through a network together on a CPU. With one thread torch computes 1 x 1 convolutions of
# fewer than 16 images in a slow way: ResNet-50 takes 1.45 times as long an image, GoogLeNet 1.27 times.
EMBEDDING, TRAINING = 16 * 3 * 224 * 224, 5 << 20  # 16 and 34 images of 224 x 224


def images_at_once(numbers: int, device: "torch.device", *, on_cpu: int = EMBEDDING) -> int:
    """The best number of images for one forward pass.

    Many for a GPU, few for a CPU, so that activations stay in its cache. Training on a CPU uses more, as each pass
    casts the weights and sums their gradients; see `kept_memory`.
    """
    most = on_cpu if device.type == "cpu" else 1 << 25
    return max(1, min(1024, most // max(1, numbers)))


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of glibc's mallopt


@contextmanager
def kept_memory() -> Iterator[None]:
    """With glibc, keep freed memory in the process within the block.

    Otherwise every large tensor is a new mapping whose pages the system must clear: 200,000 page faults and a fifth of
    the time of a step of GoogLeNet with 32 images.
    """
    try:
        library = ctypes.CDLL(None)
        set_option, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        yield
        return
    set_option(_MMAP_MAX, 0)
    set_option(_TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        set_option(_MMAP_MAX, 1 << 16)
        set_option(_TRIM_THRESHOLD, 1 << 26)
        trim(0)


def memory() -> int:
    """The memory of this machine in bytes; a very large number if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 47


def environment() -> dict[str, Any]:
    """Versions, machine and commit, as recorded with results."""
    versions = {}
    for name in _RECORDED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": platform.python_version(),
        "versions": versions,
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "commit": _commit(),
        "command": sys.argv,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _commit() -> str | None:
    """The commit of the code, if it runs from a git checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextmanager
def kill_as_interrupt() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C does.

    Not if the caller has set a handler, not in a thread, which receives no signals, and not in distributed training,
    where a process may wait for others in code that Python cannot interrupt.
    """
    if (
        started_by_launcher()
        or current_thread() is not main_thread()
        or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    ):
        yield
        return
    here = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == here:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)  # a process that was forked from this one ends as it would without us
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
