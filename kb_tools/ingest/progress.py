"""Show how far a build is: a bar on a terminal or in a notebook, else whatever you pass."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Built:
    """How far a build is; `current` is the document that was worked on last.

    Totals grow while they become known: documents while they are stored, segments while documents
    are split.
    """

    documents: int
    document_total: int
    segments: int
    segment_total: int
    current: str


Progress: TypeAlias = Callable[[Built], None]


@contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """Yield the callable that a build reports to; see `add_documents` for `progress`."""
    if callable(progress):
        yield progress
    elif progress or (progress is None and _has_viewer()):
        with _bar() as report:
            yield report
    else:
        yield lambda built: None


def _has_viewer() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[current]}"),
    )  # fmt: skip
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        whole = bars.add_task("documents", total=None, current="", visible=False)
        parts = bars.add_task("segments", total=None, current="", visible=False)

        def report(built: Built) -> None:
            name = escape(built.current.translate(_CONTROLS))[:40]
            bars.update(whole, completed=built.documents, total=built.document_total, current=name)
            bars.update(parts, completed=built.segments, total=built.segment_total or None)
            for task in (whole, parts):
                bars.update(task, visible=bool(built.document_total))

        yield report


_CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], "·")
