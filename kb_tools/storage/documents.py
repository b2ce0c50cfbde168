"""Rows of documents, their bytes and their cleaned text."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row, kwargs_row
from psycopg.types.json import Jsonb

from kb_tools.models import Document, DocumentState, DocumentStatus, Json, possible_ids


@dataclass(frozen=True)
class NewDocument:
    """A document before its build."""

    id: str
    name: str
    source: str
    extension: str
    mime_type: str
    content: bytes
    content_hash: str
    metadata: dict[str, Json]
    error: str | None = None


@dataclass(frozen=True)
class WaitingDocument:
    """What a build needs to know of a document."""

    id: str
    dataset_id: str
    name: str
    extension: str
    content: bytes
    metadata: dict[str, Json]


def insert(
    conn: Connection,
    dataset_id: str,
    *,
    batch: str,
    rule_id: str,
    builder: str,
    documents: Sequence[NewDocument],
) -> None:
    """Add documents that `builder` will build; the caller holds the dataset's lock."""
    row = conn.execute(
        "SELECT coalesce(max(position), 0) FROM document WHERE dataset_id = %s", (dataset_id,)
    ).fetchone()
    last = int(row[0]) if row else 0
    with conn.cursor().copy(
        """
        COPY document (id, dataset_id, process_rule_id, batch, name, source, extension, mime_type,
                       size, content_hash, metadata, position, status, error, builder) FROM STDIN
        """
    ) as copy:
        for position, new in enumerate(documents, start=last + 1):
            status = DocumentStatus.ERROR if new.error else DocumentStatus.WAITING
            copy.write_row(
                (
                    new.id, dataset_id, rule_id, batch, new.name, new.source, new.extension,
                    new.mime_type, len(new.content), new.content_hash, Jsonb(new.metadata),
                    position, status.value, new.error, None if new.error else builder,
                )
            )  # fmt: skip
    with conn.cursor().copy(
        "COPY document_file (document_id, content) FROM STDIN WITH (FORMAT binary)"
    ) as copy:
        copy.set_types(["text", "bytea"])
        for new in documents:
            copy.write_row((new.id, new.content))


def insert_rule(
    conn: Connection, rule_id: str, dataset_id: str, mode: str, rule: dict[str, Json]
) -> None:
    """Keep a snapshot of the rule of one batch."""
    conn.execute(
        "INSERT INTO process_rule (id, dataset_id, mode, rule) VALUES (%s, %s, %s, %s)",
        (rule_id, dataset_id, mode, Jsonb(rule)),
    )


def contents(conn: Connection, document_ids: Sequence[str]) -> list[WaitingDocument]:
    """Return documents with their bytes, in the order given."""
    rows = conn.cursor(row_factory=class_row(WaitingDocument), binary=True).execute(
        """
        SELECT d.id, d.dataset_id, d.name, d.extension, f.content, d.metadata
        FROM document d JOIN document_file f ON f.document_id = d.id WHERE d.id = ANY(%s)
        """,
        (list(document_ids),),
    )
    found = {row.id: row for row in rows}
    return [found[document_id] for document_id in document_ids if document_id in found]


@dataclass(frozen=True)
class ReadDocument:
    """What parsing and cleaning gave; `metadata` is what the file says of itself."""

    id: str
    text: str
    report: dict[str, Json]
    metadata: dict[str, Json]


def parsed(conn: Connection, texts: Sequence[ReadDocument]) -> None:
    """Keep the texts of documents that go on to be split; metadata given by the caller wins."""
    ids = [read.id for read in texts]
    conn.execute("DELETE FROM document_text WHERE document_id = ANY(%s)", (ids,))
    with conn.cursor().copy("COPY document_text (document_id, content) FROM STDIN") as copy:
        for read in texts:
            copy.write_row((read.id, read.text))
    conn.execute(
        """
        UPDATE document d SET status = 'splitting', report = new.report,
            metadata = new.metadata || d.metadata,
            parsing_completed_at = clock_timestamp(), updated_at = clock_timestamp()
        FROM unnest(%s::text[], %s::jsonb[], %s::jsonb[]) AS new(id, report, metadata)
        WHERE d.id = new.id
        """,
        (ids, [Jsonb(read.report) for read in texts], [Jsonb(read.metadata) for read in texts]),
    )


def split(conn: Connection, totals: Sequence[tuple[str, int, int]]) -> None:
    """Note (document id, characters, tokens) of documents whose segments now exist."""
    conn.execute(
        """
        UPDATE document d SET status = 'indexing', character_count = new.characters,
            token_count = new.tokens, splitting_completed_at = clock_timestamp(),
            updated_at = clock_timestamp()
        FROM unnest(%s::text[], %s::int[], %s::int[]) AS new(id, characters, tokens)
        WHERE d.id = new.id
        """,
        tuple(map(list, zip(*totals, strict=True))),
    )


def note_embedded_heads(conn: Connection, counts: Mapping[str, int], tokens: int) -> None:
    """Add to the reports of documents (id -> how many) that segments are embedded by their head."""
    conn.execute(
        """
        UPDATE document d SET report = d.report || jsonb_build_object(
            'embedding_input_tokens', %s::int, 'segments_embedded_by_their_head',
            coalesce((d.report->>'segments_embedded_by_their_head')::int, 0) + new.count)
        FROM unnest(%s::text[], %s::int[]) AS new(id, count) WHERE d.id = new.id
        """,
        (tokens, list(counts), list(counts.values())),
    )


def complete(conn: Connection, document_ids: Sequence[str]) -> None:
    """Complete documents whose segments are all done: error if every one failed, else enabled.

    A document that replaces a whole one must be whole itself: error if any segment failed.
    """
    conn.execute(
        """
        WITH counted AS (
            SELECT document_id, count(*) AS total, min(error) AS error,
                   count(*) FILTER (WHERE status = 'error') AS failed
            FROM segment WHERE document_id = ANY(%s) GROUP BY document_id
        ), judged AS (
            SELECT c.*, c.failed < c.total AND (c.failed = 0 OR NOT EXISTS (
                SELECT FROM document old
                WHERE old.replaced_by = d.batch AND md5(old.source) = md5(d.source)
                  AND old.source = d.source
                  AND old.status = 'completed' AND old.error IS NULL)) AS good
            FROM counted c JOIN document d ON d.id = c.document_id
        )
        UPDATE document d SET
            status = CASE WHEN t.good THEN 'completed' ELSE 'error' END,
            enabled = t.good,
            error = CASE WHEN t.failed > 0
                THEN format('%%s of %%s segments failed: %%s', t.failed, t.total, t.error) END,
            indexing_completed_at = clock_timestamp(), updated_at = clock_timestamp(),
            builder = NULL,
            completed_at = CASE WHEN t.good THEN clock_timestamp() END,
            stopped_at = CASE WHEN NOT t.good THEN clock_timestamp() END
        FROM judged t WHERE d.id = t.document_id AND d.status = 'indexing'
        """,
        (list(document_ids),),
    )


def fail(conn: Connection, document_id: str, error: str) -> None:
    """End a document's build in error, with its reason."""
    conn.execute(
        """
        UPDATE document SET status = 'error', enabled = false, error = %s,
            builder = NULL, stopped_at = clock_timestamp(), updated_at = clock_timestamp()
        WHERE id = %s
        """,
        (error, document_id),
    )


def read(conn: Connection, account: str, document_ids: Sequence[str]) -> list[Document]:
    """Return the account's documents among `document_ids`, in that order; others are left out."""
    rows = conn.cursor(row_factory=kwargs_row(_document)).execute(
        """
        SELECT d.id, d.dataset_id, d.batch, d.name, d.source, d.extension, d.mime_type, d.size,
               d.content_hash, d.metadata, r.rule AS process_rule, d.position, d.character_count,
               d.token_count, d.enabled, d.disabled_at, d.status, d.error, d.report, d.created_at,
               d.updated_at, d.processing_started_at, d.parsing_completed_at,
               d.splitting_completed_at, d.indexing_completed_at, d.completed_at, d.stopped_at,
               (SELECT count(*) FROM segment s WHERE s.document_id = d.id) AS segment_count,
               (SELECT coalesce(sum(hits), 0)::bigint FROM segment_hit h
                WHERE h.document_id = d.id) AS hit_count
        FROM document d JOIN dataset k ON k.id = d.dataset_id
        JOIN process_rule r ON r.id = d.process_rule_id
        WHERE d.id = ANY(%s) AND k.account_id = %s
        """,
        (possible_ids(document_ids), account),
    )
    found = {row.id: row for row in rows}
    return [found[document_id] for document_id in document_ids if document_id in found]


def page(
    conn: Connection,
    account: str,
    dataset_id: str,
    *,
    search: str | None,
    offset: int,
    limit: int,
    status: DocumentStatus | None = None,
    enabled: bool | None = None,
    failed: bool = False,
) -> list[Document]:
    """Return documents of a dataset whose name holds `search`, newest first.

    `failed` are those with an error, some failed segments included.
    """
    rows = conn.execute(
        """
        SELECT id FROM document
        WHERE dataset_id = %(dataset)s
          AND (%(search)s::text IS NULL OR strpos(lower(name), lower(%(search)s)) > 0)
          AND (%(status)s::text IS NULL OR status = %(status)s)
          AND (%(enabled)s::boolean IS NULL OR enabled = %(enabled)s)
          AND (error IS NOT NULL OR NOT %(failed)s)
        ORDER BY position DESC OFFSET %(offset)s LIMIT %(limit)s
        """,
        {
            "dataset": dataset_id,
            "search": search,
            "status": status,
            "enabled": enabled,
            "failed": failed,
            "offset": offset,
            "limit": limit,
        },
    ).fetchall()
    return read(conn, account, [document_id for (document_id,) in rows])


def states(
    conn: Connection,
    account: str,
    *,
    batch: str = "",
    document_ids: Sequence[str] = (),
    failed: bool = False,
) -> list[DocumentState]:
    """Return where each document of a batch, or with one of the ids, is, in upload order.

    With `failed` only those with an error.
    """
    return (
        conn.cursor(row_factory=kwargs_row(_state))
        .execute(
            """
            SELECT d.id AS document_id, d.name, d.status, d.error,
                   count(s.id) AS segment_count,
                   count(s.id) FILTER (WHERE s.status = 'completed') AS completed_segment_count,
                   d.created_at, d.processing_started_at, d.parsing_completed_at,
                   d.splitting_completed_at, d.indexing_completed_at, d.completed_at, d.stopped_at
            FROM document d JOIN dataset k ON k.id = d.dataset_id
            LEFT JOIN segment s ON s.document_id = d.id
            WHERE (d.batch = ANY(%s) OR d.id = ANY(%s)) AND k.account_id = %s
              AND (d.error IS NOT NULL OR NOT %s)
            GROUP BY d.id ORDER BY d.dataset_id, d.position
            """,
            (possible_ids([batch]), possible_ids(document_ids), account, failed),
        )
        .fetchall()
    )


def existing(conn: Connection, document_ids: Collection[str]) -> set[str]:
    """Return those ids that are there."""
    rows = conn.execute("SELECT id FROM document WHERE id = ANY(%s)", (list(document_ids),))
    return {document_id for (document_id,) in rows}


def delete_batch(conn: Connection, batch: str) -> None:
    """Remove the documents of a batch that was not read to its end."""
    conn.execute("DELETE FROM document WHERE batch = %s", (batch,))


def delete(conn: Connection, document_ids: Sequence[str]) -> None:
    """Remove documents; their segments, bytes and texts go with them."""
    conn.execute("DELETE FROM document WHERE id = ANY(%s)", (list(document_ids),))


# Edit: the caller holds the dataset's lock


@dataclass(frozen=True)
class EditableDocument:
    """What an edit needs to know of a document."""

    id: str
    dataset_id: str
    name: str
    status: DocumentStatus
    enabled: bool
    error: str | None


def editable(
    conn: Connection, account: str, document_ids: Sequence[str]
) -> dict[str, EditableDocument]:
    """Return id -> document for those of the account; others are left out."""
    rows = conn.execute(
        """
        SELECT d.id, d.dataset_id, d.name, d.status, d.enabled, d.error
        FROM document d JOIN dataset k ON k.id = d.dataset_id
        WHERE d.id = ANY(%s) AND k.account_id = %s
        """,
        (possible_ids(document_ids), account),
    )
    return {
        found: EditableDocument(found, dataset_id, name, DocumentStatus(status), enabled, error)
        for found, dataset_id, name, status, enabled, error in rows
    }


def set_enabled(conn: Connection, document_ids: Sequence[str], enabled: bool) -> None:
    """Switch completed documents on or off."""
    conn.execute(
        """
        UPDATE document SET enabled = %(on)s, updated_at = clock_timestamp(),
            disabled_at = CASE WHEN NOT %(on)s THEN clock_timestamp() END
        WHERE id = ANY(%(ids)s) AND status = 'completed'
        """,
        {"on": enabled, "ids": list(document_ids)},
    )


def rename(conn: Connection, document_id: str, name: str) -> None:
    """Give a document another name."""
    conn.execute(
        "UPDATE document SET name = %s, updated_at = clock_timestamp() WHERE id = %s",
        (name, document_id),
    )


def rule_of(conn: Connection, document_id: str) -> dict[str, Json]:
    """Return the rule that a document was built by."""
    row = conn.execute(
        """
        SELECT r.rule FROM document d JOIN process_rule r ON r.id = d.process_rule_id
        WHERE d.id = %s
        """,
        (document_id,),
    ).fetchone()
    return dict(row[0]) if row else {}


def rebuilt(
    conn: Connection, read: ReadDocument, rule_id: str | None, *, started: float, cut: float
) -> None:
    """Note that a document has new segments, by another rule if `rule_id` says so.

    It was begun and cut so many seconds ago. What was switched off stays off.
    """
    conn.execute("DELETE FROM document_text WHERE document_id = %s", (read.id,))
    conn.execute(
        "INSERT INTO document_text (document_id, content) VALUES (%s, %s)", (read.id, read.text)
    )
    conn.execute(
        """
        UPDATE document d SET process_rule_id = coalesce(%(rule)s, d.process_rule_id),
            status = 'completed', enabled = d.enabled OR d.status = 'error', error = NULL,
            report = %(report)s, metadata = %(metadata)s || d.metadata,
            character_count = t.characters, token_count = t.tokens,
            processing_started_at = clock_timestamp() - make_interval(secs => %(started)s),
            parsing_completed_at = clock_timestamp() - make_interval(secs => %(cut)s),
            splitting_completed_at = clock_timestamp() - make_interval(secs => %(cut)s),
            indexing_completed_at = clock_timestamp(), completed_at = clock_timestamp(),
            stopped_at = NULL, updated_at = clock_timestamp()
        FROM (SELECT coalesce(sum(character_count), 0)::int AS characters,
                     coalesce(sum(token_count), 0)::int AS tokens
              FROM segment WHERE document_id = %(id)s) t
        WHERE d.id = %(id)s
        """,
        {
            "id": read.id,
            "rule": rule_id,
            "report": Jsonb(read.report),
            "metadata": Jsonb(read.metadata),
            "started": started,
            "cut": cut,
        },
    )


def add_to_totals(conn: Connection, document_id: str, *, characters: int, tokens: int) -> None:
    """Note that a document's segments grew by so much; negative: shrank."""
    conn.execute(
        """
        UPDATE document SET character_count = character_count + %s,
            token_count = token_count + %s, updated_at = clock_timestamp() WHERE id = %s
        """,
        (characters, tokens, document_id),
    )


def recount_failures(conn: Connection, document_id: str) -> None:
    """Let the error of a completed document say how many of its segments failed, if any."""
    conn.execute(
        """
        UPDATE document d SET error = CASE WHEN t.failed > 0
            THEN format('%%s of %%s segments failed: %%s', t.failed, t.total, t.error) END
        FROM (SELECT count(*) AS total, min(error) AS error,
                     count(*) FILTER (WHERE status = 'error') AS failed
              FROM segment WHERE document_id = %(id)s) t
        WHERE d.id = %(id)s AND d.status = 'completed'
        """,
        {"id": document_id},
    )


def _document(**row: Any) -> Document:
    return Document(**row | {"status": DocumentStatus(row["status"])})


def _state(**row: Any) -> DocumentState:
    return DocumentState(**row | {"status": DocumentStatus(row["status"])})
