"""Build a dataset's indexes anew from its rows: for another model, or another tokenizer."""

from collections.abc import Iterator, Sequence

from kb_tools import db
from kb_tools.errors import InvalidState
from kb_tools.models import Dataset, embedded_text
from kb_tools.resources import Resources
from kb_tools.storage import datasets, full_text, segments
from kb_tools.text.terms import segment_terms
from kb_tools.text.tokenize import Tokenizer
from kb_tools.vectorstores import Point, Space, VectorStore

PAGE = 256


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
    for ids in _pages(_missing(kb, store, dataset_id)):
        _embed(kb, name, store, ids)
    with kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset_id}")
        if _missing(kb, store, dataset_id):
            raise InvalidState(f"dataset {old.name!r} changed while it was embedded; try again")
        datasets.set_model(conn, dataset_id, name, dimension)
        if old.embedding_dimension is not None:
            kb.vectors(old).delete(dataset_id=dataset_id, conn=conn)
        return datasets.owned(conn, kb.account, dataset_id)


def reindex_dataset(kb: Resources, dataset_id: str) -> None:
    """Build the full-text index anew from the rows, in one transaction. Raises NotFound."""
    tokenizer = Tokenizer.of(kb.settings.tokenizer)
    with kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset_id}")
        datasets.owned(conn, kb.account, dataset_id)
        full_text.clear(conn, dataset_id)
        for ids in _pages(segments.completed_ids(conn, dataset_id)):
            found = segments.read(conn, ids)
            terms = [
                (s.id, segment_terms(tokenizer, s.heading or s.title, s.content, s.keywords))
                for s in found
            ]
            full_text.write(conn, dataset_id, tokenizer, terms)
        datasets.touch(conn, dataset_id)


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
        there = set(segments.existing(conn, segment_ids))
        points = [
            Point(segment.id, segment.document_id, segment.dataset_id, vector)
            for segment, vector in zip(found, vectors, strict=True)
            if segment.id in there
        ]
        store.upsert(points, conn=conn)
