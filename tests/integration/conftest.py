"""Rows put straight into the tables, for tests of the storage layer."""

from collections.abc import Sequence

import pytest

from kb_tools.db import Database
from kb_tools.storage import full_text, migrate
from kb_tools.text.terms import segment_terms
from kb_tools.text.tokenize import extract_keywords


class Rows:
    """Datasets, documents and completed segments, indexed as ingest does it."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def dataset(self, dataset_id: str, *, account: str = "default") -> None:
        with self.database.transaction() as conn:
            conn.execute(
                "INSERT INTO dataset (id, account_id, name, embedding_model) "
                "VALUES (%s, %s, %s, 'm')",
                (dataset_id, account, dataset_id),
            )
            conn.execute(
                "INSERT INTO process_rule (id, dataset_id, mode, rule) "
                "VALUES (%s, %s, 'as_is', '{}')",
                (dataset_id, dataset_id),
            )
        self.document(dataset_id, dataset_id)

    def document(
        self, dataset_id: str, document_id: str, *, position: int = 1, enabled: bool = True
    ) -> None:
        with self.database.transaction() as conn:
            conn.execute(
                """
                INSERT INTO document (id, dataset_id, process_rule_id, batch, name, source,
                    extension, mime_type, size, content_hash, position, status, enabled)
                VALUES (%s, %s, %s, 'b', 'n', 's', '', '', 0, '', %s, 'completed', %s)
                """,
                (document_id, dataset_id, dataset_id, position, enabled),
            )

    def segments(
        self,
        dataset_id: str,
        texts: dict[str, str],
        *,
        document_id: str | None = None,
        keywords: Sequence[str] | None = None,
        enabled: bool = True,
    ) -> None:
        owner = document_id or dataset_id
        with self.database.transaction() as conn:
            for segment_id, text in texts.items():
                words = extract_keywords(text) if keywords is None else list(keywords)
                conn.execute(
                    """
                    INSERT INTO segment (id, dataset_id, document_id, position, content, span,
                        keywords, character_count, token_count, hash, status, enabled)
                    VALUES (%s, %s, %s, (SELECT count(*) FROM segment WHERE document_id = %s),
                        %s, '[0,1)', %s, 1, 1, 'h', 'completed', %s)
                    """,
                    (segment_id, dataset_id, owner, owner, text, words, enabled),
                )
            terms = [(segment_id, segment_terms("", text)) for segment_id, text in texts.items()]
            full_text.write(conn, dataset_id, terms)


@pytest.fixture
def rows(database: Database) -> Rows:
    """Our schema, with a dataset called "d" that holds one document."""
    migrate.migrate(database, database._settings.db_schema)
    made = Rows(database)
    made.dataset("d")
    return made
