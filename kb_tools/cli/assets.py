"""Commands for what is kept: datasets, documents, segments."""

from dataclasses import asdict
from typing import Annotated

import typer

from kb_tools.cli.options import (
    Account,
    AsJson,
    At,
    Contains,
    DatasetName,
    DocumentId,
    Embedder,
    K,
    Limit,
    Offset,
    Retriever,
    Threshold,
    Yes,
    config_of,
    find_dataset,
    opened,
)
from kb_tools.cli.output import confirm, print_json, print_table, show, tell_errors
from kb_tools.config import read_config
from kb_tools.knowledge_base import KnowledgeBase
from kb_tools.models import Dataset, Document, DocumentStatus, Segment

dataset_app = typer.Typer(no_args_is_help=True, help="Create, list, change and delete datasets.")
document_app = typer.Typer(no_args_is_help=True, help="List and delete documents.")
segment_app = typer.Typer(no_args_is_help=True, help="List segments: what is found and cited.")


@dataset_app.command("create")
def dataset_create(
    name: Annotated[str, typer.Argument(help="1 to 100 characters, unique.")],
    description: Annotated[str, typer.Option(help="What it holds; agents read this.")] = "",
    retriever: Retriever = None,
    k: K = None,
    threshold: Threshold = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Create a dataset.

    Example: kb dataset create 员工手册 --description "Rules for employees" -k 8
    """
    config = config_of(retriever, k, threshold)
    with opened(at, embeddings, account, create=True) as kb:
        dataset = kb.create_dataset(name, description, config)
    show(dataset, as_json, f"created dataset {dataset.name} ({dataset.id})")


@dataset_app.command("list")
def dataset_list(
    search: Contains = None,
    offset: Offset = 0,
    limit: Limit = 50,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """List datasets, newest first, with what they hold.

    Example: kb dataset list --search 手册
    """
    with opened(at, embeddings, account) as kb:
        found = kb.list_datasets(search=search, offset=offset, limit=limit)
        rows = [dataset_row(kb, dataset) for dataset in found]
    if as_json:
        details = [asdict(dataset) for dataset in found]
        print_json([detail | row for detail, row in zip(details, rows, strict=True)])
        return
    print_table(rows, "no datasets: kb dataset create NAME")


@dataset_app.command("update")
def dataset_update(
    dataset: DatasetName,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    description: Annotated[str | None, typer.Option(help="A new description.")] = None,
    retriever: Retriever = None,
    k: K = None,
    threshold: Threshold = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Rename or describe a dataset, or change how it is searched.

    Example: kb dataset update 员工手册 --retriever semantic --threshold 0.8
    """
    config = config_of(retriever, k, threshold)
    with opened(at, embeddings, account) as kb:
        found = find_dataset(kb, dataset)
        changed = kb.update_dataset(
            found.id,
            name=name,
            description=description,
            config=config and read_config(found.retrieval_config).overlaid_by(config),
        )
    show(changed, as_json, f"updated dataset {changed.name}")


@dataset_app.command("reembed")
def dataset_reembed(
    dataset: DatasetName,
    model: Annotated[str | None, typer.Option(help="An open model; default: the first.")] = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Embed all segments of a dataset with another model, and search with it from then.

    Example: kb dataset reembed 员工手册 --embeddings openai:text-embedding-3-small
    """
    with opened(at, embeddings, account) as kb:
        changed = kb.reembed_dataset(find_dataset(kb, dataset).id, model)
    show(changed, as_json, f"dataset {changed.name} is embedded with {changed.embedding_model}")


@dataset_app.command("reindex")
def dataset_reindex(
    dataset: DatasetName,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Build full text and keywords of a dataset anew, after a change of the tokenizer.

    Example: kb dataset reindex 员工手册
    """
    with opened(at, embeddings, account) as kb:
        found = find_dataset(kb, dataset)
        kb.reindex_dataset(found.id)
    show({"reindexed": found.id}, as_json, f"indexed dataset {found.name} anew")


@dataset_app.command("delete")
def dataset_delete(
    dataset: DatasetName,
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Delete a dataset with all its documents.

    Example: kb dataset delete 员工手册 --yes
    """
    with opened(at, embeddings, account) as kb:
        found = find_dataset(kb, dataset)
        count = kb.dataset_statistics(found.id).document_count
        confirm(f"delete dataset {found.name!r} with {count} documents?", yes)
        kb.delete_dataset(found.id)
    show({"deleted": found.id}, as_json, f"deleted dataset {found.name}")


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
    print_table([_document_row(document) for document in found], nothing)
    tell_errors(found)


@document_app.command("delete")
def document_delete(
    document_id: DocumentId,
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Delete a document with its segments.

    Example: kb document delete 0193f0... --yes
    """
    with opened(at, embeddings, account) as kb:
        document = kb.get_document(document_id)
        confirm(f"delete {document.name!r} with {document.segment_count} segments?", yes)
        kb.delete_document(document_id)
    show({"deleted": document.id}, as_json, f"deleted {document.name}")


@segment_app.command("list")
def segment_list(
    document_id: DocumentId,
    search: Contains = None,
    offset: Offset = 0,
    limit: Limit = 50,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """List a document's segments in order; `--json` shows every field.

    Example: kb segment list 0193f0... --search 年假
    """
    with opened(at, embeddings, account) as kb:
        found = kb.list_segments(document_id, search=search, offset=offset, limit=limit)
    if as_json:
        print_json(found)
    else:
        print_table([_segment_row(segment) for segment in found], "no segments")


def dataset_row(kb: KnowledgeBase, dataset: Dataset) -> dict[str, object]:
    """Return what a list shows of a dataset; its name is unique, so the id is left out."""
    counts = kb.dataset_statistics(dataset.id)
    return {
        "name": dataset.name,
        "documents": counts.document_count,
        "completed": counts.completed_document_count,
        "segments": counts.segment_count,
        "tokens": counts.token_count,
        "queries": counts.query_count,
        "hits": counts.hit_count,
    }


def _state(asset: Document | Segment) -> str:
    """Return the status; disabled is only what was completed and then switched off."""
    return "disabled" if asset.status == "completed" and not asset.enabled else asset.status


def _document_row(document: Document) -> dict[str, object]:
    return {
        "id": document.id,
        "name": document.name,
        "status": _state(document),
        "segments": document.segment_count,
        "hits": document.hit_count,
    }


def _segment_row(segment: Segment) -> dict[str, object]:
    return {
        "#": segment.position,
        "content": segment.content,
        "keywords": " ".join(segment.keywords),
        "tokens": segment.token_count,
        "status": _state(segment),
    }
