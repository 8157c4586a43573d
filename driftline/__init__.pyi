"""The public names, and the modules that define them; type checkers and ``driftline.__getattr__`` read this list."""
# ruff: noqa: I001  (one import a module)

from driftline.flows.client import Client as Client, ReadOnlyWorkspace as ReadOnlyWorkspace
from driftline.flows.config.index_request import SourceRequest as SourceRequest
from driftline.flows.memory_backend import (
    HierarchicalLTMBackend as HierarchicalLTMBackend,
    create_ltm_backend as create_ltm_backend,
)
from driftline.flows.output.run_reports import IndexReport as IndexReport, SourceReport as SourceReport
from driftline.flows.python_api import (
    Workspace as Workspace,
    analyze_document_states as analyze_document_states,
    connect as connect,
    grep as grep,
    index as index,
    open as open,
    search as search,
    sql as sql,
)
from driftline.storage.documents import DocumentState as DocumentState
from driftline.storage.embedding import CURRENT_EMBEDDING_VERSION as CURRENT_EMBEDDING_VERSION, Embedder as Embedder
from driftline.storage.entities import Entity as Entity, Hierarchy as Hierarchy
from driftline.storage.errors import (
    AccessDenied as AccessDenied,
    AlreadyExists as AlreadyExists,
    BadEntity as BadEntity,
    BadEntry as BadEntry,
    CatalogConnectionError as CatalogConnectionError,
    CatalogError as CatalogError,
    CatalogMismatch as CatalogMismatch,
    CatalogMissing as CatalogMissing,
    CleanupAborted as CleanupAborted,
    CommitConflict as CommitConflict,
    CorruptFile as CorruptFile,
    DeletionRefused as DeletionRefused,
    DeploymentFailed as DeploymentFailed,
    DriftlineError as DriftlineError,
    ExecutorError as ExecutorError,
    FingerprintMismatch as FingerprintMismatch,
    LeaseHeld as LeaseHeld,
    LeaseLost as LeaseLost,
    MissingExtra as MissingExtra,
    ModelNotFound as ModelNotFound,
    NotIndexed as NotIndexed,
    ObjectNotFound as ObjectNotFound,
    OutOfMemory as OutOfMemory,
    PreconditionFailed as PreconditionFailed,
    RecallTooLow as RecallTooLow,
    SourceConflict as SourceConflict,
    SourceNotFound as SourceNotFound,
    StaleBuild as StaleBuild,
    StaleIndex as StaleIndex,
    StorageError as StorageError,
    StoreClosed as StoreClosed,
    UnknownScheme as UnknownScheme,
    UnsafeStore as UnsafeStore,
    UsageError as UsageError,
    WorkspaceNotFound as WorkspaceNotFound,
    WorkspaceTooNew as WorkspaceTooNew,
)
from driftline.storage.lines.line_filter import LineFilter as LineFilter
from driftline.storage.memory.catalog.entity_tree import EntityRecord as EntityRecord
from driftline.storage.memory.entries import MemoryEntry as MemoryEntry, MemoryItem as MemoryItem
from driftline.storage.memory.memory_indexes import Page as Page
from driftline.storage.memory.search import MemoryHit as MemoryHit, MemoryHits as MemoryHits
from driftline.storage.memory.store import MemoryStore as MemoryStore
from driftline.storage.memory.vectors import MemoryExplanation as MemoryExplanation
from driftline.storage.workspace.records import SourceRecord as SourceRecord, WorkspaceConfig as WorkspaceConfig
from driftline.storage.workspace.records import WorkspaceStats as WorkspaceStats
from driftline.tasks.indexing.line_store import (
    DocMeta as DocMeta,
    LineEmbedding as LineEmbedding,
    LineStore as LineStore,
    Store as Store,
)
from driftline.tasks.search.documents import Document as Document, Excerpt as Excerpt
from driftline.tasks.search.hits import Hit as Hit, SearchReport as SearchReport
from driftline.tasks.search.request import (
    Explanation as Explanation,
    SearchFilter as SearchFilter,
    SearchRequest as SearchRequest,
)

__all__: list[str]
__version__: str
