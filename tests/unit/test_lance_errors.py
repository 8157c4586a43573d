"""Lance errors are distinguished by Lance's phrases, whatever the table's path contains."""

from __future__ import annotations

import pytest

from driftline.storage.errors import AccessDenied, CorruptFile, StorageError
from driftline.storage.lance.failures import is_damage, is_network_failure, is_refusal, read_failed

FOLDERS = ("connection-pool", "timeout", "timeouts/my connection", "http", "error sending", "status code", "x")
MISSING = (
    "External error: LanceError(IO): Generic N/A error: Not found: /home/{}/ws/t.lance/data/a.lance, reader.rs:335"
)
CUT = "Dataset at path home/{}/t.lance was not found: Not found: home/{}/t.lance/_versions, commit.rs:653:26"
FAILURES = (
    "Generic S3 error: Error performing GET http://h/{}/t.lance in 31s - HTTP error: error sending request",
    "Generic S3 error: request or response body error: operation timed out, path {}/t.lance",
    "LanceError(IO): {}/t.lance: connection closed before message completed",
    "LanceError(IO): Connection refused (os error 111) {}/t.lance",
    "{}/t.lance: Server returned error response: status code: 503 Service Unavailable",
    "{}/t.lance: status code: 400 Bad Request: <Code>RequestTimeout</Code>",
)
SYSTEM = (
    "LanceError(IO): Unable to open file /not found/corrupt/x: Too many open files (os error 24)",
    "invalid/t.lance: Cannot allocate memory (os error 12)",
    "invalid/t.lance: Input/output error (os error 5)",
    "invalid/t.lance: Stale file handle (os error 116)",
    "invalid/t.lance: Network is unreachable (os error 101)",
    "invalid/t.lance: No space left on device (os error 28)",
    "invalid/t.lance: Server returned error response: status code: 507 Insufficient Storage",
    "dns error: failed to lookup address information: host not found",
    "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
    "Resources exhausted: Failed to allocate additional 64.0 MB",
)


@pytest.mark.parametrize("text", SYSTEM)
def test_a_failure_of_the_system_is_never_damage(text: str) -> None:
    assert not is_damage(OSError(text))
    assert type(read_failed("The table cannot be read", "/ws", OSError(text))) is StorageError


@pytest.mark.parametrize(
    "text",
    [
        "LanceError(IO): Invalid argument (os error 22)",
        "x/t.lance/data/a: File name too long (os error 36), while parsing the manifest",
        'panicked: Os { code: 2, kind: NotFound, message: "No such file or directory" }',
    ],
)
def test_a_failure_that_damaged_files_cause_may_be_damage(text: str) -> None:
    assert is_damage(OSError(text))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_path_is_not_mistaken_for_a_network_failure(folder: str) -> None:
    for text in (MISSING, CUT):
        error = OSError(text.format(folder, folder))
        assert (is_damage(error), is_network_failure(error), is_refusal(error)) == (True, False, False)
        assert isinstance(read_failed("The table cannot be read", "/ws", error), CorruptFile)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("text", FAILURES)
def test_a_failure_of_the_store_is_never_damage(text: str, folder: str) -> None:
    error = OSError(text.format(folder))
    assert (is_damage(error), is_network_failure(error)) == (False, True)
    failure = read_failed("The table cannot be read", "s3://b", error)
    assert isinstance(failure, StorageError)
    assert not isinstance(failure, (CorruptFile, AccessDenied))
