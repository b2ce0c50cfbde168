"""Commands for segments: what is found and cited."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kb_tools.cli.options import (
    Account,
    AsJson,
    At,
    By,
    Contains,
    DocumentId,
    Embedder,
    Limit,
    Offset,
    SegmentId,
    Yes,
    opened,
)
from kb_tools.cli.output import confirm, print_json, print_table, say, show
from kb_tools.cli.rows import segment_row, state_of
from kb_tools.errors import InvalidInput, NotFound
from kb_tools.knowledge_base import KnowledgeBase
from kb_tools.models import Revision, Segment

PAGE = 500
Content = Annotated[str | None, typer.Option("--content", help="The text.")]
ContentFile = Annotated[
    Path | None, typer.Option("--file", help="A file with the text; '-' reads stdin.")
]
Keywords = Annotated[
    list[str] | None, typer.Option("--keyword", help="Repeat it, 10 at most. Default: the best.")
]
segment_app = typer.Typer(
    no_args_is_help=True, help="List, add, edit, switch on and off and delete segments; undo."
)


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
        print_table([segment_row(segment) for segment in found], "no segments")


@segment_app.command("show")
def segment_show(
    segment: SegmentId,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Show a segment's whole text and its keywords; `--json` shows every field.

    Example: kb segment show 0193f0...:3
    """
    with opened(at, embeddings, account) as kb:
        found = _find(kb, segment)
    if as_json:
        print_json(found)
        return
    say(found.content)
    say(f"\nkeywords: {', '.join(found.keywords) or 'none'}")
    say(f"{state_of(found)}, {found.token_count} tokens, {found.hit_count} hits, id {found.id}")


@segment_app.command("add")
def segment_add(
    document_id: DocumentId,
    content: Content = None,
    file: ContentFile = None,
    keyword: Keywords = None,
    by: By = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Add a segment of at most 1,000 tokens at the end of a document.

    Example: kb segment add 0193f0... --content "年假可以跨年。" --keyword 年假
    """
    text = _text(content, file)
    if text is None:
        raise InvalidInput("give the text with --content, or a file with --file ('-': stdin)")
    with opened(at, embeddings, account) as kb:
        made = kb.create_segment(document_id, text, keyword, edited_by=by)
    show(made, as_json, f"added segment {made.position} ({made.id})")


@segment_app.command("edit")
def segment_edit(
    segment: SegmentId,
    content: Content = None,
    file: ContentFile = None,
    keyword: Keywords = None,
    no_keywords: Annotated[bool, typer.Option("--no-keywords", help="Take them away.")] = False,
    by: By = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Change the text or the keywords of a segment; it is found by the new ones at once.

    `kb segment history` shows what was there before, `kb segment undo` brings it back.

    Example: kb segment edit 0193f0...:3 --content "年假可以跨年, 最多 5 天。"
    """
    text, keywords = _text(content, file), [] if no_keywords else keyword
    if text is None and keywords is None:
        raise InvalidInput("nothing to change: give --content, --file, --keyword or --no-keywords")
    with opened(at, embeddings, account) as kb:
        found = _find(kb, segment)
        changed = kb.update_segment(found.id, text, keywords, edited_by=by)
    show(changed, as_json, f"changed segment {changed.position} ({changed.id})")


@segment_app.command("enable")
def segment_enable(
    segment: SegmentId,
    by: By = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Let a segment be found again; one in error is indexed again.

    Example: kb segment enable 0193f0...:3
    """
    with opened(at, embeddings, account) as kb:
        changed = kb.set_segment_enabled(_find(kb, segment).id, True, edited_by=by)
    show(changed, as_json, f"enabled segment {changed.position}")


@segment_app.command("disable")
def segment_disable(
    segment: SegmentId,
    by: By = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Let no search find a segment, until it is enabled.

    Example: kb segment disable 0193f0...:3
    """
    with opened(at, embeddings, account) as kb:
        changed = kb.set_segment_enabled(_find(kb, segment).id, False, edited_by=by)
    show(changed, as_json, f"disabled segment {changed.position}")


@segment_app.command("delete")
def segment_delete(
    segment: SegmentId,
    by: By = None,
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Delete a segment; `kb segment undo` with the number that is printed brings it back.

    Example: kb segment delete 0193f0...:3 --yes
    """
    with opened(at, embeddings, account) as kb:
        found = _find(kb, segment)
        confirm(f"delete segment {found.position}: {found.content[:60]!r}?", yes)
        revision = kb.delete_segment(found.id, edited_by=by)
    show(revision, as_json, f"deleted segment {found.position}; kb segment undo {revision.id}")


@segment_app.command("history")
def segment_history(
    asset_id: Annotated[
        str, typer.Argument(help="A segment (id, or DOCUMENT:NUMBER), or a whole document.")
    ],
    offset: Offset = 0,
    limit: Limit = 50,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Show who changed what when, newest first; `--json` shows the whole texts.

    Example: kb segment history 0193f0...
    """
    with opened(at, embeddings, account) as kb:
        known = _find(kb, asset_id).id if ":" in asset_id else asset_id
        found = kb.list_revisions(known, offset=offset, limit=limit)
    if as_json:
        print_json(found)
    else:
        print_table([_revision_row(revision) for revision in found], "no changes")


@segment_app.command("undo")
def segment_undo(
    revision: Annotated[str, typer.Argument(help="Number of a revision (kb segment history).")],
    by: By = None,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """Take one change back; the undo is a change too, and can be undone.

    Example: kb segment undo 12
    """
    with opened(at, embeddings, account) as kb:
        done = kb.undo(revision, edited_by=by)
    show(done, as_json, f"undid {revision}; kb segment undo {done.id} brings it back")


def _find(kb: KnowledgeBase, name: str) -> Segment:
    """Return a segment by its id, or by its document's id and its number. Raises NotFound."""
    document_id, colon, number = name.rpartition(":")
    if not colon:
        return kb.get_segment(name)
    if not number.isdecimal():
        raise InvalidInput(f"{name!r} is no segment; give its id, or DOCUMENT:NUMBER")
    offset = 0
    while page := kb.list_segments(document_id, offset=offset, limit=PAGE):
        for segment in page:
            if segment.position == int(number):
                return segment
        offset += len(page)
    raise NotFound(f"document {document_id!r} has no segment {number}")


def _text(content: str | None, file: Path | None) -> str | None:
    if content is not None and file is not None:
        raise InvalidInput("give --content or --file, not both")
    if file is None:
        return content
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {str(file)!r}: {type(error).__name__}") from None


def _revision_row(revision: Revision) -> dict[str, object]:
    before, after = revision.before or {}, revision.after or {}
    was = before.get("content") or before.get("name") or before.get("keywords") or ""
    now = after.get("content") or after.get("name") or after.get("keywords") or ""
    return {
        "#": int(revision.id),
        "when": f"{revision.created_at:%Y-%m-%d %H:%M}",
        "who": revision.edited_by or "",
        "action": f"{revision.action} (undo {revision.undoes})"
        if revision.undoes
        else revision.action,
        "before": was,
        "after": now,
    }
