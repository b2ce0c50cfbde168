"""The full-text index: BM25 over packed rows, exact for every candidate it looks at.

A segment is one row: ids of its terms and their counts. A search reads the rows that hold the
rarest terms of the question, or two of the next ones, and scores all its terms on them, so a
frequent word costs little; a bound on what any other row could score tells how much is proven.
Counts are kept by triggers. Whoever writes holds the dataset's lock.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import Connection, sql

from kb_tools.errors import InvalidState
from kb_tools.text.synonyms import Synonym
from kb_tools.text.terms import SegmentTerms
from kb_tools.text.tokenize import Tokenizer

K1, B = 1.2, 0.75  # Robertson and Zaragoza 2009
ENOUGH, CANDIDATES = 500, 5_000  # segments that rare terms name; with pairs of others, at most
PAIRED = 5
WIDER = 8
MAX_QUERY_TERMS = 256
MAX_COUNT = 0xFFFF
ROWS_OF_A_PART = 100_000  # they leave the server as one value


@dataclass(frozen=True)
class Found:
    """Visible segments with their BM25, best first, ties by id.

    `maximum` is the most that any segment could score. The first `proven` hits are certainly the
    best of all; `terms` of the question are in the index, `candidates` segments were scored.
    """

    hits: list[tuple[str, float]]
    maximum: float
    proven: int
    terms: int
    candidates: int


@dataclass(frozen=True)
class _Term:
    """A term of the question: its weight, and its id in each dataset that knows it."""

    df: int
    weight: float  # the most it can add to a score
    ids: tuple[int, ...]


@dataclass(frozen=True)
class _Other:
    """Another wording of some terms of the question (their places), in one dataset.

    Where all its terms stand, each of those counts as often as the rarest of them.
    """

    places: list[int]
    terms: tuple[str, ...]
    ids: tuple[int, ...]
    dfs: tuple[int, ...]

    @property
    def df(self) -> int:
        """Return the most segments that can hold all its terms."""
        return min(self.dfs)

    def rarest(self, weight: float) -> _Term:
        """Return the term without which it stands nowhere."""
        return _Term(self.df, weight, (self.ids[self.dfs.index(self.df)],))


@dataclass(frozen=True)
class _Question:
    """What is scored: terms, other wordings of them; `held` are those that segments hold."""

    terms: list[_Term]
    segments: int
    mean_length: float
    held: list[_Term]
    others: list[_Other]

    @property
    def maximum(self) -> float:
        return _weight(self.terms)

    def known(self) -> list[_Term]:
        """Return the terms that some segment holds, rarest first.

        Their weights bound a score: added occurrences raise it no more than they would apart.
        """
        return sorted((term for term in self.held if term.df), key=lambda term: term.df)


@dataclass(frozen=True)
class _Rows:
    """Rows of the index, unpacked: `terms` and `counts` of all of them one behind the other."""

    ids: list[str]
    lengths: NDArray[np.float64]
    sizes: NDArray[np.int64]
    terms: NDArray[np.int32]
    counts: NDArray[np.uint16]

    def __add__(self, other: "_Rows") -> "_Rows":
        return _Rows(
            self.ids + other.ids,
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.sizes, other.sizes]),
            np.concatenate([self.terms, other.terms]),
            np.concatenate([self.counts, other.counts]),
        )


@dataclass(frozen=True)
class _Plan:
    """What to read: all segments that hold one of `whole`, or both terms of one of `pairs`.

    If they do not fill the pool, also the best of those that hold the next rarest term, the first
    of `left_out`; the others are only scored.
    """

    whole: Sequence[_Term]
    pairs: Sequence[tuple[_Term, _Term]]
    left_out: Sequence[_Term]
    pool: int
    limit: int
    visible_only: bool

    @property
    def bound(self) -> float:
        """Return the most that a segment can score that holds no whole term and no pair."""
        paired = list(dict.fromkeys(term for pair in self.pairs for term in pair))
        alone = _weight([term for term in self.left_out if term not in paired])
        some = (chosen for size in range(len(paired) + 1) for chosen in combinations(paired, size))
        return alone + max(
            _weight(chosen)
            for chosen in some
            if not any(one in chosen and other in chosen for one, other in self.pairs)
        )


def write(
    conn: Connection,
    dataset_id: str,
    tokenizer: Tokenizer,
    segments: Sequence[tuple[str, SegmentTerms]],
) -> None:
    """Index segments (id, terms) that `tokenizer` cut, in place of what the index had for them.

    Raises InvalidState if the dataset's index was built by another tokenizer.
    """
    conn.execute(
        "INSERT INTO full_text_statistics (dataset_id, tokenizer) VALUES (%s, %s) "
        "ON CONFLICT DO NOTHING",
        (dataset_id, tokenizer.name),
    )
    require_tokenizers(conn, {dataset_id: tokenizer})
    ids = _term_ids(
        conn, dataset_id, sorted({term for _, segment in segments for term in segment.counts})
    )
    if len(segments) == 1 and _rewritten(conn, dataset_id, ids, *segments[0]):
        return
    remove(conn, dataset_id, [segment_id for segment_id, _ in segments])
    columns = "COPY full_text_segment (segment_id, dataset_id, length, terms, packed) FROM STDIN"
    with conn.cursor().copy(columns) as copy:
        for segment_id, segment in segments:
            terms = [ids[term] for term in segment.counts]
            packed = _packed(terms, list(segment.counts.values()))
            copy.write_row((segment_id, dataset_id, segment.length, terms, packed))


def _rewritten(
    conn: Connection, dataset_id: str, ids: Mapping[str, int], segment_id: str, new: SegmentTerms
) -> bool:
    """Write a segment over its row, so that only what differs is counted; False if it has none."""
    terms = [ids[term] for term in new.counts]
    done = conn.execute(
        """
        UPDATE full_text_segment SET length = %s, terms = %s, packed = %s
        WHERE dataset_id = %s AND segment_id = %s
        """,
        (new.length, terms, _packed(terms, list(new.counts.values())), dataset_id, segment_id),
    )
    return done.rowcount == 1


def stored_terms(conn: Connection, segment_ids: Sequence[str]) -> dict[str, SegmentTerms]:
    """Return what the index holds of segments, for comparison with what it should hold.

    Segments without a row are left out; a count above 65,535 is 65,535. Where a row contradicts
    itself, it has no terms and the length -1.
    """
    found = (
        conn.cursor(binary=True)
        .execute(
            """
        SELECT segment_id, length, packed, terms FROM full_text_segment
        WHERE segment_id = ANY(%s)
        """,
            (list(segment_ids),),
        )
        .fetchall()
    )
    ids = list({term_id for row in found for term_id in row[3]})
    rows = conn.execute("SELECT id, term FROM full_text_term WHERE id = ANY(%s)", (ids,))
    named: dict[int, str] = dict(rows.fetchall())
    return {row[0]: _stored(row, named) for row in found}


def _stored(row: tuple[Any, ...], named: Mapping[int, str]) -> SegmentTerms:
    if len(row[2]) % 6:
        return SegmentTerms({}, -1)
    unpacked = _unpacked([row])
    ids = unpacked.terms.tolist()
    if ids != row[3] or not set(ids) <= set(named):
        return SegmentTerms({}, -1)
    counts = dict(zip((named[i] for i in ids), unpacked.counts.tolist(), strict=True))
    return SegmentTerms(counts, row[1])


def remove(conn: Connection, dataset_id: str, segment_ids: Sequence[str]) -> None:
    """Take segments out of the index; deleting their rows of `segment` does it too."""
    conn.execute(
        "DELETE FROM full_text_segment WHERE dataset_id = %s AND segment_id = ANY(%s)",
        (dataset_id, list(segment_ids)),
    )


def remove_documents(conn: Connection, document_ids: Sequence[str]) -> None:
    """Take all segments of documents out of the index.

    To do so before their rows go is faster: a cascade would count the terms segment by segment.
    """
    conn.execute(
        """
        DELETE FROM full_text_segment f USING segment s
        WHERE s.document_id = ANY(%s) AND f.segment_id = s.id
        """,
        (list(document_ids),),
    )


def clear(conn: Connection, dataset_id: str) -> None:
    """Drop the index of a dataset: before it is rebuilt, or deleted."""
    # The statistics go first: without them the triggers do not count down term by term.
    conn.execute("DELETE FROM full_text_statistics WHERE dataset_id = %s", (dataset_id,))
    conn.execute("DELETE FROM full_text_segment WHERE dataset_id = %s", (dataset_id,))
    conn.execute("DELETE FROM full_text_term WHERE dataset_id = %s", (dataset_id,))


def search(
    conn: Connection,
    dataset_ids: Sequence[str],
    terms: Sequence[str],
    pool: int,
    synonyms: Mapping[str, Sequence[Synonym]] = MappingProxyType({}),
) -> Found:
    """Return the `pool` best visible segments for the terms of a question.

    `synonyms` (by dataset) tell what else counts as some of them: its occurrences are added to
    theirs, and their document frequency is the larger one, as in Lucene's SynonymQuery.

    However many disabled segments rank above them, as many visible ones are returned as there
    are. Document frequencies, count and mean length are those of all the datasets together. The
    terms must be those of the tokenizer that built the indexes: see `require_tokenizers`.
    """
    question = _question(conn, dataset_ids, terms, synonyms)
    factor = 1
    while True:
        plan = _plan(question, pool, factor)
        rows, bound = _read(conn, plan, question.mean_length)
        ranked = _visible_head(conn, rows.ids, _score(rows, question), pool)
        hits = [hit for hit in ranked if hit[1]]  # 0: a part of another wording alone
        if len(hits) >= pool or not bound:
            break
        factor *= WIDER
    proven = sum(score > bound for _, score in hits)
    known = sum(term.df > 0 for term in question.terms)
    return Found(hits, question.maximum, proven, known, len(rows.ids))


def scores(
    conn: Connection,
    dataset_ids: Sequence[str],
    terms: Sequence[str],
    segment_ids: Sequence[str],
    synonyms: Mapping[str, Sequence[Synonym]] = MappingProxyType({}),
) -> dict[str, float]:
    """Return the BM25 of given segments, as `search` computes it; 0 where no term occurs.

    Segments that are not in the index are left out.
    """
    question = _question(conn, dataset_ids, terms, synonyms)
    found = conn.cursor(binary=True).execute(
        """
        SELECT segment_id, length, packed FROM full_text_segment
        WHERE segment_id = ANY(%s) AND dataset_id = ANY(%s)
        """,
        (list(segment_ids), list(dataset_ids)),
    )
    rows = _unpacked(found.fetchall())
    return dict(zip(rows.ids, _score(rows, question).tolist(), strict=True))


def texts(conn: Connection, segment_ids: Sequence[str]) -> dict[str, str]:
    """Return the indexed text of segments: title or heading path, newline, content."""
    rows = conn.cursor(binary=True).execute(
        """
        SELECT id, coalesce(nullif(heading, ''), title) || E'\n' || content
        FROM segment WHERE id = ANY(%s)
        """,
        (list(segment_ids),),
    )
    return dict(rows.fetchall())


def require_tokenizers(conn: Connection, tokenizers: Mapping[str, Tokenizer]) -> None:
    """Raise InvalidState if a dataset's index was built by another tokenizer than now is its own.

    An index never mixes two, and is never asked with another one.
    """
    other = conn.execute(
        """
        SELECT k.name, s.tokenizer, now.tokenizer
        FROM unnest(%s::text[], %s::text[]) AS now(dataset_id, tokenizer)
        JOIN full_text_statistics s USING (dataset_id) JOIN dataset k ON k.id = s.dataset_id
        WHERE s.tokenizer <> now.tokenizer ORDER BY k.name LIMIT 1
        """,
        (list(tokenizers), [tokenizer.name for tokenizer in tokenizers.values()]),
    ).fetchone()
    if other:
        raise InvalidState(
            f"the full-text index of dataset {other[0]!r} was built by {other[1]}, "
            f"now {other[2]} is in use; run: kb dataset reindex NAME"
        )


def tokenizer_name(conn: Connection, dataset_id: str) -> str | None:
    """Return the name of the tokenizer that built a dataset's index; None if it has none yet."""
    row = conn.execute(
        "SELECT tokenizer FROM full_text_statistics WHERE dataset_id = %s", (dataset_id,)
    ).fetchone()
    return row[0] if row else None


def _term_ids(conn: Connection, dataset_id: str, terms: list[str]) -> dict[str, int]:
    known = _known_ids(conn, dataset_id, terms)
    # Only the missing ones: a conflict would use up an id for every known term.
    missing = [term for term in terms if term not in known]
    if not missing:
        return known
    conn.execute(
        """
        INSERT INTO full_text_term (dataset_id, term)
        SELECT %s, term FROM unnest(%s::text[]) AS term ORDER BY term ON CONFLICT DO NOTHING
        """,
        (dataset_id, missing),
    )
    return known | _known_ids(conn, dataset_id, missing)


def _known_ids(conn: Connection, dataset_id: str, terms: list[str]) -> dict[str, int]:
    rows = conn.cursor(binary=True).execute(
        "SELECT term, id FROM full_text_term WHERE dataset_id = %s AND term = ANY(%s)",
        (dataset_id, terms),
    )
    return dict(rows.fetchall())


def _question(
    conn: Connection,
    dataset_ids: Sequence[str],
    terms: Sequence[str],
    synonyms: Mapping[str, Sequence[Synonym]],
) -> _Question:
    asked = list(dict.fromkeys(terms))[:MAX_QUERY_TERMS]
    statistics = conn.execute(
        """
        SELECT coalesce(sum(segments), 0)::bigint, coalesce(sum(length), 0)
        FROM full_text_statistics WHERE dataset_id = ANY(%s)
        """,
        (list(dataset_ids),),
    ).fetchone()
    segments, length = statistics or (0, 0.0)
    found = conn.execute(
        """
        SELECT term, sum(df)::bigint, array_agg(id) FROM full_text_term
        WHERE dataset_id = ANY(%s) AND term = ANY(%s) GROUP BY term
        """,
        (list(dataset_ids), asked),
    )
    known = {term: (df, tuple(ids)) for term, df, ids in found}
    others = _others(conn, asked, synonyms) if synonyms else []
    larger = _larger_df(others)
    weighed = []
    for place, (df, ids) in enumerate(known.get(term, (0, ())) for term in asked):
        df_of_all = max(df, larger.get(place, 0))
        weighed.append((df, _Term(df_of_all, _idf(segments, df_of_all) * (K1 + 1), ids)))
    scored = [term for _, term in weighed]
    held = [replace(term, df=df) for df, term in weighed]
    held += [other.rarest(sum(scored[place].weight for place in other.places)) for other in others]
    return _Question(scored, segments, max(length / max(segments, 1), 1.0), held, others)


def _others(
    conn: Connection, asked: Sequence[str], synonyms: Mapping[str, Sequence[Synonym]]
) -> list[_Other]:
    """Return the other wordings of terms that are asked, if some segment may hold them."""
    wanted = {(i, term) for i, some in synonyms.items() for s in some for term in s.other_terms}
    rows = conn.execute(
        """
        SELECT t.dataset_id, t.term, t.id, t.df
        FROM unnest(%s::text[], %s::text[]) AS wanted(dataset_id, term)
        JOIN full_text_term t USING (dataset_id, term) WHERE t.df > 0
        """,
        ([dataset_id for dataset_id, _ in wanted], [term for _, term in wanted]),
    )
    known = {(dataset_id, term): (term_id, df) for dataset_id, term, term_id, df in rows}
    others = []
    for (dataset_id, terms), places in _places(asked, synonyms).items():
        found = [known[dataset_id, term] for term in terms if (dataset_id, term) in known]
        if len(found) == len(terms):
            ids, dfs = zip(*found, strict=True)
            others.append(_Other(sorted(places), terms, ids, dfs))
    return others


def _places(
    asked: Sequence[str], synonyms: Mapping[str, Sequence[Synonym]]
) -> dict[tuple[str, tuple[str, ...]], set[int]]:
    """Return (dataset, terms of another wording) -> places of the asked terms it stands for.

    It counts once for each, however many wordings of its group are asked.
    """
    place_of = {term: place for place, term in enumerate(asked)}
    places: dict[tuple[str, tuple[str, ...]], set[int]] = {}
    for dataset_id, some in synonyms.items():
        for synonym in some:
            terms = tuple(sorted(set(synonym.other_terms)))
            stands_for = {place_of[term] for term in synonym.terms if term in place_of}
            if terms and stands_for:
                places.setdefault((dataset_id, terms), set()).update(stands_for)
    return places


def _larger_df(others: Sequence[_Other]) -> dict[int, int]:
    """Return place -> the largest document frequency of another wording, over all datasets."""
    pooled: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for other in others:
        for place in other.places:
            pooled[place, other.terms] += other.df
    larger: dict[int, int] = {}
    for (place, _), df in pooled.items():
        larger[place] = max(df, larger.get(place, 0))
    return larger


def terms_holding(
    conn: Connection, dataset_ids: Sequence[str], signs: Sequence[str], limit: int = 50
) -> list[str]:
    """Return the `limit` commonest terms that hold one of the ideographs."""
    rows = conn.execute(
        """
        SELECT term FROM full_text_term
        WHERE dataset_id = ANY(%s) AND df > 0
          AND EXISTS (SELECT FROM unnest(%s::text[]) AS sign WHERE strpos(term, sign) > 0)
        GROUP BY term ORDER BY sum(df) DESC, term LIMIT %s
        """,
        (list(dataset_ids), list(signs), limit),
    )
    return [term for (term,) in rows]


def _idf(segments: int, df: int) -> float:
    return math.log(1 + (segments - df + 0.5) / (df + 0.5))


def _weight(terms: Sequence[_Term]) -> float:
    return sum(term.weight for term in terms)


def _plan(question: _Question, pool: int, factor: int) -> _Plan:
    """Return the plan to read the rarest terms until they hold enough, and pairs of the next ones.

    What scores high holds a rare term, or several of those that are not. With a factor it is a
    second look for visible segments, after the first found too few.
    """
    known = question.known()
    enough, most = ENOUGH * factor, CANDIDATES * factor
    total = count = 0
    while count < len(known) and total < enough and total + known[count].df <= most:
        total += known[count].df
        count += 1
    pairs = []
    for one, other in combinations(known[count : count + PAIRED], 2):
        total += one.df * other.df // max(question.segments, 1)  # as if they were independent
        if total > most:
            break
        pairs.append((one, other))
    return _Plan(known[:count], pairs, known[count:], pool, most, visible_only=factor > 1)


def _read(conn: Connection, plan: _Plan, mean_length: float) -> tuple[_Rows, float]:
    """Return the rows of a plan and the most that any other row could score; 0: there is none."""
    found = _holding(conn, plan) if plan.whole or plan.pairs else _unpacked([])
    if len(found.ids) >= plan.pool or not plan.left_out:
        return found, plan.bound
    best = _best_holding(conn, plan, mean_length)
    bound = _weight(plan.left_out[1:])
    if len(best) == plan.limit:
        bound += plan.left_out[0].weight * float(best[-1][3])
    known = set(found.ids)
    return found + _unpacked([row for row in best if row[0] not in known]), bound


def _prefer_the_index(conn: Connection) -> None:
    """Keep the planner from reading the whole table: it takes `&&` of long arrays to be cheap.

    And from sorting wide rows for the sake of one group.
    """
    conn.execute(
        "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)"
    )


def _holding(conn: Connection, plan: _Plan) -> _Rows:
    _prefer_the_index(conn)
    # A few long values take half the time of thousands of rows; none may reach 1 GB.
    statement = sql.SQL(
        """
        SELECT string_agg(f.segment_id, ','), string_agg(float4send(f.length), ''::bytea),
               string_agg(int4send(cardinality(f.terms)), ''::bytea),
               string_agg(f.packed, ''::bytea)
        FROM full_text_segment f
        WHERE (f.terms && %s::int[] {or_pairs}) AND (NOT %s OR EXISTS (
            SELECT FROM segment s JOIN document d ON d.id = s.document_id
            WHERE s.id = f.segment_id AND s.enabled AND d.enabled))
        GROUP BY hashtext(f.segment_id) %% %s
        """
    ).format(or_pairs=sql.SQL("").join([_OR_PAIR] * len(plan.pairs)))
    pairs = [_ids([term]) for pair in plan.pairs for term in pair]
    values = (_ids(plan.whole), *pairs, plan.visible_only, 1 + plan.limit // ROWS_OF_A_PART)
    return _of_parts(conn.cursor(binary=True).execute(statement, values).fetchall())


_OR_PAIR = sql.SQL("OR f.terms && %s::int[] AND f.terms && %s::int[] ")


def _best_holding(conn: Connection, plan: _Plan, mean_length: float) -> list[tuple[Any, ...]]:
    """Return the rows where the next term alone counts most, with its share of its weight there."""
    # Sorted first and read then: whole rows are ten times as wide as what they are sorted by.
    rows = conn.cursor(binary=True).execute(
        """
        SELECT f.segment_id, f.length, f.packed, best.share
        FROM (
            SELECT f.segment_id,
                   c.count / (c.count + %(k1)s * (1 - %(b)s + %(b)s * f.length / %(mean)s)) AS share
            FROM unnest(%(ids)s::int[]) AS term_id
            JOIN full_text_segment f ON f.terms @> ARRAY[term_id],
            LATERAL (SELECT 4 * cardinality(f.terms) + 2 * array_position(f.terms, term_id) - 2)
                AS p(at),
            LATERAL (SELECT get_byte(f.packed, at) + 256 * get_byte(f.packed, at + 1)::float8)
                AS c(count)
            WHERE NOT %(visible_only)s OR EXISTS (
                SELECT FROM segment s JOIN document d ON d.id = s.document_id
                WHERE s.id = f.segment_id AND s.enabled AND d.enabled)
            ORDER BY share DESC, f.segment_id LIMIT %(limit)s
        ) AS best JOIN full_text_segment f USING (segment_id)
        ORDER BY best.share DESC, f.segment_id
        """,
        {
            "ids": list(plan.left_out[0].ids),
            "k1": K1,
            "b": B,
            "mean": mean_length,
            "visible_only": plan.visible_only,
            "limit": plan.limit,
        },
    )
    return rows.fetchall()


def _ids(terms: Sequence[_Term]) -> list[int]:
    return [term_id for term in terms for term_id in term.ids]


def _packed(terms: Sequence[int], counts: Sequence[int]) -> bytes:
    fitting = np.minimum(np.array(counts, np.int64), MAX_COUNT)
    return np.array(terms, "<i4").tobytes() + fitting.astype("<u2").tobytes()


def _unpacked(rows: Sequence[tuple[Any, ...]]) -> _Rows:
    """Return rows (segment id, length, packed, ...) of the index unpacked."""
    if not rows:
        return _of_parts([])
    ids, lengths, packed = list(zip(*rows, strict=True))[:3]
    sizes = np.array([len(entry) // 6 for entry in packed], ">i4")
    part = (",".join(ids), np.array(lengths, ">f4").tobytes(), sizes.tobytes(), b"".join(packed))
    return _of_parts([part])


def _of_parts(parts: Sequence[tuple[str, bytes, bytes, bytes]]) -> _Rows:
    """Return what the server sent in parts: ids with commas, lengths, sizes and packed rows."""
    ids, lengths, sizes_of, packed_of = zip(*parts, strict=True) if parts else ((), (), (), ())
    sizes = np.frombuffer(b"".join(sizes_of), ">i4").astype(np.int64)
    # A row is its terms, two uint16 each, and then as many counts.
    packed = np.frombuffer(b"".join(packed_of), "<u2")
    of_a_term = np.repeat(np.tile([True, False], len(sizes)), np.outer(sizes, [2, 1]).ravel())
    return _Rows(
        [segment_id for part in ids for segment_id in part.split(",")],
        np.frombuffer(b"".join(lengths), ">f4").astype(np.float64),
        sizes,
        packed[of_a_term].view("<i4"),
        packed[~of_a_term],
    )


def _score(rows: _Rows, question: _Question) -> NDArray[np.float64]:
    occurrences = _occurrences(rows, question.terms)
    if question.others:
        _add_others(occurrences, rows, question.others)
    weights = np.array([term.weight for term in question.terms])
    norm = K1 * (1 - B + B * rows.lengths / question.mean_length)
    # Not a matrix product: its rounding depends on a row's place, and equal texts must tie.
    score: NDArray[np.float64] = (occurrences / (occurrences + norm[:, None]) * weights).sum(axis=1)
    return score


def _add_others(occurrences: NDArray[np.float64], rows: _Rows, others: Sequence[_Other]) -> None:
    """Count, in place, each other wording as the terms that it stands for."""
    column_of = {i: at for at, i in enumerate(sorted({i for other in others for i in other.ids}))}
    table = _occurrences(rows, [_Term(0, 0.0, (term_id,)) for term_id in column_of])
    for other in others:
        columns = [column_of[term_id] for term_id in other.ids]
        occurrences[:, other.places] += table[:, columns].min(axis=1, keepdims=True)


def _occurrences(rows: _Rows, terms: Sequence[_Term]) -> NDArray[np.float64]:
    """Return how often each term occurs in each row: (rows, terms) float64."""
    table = np.zeros((len(rows.ids), len(terms)))
    column_of = sorted((term_id, at) for at, term in enumerate(terms) for term_id in term.ids)
    if not column_of:
        return table
    term_ids, columns = np.array(column_of, np.int32).T
    # Most entries are other words: their low bits tell, before any of them is looked up.
    asked = np.zeros(1 << 16, np.bool_)
    asked[term_ids & 0xFFFF] = True
    places = np.flatnonzero(asked[rows.terms & 0xFFFF])
    at = np.minimum(np.searchsorted(term_ids, rows.terms[places]), len(term_ids) - 1)
    equal = term_ids[at] == rows.terms[places]
    places, at = places[equal], at[equal]
    owners = np.searchsorted(np.cumsum(rows.sizes), places, side="right")
    table[owners, columns[at]] = rows.counts[places]
    return table


def _visible_head(
    conn: Connection, ids: Sequence[str], score: NDArray[np.float64], pool: int
) -> list[tuple[str, float]]:
    """Return the `pool` best that a user may see, best first, ties by id."""
    count = pool
    while True:
        ranked = _best(ids, score, count)
        rows = conn.cursor(binary=True).execute(
            """
            SELECT s.id FROM segment s JOIN document d ON d.id = s.document_id
            WHERE s.id = ANY(%s) AND s.enabled AND d.enabled
            """,
            ([segment_id for segment_id, _ in ranked],),
        )
        seen = {segment_id for (segment_id,) in rows}
        visible = [hit for hit in ranked if hit[0] in seen]
        if len(visible) >= pool or len(ranked) == len(ids):
            return visible[:pool]
        count = 4 * len(ranked)


def _best(ids: Sequence[str], score: NDArray[np.float64], count: int) -> list[tuple[str, float]]:
    """Return the `count` best and those that tie with the last of them, best first, ties by id."""
    if count < len(ids):
        places = np.flatnonzero(score >= np.partition(score, -count)[-count]).tolist()
    else:
        places = list(range(len(ids)))
    head = ((ids[place], float(score[place])) for place in places)
    return sorted(head, key=lambda hit: (-hit[1], hit[0]))
