"""What upkeep must know of the memory in a workspace: its catalog, and when its indexes are compacted.

Both come from the settings of the memory store (memory_settings.py), but only where the workspace holds memory:
``DATABASE_URL`` is the application's, and an index without memory must not depend on it.
"""

from __future__ import annotations

from driftline.flows.config.memory_settings import MemoryConfiguration, encoding_of, load_memory_configuration
from driftline.flows.config.surroundings import DATABASE_VARIABLE, Surroundings
from driftline.flows.config.toml_file import memory_table_for
from driftline.storage.deltas.files import DEFAULT_ENCODING, Encoding
from driftline.storage.errors import CatalogError, UsageError
from driftline.storage.memory.presence import belongs, has_embedded_catalog, holds_memory
from driftline.storage.workspace.workspace import Workspace

WHERE_CATALOGS_ARE_NAMED = f"{DATABASE_VARIABLE}, LTM_CONFIG, or [memory.catalog] in driftline.toml"


def memory_of(workspace: str, path: str | None = None, surroundings: Surroundings | None = None) -> MemoryConfiguration:
    """The settings of the memory in ``workspace``: those of the file at ``path`` or $LTM_CONFIG and of the environment.

    The ``[memory]`` of a ``driftline.toml`` that names the workspace counts where they say nothing. Raises UsageError.
    """
    around = surroundings or Surroundings.current()
    return load_memory_configuration(path, around.environ, below=memory_table_for(workspace, around))


def catalog_to_keep(workspace: Workspace, surroundings: Surroundings | None = None) -> str | None:
    """The URL of the catalog that the settings name for the memory in ``workspace``, or None.

    $DATABASE_URL counts only if it is the database of this catalog, or if it cannot be read and no catalog is in the
    workspace. Raises UsageError, CatalogMismatch.
    """
    if not holds_memory(workspace):
        return None
    around = surroundings or Surroundings.current()
    table = memory_table_for(workspace.objects.uri, around)
    named = load_memory_configuration(None, around.environ, below=table, without=[DATABASE_VARIABLE]).catalog.url
    return named or _of_application(workspace, around.environ.get(DATABASE_VARIABLE))


def compaction_threshold(workspace: Workspace, surroundings: Surroundings | None = None) -> int | None:
    """The number of deltas above which an index of the memory in ``workspace`` is folded; None without memory."""
    if not holds_memory(workspace):
        return None
    return memory_of(workspace.objects.uri, None, surroundings).index.compaction_threshold


def memory_encoding(workspace: Workspace, surroundings: Surroundings | None = None) -> Encoding:
    """How the indexes of the memory in ``workspace`` are written."""
    if not holds_memory(workspace):
        return DEFAULT_ENCODING
    return encoding_of(memory_of(workspace.objects.uri, None, surroundings))


def _of_application(workspace: Workspace, url: str | None) -> str | None:
    if not url:
        return None
    try:
        return url if belongs(workspace, url) else None
    except CatalogError:
        return None if has_embedded_catalog(workspace) else url
    except UsageError:  # another kind of database, which can hold no catalog
        return None
