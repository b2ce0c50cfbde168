"""The HNSW index of a table: when it pays, how a search uses it, how it is built.

HNSW finds the nearest of the whole table. Of a dataset with a small share it would walk through
most of the graph, so the choice weighs that walk against comparing every vector of the dataset.
The name begins with an underscore because every other module of this folder is a store.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection, IsolationLevel, errors, sql

from kb_tools.db import Database, try_lock
from kb_tools.errors import KnowledgeBaseError
from kb_tools.settings import Settings
from kb_tools.vectorstores._pgvector_table import Table

logger = logging.getLogger(__name__)

MAX_CANDIDATES = 1000  # the most that hnsw.ef_search may be
# What one neighbour that the index gives costs, measured in vectors that are compared one by one.
COST_OF_A_NEIGHBOUR = 80
# The same for a node that the walk passes: beyond rows / 10 nodes, comparing all is cheaper.
COST_OF_A_NODE = 10
POLL_SECONDS = 0.5
CLOSE_SECONDS = 300.0


@dataclass(frozen=True)
class Scan:
    """How far a search walks through the graph."""

    candidates: int  # that it holds at a time: ef_search
    nodes: int  # after which it gives up


def choose(conn: Connection, table: Table, dataset_ids: Sequence[str], nearest: int) -> Scan | None:
    """Return how to find the `nearest` by the index; None if comparing all is cheaper or must be.

    The counts are the planner's estimates (.1 ms): a wrong one costs time, never a hit.
    """
    if not table.indexable:
        return None
    row = conn.execute(_COUNTED, (table.index, table.name)).fetchone()
    if row is None:  # there is no index, or it is not finished
        return None
    rows = _estimate(conn, table, dataset_ids)
    total = max(rows, row[0])
    if nearest * total * COST_OF_A_NEIGHBOUR >= rows * rows:
        return None
    return Scan(min(nearest, MAX_CANDIDATES), max(rows // COST_OF_A_NODE, 1))


def prepare(conn: Connection, scan: Scan) -> None:
    """Let the rest of the transaction, and no more, walk the graph as `scan` says.

    Without sorts and hash joins the index is the only way to the order that is asked for.
    """
    conn.execute(
        """
        SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true),
               set_config('hnsw.ef_search', %s, true), set_config('hnsw.max_scan_tuples', %s, true),
               set_config('enable_sort', 'off', true), set_config('enable_hashjoin', 'off', true),
               set_config('enable_mergejoin', 'off', true)
        """,
        (str(scan.candidates), str(scan.nodes)),
    )


def _estimate(conn: Connection, table: Table, dataset_ids: Sequence[str]) -> int:
    row = conn.execute(table.sql(_ESTIMATE), (list(dataset_ids),)).fetchone()
    assert row is not None  # a plan
    return int(row[0][0]["Plan"]["Plan Rows"])


class IndexBuilder:
    """Builds the HNSW index of one table, without blocking its readers and writers."""

    def __init__(self, database: Database, settings: Settings) -> None:
        """Do nothing yet."""
        self._db, self._settings = database, settings
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._building: Connection | None = None
        self._closed = False

    def build(self, table: Table) -> None:
        """Return when there is a finished index: ours, or that of a process that was faster."""
        while not self._build_unless_busy(table):
            time.sleep(POLL_SECONDS)

    def start_if_large(self, conn: Connection, table: Table) -> bool:
        """Start to build in the background if there are enough vectors and no index.

        Returns at once, and whether a build runs in this process.
        """
        if not table.indexable or self._finished(conn, table):
            return False
        if not _has_rows(conn, table, self._settings.hnsw_from_vectors):
            return False
        with self._lock:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return not self._closed
            self._thread = threading.Thread(
                target=self._build_or_log, args=(table,), name="kb-vector-index", daemon=True
            )
            self._thread.start()
        return True

    def wait(self, seconds: float) -> bool:
        """Wait for the build in the background; return whether it has ended."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        """Give a running build CLOSE_SECONDS to end, then give it up."""
        with self._lock:
            self._closed = True
        if self.wait(0):
            return
        logger.warning("waiting at most %.0f s for the vector index to be built", CLOSE_SECONDS)
        if not self.wait(CLOSE_SECONDS):
            logger.warning("the vector index is not finished; build_index() starts anew")
            self._cancel()

    def _cancel(self) -> None:
        conn = self._building
        if conn is not None:
            conn.cancel_safe()
        self.wait(POLL_SECONDS * 10)

    def _build_or_log(self, table: Table) -> None:
        try:
            self._build_unless_busy(table)
        except KnowledgeBaseError as error:
            logger.warning("the vector index was not built: %s", error)
        except Exception as error:  # nobody waits for this thread, so nobody would see it
            logger.warning("the vector index was not built: %s", type(error).__name__)

    def _build_unless_busy(self, table: Table) -> bool:
        """Build and return True; False if another process builds now."""
        with self._db.session() as holder:
            # The build waits for every older snapshot, and we for the build: keep none. Neither
            # does a plain statement of this level, but a prepared one does.
            holder.isolation_level = IsolationLevel.READ_COMMITTED
            holder.prepare_threshold = None
            with holder.transaction():
                holder.execute(_NEVER_TIME_OUT)
                name = f"kb_tools vector index {self._settings.db_schema}.{table.name}"
                # Never wait for this lock in a statement: the build would wait for the statement.
                if not try_lock(holder, name):
                    return False
                with self._db.session() as conn:
                    return self._build_alone(conn, table)

    def _build_alone(self, conn: Connection, table: Table) -> bool:
        """Build unless it is done; what a crash left is removed."""
        conn.execute("SELECT set_config('statement_timeout', '0', false)")
        conn.execute("SELECT set_config('lock_timeout', '0', false)")
        _use(conn, self._settings.db_schema)
        if self._finished(conn, table):
            return True
        if conn.execute(_IN_PROGRESS, (table.name,)).fetchone():
            return False  # the server still works for a client that died
        rows = _rows(conn, table)
        logger.info("building the vector index of %d vectors", rows)
        _set_memory(conn, table, rows, self._settings.hnsw_build_megabytes)
        self._building = conn
        try:
            _create(conn, table)
        finally:
            self._building = None
        # What the choice of a search rests on.
        conn.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table.name)))
        return True

    def _finished(self, conn: Connection, table: Table) -> bool:
        return conn.execute(_COUNTED, (table.index, table.name)).fetchone() is not None


def _create(conn: Connection, table: Table) -> None:
    """Create the index; an unfinished one, of before or of now, does not stay."""
    _drop_unfinished(conn, table)
    statement = table.sql(_CREATE)
    try:
        conn.execute(statement)
    except errors.DiskFull:
        # Parallel workers share memory through /dev/shm, which containers keep small.
        _drop_unfinished(conn, table)
        conn.execute("SELECT set_config('max_parallel_maintenance_workers', '0', false)")
        conn.execute(statement)
    except BaseException:
        if not conn.closed:
            _drop_unfinished(conn, table)
        raise


def _drop_unfinished(conn: Connection, table: Table) -> None:
    conn.execute(table.sql(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {index}")))


def _use(conn: Connection, schema: str) -> None:
    """Set the search path of a connection that nobody uses after us."""
    row = conn.execute(_VECTOR_SCHEMA).fetchone()
    names = [sql.Identifier(name) for name in (schema, row[0] if row else "public")]
    conn.execute(sql.SQL("SET search_path TO {}").format(sql.SQL(", ").join(names)))


def _has_rows(conn: Connection, table: Table, number: int) -> bool:
    """Return whether there are at least `number` vectors; counted only if it may be so."""
    if _rows(conn, table) < number:
        return False
    counted = sql.SQL("SELECT count(*) FROM (SELECT FROM {table} LIMIT %s) AS first_rows")
    return conn.execute(table.sql(counted), (number,)).fetchone() == (number,)


def _rows(conn: Connection, table: Table) -> int:
    """Return about how many vectors there are; too many where the server has no statistics."""
    row = conn.execute(table.sql(sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM {table}"))).fetchone()
    assert row is not None  # a plan
    return int(row[0][0]["Plan"]["Plan Rows"])


def _set_memory(conn: Connection, table: Table, rows: int, most_megabytes: int) -> None:
    """Give the build what the graph needs in memory, at most `most_megabytes`.

    A node is its vector in half precision and, measured, about a kilobyte of neighbours.
    """
    needed = rows * (2 * table.dimension + 1000) * 13 // 10 // 2**20
    megabytes = min(max(needed, 64), most_megabytes)
    conn.execute("SELECT set_config('maintenance_work_mem', %s, false)", (f"{megabytes}MB",))


_COUNTED = """
    SELECT c.reltuples::bigint FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    WHERE i.indexrelid = to_regclass(%s) AND i.indrelid = to_regclass(%s) AND i.indisvalid
"""

_ESTIMATE = sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE dataset_id = ANY(%s)")

_IN_PROGRESS = """
    SELECT FROM pg_stat_progress_create_index
    WHERE datname = current_database() AND relid = to_regclass(%s)
"""

# pgvector's default sizes: benchmarks/search.py shows what they give.
_CREATE = sql.SQL(
    "CREATE INDEX CONCURRENTLY {index} ON {table} USING hnsw (({key}) halfvec_cosine_ops) "
    "WITH (m = 16, ef_construction = 64)"
)

_NEVER_TIME_OUT = """
    SELECT set_config(name, '0', true) FROM pg_settings
    WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
"""

_VECTOR_SCHEMA = """
    SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'vector'
"""
