"""Build a dataset's indexes anew from its rows: for another model, or another tokenizer."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import get_args

from psycopg import Connection

from kb_tools import db
from kb_tools.errors import InvalidState, MissingDependency
from kb_tools.ingest.progress import Built, Progress, shown
from kb_tools.models import Dataset, Segment, embedded_text
from kb_tools.resources import Resources
from kb_tools.settings import Engine
from kb_tools.storage import datasets, full_text, keywords, segments, words
from kb_tools.text.terms import segment_terms
from kb_tools.text.tokenize import Tokenizer
from kb_tools.vectorstores import Point, Space, VectorStore

PAGE = 256
MAX_KEYWORDS = 10


def reembed_dataset(kb: Resources, dataset_id: str, model: str | None = None) -> Dataset:
    """Embed all segments with an open model, by default the first, and search with it from then.

    The old vectors answer until all new ones are there; what was embedded before a stop is kept.
    Raises NotFound, or InvalidState if the model is not open or the dataset changed at the last
    moment: then call it again.
    """
    with kb.db.transaction() as conn:
        old = datasets.owned(conn, kb.account, dataset_id)
    name = model or kb.embeddings.default
    dimension = len(kb.embeddings.embed_query(name, old.name))
    if (old.embedding_model, old.embedding_dimension or dimension) == (name, dimension):
        return old
    store = kb.vector_stores.of(Space(name, dimension))
    while missing := _missing(kb, store, dataset_id):  # again what was edited meanwhile
        for ids in _pages(missing):
            _embed(kb, name, store, ids)
    with kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset_id}")
        if _missing(kb, store, dataset_id):
            raise InvalidState(f"dataset {old.name!r} changed while it was embedded; try again")
        datasets.set_model(conn, dataset_id, name, dimension)
        if old.embedding_dimension is not None:
            kb.vectors(old).delete(dataset_id=dataset_id, conn=conn)
        return datasets.owned(conn, kb.account, dataset_id)


def reindex_dataset(
    kb: Resources, dataset_id: str, *, progress: Progress | bool | None = None
) -> None:
    """Build full text and the keywords taken from the texts anew, by the tokenizer now in use.

    All in one transaction: until it ends the old ones answer. Raises NotFound.
    """
    with kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset_id}")
        dataset = datasets.owned(conn, kb.account, dataset_id)
        build_words_anew(kb, conn, dataset, _built_by(kb, conn, dataset_id), progress)


def build_words_anew(
    kb: Resources,
    conn: Connection,
    dataset: Dataset,
    before: Tokenizer | None,
    progress: Progress | bool | None,
) -> None:
    """Write full text and keywords of a dataset, whose lock is held, by its present tokenizer.

    `before` is the tokenizer that chose the keywords; None if it is not to be had, then they stay.
    """
    now = words.tokenizer(conn, dataset.id, kb.settings.tokenizer)
    ids, documents = segments.completed_ids(conn, dataset.id), set[str]()
    total = datasets.statistics(conn, dataset.id).completed_document_count
    full_text.clear(conn, dataset.id)
    with shown(progress) as report:
        for done, page in enumerate(_pages(ids), start=1):
            there = segments.read(conn, page)
            found = [_with_keywords(segment, before, now) for segment in there]
            changed = {
                new.id: new.keywords for new, old in zip(found, there, strict=True) if new != old
            }
            keywords.rewrite(conn, changed)
            terms = [
                (s.id, segment_terms(now, s.heading or s.title, s.content, s.keywords))
                for s in found
            ]
            full_text.write(conn, dataset.id, now, terms)
            documents |= {s.document_id for s in found}
            indexed = min(done * PAGE, len(ids))
            report(Built(len(documents), total, indexed, len(ids), dataset.name))
    datasets.touch(conn, dataset.id)


def _built_by(kb: Resources, conn: Connection, dataset_id: str) -> Tokenizer | None:
    """Return the tokenizer that built a dataset's index; None if this version cannot make it."""
    name = full_text.tokenizer_name(conn, dataset_id)
    for engine in get_args(Engine):
        with suppress(MissingDependency):
            tokenizer = words.tokenizer(conn, dataset_id, engine)
            if tokenizer.name == name:
                return tokenizer
    return None


def _with_keywords(segment: Segment, before: Tokenizer | None, now: Tokenizer) -> Segment:
    """Return a segment whose keywords are chosen anew, but for what a person added or removed."""
    if before is None or before.name == now.name:
        return segment
    old = before.extract_keywords(segment.content)
    removed = set(old) - set(segment.keywords)
    added = [word for word in segment.keywords if word not in old]
    new = [word for word in now.extract_keywords(segment.content) if word not in removed]
    return replace(segment, keywords=list(dict.fromkeys(added + new))[:MAX_KEYWORDS])


def _pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))


def _missing(kb: Resources, store: VectorStore, dataset_id: str) -> list[str]:
    with kb.db.transaction() as conn:
        completed = segments.completed_ids(conn, dataset_id)
    there = set(store.ids(dataset_id))
    return [segment_id for segment_id in completed if segment_id not in there]


def _embed(kb: Resources, model: str, store: VectorStore, segment_ids: Sequence[str]) -> None:
    with kb.db.transaction() as conn:
        found = segments.read(conn, segment_ids)
    texts = [embedded_text(s.title, s.heading, s.content) for s in found]
    vectors = kb.embeddings.embed_documents(model, texts)
    with kb.db.transaction() as conn:
        hashes = segments.locked_hashes(conn, segment_ids)
        points = [
            Point(segment.id, segment.document_id, segment.dataset_id, vector)
            for segment, vector in zip(found, vectors, strict=True)
            if hashes.get(segment.id) == segment.hash  # else it went, or has another text by now
        ]
        store.upsert(points, conn=conn)
