"""Rows of a dataset's own words, and the tokenizers and synonyms that are made of them."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from typing import Generic, TypeVar

from psycopg import Connection

from kb_tools.settings import Engine
from kb_tools.text.dictionary import Dictionary
from kb_tools.text.synonyms import Synonyms
from kb_tools.text.tokenize import Tokenizer, fold_keyword

CACHED_WORDS = 200_000  # about 50 MB

T = TypeVar("T", bound=Sized)


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


def synonyms(conn: Connection, dataset_id: str) -> list[list[str]]:
    """Return the groups of a dataset's synonyms as they were typed."""
    row = conn.execute(
        "SELECT synonyms FROM dataset_words WHERE dataset_id = %s", (dataset_id,)
    ).fetchone()
    return list(row[0]) if row else []


def set_synonyms(conn: Connection, dataset_id: str, groups: Sequence[Sequence[str]]) -> None:
    """Replace a dataset's synonyms."""
    text = json.dumps(groups)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:32] if groups else ""
    conn.execute(
        """
        INSERT INTO dataset_words (dataset_id, synonyms, synonyms_fingerprint)
        VALUES (%s, %s, %s) ON CONFLICT (dataset_id) DO UPDATE
        SET synonyms = excluded.synonyms, synonyms_fingerprint = excluded.synonyms_fingerprint
        """,
        (dataset_id, text, fingerprint),
    )


def synonyms_by(conn: Connection, tokenizers: Mapping[str, Tokenizer]) -> dict[str, Synonyms]:
    """Return the synonyms of those datasets that have any, as their tokenizers cut them."""
    rows = conn.execute(
        """
        SELECT dataset_id, synonyms_fingerprint FROM dataset_words
        WHERE dataset_id = ANY(%s) AND synonyms_fingerprint <> '' ORDER BY dataset_id
        """,
        (list(tokenizers),),
    ).fetchall()
    return {
        dataset_id: _synonyms.of(
            f"{tokenizers[dataset_id].name} {fingerprint}",
            partial(_with_synonyms, conn, dataset_id, tokenizers[dataset_id]),
        )
        for dataset_id, fingerprint in rows
    }


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
        make = partial(_with_dictionary, conn, dataset_id, engine)
        found[dataset_id] = _tokenizers.of(f"{engine} {fingerprint}", make)
    return found


def _with_dictionary(conn: Connection, dataset_id: str, engine: Engine) -> Tokenizer:
    return Tokenizer(engine, _folded(dictionary(conn, dataset_id)))


def _with_synonyms(conn: Connection, dataset_id: str, tokenizer: Tokenizer) -> Synonyms:
    return Synonyms(tokenizer, synonyms(conn, dataset_id))


def _folded(words: Sequence[str]) -> Dictionary:
    return Dictionary(fold_keyword(word) for word in words)


class _Kept(Generic[T]):
    """What was made of words and used last, as much as `CACHED_WORDS` allow.

    Its key tells what it was made of, so no change of a dataset makes one wrong.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[str, T] = OrderedDict()

    def of(self, key: str, make: Callable[[], T]) -> T:
        with self._lock:
            found = self._of.get(key)
            if found is not None:
                self._of.move_to_end(key)
                return found
        made = make()
        with self._lock:
            kept = self._of.setdefault(key, made)
            while len(self._of) > 1 and self.words() > CACHED_WORDS:
                self._of.popitem(last=False)
            return kept

    def words(self) -> int:
        return sum(len(kept) for kept in self._of.values())


_tokenizers = _Kept[Tokenizer]()
_synonyms = _Kept[Synonyms]()
