"""Semantic: segments whose vectors point where the question's does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from langchain_core.callbacks import (
    CallbackManagerForRetrieverRun,
)

from kb_tools import trace
from kb_tools.config import RetrievalConfig
from kb_tools.embeddings import Vector
from kb_tools.errors import InvalidState
from kb_tools.models import Dataset
from kb_tools.resources import Resources
from kb_tools.retrievers.base import GuardedRetriever, Hit
from kb_tools.storage import datasets
from kb_tools.vectorstores import VectorStore


class SemanticRetriever(GuardedRetriever):
    """Segments by the cosine of their vector and the question's, at least `score_threshold`.

    Usage:
        retriever = create(kb, [dataset.id], RetrievalConfig(retriever="semantic", k=4))
        retriever.invoke("年假可以跨年吗?")
    """

    name_in_config: ClassVar[str] = "semantic"
    score_kind: ClassVar[str] = "cosine"

    def candidates(
        self, query: str, pool: int, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Hit]:
        """Return the `pool` nearest segments that reach the threshold; score in [-1, 1].

        Raises InvalidState if the datasets' vectors are not comparable, or their model is not
        open.
        """
        with self.kb.db.transaction() as conn:
            searched = datasets.read(conn, self.kb.account, self.dataset_ids)
        question = ask(self.kb, searched, query)
        if question is None:
            return []
        with trace.stage("vectors") as measured:
            found = question.store.search(question.vector, question.dataset_ids, pool)
            kept = above(found, self.config.score_threshold)
            measured.count = len(kept)
            measured.facts["below_threshold"] = len(found) - len(kept)
        return [
            Hit(segment_id, float(cosine), {"semantic": {"rank": rank, "score": float(cosine)}})
            for rank, (segment_id, cosine) in enumerate(kept, start=1)
        ]


def create(kb: Resources, dataset_ids: Sequence[str], config: RetrievalConfig) -> SemanticRetriever:
    """Return the semantic retriever over datasets that `kb` owns."""
    return SemanticRetriever(kb=kb, dataset_ids=list(dataset_ids), config=config, k=config.k)


@dataclass(frozen=True, eq=False)
class Question:
    """A question as a vector, and the store that holds those of the datasets."""

    store: VectorStore
    vector: Vector
    dataset_ids: list[str]


def ask(kb: Resources, searched: Sequence[Dataset], query: str) -> Question | None:
    """Return the question in the datasets' embedding space; None if none has a vector yet.

    Raises InvalidState if the datasets were embedded by different models, or by one that is not
    open.
    """
    indexed = [dataset for dataset in searched if dataset.embedding_dimension is not None]
    if not indexed:
        return None
    first = indexed[0]
    for other in indexed:
        if _space(other) != _space(first):
            raise InvalidState(
                f"datasets {first.name!r} ({_space(first)}) and {other.name!r} ({_space(other)}) "
                f"have no common embedding model; use search_in_datasets, which searches each by "
                f"its own"
            )
    vector = kb.embeddings.embed_query_for(first, query)
    return Question(kb.vectors(first), vector, [dataset.id for dataset in indexed])


def _space(dataset: Dataset) -> str:
    return f"{dataset.embedding_model!r}, {dataset.embedding_dimension} dimensions"


def above(hits: Sequence[tuple[str, float]], threshold: float | None) -> list[tuple[str, float]]:
    """Return the hits whose cosine is at least `threshold`, in their order; None keeps all."""
    return [hit for hit in hits if threshold is None or hit[1] >= threshold]
