"""Store documents as rows before any is built, and leave out what the dataset holds already.

Every portion of some hundred documents is a transaction under the dataset's lock, so of two
processes that add one file at the same time the second finds the first one's row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from psycopg import Connection
from psycopg.errors import ForeignKeyViolation

from kb_tools import db
from kb_tools.config import ProcessRule
from kb_tools.errors import InvalidInput, NotFound
from kb_tools.models import SkipKind, Skipped, new_id
from kb_tools.resources import Resources
from kb_tools.storage import documents, duplicates
from kb_tools.storage.documents import NewDocument
from kb_tools.storage.duplicates import Equal

PORTION_DOCUMENTS = 500
PORTION_BYTES = 64 * 1024 * 1024


class Duplicates(StrEnum):
    """What happens to content that a dataset holds already: it is skipped, replaced or kept."""

    SKIP = "skip"
    REPLACE = "replace"
    KEEP = "keep"

    @classmethod
    def of(cls, value: str) -> "Duplicates":
        """Return the policy of that name. Raises InvalidInput naming the known ones."""
        try:
            return cls(value)
        except ValueError:
            known = ", ".join(cls)
            raise InvalidInput(f"unknown duplicates {value!r}; known: {known}") from None


@dataclass(frozen=True)
class Upload:
    """What is stored where: a batch of one dataset, built by one rule and one builder."""

    dataset_id: str
    rule: ProcessRule
    builder: str
    duplicates: Duplicates
    batch: str = field(default_factory=new_id)


@dataclass
class Stored:
    """What an upload came to: the documents' sizes in bytes by id, in order, and what was left out.

    Some 200 bytes a document and 400 for one that was left out: all that grows with their number.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)


def store(
    kb: Resources,
    upload: Upload,
    sources: Iterable[NewDocument | Skipped],
    tell: Callable[[Stored], None],
) -> Stored:
    """Store rows and bytes of all sources; if one cannot be read, none is kept.

    `tell` hears after each portion how far it is. Raises NotFound if the dataset was deleted
    meanwhile.
    """
    stored = Stored()
    try:
        _store_portions(kb, upload, sources, stored, tell)
        _withdrawn(kb, stored)
        return stored
    except ForeignKeyViolation:
        message = f"no dataset with id {upload.dataset_id!r}: it was deleted just now"
        raise NotFound(message) from None
    except BaseException:
        with kb.db.transaction() as conn:
            documents.delete_batch(conn, upload.batch)
        raise


def _store_portions(
    kb: Resources,
    upload: Upload,
    sources: Iterable[NewDocument | Skipped],
    stored: Stored,
    tell: Callable[[Stored], None],
) -> None:
    rule_id = new_id()
    rule = upload.rule.model_dump(mode="json")
    with kb.db.transaction() as conn:
        documents.insert_rule(conn, rule_id, upload.dataset_id, upload.rule.mode, rule)
    kept: list[str] = []
    for portion in _portions(sources, stored.skipped):
        with kb.db.transaction() as conn:
            db.lock(conn, f"dataset {upload.dataset_id}")
            equal = _equal(conn, upload, portion)
            new = [document for place, document in enumerate(portion) if place not in equal]
            documents.insert(
                conn,
                upload.dataset_id,
                batch=upload.batch,
                rule_id=rule_id,
                builder=upload.builder,
                documents=new,
            )
        kept += [there.id for there in equal.values()]
        stored.skipped += [_duplicate(portion[at], there) for at, there in sorted(equal.items())]
        stored.sizes |= {document.id: len(document.content) for document in new}
        tell(stored)
    if upload.duplicates is not Duplicates.KEEP and stored.sizes:
        whole = upload.duplicates is Duplicates.REPLACE
        with kb.db.transaction() as conn:
            db.lock(conn, f"dataset {upload.dataset_id}")
            duplicates.mark_replaced(
                conn, upload.dataset_id, upload.batch, whole=whole, kept=kept if whole else ()
            )


def _portions(
    sources: Iterable[NewDocument | Skipped], skipped: list[Skipped]
) -> Iterator[list[NewDocument]]:
    """Yield documents in portions; what is left out goes to `skipped`."""
    portion: list[NewDocument] = []
    size = 0
    for source in sources:
        if isinstance(source, Skipped):
            skipped.append(source)
            continue
        portion.append(source)
        size += len(source.content)
        if len(portion) == PORTION_DOCUMENTS or size > PORTION_BYTES:
            yield portion
            portion, size = [], 0
    yield portion


def _equal(conn: Connection, upload: Upload, portion: Sequence[NewDocument]) -> dict[int, Equal]:
    """Return which of the portion are there already, by their place."""
    if upload.duplicates is Duplicates.KEEP:
        return {}
    rule = upload.rule.model_dump(mode="json")
    replacing = upload.duplicates is Duplicates.REPLACE
    equal = duplicates.equal_documents(
        conn, upload.dataset_id, portion, rule, unless_changed=replacing
    )
    first: dict[str, NewDocument] = {}
    for place, document in enumerate(portion):
        if document.error or place in equal:
            continue
        earlier = first.setdefault(document.content_hash, document)
        if earlier is not document:
            equal[place] = Equal(earlier.id, earlier.name)
    return equal


def _duplicate(document: NewDocument, equal: Equal) -> Skipped:
    reason = (
        "is there already" if equal.name == document.name else f"same content as {equal.name!r}"
    )
    if not equal.same_rule:
        reason += ", cut by another rule; duplicates='replace' cuts it anew"
    return Skipped(document.name, SkipKind.DUPLICATE, reason, equal.id)


def _withdrawn(kb: Resources, stored: Stored) -> None:
    """Say so where the document that a duplicate equals was withdrawn or deleted meanwhile."""
    ids = {skipped.document_id for skipped in stored.skipped if skipped.document_id}
    if not ids:
        return
    with kb.db.transaction() as conn:
        there = documents.existing(conn, ids)
    reason = "equals a document that was withdrawn meanwhile; add it again"
    stored.skipped[:] = [
        replace(skipped, kind=SkipKind.UNREADABLE, reason=reason, document_id=None)
        if skipped.document_id and skipped.document_id not in there
        else skipped
        for skipped in stored.skipped
    ]
