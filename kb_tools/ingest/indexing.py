"""Index segments: embed, cut into terms, and write every index in the transaction that completes.

A segment is enabled by the same transaction that writes its indexes, so what says enabled can be
found. `Preparation` does what needs no lock, so a build can prepare some segments while it writes
those before; `write` does the rest.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import Connection

from kb_tools import db
from kb_tools.embeddings import NoAnswer
from kb_tools.errors import InvalidState, KnowledgeBaseError
from kb_tools.ingest.isolate import together_or_alone
from kb_tools.ingest.words import SegmentWords, Text, words_of
from kb_tools.models import Dataset, embedded_text
from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents, full_text, segments, words
from kb_tools.storage.segments import PendingSegment
from kb_tools.text.terms import SegmentTerms
from kb_tools.text.tokenize import Tokenizer
from kb_tools.threads import in_background, side_by_side
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


CutWords = Callable[[Tokenizer, Sequence[Text]], list[SegmentWords]]
_Embedded = tuple[dict[str, Vector], dict[str, str]]  # hash -> vector, hash -> why there is none


@dataclass(frozen=True, eq=False)
class Prepared:
    """Segments that can be written, those that cannot be embedded with their reason, and counts.

    `heads` says of how many segments of a document only the head is embedded.
    """

    dataset: Dataset
    ready: list[IndexedSegment]
    failed: list[tuple[PendingSegment, str]]
    heads: Mapping[str, int]


def index_segments(kb: Resources, dataset: Dataset, pending: Sequence[PendingSegment]) -> None:
    """Embed, index and complete segments; those that fail end in error and not enabled."""
    write(kb, Preparation(kb).of(dataset, pending))


class Preparation:
    """Embeds segments and cuts them into words, some after some; nothing is written.

    Usage:
        preparation = Preparation(kb, workers.words)
        write(kb, preparation.of(dataset, pending))
    """

    def __init__(self, kb: Resources, cut_words: CutWords = words_of) -> None:
        """Let `cut_words` cut them."""
        self._kb, self._cut_words = kb, cut_words
        self._last: dict[str, Vector] = {}  # may not be written yet

    def of(self, dataset: Dataset, pending: Sequence[PendingSegment]) -> Prepared:
        """Return the segments with all that is to be written of them.

        Raises BackendError if the model does not answer at all; that it fails on some texts is
        their failure.
        """
        if not pending:
            return Prepared(dataset, [], [], {})
        with self._kb.db.transaction() as conn:
            tokenizer = words.tokenizer(conn, dataset.id, self._kb.settings.tokenizer)
        cut = in_background(lambda: self._cut_words(tokenizer, [_text(s) for s in pending]))
        whole = {s.hash: embedded_text(s.title, s.heading, s.content) for s in pending}
        vectors, reasons = self._embedded(dataset, whole)
        ready = [
            IndexedSegment(segment, vectors[segment.hash], own.keywords, own.terms, tokenizer)
            for segment, own in zip(pending, cut.result(), strict=True)
            if segment.hash in vectors
        ]
        failed = [(s, reasons[s.hash]) for s in pending if s.hash not in vectors]
        long = {key for key, text in whole.items() if self._kb.embeddings.head_of(text) != text}
        heads = Counter(s.document_id for s in pending if s.hash in long)
        return Prepared(dataset, ready, failed, heads)

    def _embedded(self, dataset: Dataset, texts: Mapping[str, str]) -> _Embedded:
        """Return the vectors of texts, each embedded once, and why others have none."""
        known = {key: self._last[key] for key in texts if key in self._last}
        known |= _known_vectors(self._kb, dataset, set(texts) - set(known))
        missing = [key for key in texts if key not in known]
        size = self._kb.settings.embedding_batch_size
        batches = [missing[at : at + size] for at in range(0, len(missing), size)]
        reasons: dict[str, str] = {}
        for fresh, why in side_by_side(
            lambda batch: _embedded_batch(self._kb, dataset, texts, batch, _Patience()),
            batches,
            self._kb.embeddings.concurrency(self._kb.embeddings.require(dataset)),
        ):
            known |= fresh
            reasons |= why
        self._last = known
        return known, reasons


def write(kb: Resources, prepared: Prepared) -> None:
    """Write every index of the segments and complete them; note what failed."""
    dataset = prepared.dataset
    for reason in sorted({reason for _, reason in prepared.failed}):
        _fail_all(kb, [segment for segment, why in prepared.failed if why == reason], reason)

    def write_some(conn: Connection, some: Sequence[IndexedSegment]) -> None:
        _write(kb, conn, dataset, some)

    try:
        together_or_alone(kb, prepared.ready, write_some, _fail)
    except InvalidState as error:  # vectors of another dimension than the dataset's
        _fail_all(kb, [item.segment for item in prepared.ready], str(error))
    tokens = kb.settings.embedding_input_tokens
    if prepared.heads and tokens is not None:
        with kb.db.transaction() as conn:
            documents.note_embedded_heads(conn, prepared.heads, tokens)


@dataclass
class _Patience:
    """How many single texts in a row may fail before the model is taken to be down."""

    left: int = 2
    reason: str = ""


def _embedded_batch(
    kb: Resources,
    dataset: Dataset,
    texts: Mapping[str, str],
    batch: Sequence[str],
    patience: _Patience,
) -> _Embedded:
    """Return vectors and failures of a batch of hashes; if it fails, each half is tried apart."""
    if patience.left <= 0:
        return {}, dict.fromkeys(batch, patience.reason)
    try:
        fresh = kb.embeddings.embed_documents_for(dataset, [texts[key] for key in batch])
    except NoAnswer:
        raise
    except KnowledgeBaseError as error:
        patience.reason = str(error)
    else:
        patience.left = _Patience.left
        return dict(zip(batch, fresh, strict=True)), {}
    half = len(batch) // 2
    patience.left -= not half
    if not half:
        return {}, dict.fromkeys(batch, patience.reason)
    vectors, reasons = _embedded_batch(kb, dataset, texts, batch[:half], patience)
    more, others = _embedded_batch(kb, dataset, texts, batch[half:], patience)
    return vectors | more, reasons | others


def _fail_all(kb: Resources, pending: Sequence[PendingSegment], reason: str) -> None:
    with kb.db.transaction() as conn:
        segments.fail(conn, [segment.id for segment in pending], f"not embedded: {reason}")


def _fail(conn: Connection, item: IndexedSegment, reason: str) -> None:
    segments.fail(conn, [item.segment.id], reason)


def _analysed_by(tokenizer: Tokenizer, item: IndexedSegment) -> IndexedSegment:
    """Return `item` as `tokenizer` cuts it: the dictionary may have changed since it was cut."""
    if item.tokenizer.name == tokenizer.name:
        return item
    (cut,) = words_of(tokenizer, [_text(item.segment)])
    return replace(item, terms=cut.terms, keywords=cut.keywords, tokenizer=tokenizer)


def _text(segment: PendingSegment) -> Text:
    return segment.heading or segment.title, segment.content


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
    if dataset.embedding_dimension is None or not hashes:
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
