"""A process that has too little memory reports it: in advance if a library might abort the process."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from driftline.flows.commands import main
from driftline.storage.errors import OutOfMemory

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
from driftline.flows.commands.main import main
sys.exit(main(["runs", "--workspace", sys.argv[2]]))
"""


@pytest.mark.parametrize(("limit", "warns"), [(2_500_000_000, True), (64 * 2**30, False)])
def test_a_limited_address_space_is_warned_of_before_anything_is_loaded(
    tmp_path: Path, limit: int, warns: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ("limited to 2.5 GB" in done.stderr.partition("\n")[0]) is warns
    assert ("ulimit -v" in done.stderr) is warns


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("malloc of size 8 failed"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("lance.abi3.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_lack_of_memory_in_libraries_has_its_own_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(main, "_command_tree", fail)
    assert main.main(["status", "--json"]) == 3
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"] == "out_of_memory"
    assert "Not enough memory" in printed.out
    assert "Traceback" not in printed.err


def test_other_errors_are_not_reported_as_a_lack_of_memory() -> None:
    assert main.as_out_of_memory(ValueError("no")) is None
    assert main.as_out_of_memory(ImportError("No module named 'x'")) is None
    failure = pickle.loads(pickle.dumps(main.as_out_of_memory(MemoryError())))
    assert isinstance(failure, OutOfMemory)
