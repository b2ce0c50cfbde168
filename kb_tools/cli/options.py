"""What commands share: their options, and what the values of options mean."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kb_tools.config import ProcessRule, RetrievalConfig
from kb_tools.errors import InvalidInput, NotFound
from kb_tools.knowledge_base import KnowledgeBase
from kb_tools.models import Dataset

PAGE = 200

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
DocumentId = Annotated[str, typer.Argument(help="Id of a document (kb document list).")]
DocumentIds = Annotated[list[str], typer.Argument(help="Ids of documents (kb document list).")]
SegmentId = Annotated[
    str, typer.Argument(help="Id of a segment, or DOCUMENT:NUMBER (kb segment list).")
]
By = Annotated[
    str | None,
    typer.Option("--by", envvar=["KB_EDITED_BY", "USER"], help="Who changes it, for the history."),
]
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


def opened(
    at: str, embeddings: str, account: str = "default", *, create: bool = False
) -> KnowledgeBase:
    """Return the knowledge base that the options name; use it in a with statement.

    Raises NotFound for a folder without one, unless it may be made.
    """
    if not create and "://" not in at and not (Path(at) / "postgres").exists():
        raise NotFound(
            f"no knowledge base in {at!r}; make one with: kb init --kb {shlex.quote(at)}"
        )
    return KnowledgeBase.open(at, embeddings=embeddings, account=account)


def find_dataset(kb: KnowledgeBase, name: str) -> Dataset:
    """Return the dataset of that name, else of that id. Raises NotFound with what there is."""
    datasets = all_datasets(kb)
    for dataset in datasets:
        if name in (dataset.name, dataset.id):
            return dataset
    names = ", ".join(dataset.name for dataset in datasets[:20])
    more = f" and {len(datasets) - 20} more" if len(datasets) > 20 else ""
    raise NotFound(f"no dataset {name!r}; there are: {names or 'none yet'}{more}")


def all_datasets(kb: KnowledgeBase) -> list[Dataset]:
    """Return every dataset of the account, newest first."""
    found: list[Dataset] = []
    while page := kb.list_datasets(offset=len(found), limit=PAGE):
        found += page
    return found


def dataset_ids(kb: KnowledgeBase, names: Sequence[str] | None) -> list[str]:
    """Return the ids of the named datasets; of all if none is named."""
    if names:
        return [find_dataset(kb, name).id for name in names]
    found = [dataset.id for dataset in all_datasets(kb)]
    if not found:
        raise NotFound("there is no dataset yet; make one with: kb add NAME FILES --create")
    return found


def config_of(
    retriever: str | None, k: int | None, threshold: float | None
) -> RetrievalConfig | None:
    """Return the config that sets what was given; None if nothing was."""
    given = {"retriever": retriever, "k": k, "score_threshold": threshold}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return RetrievalConfig(**fields) if fields else None


def rule_of(chunk_size: int | None, chunk_overlap: int | None, as_is: bool) -> ProcessRule | None:
    """Return the rule that was given; None for the automatic one. Raises InvalidInput."""
    if as_is and (chunk_size, chunk_overlap) != (None, None):
        raise InvalidInput("--as-is cuts nothing; drop --chunk-size and --chunk-overlap")
    if as_is:
        return ProcessRule.as_is()
    if chunk_size is None and chunk_overlap is None:
        return None
    size = 500 if chunk_size is None else chunk_size
    overlap = size // 10 if chunk_overlap is None else chunk_overlap
    return ProcessRule.custom(chunk_size=size, chunk_overlap=overlap)


def metadata_of(pairs: Sequence[str] | None) -> dict[str, object]:
    """Return key=value pairs as a mapping. Raises InvalidInput for anything else."""
    found: dict[str, object] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidInput(f"--metadata takes key=value; got {pair!r}")
        found[name] = value
    return found
