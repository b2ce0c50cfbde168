"""Who builds which document: leases, so that a dead builder's documents can be taken over."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row

from kb_tools.models import Json


@dataclass(frozen=True)
class UnfinishedDocument:
    """A document whose build has not ended; `builder` is who has a valid lease of it."""

    id: str
    dataset_id: str
    builder: str | None
    size: int
    rule_id: str


def unfinished(
    conn: Connection, account: str, *, dataset_id: str | None = None
) -> list[UnfinishedDocument]:
    """Return documents whose build has not ended, in upload order."""
    return (
        conn.cursor(row_factory=class_row(UnfinishedDocument))
        .execute(
            """
            SELECT d.id, d.dataset_id, b.id AS builder, d.size, d.process_rule_id AS rule_id
            FROM document d JOIN dataset k ON k.id = d.dataset_id
            LEFT JOIN builder b ON b.id = d.builder AND b.lease_until >= clock_timestamp()
            WHERE k.account_id = %(account)s AND d.status NOT IN ('completed', 'error')
              AND (%(dataset)s::text IS NULL OR d.dataset_id = %(dataset)s)
            ORDER BY d.dataset_id, d.position
            """,
            {"account": account, "dataset": dataset_id},
        )
        .fetchall()
    )


def rules(conn: Connection, rule_ids: Collection[str]) -> dict[str, dict[str, Json]]:
    """Return id -> rule."""
    rows = conn.execute("SELECT id, rule FROM process_rule WHERE id = ANY(%s)", (list(rule_ids),))
    return dict(rows.fetchall())


def claim(
    conn: Connection, document_ids: Sequence[str], builder: str, *, dead: Sequence[str] = ()
) -> list[str]:
    """Give `builder` those unfinished documents that nobody else builds, and return their ids.

    A builder whose lease is over, or that is among the `dead`, builds nothing. What an earlier
    build left of a document's segments is removed, so that it begins anew and nothing is there
    twice.
    """
    rows = conn.execute(
        """
        UPDATE document d SET builder = %(builder)s, status = 'parsing',
            processing_started_at = clock_timestamp(), updated_at = clock_timestamp()
        WHERE id = ANY(%(ids)s) AND status NOT IN ('completed', 'error')
          AND (builder IS NULL OR builder = %(builder)s OR builder = ANY(%(dead)s) OR NOT EXISTS (
              SELECT FROM builder b WHERE b.id = d.builder AND b.lease_until >= clock_timestamp()))
        RETURNING id
        """,
        {"builder": builder, "ids": list(document_ids), "dead": list(dead)},
    )
    claimed = {document_id for (document_id,) in rows}
    conn.execute("DELETE FROM segment WHERE document_id = ANY(%s)", (list(claimed),))
    return [document_id for document_id in document_ids if document_id in claimed]


def holders(conn: Connection, document_ids: Sequence[str]) -> list[str]:
    """Return who leases any of the documents."""
    rows = conn.execute(
        "SELECT DISTINCT builder FROM document WHERE id = ANY(%s) AND builder IS NOT NULL",
        (list(document_ids),),
    )
    return [holder for (holder,) in rows]


def held(conn: Connection, document_ids: Sequence[str], builder: str) -> set[str]:
    """Return those documents that `builder` still leases, locked until the transaction ends."""
    rows = conn.execute(
        "SELECT id FROM document WHERE id = ANY(%s) AND builder = %s ORDER BY id FOR UPDATE",
        (list(document_ids), builder),
    )
    return {document_id for (document_id,) in rows}


def renew(conn: Connection, builder: str, seconds: float) -> None:
    """Let the lease of `builder` last `seconds` from now."""
    conn.execute(
        """
        INSERT INTO builder (id, lease_until)
        VALUES (%s, clock_timestamp() + make_interval(secs => %s))
        ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
        """,
        (builder, seconds),
    )


def release(conn: Connection, builder: str) -> None:
    """End the lease of `builder`, and those that ran out a day ago."""
    conn.execute("UPDATE document SET builder = NULL WHERE builder = %s", (builder,))
    conn.execute(
        """
        DELETE FROM builder
        WHERE id = %s OR lease_until < clock_timestamp() - make_interval(days => 1)
        """,
        (builder,),
    )
