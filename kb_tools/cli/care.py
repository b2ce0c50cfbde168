"""Commands that care for a knowledge base: init, doctor, migrate."""

from dataclasses import asdict
from typing import Annotated

import typer

from kb_tools.cli.options import Account, AsJson, At, Embedder, opened
from kb_tools.cli.output import print_json, print_table, say, show, tell
from kb_tools.db import Database
from kb_tools.doctor import DoctorReport
from kb_tools.errors import InvalidInput
from kb_tools.settings import read_settings
from kb_tools.storage import migrate as migrations


def init(at: At = "./kb", embeddings: Embedder = "local", as_json: AsJson = False) -> None:
    """Create a knowledge base, or check that the one there can be opened.

    Example: kb init --kb ./kb
    """
    with opened(at, embeddings, create=True) as kb:
        found = {"knowledge_base": repr(kb.db), "embedding_model": kb.embeddings.default}
    show(found, as_json, f"ready: {found['knowledge_base']}, model {found['embedding_model']}")


def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is found.")] = False,
    sample: Annotated[
        int | None, typer.Option(min=0, help="Make terms and vectors anew of so many segments.")
    ] = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Compare every index with the rows it is made from; ends with exit code 1 while one differs.

    The terms of all segments are made anew, and the vectors of 100 segments of each dataset;
    --sample says of how many by chance. Searches and edits go on meanwhile.

    Example: kb doctor --repair
    """
    with opened(at, embeddings, account) as kb:
        report = kb.doctor(repair, sample=sample)
    if as_json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


def _print_report(report: DoctorReport) -> None:
    rows = [
        {
            "dataset": finding.dataset,
            "fault": finding.kind,
            "count": finding.count,
            "repaired": finding.repaired,
            "examples": ", ".join(finding.examples),
        }
        for finding in report.findings
    ]
    print_table(rows, "nothing is wrong")
    say(
        f"{report.datasets} datasets, {report.segments} segments; made anew: the terms of "
        f"{report.compared_terms}, the vectors of {report.compared_vectors}"
    )
    for note in report.notes:
        tell(f"note: {note}")
    if not report.ok and not any(finding.repaired for finding in report.findings):
        tell("mend it with: kb doctor --repair")


def migrate(
    at: At = "./kb",
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL for a DBA instead.")] = False,
    role: Annotated[
        str | None, typer.Option("--role", help="With --sql: grant this role what it needs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring the schema up to date; twice changes nothing.

    On a server where you may not, let a DBA run the printed script; it can be run again after an
    upgrade. --role names the role that the program connects as.

    Example: kb migrate --sql --role my_app > kb_tools.sql
    """
    settings = read_settings()
    if role is not None and not sql:
        raise InvalidInput("--role goes with --sql: only the printed script grants anything")
    if sql:
        script = migrations.script(settings.db_schema, role)
        show({"sql": script}, True, "") if as_json else typer.echo(script, nl=False)
        return
    with Database.open(at, settings) as db:
        applied = migrations.migrate(db, settings.db_schema)
    line = f"applied: {', '.join(applied) or 'nothing, it was up to date'}"
    show({"applied": applied}, as_json, line)
