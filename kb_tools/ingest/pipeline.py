"""Build documents: parse, clean, split, index, complete. Every step commits.

Documents go through the steps in groups, so that ten thousand short ones do not cost fifty
thousand transactions; one that fails ends in error with its reason, and the others go on. Three
things happen at the same time, each on one group or one page of segments:

    read      in a thread: claim documents, read them in child processes, store texts and segments
    prepare   in a thread: embed the segments of a page and cut them into words
    write     in the caller's thread: write the indexes of a page, complete documents

Each waits for the one behind it, so never more than a group and two pages are in memory. Only the
caller's thread counts and reports.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import Any, TypeVar

from psycopg import Connection

from kb_tools import db
from kb_tools.config import ProcessRule, RuleMode
from kb_tools.errors import BackendError, ConnectionLost, KnowledgeBaseError
from kb_tools.ingest.indexing import Preparation, Prepared, write
from kb_tools.ingest.isolate import together_or_alone
from kb_tools.ingest.lease import Lease, is_dead
from kb_tools.ingest.parsed import Block, Parsed
from kb_tools.ingest.progress import Built, Progress
from kb_tools.ingest.reading import ReadText, read
from kb_tools.ingest.removal import remove_documents
from kb_tools.ingest.sources import json_metadata
from kb_tools.ingest.workers import Workers
from kb_tools.models import embedded_text, new_id
from kb_tools.resources import Resources
from kb_tools.storage import builds, datasets, documents, duplicates, segments
from kb_tools.storage.documents import ReadDocument, WaitingDocument
from kb_tools.storage.segments import NewSegment, PendingSegment
from kb_tools.threads import in_background, one_ahead, side_by_side
from kb_tools.vectorstores import Space

logger = logging.getLogger(__name__)

GROUP_DOCUMENTS = 250  # of one segment each they are a page
GROUP_BYTES = 32 * 1024 * 1024
PAGE_SEGMENTS = 256
SECONDS_BETWEEN_REPORTS = 0.2

T = TypeVar("T")


def tell(report: Progress, built: Built) -> None:
    """Report how far a build is; a listener that fails does not stop it."""
    try:
        report(built)
    except Exception as error:
        logger.warning("progress was not shown: %s", type(error).__name__)


@dataclass
class Tally:
    """How far a build is, and whom to tell."""

    report: Progress
    document_total: int
    documents: int = 0
    segments: int = 0
    segment_total: int = 0
    reading: str = ""  # set by the thread that reads

    def reset(self, earlier: "Tally") -> None:
        """Count again from an earlier state."""
        self.documents = earlier.documents
        self.segments, self.segment_total = earlier.segments, earlier.segment_total

    def tell(self, current: str) -> None:
        """Report the present state."""
        built = Built(
            self.documents, self.document_total, self.segments, self.segment_total, current
        )
        tell(self.report, built)


@dataclass(frozen=True)
class _Cut:
    """A document whose text and segments are known."""

    document: WaitingDocument
    text: ReadDocument
    segments: list[NewSegment]


@dataclass(frozen=True)
class _Group:
    """Documents that are built together; `stored` are those whose segments are rows now."""

    document_ids: Sequence[str]
    stored: Sequence[str]
    segment_count: int
    last_name: str


@dataclass(frozen=True)
class _Page:
    """Some segments of a group, in order; with its last page a group is done."""

    group: _Group
    pending: Sequence[PendingSegment]
    is_last: bool


@dataclass(frozen=True)
class Work:
    """Documents of one dataset to be built by one rule, with their sizes in bytes."""

    dataset_id: str
    rule: ProcessRule
    sizes: Mapping[str, int]


def build(kb: Resources, lease: Lease, work: Sequence[Work], progress: Progress) -> None:
    """Take unfinished documents through all steps; each ends completed, or in error.

    Documents that another process builds are left to it. If the database goes away, what it was
    at is built once more; raises BackendError if it does not come back, or if the embedding model
    does not answer at all.
    """
    count = sum(len(part.sizes) for part in work)
    tally = Tally(progress, count)
    size = sum(sum(part.sizes.values()) for part in work)
    try:
        with Workers(kb.settings, documents=count, size=size) as workers:
            for part in work:
                _build_part(Step(kb, lease, part.rule, tally, workers), part)
    except BackendError as error:
        unfinished = "unfinished documents are kept, resume_builds() goes on with them"
        raise type(error)(f"{error}; {unfinished}") from error
    _index_if_large(kb, [part.dataset_id for part in work])


def unfinished_work(kb: Resources, dataset_id: str | None = None) -> list[Work]:
    """Return what earlier builds left undone, of one dataset or of all of the account."""
    with kb.db.transaction() as conn:
        found = builds.unfinished(conn, kb.account, dataset_id=dataset_id)
        rules = builds.rules(conn, {row.rule_id for row in found})
    free = [row for row in found if row.builder is None or is_dead(row.builder)]
    kinds = groupby(free, key=lambda row: (row.dataset_id, row.rule_id))
    return [
        Work(owner, ProcessRule.model_validate(rules[rule_id]), {row.id: row.size for row in rows})
        for (owner, rule_id), rows in kinds
    ]


@dataclass(frozen=True)
class Step:
    """What every step of a build works with; `begun` is what the threads are at."""

    kb: Resources
    lease: Lease
    rule: ProcessRule
    tally: Tally
    workers: Workers
    begun: list[Future[Any]] = field(default_factory=list)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Begin work in a thread."""
        future = in_background(work)
        self.begun[:] = [*(earlier for earlier in self.begun if not earlier.done()), future]
        return future

    def result(self, future: Future[T]) -> T:
        """Return what a thread does, and tell meanwhile which document is read."""
        told = ""
        while wait([future], SECONDS_BETWEEN_REPORTS).not_done:
            if self.tally.reading != told:
                told = self.tally.reading
                self.tally.tell(told)
        return future.result()


def _build_part(step: Step, part: Work) -> None:
    """Build group by group; what was not completed when the database went away, once more."""
    completed, lost_at = 0, -1
    while True:
        before = replace(step.tally)
        try:
            sizes = islice(part.sizes.items(), completed, None)
            for group in _built(step, part.dataset_id, sizes):
                completed += len(group.document_ids)
                before = replace(step.tally)
            return
        except ConnectionLost as error:
            if lost_at == completed:
                raise
            lost_at = completed
            logger.warning("%s; building on from document %d", error, completed + 1)
            wait(step.begun)  # a thread must not store what is built anew
            step.tally.reset(before)


def _built(step: Step, dataset_id: str, sizes: Iterator[tuple[str, int]]) -> Iterator[_Group]:
    """Yield each group when it is completed."""
    read_group = partial(_read_group, step, dataset_id)
    groups = one_ahead(read_group, _groups(sizes), step.begin, step.result)
    preparation = Preparation(step.kb, step.workers.words)
    prepare = partial(_prepare, step, dataset_id, preparation)
    pages = one_ahead(prepare, _pages(step, groups), step.begin, step.result)
    for page, prepared in pages:
        write(step.kb, prepared)
        step.tally.segments += len(page.pending)
        if page.is_last:
            _complete(step, dataset_id, page.group)
            step.tally.documents += len(page.group.document_ids)
            yield page.group
        step.tally.tell(page.group.last_name)


def _groups(sizes: Iterator[tuple[str, int]]) -> Iterator[list[str]]:
    """Yield ids in groups of some hundred documents, or some tens of megabytes."""
    group: list[str] = []
    total = 0
    for document_id, size in sizes:
        group.append(document_id)
        total += size
        if len(group) == GROUP_DOCUMENTS or total > GROUP_BYTES:
            yield group
            group, total = [], 0
    if group:
        yield group


def read_and_cut(
    kb: Resources, document: WaitingDocument, rule: ProcessRule
) -> tuple[ReadDocument, list[NewSegment]]:
    """Return the text and the segments that a document has by a rule; nothing is written.

    Raises ParseError if it gives no text.
    """
    with Workers(kb.settings, documents=1, size=0) as workers:
        cut = _read(document, rule, workers)
    return cut.text, cut.segments


# Read: parse, clean, split


def _read_group(step: Step, dataset_id: str, document_ids: Sequence[str]) -> _Group:
    """Store the texts and segments of those documents that are ours to build."""
    claimed = step.lease.claim(dataset_id, document_ids)
    cut = _store(step, _read_all(step, claimed))
    count = sum(len(item.segments) for item in cut)
    name = claimed[-1].name if claimed else ""
    return _Group(document_ids, [item.document.id for item in cut], count, name)


def _read_all(step: Step, claimed: Sequence[WaitingDocument]) -> list[_Cut]:
    """Read documents in as many processes as there are; those that fail end in error."""
    read_one = partial(_read_or_fail, step)
    found = side_by_side(read_one, claimed, step.workers.count)
    return [cut for cut in found if cut is not None]


def _read_or_fail(step: Step, document: WaitingDocument) -> _Cut | None:
    step.tally.reading = document.name
    try:
        return _read(document, step.rule, step.workers)
    except Exception as error:
        _fail(step, document, error)
        return None


def _read(document: WaitingDocument, rule: ProcessRule, workers: Workers) -> _Cut:
    """Return the text and the segments that a document has by a rule; nothing is written.

    Raises ParseError if it gives no text.
    """
    parsed = _already_text(document, rule)
    if parsed is not None:
        text = read(parsed, rule)
    else:
        text = workers.read(document.content, document.extension, rule)
    report, metadata = json_metadata(text.report), json_metadata(text.metadata)
    kept = ReadDocument(document.id, text.text, report, metadata)
    return _Cut(document, kept, _new_segments(document, text))


def _already_text(document: WaitingDocument, rule: ProcessRule) -> Parsed | None:
    """Return text that needs no parser: it is kept as it is, and it is UTF-8."""
    if rule.mode is not RuleMode.AS_IS or document.extension != "txt":
        return None
    try:
        return Parsed((Block(document.content.decode("utf-8")),))
    except UnicodeDecodeError:
        return None


def _new_segments(document: WaitingDocument, text: ReadText) -> list[NewSegment]:
    title = _title(document, text)
    return [
        NewSegment(
            new_id(),
            position,
            piece.content,
            title,
            piece.heading,
            piece.page,
            piece.start,
            piece.end,
            piece.token_count,
            sha256(embedded_text(title, piece.heading, piece.content).encode()).hexdigest(),
        )
        for position, piece in enumerate(text.pieces, start=1)
    ]


def _title(document: WaitingDocument, text: ReadText) -> str:
    """Return the title given in metadata, else the file's own, else its name."""
    given = document.metadata.get("title")
    return str(given) if given is not None else text.title or PurePosixPath(document.name).stem


def _fail(step: Step, document: WaitingDocument, error: Exception) -> None:
    """End a document in error, whatever the failure was; only ours are told in their words."""
    ours = isinstance(error, KnowledgeBaseError)
    reason = str(error) if ours else f"could not be built: {type(error).__name__}"
    with step.kb.db.transaction() as conn:
        if step.lease.held(conn, [document.id]):
            documents.fail(conn, document.id, reason)


def _store(step: Step, cut: Sequence[_Cut]) -> list[_Cut]:
    """Store what is still ours, and return what could be stored."""

    def insert(conn: Connection, some: Sequence[_Cut]) -> None:
        held = step.lease.held(conn, [item.document.id for item in some])
        _insert(conn, [item for item in some if item.document.id in held])

    def fail(conn: Connection, item: _Cut, reason: str) -> None:
        documents.fail(conn, item.document.id, reason)

    return together_or_alone(step.kb, cut, insert, fail)


def _insert(conn: Connection, cut: Sequence[_Cut]) -> None:
    if not cut:
        return
    documents.parsed(conn, [item.text for item in cut])
    new = {item.document.id: item.segments for item in cut}
    segments.insert(conn, cut[0].document.dataset_id, new)
    documents.split(conn, [_totals(item) for item in cut])


def _totals(cut: _Cut) -> tuple[str, int, int]:
    characters = sum(len(segment.content) for segment in cut.segments)
    tokens = sum(segment.token_count for segment in cut.segments)
    return cut.document.id, characters, tokens


# Index: prepare, write, complete


def _pages(step: Step, groups: Iterator[_Group]) -> Iterator[_Page]:
    """Yield the segments of each group in pages, at least one."""
    kb = step.kb
    size = max(PAGE_SEGMENTS, kb.settings.embedding_batch_size * kb.settings.embedding_concurrency)
    for group in groups:
        step.tally.segment_total += group.segment_count
        after, is_last = ("", 0), False
        while not is_last:
            with kb.db.transaction() as conn:
                found = segments.pending(conn, group.stored, size, after=after)
            is_last = len(found) < size
            if found:
                position, segment = found[-1]
                after = (segment.document_id, position)
            yield _Page(group, [segment for _, segment in found], is_last)


def _prepare(
    step: Step, dataset_id: str, preparation: Preparation, page: _Page
) -> tuple[_Page, Prepared]:
    with step.kb.db.transaction() as conn:
        # Read anew: the first page records the dimension of the dataset's vectors.
        dataset = datasets.owned(conn, step.kb.account, dataset_id)
    return page, preparation.of(dataset, page.pending)


def _complete(step: Step, dataset_id: str, group: _Group) -> None:
    """Complete documents whose segments are done; the versions that they replace go with that."""
    with step.kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset_id}")
        documents.complete(conn, list(step.lease.held(conn, group.stored)))
        old = duplicates.replaced(conn, group.document_ids)
        if old:
            duplicates.keep_disabled(conn, old)
            remove_documents(step.kb, conn, dataset_id, old)


def _index_if_large(kb: Resources, dataset_ids: Sequence[str]) -> None:
    """Let the stores index many vectors, in the background: nobody waits for it here."""
    with kb.db.transaction() as conn:
        found = datasets.read(conn, kb.account, dataset_ids)
    named = {(dataset.embedding_model, dataset.embedding_dimension) for dataset in found}
    for model, dimension in named:
        if dimension is not None:
            kb.vector_stores.index_if_large(Space(model, dimension))
