"""Commands that care for a knowledge base: init, migrate."""

from typing import Annotated

import typer

from kb_tools.cli.options import AsJson, At, Embedder, opened
from kb_tools.cli.output import show
from kb_tools.db import Database
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
