"""Delete orphans in audited batches (DESIGN, "Cleanup", step 5), and read the store's clock to judge their age."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from driftline.storage.errors import CleanupAborted, StorageError
from driftline.storage.garbage.orphans import Orphan
from driftline.storage.layout import CONFIG
from driftline.storage.objects.store import TEMPORARY_PREFIX, ObjectInfo, ObjectStore
from driftline.storage.workspace.records import WorkspaceConfig, read_record
from driftline.storage.workspace.workspace import Workspace

DELETE_BATCH = 1_000
"""Objects per deletion, the limit of one bulk request to S3."""
DELETE_ATTEMPTS = 5

_audit = logging.getLogger("driftline.audit")


def store_time(objects: ObjectStore, listing: Iterable[ObjectInfo], *, may_write: bool) -> datetime:
    """The time of the store's own clock, from a small object that is written and deleted again.

    Without ``may_write`` it is the later of this host's time and that of the newest object, which is good enough for a
    report, but not for a deletion. Raises StorageError.
    """
    if not may_write:
        return max([datetime.now(UTC), *(info.modified for info in listing)])
    path = f"{TEMPORARY_PREFIX}clock-{uuid.uuid4().hex}"
    objects.create(path, b"")
    try:
        info = objects.head(path)
    finally:
        objects.delete([path])
    if info is None:
        raise StorageError("The store does not show a new object", f"{objects.uri}/{path}", "Try again later.")
    return info.modified


@dataclass(slots=True)
class Deletion:
    """Deletes orphans in order, in bounded batches; ``deleted`` is exact even after a failure."""

    workspace: Workspace
    run_id: str
    check: Callable[[], None]
    deleted: list[Orphan] = field(default_factory=list)

    def run(self, orphans: Sequence[Orphan]) -> None:
        """Delete ``orphans``, each with a line in the log ``driftline.audit``.

        Before each batch it calls ``check`` and compares the id of the workspace. Raises CleanupAborted, LeaseLost,
        StorageError.
        """
        for start in range(0, len(orphans), DELETE_BATCH):
            batch = orphans[start : start + DELETE_BATCH]
            self._check_identity()
            self.check()
            for orphan in batch:
                _audit.info("%s", json.dumps(self._line(orphan)))
            self._delete(batch)

    def _delete(self, batch: Sequence[Orphan]) -> None:
        objects, left = self.workspace.objects, list(batch)
        for _ in range(DELETE_ATTEMPTS):
            try:
                objects.delete([orphan.path for orphan in left])
            except StorageError as error:
                remaining = [orphan for orphan in left if objects.head(orphan.path) is not None]
                gone = set(left) - set(remaining)
                self.deleted += [orphan for orphan in left if orphan in gone]
                if not gone:
                    raise
                left, failure = remaining, error
            else:
                self.deleted += left
                return
        raise failure

    def _check_identity(self) -> None:
        objects, known = self.workspace.objects, self.workspace.config.workspace_id
        config = read_record(objects, CONFIG, WorkspaceConfig)
        if config is None or config.workspace_id != known:
            raise CleanupAborted("Another workspace has replaced this one", objects.uri, "Run the cleanup again.")

    def _line(self, orphan: Orphan) -> dict[str, object]:
        return {
            "time": datetime.now(UTC).isoformat(),
            "run_id": self.run_id,
            "workspace": self.workspace.objects.uri,
            "action": "delete",
            "path": orphan.path,
            "size_bytes": orphan.size_bytes,
            "reason": orphan.reason,
            "age_seconds": round(orphan.age_seconds, 3),
        }
