"""How the benchmarks measure: one thread, the candidates in turn, medians, and the memory that a step adds."""

import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tammes.io.machine import processor_flags

Step = Callable[[], object]


def medians(steps: dict[str, Step], rounds: int, in_a_row: int = 5) -> dict[str, float]:
    """Median seconds of each step, over at least `rounds`.

    The steps take turns, so that a slow spell of the machine meets them all; a turn is one step to warm the caches and
    a few that count.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(-(-rounds // in_a_row)):
        for name, step in steps.items():
            step()
            for _ in range(in_a_row):
                started = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in times.items()}


def peak_memory(step: Step) -> float:
    """The most bytes that the tensors of a step held at once, beyond what was there before."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    live = peak = 0.0
    events: Any = profiled.profiler.kineto_results.events()
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # what a processor calls that it multiplies them


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    try:
        model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
        processor = model.split(":", 1)[1].strip()
    except (OSError, StopIteration):
        processor = platform.processor()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "bfloat16": sorted(_BFLOAT16 & processor_flags()),
        "commit": commit.strip(),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def save(results: dict[str, Any], file: Path | None) -> None:
    """Write the results as JSON, beside the text that was printed."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=1) + "\n")
        print(f"written to {file}", file=sys.stderr)
