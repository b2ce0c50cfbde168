"""The command line: `kb`. It opens a knowledge base, calls one function, prints the answer."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kb_tools.config import ProcessRule, RetrievalConfig, read_config
from kb_tools.db import Database
from kb_tools.errors import InvalidInput, KnowledgeBaseError, NotFound
from kb_tools.ingest.clean import visible
from kb_tools.knowledge_base import KnowledgeBase
from kb_tools.models import Dataset
from kb_tools.settings import Settings
from kb_tools.storage import migrate as migrations

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""A knowledge base in a folder or a PostgreSQL server.

Start with:

    kb init
    kb add handbook leave.md travel.pdf --create
    kb search "年假可以跨年吗?"

Every command takes `--kb` (a folder or a postgresql:// URL; or set KB_AT) and, where it prints
data, `--json`.""",
)
dataset_app = typer.Typer(no_args_is_help=True, help="Create, list, change and delete datasets.")
document_app = typer.Typer(no_args_is_help=True, help="List, show and delete documents.")
segment_app = typer.Typer(no_args_is_help=True, help="List segments: what is found and cited.")
app.add_typer(dataset_app, name="dataset")
app.add_typer(document_app, name="document")
app.add_typer(segment_app, name="segment")

At = Annotated[
    str,
    typer.Option("--kb", envvar="KB_AT", help="Folder (embedded PostgreSQL) or postgresql:// URL."),
]
Embedder = Annotated[
    str,
    typer.Option(
        "--embeddings",
        envvar="KB_EMBEDDINGS",
        help="'local', or a provider string such as openai:text-embedding-3-small.",
    ),
]
Account = Annotated[str, typer.Option("--account", envvar="KB_ACCOUNT", help="Whose rows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DatasetName = Annotated[str, typer.Argument(help="Name or id of a dataset.")]
Offset = Annotated[int, typer.Option("--offset", min=0, help="Skip so many.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most so many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Contains = Annotated[str | None, typer.Option("--search", help="Only what holds this text.")]
Query = Annotated[str, typer.Argument(help="The question, or keywords.")]
In = Annotated[
    list[str] | None,
    typer.Option("--in", "-d", help="Name or id of a dataset; repeat it. Default: all."),
]
Retriever = Annotated[
    str | None, typer.Option("--retriever", "-r", help="semantic, full_text, keyword or hybrid.")
]
K = Annotated[int | None, typer.Option("-k", help="How many segments, 1 to 500. Default: 4.")]
Threshold = Annotated[
    float | None, typer.Option("--threshold", help="Least cosine, 0 to 0.99 (semantic, hybrid).")
]

out = Console(highlight=False)


def main() -> None:
    """Run the command line; foreseen errors become one line and exit code 1."""
    try:
        app()
    except KnowledgeBaseError as error:
        Console(stderr=True, highlight=False).print(Text(f"error: {visible(str(error))}"))
        sys.exit(1)


@app.command()
def init(at: At = "./kb", embeddings: Embedder = "local", as_json: AsJson = False) -> None:
    """Create a knowledge base, or check that the one there can be opened.

    Example: kb init --kb ./kb
    """
    with _open(at, embeddings) as kb:
        found = {"knowledge_base": repr(kb.db), "embedding_model": kb.embeddings.default}
    _show(found, as_json, f"ready: {found['knowledge_base']}, model {kb.embeddings.default}")


@app.command()
def migrate(
    at: At = "./kb",
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL for a DBA instead.")] = False,
) -> None:
    """Bring the schema up to date; twice changes nothing.

    Example: kb migrate --sql > kb_tools.sql
    """
    settings = Settings()
    if sql:
        typer.echo(migrations.script(settings.db_schema), nl=False)
        return
    with Database.open(at, settings) as db:
        applied = migrations.migrate(db, settings.db_schema)
    out.print(Text(f"applied: {', '.join(applied) or 'nothing, it was up to date'}"))


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
    with _open(at, embeddings, account) as kb:
        dataset = kb.create_dataset(name, description, _config(retriever, k, threshold))
    _show(dataset, as_json, f"created dataset {dataset.name} ({dataset.id})")


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
    with _open(at, embeddings, account) as kb:
        found = kb.list_datasets(search=search, offset=offset, limit=limit)
        rows = [_dataset_row(kb, dataset) for dataset in found]
    _table(rows, as_json)


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
    with _open(at, embeddings, account) as kb:
        found = _dataset(kb, dataset)
        config = _config(retriever, k, threshold)
        changed = kb.update_dataset(
            found.id,
            name=name,
            description=description,
            config=config and read_config(found.retrieval_config).overlaid_by(config),
        )
    _show(changed, as_json, f"updated dataset {changed.name}")


@dataset_app.command("delete")
def dataset_delete(
    dataset: DatasetName,
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
) -> None:
    """Delete a dataset with all its documents.

    Example: kb dataset delete 员工手册 --yes
    """
    with _open(at, embeddings, account) as kb:
        found = _dataset(kb, dataset)
        count = kb.dataset_statistics(found.id).document_count
        _confirm(f"delete dataset {found.name!r} with {count} documents?", yes)
        kb.delete_dataset(found.id)
    out.print(Text(f"deleted dataset {visible(found.name)}"))


@app.command()
def add(
    dataset: DatasetName,
    files: Annotated[list[Path], typer.Argument(help="txt md html csv json pdf docx")],
    create: Annotated[bool, typer.Option("--create", help="Create the dataset first.")] = False,
    chunk_size: Annotated[int | None, typer.Option(help="Tokens a segment, 100 to 1000.")] = None,
    chunk_overlap: Annotated[int | None, typer.Option(help="Tokens shared.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="One file = one segment.")] = False,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", help="key=value")] = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Add documents: parse, split, index. A file that fails is named with its reason.

    Example: kb add 员工手册 docs/*.md travel.pdf --create
    """
    with _open(at, embeddings, account) as kb:
        found = kb.create_dataset(dataset, exist_ok=True) if create else _dataset(kb, dataset)
        batch = kb.add_documents(
            found.id,
            files,
            metadata=_metadata(metadata),
            process_rule=_rule(chunk_size, chunk_overlap, as_is),
        )
    _states(batch.id, batch.states, as_json)
    if batch.failed:
        raise typer.Exit(1)


@app.command()
def status(
    batch: Annotated[str | None, typer.Argument(help="Id of a batch; none: all datasets.")] = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Show where the documents of a batch are, or what the datasets hold.

    Example: kb status
    """
    with _open(at, embeddings, account) as kb:
        if batch:
            _states(batch, kb.batch_status(batch), as_json)
            return
        rows = [_dataset_row(kb, dataset) for dataset in kb.list_datasets(limit=1000)]
    _table(rows, as_json)


@app.command()
def search(
    query: Query,
    datasets: In = None,
    retriever: Retriever = None,
    k: K = None,
    threshold: Threshold = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Ask, and read the cited passages.

    Example: kb search "年假可以跨年吗?" --in 员工手册 -k 3
    """
    with _open(at, embeddings, account) as kb:
        result = kb.search_in_datasets(
            query, _dataset_ids(kb, datasets), _config(retriever, k, threshold), source="cli"
        )
    if as_json:
        _json(
            {
                "query": result.query,
                "reason": result.reason,
                "degraded": result.degraded,
                "cut": result.cut,
                "text": result.text,
                "documents": [
                    {"content": document.page_content, **document.metadata} for document in result
                ],
            }
        )
        return
    out.print(Text(visible(result.text)))
    if result.cut:
        out.print(Text(f"({result.cut} more hits did not fit into the token budget)"))
    for miss in result.degraded:
        out.print(Text(f"(did not answer: {miss.part}: {miss.error})"))


@app.command()
def hit(
    query: Query,
    datasets: In = None,
    retriever: Retriever = None,
    k: K = None,
    threshold: Threshold = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Test retrieval: scores and fields of every segment that a question finds.

    Example: kb hit 年假 --retriever keyword
    """
    with _open(at, embeddings, account) as kb:
        test = kb.hit(query, _dataset_ids(kb, datasets), _config(retriever, k, threshold))
    if as_json:
        _json([asdict(found) for found in test])
        return
    if not test.hits:
        out.print(Text(test.result.text))
    rows = [
        {
            "#": number,
            "score": f"{found.score:.3f}",
            "kind": found.score_kind,
            "document": found.document.name,
            "segment": found.position,
            "content": found.content[:120],
        }
        for number, found in enumerate(test, start=1)
    ]
    _table(rows, as_json=False)


@document_app.command("list")
def document_list(
    dataset: DatasetName,
    search: Contains = None,
    offset: Offset = 0,
    limit: Limit = 50,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """List a dataset's documents, newest first.

    Example: kb document list 员工手册
    """
    with _open(at, embeddings, account) as kb:
        found = kb.list_documents(
            _dataset(kb, dataset).id, search=search, offset=offset, limit=limit
        )
    if as_json:
        _json(found)
        return
    rows = [
        {
            "id": document.id,
            "name": document.name,
            "status": document.status,
            "enabled": document.enabled,
            "segments": document.segment_count,
            "tokens": document.token_count,
            "hits": document.hit_count,
            "error": document.error,
        }
        for document in found
    ]
    _table(rows, as_json=False)


@document_app.command("delete")
def document_delete(
    document_id: Annotated[str, typer.Argument(help="Id of a document (kb document list).")],
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
) -> None:
    """Delete a document with its segments.

    Example: kb document delete 0193f0... --yes
    """
    with _open(at, embeddings, account) as kb:
        document = kb.get_document(document_id)
        _confirm(f"delete {document.name!r} with {document.segment_count} segments?", yes)
        kb.delete_document(document_id)
    out.print(Text(f"deleted {visible(document.name)}"))


@segment_app.command("list")
def segment_list(
    document_id: Annotated[str, typer.Argument(help="Id of a document (kb document list).")],
    search: Contains = None,
    offset: Offset = 0,
    limit: Limit = 50,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """List a document's segments in order.

    Example: kb segment list 0193f0... --search 年假
    """
    with _open(at, embeddings, account) as kb:
        found = kb.list_segments(document_id, search=search, offset=offset, limit=limit)
    if as_json:
        _json(found)
        return
    rows = [
        {
            "position": segment.position,
            "heading": segment.heading,
            "content": segment.content[:120],
            "keywords": " ".join(segment.keywords),
            "tokens": segment.token_count,
            "status": segment.status,
            "enabled": segment.enabled,
            "id": segment.id,
        }
        for segment in found
    ]
    _table(rows, as_json=False)


@contextmanager
def _open(at: str, embeddings: str, account: str = "default") -> Iterator[KnowledgeBase]:
    with KnowledgeBase.open(at, embeddings=embeddings, account=account) as kb:
        yield kb


def _dataset(kb: KnowledgeBase, name: str) -> Dataset:
    found = [dataset for dataset in kb.list_datasets(search=name) if dataset.name == name]
    if found:
        return found[0]
    try:
        return kb.get_dataset(name)
    except NotFound:
        names = ", ".join(dataset.name for dataset in kb.list_datasets())
        raise NotFound(f"no dataset {name!r}; there are: {names or 'none yet'}") from None


def _dataset_ids(kb: KnowledgeBase, names: Sequence[str] | None) -> list[str]:
    if names:
        return [_dataset(kb, name).id for name in names]
    return [dataset.id for dataset in kb.list_datasets(limit=1000)]


def _dataset_row(kb: KnowledgeBase, dataset: Dataset) -> dict[str, object]:
    counts = kb.dataset_statistics(dataset.id)
    return {
        "name": dataset.name,
        "documents": counts.document_count,
        "completed": counts.completed_document_count,
        "segments": counts.segment_count,
        "tokens": counts.token_count,
        "queries": counts.query_count,
        "hits": counts.hit_count,
        "model": dataset.embedding_model,
        "id": dataset.id,
    }


def _config(
    retriever: str | None, k: int | None, threshold: float | None
) -> RetrievalConfig | None:
    given = {"retriever": retriever, "k": k, "score_threshold": threshold}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return RetrievalConfig(**fields) if fields else None


def _rule(chunk_size: int | None, chunk_overlap: int | None, as_is: bool) -> ProcessRule | None:
    if as_is:
        return ProcessRule.as_is()
    if chunk_size is None and chunk_overlap is None:
        return None
    size = chunk_size or 500
    overlap = size // 10 if chunk_overlap is None else chunk_overlap
    return ProcessRule.custom(chunk_size=size, chunk_overlap=overlap)


def _metadata(pairs: Sequence[str] | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidInput(f"--metadata takes key=value; got {pair!r}")
        found[name] = value
    return found


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(visible(question), abort=True)


def _states(batch: str, states: Sequence[Any], as_json: bool) -> None:
    if as_json:
        _json({"batch": batch, "documents": states})
        return
    rows = [
        {
            "document": state.name,
            "status": state.status,
            "segments": f"{state.completed_segment_count}/{state.segment_count}",
            "error": state.error,
        }
        for state in states
    ]
    _table(rows, as_json=False)
    out.print(Text(f"batch {batch}"))


def _show(value: object, as_json: bool, line: str) -> None:
    if as_json:
        _json(value)
    else:
        out.print(Text(visible(line)))


def _table(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _json(rows)
        return
    if not rows:
        out.print(Text("nothing here"))
        return
    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold", no_wrap=name == "id")
    for row in rows:
        cells = ("" if value is None else str(value) for value in row.values())
        table.add_row(*(Text(visible(cell).replace("\n", " ")) for cell in cells))
    out.print(table)


def _json(value: object) -> None:
    def plain(item: object) -> object:
        return asdict(item) if is_dataclass(item) and not isinstance(item, type) else str(item)

    typer.echo(json.dumps(value, default=plain, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
