"""What `runner doctor` finds, each by a machine or a server that has it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner import doctor_log, doctor_machine
from streamrunner.runner.doctor import Finding, examine, exit_code
from streamrunner.runner.doctor_log import log_checks
from streamrunner.runner.doctor_machine import busy_processes, machine_checks, memory_limit, usable_cpus
from streamrunner.runner.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrunner.sinks.embedded.server import EmbeddedServer

RUNNER = Path(sys.executable).with_name("runner")


def found(checks: list[Any]) -> dict[str, Finding]:
    """The worst finding of each name."""
    worst: dict[str, Finding] = {}
    order = ("ok", "warn", "fail")
    for one in examine(checks):
        if one.name not in worst or order.index(one.status) > order.index(worst[one.name].status):
            worst[one.name] = one
    return worst


def machine(proc: Path | None = None, cgroup: Path | None = None) -> dict[str, Finding]:
    return found(machine_checks(proc=proc or Path("/proc"), cgroup=cgroup or Path("/nowhere")))


def test_a_check_that_breaks_is_a_finding_and_stops_no_other() -> None:
    def broken() -> Iterator[Finding]:
        raise ZeroDivisionError("by zero")
        yield

    told = list(examine([("a", broken), ("b", lambda: [Finding("b", "ok", "fine")])]))
    assert [(one.name, one.status) for one in told] == [("a", "warn"), ("b", "ok")]
    assert "by zero" in told[0].message


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], ExitCode.OK),
        ([("cpu", "warn")], ExitCode.OK),
        ([("libraries", "fail"), ("cpu", "ok")], ExitCode.INVALID),
        ([("libraries", "fail"), ("server", "fail")], ExitCode.LOG_UNREACHABLE),
    ],
)
def test_the_exit_code_is_that_of_the_worst(findings: list[tuple[str, Any]], code: ExitCode) -> None:
    assert exit_code(Finding(name, status, "m") for name, status in findings) is code


def test_this_machine_can_run_jobs() -> None:
    told = machine()
    assert {"libraries", "cpu", "gpu", "threads", "files", "load"} <= set(told)
    assert told["libraries"].status == "ok"
    assert all(one.remedy for one in told.values() if one.status != "ok")


def test_a_missing_or_old_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "requires", lambda _: ["redis>=99", "no-such-thing>=1", "odd; extra == 'dev'"])
    told = machine()["libraries"]
    assert told.status == "fail"
    assert "redis is" in told.message
    assert "no-such-thing is missing" in told.message
    assert "odd" not in told.message


@pytest.mark.parametrize(("quota", "cpus"), [("max 100000", None), ("150000 100000", 1.5), ("", None)])
def test_the_quota_of_a_container_counts(tmp_path: Path, quota: str, cpus: float | None) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    mine = float(len(os.sched_getaffinity(0)))
    assert usable_cpus(tmp_path) == (mine if cpus is None else min(cpus, mine))


def test_more_threads_than_cpus_and_fewer_are_both_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000")
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    told = machine(cgroup=tmp_path)["threads"]
    assert (told.status, told.remedy) == ("warn", "export OMP_NUM_THREADS=1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machine(cgroup=tmp_path)["threads"].status == "ok"


def test_little_memory_is_told_with_the_limit_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{1 << 29}\n")
    told = machine(cgroup=tmp_path)["memory"]
    assert told.status == "warn"
    assert "0.5 GiB" in told.message
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) is None


def test_a_busy_process_is_found_by_its_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").mkdir()
    stat = tmp_path / "7" / "stat"

    def write(ticks: int) -> None:
        stat.write_text(f"7 (odd) name)) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 0\n")

    write(0)
    monkeypatch.setattr(doctor_machine, "time", type("T", (), {
        "sleep": lambda _s: write(os.sysconf("SC_CLK_TCK")), "monotonic": iter((0.0, 2.0)).__next__,
    }))  # fmt: skip
    assert busy_processes(tmp_path) == [(7, "odd) name)", 0.5)]
    assert busy_processes(tmp_path / "nothing") == []


def test_a_new_data_dir_is_fine_and_stays_unmade(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    told = found(log_checks(None, folder))
    assert {one.status for one in told.values()} == {"ok"}
    assert "made when needed" in told["data dir"].message
    assert "not running" in told["server"].message
    assert not folder.exists()


def test_a_network_file_system_is_refused_only_where_the_log_is_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_log, "filesystem_of", lambda _: "nfs4")
    assert found(log_checks(None, tmp_path))["data dir"].status == "fail"
    assert found(log_checks("redis://127.0.0.1:1", tmp_path))["data dir"].status == "warn"


@pytest.mark.parametrize(("free", "status"), [(1 << 20, "fail"), (1 << 30, "warn"), (1 << 40, "ok")])
def test_a_disk_is_told_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    usage = type("Usage", (), {"free": free, "total": 1 << 41})
    monkeypatch.setattr(doctor_log, "shutil", type("S", (), {"disk_usage": lambda _: usage}))
    assert found(log_checks(None, tmp_path))["disk"].status == status


def test_another_hosts_data_dir_is_refused(tmp_path: Path) -> None:
    from streamrunner.sinks.embedded.pin import Pin, write_pin

    (tmp_path / "server").mkdir()
    pin = Pin(server="valkey", version="9.0.0", binary="b", host_id="other", host_name="moon", socket="server.sock")
    write_pin(tmp_path / "server" / "server.json", pin)
    told = found(log_checks(None, tmp_path))["server program"]
    assert told.status == "fail"
    assert "moon" in told.message
    assert told.remedy == "[data_dir_foreign]"


def test_a_running_private_server_is_examined_and_not_kept(embedded: EmbeddedServer, data_dir: Path) -> None:
    told = found(log_checks(None, data_dir))
    assert "Valkey" in told["server"].message
    assert {"persistence", "latency", "jobs"} <= set(told)
    assert {one.status for one in told.values()} == {"ok"}


def test_a_server_that_holds_the_data_dir_and_does_not_answer_is_told(data_dir: Path) -> None:
    from streamrunner.sinks.locks import FileLock

    (data_dir / "server").mkdir()
    path = data_dir / "server" / "server.lock"
    with FileLock(path) as lock:
        assert lock.try_acquire()
        path.write_text("4242 x")
        told = found(log_checks(None, data_dir))["server"]
    assert told.status == "warn"
    assert "4242" in told.message


def test_an_open_job_without_a_worker_is_told(embedded: EmbeddedServer, data_dir: Path) -> None:
    from streamrunner.sinks.directory import JobDirectory
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.log import JobLog

    JobDirectory(embedded.client(), "sr").announce("job_7", "capitals")
    log = JobLog(embedded, JobKeys("job_7"), "t")
    log.submit({"name": "capitals"}, 1, [{"first": 0, "count": 1}])
    told = found(log_checks(None, data_dir))["jobs"]
    assert told.status == "warn"
    assert "job_7 capitals" in told.message
    log.join("w1", "token", {"host": "h", "pid": 1, "fingerprint": {}})
    assert found(log_checks(None, data_dir))["jobs"].status == "ok"


def test_a_server_that_may_lose_rows_is_a_warning_and_one_that_evicts_a_failure(
    redis_factory: Callable[..., str], tmp_path: Path
) -> None:
    weak = found(log_checks(redis_factory(appendfsync="everysec"), tmp_path))
    assert (weak["durability"].status, weak["server"].status, weak["clock"].status) == ("warn", "ok", "ok")
    assert "everysec" in weak["durability"].message
    evicting = found(log_checks(redis_factory(maxmemory_policy="allkeys-lru"), tmp_path))
    assert evicting["server"].status == "fail"
    assert "noeviction" in evicting["server"].message


def test_a_full_server_and_a_failed_snapshot_are_told(tmp_path: Path) -> None:
    told = [*doctor_log._server_memory({"used_memory": 90, "maxmemory": 100})]
    told += doctor_log._persistence({"rdb_last_bgsave_status": "err"})
    assert [(one.name, one.status) for one in told] == [("server memory", "warn"), ("persistence", "fail")]


def test_a_clock_that_is_off_and_a_slow_network_are_told() -> None:
    class Far:
        def time(self) -> tuple[int, int]:
            return int(time.time()) - 60, 0

        def ping(self) -> None:
            time.sleep(0.007)

    assert [one.status for one in doctor_log._clock(Far())] == ["warn"]
    assert [one.status for one in doctor_log._latency(Far())] == ["warn"]


def test_a_server_that_is_not_there_is_69_and_one_line_a_finding(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"redis://user:secret@127.0.0.1:{free.getsockname()[1]}/0"
        env = {**os.environ, "RUNNER_DATA_DIR": str(tmp_path), "RUNNER_REDIS_URL": url}
        done = subprocess.run([RUNNER, "doctor"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (69, "")
    assert "secret" not in done.stdout
    assert any(line.startswith("fail  server ") for line in done.stdout.splitlines())


def test_the_doctor_imports_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom streamrunner.runner.cli.main import cli\n"
        f"cli(['doctor', '--json', '--data-dir', {str(tmp_path)!r}], standalone_mode=False)\n"
        "print('imported:', *sorted({'torch', 'transformers', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported:"
