"""Revisions: who changed what when, with what was there before, and the way back."""

from kb_tools.assets import document_editing, segments
from kb_tools.assets.editing import Author
from kb_tools.assets.pages import page_of
from kb_tools.errors import InvalidState, NotFound
from kb_tools.models import Action, Json, Revision, SegmentStatus
from kb_tools.resources import Resources
from kb_tools.storage import documents, revisions
from kb_tools.storage import segments as segment_rows
from kb_tools.storage.segments import Written


def list_revisions(
    kb: Resources, asset_id: str, *, offset: int = 0, limit: int = 50
) -> list[Revision]:
    """Return the changes of a segment, or of a document and all its segments, newest first.

    Those of a deleted segment too. Raises NotFound if the id never was one of this account.
    """
    page = page_of(None, offset, limit)
    with kb.db.transaction() as conn:
        found = revisions.page(conn, kb.account, asset_id, page["offset"], page["limit"])
        if not found and not documents.editable(conn, kb.account, [asset_id]):
            try:
                segment_rows.owned(conn, kb.account, asset_id)
            except NotFound:
                if not revisions.page(conn, kb.account, asset_id, 0, 1):
                    raise NotFound(f"no document or segment with id {asset_id!r}") from None
    return found


def undo(kb: Resources, revision_id: str, *, edited_by: str | None = None) -> Revision:
    """Take one change back and return the revision that does it, which can be undone as well.

    An edit gets its text and keywords back, a deleted segment comes back with its id and
    position, a created one goes. Raises NotFound, InvalidState if what it changed was changed
    again since, or if it is a rebuild.
    """
    with kb.db.transaction() as conn:
        revision = revisions.owned(conn, kb.account, revision_id)
    done = _take_back(kb, revision, Author(edited_by, revision))
    if done is None:
        raise InvalidState(f"revision {revision_id} is undone already: nothing would change")
    return done


def _take_back(kb: Resources, revision: Revision, author: Author) -> Revision | None:
    before = revision.before or {}
    if revision.segment_id is None:
        return _take_back_of_document(kb, revision, author)
    if revision.action is Action.CREATED:
        return segments.delete(kb, revision.segment_id, author)
    if revision.action is Action.DELETED:
        return segments.restore(kb, _written(before), author)
    if revision.action is Action.EDITED:
        content, keywords = before.get("content"), before.get("keywords")
        return segments.edit(kb, revision.segment_id, content, keywords, author)  # type: ignore[arg-type]  # as we wrote them
    return segments.switch(kb, revision.segment_id, bool(before["enabled"]), author)


def _take_back_of_document(kb: Resources, revision: Revision, author: Author) -> Revision | None:
    before = revision.before or {}
    if revision.action is Action.REBUILT:
        raise InvalidState("a rebuild cannot be undone; rebuild the document with the other rule")
    if revision.action is Action.RENAMED:
        return document_editing.rename(kb, revision.document_id, str(before["name"]), author)
    enabled = bool(before["enabled"])
    done = document_editing.switch_documents(kb, [revision.document_id], enabled, author)
    return done[0] if done else None


def _written(before: dict[str, Json]) -> Written:
    status = SegmentStatus(str(before["status"]))
    return Written(**before | {"status": status})  # type: ignore[arg-type]  # as we wrote it
