"""Segments: look up, create, edit, switch on and off, delete, while they are being searched."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from psycopg import Connection

from kb_tools.assets import editing
from kb_tools.assets.documents import get_document
from kb_tools.assets.editing import Author, Locked
from kb_tools.assets.pages import page_of
from kb_tools.errors import BackendError, InvalidState, NotFound
from kb_tools.ingest.indexing import write_indexes
from kb_tools.models import (
    Action,
    DocumentStatus,
    Revision,
    Segment,
    SegmentStatus,
    new_id,
)
from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents, full_text, segments
from kb_tools.storage.segments import Written
from kb_tools.text.tokens import count_tokens


def list_segments(
    kb: Resources, document_id: str, *, search: str | None = None, offset: int = 0, limit: int = 50
) -> list[Segment]:
    """Return a document's segments whose content holds `search`, by position. Raises NotFound."""
    get_document(kb, document_id)
    with kb.db.transaction() as conn:
        return segments.page(conn, document_id, **page_of(search, offset, limit))


def get_segment(kb: Resources, segment_id: str) -> Segment:
    """Return a segment. Raises NotFound if this account has none with that id."""
    with kb.db.transaction() as conn:
        return segments.owned(conn, kb.account, segment_id)


def create_segment(
    kb: Resources,
    document_id: str,
    content: str,
    keywords: Sequence[str] | None = None,
    *,
    edited_by: str | None = None,
) -> Segment:
    """Add a segment at the end of a completed document; it can be found when this returns.

    Without `keywords` the ten best words of the text are taken. Raises NotFound, InvalidState if
    the document is not completed or the dataset's model not open, InvalidInput if the content is
    blank or has more than 1,000 tokens or there are more than ten keywords, BackendError if it
    cannot be embedded: then nothing was added.
    """
    author = Author(edited_by)
    content = editing.checked_content(content)
    given = None if keywords is None else editing.checked_keywords(keywords)
    tokens, segment_id = count_tokens(content), new_id()

    def wanted(locked: Locked) -> Written:
        document, conn = locked.document, locked.conn
        title = segments.title_in(conn, document.id) or PurePosixPath(document.name).stem
        position = segments.last_position(conn, document.id) + 1
        words = given
        if words is None:
            words = editing.tokenizer_of(kb, locked).extract_keywords(content)
        return Written(
            segment_id, document.dataset_id, document.id, position, content, title, "", None, 0, 0,
            words, tokens, editing.text_hash(title, "", content),
        )  # fmt: skip

    with kb.db.transaction() as conn:
        locked = _unlocked(kb, conn, document_id)
        editing.require_completed(locked.document)
        new = wanted(locked)
    while True:
        dataset = locked.dataset
        vector = editing.vector_of(kb, dataset, new)
        with kb.db.transaction() as conn:
            locked = editing.lock_document(kb, conn, document_id, dataset.id)
            editing.require_completed(locked.document)
            embedded, new = new.hash, wanted(locked)
            if editing.same_model(dataset, locked) and new.hash == embedded:
                editing.add(kb, locked, new, vector, author)
                return segments.owned(conn, kb.account, segment_id)


def update_segment(
    kb: Resources,
    segment_id: str,
    content: str | None = None,
    keywords: Sequence[str] | None = None,
    *,
    edited_by: str | None = None,
) -> Segment:
    """Change the text or the keywords of a completed segment; None keeps what is there.

    It is embedded again only if its text changes. Keywords that were taken from the old text are
    then taken from the new one; those that a person set stay. What is disabled stays disabled.
    Raises NotFound, InvalidState if the segment is not completed, InvalidInput as `create_segment`
    (a segment that is longer than 1,000 tokens may stay as long), BackendError if it cannot be
    embedded: then nothing was changed.
    """
    author = Author(edited_by)
    if content is not None:
        content = editing.checked_content(content, _longest(kb, segment_id, content))
    words = None if keywords is None else editing.checked_keywords(keywords)
    edit(kb, segment_id, content, words, author)
    return get_segment(kb, segment_id)


def set_segment_enabled(
    kb: Resources, segment_id: str, enabled: bool, *, edited_by: str | None = None
) -> Segment:
    """Switch a completed segment on or off; nothing happens if it is so already.

    A segment in error is indexed again when it is switched on. Raises NotFound, InvalidState if
    the segment or its document is not completed, BackendError if it fails: the segment is then in
    error and disabled.
    """
    switch(kb, segment_id, enabled, Author(edited_by))
    return get_segment(kb, segment_id)


def delete_segment(kb: Resources, segment_id: str, *, edited_by: str | None = None) -> Revision:
    """Delete a segment, completed or in error, and return the revision that `undo` takes back.

    Raises NotFound, or InvalidState while it is being built.
    """
    return delete(kb, segment_id, Author(edited_by))


# The same, told by whom and why: `undo` calls them too


def edit(
    kb: Resources,
    segment_id: str,
    content: str | None,
    keywords: Sequence[str] | None,
    author: Author,
) -> Revision | None:
    """Change a segment as `update_segment` does; None if there is nothing to change."""
    while True:
        with kb.db.transaction() as conn:
            segment = segments.owned(conn, kb.account, segment_id)
            dataset = datasets.owned(conn, kb.account, segment.dataset_id)
        _require_completed(segment)
        new = editing.written(segment, content=segment.content if content is None else content)
        vector = editing.vector_of(kb, dataset, new) if new.hash != segment.hash else None
        with kb.db.transaction() as conn:
            locked, now = editing.lock_segment(kb, conn, segment_id)
            editing.require_completed(locked.document)
            _require_completed(now)
            author.require_unchanged({"content": now.content, "keywords": now.keywords})
            text = now.content if content is None else content
            tokenizer = editing.tokenizer_of(kb, locked)
            words = editing.keywords_after(tokenizer, now, text, keywords)
            wanted = editing.written(now, content=text, keywords=words)
            if wanted.content == now.content and wanted.keywords == now.keywords:
                return None
            if wanted.hash == now.hash:
                return editing.change(kb, locked, now, wanted, None, author)
            # Else somebody changed it meanwhile so that we lack its vector.
            fits = wanted.hash == new.hash and editing.same_model(dataset, locked)
            if vector is not None and fits:
                return editing.change(kb, locked, now, wanted, vector, author)


def switch(kb: Resources, segment_id: str, enabled: bool, author: Author) -> Revision | None:
    """Switch a segment as `set_segment_enabled` does; None if it is so already."""
    if enabled and get_segment(kb, segment_id).status is SegmentStatus.ERROR:
        return _index_again(kb, segment_id, author)
    try:
        with kb.db.transaction() as conn:
            locked, segment = editing.lock_segment(kb, conn, segment_id)
            editing.require_completed(locked.document)
            _require_completed(segment)
            author.require_unchanged({"enabled": segment.enabled})
            if segment.enabled == enabled:
                return None
            return editing.switch(kb, locked, segment, enabled, author)
    except (NotFound, InvalidState):
        raise
    except Exception as error:
        kind = type(error).__name__
    # Out here, so that words of a store, which can hold a key, are not the context of ours.
    _fail(kb, segment_id, f"not {'enabled' if enabled else 'disabled'}: {kind}")
    raise BackendError(
        f"segment {segment_id!r} could not be {'enabled' if enabled else 'disabled'} ({kind}); it "
        "is in error and disabled: enable it to index it again"
    )


def delete(kb: Resources, segment_id: str, author: Author) -> Revision:
    """Delete a segment as `delete_segment` does."""
    with kb.db.transaction() as conn:
        locked, segment = editing.lock_segment(kb, conn, segment_id)
        author.require_unchanged({"content": segment.content, "keywords": segment.keywords})
        _require_built(locked, segment)
        return editing.remove(kb, locked, segment, author)


def restore(kb: Resources, deleted: Written, author: Author) -> Revision:
    """Bring a deleted segment back, with its id and at its position.

    Raises InvalidState if it is there already.
    """
    while True:
        with kb.db.transaction() as conn:
            dataset = _unlocked(kb, conn, deleted.document_id).dataset
        completed = deleted.status is SegmentStatus.COMPLETED
        vector = editing.vector_of(kb, dataset, deleted) if completed else None
        with kb.db.transaction() as conn:
            locked = editing.lock_document(kb, conn, deleted.document_id, dataset.id)
            editing.require_completed(locked.document)
            if segments.read(conn, [deleted.id]):
                raise InvalidState(f"segment {deleted.id!r} is there: it was brought back already")
            if editing.same_model(dataset, locked):
                return editing.add(kb, locked, deleted, vector, author)


def _longest(kb: Resources, segment_id: str, content: str) -> int:
    """Return how many tokens an edited text may have: as many as before, if that was more."""
    if count_tokens(content) <= editing.MAX_TOKENS:
        return editing.MAX_TOKENS
    return max(editing.MAX_TOKENS, get_segment(kb, segment_id).token_count)


def _index_again(kb: Resources, segment_id: str, author: Author) -> Revision | None:
    with kb.db.transaction() as conn:
        segment = segments.owned(conn, kb.account, segment_id)
        dataset = datasets.owned(conn, kb.account, segment.dataset_id)
    vector = editing.vector_of(kb, dataset, editing.written(segment))
    with kb.db.transaction() as conn:
        locked, now = editing.lock_segment(kb, conn, segment_id)
        editing.require_completed(locked.document)
        if now.status is not SegmentStatus.ERROR or not editing.same_model(dataset, locked):
            raise InvalidState(f"segment {segment_id!r} changed just now; try again")
        tokenizer = editing.tokenizer_of(kb, locked)
        words = now.keywords or tokenizer.extract_keywords(now.content)
        new = editing.written(now, keywords=words, enabled=True)
        items = [editing.indexed(tokenizer, new, vector, locked.document)]
        write_indexes(kb, conn, locked.dataset, tokenizer, items)
        segments.complete(conn, [segment_id], [words])
        documents.recount_failures(conn, now.document_id)
        before, after = {"enabled": False}, {"enabled": True}
        return editing.note(locked, segment_id, Action.ENABLED, author, before=before, after=after)


def _fail(kb: Resources, segment_id: str, reason: str) -> None:
    """Leave a segment in error, disabled and out of full text."""
    with kb.db.transaction() as conn:
        locked, segment = editing.lock_segment(kb, conn, segment_id)
        segments.fail(conn, [segment_id], reason)
        full_text.remove(conn, locked.dataset.id, [segment_id])
        documents.recount_failures(conn, segment.document_id)
        datasets.touch(conn, locked.dataset.id)


def _unlocked(kb: Resources, conn: Connection, document_id: str) -> Locked:
    """Return a document to look at; raises NotFound."""
    found = documents.editable(conn, kb.account, [document_id])
    if document_id not in found:
        raise NotFound(f"no document with id {document_id!r}")
    document = found[document_id]
    return Locked(conn, datasets.owned(conn, kb.account, document.dataset_id), document)


def _require_completed(segment: Segment) -> None:
    if segment.status is not SegmentStatus.COMPLETED:
        raise InvalidState(
            f"segment {segment.id!r} is {segment.status}; only a completed one can be changed"
            + (": enable it to index it again" if segment.status is SegmentStatus.ERROR else "")
        )


def _require_built(locked: Locked, segment: Segment) -> None:
    built = (SegmentStatus.COMPLETED, SegmentStatus.ERROR)
    document = locked.document
    ended = (DocumentStatus.COMPLETED, DocumentStatus.ERROR)
    if segment.status not in built or document.status not in ended:
        raise InvalidState(
            f"segment {segment.id!r} is {segment.status} and its document {document.status}; it "
            "can be deleted when it is completed or in error"
        )
