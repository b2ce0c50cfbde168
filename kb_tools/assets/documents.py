"""Documents: add, look up, follow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kb_tools.assets.pages import page_of
from kb_tools.config import ProcessRule
from kb_tools.errors import BuildFailed, InvalidInput, NotFound
from kb_tools.ingest import pipeline, upload
from kb_tools.ingest.lease import Lease
from kb_tools.ingest.progress import Built, Progress, shown
from kb_tools.ingest.sources import Source, read_sources
from kb_tools.ingest.upload import Duplicates, Stored, Upload
from kb_tools.models import (
    Document,
    DocumentState,
    DocumentStatus,
    SkipKind,
    Skipped,
)
from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents

EAGER_STATES = 10_000


@dataclass(frozen=True)
class Batch:
    """What one `add_documents` made: the documents in upload order, those that failed, the rest.

    `failed` are the documents in error, and those that lack some segments; `error` says why.
    `skipped` are duplicates, and what a folder or glob holds besides documents. It keeps ids, not
    texts: some 100 bytes a document.
    """

    id: str
    document_ids: list[str]
    failed: list[DocumentState]
    skipped: list[Skipped]
    kb: Resources = field(repr=False, compare=False)

    @cached_property
    def states(self) -> list[DocumentState]:
        """Where each document is; of more than 10,000 read when it is first asked for."""
        return batch_status(self.kb, self.id) if self.document_ids else []

    def raise_for_errors(self) -> "Batch":
        """Return the batch, or raise BuildFailed with the reason of all that could not be added.

        What was skipped as duplicate, hidden or unsupported is no error.
        """
        reasons = [(state.name, state.error or "") for state in self.failed]
        reasons += [(skipped.name, skipped.reason) for skipped in self.unreadable]
        if reasons:
            raise BuildFailed(reasons)
        return self

    @property
    def unreadable(self) -> list[Skipped]:
        """Those of `skipped` that a folder or glob holds but that could not be read."""
        return [skipped for skipped in self.skipped if skipped.kind is SkipKind.UNREADABLE]


def add_documents(
    kb: Resources,
    dataset_id: str,
    sources: Source | Iterable[Source],
    *,
    metadata: Mapping[str, object] | None = None,
    process_rule: ProcessRule | None = None,
    duplicates: str = "skip",
    progress: Progress | bool | None = None,
) -> Batch:
    """Store documents as rows, then parse, split and index them; return when all are done.

    `sources` are paths, folders, globs ("docs/**/*.md"), open files with a name, LangChain
    documents or loaders, or an iterator of them, which is never made a list; `metadata` is added
    to each. A folder gives its files of known formats, named by their path below it; the others
    are in `batch.skipped`. A document that fails ends in error with its reason (`batch.failed`),
    others go on; what a killed build left in this dataset is finished first.

    `duplicates` says what happens to content that the dataset holds already, under whatever name:
    "skip" leaves it out and names the document that is there, so adding a folder again adds what
    is new; "replace" also lets documents of a source (name, or path below the folder) take the
    place of the older ones of that source, which stay searchable until all new ones are completed,
    and for good if one fails; "keep" adds everything. Of a LangChain document its own metadata is
    part of the content. What failed before is tried again and takes the failed one's place.

    `progress` is a callable; True or False forces or forbids the bar, and None shows it on a
    terminal or in a notebook only. Raises NotFound, InvalidInput for a path that cannot be read
    and a folder or glob without files, InvalidState if the dataset's embedding model is not open.
    """
    rule = process_rule or ProcessRule.automatic()
    policy = Duplicates.of(duplicates)
    _require_model(kb, dataset_id)
    new = read_sources(sources, metadata, kb.settings)
    with Lease(kb) as lease, shown(progress) as report:
        left = pipeline.unfinished_work(kb, dataset_id)
        waiting = sum(len(part.sizes) for part in left)

        def tell(stored: Stored) -> None:
            pipeline.tell(report, Built(0, waiting + len(stored.sizes), 0, 0, "storing"))

        part = Upload(dataset_id, rule, lease.builder, policy)
        stored = upload.store(kb, part, new, tell)
        pipeline.build(kb, lease, [*left, pipeline.Work(dataset_id, rule, stored.sizes)], report)
    return _batch(kb, part.batch, stored)


def _batch(kb: Resources, batch_id: str, stored: Stored) -> Batch:
    with kb.db.transaction() as conn:
        failed = documents.states(conn, kb.account, batch=batch_id, failed=True)
    batch = Batch(batch_id, list(stored.sizes), failed, stored.skipped, kb)
    if len(stored.sizes) <= EAGER_STATES:
        _ = batch.states  # as they are now, also when the knowledge base is closed
    return batch


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
    with Lease(kb) as lease, shown(progress) as report:
        pipeline.build(kb, lease, work, report)
    with kb.db.transaction() as conn:
        return documents.states(conn, kb.account, document_ids=ids)


def unfinished_documents(kb: Resources, dataset_id: str | None = None) -> dict[str, int]:
    """Return how many documents wait for `resume_builds`, by dataset id; {} if none does.

    They are what killed builds left; what a living process builds is not counted.
    """
    counts: dict[str, int] = {}
    for part in pipeline.unfinished_work(kb, dataset_id):
        counts[part.dataset_id] = counts.get(part.dataset_id, 0) + len(part.sizes)
    return counts


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
    kb: Resources,
    dataset_id: str,
    *,
    search: str | None = None,
    status: str | None = None,
    enabled: bool | None = None,
    failed: bool = False,
    offset: int = 0,
    limit: int = 50,
) -> list[Document]:
    """Return a dataset's documents whose name holds `search`, newest first.

    Only those with a `status` (waiting, parsing, splitting, indexing, completed or error) if one
    is given, only switched on or off ones with `enabled`; `failed` are those in error and those
    that lack some segments. Raises NotFound, and InvalidInput for an unknown status.
    """
    wanted = None if status is None else _status(status)
    with kb.db.transaction() as conn:
        datasets.owned(conn, kb.account, dataset_id)
        return documents.page(
            conn,
            kb.account,
            dataset_id,
            **page_of(search, offset, limit),
            status=wanted,
            enabled=enabled,
            failed=failed,
        )


def _status(name: str) -> DocumentStatus:
    try:
        return DocumentStatus(name)
    except ValueError:
        raise InvalidInput(f"unknown status {name!r}; known: {', '.join(DocumentStatus)}") from None


def _require_model(kb: Resources, dataset_id: str) -> None:
    with kb.db.transaction() as conn:
        kb.embeddings.require(datasets.owned(conn, kb.account, dataset_id))
