"""Report the states of single documents without indexing them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pyarrow as pa

from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntity, DriftlineError, ModelNotFound, UsageError
from driftline.storage.model import DocumentState, content_hash
from driftline.storage.sources.source import open_source
from driftline.storage.workspace.records import WorkspaceConfig
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.models import fingerprint, is_earlier_version, resolve_model
from driftline.tasks.scanning.diff import classify
from driftline.tasks.scanning.ignore import Rules
from driftline.tasks.scanning.scan import Neighbours, ScanSpec, scan_paths


def analyze_document_states(
    workspace: Workspace, entity_path: str, paths: Sequence[str]
) -> list[tuple[str, DocumentState]]:
    """Return ``(path, state)`` of documents of a source, in the order of ``paths``, which are relative to the source.

    Paths that are neither documents nor files to be indexed are omitted. Raises BadEntity, UsageError before the first
    run, SourceNotFound.
    """
    entity = Entity.parse(entity_path, workspace.config.hierarchy)
    record = workspace.source(entity)
    if record is None:
        raise BadEntity("There is no such source", str(entity), "List the sources with: driftline sources")
    if workspace.config.fingerprint is None:
        raise UsageError("The workspace has no model yet", workspace.objects.uri, "Index a source first.")
    source = open_source(record.uri, workspace.objects.storage_options, allow_empty=True)
    rules = Rules(include=record.include, exclude=record.exclude)
    claims = Neighbours(dict(workspace.sources(entity.tenant))).claims_on(entity, record)
    spec = ScanSpec(source, _fingerprint(workspace.config), rules=rules, claims=claims, redaction=record.redact)
    documents = workspace.manifest(entity)
    manifest = documents.get(paths)
    differences = scan_paths(spec, paths, lambda prefixes: manifest, now_ns=time.time_ns()).diff
    states = dict.fromkeys(manifest["path"].to_pylist(), DocumentState.UNCHANGED)
    states |= dict.fromkeys(differences.deleted["path"].to_pylist(), DocumentState.DELETED)
    states |= dict.fromkeys(differences.retouched["path"].to_pylist(), DocumentState.TOUCHED)
    for change in pa.concat_tables([differences.new, differences.candidates]).to_pylist():
        try:
            digest = content_hash(source.read(change["path"]))
        except DriftlineError:
            states[change["path"]] = DocumentState.DELETED  # deleted after the scan
            continue
        states[change["path"]] = classify(change, digest)
    return [(path, states[path]) for path in paths if path in states]


def _fingerprint(config: WorkspaceConfig) -> str:
    """Return the fingerprint of the next run, which embeds lines again if their text was prepared by an earlier
    version.
    """
    bound = config.fingerprint or ""
    try:
        files = resolve_model(config.model) if config.model else None
    except ModelNotFound:
        return bound
    return fingerprint(files) if files is not None and is_earlier_version(files, bound) else bound


def states_of_files(workspace: Workspace, files: Sequence[str]) -> list[tuple[str, DocumentState]]:
    """Return ``(path, state)`` of local files, in the order of ``files``: absolute, or relative to the current folder.

    A file belongs to the source with the nearest folder. A file that no source indexes is NEW if it exists, else
    MISSING. Raises UsageError before the first run, SourceNotFound.
    """
    local = [
        (os.path.realpath(record.uri), entity) for entity, record in workspace.sources() if "://" not in record.uri
    ]
    by_source: dict[Entity, dict[str, str]] = {}
    for file in files:
        path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(file))), os.path.basename(file))
        holding = [(root, entity) for root, entity in local if path.startswith(f"{root.rstrip('/')}/")]
        if holding:
            root, entity = max(holding, key=lambda place: (len(place[0]), str(place[1])))
            by_source.setdefault(entity, {})[file] = os.path.relpath(path, root)
    states: dict[str, DocumentState] = {}
    for entity, relative in by_source.items():
        known = dict(analyze_document_states(workspace, str(entity), list(dict.fromkeys(relative.values()))))
        states |= {file: known[path] for file, path in relative.items() if path in known}
    return [
        (file, states.get(file) or (DocumentState.NEW if os.path.exists(file) else DocumentState.MISSING))
        for file in files
    ]
