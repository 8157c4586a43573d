"""Errors from source file systems are converted to Driftline's errors exactly once."""

from __future__ import annotations

import pytest

from driftline.storage.errors import StorageError
from driftline.storage.sources.source import raise_translated


def test_an_error_is_not_its_own_cause() -> None:
    known = StorageError("Cannot open the source", "ftp://host/docs")
    with pytest.raises(StorageError) as raised:
        raise_translated(known, "ftp://host/docs", "Listing failed")
    assert raised.value is known
    assert known.__cause__ is None
    with pytest.raises(StorageError) as raised:
        raise_translated(ConnectionRefusedError("refused"), "ftp://host/docs", "Listing failed")
    assert isinstance(raised.value.__cause__, ConnectionRefusedError)
