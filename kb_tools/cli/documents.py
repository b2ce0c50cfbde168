"""Commands for documents that are there."""

from collections.abc import Sequence
from typing import Annotated

import typer

from kb_tools.cli.options import (
    Account,
    AsJson,
    At,
    By,
    Contains,
    DatasetName,
    DocumentId,
    DocumentIds,
    Embedder,
    Limit,
    Offset,
    Yes,
    find_dataset,
    opened,
    rule_of,
)
from kb_tools.cli.output import confirm, print_json, print_table, show, tell_errors
from kb_tools.cli.rows import document_row
from kb_tools.models import Document, DocumentStatus

NAMED = 5
document_app = typer.Typer(
    no_args_is_help=True, help="List, switch on and off, rename, rebuild and delete documents."
)


@document_app.command("list")
def document_list(
    dataset: DatasetName,
    search: Contains = None,
    status: Annotated[DocumentStatus | None, typer.Option(help="Only those.")] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only those in error or without some segments.")
    ] = False,
    offset: Offset = 0,
    limit: Limit = 50,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """List a dataset's documents, newest first; what failed with its reason.

    Example: kb document list 员工手册 --failed
    """
    with opened(at, embeddings, account) as kb:
        dataset_id = find_dataset(kb, dataset).id
        found = kb.list_documents(
            dataset_id, search=search, status=status, failed=failed, offset=offset, limit=limit
        )
    if as_json:
        print_json(found)
        return
    chosen = search or status or failed or offset
    nothing = "no such documents" if chosen else "no documents: kb add"
    print_table([document_row(document) for document in found], nothing)
    tell_errors(found)


@document_app.command("show")
def document_show(
    document_id: DocumentId,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Show a document; `--json` shows every field.

    Example: kb document show 0193f0...
    """
    with opened(at, embeddings, account) as kb:
        document = kb.get_document(document_id)
    if as_json:
        print_json(document)
        return
    print_table([document_row(document)], "")
    tell_errors([document])


@document_app.command("enable")
def document_enable(
    document_ids: DocumentIds,
    by: By = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Let documents be found again: all of them, or none if one cannot be.

    Example: kb document enable 0193f0... 0193f1...
    """
    with opened(at, embeddings, account) as kb:
        changed = kb.set_documents_enabled(document_ids, True, edited_by=by)
    show(changed, as_json, f"enabled {_names(changed)}")


@document_app.command("disable")
def document_disable(
    document_ids: DocumentIds,
    by: By = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Let no search find documents, until they are enabled: all of them, or none if one cannot be.

    Example: kb document disable 0193f0... 0193f1...
    """
    with opened(at, embeddings, account) as kb:
        changed = kb.set_documents_enabled(document_ids, False, edited_by=by)
    show(changed, as_json, f"disabled {_names(changed)}")


@document_app.command("rename")
def document_rename(
    document_id: DocumentId,
    name: Annotated[str, typer.Argument(help="What citations show; 1 to 255 characters.")],
    by: By = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Give a document another name.

    Example: kb document rename 0193f0... "Leave, 2026.md"
    """
    with opened(at, embeddings, account) as kb:
        document = kb.rename_document(document_id, name, edited_by=by)
    show(document, as_json, f"renamed to {document.name}")


@document_app.command("rebuild")
def document_rebuild(
    document_ids: DocumentIds,
    chunk_size: Annotated[int | None, typer.Option(help="Tokens a segment, 100 to 1000.")] = None,
    chunk_overlap: Annotated[int | None, typer.Option(help="Tokens shared.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="One file = one segment.")] = False,
    discard_edits: Annotated[
        bool, typer.Option("--discard-edits", help="Give up what people changed in it.")
    ] = False,
    by: By = None,
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Parse, cut and index documents anew, by the rule they have or the one given here.

    Manual changes are kept. Where the new cut has no place for them they are listed, and nothing
    is replaced; the documents behind that one are left as they are.

    Example: kb document rebuild 0193f0... --chunk-size 300
    """
    rule = rule_of(chunk_size, chunk_overlap, as_is)
    edits = "discard" if discard_edits else "keep"
    if discard_edits:
        confirm(f"give up all manual changes in {len(document_ids)} documents?", yes)
    with opened(at, embeddings, account) as kb:
        rebuilt = [
            kb.rebuild_document(document_id, rule, edits=edits, edited_by=by)
            for document_id in document_ids
        ]
    if as_json:
        print_json(rebuilt)
    else:
        print_table([document_row(document) for document in rebuilt], "")


@document_app.command("delete")
def document_delete(
    document_ids: DocumentIds,
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Delete documents with their segments: all of them, or none if one is not there.

    Example: kb document delete 0193f0... --yes
    """
    with opened(at, embeddings, account) as kb:
        found = [kb.get_document(document_id) for document_id in document_ids]
        count = sum(document.segment_count for document in found)
        confirm(f"delete {_names(found)} with {count} segments?", yes)
        kb.delete_documents(document_ids)
    show({"deleted": document_ids}, as_json, f"deleted {_names(found)}")


def _names(documents: Sequence[Document]) -> str:
    if len(documents) > NAMED:
        return f"{len(documents)} documents"
    return ", ".join(document.name for document in documents)
