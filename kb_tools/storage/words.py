"""Rows of a dataset's own words, and the tokenizers that know them."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from psycopg import Connection

from kb_tools.settings import Engine
from kb_tools.text.dictionary import Dictionary
from kb_tools.text.tokenize import Tokenizer, fold_keyword

CACHED_WORDS = 200_000  # about 50 MB


def dictionary(conn: Connection, dataset_id: str) -> list[str]:
    """Return the words of a dataset's dictionary as they were typed."""
    row = conn.execute(
        "SELECT dictionary FROM dataset_words WHERE dataset_id = %s", (dataset_id,)
    ).fetchone()
    return list(row[0]) if row else []


def set_dictionary(conn: Connection, dataset_id: str, words: Sequence[str]) -> None:
    """Replace a dataset's dictionary; who does it holds the dataset's lock and indexes anew."""
    conn.execute(
        """
        INSERT INTO dataset_words (dataset_id, dictionary, dictionary_fingerprint)
        VALUES (%s, %s, %s) ON CONFLICT (dataset_id) DO UPDATE
        SET dictionary = excluded.dictionary,
            dictionary_fingerprint = excluded.dictionary_fingerprint
        """,
        (dataset_id, list(words), _folded(words).fingerprint),
    )


def tokenizer(conn: Connection, dataset_id: str, engine: Engine) -> Tokenizer:
    """Return the tokenizer of a dataset: an engine with the dataset's dictionary."""
    return tokenizers(conn, [dataset_id], engine)[dataset_id]


def tokenizers(
    conn: Connection, dataset_ids: Sequence[str], engine: Engine
) -> dict[str, Tokenizer]:
    """Return the tokenizer of each dataset; datasets with the same words share one."""
    rows = conn.execute(
        """
        SELECT dataset_id, dictionary_fingerprint FROM dataset_words
        WHERE dataset_id = ANY(%s) AND dictionary_fingerprint <> ''
        """,
        (list(dataset_ids),),
    ).fetchall()
    found = dict.fromkeys(dataset_ids, Tokenizer.of(engine))
    for dataset_id, fingerprint in rows:
        known = _kept.get(engine, fingerprint)
        found[dataset_id] = known or _kept.put(
            fingerprint, Tokenizer(engine, _folded(dictionary(conn, dataset_id)))
        )
    return found


def _folded(words: Sequence[str]) -> Dictionary:
    return Dictionary(fold_keyword(word) for word in words)


class _Kept:
    """The tokenizers with dictionaries that were used last, as many as `CACHED_WORDS` allow.

    Their key is what they consist of, so no change of a dataset makes one wrong.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[tuple[Engine, str], Tokenizer] = OrderedDict()

    def get(self, engine: Engine, fingerprint: str) -> Tokenizer | None:
        with self._lock:
            found = self._of.get((engine, fingerprint))
            if found:
                self._of.move_to_end((engine, fingerprint))
            return found

    def put(self, fingerprint: str, tokenizer: Tokenizer) -> Tokenizer:
        with self._lock:
            kept = self._of.setdefault((tokenizer.engine, fingerprint), tokenizer)
            while len(self._of) > 1 and self._words() > CACHED_WORDS:
                self._of.popitem(last=False)
            return kept

    def _words(self) -> int:
        return sum(len(tokenizer.dictionary) for tokenizer in self._of.values())


_kept = _Kept()
