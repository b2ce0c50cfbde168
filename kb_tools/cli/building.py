"""Commands that build: add, status."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kb_tools.cli.assets import dataset_row
from kb_tools.cli.options import (
    Account,
    AsJson,
    At,
    DatasetName,
    Embedder,
    all_datasets,
    find_dataset,
    metadata_of,
    opened,
    rule_of,
)
from kb_tools.cli.output import print_json, print_table, say, tell
from kb_tools.errors import InvalidInput
from kb_tools.models import DocumentState


def add(
    dataset: DatasetName,
    files: Annotated[list[Path] | None, typer.Argument(help="Files of any format.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a killed build.")] = False,
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

    Ends with exit code 1 if any failed; the others are there all the same. What a killed build
    left in the dataset is finished first, or alone with --resume.

    Example: kb add 员工手册 docs/*.md travel.pdf --create
    """
    if not files and not resume:
        raise InvalidInput("name the files to add, or --resume to finish a killed build")
    extra, rule = metadata_of(metadata), rule_of(chunk_size, chunk_overlap, as_is)
    with opened(at, embeddings, account, create=create) as kb:
        found = kb.create_dataset(dataset, exist_ok=True) if create else find_dataset(kb, dataset)
        finished = kb.resume_builds(found.id) if resume else []
        batch = kb.add_documents(found.id, files or [], metadata=extra, process_rule=rule)
    states = [*finished, *batch.states]
    _print_states(batch.id, states, as_json)
    if any(state.error for state in states):
        raise typer.Exit(1)


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
    with opened(at, embeddings, account) as kb:
        if batch:
            _print_states(batch, kb.batch_status(batch), as_json)
            return
        rows = [dataset_row(kb, dataset) for dataset in all_datasets(kb)]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, "no datasets yet: kb dataset create NAME")


def _print_states(batch: str, states: Sequence[DocumentState], as_json: bool) -> None:
    if as_json:
        print_json({"batch": batch, "documents": states})
        return
    rows = [
        {
            "document": state.name,
            "status": state.status,
            "segments": f"{state.completed_segment_count}/{state.segment_count}",
        }
        for state in states
    ]
    print_table(rows, "no documents")
    say(f"batch {batch}")
    for state in states:
        if state.error:
            tell(f"error: {state.name}: {state.error}")
