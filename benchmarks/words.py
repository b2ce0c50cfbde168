"""The same passages as other full-text searches hold them: exact BM25, its libraries, bare SQL."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from psycopg import Connection
from psycopg.types.json import Jsonb

from benchmarks.corpus import Corpus

K1, B = 1.2, 0.75
KEYWORDS = 10


@dataclass(frozen=True)
class Words:
    """How often each term occurs in each passage: (passages, terms), and lengths in words."""

    counts: sparse.csr_matrix
    lengths: np.ndarray
    terms: dict[str, int]

    @classmethod
    def of(cls, corpus: Corpus, size: int) -> "Words":
        terms: dict[str, int] = {}
        columns, counts, ends, lengths = [], [], [0], []
        for passage in corpus.passages(size):
            row = [terms.setdefault(term, len(terms)) for term in passage.terms.counts]
            columns.append(np.array(row, np.int32))
            counts.append(np.fromiter(passage.terms.counts.values(), np.float32))
            ends.append(ends[-1] + len(columns[-1]))
            lengths.append(passage.terms.length)
        parts = (np.concatenate(counts), np.concatenate(columns), np.array(ends))
        matrix = sparse.csr_matrix(parts, shape=(size, len(terms)))
        return cls(matrix, np.array(lengths, np.float64), terms)

    def tokens(self, passage: int) -> list[int]:
        """Return the terms of a passage as often as they occur, as numbers."""
        row = slice(*self.counts.indptr[passage : passage + 2])
        return np.repeat(self.counts.indices[row], self.counts.data[row].astype(int)).tolist()

    def known(self, terms: Sequence[str]) -> list[int]:
        return [self.terms[term] for term in terms if term in self.terms]


class Exact:
    """BM25 of every passage by the formula of the index."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._by_term = words.counts.tocsc()
        self._norm = K1 * (1 - B + B * words.lengths / words.lengths.mean())

    def scores(self, terms: Sequence[str]) -> np.ndarray:
        size = len(self._norm)
        total = np.zeros(size)
        for term in self._words.known(terms):
            places = slice(*self._by_term.indptr[term : term + 2])
            passages, count = self._by_term.indices[places], self._by_term.data[places]
            idf = np.log(1 + (size - len(passages) + 0.5) / (len(passages) + 0.5))
            total[passages] += idf * (K1 + 1) * count / (count + self._norm[passages])
        return total


class LangChainBM25:
    """LangChain's BM25Retriever, which is rank_bm25 in memory."""

    def __init__(self, words: Words, k: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package says at import that it is archived
            from langchain_community.retrievers import BM25Retriever  # noqa: TID251
        self._words = words
        numbers = [str(number) for number in range(words.counts.shape[0])]
        self._retriever = BM25Retriever.from_texts(
            numbers, k=k, preprocess_func=lambda number: words.tokens(int(number))
        )
        self._retriever.preprocess_func = lambda text: words.known(text.split(" "))

    def search(self, terms: Sequence[str]) -> list[int]:
        return [int(found.page_content) for found in self._retriever.invoke(" ".join(terms))]


class BM25S:
    """bm25s: scores computed beforehand, static, in memory."""

    def __init__(self, words: Words, k: int) -> None:
        import bm25s

        self._words, self._k = words, k
        self._index = bm25s.BM25(method="lucene", k1=K1, b=B)
        corpus = [words.tokens(passage) for passage in range(words.counts.shape[0])]
        vocabulary = {str(number): number for number in range(len(words.terms))}
        self._index.index((corpus, vocabulary), show_progress=False)

    def search(self, terms: Sequence[str]) -> list[int]:
        asked = [[str(term) for term in self._words.known(terms)]]
        found, _ = self._index.retrieve(asked, k=self._k, show_progress=False)
        return found[0].tolist()


class TextSearch:
    """PostgreSQL's own: a tsvector of the same terms under GIN, any of them, ranked by ts_rank."""

    def __init__(self, conn: Connection, words: Words) -> None:
        self._words = words
        conn.execute("CREATE UNLOGGED TABLE peer_text (id int PRIMARY KEY, words tsvector)")
        with conn.cursor().copy("COPY peer_text (id, words) FROM STDIN") as copy:
            for passage in range(words.counts.shape[0]):
                copy.write_row((passage, " ".join(f"t{t}" for t in words.tokens(passage))))
        conn.execute("CREATE INDEX ON peer_text USING gin (words)")
        conn.execute("ANALYZE peer_text")

    def search(self, conn: Connection, terms: Sequence[str], k: int) -> list[int]:
        asked = " | ".join(f"t{term}" for term in self._words.known(terms))
        rows = conn.execute(
            "SELECT id FROM peer_text, to_tsquery('simple', %s) AS asked WHERE words @@ asked "
            "ORDER BY ts_rank(words, asked) DESC LIMIT %s",
            (asked, k),
        )
        return [found for (found,) in rows]


class KeywordTable:
    """One JSONB object per dataset, keyword to passages: ten keywords each, matches counted."""

    def __init__(self, conn: Connection, words: Words) -> None:
        self._words = words
        df = np.bincount(words.counts.indices, minlength=len(words.terms))
        table: dict[str, list[int]] = {}
        for passage in range(words.counts.shape[0]):
            row = slice(*words.counts.indptr[passage : passage + 2])
            terms = words.counts.indices[row]
            weight = words.counts.data[row] / np.log(1 + df[terms])
            for term in terms[np.argsort(-weight)[:KEYWORDS]].tolist():
                table.setdefault(str(term), []).append(passage)
        conn.execute("CREATE UNLOGGED TABLE peer_keywords (dataset int PRIMARY KEY, words jsonb)")
        conn.execute("INSERT INTO peer_keywords VALUES (1, %s)", (Jsonb(table),))

    def search(self, conn: Connection, terms: Sequence[str], k: int) -> list[int]:
        asked = [str(term) for term in self._words.known(terms)]
        rows = conn.execute(
            "SELECT id::int FROM peer_keywords, unnest(%s::text[]) AS word, "
            "jsonb_array_elements_text(words -> word) AS id "
            "GROUP BY id ORDER BY count(*) DESC, id::int LIMIT %s",
            (asked, k),
        )
        return [found for (found,) in rows]

    def edit(self, conn: Connection, passage: int) -> None:
        """Give one passage one more keyword."""
        conn.execute(
            "UPDATE peer_keywords SET words = jsonb_set(words, '{edited}', "
            "coalesce(words -> 'edited', '[]') || %s)",
            (Jsonb(passage),),
        )
