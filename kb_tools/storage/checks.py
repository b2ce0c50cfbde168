"""What must be true of the rows, and of the indexes that are functions of them; how it is repaired.

Each check is one statement, so it sees one moment: rows and indexes change in one transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import Connection, sql

EXAMPLES = 5


@dataclass(frozen=True)
class Check:
    """A kind of fault: `find` gives one text per fault of a dataset, `repair` mends them all.

    `repair` is None where the rows alone do not tell how.
    """

    kind: str
    find: LiteralString
    repair: LiteralString | None = None


@dataclass(frozen=True)
class Faults:
    """How many there are, and some of them."""

    count: int
    examples: list[str]


def find(conn: Connection, check: Check, dataset_id: str, examples: int = EXAMPLES) -> Faults:
    """Return the faults of one kind in a dataset, some of them by name."""
    statement = sql.SQL(
        """
        WITH fault (example) AS MATERIALIZED ({find})
        SELECT (SELECT count(*) FROM fault),
               ARRAY(SELECT example FROM fault ORDER BY example LIMIT %(examples)s)
        """
    ).format(find=sql.SQL(check.find))
    row = conn.execute(statement, {"dataset": dataset_id, "examples": examples}).fetchone()
    assert row is not None  # it has no FROM
    return Faults(*row)


def repair(conn: Connection, check: Check, dataset_id: str, tokenizer: str) -> None:
    """Mend all faults of one kind in a dataset; the caller holds its lock.

    `tokenizer` is the one in use.
    """
    assert check.repair is not None  # the caller asks first
    conn.execute(check.repair, {"dataset": dataset_id, "tokenizer": tokenizer})


def other_tokenizer(conn: Connection, dataset_id: str, present: str) -> str | None:
    """Return the tokenizer that built a dataset's full text, if it is not the present one."""
    row = conn.execute(
        "SELECT tokenizer FROM full_text_statistics WHERE dataset_id = %s AND tokenizer <> %s",
        (dataset_id, present),
    ).fetchone()
    return row[0] if row else None


def completed_after(conn: Connection, dataset_id: str, after: str, limit: int) -> list[str]:
    """Return ids of completed segments behind `after`, in order."""
    rows = conn.execute(
        """
        SELECT id FROM segment WHERE dataset_id = %s AND status = 'completed' AND id > %s
        ORDER BY id LIMIT %s
        """,
        (dataset_id, after, limit),
    )
    return [segment_id for (segment_id,) in rows]


def some_completed(conn: Connection, dataset_id: str, count: int) -> list[str]:
    """Return ids of so many completed segments, chosen by chance."""
    rows = conn.execute(
        """
        SELECT id FROM segment WHERE dataset_id = %s AND status = 'completed'
        ORDER BY random() LIMIT %s
        """,
        (dataset_id, count),
    )
    return [segment_id for (segment_id,) in rows]


def completed_among(conn: Connection, dataset_id: str, segment_ids: Sequence[str]) -> set[str]:
    """Return those ids that are completed segments of the dataset."""
    rows = conn.execute(
        "SELECT id FROM segment WHERE dataset_id = %s AND status = 'completed' AND id = ANY(%s)",
        (dataset_id, list(segment_ids)),
    )
    return {segment_id for (segment_id,) in rows}


def completed_count(conn: Connection, dataset_id: str) -> int:
    """Return how many completed segments a dataset has."""
    row = conn.execute(
        "SELECT count(*) FROM segment WHERE dataset_id = %s AND status = 'completed'",
        (dataset_id,),
    ).fetchone()
    return int(row[0]) if row else 0


def set_keywords(conn: Connection, segment_id: str, keywords: Sequence[str]) -> None:
    """Give a segment other keywords; the caller holds the dataset's lock and indexes it anew."""
    conn.execute("UPDATE segment SET keywords = %s WHERE id = %s", (list(keywords), segment_id))


def without_dataset(conn: Connection, dataset_ids: Sequence[str]) -> list[str]:
    """Return those ids that are no dataset of any account."""
    rows = conn.execute(
        "SELECT id FROM unnest(%s::text[]) AS id WHERE NOT EXISTS "
        "(SELECT FROM dataset k WHERE k.id = id.id)",
        (list(dataset_ids),),
    )
    return [dataset_id for (dataset_id,) in rows]


ROWS = (
    Check(
        "segment that names another dataset than its document",
        """
        SELECT s.id FROM segment s JOIN document d ON d.id = s.document_id
        WHERE d.dataset_id = %(dataset)s AND s.dataset_id <> d.dataset_id
        """,
        """
        UPDATE segment s SET dataset_id = d.dataset_id FROM document d
        WHERE d.id = s.document_id AND d.dataset_id = %(dataset)s AND s.dataset_id <> d.dataset_id
        """,
    ),
    Check(
        "document without its original bytes",
        """
        SELECT d.id FROM document d WHERE d.dataset_id = %(dataset)s
        AND NOT EXISTS (SELECT FROM document_file f WHERE f.document_id = d.id)
        """,
    ),
    Check(
        "character count of a segment",
        """
        SELECT id FROM segment
        WHERE dataset_id = %(dataset)s AND character_count <> char_length(content)
        """,
        """
        UPDATE segment SET character_count = char_length(content)
        WHERE dataset_id = %(dataset)s AND character_count <> char_length(content)
        """,
    ),
    Check(
        "hash of a segment's text",
        """
        SELECT id FROM segment WHERE dataset_id = %(dataset)s
        AND hash <> encode(sha256(convert_to(
            coalesce(coalesce(nullif(heading, ''), nullif(title, '')) || E'\\n', '') || content,
            'UTF8')), 'hex')
        """,
        """
        UPDATE segment s SET hash = "right".hash
        FROM (SELECT id, encode(sha256(convert_to(
                  coalesce(coalesce(nullif(heading, ''), nullif(title, '')) || E'\\n', '')
                  || content, 'UTF8')), 'hex') AS hash
              FROM segment WHERE dataset_id = %(dataset)s) "right"
        WHERE s.id = "right".id AND s.hash <> "right".hash
        """,
    ),
    Check(
        "totals of a document",
        """
        SELECT d.id FROM document d LEFT JOIN (
            SELECT document_id, sum(character_count) AS characters, sum(token_count) AS tokens
            FROM segment WHERE dataset_id = %(dataset)s GROUP BY document_id
        ) s ON s.document_id = d.id
        WHERE d.dataset_id = %(dataset)s AND d.status = 'completed'
          AND (d.character_count, d.token_count)
              <> (coalesce(s.characters, 0), coalesce(s.tokens, 0))
        """,
        """
        UPDATE document d SET character_count = s.characters, token_count = s.tokens
        FROM (SELECT o.id, coalesce(sum(g.character_count), 0) AS characters,
                     coalesce(sum(g.token_count), 0) AS tokens
              FROM document o LEFT JOIN segment g ON g.document_id = o.id
              WHERE o.dataset_id = %(dataset)s AND o.status = 'completed' GROUP BY o.id) s
        WHERE d.id = s.id AND (d.character_count, d.token_count) <> (s.characters, s.tokens)
        """,
    ),
    Check(
        "flag of a document",
        """
        SELECT id FROM document WHERE dataset_id = %(dataset)s AND status = 'completed'
        AND enabled = (disabled_at IS NOT NULL)
        """,
        """
        UPDATE document SET disabled_at = CASE WHEN NOT enabled THEN updated_at END
        WHERE dataset_id = %(dataset)s AND status = 'completed'
          AND enabled = (disabled_at IS NOT NULL)
        """,
    ),
    Check(
        "flag of a segment",
        """
        SELECT id FROM segment WHERE dataset_id = %(dataset)s AND status = 'completed'
        AND enabled = (disabled_at IS NOT NULL)
        """,
        """
        UPDATE segment SET disabled_at = CASE WHEN NOT enabled THEN updated_at END
        WHERE dataset_id = %(dataset)s AND status = 'completed'
          AND enabled = (disabled_at IS NOT NULL)
        """,
    ),
    Check(
        "segment that waits in a document that failed",
        """
        SELECT s.id FROM segment s JOIN document d ON d.id = s.document_id
        WHERE s.dataset_id = %(dataset)s AND s.status IN ('waiting', 'indexing')
          AND d.status = 'error'
        """,
        """
        UPDATE segment s SET status = 'error', error = 'its document failed'
        FROM document d WHERE d.id = s.document_id AND s.dataset_id = %(dataset)s
          AND s.status IN ('waiting', 'indexing') AND d.status = 'error'
        """,
    ),
)

WAITING = Check(
    "segment that nobody indexes",
    """
    SELECT s.id FROM segment s JOIN document d ON d.id = s.document_id
    WHERE s.dataset_id = %(dataset)s AND s.status IN ('waiting', 'indexing')
      AND d.status = 'completed'
    """,
)

FULL_TEXT = (
    Check(
        "terms of a segment that is not completed, or not of this dataset",
        """
        SELECT f.segment_id FROM full_text_segment f JOIN segment s ON s.id = f.segment_id
        WHERE f.dataset_id = %(dataset)s
          AND (s.status <> 'completed' OR s.dataset_id <> f.dataset_id)
        """,
        """
        DELETE FROM full_text_segment f USING segment s
        WHERE s.id = f.segment_id AND f.dataset_id = %(dataset)s
          AND (s.status <> 'completed' OR s.dataset_id <> f.dataset_id)
        """,
    ),
)

WITHOUT_TERMS = Check(
    "segment without terms",
    """
    SELECT s.id FROM segment s WHERE s.dataset_id = %(dataset)s AND s.status = 'completed'
    AND NOT EXISTS (SELECT FROM full_text_segment f WHERE f.segment_id = s.id)
    """,
)

COUNTS = (
    Check(
        "document frequency of a term",
        """
        SELECT t.term FROM full_text_term t LEFT JOIN (
            SELECT term_id, count(*) AS df FROM full_text_segment f, unnest(f.terms) AS term_id
            WHERE f.dataset_id = %(dataset)s GROUP BY term_id
        ) held ON held.term_id = t.id
        WHERE t.dataset_id = %(dataset)s AND t.df <> coalesce(held.df, 0)
        """,
        """
        UPDATE full_text_term t SET df = coalesce(held.df, 0)
        FROM full_text_term o LEFT JOIN (
            SELECT term_id, count(*) AS df FROM full_text_segment f, unnest(f.terms) AS term_id
            WHERE f.dataset_id = %(dataset)s GROUP BY term_id
        ) held ON held.term_id = o.id
        WHERE o.id = t.id AND t.dataset_id = %(dataset)s AND t.df <> coalesce(held.df, 0)
        """,
    ),
    Check(
        "count or length of the full-text index",
        """
        SELECT format('%%s segments, length %%s; counted: %%s, %%s', held.segments, held.length,
                      coalesce(s.segments, 0), coalesce(s.length, 0))
        FROM (SELECT count(*) AS segments, coalesce(sum(length::float8), 0) AS length
              FROM full_text_segment WHERE dataset_id = %(dataset)s) held
        LEFT JOIN full_text_statistics s ON s.dataset_id = %(dataset)s
        WHERE held.segments <> coalesce(s.segments, 0)
           OR abs(held.length - coalesce(s.length, 0)) > 0.5
        """,
        """
        INSERT INTO full_text_statistics (dataset_id, segments, length, tokenizer)
        SELECT %(dataset)s, count(*), coalesce(sum(length::float8), 0), %(tokenizer)s
        FROM full_text_segment WHERE dataset_id = %(dataset)s
        ON CONFLICT (dataset_id) DO UPDATE
        SET segments = excluded.segments, length = excluded.length
        """,
    ),
)
