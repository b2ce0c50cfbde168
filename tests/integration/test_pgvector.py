"""The pgvector store: the contract of all stores, and what only PostgreSQL promises."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from psycopg import Connection, sql

from kb_tools.db import Database
from kb_tools.errors import InvalidInput
from kb_tools.settings import Settings
from kb_tools.storage.migrate import migrate
from kb_tools.testing import DIMENSION, VectorStoreContract, point
from kb_tools.vectorstores import Point, Space, VectorStore, VectorStores
from kb_tools.vectorstores.pgvector import create


@pytest.fixture
def settings(database: Database) -> Settings:
    return database._settings


@pytest.fixture
def migrated(database: Database, settings: Settings) -> Database:
    migrate(database, settings.db_schema)
    return database


@pytest.fixture
def store(migrated: Database, settings: Settings) -> VectorStore:
    return create(Space("fake", DIMENSION), settings, migrated)


def add_rows(database: Database, points: Sequence[Point]) -> None:
    """Add the rows of segments and documents that these points belong to."""
    with database.transaction() as conn:
        for p in points:
            conn.execute(
                """
                INSERT INTO dataset (id, account_id, name, embedding_model)
                VALUES (%(k)s, 'default', %(k)s, 'fake') ON CONFLICT (id) DO NOTHING
                """,
                {"k": p.dataset_id},
            )
            conn.execute(
                """
                INSERT INTO process_rule (id, dataset_id, mode, rule)
                VALUES (%(k)s, %(k)s, 'as_is', '{}') ON CONFLICT (id) DO NOTHING
                """,
                {"k": p.dataset_id},
            )
            conn.execute(
                """
                INSERT INTO document (id, dataset_id, process_rule_id, batch, name, source,
                    extension, mime_type, size, content_hash, position, enabled, status)
                VALUES (%s, %s, %s, '1', 'n', 's', '', '', 0, '', 1, %s, 'completed')
                ON CONFLICT (id) DO NOTHING
                """,
                (p.document_id, p.dataset_id, p.dataset_id, p.document_enabled),
            )
        with conn.cursor() as cursor:
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


class TestContract(VectorStoreContract):
    @pytest.fixture(autouse=True)
    def _keep(self, migrated: Database) -> None:
        self.database = migrated

    def write(self, store: VectorStore, points: Sequence[Point]) -> None:
        add_rows(self.database, points)
        store.upsert(points)

    def flag(
        self,
        store: VectorStore,
        *,
        segment_ids: Sequence[str] = (),
        document_id: str | None = None,
        segment_enabled: bool | None = None,
        document_enabled: bool | None = None,
    ) -> None:
        with self.database.transaction() as conn:
            conn.execute(
                "UPDATE segment SET enabled = coalesce(%s, enabled) WHERE id = ANY(%s)",
                (segment_enabled, list(segment_ids)),
            )
            conn.execute(
                "UPDATE document SET enabled = coalesce(%s, enabled) WHERE id = %s",
                (document_enabled, document_id),
            )
            store.set_enabled(
                segment_ids=segment_ids,
                document_id=document_id,
                segment_enabled=segment_enabled,
                document_enabled=document_enabled,
                conn=conn,
            )


def vectors_left(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM vector_1").fetchone()
    assert row is not None
    return int(row[0])


def test_vectors_are_written_in_the_transaction_of_their_asset(
    store: VectorStore, migrated: Database
) -> None:
    points = [point("1", [1])]
    add_rows(migrated, points)

    def write_and_fail() -> None:
        with migrated.transaction() as conn:
            store.upsert(points, conn=conn)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert list(store.ids("a")) == []
    with migrated.transaction() as conn:
        store.upsert(points, conn=conn)
    assert list(store.ids("a")) == ["1"]


@pytest.mark.parametrize("table", ["segment", "document", "dataset"])
def test_vectors_go_with_their_rows(store: VectorStore, migrated: Database, table: str) -> None:
    points = [point("1", [1]), point("2", [1], document_id="b1", dataset_id="b")]
    add_rows(migrated, points)
    store.upsert(points)
    gone = {"segment": "1", "document": "a1", "dataset": "a"}[table]
    with migrated.transaction() as conn:
        conn.execute(sql.SQL("DELETE FROM {} WHERE id = %s").format(sql.Identifier(table)), (gone,))
        assert vectors_left(conn) == 1
    assert list(store.ids("b")) == ["2"]


def test_table_can_be_made_while_a_writer_holds_segments(
    store: VectorStore, migrated: Database
) -> None:
    points = [point("1", [1])]
    add_rows(migrated, points)
    with migrated.transaction() as conn:
        conn.execute("UPDATE segment SET content = 'changed'")
        store.upsert(points, conn=conn)
    assert list(store.ids("a")) == ["1"]


def test_table_of_a_transaction_that_failed_is_made_again(
    store: VectorStore, migrated: Database
) -> None:
    points = [point("1", [1])]
    add_rows(migrated, points)

    def write_and_fail() -> None:
        with migrated.transaction() as conn:
            store.upsert(points, conn=conn)
            store.upsert(points, conn=conn)
            store.delete(segment_ids=["2"], conn=conn)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    store.upsert(points)
    assert list(store.ids("a")) == ["1"]


def test_one_connection_is_enough(server_folder: Path, migrated: Database) -> None:
    settings = migrated._settings.model_copy(
        update={"pool_max_size": 1, "pool_timeout_seconds": 2.0}
    )
    points = [point("1", [1])]
    add_rows(migrated, points)
    with Database.open(server_folder, settings) as narrow, narrow.transaction() as conn:
        create(Space("fake", DIMENSION), settings, narrow).upsert(points, conn=conn)


def test_many_creators_at_once_make_one_table(migrated: Database, settings: Settings) -> None:
    points = [point(str(i), [1]) for i in range(8)]
    add_rows(migrated, points)
    stores = [create(Space("fake", DIMENSION), settings, migrated) for _ in points]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda pair: pair[0].upsert([pair[1]]), zip(stores, points, strict=True)))
    assert len(list(stores[0].ids("a"))) == 8


def test_spaces_of_one_model_with_two_dimensions_stay_apart(
    migrated: Database, settings: Settings
) -> None:
    stores = VectorStores("pgvector", settings, migrated)
    narrow, wide = stores.of(Space("m", DIMENSION)), stores.of(Space("m", 2 * DIMENSION))
    add_rows(migrated, [point("1", [1]), point("2", [1])])
    narrow.upsert([point("1", [1])])
    wide.upsert([Point("2", "a1", "a", np.ones(2 * DIMENSION, np.float32))])
    assert (list(narrow.ids("a")), list(wide.ids("a"))) == (["1"], ["2"])
    assert stores.of(Space("m", DIMENSION)) is narrow


@pytest.mark.parametrize("dimension", [1900, 2000, 3072, 16000])
def test_long_vectors_are_kept_and_found(
    migrated: Database, settings: Settings, dimension: int
) -> None:
    store = create(Space("long", dimension), settings, migrated)
    generator = np.random.default_rng(3)
    points = [
        Point(str(i), "a1", "a", generator.standard_normal(dimension).astype(np.float32))
        for i in range(3)
    ]
    add_rows(migrated, points)
    store.upsert(points)
    assert store.search(points[1].vector, ["a"], 1) == [("1", pytest.approx(1, abs=1e-3))]
    assert np.allclose(store.vectors(["1"])["1"], points[1].vector, atol=5e-3)


def test_more_dimensions_than_pgvector_holds_are_refused(
    migrated: Database, settings: Settings
) -> None:
    with pytest.raises(InvalidInput, match="16001"):
        create(Space("huge", 16_001), settings, migrated)


def test_vector_of_an_unfinished_segment_is_not_found(
    store: VectorStore, migrated: Database
) -> None:
    points = [point("1", [1]), point("2", [1])]
    add_rows(migrated, points)
    store.upsert(points)
    with migrated.transaction() as conn:
        conn.execute("UPDATE segment SET enabled = false, status = 'indexing' WHERE id = '1'")
    assert [segment_id for segment_id, _ in store.search(points[0].vector, ["a"], 5)] == ["2"]


def test_ids_come_in_pages(
    store: VectorStore, migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_tools.vectorstores.pgvector.PAGE_IDS", 3)
    points = [point(f"{i:02}", [1]) for i in range(9)]
    add_rows(migrated, points)
    store.upsert(points)
    assert list(store.ids("a")) == [f"{i:02}" for i in range(9)]
