"""Commands that build: add, status."""

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

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
from kb_tools.cli.output import print_json, print_table, say, tell, tell_errors
from kb_tools.cli.rows import dataset_row
from kb_tools.errors import InvalidInput
from kb_tools.ingest.upload import Duplicates
from kb_tools.models import DocumentState, Skipped

MOST_ROWS = 50


def add(
    dataset: DatasetName,
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, or globs in quotes.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a killed build.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the dataset first.")] = False,
    chunk_size: Annotated[int | None, typer.Option(help="Tokens a segment, 100 to 1000.")] = None,
    chunk_overlap: Annotated[int | None, typer.Option(help="Tokens shared.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="One file = one segment.")] = False,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", help="key=value")] = None,
    duplicates: Annotated[
        Duplicates, typer.Option(help="What happens to content that is there already.")
    ] = Duplicates.SKIP,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Add documents: parse, split, index. A file that fails is named with its reason.

    A folder is read to its leaves; what is hidden or of no known format is listed, not added.
    Content that is there already is skipped, so a folder can be added again and again; with
    --duplicates replace, a changed file takes the place of its older version. Ends with exit code
    1 if any failed; the others are there all the same. What a killed build left in the dataset is
    finished first, or alone with --resume.

    Example: kb add 员工手册 docs/ 'reports/**/*.pdf' --create
    """
    if not files and not resume:
        raise InvalidInput("name the files to add, or --resume to finish a killed build")
    extra, rule = metadata_of(metadata), rule_of(chunk_size, chunk_overlap, as_is)
    with opened(at, embeddings, account, create=create) as kb:
        found = kb.create_dataset(dataset, exist_ok=True) if create else find_dataset(kb, dataset)
        finished = kb.resume_builds(found.id) if resume else []
        batch = kb.add_documents(
            found.id, files or [], metadata=extra, process_rule=rule, duplicates=duplicates
        )
        states = [*finished, *batch.states]
    _print_states(batch.id, states, batch.skipped, as_json)
    if any(state.error for state in states) or batch.unreadable:
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
            _print_states(batch, kb.batch_status(batch), (), as_json)
            return
        datasets = all_datasets(kb)
        unfinished = kb.unfinished_documents()
        rows = [dataset_row(kb, dataset) for dataset in datasets]
    if as_json:
        waiting = [{"unfinished": unfinished.get(dataset.id, 0)} for dataset in datasets]
        print_json([row | more for row, more in zip(rows, waiting, strict=True)])
        return
    print_table(rows, "no datasets yet: kb dataset create NAME")
    for dataset in datasets:
        if count := unfinished.get(dataset.id):
            what = "document waits" if count == 1 else "documents wait"
            tell(f"{count} {what} for: kb add {shlex.quote(dataset.name)} --resume")


def _print_states(
    batch: str, states: Sequence[DocumentState], skipped: Sequence[Skipped], as_json: bool
) -> None:
    if as_json:
        print_json({"batch": batch, "documents": states, "skipped": skipped})
        return
    shown = states if len(states) <= MOST_ROWS else [state for state in states if state.error]
    print_table([_state_row(state) for state in shown[:MOST_ROWS]], "no new documents")
    if len(states) > MOST_ROWS:
        failed = sum(bool(state.error) for state in states)
        say(f"{len(states):,} documents, {failed:,} failed")
    say(f"batch {batch}")
    _print_skipped(skipped)
    tell_errors(states)


def _state_row(state: DocumentState) -> dict[str, object]:
    return {
        "document": state.name,
        "status": state.status,
        "segments": f"{state.completed_segment_count}/{state.segment_count}",
    }


def _print_skipped(skipped: Sequence[Skipped]) -> None:
    if not skipped:
        return
    kinds = Counter(entry.kind for entry in skipped)
    say(f"skipped {len(skipped):,}: {', '.join(f'{n:,} {kind}' for kind, n in kinds.items())}")
    rows = [{"skipped": entry.name, "reason": entry.reason} for entry in skipped[:MOST_ROWS]]
    print_table(rows, "")
    if len(skipped) > MOST_ROWS:
        say(f"and {len(skipped) - MOST_ROWS:,} more: --json lists all")
