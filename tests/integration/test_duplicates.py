"""Content that is there already: skipped, replaced without a gap, or kept."""

import threading
from pathlib import Path

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import InvalidInput, KnowledgeBase, ProcessRule
from kb_tools.assets.documents import Batch
from kb_tools.ingest import pipeline, upload
from kb_tools.models import Dataset, DocumentStatus, SkipKind
from kb_tools.testing import FakeEmbeddings


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("a")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("苹果很甜")
    (folder / "b.md").write_text("香蕉很长")
    return folder


def contents(kb: KnowledgeBase, dataset: Dataset) -> list[str]:
    """Return what a search can find, in the order of the documents."""
    documents = reversed(kb.list_documents(dataset.id, status="completed"))
    return [s.content for d in documents if d.enabled for s in kb.list_segments(d.id)]


def skipped(batch: Batch) -> list[tuple[str, str | None]]:
    assert all(entry.kind is SkipKind.DUPLICATE for entry in batch.skipped)
    return [(entry.name, entry.document_id) for entry in batch.skipped]


def test_a_folder_that_is_added_again_adds_only_what_is_new(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    first = kb.add_documents(dataset.id, docs)
    (docs / "c.md").write_text("樱桃很红")
    again = kb.add_documents(dataset.id, docs)
    assert [state.name for state in again.states] == ["c.md"]
    assert skipped(again) == list(zip(["a.md", "b.md"], first.document_ids, strict=True))
    assert contents(kb, dataset) == ["苹果很甜", "香蕉很长", "樱桃很红"]


def test_equal_bytes_under_two_names_are_one_document_that_is_named(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    (docs / "copy.md").write_text("苹果很甜")
    batch = kb.add_documents(dataset.id, docs)
    assert skipped(batch) == [("copy.md", batch.document_ids[0])]
    assert "'a.md'" in batch.skipped[0].reason


def test_duplicates_are_a_matter_of_one_dataset(kb: KnowledgeBase, docs: Path) -> None:
    for name in ("a", "b"):
        assert len(kb.add_documents(kb.create_dataset(name).id, docs).document_ids) == 2


def test_duplicates_can_be_kept(kb: KnowledgeBase, dataset: Dataset, docs: Path) -> None:
    for _ in range(2):
        assert kb.add_documents(dataset.id, docs, duplicates="keep").skipped == []
    assert kb.dataset_statistics(dataset.id).document_count == 4


def test_an_unknown_policy_is_named_with_the_known(kb: KnowledgeBase, dataset: Dataset) -> None:
    with pytest.raises(InvalidInput, match=r"'overwrite'.*skip, replace, keep"):
        kb.add_documents(dataset.id, LCDocument("x"), duplicates="overwrite")


def test_passages_of_one_text_and_other_metadata_are_no_duplicates(
    kb: KnowledgeBase, dataset: Dataset
) -> None:
    passages = [LCDocument("同", metadata={"source": s}) for s in ("a", "b", "a")]
    batch = kb.add_documents(dataset.id, passages, metadata={"team": "x"})
    assert skipped(batch) == [("a", batch.document_ids[0])]
    again = kb.add_documents(dataset.id, passages, metadata={"team": "y"})
    assert (len(again.skipped), again.states) == (3, [])


def test_a_failed_document_is_tried_again_and_gives_way(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(embeddings, "embed_documents", lambda _: 1 / 0)
        assert len(kb.add_documents(dataset.id, LCDocument("苹果")).failed) == 1
        assert len(kb.add_documents(dataset.id, LCDocument("苹果")).failed) == 1
    assert kb.dataset_statistics(dataset.id).document_count == 1
    batch = kb.add_documents(dataset.id, LCDocument("苹果")).raise_for_errors()
    assert [d.id for d in kb.list_documents(dataset.id)] == batch.document_ids


def test_a_mended_file_takes_the_place_of_the_failed_one(
    kb: KnowledgeBase, dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    for text, failures in (("", 1), ("{", 1), ('{"a": "苹果"}', 0)):
        path.write_text(text)
        assert len(kb.add_documents(dataset.id, path).failed) == failures, text
    assert kb.dataset_statistics(dataset.id).document_count == 1


def test_a_document_that_lacks_segments_is_tried_again_and_gives_way(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = LCDocument("# 一\n\n苹果\n\n" + "长句子。" * 400 + "BAD")
    with monkeypatch.context() as patched:
        refuse(patched, embeddings, "BAD")
        assert "segments failed" in (kb.add_documents(dataset.id, text).failed[0].error or "")
    batch = kb.add_documents(dataset.id, text).raise_for_errors()
    assert [d.id for d in kb.list_documents(dataset.id)] == batch.document_ids


def refuse(patched: pytest.MonkeyPatch, embeddings: FakeEmbeddings, word: str) -> None:
    """Let the model fail on texts that hold `word`."""
    answer = embeddings.embed_documents

    def embed(texts: list[str]) -> list[list[float]]:
        if any(word in text for text in texts):
            raise ValueError
        return answer(texts)

    patched.setattr(embeddings, "embed_documents", embed)


# Replace


def test_a_changed_file_takes_the_place_of_its_older_version(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    first = kb.add_documents(dataset.id, docs)
    (docs / "a.md").write_text("苹果很酸")
    batch = kb.add_documents(dataset.id, docs, duplicates="replace")
    assert skipped(batch) == [("b.md", first.document_ids[1])]
    assert contents(kb, dataset) == ["香蕉很长", "苹果很酸"]
    assert kb.search_in_datasets("苹果", [dataset.id])[0].page_content == "苹果很酸"
    assert kb.dataset_statistics(dataset.id).document_count == 2


def test_a_replacement_that_fails_leaves_the_older_version(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    kb.add_documents(dataset.id, docs)
    (docs / "a.md").write_text("")
    assert len(kb.add_documents(dataset.id, docs, duplicates="replace").failed) == 1
    assert contents(kb, dataset) == ["苹果很甜", "香蕉很长"]
    (docs / "a.md").write_text("苹果很酸")
    kb.add_documents(dataset.id, docs, duplicates="replace").raise_for_errors()
    assert contents(kb, dataset) == ["香蕉很长", "苹果很酸"]
    assert kb.dataset_statistics(dataset.id).document_count == 2


def test_a_replacement_that_lacks_segments_leaves_the_whole_older_version(
    kb: KnowledgeBase, dataset: Dataset, embeddings: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {"filename": "a.md"}
    kb.add_documents(dataset.id, LCDocument("苹果", metadata=at))
    refuse(monkeypatch, embeddings, "BAD")
    text = "# 一\n\n苹果\n\n" + "长句子。" * 400 + "BAD"
    new = LCDocument(text, metadata=at)
    batch = kb.add_documents(dataset.id, new, duplicates="replace")
    assert batch.states[0].status is DocumentStatus.ERROR
    assert contents(kb, dataset) == ["苹果"]


def test_the_older_version_is_found_until_the_newer_is_completed(
    kb: KnowledgeBase, dataset: Dataset, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb.add_documents(dataset.id, docs)
    (docs / "a.md").write_text("苹果很酸")
    seen: list[list[str]] = []
    complete = pipeline._complete

    def watched(*arguments: object) -> None:
        seen.append(contents(kb, dataset))
        complete(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "_complete", watched)
    kb.add_documents(dataset.id, docs, duplicates="replace")
    assert seen == [["苹果很甜", "香蕉很长"]]


def test_a_replacement_that_was_killed_is_made_by_the_next_build(
    kb: KnowledgeBase, dataset: Dataset, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb.add_documents(dataset.id, docs)
    (docs / "a.md").write_text("苹果很酸")
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "_complete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            kb.add_documents(dataset.id, docs, duplicates="replace")
    assert contents(kb, dataset) == ["苹果很甜", "香蕉很长"]
    kb.resume_builds()
    assert contents(kb, dataset) == ["香蕉很长", "苹果很酸"]


def test_pages_of_one_source_replace_the_pages_that_changed(
    kb: KnowledgeBase, dataset: Dataset
) -> None:
    def pages(*texts: str) -> list[LCDocument]:
        return [LCDocument(text, metadata={"source": "a.pdf"}) for text in texts]

    kb.add_documents(dataset.id, pages("一", "二", "三"), duplicates="replace")
    assert contents(kb, dataset) == ["一", "二", "三"]
    kb.add_documents(dataset.id, pages("一", "二二", "三"), duplicates="replace")
    assert contents(kb, dataset) == ["一", "三", "二二"]


def test_another_rule_or_other_metadata_is_a_reason_to_replace(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    kb.add_documents(dataset.id, docs)
    rule = ProcessRule.custom(chunk_size=200)
    left = kb.add_documents(dataset.id, docs, process_rule=rule).skipped
    assert "cut by another rule; duplicates='replace'" in left[0].reason
    by_rule = kb.add_documents(dataset.id, docs, process_rule=rule, duplicates="replace")
    again = kb.add_documents(dataset.id, docs, process_rule=rule, duplicates="replace")
    tagged = kb.add_documents(
        dataset.id, docs, process_rule=rule, metadata={"team": "x"}, duplicates="replace"
    )
    assert [len(batch.states) for batch in (by_rule, again, tagged)] == [2, 0, 2]
    assert kb.dataset_statistics(dataset.id).document_count == 2


def test_what_replaces_a_disabled_document_is_disabled(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    (old, _) = kb.add_documents(dataset.id, docs).document_ids
    with kb.db.transaction() as conn:
        conn.execute(
            "UPDATE document SET enabled = false, disabled_at = now() WHERE id = %s", (old,)
        )
    (docs / "a.md").write_text("苹果很酸")
    (new,) = kb.add_documents(dataset.id, docs, duplicates="replace").document_ids
    assert not kb.get_document(new).enabled
    assert contents(kb, dataset) == ["香蕉很长"]


# At the same time


def test_a_file_that_two_add_at_the_same_time_is_there_once(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    ready, batches = threading.Barrier(4), []

    def add() -> None:
        ready.wait()
        batches.append(kb.add_documents(dataset.id, docs, progress=False))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kb.dataset_statistics(dataset.id).document_count == 2
    assert sum(len(batch.document_ids) for batch in batches) == 2
    assert sum(len(batch.skipped) for batch in batches) == 6


def test_a_duplicate_of_what_was_withdrawn_meanwhile_is_an_error_of_the_batch(
    kb: KnowledgeBase, dataset: Dataset, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = kb.add_documents(dataset.id, docs)
    check = upload._withdrawn

    def after_deletion(*arguments: object) -> None:
        kb.delete_document(other.document_ids[0])
        check(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(upload, "_withdrawn", after_deletion)
    batch = kb.add_documents(dataset.id, docs)
    assert [entry.name for entry in batch.unreadable] == ["a.md"]
    assert "add it again" in batch.unreadable[0].reason
