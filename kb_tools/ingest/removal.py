"""Remove documents with all that was indexed of them, in the caller's transaction."""

from collections.abc import Sequence

from psycopg import Connection

from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents
from kb_tools.vectorstores import Space


def remove_documents(
    kb: Resources, conn: Connection, dataset_id: str, document_ids: Sequence[str]
) -> None:
    """Delete documents, their segments and their vectors; the caller holds the dataset's lock."""
    dataset = datasets.owned(conn, kb.account, dataset_id)
    if dataset.embedding_dimension is not None:
        store = kb.vector_stores.of(Space(dataset.embedding_model, dataset.embedding_dimension))
        for document_id in document_ids:
            store.delete(document_id=document_id, conn=conn)
    for document_id in document_ids:
        documents.delete(conn, document_id)
    datasets.touch(conn, dataset_id)
