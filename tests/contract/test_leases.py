"""Leases on every kind of store: one holder at a time, increasing tokens, and takeover from dead holders."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.errors import CorruptFile, LeaseHeld, LeaseLost, StorageError, WorkspaceTooNew
from driftline.storage.leases import liveness
from driftline.storage.leases import liveness as processes
from driftline.storage.leases.lease import Lease, acquire, peek
from driftline.storage.leases.liveness import Liveness
from driftline.storage.objects.store import ObjectStore
from tests.support.waiting import PATIENCE_SECONDS, until

PATH = "org:acme/_leases/source.json"

HOLDER = f"""
import sys, time
from driftline.storage.leases.lease import acquire
from driftline.storage.objects.store import ObjectStore
lease = acquire(ObjectStore.open(sys.argv[1]), {PATH!r}, "run-child", ttl_seconds=float(sys.argv[2]))
print(lease.token, flush=True)
while True:
    sys.stdin.readline()
    try:
        lease.check()
        print("held", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""

RACER = f"""
import sys
from driftline.storage.errors import LeaseHeld
from driftline.storage.leases.lease import acquire
from driftline.storage.objects.store import ObjectStore
store = ObjectStore.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    lease = acquire(store, {PATH!r}, "run-" + sys.argv[2])
    print("won", flush=True)
except LeaseHeld:
    print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def store(every_store_uri: str) -> ObjectStore:
    return ObjectStore.open(every_store_uri)


@pytest.fixture
def disk(tmp_path: Path) -> ObjectStore:
    return ObjectStore.open(str(tmp_path / "workspace"))


class Child:
    """A Python process that waits for an input line before it continues, and replies with a line."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class Clock:
    """A clock that advances only during sleeps. A sleep lasts at most a second and calls ``each_second``."""

    def __init__(self, each_second: Callable[[], None] = lambda: None) -> None:
        self.now = 1000.0
        self._each_second = each_second

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._each_second()


def lease_file(store: ObjectStore) -> dict[str, Any]:
    return dict(json.loads(store.get(PATH)))


def rewrite(store: ObjectStore, **owner: object) -> None:
    """Change the owner in the lease file, as if another process had written the file."""
    data, version = store.get_versioned(PATH)
    record = json.loads(data)
    record["owner"].update(owner)
    store.replace(PATH, json.dumps(record).encode(), version)


def held_by_another_host(store: ObjectStore, ttl_seconds: float = 60.0) -> None:
    acquire(store, PATH, "run-far", ttl_seconds=ttl_seconds).leave_held()
    rewrite(store, host="far-away", boot_id="another boot", pid=1)


def test_a_lease_is_written_held_and_released_with_its_token_kept(store: ObjectStore) -> None:
    with acquire(store, PATH, "run-1") as lease:
        assert (lease.token, lease.taken_over) == (1, False)
        lease.check()
        record = lease_file(store)
        assert (record["state"], record["token"], record["ttl_seconds"]) == ("held", 1, 60.0)
        assert (record["owner"]["pid"], record["owner"]["run_id"]) == (os.getpid(), "run-1")
    assert (lease_file(store)["state"], lease_file(store)["token"]) == ("released", 1)
    with acquire(store, PATH, "run-2") as lease:
        assert (lease.token, lease.taken_over) == (2, False)


def test_the_error_for_a_held_lease_names_its_holder(store: ObjectStore) -> None:
    with acquire(store, PATH, "run-1"):
        with pytest.raises(LeaseHeld) as caught:
            acquire(store, PATH, "run-2")
        for part in ("run-1", f"process {os.getpid()}", PATH, "until 20"):
            assert part in str(caught.value)
        assert lease_file(store)["token"] == 1


def test_a_waiting_run_gets_a_lease_once_it_is_released(store: ObjectStore) -> None:
    first = acquire(store, PATH, "run-1")
    threading.Timer(0.3, first.release).start()
    with acquire(store, PATH, "run-2", wait_seconds=PATIENCE_SECONDS) as second:
        assert (second.token, second.taken_over) == (2, False)


def test_a_lease_expires_after_one_ttl_without_a_change(store: ObjectStore) -> None:
    held_by_another_host(store)
    with pytest.raises(LeaseHeld, match="far-away"):
        acquire(store, PATH, "run-2")
    clock = Clock()
    with pytest.raises(LeaseHeld):
        acquire(store, PATH, "run-2", wait_seconds=59, clock=clock, sleep=clock.sleep)
    with acquire(store, PATH, "run-2", wait_seconds=120, clock=clock, sleep=clock.sleep) as lease:
        assert (lease.token, lease.taken_over) == (2, True)
        assert 60 <= clock.now - 1059 < 63


def test_a_renewing_holder_on_another_host_is_never_taken_over(disk: ObjectStore) -> None:
    held_by_another_host(disk)
    renewals = iter(range(1000))
    clock = Clock(each_second=lambda: rewrite(disk, run_id=f"run-far-{next(renewals)}"))
    with pytest.raises(LeaseHeld, match="run-far-"):
        acquire(disk, PATH, "run-2", wait_seconds=300, clock=clock, sleep=clock.sleep)


def test_an_overdue_holder_on_another_host_is_watched_for_one_ttl(disk: ObjectStore) -> None:
    """A scheduled run takes over from a dead host without options; a renewing one whose clock is slow keeps it."""
    held_by_another_host(disk)
    data, version = disk.get_versioned(PATH)
    record = {**json.loads(data), "renewed": "2026-01-01T00:00:00Z"}
    disk.replace(PATH, json.dumps(record).encode(), version)
    renewals = iter(range(1000))
    clock = Clock(each_second=lambda: rewrite(disk, run_id=f"run-far-{next(renewals)}"))
    with pytest.raises(LeaseHeld, match="run-far-"):
        acquire(disk, PATH, "run-2", clock=clock, sleep=clock.sleep)
    assert clock.now - 1000 < 63
    clock = Clock()
    with acquire(disk, PATH, "run-2", clock=clock, sleep=clock.sleep) as lease:
        assert (lease.token, lease.taken_over) == (2, True)
    assert 60 <= clock.now - 1000 < 63


def test_a_killed_holder_on_this_host_is_replaced_at_once(disk: ObjectStore) -> None:
    with Child(HOLDER, disk.uri, "60") as holder:
        assert holder.answer() == "1"
        with pytest.raises(LeaseHeld, match="run-child"):
            acquire(disk, PATH, "run-2")
        holder.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, holder.process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
        with acquire(disk, PATH, "run-2") as lease:
            assert (lease.token, lease.taken_over) == (2, True)


def test_a_reused_pid_does_not_hold_a_lease(disk: ObjectStore) -> None:
    acquire(disk, PATH, "run-1").leave_held()
    rewrite(disk, start_time="1")
    assert acquire(disk, PATH, "run-2").taken_over


def test_a_pid_of_another_boot_or_container_proves_nothing(disk: ObjectStore) -> None:
    acquire(disk, PATH, "run-1").leave_held()
    rewrite(disk, boot_id="another boot", pid=2**22 + 1)
    with pytest.raises(LeaseHeld):
        acquire(disk, PATH, "run-2")


# -- proof of death: what is not proven does not count -------------------------------------------------------------


def test_a_holder_hidden_from_proc_keeps_its_lease_until_it_is_killed(
    disk: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Child(HOLDER, disk.uri, "60") as holder:
        assert holder.answer() == "1"
        with monkeypatch.context() as patch:
            patch.setattr(processes, "_start_time", lambda _: "")  # hidepid=2
            patch.setattr(os, "kill", hidden)
            with pytest.raises(LeaseHeld, match="run-child"):
                acquire(disk, PATH, "run-2")
            rewrite(disk, liveness_file="")  # the holder could not lock its own file
            with pytest.raises(LeaseHeld, match="run-child"):
                acquire(disk, PATH, "run-2")


def test_a_killed_holder_hidden_from_proc_is_replaced_at_once(
    disk: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Child(HOLDER, disk.uri, "60") as holder:
        assert holder.answer() == "1"
    monkeypatch.setattr(processes, "_start_time", lambda _: "")
    monkeypatch.setattr(os, "kill", hidden)
    assert acquire(disk, PATH, "run-2").taken_over


def hidden(pid: int, number: int) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("change", [{"host": "far-away"}, {"host": platform.node()}])
def test_the_state_of_a_holder_with_a_shared_boot_id_is_unknown(disk: ObjectStore, change: dict[str, Any]) -> None:
    with Child(HOLDER, disk.uri, "60") as holder:
        assert holder.answer() == "1"
    rewrite(disk, liveness_file=f"{os.getuid()}-{'0' * 16}", **change)  # that file exists only on the other host
    with pytest.raises(LeaseHeld, match="run-child"):
        acquire(disk, PATH, "run-2")


def test_without_a_liveness_file_only_a_process_of_the_same_host_is_judged(disk: ObjectStore) -> None:
    with Child(HOLDER, disk.uri, "60") as holder:
        assert holder.answer() == "1"
    rewrite(disk, liveness_file="", host="far-away")
    with pytest.raises(LeaseHeld, match="far-away"):
        acquire(disk, PATH, "run-2")
    rewrite(disk, host=platform.node())
    assert acquire(disk, PATH, "run-2").taken_over


def test_containers_with_one_temporary_folder_see_each_others_deaths(disk: ObjectStore) -> None:
    with Child(HOLDER, disk.uri, "60") as holder:
        assert holder.answer() == "1"
        boot = lease_file(disk)["owner"]["boot_id"].partition("/")[0]
        rewrite(disk, boot_id=f"{boot}/pid:[1]", pid=2**22 + 1)  # a pid from another namespace, unused here
        with pytest.raises(LeaseHeld, match="run-child"):
            acquire(disk, PATH, "run-2")
    assert acquire(disk, PATH, "run-2").taken_over


def test_a_child_that_outlives_its_parent_does_not_keep_it_alive(disk: ObjectStore, tmp_path: Path) -> None:
    outlive = """import os
if os.fork() == 0:
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    for _ in range(1200):
        time.sleep(0.05 if os.path.exists(sys.argv[3]) else 0)
    os._exit(0)
print(lease.token"""
    needed = tmp_path / "needed"
    needed.touch()
    with Child(HOLDER.replace("print(lease.token", outlive), disk.uri, "60", str(needed)) as holder:
        assert holder.answer() == "1"
        holder.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, holder.process.pid, os.WEXITED | os.WNOWAIT)
        assert acquire(disk, PATH, "run-2").taken_over
        needed.unlink()


@pytest.mark.parametrize(
    "name", ["", "1", "../../etc-0123456789abcdef", f"{os.getuid()}-../../../../etc/passwd", "x" * 300]
)
def test_a_liveness_file_of_another_form_proves_nothing(name: str) -> None:
    assert liveness.read(name) is Liveness.UNKNOWN


def test_a_lock_folder_that_others_may_write_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, name = tmp_path / f"driftline-{os.getuid()}", f"{os.getuid()}-{'a' * 16}"
    folder.mkdir(mode=0o755)
    (folder / ("a" * 16)).touch()
    assert liveness.read(name) is Liveness.ENDED
    folder.chmod(0o777)
    assert liveness.read(name) is Liveness.UNKNOWN
    (tmp_path / "driftline-12345").mkdir()  # our folder, named like another user's
    (tmp_path / "driftline-12345" / ("a" * 16)).touch()
    assert liveness.read(f"12345-{'a' * 16}") is Liveness.UNKNOWN


def test_a_process_writes_its_liveness_file_only_with_a_lease(disk: ObjectStore, tmp_path: Path) -> None:
    program = """
import sys
from driftline.storage.leases.lease import acquire
from driftline.storage.objects.store import ObjectStore
lease = acquire(ObjectStore.open(sys.argv[1]), sys.argv[2], "run-child")
getattr(lease, sys.argv[3])()
"""
    (tmp_path / "tmp").mkdir()
    for end, left in (("release", 0), ("leave_held", 1)):
        subprocess.run(
            [sys.executable, "-c", program, disk.uri, PATH, end],
            check=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        )
        assert len(list((tmp_path / "tmp" / f"driftline-{os.getuid()}").iterdir())) == left


def test_without_a_writable_folder_leases_work_without_proof_of_death(
    disk: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    monkeypatch.setattr(liveness._process, "file", None)
    with acquire(disk, PATH, "run-1"):
        assert lease_file(disk)["owner"]["liveness_file"] == ""
    assert liveness.read(f"{os.getuid()}-{'a' * 16}") is Liveness.UNKNOWN


def test_old_liveness_files_of_dead_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(liveness._process, "file", None)
    folder = tmp_path / f"driftline-{os.getuid()}"
    folder.mkdir()
    for number, age in enumerate((10, liveness.FORGOTTEN_AFTER_SECONDS + 60)):
        (folder / f"{number:016x}").touch()
        os.utime(folder / f"{number:016x}", (time.time() - age,) * 2)
    mine = liveness.liveness_file_name().partition("-")[2]
    assert sorted(path.name for path in folder.iterdir()) == sorted([f"{0:016x}", mine])
    assert liveness.read(f"{os.getuid()}-{mine}") is Liveness.ALIVE


@pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces are a matter of Linux")
def test_a_process_is_identified_by_boot_and_pid_namespace(disk: ObjectStore) -> None:
    with acquire(disk, PATH, "run-1"):
        boot_id = lease_file(disk)["owner"]["boot_id"]
    assert (
        boot_id == f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    )


def test_without_proc_only_a_missing_pid_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_start_time", lambda _: "")
    mine = processes.ProcessIdentity.current()
    assert not mine.is_provably_dead()
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert processes.ProcessIdentity(mine.host, mine.boot_id, gone.pid, "").is_provably_dead()


def test_a_paused_holder_that_wakes_up_loses_the_lease(disk: ObjectStore) -> None:
    with Child(HOLDER, disk.uri, "0.6") as holder:
        assert holder.answer() == "1"
        holder.tell()
        assert holder.answer() == "held"
        holder.process.send_signal(signal.SIGSTOP)
        with acquire(disk, PATH, "run-2", wait_seconds=PATIENCE_SECONDS) as lease:
            assert (lease.token, lease.taken_over) == (2, True)
            holder.process.send_signal(signal.SIGCONT)
            holder.tell()
            assert holder.answer() == "LeaseLost"
            time.sleep(0.5)  # a renewal was due
            lease.check()
            assert lease_file(disk)["token"] == 2


def test_a_holder_renews_for_longer_than_its_ttl(store: ObjectStore) -> None:
    """Another run polls 20 times per TTL; its clock stops until the holder renews."""
    with acquire(store, PATH, "run-1", ttl_seconds=0.06) as lease:
        first = lease_file(store)["renewed"]
        seen = [first]

        def next_renewal() -> None:
            until(lambda: lease_file(store)["renewed"] > seen[-1], "the next renewal", poll=0.005)
            seen.append(lease_file(store)["renewed"])

        clock = Clock(each_second=next_renewal)
        with pytest.raises(LeaseHeld):
            acquire(store, PATH, "run-2", wait_seconds=0.15, clock=clock, sleep=clock.sleep)
        lease.check()
        record = lease_file(store)
        assert record["renewed"] > first
        assert record["acquired"] < record["renewed"]


def test_an_abandoned_lease_stays_held_and_warns_its_next_holder(disk: ObjectStore) -> None:
    with acquire(disk, PATH, "run-1", ttl_seconds=0.4) as first:
        first.leave_held()
    assert lease_file(disk)["state"] == "held"
    with pytest.raises(LeaseLost):
        first.check()
    with acquire(disk, PATH, "run-2", wait_seconds=PATIENCE_SECONDS) as lease:
        assert (lease.token, lease.taken_over) == (2, True)


def test_each_holder_knows_that_the_indexes_lag_until_they_are_current(store: ObjectStore) -> None:
    with acquire(store, PATH, "run-1") as first:
        assert not first.indexes_lagged
        first.indexes_lag = True
    with acquire(store, PATH, "run-2") as second:
        assert (second.indexes_lagged, second.indexes_lag) == (True, False)
        first.indexes_are_current()  # run-2 may have changed lines since
    assert peek(store, PATH).indexes_lag
    second.indexes_are_current()
    assert not peek(store, PATH).indexes_lag
    third = acquire(store, PATH, "run-3")
    assert not third.indexes_lagged
    third.leave_held()
    rewrite(store, start_time="1")  # a process that is dead
    with acquire(store, PATH, "run-4") as fourth:  # nobody knows what run-3 has done
        assert fourth.indexes_lag
    assert peek(store, PATH).indexes_lag


def test_check_and_release_after_a_takeover_do_not_touch_the_new_lease(store: ObjectStore) -> None:
    first = acquire(store, PATH, "run-1")
    rewrite(store, boot_id="another boot")
    data, version = store.get_versioned(PATH)
    store.replace(PATH, json.dumps({**json.loads(data), "token": 2, "nonce": "other"}).encode(), version)
    with pytest.raises(LeaseLost, match="took over the lease"):
        first.check()
    first.release()
    assert (lease_file(store)["token"], lease_file(store)["state"]) == (2, "held")


def test_a_renewal_whose_acknowledgement_is_lost_does_not_lose_the_lease(disk: ObjectStore) -> None:
    with acquire(disk, PATH, "run-1", ttl_seconds=0.9) as lease:
        rewrite(disk, run_id="run-1")  # the same lease with a version unknown to the holder
        written = lease_file(disk)["renewed"]
        until(lambda: lease_file(disk)["renewed"] > written, "a renewal")
        lease.check()
    assert lease_file(disk)["state"] == "released"


def test_a_temporary_failure_of_the_store_does_not_lose_the_lease(
    disk: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[object] = []

    def fail(*_: object) -> str:
        failures.append(_)
        raise StorageError("no connection")

    with acquire(disk, PATH, "run-1", ttl_seconds=0.3) as lease:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "replace", fail)
            until(lambda: len(failures) >= 3, "renewals that fail for one TTL")
        before = lease_file(disk)["renewed"]
        until(lambda: lease_file(disk)["renewed"] > before, "the next renewal")
        lease.check()


def test_exactly_one_of_two_racing_processes_wins(disk: ObjectStore) -> None:
    with Child(RACER, disk.uri, "1") as one, Child(RACER, disk.uri, "2") as two:
        assert one.answer() == two.answer() == "ready"
        one.tell()
        two.tell()
        assert sorted([one.answer(), two.answer()]) == ["held", "won"]


def test_exactly_one_of_six_racing_for_a_dead_lease_wins(store: ObjectStore) -> None:
    held_by_another_host(store, ttl_seconds=0.5)
    barrier = threading.Barrier(6)

    def contend(i: int) -> Lease | None:
        clock = Clock(each_second=lambda: time.sleep(0.001))
        barrier.wait()
        try:
            return acquire(store, PATH, f"run-{i}", wait_seconds=3, clock=clock, sleep=clock.sleep)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(6) as pool:
        leases = [lease for lease in pool.map(contend, range(6)) if lease]
    assert [lease.token for lease in leases] == [2]
    leases[0].check()
    leases[0].release()


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_forked_process_neither_renews_nor_releases(disk: ObjectStore) -> None:
    with acquire(disk, PATH, "run-1") as lease:
        child = os.fork()
        if child == 0:
            lease.release()
            try:
                lease.check()
            except LeaseLost:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        lease.check()
        assert lease_file(disk)["state"] == "held"


@pytest.mark.parametrize("content", [b"", b"not json", b"{}", b'{"token": 1}', b"[]", b"\xff\xfe"])
def test_a_damaged_lease_file_is_reported_and_never_overwritten(disk: ObjectStore, content: bytes) -> None:
    disk.create(PATH, content)
    with pytest.raises(CorruptFile, match=PATH):
        acquire(disk, PATH, "run-1", wait_seconds=5)
    assert disk.get(PATH) == content


def test_a_lease_of_a_newer_format_is_not_touched(disk: ObjectStore) -> None:
    acquire(disk, PATH, "run-1").release()
    data, version = disk.get_versioned(PATH)
    disk.replace(PATH, data.replace(b'"format_version": 1', b'"format_version": 2'), version)
    with pytest.raises(WorkspaceTooNew, match=PATH):
        acquire(disk, PATH, "run-2")


def test_an_unexpected_renewal_error_does_not_stop_other_renewals(
    disk: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[object] = []

    def fail(*_: object) -> str:
        failures.append(_)
        raise RuntimeError("a defect of the client library")

    with acquire(disk, PATH, "run-1", ttl_seconds=0.3):
        with monkeypatch.context() as patch:
            patch.setattr(disk, "replace", fail)
            until(lambda: bool(failures), "a renewal that fails")
        with acquire(disk, "_leases/other.json", "run-1", ttl_seconds=0.3):
            before = lease_file(disk)["renewed"]
            until(lambda: lease_file(disk)["renewed"] > before, "the next renewal")
