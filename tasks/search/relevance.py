"""Convert a model's distance to a relevance: the share of random line pairs that are farther (DESIGN, "Search").

Distances differ between models; relevance is comparable. The sample lines are prose and code of many kinds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from driftline.storage.model import Embedder
from driftline.tasks.search.request import SearchRequest

SAMPLE_LINES = tuple(
    """\
Readers do without what is damaged: a search scans where an index is unusable, and says so once for each version.
deletions. Local folders are walked and read from descriptor to descriptor, never by path, so that a folder that
A number that grows each time a lease changes hands. The commit compares it, so a stale holder cannot commit.
skipped. Raises CommitConflict after ``COMMIT_ATTEMPTS``, StorageError, CorruptFile.
hierarchy.root_entity.type: Level of the entity that calls without a scope use.
return fitting if len(fitting) == len(built) else _fitting(fitting, published, live)
catalog: {type: postgresql, url: "${DATABASE_URL}", pool_size: 10}
The one row of each source in the table of lines that holds its fencing token, run id and last committed batch. Every
failed: [{uri, error, message, where, fix}], indexes, seconds, phases: {name: seconds},
self._only_included = bool(rules.include)
An engine may hand over an empty registry and put what it finds there over its own actions. Names that the engine
def _settled(self, attempt: Callable[[], _Result]) -> _Result:
Lance sends for the files of a table come from clients of its own and are not counted; the proxy of
let mut buffer = Vec::with_capacity(1024);
driftline --log-json index storage/leases --workspace .driftline 2>log.jsonl
body { margin: 0; font-family: sans-serif; color: #333; }
DUPLICATE_LINES: The table has lines of the document more than once.
$ make bench ARGS="searching quality"       # some of them; the results of the others stay
until driftline search turtle | grep turtle; do sleep 2; done
A table of lines has four indexes: paths (BTREE), directories (LABEL_LIST), blocks of text (INVERTED) and vectors
5. Only then remove versions older than the retention (1 h). This takes every lease of the tenant, or is left out.
public static void main(String[] args) throws IOException {
return _TENANT.fullmatch(name) is not None
Specs of tasks are frozen and picklable. They hold no credentials except those that a caller gave as storage options.
returns nothing that was not indexed: it looks a path up in the manifest and trusts a file only when its hash is the
func (s *Server) handleLogin(w http.ResponseWriter, r *http.Request) {
return commit if _ID.fullmatch(commit) else None
acknowledgement looks like a lost race, so a refused write is read back and compared before it is believed.
def stat_file(tree: SafeFolder, path: str) -> FileInfo | None:
nearest = zip(*(column.tolist() for column in lines), strict=True)
serves, or that a filter narrows, reads them. The embedder yields float32 rows of length 1.
fingerprints = {self._workspace.config.fingerprint}
def replace(self, path: str, data: bytes, version: str) -> str: ...
except PreconditionFailed:
target = Entity((*above.parts, source.parts[-1]))
The patient was given two tablets in the morning and one at night.
def _is_lost(error: DBAPIError) -> bool:
UNDECODABLE: The file is neither UTF-8 nor in an encoding that can be detected, or more than 1 % of it is damaged.
self._stack.push(stack.pop_all())
return VectorTable(self._objects, tenant, self.embedder.fingerprint)
schedule: Five fields of cron, in UTC, or a number of seconds, at least 1. Default: every 15 minutes.
driftline index tasks flows --workspace .driftline                       # several sources, one workspace
globs: tuple[str, ...] | None = None
print(store.query_index(group_by="project", scope="org:acme"))
private final Map<String, List<Order>> ordersByCustomer;
one table. A run writes to one table, so the other one keeps the lines of documents deleted meanwhile: while a tenant
driftline serve &                          # pages at http://localhost:4200
print(driftline.open("python.driftline").stats().total_documents)
A killed run loses at most its uncommitted batches. Run the same command again to continue.
case Kind.BLOB if references.blobs is not None and info.path not in references.blobs:
Our train was late, so we missed the beginning of the concert.
Idempotent, also if repeated in part: the highest ``rev`` of each key wins.
skipped: [{path, reason}], lines_embedded, documents_total, lines_total, bytes_read, phases,
def _keep_folders(self, level: _Level) -> list[str]:
pub fn parse(input: &str) -> Result<Value, Error> {
listing = tuple((info, parse_name(info.path)) for info in objects.list(temporary=True))
skipped: tuple[tuple[str, str], ...]
driftline search "retry after a conflict" --in commits --top-k 3
document.querySelector('#menu').addEventListener('click', toggle);
Nothing is lost silently: every file that is not indexed is in the run history with its reason (binary, too large,
exclude: tuple[str, ...] = ()
outbox. A store that takes half an hour after it wrote its blob is refused, since a cleanup may have collected the
store.store("lunch", None, "org:acme", expires_at=datetime.now(UTC) + timedelta(hours=1))
stemmed), and the 30 nearest lines; both searches run at the same time.
whole = blocks[TEXT_COLUMN].to_pylist()
if not self.filters_afterwards or len(hits) >= top_k or fetch >= self.lines:
$ driftline deploy                                  # again after each change of driftline.toml
3. Compact fragments: plan, execute on workers, one commit. If a writer commits first, plan again, up to three times,
runs = [run for tenant in tenants if (run := RunHistory(objects, tenant).last()) is not None]
ci       {action, commit, branch, system, run: {...} as of index, seconds,
$ make bench                                # all of them; needs a quiet machine and more than an hour
def stats(self, within: Entity | None = None) -> WorkspaceStats:
@contextlib.contextmanager
tasks/         verbs, f(spec, workspace) -> result; alone imports model2vec
def _embed_block(self, lines: pa.StringArray, out: NDArray[Any]) -> None:
return CatalogIdentity(row.workspace_id, row.catalog_id) if row is not None else None
return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
Interest rates rose for the third time this year, to four per cent.
while ((read = fread(buffer, 1, sizeof buffer, file)) > 0)
where = LineFilter(entities=(self.entity,), paths=None if paths is None else tuple(paths))
if err != nil { return nil, fmt.Errorf("read config: %w", err) }
end_line=start + len(context),
manifest = self._manifests.get(names[name]) if name in names else None
What else was tried or weighed, and the measurement or argument that ruled it out. Figures name their command.
restart does no harm, since the lease in the workspace keeps two runs of a source apart, not Prefect's limit.
if self.is_local or not paths:
kept = _distinct(found, records)
readable index, and the next compaction finishes the work. More than 96 MiB of deltas are folded in rounds, one base
She walked along the river until the lights of the town were out of sight.
its paths. A force-push, another branch and a merge make no difference, because git compares trees, not histories.
Photosynthesis turns light, water and carbon dioxide into sugar.
self._pending, self._pending_rows = [table[count:]], len(table) - count
A write whose acknowledgement was lost. The writer looks for its own id before it retries, and before it gives up.
in 1 % of the lines. CPU seconds and milliseconds on a busy host: compare them within the table only.
def has_content(connection: Connection, entity: Entity) -> bool:
memory.store("goal", "ship the search engine", "org:acme", {"phase": "plan"})
driftline search "who may delete files" --entity org:default/project:default --explain
impl Iterator for Lines { type Item = String; }
Acquiring and renewing are conditional writes. The token grows at each take-over; a release keeps it, and Driftline
if self._finalizer.detach() is not None:
_index.parquet  _index_delta_{ulid}.parquet          memory entries of the project
storage/       nouns: what lasts; alone imports lance, SQLAlchemy, obstore, fsspec
and sums without the catalog, on a disk and in a bucket, as of earlier revisions, too
Preheat the oven to 180 degrees and grease a large baking tin.
const response = await fetch(`/api/users/${id}`);
uri = "../storage"                    # a folder, a git work tree, or a bucket prefix
references to what was written. Dask restarts a local worker that dies, but not one that dies while it starts: when
export default class Modal extends React.Component {
Run a Prefect server and workers, and register the same deployments there:
2. Under the maintenance lease, extend the indexes until they cover every row, and merge small segments, on workers;
that Lance sends for the files of its tables are not counted.
class DriftlineError(Exception):
The defendant shall pay the costs of the proceedings.
The hash of an embedding model, its tokenizer and the text preparation. Vectors of two fingerprints are never in one
function debounce(callback, delay) {
over the last runs, and the files that were skipped with their reasons.
order, become one delta in each index that they touch, from the tenant down to the owner, then one Lance commit, and
return any(index.name == VECTOR for index in dataset.describe_indices())
named = top.c.path.in_(sa.bindparam(tops, expanding=True))
if len(ids) != len(pairs) or depths != sorted(depths):
the deletions again, and reuse the fragments. After an unknown outcome, look for the batch id. A killed run loses at
driftline verify --workspace .driftline             # exit code 3 if anything is wrong
The committee will publish its report on housing in the autumn.
SELECT name, COUNT(*) FROM orders GROUP BY name HAVING COUNT(*) > 3;
.join(_top, _top.c.id == closure.c.ancestor_id)
index, compact, cleanup, verify   the flows that prefect.yaml names
The store must honour conditional writes. Driftline probes that when it opens a workspace for writing, and refuses a
except ProcessLookupError:
return self._absolute(path)
What we do, in the present tense, precisely enough to check the code against it.
without entries, and reports the keys of small values in indexes of earlier versions, which held no values.
def walk(self, prefix: str, *, recursive: bool) -> Iterator[ObjectInfo]:
#define MIN(a, b) ((a) < (b) ? (a) : (b))
What keeps searches above their target is the processor: of a million vectors, 12 ms to compare their bits (as much
a set of half-open ranges of keys. Row groups outside the ranges are not read, the rest is cut by binary search, and
if error.errno not in VANISHED:  # vanished or replaced meanwhile
for _, item := range items { total += item.Price }
delete {key, deleted}; move {entity, moved_to}; rebuild {indexes}
flows/         front doors and orchestration; alone imports prefect, dask, typer, rich, mcp
may still exist, which only saves work. If a file vanishes during a read, a compaction has finished, and the read
if scheme not in _FSSPEC_NAMES:
its hash is the manifest's. Raises UsageError for anything else, StorageError.
cat CHANGELOG.md CONTRIBUTING.md | driftline grep "stable exit codes" - --top-k 3 -i
text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
""".splitlines()
)


DIGITS = 4
Label = Literal["strong", "likely", "weak"]
LIKELIHOOD = (-2.4, 2.6)
"""The logistic curve from the share of the attainable score to how often such hits are right.

Fitted on the tuning halves of the benchmarks."""
STRONG, WEAK = 0.45, 0.15
"""The likelihood from which a hit is strong, and below which it is weak: of first hits, three in four strong ones
are right; of all hits, one in twenty weak ones.
"""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The ``distances`` of all pairs of SAMPLE_LINES with one model, ``(n,) float32``, ascending."""

    distances: NDArray[np.float32]

    @classmethod
    def of(cls, embedder: Embedder) -> Self:
        """Return the calibration of a model, measured once in a process."""
        return cls(_distances(_ByFingerprint(embedder)))

    def relevance(self, distance: float) -> float:
        """Return the share of pairs that are at least as far, from 0 to 1."""
        if not len(self.distances):
            return float(distance < 1)
        nearer = int(np.searchsorted(self.distances, np.float32(distance - 1e-6), side="left"))
        return round(1 - nearer / len(self.distances), DIGITS)

    def max_distance(self, relevance: float) -> float:
        """Return the largest distance that has at least this relevance; infinite for 0."""
        farther = math.ceil(relevance * len(self.distances))
        return float(self.distances[-farther]) if farther else math.inf

    def limit(self, request: SearchRequest) -> float | None:
        """Return both limits of a request as one distance; None for no limit."""
        if request.min_relevance is None:
            return request.max_distance
        farthest = math.inf if request.max_distance is None else request.max_distance
        allowed = min(self.max_distance(request.min_relevance), farthest)
        return allowed if allowed < math.inf else None


def likelihood(score: float, attainable: float) -> float:
    """Return how likely a hit is right, from 0 to 1, by its score and the attainable one; it grows with the score."""
    start, slope = LIKELIHOOD
    return round(1 / (1 + math.exp(-max(-50.0, start + slope * score / attainable))), DIGITS)


def label(likely: float) -> Label:
    """Return a likelihood as a word."""
    return "strong" if likely >= STRONG else "weak" if likely < WEAK else "likely"


class _ByFingerprint:
    """An embedder as a key, equal to every other embedder of the same model."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByFingerprint) and other.embedder.fingerprint == self.embedder.fingerprint

    def __hash__(self) -> int:
        return hash(self.embedder.fingerprint)


@lru_cache(maxsize=4)
def _distances(model: _ByFingerprint) -> NDArray[np.float32]:
    vectors = model.embedder.embed(list(SAMPLE_LINES))
    known = vectors[vectors.any(axis=1)]  # lines without a known word have no distance
    rows, columns = np.triu_indices(len(known), 1)
    return np.sort((1 - (known @ known.T)[rows, columns]).astype(np.float32))
