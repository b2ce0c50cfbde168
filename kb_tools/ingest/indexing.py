"""Index segments: embed, cut into terms, and write every index in the transaction that completes.

A segment is enabled by the same transaction that writes its indexes, so what says enabled can be
found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection

from kb_tools import db
from kb_tools.errors import InvalidState, KnowledgeBaseError
from kb_tools.ingest.isolate import together_or_alone
from kb_tools.models import Dataset, embedded_text
from kb_tools.resources import Resources
from kb_tools.storage import datasets, full_text, segments, words
from kb_tools.storage.segments import PendingSegment
from kb_tools.text.terms import SegmentTerms, segment_terms
from kb_tools.text.tokenize import Tokenizer
from kb_tools.vectorstores import Point, Space, Vector


@dataclass(frozen=True, eq=False)
class IndexedSegment:
    """A segment with all that the indexes hold of it."""

    segment: PendingSegment
    vector: Vector | None  # None: the vector that is there stays
    keywords: list[str]
    terms: SegmentTerms
    tokenizer: Tokenizer
    segment_enabled: bool = True
    document_enabled: bool = True


def index_segments(kb: Resources, dataset: Dataset, pending: Sequence[PendingSegment]) -> None:
    """Embed, index and complete segments; those that fail end in error and not enabled."""
    embedded: list[tuple[PendingSegment, Vector]] = []
    size = kb.settings.embedding_batch_size
    for start in range(0, len(pending), size):
        embedded += _embedded(kb, dataset, pending[start : start + size], _Patience())
    with kb.db.transaction() as conn:
        tokenizer = words.tokenizer(conn, dataset.id, kb.settings.tokenizer)
    ready = [_analysed(tokenizer, segment, vector) for segment, vector in embedded]

    def write(conn: Connection, some: Sequence[IndexedSegment]) -> None:
        _write(kb, conn, dataset, some)

    try:
        together_or_alone(kb, ready, write, _fail)
    except InvalidState as error:  # vectors of another dimension than the dataset's
        _fail_all(kb, [item.segment for item in ready], error)


@dataclass
class _Patience:
    """How many single texts in a row may fail before the model is taken to be down."""

    left: int = 2


def _embedded(
    kb: Resources, dataset: Dataset, pending: Sequence[PendingSegment], patience: _Patience
) -> list[tuple[PendingSegment, Vector]]:
    """Return segments with their vectors; of a batch that fails, each half is tried apart."""
    texts = {s.hash: embedded_text(s.title, s.heading, s.content) for s in pending}
    known = _known_vectors(kb, dataset, set(texts))
    try:
        vectors = _vectors(kb, dataset, texts, known)
    except KnowledgeBaseError as error:
        half = len(pending) // 2
        patience.left -= not half
        if not half or patience.left <= 0:
            _fail_all(kb, pending, error)
            return []
        first = _embedded(kb, dataset, pending[:half], patience)
        if patience.left <= 0:
            _fail_all(kb, pending[half:], error)
            return first
        return first + _embedded(kb, dataset, pending[half:], patience)
    patience.left = _Patience.left
    return [(segment, vectors[segment.hash]) for segment in pending]


def _fail_all(kb: Resources, pending: Sequence[PendingSegment], error: KnowledgeBaseError) -> None:
    with kb.db.transaction() as conn:
        segments.fail(conn, [segment.id for segment in pending], f"not embedded: {error}")


def _fail(conn: Connection, item: IndexedSegment, reason: str) -> None:
    segments.fail(conn, [item.segment.id], reason)


def _analysed(
    tokenizer: Tokenizer, segment: PendingSegment, vector: Vector | None
) -> IndexedSegment:
    # Keywords taken from the text count no more than they stand there: no need to pass them on.
    terms = segment_terms(tokenizer, segment.heading or segment.title, segment.content)
    keywords = tokenizer.extract_keywords(segment.content)
    return IndexedSegment(segment, vector, keywords, terms, tokenizer)


def _analysed_by(tokenizer: Tokenizer, item: IndexedSegment) -> IndexedSegment:
    """Return `item` as `tokenizer` cuts it: the dictionary may have changed since it was cut."""
    if item.tokenizer.name == tokenizer.name:
        return item
    return _analysed(tokenizer, item.segment, item.vector)


def embed_texts(kb: Resources, dataset: Dataset, texts: Mapping[str, str]) -> dict[str, Vector]:
    """Return hash -> vector of texts (hash -> text); what this account embedded before is taken.

    Raises InvalidState if the dataset's model is needed and not open, BackendError if it fails.
    """
    return _vectors(kb, dataset, texts, _known_vectors(kb, dataset, set(texts)))


def _vectors(
    kb: Resources, dataset: Dataset, texts: Mapping[str, str], known: Mapping[str, Vector]
) -> dict[str, Vector]:
    missing = {text_hash: text for text_hash, text in texts.items() if text_hash not in known}
    if not missing:
        return dict(known)
    fresh = kb.embeddings.embed_documents_for(dataset, list(missing.values()))
    return {**known, **dict(zip(missing, fresh, strict=True))}


def _known_vectors(kb: Resources, dataset: Dataset, hashes: set[str]) -> dict[str, Vector]:
    if dataset.embedding_dimension is None:
        return {}
    with kb.db.transaction() as conn:
        owners = segments.of_equal_text(
            conn, kb.account, dataset.embedding_model, dataset.embedding_dimension, list(hashes)
        )
    if not owners:
        return {}
    vectors = kb.vectors(dataset).vectors(list(owners.values()))
    return {text: vectors[owner] for text, owner in owners.items() if owner in vectors}


def _write(
    kb: Resources, conn: Connection, dataset: Dataset, items: Sequence[IndexedSegment]
) -> None:
    db.lock(conn, f"dataset {dataset.id}")
    there = set(segments.existing(conn, [item.segment.id for item in items]))
    items = [item for item in items if item.segment.id in there]  # others were deleted meanwhile
    if not items:
        return
    tokenizer = words.tokenizer(conn, dataset.id, kb.settings.tokenizer)
    items = [_analysed_by(tokenizer, item) for item in items]
    write_indexes(kb, conn, dataset, tokenizer, items)
    ids = [item.segment.id for item in items]
    segments.complete(conn, ids, [item.keywords for item in items])


def write_indexes(
    kb: Resources,
    conn: Connection,
    dataset: Dataset,
    tokenizer: Tokenizer,
    items: Sequence[IndexedSegment],
) -> None:
    """Write vectors and terms of segments, in place of what there was, and note the change.

    The caller holds the dataset's lock, under which `tokenizer` was read and cut the terms. Raises
    InvalidState if the vectors do not have the dataset's dimension.
    """
    points = [_point(item, item.vector) for item in items if item.vector is not None]
    if points:
        space = Space(dataset.embedding_model, len(points[0].vector))
        datasets.record_dimension(conn, dataset.id, space.dimension)
        # Read again under the lock: another process may have recorded its dimension first.
        kb.embeddings.check_dimension(datasets.owned(conn, kb.account, dataset.id), space.dimension)
        kb.vector_stores.of(space).upsert(points, conn=conn)
    terms = [(item.segment.id, item.terms) for item in items]
    full_text.write(conn, dataset.id, tokenizer, terms)
    datasets.touch(conn, dataset.id)


def _point(item: IndexedSegment, vector: Vector) -> Point:
    segment = item.segment
    return Point(
        segment.id,
        segment.document_id,
        segment.dataset_id,
        vector,
        item.segment_enabled,
        item.document_enabled,
    )
