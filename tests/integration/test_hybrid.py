"""Hybrid retrieval: arms side by side, scores that compare, failures that are told."""

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document as LCDocument
from langchain_core.load.dump import dumpd
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from kb_tools import registry, trace
from kb_tools.config import RetrievalConfig
from kb_tools.db import Database
from kb_tools.embeddings import EmbeddingModels
from kb_tools.errors import BackendError, InvalidState, UnknownName
from kb_tools.models import Degraded
from kb_tools.resources import Lanes, Resources
from kb_tools.retrievers.base import create_retriever
from kb_tools.retrievers.hybrid import HybridRetriever, create
from kb_tools.settings import Settings
from kb_tools.storage import datasets
from kb_tools.testing import FakeEmbeddings
from kb_tools.vectorstores import Point, Space, VectorStores

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

TEXTS = {
    "leave": "年假可以跨年使用",
    "travel": "差旅费在十日内报销",
    "lunch": "The cafeteria opens at noon",
    "rules": "员工请假须提前三个工作日提出申请",
}


class Library:
    """A knowledge base whose rows and vectors tests write themselves."""

    def __init__(self, rows: "Rows", settings: Settings, database: Database) -> None:
        self.rows, self.model = rows, FakeEmbeddings(model_name="m")
        models = EmbeddingModels.of(self.model, settings)
        stores = VectorStores("pgvector", settings, database)
        self.kb = Resources(database, models, stores, Lanes(settings), settings)

    def add(self, texts: dict[str, str], *, dataset_id: str = "d") -> None:
        self.rows.segments(dataset_id, texts)
        vectors = self.kb.embeddings.embed_documents("m", list(texts.values()))
        points = [
            Point(segment_id, dataset_id, dataset_id, vector)
            for segment_id, vector in zip(texts, vectors, strict=True)
        ]
        with self.kb.db.transaction() as conn:
            self.kb.vector_stores.of(Space("m", 64)).upsert(points, conn=conn)
            datasets.record_dimension(conn, dataset_id, 64)
            datasets.touch(conn, dataset_id)

    def retriever(self, *dataset_ids: str, **config: Any) -> HybridRetriever:
        return create(self.kb, dataset_ids or ("d",), RetrievalConfig(**config))

    def execute(self, statement: str) -> None:
        with self.kb.db.transaction() as conn:
            conn.execute(statement.encode())


@pytest.fixture
def library(rows: "Rows") -> Iterator[Library]:
    made = Library(rows, rows.database._settings, rows.database)
    made.add(TEXTS)
    yield made
    made.kb.lanes.close()


class Plugged(BaseRetriever):
    """A retriever of somebody else: plain documents, whose ids may be ours."""

    answer: Callable[[], list[LCDocument]]

    def _get_relevant_documents(self, query: str, **_: object) -> list[LCDocument]:
        return self.answer()


@pytest.fixture
def plug() -> Iterator[Callable[[str, Callable[[], list[LCDocument]]], None]]:
    names: list[str] = []

    def add(name: str, answer: Callable[[], list[LCDocument]]) -> None:
        names.append(name)
        registry.register("retrievers", name, lambda kb, ids, config: Plugged(answer=answer))

    yield add
    for name in names:
        del registry._registered["retrievers", name]


Plug = Callable[[str, Callable[[], list[LCDocument]]], None]


def broken() -> list[LCDocument]:
    raise ConnectionError("postgresql://user:secret@host refused")


def test_every_hit_tells_its_score_its_kind_and_what_each_arm_said(library: Library) -> None:
    hits = library.retriever().invoke("年假可以跨年吗")
    best = hits[0].metadata
    assert hits[0].id == "leave"
    assert best["score_kind"] == "fused"
    assert set(best["scores"]) == {"semantic", "full_text"}
    assert set(best["scores"]["full_text"]) == {"rank", "score", "share"}
    assert 0 < best["scores"]["full_text"]["share"] <= 1
    assert best["scores"]["semantic"]["rank"] == 1
    assert [hit.metadata["score"] for hit in hits] == sorted(
        (hit.metadata["score"] for hit in hits), reverse=True
    )


def test_only_plain_json_leaves_the_package(library: Library) -> None:
    def numbers(value: object) -> Iterator[object]:
        if isinstance(value, dict):
            for item in value.values():
                yield from numbers(item)
        else:
            yield value

    for fusion in ("score", "rrf"):
        with trace.recording() as recorded:
            hits = library.retriever(fusion=fusion).invoke("年假 cafeteria")
        for found in [hit.metadata for hit in hits] + [stage.facts for stage in recorded.stages]:
            json.dumps(found, allow_nan=False)
        kinds = {type(value) for hit in hits for value in numbers(hit.metadata)}
        assert kinds <= {str, int, float, type(None)}


def test_equal_text_in_two_documents_stays_two_hits_with_two_scores(library: Library) -> None:
    library.rows.dataset("e")
    library.add({"again": TEXTS["leave"]}, dataset_id="e")
    hits = library.retriever("d", "e").invoke(TEXTS["leave"])
    assert [hit.id for hit in hits][:2] == ["again", "leave"]
    assert {hit.metadata["document_id"] for hit in hits[:2]} == {"d", "e"}
    assert {hit.metadata["scores"]["semantic"]["rank"] for hit in hits[:2]} == {1, 2}


def test_threshold_is_on_the_cosine_also_of_lexical_hits(library: Library) -> None:
    library.add({f"s{i}": f"xabcdefx xghijklx {i}" for i in range(120)})  # fill the semantic pool
    library.add({"far": "The zebra lives in the savanna and is known for its stripes"})
    question = "abcdef ghijkl zebra"
    config = {"k": 100, "weights": {"semantic": 0.01, "full_text": 0.99}}
    everything = library.retriever(**config).invoke(question)
    found = next(hit for hit in everything if hit.id == "far")
    assert "rank" not in found.metadata["scores"]["semantic"]
    cosine = found.metadata["scores"]["semantic"]["score"]
    assert cosine < 0.5
    with trace.recording() as recorded:
        near = library.retriever(**config, score_threshold=0.5).invoke(question)
    assert "far" not in [hit.id for hit in near]
    assert all(hit.metadata["scores"]["semantic"]["score"] >= 0.5 for hit in near)
    assert sum(stage.facts.get("below_threshold", 0) for stage in recorded.stages) > 0


def test_lexical_hit_that_is_near_enough_passes_a_threshold(library: Library) -> None:
    hits = library.retriever(weights={"full_text": 1.0}, score_threshold=0.5).invoke("年假跨年使用")
    assert [hit.id for hit in hits] == ["leave"]
    assert hits[0].metadata["scores"]["semantic"]["score"] >= 0.5


def test_unrelated_question_finds_nothing_above_a_threshold(library: Library) -> None:
    assert library.retriever(score_threshold=0.6).invoke("sandwich") == []


@pytest.mark.parametrize("fusion", ["score", "rrf"])
def test_unrelated_question_does_not_score_one(library: Library, fusion: str) -> None:
    hits = library.retriever(fusion=fusion).invoke("sandwich")
    assert all(hit.metadata["score"] < 0.7 for hit in hits)


def test_dataset_of_one_segment_has_finite_scores(library: Library) -> None:
    library.rows.dataset("one")
    library.add({"only": "唯一的一段"}, dataset_id="one")
    (hit,) = library.retriever("one").invoke("唯一")
    assert math.isfinite(hit.metadata["score"])


def test_hiding_a_segment_changes_no_score_of_another(library: Library) -> None:
    before = library.retriever().invoke("年假可以跨年吗")[0]
    library.execute("UPDATE segment SET enabled = false WHERE id = 'lunch'")
    assert library.retriever().invoke("年假可以跨年吗")[0] == before


def test_background_follows_the_dataset(library: Library) -> None:
    def sizes() -> list[object]:
        with trace.recording() as recorded:
            library.retriever().invoke("年假")
        return [stage.facts["background"] for stage in recorded.stages if stage.name == "fusion"]

    assert sizes() == [4]
    library.add({"new": "新的规定"})
    assert sizes() == [5]


def test_result_for_a_smaller_k_is_the_head_of_a_larger(library: Library) -> None:
    library.add({f"s{i:03}": f"条款 {i}: 年假与报销" for i in range(130)})
    hits = library.retriever(k=100).invoke("年假")
    assert len(hits) == 100
    for k in (1, 7, 50):
        assert library.retriever().invoke("年假", k=k) == hits[:k]
    assert len(library.retriever(k=500).invoke("年假")) == 134


def test_question_is_embedded_once(library: Library) -> None:
    library.retriever().invoke("年假可以跨年吗")
    assert library.model.queries == ["年假可以跨年吗"]


def test_broken_model_leaves_full_text_and_is_named(library: Library) -> None:
    library.model.embed_query = broken  # type: ignore[assignment]
    with trace.recording() as recorded:
        hits = library.retriever().invoke("年假可以跨年吗")
    assert [hit.id for hit in hits] == ["leave"]
    assert recorded.degraded == [Degraded("semantic", "BackendError")]
    assert hits[0].metadata["score_kind"] == "fused"


def test_hit_without_a_cosine_never_passes_a_threshold(library: Library) -> None:
    library.model.embed_query = broken  # type: ignore[assignment]
    with trace.recording() as recorded:
        assert library.retriever(score_threshold=0.1).invoke("年假可以跨年吗") == []
    assert recorded.degraded == [Degraded("semantic", "BackendError")]


def test_threshold_that_cannot_be_judged_is_told_without_a_semantic_arm(library: Library) -> None:
    library.model.embed_query = broken  # type: ignore[assignment]
    config = {"weights": {"full_text": 1.0}, "score_threshold": 0.1}
    with trace.recording() as recorded:
        assert library.retriever(**config).invoke("年假可以跨年吗") == []
    assert recorded.degraded == [Degraded("cosines", "BackendError")]


def test_model_that_is_not_open_costs_the_semantic_arm_only(library: Library) -> None:
    library.execute("UPDATE dataset SET embedding_model = 'gone'")
    with trace.recording() as recorded:
        assert [hit.id for hit in library.retriever().invoke("年假可以跨年吗")] == ["leave"]
    assert recorded.degraded == [Degraded("semantic", "InvalidState")]


def test_arms_that_all_fail_raise_without_their_words(library: Library, plug: Plug) -> None:
    plug("one", broken)
    plug("two", broken)
    retriever = library.retriever(weights={"one": 1.0, "two": 1.0})
    with pytest.raises(BackendError, match=r"one \(ConnectionError\), two") as caught:
        retriever.invoke("年假")
    assert "secret" not in str(caught.value)


def test_arms_that_all_refuse_raise_what_they_said(library: Library) -> None:
    library.execute("UPDATE dataset SET embedding_model = 'gone'")
    with pytest.raises(InvalidState, match="kb dataset reembed d"):
        library.retriever(weights={"semantic": 1.0}).invoke("年假")


def test_unknown_arm_is_refused_when_the_retriever_is_made(library: Library) -> None:
    with pytest.raises(UnknownName, match="nobody"):
        library.retriever(weights={"nobody": 1.0})


def test_plugged_arm_is_fused_by_rank_and_guarded(library: Library, plug: Plug) -> None:
    answer = [
        LCDocument(page_content="not ours", id="unknown"),
        LCDocument(page_content="without an id"),
        LCDocument(page_content="theirs", id="lunch", metadata={"score": 7}),
    ]
    plug("theirs", lambda: answer)
    with trace.recording() as recorded:
        hits = library.retriever(weights={"semantic": 0.5, "theirs": 0.5}).invoke("年假跨年使用")
    lunch = next(hit for hit in hits if hit.id == "lunch")
    assert lunch.page_content == TEXTS["lunch"]
    assert lunch.metadata["score_kind"] == "rrf"
    assert lunch.metadata["scores"]["theirs"] == {"rank": 1, "score": 7.0}
    assert {hit.id for hit in hits} <= set(TEXTS)
    assert recorded.degraded == []


def test_fusion_by_rank_where_scores_were_asked_for_is_told(library: Library) -> None:
    weights = {"full_text": 0.5, "keyword": 0.5}
    for config, missed in [({}, False), ({"fusion": "score"}, True), ({"fusion": "rrf"}, False)]:
        with trace.recording() as recorded:
            hits = library.retriever(weights=weights, **config).invoke("年假可以跨年吗")
        assert {hit.metadata["score_kind"] for hit in hits} == {"rrf"}
        assert ("score fusion" in [entry.part for entry in recorded.degraded]) is missed


def test_store_without_cosines_is_fused_by_rank_and_told(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cosines(*_: object) -> dict[str, float]:
        raise NotImplementedError

    monkeypatch.setattr(library.kb.vector_stores.of(Space("m", 64)), "cosines", cosines)
    with trace.recording() as recorded:
        hits = library.retriever().invoke("年假可以跨年吗")
    assert {hit.metadata["score_kind"] for hit in hits} == {"rrf"}
    assert recorded.degraded == [Degraded("score fusion", "NotImplementedError")]
    near = library.retriever(score_threshold=0.5).invoke("年假可以跨年吗")
    assert [hit.id for hit in near] == ["leave"]


def test_reciprocal_rank_scores_are_those_of_the_formula(library: Library) -> None:
    hits = library.retriever(fusion="rrf").invoke("年假可以跨年使用")
    assert hits[0].metadata["score"] == pytest.approx(1 / 61)
    for hit in hits:
        ranks = [arm["rank"] for arm in hit.metadata["scores"].values() if "rank" in arm]
        assert hit.metadata["score"] == pytest.approx(sum(0.5 / (60 + rank) for rank in ranks))


def test_weights_move_the_result(library: Library) -> None:
    library.add({"words": "跨年 年假 zzzz qqqq wwww xxxx"})
    lexical = library.retriever(weights={"full_text": 1.0}).invoke("年假跨年")
    semantic = library.retriever(weights={"semantic": 1.0}).invoke("年假跨年")
    half = library.retriever(weights={"semantic": 1.0, "full_text": 1.0}).invoke("年假跨年")
    by_id = [{hit.id: hit.metadata["score"] for hit in hits} for hits in (lexical, semantic, half)]
    expected = (by_id[0]["words"] + by_id[1]["words"]) / 2
    assert by_id[2]["words"] == pytest.approx(expected)


def test_arms_run_side_by_side(library: Library, plug: Plug) -> None:
    both = threading.Barrier(2, timeout=30)

    def meet() -> list[LCDocument]:
        both.wait()
        return []

    plug("one", meet)
    plug("two", meet)
    with trace.recording() as recorded:
        library.retriever(weights={"one": 1.0, "two": 1.0}).invoke("年假")
    assert not recorded.degraded


def test_one_connection_is_enough(rows: "Rows", server_folder: Path, library: Library) -> None:
    settings = rows.database._settings.model_copy(
        update={"pool_max_size": 1, "pool_timeout_seconds": 5.0}
    )
    with Database.open(server_folder, settings) as narrow:
        small = Library(rows, settings, narrow)
        assert small.retriever(k=1).invoke("年假可以跨年吗")[0].id == "leave"
        small.kb.lanes.close()


class Runs(BaseCallbackHandler):
    """The names of retriever runs, with the names of their parents."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.parents: dict[str, str | None] = {}

    def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        self.names[run_id] = kwargs["name"]
        parent = None if parent_run_id is None else self.names[parent_run_id]
        self.parents[kwargs["name"]] = parent


def test_arms_are_children_in_the_trace(library: Library) -> None:
    runs = Runs()
    library.retriever().invoke("年假", {"callbacks": [runs]})
    assert runs.parents == {
        "HybridRetriever": None,
        "SemanticRetriever": "HybridRetriever",
        "FullTextRetriever": "HybridRetriever",
    }


async def test_arms_are_children_in_the_trace_of_an_async_call(library: Library) -> None:
    runs = Runs()
    await library.retriever().ainvoke("年假", {"callbacks": [runs]})
    assert runs.parents["SemanticRetriever"] == "HybridRetriever"


async def test_two_hundred_async_calls_are_all_answered(library: Library) -> None:
    retriever = library.retriever(k=1)
    one = retriever.invoke("年假可以跨年")
    answers = await asyncio.gather(*[retriever.ainvoke("年假可以跨年") for _ in range(200)])
    assert all(hits == one for hits in answers)


def test_trace_dump_shows_no_resources(library: Library) -> None:
    retriever = create_retriever(library.kb, ["d"], RetrievalConfig())
    dumped = str(dumpd(retriever)) + repr(retriever)
    assert "Resources" not in dumped
    assert "Database" not in dumped


def test_langchains_own_entry_is_guarded_too(library: Library) -> None:
    library.execute("UPDATE segment SET enabled = false WHERE id = 'leave'")
    assert "leave" not in [hit.id for hit in library.retriever().invoke("年假可以跨年使用")]
    assert "leave" not in [hit.id for hit in library.retriever().batch(["年假可以跨年使用"])[0]]


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _keep(self, library: Library) -> None:
        self.library = library

    @property
    def retriever_constructor(self) -> Callable[..., HybridRetriever]:  # type: ignore[override]
        def construct(**params: Any) -> HybridRetriever:
            return create(self.library.kb, ["d"], RetrievalConfig(**params))

        return construct

    @property
    def retriever_constructor_params(self) -> dict[str, object]:
        return {}

    @property
    def retriever_query_example(self) -> str:
        return "年假可以跨年吗?"
