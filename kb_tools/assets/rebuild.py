"""Build a document anew from its original bytes, without losing what people changed in it.

The old segments are searched until the new ones take their place, in one transaction; a rebuild
that fails changes nothing. A piece that is cut as before keeps its segment: its id, its edits and
its flag. A change that has no piece to go to is named before anything is replaced.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from kb_tools.assets import editing
from kb_tools.assets.documents import get_document
from kb_tools.assets.editing import Author, Locked
from kb_tools.config import ProcessRule
from kb_tools.errors import InvalidInput, InvalidState, NotFound
from kb_tools.ingest import pipeline
from kb_tools.ingest.indexing import embed_texts, write_indexes
from kb_tools.models import (
    Action,
    Dataset,
    Document,
    DocumentStatus,
    Json,
    Revision,
    Segment,
    SegmentStatus,
    embedded_text,
    new_id,
)
from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents, full_text, revisions, segments, words
from kb_tools.storage.documents import EditableDocument
from kb_tools.storage.segments import NewSegment, Written
from kb_tools.text.tokenize import Tokenizer
from kb_tools.vectorstores import Vector

NAMED_EDITS = 10
EXCERPT = 30


class Edits(StrEnum):
    """What becomes of manual changes in a rebuild."""

    KEEP = "keep"
    DISCARD = "discard"


def rebuild_document(
    kb: Resources,
    document_id: str,
    process_rule: ProcessRule | None = None,
    *,
    edits: str = Edits.KEEP,
    edited_by: str | None = None,
) -> Document:
    """Parse, cut and index a document anew, by its own rule or another one; return it.

    Edited, created, deleted and disabled segments stay so (`edits="keep"`) where the new cut has
    the piece that they were; InvalidState lists those without, and nothing is replaced.
    `edits="discard"` takes the document as its file says. Raises NotFound, InvalidState if it is
    being built, ParseError if the file gives no text, BackendError if it cannot be embedded.
    """
    author, wanted = Author(edited_by), _checked(edits)
    started = time.monotonic()
    with kb.db.transaction() as conn:
        _editable(documents.editable(conn, kb.account, [document_id]), document_id)
        stored: dict[str, Any] = documents.rule_of(conn, document_id)
        rule = process_rule or ProcessRule(**stored)
        kept = documents.contents(conn, [document_id])
    if not kept:
        raise InvalidState(f"the original bytes of document {document_id!r} are gone: add it again")
    read, pieces = pipeline.read_and_cut(kb, kept[0], rule)
    cut = time.monotonic()
    while True:
        before = _state(kb, document_id)
        plan = _plan(before, pieces, wanted)
        if plan.lost:
            raise InvalidState(_told(before, plan.lost))
        vectors = _embed(kb, before.dataset, plan.rewritten + plan.new)
        with kb.db.transaction() as conn:
            locked = editing.lock_document(kb, conn, document_id, before.dataset.id)
            _editable({document_id: locked.document}, document_id)
            if not _is_now(kb, before, locked):
                continue  # somebody edited it meanwhile
            _write(kb, locked, before.tokenizer, plan, vectors)
            now = time.monotonic()
            rule_id = _keep_rule(locked, process_rule)
            documents.rebuilt(conn, read, rule_id, started=now - started, cut=now - cut)
            after: dict[str, Json] = {"edits": wanted.value, "segments": plan.size}
            editing.note(locked, None, Action.REBUILT, author, before={}, after=after)
        return get_document(kb, document_id)


# What is there, and what people made of it


@dataclass(frozen=True)
class _State:
    """A document before its rebuild."""

    dataset: Dataset
    tokenizer: Tokenizer
    document_id: str
    name: str
    segments: list[Segment]
    history: list[Revision]
    latest: int


@dataclass
class _Past:
    """What a segment was when it was cut; `content` and `keywords` are None if they still are."""

    created: bool = False
    deleted: dict[str, object] | None = None
    content: str | None = None
    keywords: list[str] | None = None


@dataclass(frozen=True)
class _Plan:
    """What becomes of the old segments (`placed` keep all but their place) and the pieces.

    `lost` are manual changes that have no place in the new cut, in words.
    """

    placed: list[Written]
    rewritten: list[Written]
    new: list[Written]
    gone: list[Segment]
    lost: list[str]

    @property
    def size(self) -> int:
        """How many segments the document has afterwards."""
        return len(self.placed) + len(self.rewritten) + len(self.new)


def _state(kb: Resources, document_id: str) -> _State:
    with kb.db.transaction() as conn:
        latest = revisions.latest(conn, document_id)
        found = documents.editable(conn, kb.account, [document_id])
        document = _editable(found, document_id)
        return _State(
            datasets.owned(conn, kb.account, document.dataset_id),
            words.tokenizer(conn, document.dataset_id, kb.settings.tokenizer),
            document.id,
            document.name,
            segments.of_document(conn, document_id),
            revisions.standing(conn, document_id),
            latest,
        )


def _is_now(kb: Resources, before: _State, locked: Locked) -> bool:
    same_words = editing.tokenizer_of(kb, locked).name == before.tokenizer.name
    same_model = editing.same_model(before.dataset, locked)
    return (
        same_words
        and same_model
        and revisions.latest(locked.conn, before.document_id) == before.latest
    )


def _pasts(history: Sequence[Revision]) -> dict[str, _Past]:
    """Return what the segments with a history once were, by id."""
    pasts: dict[str, _Past] = {}
    for revision in history:
        segment_id = str(revision.segment_id)
        if segment_id not in pasts:
            pasts[segment_id] = _Past(created=revision.before is None)
        past, before = pasts[segment_id], revision.before or {}
        if past.content is None and "content" in before:
            past.content = str(before["content"])
        if past.keywords is None and "keywords" in before:
            past.keywords = cast(list[str], before["keywords"])
        past.deleted = None if revision.after is not None else dict(before)
    return pasts


def _changes(segment: Segment, past: _Past) -> list[str]:
    """Return what a person did to a segment that is there."""
    edited = past.content not in (None, segment.content)
    tagged = past.keywords not in (None, segment.keywords)
    off = segment.status is SegmentStatus.COMPLETED and not segment.enabled
    done = {"created": past.created, "edited": edited or tagged, "disabled": off}
    return [name for name, true in done.items() if true]


# The plan


class _Pieces:
    """The pieces of a cut, to be taken by heading and text."""

    def __init__(self, pieces: Sequence[NewSegment]) -> None:
        self._by_text: dict[tuple[str, str], deque[NewSegment]] = defaultdict(deque)
        for piece in pieces:
            self._by_text[piece.heading, piece.content].append(piece)

    def take(self, heading: str, content: str) -> NewSegment | None:
        waiting = self._by_text.get((heading, content))
        return waiting.popleft() if waiting else None

    def left(self) -> list[NewSegment]:
        rest = [piece for waiting in self._by_text.values() for piece in waiting]
        return sorted(rest, key=lambda piece: piece.position)


def _plan(state: _State, pieces: Sequence[NewSegment], edits: Edits) -> _Plan:
    pasts, pool = _pasts(state.history), _Pieces(pieces)
    title = pieces[0].title
    plan = _Plan([], [], [], [], [])
    last = len(pieces)
    for segment in state.segments:
        past = pasts.get(segment.id, _Past())
        changes = _changes(segment, past)
        if edits is Edits.DISCARD and changes:
            plan.gone.append(segment)
        elif past.created:
            last += 1
            _keep(plan, segment, editing.written(segment, title=title, position=last))
        elif piece := pool.take(segment.heading, past.content or segment.content):
            _keep(plan, segment, _in_place_of(segment, piece))
        else:
            plan.gone.append(segment)
            plan.lost.extend(_named(segment.position, name, segment.content) for name in changes)
    if edits is Edits.KEEP:
        plan.lost.extend(_stay_deleted(pasts.values(), pool))
    plan.new.extend(_from_piece(piece, state) for piece in pool.left())
    return plan


def _keep(plan: _Plan, segment: Segment, kept: Written) -> None:
    same = kept.hash == segment.hash and segment.status is SegmentStatus.COMPLETED
    (plan.placed if same else plan.rewritten).append(kept)


def _in_place_of(segment: Segment, piece: NewSegment) -> Written:
    return editing.written(
        segment,
        position=piece.position,
        title=piece.title,
        page=piece.page,
        start=piece.start,
        end=piece.end,
    )


def _from_piece(piece: NewSegment, state: _State) -> Written:
    keywords = state.tokenizer.extract_keywords(piece.content)
    return Written(
        piece.id, state.dataset.id, state.document_id, piece.position, piece.content, piece.title,
        piece.heading, piece.page, piece.start, piece.end, keywords,
        piece.token_count, piece.hash,
    )  # fmt: skip


def _stay_deleted(pasts: Iterable[_Past], pool: _Pieces) -> Iterator[str]:
    """Take out of the pool what a person had deleted; yield what is not there, in words."""
    for past in pasts:
        was = past.deleted
        if was is None or past.created:
            continue
        content = past.content or str(was["content"])
        if pool.take(str(was["heading"]), content) is None:
            yield _named(was["position"], "deleted", content)


def _named(position: object, change: str, content: str) -> str:
    return f"segment {position} {change} ({content[:EXCERPT]!r})"


def _told(state: _State, lost: Sequence[str]) -> str:
    named = "; ".join(lost[:NAMED_EDITS])
    more = f" and {len(lost) - NAMED_EDITS} more" if len(lost) > NAMED_EDITS else ""
    return (
        f"rebuilding document {state.name!r} would lose {len(lost)} manual changes, because its "
        f"text is now cut otherwise: {named}{more}; take the rule that it was built by, or pass "
        "edits='discard'"
    )


# The switch


def _embed(kb: Resources, dataset: Dataset, changed: Sequence[Written]) -> dict[str, Vector]:
    texts = {new.hash: embedded_text(new.title, new.heading, new.content) for new in changed}
    return embed_texts(kb, dataset, texts)


def _write(
    kb: Resources,
    locked: Locked,
    tokenizer: Tokenizer,
    plan: _Plan,
    vectors: Mapping[str, Vector],
) -> None:
    conn = locked.conn
    gone = [segment.id for segment in plan.gone]
    full_text.remove(conn, locked.dataset.id, gone)
    if locked.space is not None and gone:
        kb.vector_stores.of(locked.space).delete(segment_ids=gone, conn=conn)
    segments.delete(conn, gone)
    segments.place(conn, [(w.id, w.position, w.page, w.start, w.end) for w in plan.placed])
    for kept in plan.rewritten:
        segments.rewrite(conn, kept)
    failed = [kept for kept in plan.rewritten if kept.status is SegmentStatus.ERROR]
    segments.complete(conn, [kept.id for kept in failed], [kept.keywords for kept in failed])
    segments.insert_written(conn, plan.new)
    items = [
        editing.indexed(tokenizer, new, vectors[new.hash], locked.document)
        for new in plan.rewritten + plan.new
    ]
    write_indexes(kb, conn, locked.dataset, tokenizer, items)


def _keep_rule(locked: Locked, rule: ProcessRule | None) -> str | None:
    if rule is None:
        return None
    rule_id, snapshot = new_id(), rule.model_dump(mode="json")
    documents.insert_rule(locked.conn, rule_id, locked.dataset.id, rule.mode, snapshot)
    return rule_id


def _editable(found: Mapping[str, EditableDocument], document_id: str) -> EditableDocument:
    """Return the document. Raises NotFound, InvalidState while it is being built."""
    if document_id not in found:
        raise NotFound(f"no document with id {document_id!r}")
    document = found[document_id]
    if document.status not in (DocumentStatus.COMPLETED, DocumentStatus.ERROR):
        raise InvalidState(
            f"document {document.name!r} is {document.status}: it is being built; see resume_builds"
        )
    return document


def _checked(edits: str) -> Edits:
    try:
        return Edits(edits)
    except ValueError:
        raise InvalidInput(f"edits is 'keep' or 'discard'; got {edits!r}") from None
