"""Builds that stop half way: what they left is finished once, by whoever comes next."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import InvalidState, KnowledgeBase
from kb_tools.assets import documents as assets
from kb_tools.errors import ConnectionLost
from kb_tools.ingest import pipeline
from kb_tools.ingest.lease import Lease, is_dead
from kb_tools.ingest.progress import Built
from kb_tools.models import Dataset, DocumentStatus
from kb_tools.testing import FakeEmbeddings

TEXTS = [f"第{number}条 员工每年有{number}天年假。" for number in range(7)]


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("a")


class Killed(BaseException):
    """What a test raises to leave a build half way."""


def interrupted(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Add documents and stop just before `step`."""

    def stop(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, step, stop)
        with pytest.raises(Killed):
            kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS])


@pytest.mark.parametrize(
    "step", ["_read_group", "_read_all", "_store", "_prepare", "write", "_complete"]
)
@pytest.mark.parametrize("way", ["resume", "add"])
def test_an_interrupted_build_is_finished_without_duplicates(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, step: str, way: str
) -> None:
    interrupted(kb, dataset, monkeypatch, step)
    if way == "resume":
        finished = kb.resume_builds()
        assert [document.status for document in finished] == [DocumentStatus.COMPLETED] * 7
    else:
        kb.add_documents(dataset.id, [])
    counts = kb.dataset_statistics(dataset.id)
    assert (counts.completed_document_count, counts.segment_count) == (7, 7)
    found = kb.search_in_datasets("第3条", [dataset.id])
    assert found[0].page_content == TEXTS[3]
    assert kb.resume_builds(dataset.id) == []


KILLED = """
import os, sys
from langchain_core.documents import Document as LCDocument
from kb_tools import KnowledgeBase
from kb_tools.ingest import pipeline
from kb_tools.testing import FakeEmbeddings
setattr(pipeline, sys.argv[2], lambda *_: os._exit(9))
with KnowledgeBase.open(sys.argv[1], embeddings=FakeEmbeddings()) as kb:
    dataset = kb.create_dataset("a")
    kb.add_documents(dataset.id, [LCDocument(text) for text in sys.argv[3:]])
"""


def killed_process(folder: Path, step: str) -> None:
    """Add three documents in a process that ends at `step` as if it was killed."""
    command = [sys.executable, "-c", KILLED, str(folder), step, *TEXTS[:3]]
    assert subprocess.run(command, check=False).returncode == 9


def test_documents_of_a_process_killed_between_splitting_and_indexing_are_finished_once(
    folder: Path,
) -> None:
    killed_process(folder, "_prepare")
    with KnowledgeBase.open(folder, embeddings=FakeEmbeddings()) as kb:
        dataset = kb.list_datasets()[0]
        left = kb.list_documents(dataset.id)
        assert [document.status for document in left] == [DocumentStatus.INDEXING] * 3
        assert kb.dataset_statistics(dataset.id).segment_count == 3
        assert [state.error for state in kb.resume_builds()] == [None] * 3
        assert kb.resume_builds() == []
        counts = kb.dataset_statistics(dataset.id)
        assert (counts.completed_document_count, counts.segment_count) == (3, 3)


def test_a_process_killed_in_the_first_of_three_documents_leaves_the_content_of_all(
    folder: Path,
) -> None:
    killed_process(folder, "_read")
    with KnowledgeBase.open(folder, embeddings=FakeEmbeddings()) as kb:
        assert [state.error for state in kb.resume_builds()] == [None] * 3
        dataset = kb.list_datasets()[0]
        found = [kb.search_in_datasets(text, [dataset.id])[0] for text in TEXTS[:3]]
        assert [document.page_content for document in found] == TEXTS[:3]


def test_nothing_of_an_unfinished_document_is_found(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.documents, "complete", lambda *_: _raise(Killed()))
        with pytest.raises(Killed):
            kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS])
    assert not kb.search_in_datasets("年假", [dataset.id])
    assert len(kb.resume_builds()) == 7


def _raise(error: BaseException) -> None:
    raise error


def test_documents_that_a_living_process_builds_are_left_to_it(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lease(kb) as lease:
        monkeypatch.setattr(assets, "Lease", lambda _: _Borrowed(lease))
        interrupted(kb, dataset, monkeypatch, "_read_group")
        monkeypatch.undo()
        assert kb.resume_builds() == []
        kb.add_documents(dataset.id, [LCDocument("another")])
        assert kb.dataset_statistics(dataset.id).completed_document_count == 1
    assert len(kb.resume_builds()) == 7


class _Borrowed:
    """A lease that its build does not end, as if the process were still at work."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def __enter__(self) -> Lease:
        return self.lease

    def __exit__(self, *_: object) -> None:
        pass


def test_a_builder_that_lost_its_lease_writes_nothing_more(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all = pipeline._read_all

    def overtaken(step: pipeline.Step, *rest: object) -> object:
        texts = read_all(step, *rest)  # type: ignore[arg-type]
        with kb.db.transaction() as conn:
            conn.execute("UPDATE builder SET lease_until = now() - interval '1 minute'")
        monkeypatch.setattr(pipeline, "_read_all", read_all)
        kb.resume_builds()
        return texts

    monkeypatch.setattr(pipeline, "_read_all", overtaken)
    kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS])
    counts = kb.dataset_statistics(dataset.id)
    assert (counts.completed_document_count, counts.segment_count) == (7, 7)


def test_a_dead_process_is_told_from_a_living_one(kb: KnowledgeBase) -> None:
    script = "import os\nfrom kb_tools.ingest.lease import _process\nprint(_process(os.getpid()))\n"
    gone = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert is_dead(f"{gone} id")
    assert not is_dead(Lease(kb).builder)
    assert not is_dead("another machine/boot/space:1:2 id")


def crashing(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """Let the server end the connection when documents are indexed, so many times."""
    prepare, left = pipeline._prepare, [times]

    def crash(*arguments: object) -> object:
        if not left[0]:
            return prepare(*arguments)  # type: ignore[arg-type]
        left[0] -= 1
        with kb.db.transaction() as conn:
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return None

    monkeypatch.setattr(pipeline, "_prepare", crash)


def test_a_build_goes_on_when_the_database_went_away_and_came_back(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing(kb, monkeypatch, times=1)
    told: list[Built] = []
    batch = kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS], progress=told.append)
    assert [state.status for state in batch.states] == [DocumentStatus.COMPLETED] * 7
    assert kb.dataset_statistics(dataset.id).segment_count == 7
    last = told[-1]
    assert (last.documents, last.segments, last.segment_total) == (7, 7, 7)


def test_a_build_that_goes_on_waits_for_what_was_begun(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "GROUP_DOCUMENTS", 2)
    read_group, write, reading, lost = pipeline._read_group, pipeline.write, threading.Event(), []

    def slow(*arguments: Any) -> object:
        assert not reading.is_set()
        reading.set()
        time.sleep(0.3)
        group = read_group(*arguments)
        reading.clear()
        return group

    def crash_once(*arguments: Any) -> None:
        if not lost:
            lost.append(reading.wait(10))
            raise ConnectionLost("the database went away")
        write(*arguments)

    monkeypatch.setattr(pipeline, "_read_group", slow)
    monkeypatch.setattr(pipeline, "write", crash_once)
    kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS]).raise_for_errors()
    assert lost == [True]
    counts = kb.dataset_statistics(dataset.id)
    assert (counts.completed_document_count, counts.segment_count) == (7, 7)


def test_a_build_whose_database_stays_away_says_how_to_go_on(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing(kb, monkeypatch, times=2)
    with pytest.raises(ConnectionLost, match=r"went away.*resume_builds\(\) goes on"):
        kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS])
    assert [state.error for state in kb.resume_builds()] == [None] * 7
    assert kb.dataset_statistics(dataset.id).segment_count == 7


def test_resuming_needs_the_model_of_the_documents(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, server_folder: Path
) -> None:
    interrupted(kb, dataset, monkeypatch, "_prepare")
    other = FakeEmbeddings(model_name="other")
    with (
        KnowledgeBase.open(server_folder, embeddings=other, settings=kb.settings) as second,
        pytest.raises(InvalidState, match="'fake'"),
    ):
        second.resume_builds()
    assert len(kb.resume_builds()) == 7


def test_opening_tells_what_waits_and_builds_it_only_when_asked(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, server_folder: Path
) -> None:
    assert kb.unfinished_documents() == {}
    interrupted(kb, dataset, monkeypatch, "_prepare")
    model, settings = FakeEmbeddings(), kb.settings
    with KnowledgeBase.open(server_folder, embeddings=model, settings=settings) as second:
        assert second.unfinished_documents() == {dataset.id: 7}
    with KnowledgeBase.open(
        server_folder, embeddings=model, settings=settings, resume=True
    ) as third:
        assert third.unfinished_documents() == {}
        assert third.dataset_statistics(dataset.id).completed_document_count == 7


def test_what_a_living_process_builds_does_not_wait(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    read_group = pipeline._read_group

    def watched(*arguments: object) -> object:
        seen.append(kb.unfinished_documents(dataset.id))
        return read_group(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "_read_group", watched)
    kb.add_documents(dataset.id, [LCDocument(text) for text in TEXTS])
    assert seen == [{}]
