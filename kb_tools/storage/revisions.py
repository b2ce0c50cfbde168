"""Rows of revisions: what was changed, by whom, and what was there before."""

from collections.abc import Mapping

from psycopg import Connection
from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from kb_tools.errors import NotFound
from kb_tools.models import Action, Json, Revision, possible_ids


def add(
    conn: Connection,
    document_id: str,
    segment_id: str | None,
    action: Action,
    *,
    before: Mapping[str, Json] | None,
    after: Mapping[str, Json] | None,
    undoes: str | None,
    edited_by: str | None,
) -> Revision:
    """Note one change and return it.

    The caller holds the dataset's lock, so ids are in the order of the changes.
    """
    added = (
        conn.cursor(row_factory=kwargs_row(_revision))
        .execute(
            """
            INSERT INTO revision (document_id, segment_id, action, before, after, undoes, edited_by)
            VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING *
            """,
            (
                document_id,
                segment_id,
                action.value,
                None if before is None else Jsonb(dict(before)),
                None if after is None else Jsonb(dict(after)),
                undoes,
                edited_by,
            ),
        )
        .fetchone()
    )
    assert added is not None  # it was inserted
    return added


def page(conn: Connection, account: str, asset_id: str, offset: int, limit: int) -> list[Revision]:
    """Return the revisions of a segment, or of a document with its segments, newest first."""
    return (
        conn.cursor(row_factory=kwargs_row(_revision))
        .execute(
            """
            SELECT r.* FROM revision r JOIN document d ON d.id = r.document_id
            JOIN dataset k ON k.id = d.dataset_id
            WHERE (r.segment_id = ANY(%(id)s) OR r.document_id = ANY(%(id)s))
              AND k.account_id = %(account)s
            ORDER BY r.id DESC OFFSET %(offset)s LIMIT %(limit)s
            """,
            {
                "id": possible_ids([asset_id]),
                "account": account,
                "offset": offset,
                "limit": limit,
            },
        )
        .fetchall()
    )


def owned(conn: Connection, account: str, revision_id: str) -> Revision:
    """Return a revision. Raises NotFound: the same for a foreign id as for an unknown one."""
    possible = possible_ids([revision_id]) and revision_id.isdecimal() and len(revision_id) < 19
    found = (
        conn.cursor(row_factory=kwargs_row(_revision))
        .execute(
            """
            SELECT r.* FROM revision r JOIN document d ON d.id = r.document_id
            JOIN dataset k ON k.id = d.dataset_id
            WHERE r.id = %s AND k.account_id = %s
            """,
            (int(revision_id) if possible else 0, account),
        )
        .fetchone()
    )
    if found is None:
        raise NotFound(f"no revision with id {revision_id!r}")
    return found


def latest(conn: Connection, document_id: str) -> int:
    """Return the number of a document's last revision; 0 if it has none."""
    row = conn.execute(
        "SELECT coalesce(max(id), 0) FROM revision WHERE document_id = %s", (document_id,)
    ).fetchone()
    return int(row[0]) if row else 0


def standing(conn: Connection, document_id: str) -> list[Revision]:
    """Return the changes of a document's segments since edits were last discarded, oldest first."""
    return (
        conn.cursor(row_factory=kwargs_row(_revision))
        .execute(
            """
            SELECT * FROM revision r
            WHERE document_id = %(document)s AND segment_id IS NOT NULL AND id > coalesce((
                SELECT max(id) FROM revision WHERE document_id = %(document)s
                AND action = 'rebuilt' AND after ->> 'edits' = 'discard'), 0)
            ORDER BY id
            """,
            {"document": document_id},
        )
        .fetchall()
    )


def _revision(**row: object) -> Revision:
    undoes = row["undoes"]
    changed = {
        "id": str(row["id"]),
        "action": Action(str(row["action"])),
        "undoes": None if undoes is None else str(undoes),
    }
    return Revision(**row | changed)  # type: ignore[arg-type]  # the columns are the fields
