"""Hybrid: several retrievers asked side by side, and one ranking of what they found.

The only module that knows LangChain's EnsembleRetriever, whose fusion by rank it keeps and whose
ways around the read guard it closes.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import ClassVar, TypeAlias
from weakref import WeakKeyDictionary

from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document as LCDocument
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import RunnableConfig
from pydantic import Field

from kb_tools import registry, trace
from kb_tools.config import RetrievalConfig
from kb_tools.db import Database
from kb_tools.embeddings import remembering_questions
from kb_tools.errors import BackendError, InvalidInput, InvalidState, UnknownName
from kb_tools.models import Dataset, Json
from kb_tools.resources import Resources, submit
from kb_tools.retrievers._fusion import (
    background_scale,
    cosines_to,
    reciprocal_rank_fusion,
    score_fusion,
    unit_vectors,
)
from kb_tools.retrievers.base import (
    GuardedRetriever,
    Hit,
    PluggedRetriever,
    create_retriever,
    pool_size,
)
from kb_tools.retrievers.semantic import Question, above, ask
from kb_tools.storage import background, datasets
from kb_tools.storage.segments import VisibleSegment
from kb_tools.vectorstores import Vector, VectorStore

SEMANTIC, FULL_TEXT = "semantic", "full_text"
SCORED_ARMS = (SEMANTIC, FULL_TEXT)  # those whose scores can be compared, in their fixed order
DEFAULT_WEIGHTS = {
    "score": {SEMANTIC: 0.4, FULL_TEXT: 0.6},
    "rrf": {SEMANTIC: 0.5, FULL_TEXT: 0.5},
}
CACHED_BYTES = 64 * 1024 * 1024  # 40 backgrounds of 384 dimensions


@dataclass(frozen=True)
class FusedHit(Hit):
    """A hit of the fused ranking, and how its score came about: fused or rrf."""

    kind: str = "fused"


@dataclass(frozen=True)
class Ranking:
    """What one arm found: segment id -> rank and raw score, best first."""

    arm: str
    weight: float
    hits: Mapping[str, Mapping[str, float]]

    def values(self, name: str) -> dict[str, float]:
        """Return the value called `name` of each hit that has it."""
        return {i: scores[name] for i, scores in self.hits.items() if name in scores}


@dataclass(frozen=True)
class Nearness:
    """The question's cosines: to the segments that any arm found, and to the background.

    `error` is why there are none.
    """

    cosines: Mapping[str, float] = field(default_factory=dict)
    background: Sequence[float] = ()
    error: Exception | None = None


class HybridRetriever(GuardedRetriever, EnsembleRetriever):
    """Segments by meaning and by words together, at least `score_threshold` near by cosine.

    Usage:
        retriever = create(kb, [dataset.id], RetrievalConfig(retriever="hybrid", k=4))
        retriever.invoke("年假可以跨年吗?")
    """

    name_in_config: ClassVar[str] = "hybrid"
    score_kind: ClassVar[str] = "fused"

    retrievers: list[RetrieverLike] = Field(repr=False)
    arms: list[str]

    # EnsembleRetriever's own pass by `_get_relevant_documents`, and so by k and the read guard.
    invoke = BaseRetriever.invoke
    ainvoke = BaseRetriever.ainvoke

    def kind_of_score(self) -> str:
        """Return "rrf" if ranks are fused, else "fused"."""
        return "fused" if self._scores_compare() else "rrf"

    def rank_fusion(
        self,
        query: str,
        run_manager: CallbackManagerForRetrieverRun,
        *,
        config: RunnableConfig | None = None,
    ) -> list[LCDocument]:
        """Return what `invoke` returns; LangChain's name for it."""
        return self._get_relevant_documents(query, run_manager=run_manager)

    async def arank_fusion(
        self,
        query: str,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        *,
        config: RunnableConfig | None = None,
    ) -> list[LCDocument]:
        """Return what `ainvoke` returns; LangChain's name for it."""
        return await self._aget_relevant_documents(query, run_manager=run_manager)

    def candidates(
        self, query: str, pool: int, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Hit]:
        """Return the best `pool` segments of all arms by fused score or reciprocal rank.

        An arm that fails is named in `degraded`. Raises what the arms raised if none answered.
        """
        with remembering_questions():
            rankings = self._ask_arms(query, pool, run_manager)
            nearness = self._nearness(query, rankings)
        with trace.stage("fusion") as measured:
            hits = self._fused(rankings, nearness, measured)
            near = _reaching(hits, self.config.score_threshold)
            measured.count = len(near)
            measured.facts["below_threshold"] = len(hits) - len(near)
        return list(near[:pool])

    def _ask_arms(
        self, query: str, pool: int, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Ranking]:
        """Ask all arms at once; no connection is held while they are waited for."""
        waiting: list[Future[list[LCDocument]]] = []
        for arm, retriever in zip(self.arms, self.retrievers, strict=True):
            callbacks: RunnableConfig = {"callbacks": run_manager.get_child(tag=f"arm:{arm}")}
            work = partial(retriever.invoke, query, callbacks, k=pool)
            waiting.append(submit(self.kb.lanes.arms, work))
        rankings: list[Ranking] = []
        errors: dict[str, Exception] = {}
        for arm, weight, answer in zip(self.arms, self.weights, waiting, strict=True):
            try:
                rankings.append(Ranking(arm, weight, _hits(arm, answer.result())))
            except Exception as error:
                trace.current().miss(arm, error)
                errors[arm] = error
        if not rankings:
            raise _failure(errors)
        return rankings

    def _nearness(self, query: str, rankings: Sequence[Ranking]) -> Nearness:
        """Return the cosines of all hits of all arms; empty with its reason if there are none."""
        if SEMANTIC not in self.arms and self.config.score_threshold is None:
            return Nearness()
        found = list(dict.fromkeys(i for ranking in rankings for i in ranking.hits))
        try:
            return self._cosines(query, found)
        except Exception as error:
            if SEMANTIC not in self.arms:  # else that arm or the fusion tells it
                trace.current().miss("cosines", error)
            return Nearness(error=error)

    def _cosines(self, query: str, found: Sequence[str]) -> Nearness:
        with self.kb.db.transaction() as conn:
            searched = datasets.read(conn, self.kb.account, self.dataset_ids)
        question = ask(self.kb, searched, query)
        if question is None:
            return Nearness()
        with trace.stage("cosines") as measured:
            known = question.store.cosines(question.vector, found)
            measured.count = len(known)
        cosines = {i: float(known[i]) for i in found if i in known}
        return Nearness(cosines, self._background(question, searched))

    def _background(self, question: Question, searched: Sequence[Dataset]) -> list[float]:
        """Return the question's cosines to the background; none if scores are not fused."""
        if not self._scores_compare():
            return []
        with trace.stage("background") as measured:
            sample = _backgrounds.of(self.kb.db, question.store, searched)
            measured.count = len(sample)
            return cosines_to(sample, question.vector)

    def _fused(
        self, rankings: Sequence[Ranking], nearness: Nearness, measured: trace.Measured
    ) -> list[FusedHit]:
        obstacle = self._obstacle(rankings, nearness)
        by_rank = self.config.fusion == "rrf" or obstacle is not None
        if by_rank:
            kind, order = "rrf", self._by_rank(rankings)
        else:
            kind, order = "fused", self._by_score(rankings, nearness)
            middle, reach = background_scale(nearness.background)
            measured.facts.update(background=len(nearness.background), middle=middle, reach=reach)
        if obstacle is not None and self._asked_for_scores():
            trace.current().miss("score fusion", obstacle)
        measured.facts["fusion"] = "rrf" if by_rank else "score"
        measured.facts["weights"] = self._weights()
        return [FusedHit(i, score, _scores(i, rankings, nearness), kind) for i, score in order]

    def _by_rank(self, rankings: Sequence[Ranking]) -> list[tuple[str, float]]:
        ids = [list(ranking.hits) for ranking in rankings]
        return reciprocal_rank_fusion(ids, [ranking.weight for ranking in rankings], self.c)

    def _by_score(self, rankings: Sequence[Ranking], nearness: Nearness) -> list[tuple[str, float]]:
        dense = sum(w for arm, w in zip(self.arms, self.weights, strict=True) if arm == SEMANTIC)
        weight = dense / sum(self.weights)
        shares = {i: 0.0 for ranking in rankings for i in ranking.hits}
        for ranking in rankings:
            shares |= ranking.values("share")
        return score_fusion(shares, nearness.cosines, nearness.background, weight)

    def _obstacle(self, rankings: Sequence[Ranking], nearness: Nearness) -> Exception | None:
        """Return why scores cannot be fused, or None if they can."""
        if not set(self.arms) <= set(SCORED_ARMS):
            return InvalidState(f"the scores of {', '.join(self.arms)} cannot be compared")
        for ranking in rankings:
            if ranking.arm == FULL_TEXT and len(ranking.values("share")) < len(ranking.hits):
                return InvalidState("full_text gave hits without a share")
        # Without the semantic arm the share alone ranks, so its cosines are not missed.
        return nearness.error if SEMANTIC in {ranking.arm for ranking in rankings} else None

    def _scores_compare(self) -> bool:
        return self.config.fusion == "score" and set(self.arms) <= set(SCORED_ARMS)

    def _asked_for_scores(self) -> bool:
        """Say whether fusion by rank is a surprise: other arms imply it unless the config says."""
        explicit = "fusion" in self.config.model_fields_set and self.config.fusion == "score"
        return explicit or self._scores_compare()

    def _weights(self) -> dict[str, Json]:
        return dict(zip(self.arms, self.weights, strict=True))

    def _document(self, hit: Hit, row: VisibleSegment) -> LCDocument:
        document = super()._document(hit, row)
        kind = hit.kind if isinstance(hit, FusedHit) else self.kind_of_score()
        return document.model_copy(update={"metadata": document.metadata | {"score_kind": kind}})


def create(kb: Resources, dataset_ids: Sequence[str], config: RetrievalConfig) -> HybridRetriever:
    """Return the hybrid over datasets that `kb` owns; `config.weights` chooses its arms.

    An arm that nobody registered is named in `degraded`; UnknownName if that holds for all.
    """
    weights = _known_arms(arm_weights(config))
    changes = {"k": pool_size(config.k), "score_threshold": None, "weights": None}
    arms = [
        _arm(
            create_retriever(
                kb, dataset_ids, config.model_copy(update={**changes, "retriever": arm})
            )
        )
        for arm in weights
    ]
    return HybridRetriever(
        kb=kb, dataset_ids=list(dataset_ids), config=config, k=config.k,
        retrievers=list(arms), weights=list(weights.values()), arms=list(weights),
        id_key="segment_id",
    )  # fmt: skip


def _arm(retriever: GuardedRetriever) -> GuardedRetriever:
    """Return the retriever as an arm: rows are read once, after fusion.

    A plug-in's are read before as well: what may not be seen must not take a rank.
    """
    return retriever.model_copy(update={"ids_only": not isinstance(retriever, PluggedRetriever)})


def _known_arms(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the arms that exist; the others are named in `degraded`, unless none is left."""
    known: dict[str, float] = {}
    unknown: list[UnknownName] = []
    for arm, weight in weights.items():
        try:
            registry.load("retrievers", arm)
            known[arm] = weight
        except UnknownName as error:
            trace.current().miss(arm, error)
            unknown.append(error)
    if not known:
        raise unknown[0]
    return known


def arm_weights(config: RetrievalConfig) -> dict[str, float]:
    """Return arm -> weight, semantic and full_text first, then by name; arms of weight 0 are out.

    Raises InvalidInput if hybrid is to be an arm of itself.
    """
    given = config.weights or DEFAULT_WEIGHTS[config.fusion]
    if "hybrid" in given:
        raise InvalidInput("weights: hybrid cannot be an arm of itself; name its arms instead")
    # A fixed order, because a stored config does not keep the one in which it was written.
    names = [*SCORED_ARMS, *sorted(set(given) - set(SCORED_ARMS))]
    return {name: given[name] for name in names if given.get(name)}


def _hits(arm: str, documents: Sequence[LCDocument]) -> dict[str, dict[str, float]]:
    """Return segment id -> rank and raw scores of one arm's answer, best first."""
    hits: dict[str, dict[str, float]] = {}
    for document in documents:
        segment_id = document.metadata.get("segment_id") or document.id
        if isinstance(segment_id, str) and segment_id not in hits:
            hits[segment_id] = {"rank": len(hits) + 1, **_raw(arm, document)}
    return hits


def _raw(arm: str, document: LCDocument) -> dict[str, float]:
    score = document.metadata.get("score")
    raw = {} if score is None else {"score": float(score)}
    share = document.metadata.get("scores", {}).get(arm, {}).get("share")
    return raw if share is None else {**raw, "share": float(share)}


def _scores(
    segment_id: str, rankings: Sequence[Ranking], nearness: Nearness
) -> dict[str, Mapping[str, float]]:
    """Return what each arm said of a segment; its cosine also if only another arm found it."""
    scores = {r.arm: r.hits[segment_id] for r in rankings if segment_id in r.hits}
    cosine = nearness.cosines.get(segment_id)
    if cosine is None or SEMANTIC in scores:
        return scores
    return {SEMANTIC: {"score": cosine}, **scores}


def _reaching(hits: Sequence[FusedHit], threshold: float | None) -> list[FusedHit]:
    """Return the hits whose cosine reaches the threshold; one without a cosine does not."""
    cosines = [(hit.segment_id, hit.scores.get(SEMANTIC, {}).get("score", -2.0)) for hit in hits]
    reached = {segment_id for segment_id, _ in above(cosines, threshold)}
    return [hit for hit in hits if hit.segment_id in reached]


def _failure(errors: Mapping[str, Exception]) -> Exception:
    if all(isinstance(error, InvalidState | InvalidInput) for error in errors.values()):
        return next(iter(errors.values()))
    named = ", ".join(f"{arm} ({type(error).__name__})" for arm, error in errors.items())
    return BackendError(f"no arm of hybrid answered: {named}")


_Key: TypeAlias = tuple[tuple[str, int, str, int], ...]


class _Backgrounds:
    """The vectors of the background samples last used, per database.

    A changed dataset has a new one. Of 1,000 vectors a product takes a tenth of a millisecond;
    asking the store for as many cosines takes some.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: WeakKeyDictionary[Database, OrderedDict[_Key, Vector]] = WeakKeyDictionary()

    def of(self, db: Database, store: VectorStore, searched: Sequence[Dataset]) -> Vector:
        """Return the sample's unit vectors, `(n, dimension) float32`, of the datasets as they are.

        A vector of zeros stays one.
        """
        key = tuple(
            sorted(
                (d.id, d.index_revision, d.embedding_model, d.embedding_dimension or 0)
                for d in searched
            )
        )
        with self._lock:
            known = self._known.setdefault(db, OrderedDict())
            if key in known:
                known.move_to_end(key)
                return known[key]
        with db.transaction() as conn:
            ids = background.sample(conn, [dataset.id for dataset in searched])
        vectors = store.vectors(ids)
        sample = unit_vectors([vectors[i] for i in ids if i in vectors])
        with self._lock:
            known[key] = sample
            while len(known) > 1 and sum(part.nbytes for part in known.values()) > CACHED_BYTES:
                known.popitem(last=False)
        return sample


_backgrounds = _Backgrounds()
