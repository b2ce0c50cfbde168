"""Documents that are there: switch on and off, rename, delete, while they are being searched."""

from collections.abc import Sequence

from psycopg import Connection

from kb_tools import db
from kb_tools.assets.documents import get_document
from kb_tools.assets.editing import Author, Locked, note
from kb_tools.errors import BackendError, InvalidInput, InvalidState, NotFound
from kb_tools.ingest.removal import remove_documents
from kb_tools.models import Action, Dataset, Document, DocumentStatus, Revision
from kb_tools.resources import Resources
from kb_tools.storage import datasets, documents
from kb_tools.storage.documents import EditableDocument
from kb_tools.text.characters import storable

MAX_NAME = 255


def set_document_enabled(
    kb: Resources, document_id: str, enabled: bool, *, edited_by: str | None = None
) -> Document:
    """Switch a completed document on or off; no index is rewritten, whatever its size.

    Its segments keep their own flags. Nothing happens if it is so already. Raises NotFound,
    InvalidState if it is not completed, BackendError if it fails: the document is then disabled.
    """
    return set_documents_enabled(kb, [document_id], enabled, edited_by=edited_by)[0]


def set_documents_enabled(
    kb: Resources, document_ids: Sequence[str], enabled: bool, *, edited_by: str | None = None
) -> list[Document]:
    """Switch completed documents on or off, all of them or none; as `set_document_enabled`."""
    switch_documents(kb, document_ids, enabled, Author(edited_by))
    with kb.db.transaction() as conn:
        return documents.read(conn, kb.account, document_ids)


def rename_document(
    kb: Resources, document_id: str, name: str, *, edited_by: str | None = None
) -> Document:
    """Give a document another name: the one that citations show.

    A title that was taken from its old name stays in what is searched until it is rebuilt. Raises
    NotFound, InvalidInput if the name is blank or longer than 255 characters.
    """
    rename(kb, document_id, name, Author(edited_by))
    return get_document(kb, document_id)


def delete_document(kb: Resources, document_id: str) -> int:
    """Delete a document with all that was indexed of it; return how many segments it had.

    Raises NotFound.
    """
    return delete_documents(kb, [document_id])


def delete_documents(kb: Resources, document_ids: Sequence[str]) -> int:
    """Delete documents, all of them or none; return how many segments they had.

    Raises NotFound.
    """
    count = 0
    with kb.db.transaction() as conn:
        for dataset, found in _locked(kb, conn, document_ids):
            ids = [document.id for document in found]
            count += remove_documents(kb, conn, dataset.id, ids)
    return count


# The same, told by whom and why: `undo` calls them too


def switch_documents(
    kb: Resources, document_ids: Sequence[str], enabled: bool, author: Author
) -> list[Revision]:
    """Switch documents; return what was changed."""
    try:
        with kb.db.transaction() as conn:
            return [
                _switch(kb, Locked(conn, dataset, document), enabled, author)
                for dataset, found in _locked(kb, conn, document_ids)
                for document in _to_switch(found, enabled, author)
            ]
    except (NotFound, InvalidState):
        raise
    except Exception as error:
        kind = type(error).__name__
    # Out here, so that words of a store, which can hold a key, are not the context of ours.
    with kb.db.transaction() as conn:
        for dataset, found in _locked(kb, conn, document_ids):
            documents.set_enabled(conn, [document.id for document in found], False)
            datasets.touch(conn, dataset.id)
    done = "enabled" if enabled else "disabled"
    raise BackendError(
        f"documents could not be {done} ({kind}): {', '.join(document_ids)}; they are disabled"
    )


def rename(kb: Resources, document_id: str, name: str, author: Author) -> Revision | None:
    """Rename a document; None if that is its name already."""
    name = _checked_name(name)
    with kb.db.transaction() as conn:
        ((dataset, (document,)),) = _locked(kb, conn, [document_id])
        author.require_unchanged({"name": document.name})
        if name == document.name:
            return None
        documents.rename(conn, document_id, name)
        return note(
            Locked(conn, dataset, document),
            None,
            Action.RENAMED,
            author,
            before={"name": document.name},
            after={"name": name},
        )


def _locked(
    kb: Resources, conn: Connection, document_ids: Sequence[str]
) -> list[tuple[Dataset, list[EditableDocument]]]:
    """Lock the datasets of documents and return both as they are now. Raises NotFound."""
    found = documents.editable(conn, kb.account, document_ids)
    owners = sorted({document.dataset_id for document in found.values()})
    db.lock(conn, *(f"dataset {owner}" for owner in owners))
    found = documents.editable(conn, kb.account, document_ids)
    missing = [document_id for document_id in document_ids if document_id not in found]
    if missing:
        raise NotFound(f"no document with id {', '.join(map(repr, missing))}")
    return [
        (dataset, [document for document in found.values() if document.dataset_id == dataset.id])
        for dataset in datasets.read(conn, kb.account, owners)
    ]


def _to_switch(
    found: Sequence[EditableDocument], enabled: bool, author: Author
) -> list[EditableDocument]:
    """Return those whose flag changes. Raises InvalidState if one is not completed."""
    for document in found:
        if document.status is not DocumentStatus.COMPLETED:
            raise InvalidState(
                f"document {document.name!r} is {document.status}; only a completed one can be "
                "enabled or disabled"
            )
        author.require_unchanged({"enabled": document.enabled})
    return [document for document in found if document.enabled != enabled]


def _switch(kb: Resources, locked: Locked, enabled: bool, author: Author) -> Revision:
    conn, document = locked.conn, locked.document
    documents.set_enabled(conn, [document.id], enabled)
    if locked.space is not None:
        store = kb.vector_stores.of(locked.space)
        store.set_enabled(document_id=document.id, document_enabled=enabled, conn=conn)
    datasets.touch(conn, locked.dataset.id)
    action = Action.ENABLED if enabled else Action.DISABLED
    before, after = {"enabled": document.enabled}, {"enabled": enabled}
    return note(locked, None, action, author, before=before, after=after)


def _checked_name(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= MAX_NAME or storable(name) != name:
        raise InvalidInput(
            f"a document name has 1 to {MAX_NAME} characters, no NUL or lone surrogate; "
            f"got {name!r:.80}"
        )
    return name
