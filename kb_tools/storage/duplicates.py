"""Documents that are there already: found by their content, and replaced once a newer is built.

A document that is to be replaced names the batch that does it (`replaced_by`). It stays, and stays
searchable, until all documents of that batch with its source are completed, and goes in the
transaction that completes the last. One in error has nothing to lose: it goes when they are done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.types.json import Jsonb

from kb_tools.models import Json
from kb_tools.storage.documents import NewDocument


@dataclass(frozen=True)
class Equal:
    """A document that holds the content of a new one; `same_rule` if it is cut like that one."""

    id: str
    name: str
    same_rule: bool = True


def equal_documents(
    conn: Connection,
    dataset_id: str,
    documents: Sequence[NewDocument],
    rule: Mapping[str, Json],
    *,
    unless_changed: bool,
) -> dict[int, Equal]:
    """Return for each new document (by its place) that is there already the one that equals it.

    Equal is what has the same content and is completed without error, or being built. With
    `unless_changed`, one of the same source is equal only if it was built by `rule` and has all
    the new metadata.
    """
    rows = conn.execute(
        """
        SELECT DISTINCT ON (new.place) new.place, d.id, d.name, r.rule = %(rule)s::jsonb
        FROM unnest(%(hashes)s::text[], %(sources)s::text[], %(metadata)s::jsonb[])
            WITH ORDINALITY AS new(hash, source, metadata, place)
        JOIN document d ON d.dataset_id = %(dataset)s AND d.content_hash = new.hash
        JOIN process_rule r ON r.id = d.process_rule_id
        WHERE d.error IS NULL AND (NOT %(unless_changed)s OR d.source <> new.source
            OR (r.rule = %(rule)s::jsonb AND d.metadata @> new.metadata))
          AND NOT EXISTS ( -- it is about to go
            SELECT FROM document newer
            WHERE newer.batch = d.replaced_by AND newer.source = d.source
              AND newer.status NOT IN ('completed', 'error'))
        ORDER BY new.place, d.source <> new.source, d.position
        """,
        {
            "dataset": dataset_id,
            "hashes": ["" if new.error else new.content_hash for new in documents],
            "sources": [new.source for new in documents],
            "metadata": [Jsonb(new.metadata) for new in documents],
            "rule": Jsonb(dict(rule)),
            "unless_changed": unless_changed,
        },
    )
    return {place - 1: Equal(*equal) for place, *equal in rows}


def mark_replaced(
    conn: Connection, dataset_id: str, batch: str, *, whole: bool, kept: Sequence[str]
) -> None:
    """Note which older documents the batch replaces: those of a source that it has, but `kept`.

    Without `whole` only what failed before: documents in error, and those that lack some segments
    of content that the batch brings again.
    """
    conn.execute(
        """
        UPDATE document old SET replaced_by = %(batch)s
        FROM document new
        WHERE new.batch = %(batch)s AND old.dataset_id = %(dataset)s AND old.batch <> new.batch
          AND md5(old.source) = md5(new.source) AND old.source = new.source
          AND NOT old.id = ANY(%(kept)s)
          AND (%(whole)s OR old.status = 'error'
               OR (old.error IS NOT NULL AND old.content_hash = new.content_hash))
        """,
        {"batch": batch, "dataset": dataset_id, "whole": whole, "kept": list(kept)},
    )


def replaced(conn: Connection, document_ids: Sequence[str]) -> list[str]:
    """Return the older documents that may go now that a build of `document_ids` has ended."""
    rows = conn.execute(
        """
        SELECT DISTINCT old.id FROM document built
        JOIN document old ON old.replaced_by = built.batch
            AND md5(old.source) = md5(built.source) AND old.source = built.source
        WHERE built.id = ANY(%s) AND NOT EXISTS (
            SELECT FROM document new
            WHERE new.dataset_id = built.dataset_id AND md5(new.source) = md5(built.source)
              AND new.source = built.source AND new.batch = built.batch
              AND new.status <> 'completed' AND (new.status <> 'error' OR old.status <> 'error'))
        """,
        (list(document_ids),),
    )
    return [document_id for (document_id,) in rows]


def keep_disabled(conn: Connection, document_ids: Sequence[str]) -> None:
    """Disable what takes the place of disabled documents (ids of those that are replaced)."""
    conn.execute(
        """
        UPDATE document new SET enabled = false, disabled_at = clock_timestamp()
        FROM document old
        WHERE old.id = ANY(%s) AND old.status = 'completed' AND NOT old.enabled
          AND new.dataset_id = old.dataset_id AND md5(new.source) = md5(old.source)
          AND new.source = old.source AND new.batch = old.replaced_by AND new.enabled
        """,
        (list(document_ids),),
    )
