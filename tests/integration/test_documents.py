"""Documents: from a source to completed segments, and what happens when one fails."""

import io
import os
import threading
from pathlib import Path

import pytest
from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document as LCDocument

from kb_tools import (
    BackendError,
    BuildFailed,
    InvalidInput,
    InvalidState,
    KnowledgeBase,
    NotFound,
    ProcessRule,
    RetrievalConfig,
)
from kb_tools.ingest import pipeline
from kb_tools.models import Dataset, DocumentStatus, SegmentStatus
from kb_tools.testing import FakeEmbeddings


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("a")


def contents(kb: KnowledgeBase, document_id: str) -> list[str]:
    return [segment.content for segment in kb.list_segments(document_id)]


def test_a_file_becomes_completed_enabled_segments(
    kb: KnowledgeBase, dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "年假 制度.md"
    path.write_text("# 年假\n\n员工每年有十天年假。\n\n# 病假\n\n病假要有证明。", "utf-8")
    batch = kb.add_documents(dataset.id, [path], metadata={"team": "人事"}).raise_for_errors()
    document = kb.get_document(batch.document_ids[0])
    assert (document.name, document.extension) == ("年假 制度.md", "md")
    assert (document.status, document.enabled) == (DocumentStatus.COMPLETED, True)
    assert document.metadata["team"] == "人事"
    segments = kb.list_segments(document.id)
    assert [segment.heading for segment in segments] == ["年假", "病假"]
    assert all(s.enabled and s.status is SegmentStatus.COMPLETED for s in segments)
    assert document.token_count == sum(segment.token_count for segment in segments)
    assert document.character_count == sum(len(segment.content) for segment in segments)


def test_timestamps_follow_the_steps(kb: KnowledgeBase, dataset: Dataset) -> None:
    batch = kb.add_documents(dataset.id, LCDocument("苹果很甜"))
    state = batch.states[0]
    steps = [
        state.created_at,
        state.processing_started_at,
        state.parsing_completed_at,
        state.splitting_completed_at,
        state.indexing_completed_at,
    ]
    assert all(steps)
    assert steps == sorted(steps)  # type: ignore[type-var]
    assert state.completed_at is not None
    assert state.stopped_at is None
    assert state.percentage == 100


def test_a_failing_document_names_its_reason_and_others_go_on(
    kb: KnowledgeBase, dataset: Dataset, tmp_path: Path
) -> None:
    for name, content in {
        "a.txt": "苹果很甜",
        "b.xyz": "?",
        "c.txt": "",
        "d.pdf": "no pdf",
    }.items():
        (tmp_path / name).write_text(content, "utf-8")
    batch = kb.add_documents(dataset.id, sorted(tmp_path.iterdir()))
    reasons = {state.name: state.error or "" for state in batch.failed}
    assert set(reasons) == {"b.xyz", "c.txt", "d.pdf"}
    assert "unsupported format" in reasons["b.xyz"]
    assert "no text" in reasons["c.txt"]
    with pytest.raises(BuildFailed, match=r"b\.xyz"):
        batch.raise_for_errors()
    stopped = [state for state in batch.states if state.status is DocumentStatus.ERROR]
    assert all(state.stopped_at and not state.completed_at for state in stopped)
    assert len(kb.search_in_datasets("苹果", [dataset.id])) == 1


def test_unreadable_paths_are_refused_before_any_row_exists(
    kb: KnowledgeBase, dataset: Dataset, tmp_path: Path
) -> None:
    good = tmp_path / "a.txt"
    good.write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"nowhere\.txt.*empty' holds no file"):
        kb.add_documents(dataset.id, [good, tmp_path / "nowhere.txt", tmp_path / "empty"])
    with pytest.raises(InvalidInput, match="type int"):
        kb.add_documents(dataset.id, [1])  # type: ignore[list-item]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="no regular file"):
        kb.add_documents(dataset.id, tmp_path / "pipe")
    assert kb.list_documents(dataset.id) == []


def test_a_source_that_fails_half_way_leaves_no_rows(kb: KnowledgeBase, dataset: Dataset) -> None:
    class Broken(BaseLoader):
        def lazy_load(self):  # type: ignore[no-untyped-def]
            yield from (LCDocument(f"text {number}") for number in range(600))
            raise ConnectionError("password='MySecret'")

    with pytest.raises(InvalidInput, match="Broken failed: ConnectionError"):
        kb.add_documents(dataset.id, Broken())
    assert kb.dataset_statistics(dataset.id).document_count == 0


@pytest.mark.parametrize("step", ["_read", "_new_segments", "_insert"])
def test_any_failure_ends_its_document_and_nothing_else(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    done = getattr(pipeline, step)

    def fail_on_bad(*arguments: object) -> object:
        if "BAD" in repr(arguments):
            raise RuntimeError("secret")
        return done(*arguments)

    monkeypatch.setattr(pipeline, step, fail_on_bad)
    sources = [LCDocument(t, metadata={"filename": t}) for t in ("苹果", "BAD", "香蕉")]
    batch = kb.add_documents(dataset.id, sources)
    assert [state.name for state in batch.failed] == ["BAD"]
    assert "RuntimeError" in (batch.failed[0].error or "")
    assert "secret" not in (batch.failed[0].error or "")
    assert kb.dataset_statistics(dataset.id).completed_document_count == 2


def test_a_listener_that_fails_does_not_stop_the_build(kb: KnowledgeBase, dataset: Dataset) -> None:
    def broken(_: object) -> None:
        raise RuntimeError

    assert kb.add_documents(dataset.id, LCDocument("苹果"), progress=broken).failed == []


def test_documents_of_one_name_all_count_as_failed(
    kb: KnowledgeBase, dataset: Dataset, tmp_path: Path
) -> None:
    paths = [tmp_path / folder / "readme.xyz" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(str(path.parent))
    assert len(kb.add_documents(dataset.id, paths).failed) == 2


def test_a_batch_that_fails_once_is_embedded_again(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = embeddings.embed_documents
    failures = iter([ConnectionError()])

    def once(texts: list[str]) -> list[list[float]]:
        for failure in failures:
            raise failure
        return answers(texts)

    monkeypatch.setattr(embeddings, "embed_documents", once)
    kb.add_documents(dataset.id, LCDocument("苹果很甜")).raise_for_errors()


def test_one_text_that_cannot_be_embedded_fails_alone(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = embeddings.embed_documents

    def refuse_bad(texts: list[str]) -> list[list[float]]:
        if any("BAD" in text for text in texts):
            raise ValueError("content filter")
        return answers(texts)

    monkeypatch.setattr(embeddings, "embed_documents", refuse_bad)
    texts = [f"苹果 {number}" for number in range(100)]
    texts[63] = "BAD"
    batch = kb.add_documents(dataset.id, [LCDocument(text) for text in texts])
    assert [state.name for state in batch.failed] == ["BAD"]


def test_a_model_that_is_down_is_not_asked_for_every_text(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def down(texts: list[str]) -> list[list[float]]:
        calls.append(len(texts))
        raise ConnectionError

    monkeypatch.setattr(embeddings, "embed_documents", down)
    batch = kb.add_documents(dataset.id, [LCDocument(f"苹果 {n}") for n in range(64)])
    assert len(batch.failed) == 64
    assert len(calls) < 30


def test_open_files_and_loaders_are_sources_too(kb: KnowledgeBase, dataset: Dataset) -> None:
    class Loader(BaseLoader):
        def lazy_load(self):  # type: ignore[no-untyped-def]
            yield LCDocument("from a loader", metadata={"source": "https://x.test/a/b.html"})

    stream = io.BytesIO("来自文件".encode())
    stream.name = "stream.txt"
    batch = kb.add_documents(dataset.id, [stream, Loader()]).raise_for_errors()
    names = [kb.get_document(document_id).name for document_id in batch.document_ids]
    assert names == ["stream.txt", "b.html"]
    with pytest.raises(InvalidInput, match="name"):
        kb.add_documents(dataset.id, io.BytesIO(b"x"))


def test_as_is_keeps_one_document_as_one_segment_letter_for_letter(
    kb: KnowledgeBase, dataset: Dataset
) -> None:
    text = "  第一行\r\n\thttps://a.test 第二行\u200b  \n\n\n" + "长" * 3000
    rule = ProcessRule.as_is()
    batch = kb.add_documents(dataset.id, LCDocument(text), process_rule=rule)
    assert contents(kb, batch.document_ids[0]) == [text]
    assert kb.get_document(batch.document_ids[0]).process_rule["mode"] == "as_is"


def test_many_as_is_documents_are_built_in_order(kb: KnowledgeBase, dataset: Dataset) -> None:
    texts = [f"passage number {number}" for number in range(450)]
    batch = kb.add_documents(
        dataset.id, map(LCDocument, texts), process_rule=ProcessRule.as_is()
    ).raise_for_errors()
    assert [contents(kb, document_id)[0] for document_id in batch.document_ids] == texts
    positions = [kb.get_document(document_id).position for document_id in batch.document_ids]
    assert positions == list(range(1, 451))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("o\0er Cloud credits", "oer Cloud credits"),
        ("ok \ud83d end 😀", "ok \ufffd end 😀"),
        ("see <|endoftext|> here", "see <|endoftext|> here"),
    ],
)
def test_text_that_breaks_databases_and_tokenizers_is_indexed(
    kb: KnowledgeBase, dataset: Dataset, text: str, kept: str
) -> None:
    for rule in (ProcessRule.as_is(), ProcessRule.automatic()):
        batch = kb.add_documents(dataset.id, LCDocument(text), process_rule=rule, duplicates="keep")
        assert contents(kb, batch.raise_for_errors().document_ids[0]) == [kept]


@pytest.mark.parametrize(
    "value", [b"\xff", object(), {1: {2}}, [b"x"], pytest.param(10**5000, id="huge")]
)
def test_metadata_of_any_kind_is_kept_in_some_form(
    kb: KnowledgeBase, dataset: Dataset, value: object
) -> None:
    circular: list[object] = [value]
    circular.append(circular)
    metadata = {"odd": value, "circular": circular}
    kb.add_documents(dataset.id, LCDocument("苹果", metadata=metadata)).raise_for_errors()
    assert "odd" in kb.search_in_datasets("苹果", [dataset.id])[0].metadata


def test_places_of_this_machine_are_not_kept(kb: KnowledgeBase, dataset: Dataset) -> None:
    metadata = {"source": "/srv/secret/leave.md", "url": "https://x.test/srv/a", "n": "1/2"}
    kb.add_documents(dataset.id, LCDocument("苹果", metadata=metadata)).raise_for_errors()
    found = kb.search_in_datasets("苹果", [dataset.id])[0].metadata
    assert (found["source"], found["url"], found["n"]) == (
        "leave.md",
        "https://x.test/srv/a",
        "1/2",
    )


def test_metadata_becomes_json_and_never_hides_ours(kb: KnowledgeBase, dataset: Dataset) -> None:
    metadata = {"score": "fake", "when": Path("x"), "n": float("nan"), "bad\0key": "\ud800"}
    kb.add_documents(dataset.id, LCDocument("苹果很甜", metadata=metadata)).raise_for_errors()
    found = kb.search_in_datasets("苹果", [dataset.id])[0].metadata
    assert isinstance(found["score"], float)
    assert (found["when"], found["n"], found["badkey"]) == ("x", None, "\ufffd")


def test_equal_text_is_embedded_once_and_stays_two_segments(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings
) -> None:
    same = [LCDocument("退货期 7 天", metadata={"title": t}) for t in ("t", "t", "u")]
    kb.add_documents(dataset.id, same, duplicates="keep")
    kb.add_documents(dataset.id, same[:1], duplicates="keep")
    assert sum(len(call) for call in embeddings.documents) == 2
    found = kb.search_in_datasets("退货期", [dataset.id], RetrievalConfig(k=10))
    assert len({document.metadata["document_id"] for document in found}) == 4


def test_an_embedding_failure_marks_segments_error_and_not_enabled(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(texts: list[str]) -> list[list[float]]:
        raise ConnectionError("password='MySecret'")

    monkeypatch.setattr(embeddings, "embed_documents", refuse)
    batch = kb.add_documents(dataset.id, LCDocument("苹果很甜"))
    (state,), (segment,) = batch.states, kb.list_segments(batch.document_ids[0])
    assert state.status is DocumentStatus.ERROR
    assert (segment.status, segment.enabled) == (SegmentStatus.ERROR, False)
    assert "ConnectionError" in (state.error or "")
    assert "MySecret" not in (state.error or "")
    assert not kb.search_in_datasets("苹果", [dataset.id])


def test_another_model_is_refused_by_name_before_anything_is_written(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings
) -> None:
    kb.add_documents(dataset.id, LCDocument("苹果很甜"))
    embeddings.dimension = 32
    batch = kb.add_documents(dataset.id, LCDocument("梨也很甜"))
    reason = batch.failed[0].error or ""
    assert all(part in reason for part in ("64", "32", "fake", "'a'", "kb dataset reembed"))
    embeddings.dimension = 64
    assert (
        len(kb.search_in_datasets("甜", [dataset.id], RetrievalConfig(retriever="semantic"))) == 1
    )


def test_a_model_that_is_not_open_is_refused(
    kb: KnowledgeBase, dataset: Dataset, server_folder: Path
) -> None:
    kb.add_documents(dataset.id, LCDocument("苹果很甜"))
    other = FakeEmbeddings(model_name="other")
    with KnowledgeBase.open(server_folder, embeddings=other, settings=kb.settings) as second:
        with pytest.raises(InvalidState, match=r"'a'.*'fake'.*other.*reembed"):
            second.add_documents(dataset.id, LCDocument("x"))
        semantic = RetrievalConfig(retriever="semantic")
        with pytest.raises(InvalidState, match="fake"):
            second.search_in_datasets("苹果", [dataset.id], semantic)
        result = second.search_in_datasets("苹果", [dataset.id])
        assert len(result) == 1
        assert any(miss.error == "InvalidState" for miss in result.degraded)


def test_a_deleted_document_leaves_nothing_and_frequencies_stay_right(
    kb: KnowledgeBase, dataset: Dataset
) -> None:
    gone, kept = kb.add_documents(
        dataset.id, [LCDocument("苹果很甜"), LCDocument("苹果很酸")]
    ).document_ids
    kb.delete_document(gone)
    with pytest.raises(NotFound):
        kb.get_document(gone)
    result = kb.search_in_datasets("苹果", [dataset.id])
    assert [document.metadata["document_id"] for document in result] == [kept]
    with kb.db.transaction() as conn:
        df = dict(conn.execute("SELECT term, df FROM full_text_term WHERE df > 0").fetchall())
        (vectors,) = conn.execute("SELECT count(*) FROM vector_1").fetchone() or (None,)
    assert df["苹果"] == 1
    assert "甜" not in df
    assert vectors == 1


def test_documents_are_listed_newest_first_and_searched_literally(
    kb: KnowledgeBase, dataset: Dataset
) -> None:
    names = ["100%.txt", "100.txt", "a_b.txt"]
    kb.add_documents(dataset.id, [LCDocument("x", metadata={"filename": n}) for n in names])
    assert [d.name for d in kb.list_documents(dataset.id)] == names[::-1]
    assert [d.name for d in kb.list_documents(dataset.id, search="0%")] == ["100%.txt"]
    assert [d.name for d in kb.list_documents(dataset.id, offset=1, limit=1)] == ["100.txt"]


def test_progress_is_told_to_the_end(kb: KnowledgeBase, dataset: Dataset) -> None:
    told = []
    kb.add_documents(dataset.id, [LCDocument("一"), LCDocument("二")], progress=told.append)
    last = told[-1]
    assert (last.documents, last.document_total) == (2, 2)
    assert (last.segments, last.segment_total) == (2, 2)


def test_a_file_over_the_limit_is_in_error_and_named(
    server_folder: Path, kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings
) -> None:
    small = kb.settings.model_copy(update={"max_file_bytes": 10})
    with KnowledgeBase.open(server_folder, embeddings=embeddings, settings=small) as limited:
        stream = io.BytesIO(b"x" * 11)
        stream.name = "big.txt"
        assert "too large" in (limited.add_documents(dataset.id, stream).failed[0].error or "")


def test_documents_are_listed_by_where_their_build_is(
    kb: KnowledgeBase, dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("苹果")
    (tmp_path / "b.txt").write_text("")
    kb.add_documents(dataset.id, sorted(tmp_path.iterdir()))
    assert [d.name for d in kb.list_documents(dataset.id, status="error")] == ["b.txt"]
    assert [d.name for d in kb.list_documents(dataset.id, status="completed")] == ["a.txt"]
    assert [d.name for d in kb.list_documents(dataset.id, failed=True)] == ["b.txt"]
    with pytest.raises(InvalidInput, match="unknown status 'done'; known: waiting, "):
        kb.list_documents(dataset.id, status="done")


def test_a_batch_tells_its_states_after_the_knowledge_base_is_closed(
    server_folder: Path, kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings
) -> None:
    with KnowledgeBase.open(server_folder, embeddings=embeddings, settings=kb.settings) as second:
        batch = second.add_documents(dataset.id, LCDocument("苹果"))
    assert [state.status for state in batch.states] == [DocumentStatus.COMPLETED]


def test_a_passage_that_is_embedded_by_its_head_is_said_so_in_the_report(
    server_folder: Path, kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings
) -> None:
    short = kb.settings.model_copy(update={"embedding_input_tokens": 16})
    rule, passage = ProcessRule.as_is(), LCDocument("一句很长的话。" * 50)
    with KnowledgeBase.open(server_folder, embeddings=embeddings, settings=short) as limited:
        batch = limited.add_documents(dataset.id, passage, process_rule=rule).raise_for_errors()
        whole = limited.add_documents(dataset.id, LCDocument("短"), process_rule=rule)
    document = kb.get_document(batch.document_ids[0])
    assert document.report["segments_embedded_by_their_head"] == 1
    assert document.report["embedding_input_tokens"] == 16
    assert contents(kb, document.id) == [passage.page_content]
    assert kb.get_document(whole.document_ids[0]).report == {}


def test_a_model_that_hangs_stops_the_build_and_its_documents_wait(
    server_folder: Path, kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, released = FakeEmbeddings(), threading.Event()
    monkeypatch.setattr(hanging, "embed_documents", lambda _: released.wait(60))
    changes = {"embedding_timeout_seconds": 0.1, "embedding_retries": 0}
    settings = kb.settings.model_copy(update=changes)
    with (
        KnowledgeBase.open(server_folder, embeddings=hanging, settings=settings) as second,
        pytest.raises(BackendError, match=r"did not answer within 0\.1 s.*resume_builds\(\)"),
    ):
        second.add_documents(dataset.id, LCDocument("苹果"))
    released.set()
    assert kb.unfinished_documents() == {dataset.id: 1}
    assert [state.error for state in kb.resume_builds()] == [None]


def test_requests_are_sent_side_by_side_and_a_text_still_once(
    server_folder: Path, kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings
) -> None:
    settings = kb.settings.model_copy(update={"embedding_batch_size": 2})
    texts = [f"苹果 {number % 300}" for number in range(900)]
    sources = [LCDocument(t, metadata={"n": n, "title": "t"}) for n, t in enumerate(texts)]
    with KnowledgeBase.open(server_folder, embeddings=embeddings, settings=settings) as second:
        second.add_documents(dataset.id, sources, process_rule=ProcessRule.as_is())
    asked = [text for call in embeddings.documents for text in call]
    assert (len(asked), len(set(asked))) == (300, 300)
    assert max(map(len, embeddings.documents)) == 2
