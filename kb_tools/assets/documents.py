"""Documents: add, look up, follow, delete."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from psycopg.errors import ForeignKeyViolation

from kb_tools import db
from kb_tools.assets.pages import page_of
from kb_tools.config import ProcessRule
from kb_tools.errors import BuildFailed, NotFound
from kb_tools.ingest import pipeline
from kb_tools.ingest.lease import Lease
from kb_tools.ingest.progress import Progress, shown
from kb_tools.ingest.sources import Source, read_sources
from kb_tools.models import Document, DocumentState, new_id
from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents
from kb_tools.storage.documents import NewDocument
from kb_tools.vectorstores import Space

INSERT_COUNT = 500
INSERT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Batch:
    """What one `add_documents` made: the documents in upload order, and those that failed."""

    id: str
    document_ids: list[str]
    states: list[DocumentState]

    @property
    def failed(self) -> list[DocumentState]:
        """Return the documents in error, and those that lack some segments; `error` says why."""
        return [state for state in self.states if state.error]

    def raise_for_errors(self) -> "Batch":
        """Return the batch, or raise BuildFailed with every document's reason."""
        if self.failed:
            raise BuildFailed([(state.name, state.error or "") for state in self.failed])
        return self


def add_documents(
    kb: Resources,
    dataset_id: str,
    sources: Source | Iterable[Source],
    *,
    metadata: Mapping[str, object] | None = None,
    process_rule: ProcessRule | None = None,
    progress: Progress | bool | None = None,
) -> Batch:
    """Store documents as rows, then parse, split and index them; return when all are done.

    `sources` are paths, open files with a name, LangChain documents or loaders; `metadata` is
    added to each. A document that fails ends in error with its reason (`batch.failed`), others
    go on; what a killed build left in this dataset is finished first. `progress` is a callable;
    True or False forces or forbids the bar, and None shows it on a terminal or in a notebook
    only. Raises NotFound, InvalidInput for a path that cannot be read, InvalidState if the
    dataset's embedding model is not open.
    """
    rule = process_rule or ProcessRule.automatic()
    _require_model(kb, dataset_id)
    batch = new_id()
    new_documents = read_sources(sources, metadata, kb.settings)
    with Lease(kb) as lease:
        left = pipeline.unfinished_work(kb, dataset_id)
        sizes = _insert_all_or_none(kb, dataset_id, batch, rule, lease.builder, new_documents)
        work = [*left, pipeline.Work(dataset_id, rule, sizes)]
        with shown(progress, sum(len(part.sizes) for part in work)) as report:
            pipeline.build(kb, lease, work, report)
    return Batch(batch, list(sizes), batch_status(kb, batch) if sizes else [])


def resume_builds(
    kb: Resources, dataset_id: str | None = None, *, progress: Progress | bool | None = None
) -> list[DocumentState]:
    """Finish what killed builds left, of one dataset or of all; return where its documents are.

    Each begins anew by its own rule, so nothing is there twice. What a living process builds is
    left to it. Raises NotFound if this account has no such dataset, InvalidState if the embedding
    model of a dataset with unfinished documents is not open.
    """
    if dataset_id is not None:
        _require_model(kb, dataset_id)
    work = pipeline.unfinished_work(kb, dataset_id)
    for part in work:
        _require_model(kb, part.dataset_id)
    ids = [document_id for part in work for document_id in part.sizes]
    with Lease(kb) as lease, shown(progress, len(ids)) as report:
        pipeline.build(kb, lease, work, report)
    with kb.db.transaction() as conn:
        return documents.states(conn, kb.account, document_ids=ids)


def batch_status(kb: Resources, batch: str) -> list[DocumentState]:
    """Return where each document of a batch is, in upload order. Raises NotFound."""
    with kb.db.transaction() as conn:
        states = documents.states(conn, kb.account, batch=batch)
    if not states:
        raise NotFound(f"no batch with id {batch!r}")
    return states


def get_document(kb: Resources, document_id: str) -> Document:
    """Return a document. Raises NotFound if this account has none with that id."""
    with kb.db.transaction() as conn:
        found = documents.read(conn, kb.account, [document_id])
    if not found:
        raise NotFound(f"no document with id {document_id!r}")
    return found[0]


def list_documents(
    kb: Resources, dataset_id: str, *, search: str | None = None, offset: int = 0, limit: int = 50
) -> list[Document]:
    """Return a dataset's documents whose name holds `search`, newest first. Raises NotFound."""
    with kb.db.transaction() as conn:
        datasets.owned(conn, kb.account, dataset_id)
        return documents.page(
            conn,
            kb.account,
            dataset_id,
            **page_of(search, offset, limit),
        )


def delete_document(kb: Resources, document_id: str) -> None:
    """Delete a document, its segments and all that was indexed of them. Raises NotFound."""
    document = get_document(kb, document_id)
    with kb.db.transaction() as conn:
        db.lock(conn, f"dataset {document.dataset_id}")
        dataset = datasets.owned(conn, kb.account, document.dataset_id)
        if dataset.embedding_dimension is not None:
            space = Space(dataset.embedding_model, dataset.embedding_dimension)
            kb.vector_stores.of(space).delete(document_id=document_id, conn=conn)
        documents.delete(conn, document_id)
        datasets.touch(conn, document.dataset_id)


def _require_model(kb: Resources, dataset_id: str) -> None:
    with kb.db.transaction() as conn:
        kb.embeddings.require(datasets.owned(conn, kb.account, dataset_id))


def _insert_all_or_none(
    kb: Resources,
    dataset_id: str,
    batch: str,
    rule: ProcessRule,
    builder: str,
    new_documents: Iterable[NewDocument],
) -> dict[str, int]:
    """Store rows and bytes of all sources; if one cannot be read, none is kept."""
    try:
        return _insert(kb, dataset_id, batch, rule, builder, new_documents)
    except ForeignKeyViolation:
        raise NotFound(f"no dataset with id {dataset_id!r}: it was deleted just now") from None
    except BaseException:
        with kb.db.transaction() as conn:
            documents.delete_batch(conn, batch)
        raise


def _insert(
    kb: Resources,
    dataset_id: str,
    batch: str,
    rule: ProcessRule,
    builder: str,
    new_documents: Iterable[NewDocument],
) -> dict[str, int]:
    """Store rows and bytes, some hundred documents a transaction; return id -> size in order."""
    rule_id = new_id()
    with kb.db.transaction() as conn:
        documents.insert_rule(conn, rule_id, dataset_id, rule.mode, rule.model_dump(mode="json"))
    sizes: dict[str, int] = {}
    for some in _portions(new_documents):
        with kb.db.transaction() as conn:
            db.lock(conn, f"dataset {dataset_id}")
            documents.insert(
                conn, dataset_id, batch=batch, rule_id=rule_id, builder=builder, documents=some
            )
        sizes |= {new.id: len(new.content) for new in some}
    return sizes


def _portions(new_documents: Iterable[NewDocument]) -> Iterator[list[NewDocument]]:
    portion: list[NewDocument] = []
    size = 0
    for new in new_documents:
        portion.append(new)
        size += len(new.content)
        if len(portion) == INSERT_COUNT or size > INSERT_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
