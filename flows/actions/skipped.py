"""The files that an action has left out although they were asked for, as answers list them."""

from __future__ import annotations

from typing import Any

from driftline.storage.model import SkipReason

MAX_SKIPPED_FILES = 100
"""So many are listed; ``skipped_files_omitted`` counts the others."""


class SkippedFiles:
    """Collects paths and reasons. What patterns exclude was not asked for, and is not listed."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def add(self, path: str, reason: str) -> None:
        """Take down one file; the first reason counts."""
        if reason != SkipReason.EXCLUDED:
            self._reasons.setdefault(path, str(reason))

    def to_dict(self) -> dict[str, Any]:
        """``{skipped_files: [{path, reason}]}``, or nothing if all files were taken."""
        if not self._reasons:
            return {}
        listed = [{"path": path, "reason": reason} for path, reason in self._reasons.items()]
        answer: dict[str, Any] = {"skipped_files": listed[:MAX_SKIPPED_FILES]}
        if len(listed) > MAX_SKIPPED_FILES:
            answer["skipped_files_omitted"] = len(listed) - MAX_SKIPPED_FILES
        return answer
