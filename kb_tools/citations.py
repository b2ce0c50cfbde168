"""Labels: how results are numbered, rendered, fenced, and how labels in an answer are checked.

`[n]` is the position in the list of documents, from 1. The rendered text of a result is plain;
tools and nodes fence every passage with a tag that no document can forge.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from typing import TypedDict

from langchain_core.documents import Document as LCDocument


class Citation(TypedDict):
    """Where a label points to."""

    document_id: str
    segment_id: str
    position: int
    name: str


def labelled(documents: Sequence[LCDocument]) -> list[LCDocument]:
    """Return the documents with `metadata["citation"]` = 1..n."""
    return [
        document.model_copy(update={"metadata": document.metadata | {"citation": number}})
        for number, document in enumerate(documents, start=1)
    ]


def combine_documents(documents: Sequence[LCDocument]) -> str:
    """Return all passages under their labels, joined by blank lines.

    Each begins with a line such as `[1] leave.md · 第 2 段`.
    """
    return "\n\n".join(entry(document, number) for number, document in enumerate(documents, 1))


def entry(document: LCDocument, number: int) -> str:
    """Return one passage under its label."""
    return f"{header(document, number)}\n{document.page_content}"


def header(document: LCDocument, number: int) -> str:
    """Return the label line of a passage; names are kept to one line."""
    name = _one_line(str(document.metadata.get("document_name") or "document"))
    return f"[{number}] {name} · 第 {document.metadata.get('position', number)} 段"


def fenced(documents: Sequence[LCDocument], secret: str) -> str:
    """Return all passages, each between tags that only this knowledge base can make.

    A tag is derived from the secret, the segment and its text (HMAC-SHA256), so the same passage
    always has the same tag and no text can contain its own closing tag.
    """
    return "\n\n".join(
        f"<passage-{tag}>\n{entry(document, number)}\n</passage-{tag}>"
        for number, document in enumerate(documents, start=1)
        for tag in [fence_tag(document, secret)]
    )


def fence_tag(document: LCDocument, secret: str) -> str:
    """Return 16 hex digits for a passage."""
    message = f"{document.id}\n{document.page_content}".encode("utf-8", "replace")
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()[:16]


_OPENING = re.compile(r"<passage-([0-9a-f]{16})>\n\[(\d+)\]")


def passages(text: str) -> Iterator[tuple[str, str]]:
    """Yield (tag, text behind the label) of each passage of a fenced text, in order.

    A passage ends at its own closing tag only, so text that imitates an opening is skipped.
    """
    start = 0
    while opening := _OPENING.search(text, start):
        tag = opening[1]
        end = text.find(f"\n</passage-{tag}>", opening.end())
        if end < 0:
            return
        yield tag, text[opening.end() : end]
        start = end


def joined(left: str, right: str) -> str:
    """Return two fenced texts as one: known passages once, labels counted on from the left."""
    parts = dict(passages(left))
    fresh = [(tag, body) for tag, body in passages(right) if tag not in parts]
    numbered = [
        f"<passage-{tag}>\n[{number}]{body}\n</passage-{tag}>"
        for number, (tag, body) in enumerate(fresh, start=len(parts) + 1)
    ]
    return "\n\n".join([*([left] if parts else []), *numbered]) or right


def citations(documents: Sequence[LCDocument]) -> dict[int, Citation]:
    """Return label -> what it points to."""
    return {
        number: Citation(
            document_id=document.metadata["document_id"],
            segment_id=document.metadata["segment_id"],
            position=document.metadata["position"],
            name=document.metadata["document_name"],
        )
        for number, document in enumerate(documents, start=1)
    }


_LABELS = re.compile(r"[\[【]\s*(\d+[A-Za-z]?(?:\s*[,，、;；]\s*\d+[A-Za-z]?)*)\s*[\]】](?!\()")


def unknown_labels(answer: str, documents: Sequence[LCDocument]) -> list[str]:
    """Return the labels in `answer`, in order and once each, that point to none of the documents.

    Understands [5], [5, 7], 【5】; `[5](https://...)` is a link, not a label.
    """
    found = [
        label for group in _LABELS.findall(answer) for label in re.split(r"\s*[,，、;；]\s*", group)
    ]
    known = {str(number) for number in range(1, len(documents) + 1)}
    return [label for label in dict.fromkeys(found) if label not in known]


def _one_line(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())
