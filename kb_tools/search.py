"""`search_in_datasets`: the only way to read. Tools, nodes, retrievers, hit tests and CLI call it.

query -> account owns every dataset? -> blank? -> dispatch (groups, candidates, read guard,
merge, cut to k) -> cut to the token budget -> label -> log -> SearchResult
"""

import html
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document as LCDocument

from kb_tools import citations, dispatch, trace
from kb_tools.config import RetrievalConfig
from kb_tools.embeddings import remembering_questions
from kb_tools.errors import InvalidInput, MissingDependency, NotFound
from kb_tools.models import Dataset, Degraded, Json, Reason, new_id, possible_ids
from kb_tools.resources import Resources, submit
from kb_tools.storage import datasets, queries, segments
from kb_tools.storage.queries import LoggedQuery, ReturnedHit
from kb_tools.text.characters import storable, visible
from kb_tools.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

NOT_ASKED = (Reason.BLANK_QUERY, Reason.NO_DATASET)  # no search was made, so none is logged
MAX_QUERY_CHARACTERS = 10_000  # the rest is not searched for, which the trace says
ROLL_UP_SHARE = 1 / 1000  # of the searches; the background work keeps the hit rows few

MESSAGES: Mapping[Reason, str] = {
    Reason.BLANK_QUERY: "问题是空的, 没有检索。The query is empty: ask with words.",
    Reason.NO_DATASET: "没有指定知识库。No dataset was given to search in.",
    Reason.NOTHING_ENABLED: "知识库内没有启用的内容。The datasets hold no enabled content yet.",
    Reason.FILTERED_OUT: "没有文档符合过滤条件。No document matches the filter; loosen it.",
    Reason.BELOW_THRESHOLD: (
        "知识库内没有检索到对应内容。Nothing was similar enough (score_threshold); "
        "ask in other words or lower the threshold."
    ),
    Reason.OVER_BUDGET: (
        "检索到的内容超出了 token 预算。What was found does not fit into token_budget; raise it."
    ),
    Reason.NO_MATCH: (
        "知识库内没有检索到对应内容。Nothing was found; try other words, or fewer of them."
    ),
}


@dataclass(frozen=True)
class Origin:
    """Who asked, for the log."""

    source: str = "app"
    source_app_id: str | None = None
    created_by: str | None = None


@dataclass(frozen=True)
class SearchResult:
    """What a search found: documents best first, their rendered text, and how it came about.

    Iterate or index it for LangChain documents; `text` is what a model reads. `reason` says why
    nothing was found and is None otherwise; `degraded` names what did not answer; `cut` counts
    hits that did not fit into the token budget. Scores are comparable within one result only.
    """

    query: str
    documents: list[LCDocument]
    text: str
    reason: Reason | None
    degraded: list[Degraded]
    cut: int
    trace: Trace = field(repr=False)
    trace_id: str = field(repr=False)
    config_fingerprint: str = field(repr=False)
    milliseconds: float = field(repr=False)

    def __iter__(self) -> Iterator[LCDocument]:
        """Iterate over the documents, best first."""
        return iter(self.documents)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.documents)

    def __bool__(self) -> bool:
        """Say whether anything was found."""
        return bool(self.documents)

    def __getitem__(self, index: int) -> LCDocument:
        """Return the document at `index`; label [1] is index 0."""
        return self.documents[index]

    def __repr__(self) -> str:
        """Show the size of the result and all that is missing from it."""
        notes = [f"{len(self.documents)} documents"]
        notes += [f"reason={self.reason}"] if self.reason else []
        notes += [f"cut by token budget={self.cut}"] if self.cut else []
        notes += [f"degraded={self.degraded}"] if self.degraded else []
        return f"SearchResult({visible(self.query)[:60]!r}: {', '.join(notes)})"

    @property
    def citations(self) -> dict[int, citations.Citation]:
        """Return label -> document id, segment id, position and name."""
        return citations.citations(self.documents)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per document. Raises MissingDependency without pandas."""
        return frame([_row(document) for document in self.documents])

    def _repr_html_(self) -> str:
        rows = [_row(document) for document in self.documents]
        return f"<p>{html.escape(repr(self))}</p>{html_table(rows)}"


def search_in_datasets(
    kb: Resources,
    query: str,
    dataset_ids: Sequence[str],
    config: RetrievalConfig | None = None,
    *,
    source: str = "app",
    source_app_id: str | None = None,
    created_by: str | None = None,
) -> SearchResult:
    """Find at most `k` enabled segments, best first, and log the query.

    `config` overlays each dataset's own by the fields it sets. Raises NotFound if any dataset is
    missing, InvalidInput for settings that do not go together, and BackendError if no part of
    the search could answer; a part that fails is named in `degraded`.
    """
    if config is not None and not isinstance(config, RetrievalConfig):
        raise InvalidInput(f"config is a RetrievalConfig; got {type(config).__name__}")
    origin = Origin(source, source_app_id, created_by)
    return run(kb, query, _ids(dataset_ids), config, origin=origin)


def run(
    kb: Resources,
    query: str,
    dataset_ids: Sequence[str],
    config: RetrievalConfig | None,
    *,
    origin: Origin,
    bound: bool = False,
) -> SearchResult:
    """Search as `search_in_datasets` does; `bound` ids may be gone by now, which is `degraded`."""
    started = time.perf_counter()
    with trace.recording() as recorded, remembering_questions():
        found = _owned(kb, dataset_ids, bound=bound)
        query = _searchable(query)
        answer = _answer(kb, query, found, config)
        result = SearchResult(
            query=query,
            documents=citations.labelled(answer.documents),
            text=_text(answer),
            reason=answer.reason,
            degraded=recorded.degraded,
            cut=answer.cut,
            trace=recorded,
            trace_id=new_id(),
            config_fingerprint=answer.fingerprint,
            milliseconds=1000 * (time.perf_counter() - started),
        )
        if answer.reason not in NOT_ASKED:
            _log(kb, result, found, origin)
    return result


@dataclass(frozen=True)
class _Answer:
    """What was found, or why nothing."""

    documents: list[LCDocument] = field(default_factory=list)
    reason: Reason | None = None
    cut: int = 0
    fingerprint: str = ""


def _answer(
    kb: Resources, query: str, found: Sequence[Dataset], config: RetrievalConfig | None
) -> _Answer:
    if not query:
        return _Answer(reason=Reason.BLANK_QUERY)
    if not found:
        return _Answer(reason=Reason.NO_DATASET)
    plan = dispatch.plan(kb, found, config)
    merged = dispatch.retrieve(kb, query, plan)
    documents = _within_budget(merged.documents, plan.config)
    cut = merged.cut + len(merged.documents) - len(documents)
    reason = None if documents else _why_empty(kb, found, cut)
    return _Answer(documents, reason, cut, plan.fingerprint())


def _text(answer: _Answer) -> str:
    return (
        citations.combine_documents(answer.documents) or MESSAGES[answer.reason or Reason.NO_MATCH]
    )


def fence_secret(kb: Resources) -> str:
    """Return the secret from which fences around passages are derived."""
    with kb.db.transaction() as conn:
        return queries.secret(conn, "fence")


def _ids(dataset_ids: Sequence[str]) -> list[str]:
    if isinstance(dataset_ids, str):
        raise InvalidInput(f"dataset_ids is a list of ids; got the text {dataset_ids!r}")
    possible_ids(dataset_ids)
    return list(dict.fromkeys(dataset_ids))


def _owned(kb: Resources, dataset_ids: Sequence[str], *, bound: bool) -> list[Dataset]:
    with kb.db.transaction() as conn:
        found = datasets.read(conn, kb.account, dataset_ids)
    missing = set(dataset_ids) - {dataset.id for dataset in found}
    for dataset_id in (i for i in dataset_ids if i in missing):
        if not bound:
            raise NotFound(f"no dataset with id {dataset_id!r}")
        trace.current().miss(f"dataset {dataset_id}", NotFound("it was deleted"))
    return found


def _searchable(query: str) -> str:
    if not isinstance(query, str):
        raise InvalidInput(f"a query is a text; got {type(query).__name__}")
    text = storable(query).strip()
    if len(text) <= MAX_QUERY_CHARACTERS:
        return text
    with trace.stage("query") as measured:
        measured.facts["cut_to_characters"] = MAX_QUERY_CHARACTERS
    return text[:MAX_QUERY_CHARACTERS]


def _within_budget(documents: list[LCDocument], config: RetrievalConfig) -> list[LCDocument]:
    if config.token_budget is None:
        return documents
    with trace.stage("token_budget") as measured:
        kept = dispatch.within(documents, dispatch.limit_of(config.token_budget))
        measured.count = len(kept)
        measured.facts["budget"] = config.token_budget
    return kept


def _why_empty(kb: Resources, found: Sequence[Dataset], cut: int) -> Reason:
    if cut:
        return Reason.OVER_BUDGET
    with kb.db.transaction() as conn:
        if not segments.any_visible(conn, [dataset.id for dataset in found]):
            return Reason.NOTHING_ENABLED
    below = any(stage.facts.get("below_threshold") for stage in trace.current().stages)
    return Reason.BELOW_THRESHOLD if below else Reason.NO_MATCH


def _log(kb: Resources, result: SearchResult, found: Sequence[Dataset], origin: Origin) -> None:
    logged = LoggedQuery(
        trace_id=result.trace_id,
        query=result.query,
        rewritten_query=None,
        source=origin.source,
        source_app_id=origin.source_app_id,
        created_by=origin.created_by,
        config_fingerprint=result.config_fingerprint,
        reason=result.reason,
        milliseconds=result.milliseconds,
    )
    hits = [
        ReturnedHit(
            document.metadata["dataset_id"],
            document.metadata["document_id"],
            document.metadata["segment_id"],
            document.metadata["score"],
        )
        for document in result.documents
    ]
    try:
        with kb.db.transaction() as conn:
            queries.log(conn, logged, [dataset.id for dataset in found], hits)
        if random.random() < ROLL_UP_SHARE:
            submit(kb.lanes.callers, partial(_roll_up, kb))
    except Exception as error:
        trace.current().miss("query log", error)
        logger.warning("query not logged: %s", type(error).__name__)


def _roll_up(kb: Resources) -> None:
    try:
        with kb.db.transaction() as conn:
            queries.roll_up(conn, kb.settings.query_retention_days)
    except Exception as error:  # the next one will do
        logger.warning("hits not rolled up: %s", type(error).__name__)


def _row(document: LCDocument) -> dict[str, Json]:
    names = ("citation", "score", "score_kind", "document_name", "position", "heading", "page")
    row: dict[str, Json] = {name: document.metadata.get(name) for name in names}
    return row | {"content": document.page_content, "segment_id": document.id}


def frame(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a pandas DataFrame. Raises MissingDependency without pandas."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingDependency.of_extra("pandas", "notebooks") from None
    return pd.DataFrame(rows)


def html_table(rows: Sequence[Mapping[str, object]], limit: int = 200) -> str:
    """Return rows as an HTML table; every value is escaped and cut to `limit` characters."""
    if not rows:
        return ""

    def cell(value: object) -> str:
        text = "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
        text = visible(text)
        return html.escape(text if len(text) <= limit else text[:limit] + "…")

    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
