"""Remove documents with all that was indexed of them, in the caller's transaction."""

import logging
from collections.abc import Sequence

from psycopg import Connection

from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents, full_text, segments
from kb_tools.vectorstores import Space

logger = logging.getLogger(__name__)


def remove_documents(
    kb: Resources, conn: Connection, dataset_id: str, document_ids: Sequence[str]
) -> int:
    """Delete documents, their segments and all that was indexed; return how many segments went.

    The caller holds the dataset's lock.
    """
    dataset = datasets.owned(conn, kb.account, dataset_id)
    counts = segments.counts(conn, document_ids)
    if dataset.embedding_dimension is not None:
        store = kb.vector_stores.of(Space(dataset.embedding_model, dataset.embedding_dimension))
        for document_id in document_ids:
            gone = store.delete(document_id=document_id, conn=conn)
            warn_of_missing(document_id, gone, counts[document_id].completed)
    full_text.remove_documents(conn, document_ids)
    documents.delete(conn, document_ids)
    datasets.touch(conn, dataset_id)
    return sum(count.all for count in counts.values())


def warn_of_missing(document_id: str, deleted: int, expected: int) -> None:
    """Log that a deletion found fewer vectors than there should have been."""
    if deleted < expected:
        logger.warning(
            "document %s: %d of %d vectors were there to be deleted; run: kb doctor",
            document_id,
            deleted,
            expected,
        )
