"""Segments: list and look up."""

from kb_tools.assets.documents import get_document
from kb_tools.assets.pages import page_of
from kb_tools.errors import NotFound
from kb_tools.models import Segment
from kb_tools.resources import Resources
from kb_tools.storage import segments


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
        found = segments.read(conn, [segment_id])
        if not found or segments.account_of(conn, segment_id) != kb.account:
            raise NotFound(f"no segment with id {segment_id!r}")
    return found[0]
