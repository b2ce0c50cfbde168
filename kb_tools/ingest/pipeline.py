"""Build documents: parse, clean, split, index, complete. Every step commits.

Documents go through the steps in groups, so that ten thousand short ones do not cost fifty
thousand transactions; one that fails ends in error with its reason, and the others go on.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from pathlib import PurePosixPath
from typing import TypeVar

from psycopg import Connection

from kb_tools import db
from kb_tools.config import PreProcess, ProcessRule, RuleMode
from kb_tools.errors import BackendError, ConnectionLost, KnowledgeBaseError
from kb_tools.ingest.clean import clean
from kb_tools.ingest.cleaned import CleanedText, assemble
from kb_tools.ingest.indexing import index_segments
from kb_tools.ingest.isolate import together_or_alone
from kb_tools.ingest.lease import Lease, is_dead
from kb_tools.ingest.parsed import Block, Parsed, ParseError
from kb_tools.ingest.parser_process import ParserProcess
from kb_tools.ingest.progress import Built, Progress
from kb_tools.ingest.removal import remove_documents
from kb_tools.ingest.sources import json_metadata
from kb_tools.ingest.split import Piece, split
from kb_tools.models import embedded_text, new_id
from kb_tools.resources import Resources
from kb_tools.storage import builds, datasets, documents, duplicates, segments
from kb_tools.storage.documents import ReadDocument, WaitingDocument
from kb_tools.storage.segments import NewSegment
from kb_tools.vectorstores import Space

logger = logging.getLogger(__name__)

GROUP_DOCUMENTS = 200
GROUP_BYTES = 32 * 1024 * 1024
INDEX_SEGMENTS = 256


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
class _Text:
    """A document whose text is known."""

    document: WaitingDocument
    parsed: Parsed
    cleaned: CleanedText


@dataclass(frozen=True)
class _Cut:
    """A document whose segments are known."""

    document: WaitingDocument
    segments: list[NewSegment]


_Item = TypeVar("_Item", _Text, _Cut)


@dataclass(frozen=True)
class Work:
    """Documents of one dataset to be built by one rule, with their sizes in bytes."""

    dataset_id: str
    rule: ProcessRule
    sizes: Mapping[str, int]


def build(kb: Resources, lease: Lease, work: Sequence[Work], progress: Progress) -> None:
    """Take unfinished documents through all steps; each ends completed, or in error.

    Documents that another process builds are left to it. If the database goes away, what it was
    at is built once more; raises BackendError if it does not come back.
    """
    tally = Tally(progress, sum(len(part.sizes) for part in work))
    try:
        with ParserProcess(kb.settings) as parser:
            for part in work:
                step = Step(kb, lease, part.rule, tally)
                for ids in _groups(part.sizes):
                    _build_group_through_a_crash(step, parser, part.dataset_id, ids)
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
    """What every step of a build works with."""

    kb: Resources
    lease: Lease
    rule: ProcessRule
    tally: Tally


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield ids in groups of some hundred documents, or some tens of megabytes."""
    group: list[str] = []
    total = 0
    for document_id, size in sizes.items():
        group.append(document_id)
        total += size
        if len(group) == GROUP_DOCUMENTS or total > GROUP_BYTES:
            yield group
            group, total = [], 0
    if group:
        yield group


def _build_group_through_a_crash(
    step: Step, parser: ParserProcess, dataset_id: str, document_ids: Sequence[str]
) -> None:
    before = replace(step.tally)
    try:
        _build_group(step, parser, dataset_id, document_ids)
    except ConnectionLost as error:
        logger.warning("%s; building %d documents anew", error, len(document_ids))
        step.tally.reset(before)
        _build_group(step, parser, dataset_id, document_ids)


def _build_group(
    step: Step, parser: ParserProcess, dataset_id: str, document_ids: Sequence[str]
) -> None:
    group = step.lease.claim(dataset_id, document_ids)
    ids = _cut_all(step, _read_all(step, parser, group))
    _index_all(step, dataset_id, ids)
    _complete(step, dataset_id, ids, document_ids)
    step.tally.documents += len(document_ids)
    step.tally.tell(group[-1].name if group else "")


def _complete(step: Step, dataset_id: str, indexed: Sequence[str], ended: Sequence[str]) -> None:
    """Complete documents whose segments are done; the versions that they replace go with that."""
    with step.kb.db.transaction() as conn:
        db.lock(conn, f"dataset {dataset_id}")
        documents.complete(conn, list(step.lease.held(conn, indexed)))
        old = duplicates.replaced(conn, ended)
        if old:
            duplicates.keep_disabled(conn, old)
            remove_documents(step.kb, conn, dataset_id, old)


def read_and_cut(
    kb: Resources, document: WaitingDocument, rule: ProcessRule
) -> tuple[ReadDocument, list[NewSegment]]:
    """Return the text and the segments that a document has by a rule; nothing is written.

    Raises ParseError if it gives no text.
    """
    with ParserProcess(kb.settings) as parser:
        text = _read(document, rule, parser)
    return _kept(text), _new_segments(text, split(text.cleaned, rule))


# Parse and clean


def _read_all(step: Step, parser: ParserProcess, group: Sequence[WaitingDocument]) -> list[_Text]:
    texts = []
    for document in group:
        step.tally.tell(document.name)
        try:
            texts.append(_read(document, step.rule, parser))
        except Exception as error:
            _fail(step, document, error)

    def keep(conn: Connection, some: Sequence[_Text]) -> None:
        _keep_texts(conn, _ours(step, conn, some))

    return together_or_alone(step.kb, texts, keep, _fail_alone)


def _ours(step: Step, conn: Connection, items: Sequence[_Item]) -> list[_Item]:
    """Return the items whose document is still leased by this build."""
    held = step.lease.held(conn, [item.document.id for item in items])
    return [item for item in items if item.document.id in held]


def _fail_alone(conn: Connection, item: "_Text | _Cut", reason: str) -> None:
    documents.fail(conn, item.document.id, reason)


def _read(document: WaitingDocument, rule: ProcessRule, parser: ParserProcess) -> _Text:
    parsed = _already_text(document, rule)
    if parsed is None:
        parsed = parser.parse(document.content, document.extension)
    cleaned = assemble(parsed, rule)
    if not cleaned.text.strip():
        raise ParseError("no text: the document is empty")
    return _Text(document, parsed, cleaned)


def _already_text(document: WaitingDocument, rule: ProcessRule) -> Parsed | None:
    """Return text that needs no parser: it is kept as it is, and it is UTF-8."""
    if rule.mode is not RuleMode.AS_IS or document.extension != "txt":
        return None
    try:
        return Parsed((Block(document.content.decode("utf-8")),))
    except UnicodeDecodeError:
        return None


def _keep_texts(conn: Connection, texts: Sequence[_Text]) -> None:
    documents.parsed(conn, [_kept(text) for text in texts])


def _kept(text: _Text) -> ReadDocument:
    return ReadDocument(
        text.document.id,
        text.cleaned.text,
        json_metadata(text.parsed.report),
        json_metadata(text.parsed.metadata),
    )


def _fail(step: Step, document: WaitingDocument, error: Exception) -> None:
    """End a document in error, whatever the failure was; only ours are told in their words."""
    ours = isinstance(error, KnowledgeBaseError)
    reason = str(error) if ours else f"could not be built: {type(error).__name__}"
    with step.kb.db.transaction() as conn:
        if step.lease.held(conn, [document.id]):
            documents.fail(conn, document.id, reason)


# Split


def _cut_all(step: Step, texts: Sequence[_Text]) -> list[str]:
    """Insert the segments of all texts and return the ids of the documents that have some."""
    cut = []
    for text in texts:
        try:
            cut.append(_Cut(text.document, _new_segments(text, split(text.cleaned, step.rule))))
        except Exception as error:
            _fail(step, text.document, error)

    def insert(conn: Connection, some: Sequence[_Cut]) -> None:
        _insert(conn, _ours(step, conn, some))

    cut = together_or_alone(step.kb, cut, insert, _fail_alone)
    step.tally.segment_total += sum(len(item.segments) for item in cut)
    return [item.document.id for item in cut]


def _new_segments(text: _Text, pieces: Sequence[Piece]) -> list[NewSegment]:
    title = _title(text)
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
        for position, piece in enumerate(pieces, start=1)
    ]


def _title(text: _Text) -> str:
    """Return the title given in metadata, else the file's own, else its name."""
    given = text.document.metadata.get("title")
    if given is not None:
        return str(given)
    own = clean(text.parsed.title, (PreProcess.REMOVE_EXTRA_SPACE,))
    return own or PurePosixPath(text.document.name).stem


def _insert(conn: Connection, cut: Sequence[_Cut]) -> None:
    if not cut:
        return
    new = {item.document.id: item.segments for item in cut}
    segments.insert(conn, cut[0].document.dataset_id, new)
    documents.split(conn, [_totals(item) for item in cut])


def _totals(cut: _Cut) -> tuple[str, int, int]:
    characters = sum(len(segment.content) for segment in cut.segments)
    tokens = sum(segment.token_count for segment in cut.segments)
    return cut.document.id, characters, tokens


# Index


def _index_all(step: Step, dataset_id: str, document_ids: Sequence[str]) -> None:
    after = ("", 0)
    while True:
        with step.kb.db.transaction() as conn:
            # Read anew: the first batch records the dimension of the dataset's vectors.
            dataset = datasets.owned(conn, step.kb.account, dataset_id)
            found = segments.pending(conn, document_ids, INDEX_SEGMENTS, after=after)
        if not found:
            return
        index_segments(step.kb, dataset, [segment for _, segment in found])
        position, last = found[-1]
        after = (last.document_id, position)
        step.tally.segments += len(found)
        step.tally.tell("")


def _index_if_large(kb: Resources, dataset_ids: Sequence[str]) -> None:
    """Let the stores index many vectors, in the background: nobody waits for it here."""
    with kb.db.transaction() as conn:
        found = datasets.read(conn, kb.account, dataset_ids)
    named = {(dataset.embedding_model, dataset.embedding_dimension) for dataset in found}
    for model, dimension in named:
        if dimension is not None:
            kb.vector_stores.index_if_large(Space(model, dimension))
