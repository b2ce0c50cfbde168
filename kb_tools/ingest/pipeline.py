"""Build documents: parse, clean, split, index, complete. Every step commits.

Documents go through the steps in groups, so that ten thousand short ones do not cost fifty
thousand transactions; one that fails ends in error with its reason, and the others go on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath

from psycopg import Connection

from kb_tools.config import PreProcess, ProcessRule, RuleMode
from kb_tools.ingest.clean import clean
from kb_tools.ingest.cleaned import CleanedText, assemble
from kb_tools.ingest.indexing import index_segments
from kb_tools.ingest.isolate import together_or_alone
from kb_tools.ingest.parsed import Block, Parsed, ParseError
from kb_tools.ingest.parser_process import ParserProcess
from kb_tools.ingest.progress import Built, Progress
from kb_tools.ingest.sources import json_metadata
from kb_tools.ingest.split import Piece, split
from kb_tools.models import embedded_text, new_id
from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents, segments
from kb_tools.storage.documents import ReadDocument, WaitingDocument
from kb_tools.storage.segments import NewSegment

GROUP_DOCUMENTS = 200
GROUP_BYTES = 32 * 1024 * 1024
INDEX_SEGMENTS = 256


@dataclass
class Tally:
    """How far a build is, and whom to tell."""

    report: Progress
    document_total: int
    documents: int = 0
    segments: int = 0
    segment_total: int = 0

    def tell(self, current: str) -> None:
        """Report the present state."""
        self.report(
            Built(self.documents, self.document_total, self.segments, self.segment_total, current)
        )


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


def build(
    kb: Resources,
    dataset_id: str,
    rule: ProcessRule,
    document_ids: Sequence[str],
    progress: Progress,
) -> None:
    """Take waiting documents through all steps; each ends completed, or in error."""
    tally = Tally(progress, len(document_ids))
    with ParserProcess(kb.settings) as parser:
        for group in _groups(kb, document_ids):
            texts = _read_all(kb, rule, parser, group, tally)
            ids = _cut_all(kb, rule, texts, tally)
            _index_all(kb, dataset_id, ids, tally)
            with kb.db.transaction() as conn:
                documents.complete(conn, ids)
            tally.documents += len(group)
            tally.tell(group[-1].name)


def _groups(kb: Resources, document_ids: Sequence[str]) -> Iterator[list[WaitingDocument]]:
    """Yield waiting documents, marked as parsing: some hundred, or some tens of megabytes, each."""
    with kb.db.transaction() as conn:
        sizes = documents.sizes(conn, document_ids)
    group: list[str] = []
    for document_id in document_ids:
        group.append(document_id)
        full = sum(sizes.get(member, 0) for member in group) > GROUP_BYTES
        if full or len(group) == GROUP_DOCUMENTS or document_id == document_ids[-1]:
            with kb.db.transaction() as conn:
                found = documents.waiting(conn, group)
                documents.start(conn, [document.id for document in found])
            if found:
                yield found
            group = []


# Parse and clean


def _read_all(
    kb: Resources,
    rule: ProcessRule,
    parser: ParserProcess,
    group: Sequence[WaitingDocument],
    tally: Tally,
) -> list[_Text]:
    texts = []
    for document in group:
        tally.tell(document.name)
        try:
            texts.append(_read(document, rule, parser))
        except ParseError as error:
            _fail(kb, document, error)
    return together_or_alone(
        kb, texts, _keep_texts, lambda conn, text, why: documents.fail(conn, text.document.id, why)
    )


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
    documents.parsed(
        conn,
        [
            ReadDocument(
                text.document.id,
                text.cleaned.text,
                json_metadata(text.parsed.report),
                json_metadata(text.parsed.metadata),
            )
            for text in texts
        ],
    )


def _fail(kb: Resources, document: WaitingDocument, error: ParseError) -> None:
    with kb.db.transaction() as conn:
        documents.fail(conn, document.id, str(error))


# Split


def _cut_all(kb: Resources, rule: ProcessRule, texts: Sequence[_Text], tally: Tally) -> list[str]:
    """Insert the segments of all texts and return the ids of the documents that have some."""
    cut = []
    for text in texts:
        try:
            cut.append(_Cut(text.document, _new_segments(text, split(text.cleaned, rule))))
        except ParseError as error:
            _fail(kb, text.document, error)
    cut = together_or_alone(
        kb, cut, _insert, lambda conn, item, why: documents.fail(conn, item.document.id, why)
    )
    tally.segment_total += sum(len(item.segments) for item in cut)
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
    for item in cut:
        segments.insert(conn, item.document.dataset_id, item.document.id, item.segments)
    documents.split(conn, [_totals(item) for item in cut])


def _totals(cut: _Cut) -> tuple[str, int, int]:
    characters = sum(len(segment.content) for segment in cut.segments)
    tokens = sum(segment.token_count for segment in cut.segments)
    return cut.document.id, characters, tokens


# Index


def _index_all(kb: Resources, dataset_id: str, document_ids: Sequence[str], tally: Tally) -> None:
    after = ("", 0)
    while True:
        with kb.db.transaction() as conn:
            # Read anew: the first batch records the dimension of the dataset's vectors.
            dataset = datasets.owned(conn, kb.account, dataset_id)
            found = segments.pending(conn, document_ids, INDEX_SEGMENTS, after=after)
        if not found:
            return
        index_segments(kb, dataset, [segment for _, segment in found])
        position, last = found[-1]
        after = (last.document_id, position)
        tally.segments += len(found)
        tally.tell("")
