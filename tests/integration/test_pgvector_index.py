"""The HNSW index of the pgvector store: when it is used, what it may never change, its building."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from langchain_core.documents import Document as LCDocument
from psycopg import Connection, errors, sql
from psycopg_pool import ConnectionPool

from kb_tools import KnowledgeBase, RetrievalConfig, trace
from kb_tools.db import Database, try_lock
from kb_tools.settings import Settings
from kb_tools.storage.migrate import migrate
from kb_tools.testing import DIMENSION, VectorStoreContract, point
from kb_tools.vectorstores import Point, Space, Vector, VectorStore, _pgvector_index
from kb_tools.vectorstores._pgvector_table import Table, find
from kb_tools.vectorstores.pgvector import PgVectorStore

INDEX = "vector_1_hnsw"
COUNT = 2000


@pytest.fixture
def settings(database: Database) -> Settings:
    return database._settings.model_copy(update={"hnsw_from_vectors": 100})


@pytest.fixture
def store(database: Database, settings: Settings) -> Iterator[PgVectorStore]:
    migrate(database, settings.db_schema)
    store = PgVectorStore(Space("fake", DIMENSION), settings, database)
    yield store
    store.close()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every search use the index, however small or selective its datasets are."""
    monkeypatch.setattr(_pgvector_index, "COST_OF_A_NEIGHBOUR", 0)


def add_rows(database: Database, points: Sequence[Point]) -> None:
    """Add the rows of segments and documents that these points belong to."""
    datasets = {p.dataset_id for p in points}
    documents = {(p.document_id, p.dataset_id, p.document_enabled) for p in points}
    with database.transaction() as conn, conn.cursor() as cursor:
        cursor.executemany(
            """
            INSERT INTO dataset (id, account_id, name, embedding_model, embedding_dimension)
            VALUES (%(k)s, 'default', %(k)s, 'fake', 8) ON CONFLICT (id) DO NOTHING
            """,
            [{"k": dataset} for dataset in datasets],
        )
        cursor.executemany(
            """
            INSERT INTO process_rule (id, dataset_id, mode, rule)
            VALUES (%(k)s, %(k)s, 'as_is', '{}') ON CONFLICT (id) DO NOTHING
            """,
            [{"k": dataset} for dataset in datasets],
        )
        cursor.executemany(
            """
            INSERT INTO document (id, dataset_id, process_rule_id, batch, name, source,
                extension, mime_type, size, content_hash, position, enabled, status)
            VALUES (%s, %s, %s, '1', 'n', 's', '', '', 0, '', 1, %s, 'completed')
            ON CONFLICT (id) DO NOTHING
            """,
            [(document, dataset, dataset, enabled) for document, dataset, enabled in documents],
        )
        cursor.executemany(
            """
            INSERT INTO segment (id, dataset_id, document_id, position, content, span,
                character_count, token_count, hash, enabled, status)
            VALUES (%s, %s, %s, (SELECT count(*) FROM segment WHERE document_id = %s), 'text',
                    'empty', 4, 1, '', %s, 'completed') ON CONFLICT (id) DO NOTHING
            """,
            [
                (p.segment_id, p.dataset_id, p.document_id, p.document_id, p.segment_enabled)
                for p in points
            ],
        )


def many(dataset_of: Callable[[int], str], **changes: bool) -> list[Point]:
    vectors = np.random.default_rng(11).standard_normal((COUNT, DIMENSION))
    return [
        point(f"{i:05}", vector, dataset_id=dataset_of(i), document_id=dataset_of(i) + "1")
        for i, vector in enumerate(vectors)
    ]


def filled(store: PgVectorStore, points: Sequence[Point]) -> dict[str, Point]:
    add_rows(store._db, points)
    store.upsert(points)
    return {p.segment_id: p for p in points}


def nearest(points: Sequence[Point], question: Vector, k: int) -> list[str]:
    def cosine(p: Point) -> float:
        return float(p.vector @ question / np.linalg.norm(p.vector))

    return [p.segment_id for p in sorted(points, key=lambda p: (-cosine(p), p.segment_id))[:k]]


def recall(found: Sequence[tuple[str, float]], wanted: Sequence[str]) -> float:
    return len({i for i, _ in found} & set(wanted)) / len(wanted)


def searched(
    store: VectorStore, question: Vector, datasets: Sequence[str], k: int = 10
) -> tuple[list[tuple[str, float]], dict[str, object]]:
    """Search; return the hits and what the trace says about the way."""
    with trace.recording() as recorded, trace.stage("vectors"):
        found = store.search(question, datasets, k)
    return found, dict(recorded.stages[0].facts)


def index_state(conn: Connection) -> bool | None:
    """Return whether the index is valid; None if there is none."""
    row = conn.execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (INDEX,)
    ).fetchone()
    return row[0] if row else None


QUESTIONS = [point("", v).vector for v in np.random.default_rng(5).standard_normal((20, DIMENSION))]


@pytest.mark.usefixtures("eager")
class TestContractThroughTheIndex(VectorStoreContract):
    @pytest.fixture(autouse=True)
    def _indexed(self, store: PgVectorStore) -> None:
        filled(store, [point("first", [1], dataset_id="other", document_id="o1")])
        store.delete(dataset_id="other")
        assert store.build_index()
        self.database = store._db

    def write(self, store: VectorStore, points: Sequence[Point]) -> None:
        add_rows(self.database, points)
        store.upsert(points)

    def flag(self, store: VectorStore, **changes: object) -> None:
        with self.database.transaction() as conn:
            conn.execute(
                "UPDATE segment SET enabled = coalesce(%s, enabled) WHERE id = ANY(%s)",
                (changes.get("segment_enabled"), changes.get("segment_ids", [])),
            )
            conn.execute(
                "UPDATE document SET enabled = coalesce(%s, enabled) WHERE id = %s",
                (changes.get("document_enabled"), changes.get("document_id")),
            )


# The choice


def test_search_without_an_index_is_exact_and_says_so(store: PgVectorStore) -> None:
    filled(store, [point("1", [1])])
    assert searched(store, QUESTIONS[0], ["a"])[1] == {"method": "exact"}


def test_whole_table_is_searched_by_the_index(
    store: PgVectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pgvector_index, "COST_OF_A_NEIGHBOUR", 2)
    points = filled(store, many(lambda i: "a"))
    store.build_index()
    recalls = []
    for question in QUESTIONS:
        found, facts = searched(store, question, ["a"])
        assert facts == {"method": "hnsw"}
        recalls.append(recall(found, nearest(list(points.values()), question, 10)))
    assert np.mean(recalls) >= 0.99


def test_selective_dataset_is_searched_exactly(
    store: PgVectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pgvector_index, "COST_OF_A_NEIGHBOUR", 2)
    points = filled(store, many(lambda i: "b" if i % 200 == 0 else "a"))
    store.build_index()
    mine = [p for p in points.values() if p.dataset_id == "b"]
    found, facts = searched(store, QUESTIONS[0], ["b"])
    assert facts == {"method": "exact"}
    assert [i for i, _ in found] == nearest(mine, QUESTIONS[0], 10)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "dataset_of",
    [
        pytest.param(lambda i: "b" if i % 200 == 0 else "a", id="half a percent"),
        pytest.param(lambda i: "b" if i % 100 == 0 else "a", id="99 to 1"),
        pytest.param(lambda i: "b" if i >= COUNT - 3 else "a", id="three of all"),
        pytest.param(lambda i: "b" if i == 77 else f"tenant{i % 40}", id="one tenant of forty"),
    ],
)
def test_tiny_share_gives_all_its_hits_even_if_the_index_was_chosen(
    store: PgVectorStore, dataset_of: Callable[[int], str]
) -> None:
    points = filled(store, many(dataset_of))
    store.build_index()
    mine = [p for p in points.values() if p.dataset_id == "b"]
    for question in QUESTIONS:
        found, facts = searched(store, question, ["b"])
        assert len(found) == min(10, len(mine))
        assert facts["method"] == "hnsw"
        assert recall(found, nearest(mine, question, 10)) >= 0.99 or "redone_exactly" not in facts


@pytest.mark.usefixtures("eager")
def test_answer_is_redone_exactly_if_the_nearest_are_hidden(store: PgVectorStore) -> None:
    points = filled(store, many(lambda i: "a"))
    store.build_index()
    near = nearest(list(points.values()), QUESTIONS[0], COUNT - 30)
    with store._db.transaction() as conn:
        conn.execute("UPDATE segment SET enabled = false WHERE id = ANY(%s)", (near,))
    found, facts = searched(store, QUESTIONS[0], ["a"])
    left = [p for i, p in points.items() if i not in set(near)]
    assert facts == {"method": "hnsw", "redone_exactly": True}
    assert [i for i, _ in found] == nearest(left, QUESTIONS[0], 10)


@pytest.mark.usefixtures("eager")
def test_answer_is_complete_if_the_nearest_belong_to_others(store: PgVectorStore) -> None:
    first = np.eye(DIMENSION)[0]
    near = [point(f"n{i}", first * (i + 1), dataset_id="o", document_id="o1") for i in range(900)]
    far = [point(f"f{i:02}", -first * (i + 1)) for i in range(20)]
    filled(store, [*near, *far])
    store.build_index()
    found, facts = searched(store, near[0].vector, ["a"], 10)
    assert [i for i, _ in found] == [f"f{i:02}" for i in range(10)]
    assert facts == {"method": "hnsw", "redone_exactly": True}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("k", [1, 100, 499, 500, COUNT, COUNT + 1])
def test_any_k_gives_as_many_hits_as_there_are(store: PgVectorStore, k: int) -> None:
    points = filled(store, many(lambda i: "a"))
    store.build_index()
    found, _ = searched(store, QUESTIONS[1], ["a"], k)
    cosines = [cosine for _, cosine in found]
    assert len({i for i, _ in found}) == min(k, COUNT)
    assert cosines == sorted(cosines, reverse=True)
    assert recall(found, nearest(list(points.values()), QUESTIONS[1], k)) >= 0.97


@pytest.mark.usefixtures("eager")
@hypothesis_settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    hidden=st.sets(st.integers(0, 299)),
    others=st.sets(st.integers(0, 299)),
    k=st.integers(1, 400),
)
def test_answer_has_min_of_k_and_matches_whatever_is_hidden(
    store: PgVectorStore, hidden: set[int], others: set[int], k: int
) -> None:
    points = [
        point(f"{i:03}", v) for i, v in enumerate(np.random.default_rng(2).random((300, 8)) - 0.5)
    ]
    add_rows(store._db, [*points, point("z", [1], dataset_id="b", document_id="b1")])
    store.upsert(
        [
            Point(p.segment_id, "b1", "b", p.vector) if int(p.segment_id) in others else p
            for p in points
        ]
    )
    store.build_index()
    with store._db.transaction() as conn:
        ids = [f"{i:03}" for i in hidden]
        conn.execute("UPDATE segment SET enabled = id <> ALL(%s)", (ids,))
    matches = {f"{i:03}" for i in range(300)} - set(ids) - {f"{i:03}" for i in others}
    found = [i for i, _ in store.search(QUESTIONS[2], ["a"], k)]
    assert len(found) == len(set(found)) == min(k, len(matches))
    assert set(found) <= matches


@pytest.mark.usefixtures("eager")
def test_tiny_and_huge_vectors_are_found_by_the_index(store: PgVectorStore) -> None:
    points = filled(store, [point("tiny", [1e-9]), point("huge", [1e9]), point("other", [1, 9])])
    store.build_index()
    found, facts = searched(store, points["tiny"].vector, ["a"], 2)
    assert sorted(i for i, _ in found) == ["huge", "tiny"]
    assert facts == {"method": "hnsw"}


@pytest.mark.usefixtures("eager")
def test_settings_of_a_search_end_with_its_transaction(store: PgVectorStore) -> None:
    filled(store, many(lambda i: "a"))
    store.build_index()
    url_pool = store._db._pool
    with url_pool.connection() as conn:
        before = conn.execute("SELECT name, setting FROM pg_settings ORDER BY 1").fetchall()
    store.search(QUESTIONS[0], ["a"], 10)
    with url_pool.connection() as conn:
        after = dict(conn.execute("SELECT name, setting FROM pg_settings ORDER BY 1").fetchall())
    assert {name: after[name] for name, _ in before} == dict(before)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("version", ["0.5.1", "0.7.4"])
def test_older_pgvector_is_searched_exactly(
    store: PgVectorStore, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    filled(store, many(lambda i: "a"))
    store.build_index()
    with store._db.transaction() as conn:
        table = find(conn, store._space)
    assert table is not None
    numbers = tuple(int(part) for part in version.split(".")[:2])
    old = Table(table.name, table.half, table.dimension, numbers, table.temporary)
    monkeypatch.setattr(store, "_known", old)
    assert searched(store, QUESTIONS[0], ["a"])[1] == {"method": "exact"}
    assert not store.build_index()
    assert not store.index_if_large()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("dimension", "method"), [(2001, "hnsw"), (4000, "hnsw"), (4001, "exact")])
def test_long_vectors_are_indexed_up_to_4000_dimensions(
    store: PgVectorStore, settings: Settings, dimension: int, method: str
) -> None:
    long = PgVectorStore(Space("long", dimension), settings, store._db)
    vectors = np.random.default_rng(3).standard_normal((30, dimension)).astype(np.float32)
    points = [Point(f"{i:02}", "a1", "a", vector) for i, vector in enumerate(vectors)]
    add_rows(store._db, points)
    long.upsert(points)
    assert long.build_index() == (method == "hnsw")
    found, facts = searched(long, vectors[7], ["a"], 3)
    assert found[0] == ("07", pytest.approx(1, abs=1e-3))
    assert facts == {"method": method}


# The building


def test_index_is_built_from_the_threshold_on(store: PgVectorStore) -> None:
    assert not store.index_if_large()
    points = many(lambda i: "a")
    filled(store, points[:99])
    assert not store.index_if_large()
    filled(store, points[99:100])
    assert store.index_if_large()
    assert store._builder.wait(60)
    with store._db.transaction() as conn:
        assert index_state(conn) is True
    assert not store.index_if_large()


def test_build_of_documents_ends_with_the_index(kb: KnowledgeBase) -> None:
    changed = kb.settings.model_copy(update={"hnsw_from_vectors": 3})
    kb.vector_stores._settings = changed
    dataset = kb.create_dataset("many")
    texts = [f"第 {i} 条 年假规定" for i in range(5)]
    kb.add_documents(dataset.id, [LCDocument(page_content=text) for text in texts])
    store = kb.vectors(kb.get_dataset(dataset.id))
    assert isinstance(store, PgVectorStore)
    assert store._builder.wait(60)
    with kb.db.transaction() as conn:
        assert index_state(conn) is True


def test_trace_of_a_search_says_how_vectors_were_found(kb: KnowledgeBase) -> None:
    dataset = kb.create_dataset("d")
    kb.add_documents(dataset.id, [LCDocument(page_content="年假可以跨年")])
    result = kb.search_in_datasets("年假", [dataset.id], RetrievalConfig(retriever="semantic"))
    facts = next(stage.facts for stage in result.trace.stages if stage.name == "vectors")
    assert facts["method"] == "exact"


def test_index_that_a_crash_left_is_built_anew(store: PgVectorStore) -> None:
    filled(store, many(lambda i: "a"))
    store.build_index()
    leave_unfinished(store)
    with store._db.transaction() as conn:
        assert index_state(conn) is False
    assert searched(store, QUESTIONS[0], ["a"])[1] == {"method": "exact"}
    assert store.build_index()
    with store._db.transaction() as conn:
        assert index_state(conn) is True


def leave_unfinished(store: PgVectorStore) -> None:
    """Leave what a killed build leaves: a unique index over equal values fails when it is made."""
    name, table = sql.Identifier(store._schema, INDEX), sql.Identifier(store._schema, "vector_1")
    statement = sql.SQL("CREATE UNIQUE INDEX CONCURRENTLY {} ON {} (dataset_id)")
    with store._db.session() as conn:
        conn.execute(sql.SQL("DROP INDEX {}").format(name))
        with pytest.raises(errors.UniqueViolation):
            conn.execute(statement.format(sql.Identifier(INDEX), table))


def test_two_builders_make_one_index(store: PgVectorStore, settings: Settings) -> None:
    filled(store, many(lambda i: "a"))
    others = [PgVectorStore(store._space, settings, store._db) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda other: other.build_index(), others)) == [True] * 4
    with store._db.transaction() as conn:
        assert index_state(conn) is True


def test_builder_in_the_background_leaves_the_work_to_another_process(
    store: PgVectorStore,
) -> None:
    filled(store, many(lambda i: "a"))
    with store._db.transaction() as other:
        assert try_lock(other, f"kb_tools vector index {store._schema}.vector_1")
        assert store.index_if_large()
        assert store._builder.wait(60)
    with store._db.transaction() as conn:
        assert index_state(conn) is None


def test_writers_and_searches_go_on_while_the_index_is_built(store: PgVectorStore) -> None:
    points = many(lambda i: "a")
    filled(store, points)
    add_rows(store._db, [point(f"w{i}", [i + 1, 1]) for i in range(200)])
    written: list[str] = []
    stop = threading.Event()

    def write() -> None:
        for i in range(200):
            if stop.is_set() and i > 50:
                return
            store.upsert([point(f"w{i}", [i + 1, 1])])
            store.search(QUESTIONS[0], ["a"], 5)
            written.append(f"w{i}")

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        store.build_index()
        stop.set()
        writing.result()
    assert set(written) <= set(store.ids("a"))


@pytest.mark.usefixtures("eager")
def test_what_was_written_during_the_build_is_found_by_the_index(store: PgVectorStore) -> None:
    points = many(lambda i: "a")
    filled(store, points[:1000])
    add_rows(store._db, points[1000:])
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(lambda: [store.upsert([p]) for p in points[1000:1300]])
        store.build_index()
        writing.result()
    for question in QUESTIONS:
        found, facts = searched(store, question, ["a"])
        assert facts == {"method": "hnsw"}
        assert recall(found, nearest(points[:1300], question, 10)) >= 0.9


def test_build_that_is_given_up_leaves_no_index(
    store: PgVectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pgvector_index, "CLOSE_SECONDS", 0.2)
    filled(store, many(lambda i: "a"))
    with store._db.transaction() as conn:
        conn.execute("UPDATE vector_1 SET document_id = document_id WHERE segment_id = '00001'")
        assert store.index_if_large()  # it waits for this transaction
        store.close()
    assert store._builder.wait(60)
    with store._db.transaction() as conn:
        assert index_state(conn) is None
    assert not store.index_if_large()


def test_callers_pool_of_one_connection_is_not_needed_for_the_build(
    store: PgVectorStore, settings: Settings
) -> None:
    filled(store, many(lambda i: "a"))
    with (
        ConnectionPool(store._db._pool._conninfo, min_size=1, max_size=1, open=True) as pool,
        Database.open(pool, settings) as narrow,
    ):
        assert PgVectorStore(store._space, settings, narrow).build_index()
    with store._db.transaction() as conn:
        assert index_state(conn) is True


def test_of_two_points_of_one_segment_the_last_counts(store: PgVectorStore) -> None:
    points = [point(f"{i:02}", [1]) for i in range(20)]
    add_rows(store._db, points)
    store.upsert([*points, point("00", [0, 1])])
    assert store.cosines(point("", [0, 1]).vector, ["00"]) == pytest.approx({"00": 1}, abs=1e-6)


@pytest.mark.parametrize("temporary", [True, False])
@pytest.mark.parametrize("count", [1, 300])
def test_bulk_and_single_writes_store_the_same(
    store: PgVectorStore, monkeypatch: pytest.MonkeyPatch, temporary: bool, count: int
) -> None:
    points = many(lambda i: "a")[:count]
    filled(store, points[:1])
    known = store._known or find_table(store)
    changed = Table(known.name, known.half, known.dimension, known.version, temporary)
    monkeypatch.setattr(store, "_known", changed)
    filled(store, points)
    found = store.vectors([p.segment_id for p in points])
    assert all(np.array_equal(found[p.segment_id], p.vector) for p in points)


def find_table(store: PgVectorStore) -> Table:
    with store._db.transaction() as conn:
        table = find(conn, store._space)
    assert table is not None
    return table
