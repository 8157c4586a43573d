"""The defaults that the command line, the Prefect flows and Python share, each written once."""

from __future__ import annotations

DEFAULT_MAX_FILE_BYTES = 4 * 1024 * 1024
"""Files above this size are skipped."""
DEFAULT_MAX_DELETE_FRACTION = 0.5
"""A run refuses to delete a larger fraction of a source's documents."""
DEFAULT_MAX_DELTAS = 100
"""Sources with more deltas are due for compaction: every delta slows each read of the manifest."""
DEFAULT_VERSION_RETENTION_SECONDS = 3_600.0
"""Compaction keeps younger versions of a table for readers and writers that opened one."""
DEFAULT_MAX_AGE_SECONDS = 3_600.0
"""Cleanup keeps younger objects: a run may still be writing the reference to them."""
DEFAULT_CI_TIMEOUT_SECONDS = 3_600.0
"""How long ``driftline ci`` waits for a deployment."""
DEFAULT_EXECUTOR = "inline"
"""Where tasks run: threads of the process itself."""
