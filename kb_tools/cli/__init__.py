"""The command line: `kb`. It opens a knowledge base, calls one function, prints the answer."""

import sys
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from typing import Annotated

import typer
from typer.core import TyperGroup

from kb_tools.cli import building, care, datasets, documents, questions, segments, words
from kb_tools.cli.output import tell
from kb_tools.errors import KnowledgeBaseError

HELP = """A knowledge base in a folder or a PostgreSQL server.

Start with:

    kb init
    kb add handbook leave.md travel.pdf --create
    kb search "年假可以跨年吗?"

Every command takes `--kb` (a folder or a postgresql:// URL; or set KB_AT, which keeps a password
out of the list of processes) and `--json`."""


class Foreseen(TyperGroup):
    """Shows a foreseen error as one line, without a traceback, and ends with exit code 1."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer's own class
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KnowledgeBaseError as error:
            tell(f"error: {error}")
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Foreseen,
    name="kb",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help=HELP,
)
app.command()(care.init)
app.command()(building.add)
app.command()(building.status)
app.command()(questions.search)
app.command()(questions.hit)
datasets.dataset_app.command("words")(words.dataset_words)
datasets.dataset_app.command("synonyms")(words.dataset_synonyms)
app.add_typer(datasets.dataset_app, name="dataset")
app.add_typer(documents.document_app, name="document")
app.add_typer(segments.segment_app, name="segment")
app.command()(care.doctor)
app.command()(care.migrate)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(f"kb_tools {version('kb-tools')}")
    except PackageNotFoundError:
        typer.echo("kb_tools, run from its source without being installed")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of `kb` itself; typer shows the app's help, not this."""


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know no Chinese
    app(prog_name="kb")
