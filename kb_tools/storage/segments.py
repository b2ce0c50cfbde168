"""Rows of segments, among them the read guard's: what a user may see right now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.range import Range

from kb_tools.errors import NotFound
from kb_tools.models import Json, Segment, SegmentStatus, possible_ids


@dataclass(frozen=True)
class NewSegment:
    """A segment before it is indexed."""

    id: str
    position: int
    content: str
    title: str
    heading: str
    page: int | None
    start: int
    end: int
    token_count: int
    hash: str


@dataclass(frozen=True)
class PendingSegment:
    """A segment that waits for its indexes."""

    id: str
    dataset_id: str
    document_id: str
    content: str
    title: str
    heading: str
    hash: str


@dataclass(frozen=True)
class VisibleSegment:
    """A segment that may be returned now, with what a citation needs."""

    segment_id: str
    content: str
    dataset_id: str
    dataset_name: str
    document_id: str
    document_name: str
    position: int
    page: int | None
    heading: str
    title: str
    source: str
    document_metadata: dict[str, Json]

    def metadata(self) -> dict[str, Json]:
        """Return the metadata of a result: the document's own, overlaid by our names."""
        own: dict[str, Json] = {
            "dataset_id": self.dataset_id,
            "dataset_name": self.dataset_name,
            "document_id": self.document_id,
            "document_name": self.document_name,
            "segment_id": self.segment_id,
            "position": self.position,
            "page": self.page,
            "heading": self.heading,
            "title": self.title,
            "source": self.source,
            "filename": self.document_name,
        }
        return {**self.document_metadata, **own}


def read_visible(
    conn: Connection, account: str, dataset_ids: Sequence[str], segment_ids: Sequence[str]
) -> dict[str, VisibleSegment]:
    """Return the segments of the account that are enabled and completed, and so their document."""
    rows = conn.cursor(row_factory=class_row(VisibleSegment), binary=True).execute(
        """
        SELECT s.id AS segment_id, s.content, s.dataset_id, k.name AS dataset_name, s.document_id,
               d.name AS document_name, s.position, s.page, s.heading, s.title, d.source,
               d.metadata AS document_metadata
        FROM segment s JOIN document d ON d.id = s.document_id JOIN dataset k ON k.id = s.dataset_id
        WHERE s.id = ANY(%s) AND s.dataset_id = ANY(%s) AND k.account_id = %s
          AND s.enabled AND s.status = 'completed' AND d.enabled AND d.status = 'completed'
        """,
        (list(segment_ids), list(dataset_ids), account),
    )
    return {row.segment_id: row for row in rows}


def any_visible(conn: Connection, dataset_ids: Sequence[str]) -> bool:
    """Say whether the datasets hold a segment that a search could return."""
    found = conn.execute(
        """
        SELECT EXISTS (
            SELECT FROM segment s JOIN document d ON d.id = s.document_id
            WHERE s.dataset_id = ANY(%s) AND s.enabled AND d.enabled
              AND s.status = 'completed' AND d.status = 'completed')
        """,
        (list(dataset_ids),),
    ).fetchone()
    return bool(found and found[0])


def insert(conn: Connection, dataset_id: str, segments: Mapping[str, Sequence[NewSegment]]) -> None:
    """Add the segments of documents (document id -> segments), waiting to be indexed."""
    columns = """
        COPY segment (id, dataset_id, document_id, position, content, title, heading, page, span,
                      character_count, token_count, hash) FROM STDIN
    """
    with conn.cursor().copy(columns) as copy:
        for document_id, new in ((i, new) for i, some in segments.items() for new in some):
            copy.write_row(
                (
                    new.id, dataset_id, document_id, new.position, new.content, new.title,
                    new.heading, new.page, Range(new.start, new.end), len(new.content),
                    new.token_count, new.hash,
                )
            )  # fmt: skip


def pending(
    conn: Connection, document_ids: Sequence[str], limit: int, *, after: tuple[str, int]
) -> list[tuple[int, PendingSegment]]:
    """Return segments still to be indexed behind `after` (document id, position), in that order."""
    rows = conn.execute(
        """
        SELECT position, id, dataset_id, document_id, content, title, heading, hash FROM segment
        WHERE document_id = ANY(%s) AND status IN ('waiting', 'indexing')
          AND (document_id, position) > (%s, %s)
        ORDER BY document_id, position LIMIT %s
        """,
        (list(document_ids), *after, limit),
    )
    return [(position, PendingSegment(*rest)) for position, *rest in rows]


def complete(
    conn: Connection, segment_ids: Sequence[str], keywords: Sequence[Sequence[str]]
) -> None:
    """Mark segments completed and enabled, with their keywords (aligned with the ids)."""
    conn.execute(
        """
        UPDATE segment s SET status = 'completed', enabled = true, disabled_at = NULL, error = NULL,
            keywords = coalesce(string_to_array(nullif(new.keywords, ''), chr(31)), '{}'),
            indexed_at = clock_timestamp(), completed_at = clock_timestamp(),
            updated_at = clock_timestamp()
        FROM unnest(%s::text[], %s::text[]) AS new(id, keywords) WHERE s.id = new.id
        """,
        (list(segment_ids), ["\x1f".join(words) for words in keywords]),
    )


def existing(conn: Connection, segment_ids: Sequence[str]) -> list[str]:
    """Return those ids that are there, locked against deletion until the transaction ends."""
    rows = conn.execute(
        "SELECT id FROM segment WHERE id = ANY(%s) ORDER BY id FOR UPDATE", (list(segment_ids),)
    )
    return [segment_id for (segment_id,) in rows]


def locked_hashes(conn: Connection, segment_ids: Sequence[str]) -> dict[str, str]:
    """Return the hash of those that are there, locked until the transaction ends."""
    rows = conn.execute(
        "SELECT id, hash FROM segment WHERE id = ANY(%s) ORDER BY id FOR UPDATE",
        (list(segment_ids),),
    )
    return dict(rows.fetchall())


def completed_ids(conn: Connection, dataset_id: str) -> list[str]:
    """Return the ids of a dataset's completed segments, enabled or not."""
    rows = conn.execute(
        "SELECT id FROM segment WHERE dataset_id = %s AND status = 'completed' ORDER BY id",
        (dataset_id,),
    )
    return [segment_id for (segment_id,) in rows]


def fail(conn: Connection, segment_ids: Sequence[str], error: str) -> None:
    """Mark segments as error and not enabled."""
    conn.execute(
        """
        UPDATE segment SET status = 'error', enabled = false, error = %s,
            updated_at = clock_timestamp() WHERE id = ANY(%s)
        """,
        (error, list(segment_ids)),
    )


def of_equal_text(
    conn: Connection, account: str, model: str, dimension: int, hashes: Sequence[str]
) -> dict[str, str]:
    """Return for each hash a completed segment of the account with that text and model."""
    rows = conn.execute(
        """
        SELECT DISTINCT ON (s.hash) s.hash, s.id
        FROM segment s JOIN dataset k ON k.id = s.dataset_id
        WHERE s.hash = ANY(%s) AND s.status = 'completed' AND k.account_id = %s
          AND k.embedding_model = %s AND k.embedding_dimension = %s
        ORDER BY s.hash, s.id
        """,
        (list(hashes), account, model, dimension),
    )
    return dict(rows.fetchall())


def page(
    conn: Connection, document_id: str, *, search: str | None, offset: int, limit: int
) -> list[Segment]:
    """Return segments of a document whose content holds `search`, by position."""
    rows = conn.execute(
        """
        SELECT id FROM segment
        WHERE document_id = %s AND (%s::text IS NULL OR strpos(lower(content), lower(%s)) > 0)
        ORDER BY position OFFSET %s LIMIT %s
        """,
        (document_id, search, search, offset, limit),
    ).fetchall()
    return read(conn, [segment_id for (segment_id,) in rows])


def of_document(conn: Connection, document_id: str) -> list[Segment]:
    """Return all segments of a document by position."""
    rows = conn.execute(
        "SELECT id FROM segment WHERE document_id = %s ORDER BY position", (document_id,)
    ).fetchall()
    return read(conn, [segment_id for (segment_id,) in rows])


def read(conn: Connection, segment_ids: Sequence[str]) -> list[Segment]:
    """Return segments in the order of `segment_ids`; unknown ids are left out."""
    rows = conn.execute(
        """
        SELECT s.id, s.dataset_id, s.document_id, s.position, s.content, s.title, s.heading, s.page,
               lower(s.span), upper(s.span), s.keywords, s.character_count, s.token_count,
               (SELECT coalesce(sum(hits), 0)::bigint FROM segment_hit h WHERE h.segment_id = s.id),
               s.hash, s.enabled, s.disabled_at, s.status, s.error, s.created_at, s.updated_at,
               s.indexed_at, s.completed_at
        FROM segment s WHERE s.id = ANY(%s)
        """,
        (possible_ids(segment_ids),),
    )
    found = {row[0]: _segment(row) for row in rows}
    return [found[segment_id] for segment_id in segment_ids if segment_id in found]


def owned(conn: Connection, account: str, segment_id: str) -> Segment:
    """Return the segment, or raise NotFound: the same for a foreign id as for an unknown one."""
    owners(conn, account, segment_id)
    found = read(conn, [segment_id])
    if not found:
        raise NotFound(f"no segment with id {segment_id!r}")
    return found[0]


def owners(conn: Connection, account: str, segment_id: str) -> tuple[str, str]:
    """Return the ids of a segment's document and dataset. Raises NotFound as `owned`."""
    row = conn.execute(
        """
        SELECT s.document_id, s.dataset_id FROM segment s JOIN dataset k ON k.id = s.dataset_id
        WHERE s.id = ANY(%s) AND k.account_id = %s
        """,
        (possible_ids([segment_id]), account),
    ).fetchone()
    if row is None:
        raise NotFound(f"no segment with id {segment_id!r}")
    return row[0], row[1]


# Edit: the caller holds the dataset's lock


@dataclass(frozen=True)
class Written:
    """A segment as an edit leaves it."""

    id: str
    dataset_id: str
    document_id: str
    position: int
    content: str
    title: str
    heading: str
    page: int | None
    start: int
    end: int
    keywords: list[str]
    token_count: int
    hash: str
    enabled: bool = True
    status: SegmentStatus = SegmentStatus.COMPLETED
    error: str | None = None


def insert_written(conn: Connection, segments: Sequence[Written]) -> None:
    """Add segments whose indexes are written in the same transaction."""
    columns = """
        COPY segment (id, dataset_id, document_id, position, content, title, heading, page, span,
                      keywords, character_count, token_count, hash, enabled, disabled_at, status,
                      error, indexed_at, completed_at) FROM STDIN
    """
    now = conn.execute("SELECT clock_timestamp()").fetchone()
    assert now is not None  # it has no WHERE
    with conn.cursor().copy(columns) as copy:
        for new in segments:
            done = now[0] if new.status is SegmentStatus.COMPLETED else None
            copy.write_row(
                (
                    new.id, new.dataset_id, new.document_id, new.position, new.content, new.title,
                    new.heading, new.page, Range(new.start, new.end), new.keywords,
                    len(new.content), new.token_count, new.hash, new.enabled,
                    None if new.enabled or not done else done, new.status.value, new.error, done,
                    done,
                )
            )  # fmt: skip


def rewrite(conn: Connection, new: Written) -> None:
    """Give a segment another text, title, place or keywords."""
    conn.execute(
        """
        UPDATE segment SET position = %s, content = %s, title = %s, heading = %s, page = %s,
            span = %s, keywords = %s, character_count = %s, token_count = %s, hash = %s,
            updated_at = clock_timestamp(), indexed_at = clock_timestamp()
        WHERE id = %s
        """,
        (
            new.position, new.content, new.title, new.heading, new.page,
            Range(new.start, new.end), new.keywords, len(new.content), new.token_count, new.hash,
            new.id,
        ),
    )  # fmt: skip


def place(conn: Connection, places: Sequence[tuple[str, int, int | None, int, int]]) -> None:
    """Move segments (id, position, page, start, end) that stay otherwise as they are."""
    conn.cursor().executemany(
        """
        UPDATE segment SET position = %s, page = %s, span = int4range(%s, %s)
        WHERE id = %s AND (position, coalesce(page, -1), span)
            IS DISTINCT FROM (%s, coalesce(%s::int, -1), int4range(%s, %s))
        """,
        [
            (position, page, start, end, segment_id, position, page, start, end)
            for segment_id, position, page, start, end in places
        ],
    )


def set_enabled(conn: Connection, segment_id: str, enabled: bool) -> None:
    """Switch a completed segment on or off."""
    conn.execute(
        """
        UPDATE segment SET enabled = %(on)s, updated_at = clock_timestamp(),
            disabled_at = CASE WHEN NOT %(on)s THEN clock_timestamp() END
        WHERE id = %(id)s
        """,
        {"on": enabled, "id": segment_id},
    )


def delete(conn: Connection, segment_ids: Sequence[str]) -> int:
    """Remove segments and return how many there were."""
    return conn.execute("DELETE FROM segment WHERE id = ANY(%s)", (list(segment_ids),)).rowcount


def last_position(conn: Connection, document_id: str) -> int:
    """Return the position of a document's last segment; 0 if it has none."""
    row = conn.execute(
        "SELECT coalesce(max(position), 0) FROM segment WHERE document_id = %s", (document_id,)
    ).fetchone()
    return int(row[0]) if row else 0


def make_room(conn: Connection, document_id: str, position: int) -> None:
    """Move the segment at a position, if there is one, and all behind it one further."""
    conn.execute(
        """
        UPDATE segment SET position = position + 1
        WHERE document_id = %(document)s AND position >= %(at)s
          AND EXISTS (SELECT FROM segment WHERE document_id = %(document)s AND position = %(at)s)
        """,
        {"document": document_id, "at": position},
    )


def title_in(conn: Connection, document_id: str) -> str | None:
    """Return the title that the segments of a document carry, or None if it has no segment."""
    row = conn.execute(
        "SELECT title FROM segment WHERE document_id = %s ORDER BY position LIMIT 1",
        (document_id,),
    ).fetchone()
    return row[0] if row else None


@dataclass(frozen=True)
class Count:
    """How many segments a document has, and how many of them are completed."""

    all: int
    completed: int


def counts(conn: Connection, document_ids: Sequence[str]) -> dict[str, Count]:
    """Return how many segments each of the documents has."""
    rows = conn.execute(
        """
        SELECT document_id, count(*), count(*) FILTER (WHERE status = 'completed')
        FROM segment WHERE document_id = ANY(%s) GROUP BY document_id
        """,
        (list(document_ids),),
    )
    found = {document_id: Count(total, completed) for document_id, total, completed in rows}
    return {document_id: found.get(document_id, Count(0, 0)) for document_id in document_ids}


def _segment(row: tuple[object, ...]) -> Segment:
    values = list(row)
    values[8] = values[8] or 0  # an empty range has no bounds
    values[9] = values[9] or 0
    values[17] = SegmentStatus(str(values[17]))
    return Segment(*values)  # type: ignore[arg-type]  # the SELECT lists the fields in order
