"""Commands for datasets."""

from dataclasses import asdict
from typing import Annotated

import typer

from kb_tools.cli.options import (
    Account,
    AsJson,
    At,
    Contains,
    DatasetName,
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
from kb_tools.cli.output import confirm, print_json, print_table, say, show
from kb_tools.cli.rows import dataset_row
from kb_tools.config import read_config
from kb_tools.models import AskedQuery, DatasetStatistics

dataset_app = typer.Typer(no_args_is_help=True, help="Create, list, change and delete datasets.")


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


@dataset_app.command("stats")
def dataset_stats(
    dataset: DatasetName,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Show what a dataset holds, what it was asked, what was found most and what was not found.

    Example: kb dataset stats 员工手册
    """
    with opened(at, embeddings, account) as kb:
        counts = kb.dataset_statistics(find_dataset(kb, dataset).id)
    if as_json:
        print_json(counts)
        return
    print_table([_counts(counts)], "")
    _print_hits(counts)
    _print_queries("last questions", counts.recent_queries)
    _print_queries("last questions without a hit", counts.zero_hit_queries)


def _counts(counts: DatasetStatistics) -> dict[str, object]:
    return {
        "documents": counts.document_count,
        "completed": counts.completed_document_count,
        "segments": counts.segment_count,
        "enabled": counts.enabled_segment_count,
        "tokens": counts.token_count,
        "queries": counts.query_count,
        "hits": counts.hit_count,
    }


def _print_hits(counts: DatasetStatistics) -> None:
    sources = ", ".join(f"{source} {hits}" for source, hits in counts.hits_by_source.items())
    say(f"hits by source: {sources or 'none'}")
    rows = [
        {"hits": s.hits, "document": s.document_name, "#": s.position, "content": s.content}
        for s in counts.most_hit_segments
    ]
    if rows:
        print_table(rows, "")


def _print_queries(title: str, queries: list[AskedQuery]) -> None:
    say(f"{title}:{'' if queries else ' none'}")
    if queries:
        print_table(
            [{"hits": q.hit_count, "source": q.source, "query": q.query} for q in queries], ""
        )
