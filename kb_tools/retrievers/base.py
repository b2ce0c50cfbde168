"""What every retriever shares: candidates in, guarded LangChain documents out.

A retriever only proposes segment ids with scores. Here each of them is re-read from its row:
what is deleted, disabled, unfinished or of another account is dropped, whatever an index says.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document as LCDocument
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from pydantic import ConfigDict, Field, SkipValidation

from kb_tools import registry, trace
from kb_tools.config import RetrievalConfig
from kb_tools.errors import BackendError, InvalidInput
from kb_tools.models import Json
from kb_tools.resources import Resources, in_caller
from kb_tools.storage import segments

POOL_BANDS = (100, 500)


@dataclass(frozen=True)
class Hit:
    """A proposed segment; `scores` keeps rank and raw score per arm."""

    segment_id: str
    score: float
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def pool_size(k: int) -> int:
    """Return how many candidates to fetch for `k`: 100 up to 100, else 500; else InvalidInput.

    Within a band the result for a smaller k is the head of that for a larger one.
    """
    if not 1 <= k <= POOL_BANDS[-1]:
        raise InvalidInput(f"k is 1 to {POOL_BANDS[-1]}; got {k}")
    return next(band for band in POOL_BANDS if k <= band)


class GuardedRetriever(BaseRetriever):
    """Base of all retrievers: at most `k` enabled segments, best first, each read from its row."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    kb: SkipValidation[Resources] = Field(repr=False, exclude=True)
    dataset_ids: list[str]
    config: RetrievalConfig
    k: int = Field(default=4, ge=1, le=500)
    ids_only: bool = Field(default=False, description="rows are read by whoever asked: hybrid")

    name_in_config: ClassVar[str]
    score_kind: ClassVar[str]

    def candidates(
        self, query: str, pool: int, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Hit]:
        """Return at most `pool` proposed segments, best first, ties in a fixed order."""
        raise NotImplementedError

    def kind_of_score(self) -> str:
        """Return what `metadata["score"]` is called for this retriever's config."""
        return self.score_kind

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[LCDocument]:
        wanted = self.k if k is None else k
        with trace.stage(self.name_in_config) as measured:
            hits = self.candidates(query, pool_size(wanted), run_manager)
            measured.count = len(hits)
        return self._unread(hits[:wanted]) if self.ids_only else self._guarded(hits, wanted)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[LCDocument]:
        answer = partial(
            self._get_relevant_documents, query, run_manager=run_manager.get_sync(), k=k
        )
        return await in_caller(self.kb, answer)

    def _guarded(self, hits: Sequence[Hit], wanted: int) -> list[LCDocument]:
        """Return the first `wanted` hits that may be seen, without reading many more rows."""
        found: list[LCDocument] = []
        read = 0
        with trace.stage("read_guard") as measured:
            while len(found) < wanted and read < len(hits):
                part = hits[read : read + max(wanted, read)]
                found += self._visible(part)
                read += len(part)
            measured.count = len(found)
            measured.facts["dropped"] = read - len(found)
        return found[:wanted]

    def _visible(self, hits: Sequence[Hit]) -> list[LCDocument]:
        ids = [hit.segment_id for hit in hits]
        with self.kb.db.transaction() as conn:
            rows = segments.read_visible(conn, self.kb.account, self.dataset_ids, ids)
        return [self._document(hit, rows[hit.segment_id]) for hit in hits if hit.segment_id in rows]

    def _unread(self, hits: Sequence[Hit]) -> list[LCDocument]:
        return [
            LCDocument(
                id=hit.segment_id,
                page_content="",
                metadata={"score": float(hit.score), "scores": dict(hit.scores)},
            )
            for hit in hits
        ]

    def _document(self, hit: Hit, row: segments.VisibleSegment) -> LCDocument:
        scores: dict[str, Json] = {arm: dict(value) for arm, value in hit.scores.items()}
        metadata: dict[str, Json] = {
            **row.metadata(),
            "score": float(hit.score),
            "score_kind": self.kind_of_score(),
            "scores": scores,
        }
        return LCDocument(id=row.segment_id, page_content=row.content, metadata=metadata)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        return LangSmithRetrieverParams(ls_retriever_name=f"kb_tools_{self.name_in_config}")


class PluggedRetriever(GuardedRetriever):
    """A retriever from outside, under the same guard: only its ids and scores count."""

    inner: BaseRetriever
    name_in_config: ClassVar[str] = "plugged"

    def candidates(
        self, query: str, pool: int, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Hit]:
        """Return the documents of the inner retriever as hits, in its order."""
        found = self.inner.invoke(query, {"callbacks": run_manager.get_child()})
        hits = [
            (document.id or str(document.metadata.get("segment_id")), document)
            for document in found
        ]
        return [Hit(segment_id, self._score(document)) for segment_id, document in hits[:pool]]

    def _score(self, document: LCDocument) -> float:
        score = float(document.metadata.get("score", 0.0))
        if not math.isfinite(score):
            raise BackendError(f"retriever {self.config.retriever!r} gave the score {score}")
        return score

    def kind_of_score(self) -> str:
        """Return the name of the retriever in the config: only it knows what its scores mean."""
        return self.config.retriever


def create_retriever(
    kb: Resources, dataset_ids: Sequence[str], config: RetrievalConfig
) -> GuardedRetriever:
    """Return the retriever that `config` names, over datasets that `kb` owns.

    Raises UnknownName if nobody registered that name, InvalidInput for a threshold with a plug-in.
    """
    create = cast(
        Callable[[Resources, Sequence[str], RetrievalConfig], BaseRetriever],
        registry.load("retrievers", config.retriever),
    )
    retriever = create(kb, dataset_ids, config)
    if isinstance(retriever, GuardedRetriever):
        return retriever
    if config.score_threshold is not None:
        raise InvalidInput(
            f"score_threshold={config.score_threshold} has no known scale with "
            f"retriever={config.retriever!r}, which is a plug-in; leave it out"
        )
    return PluggedRetriever(
        kb=kb, dataset_ids=list(dataset_ids), config=config, k=config.k, inner=retriever
    )
