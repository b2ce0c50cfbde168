"""Several processes that read and cut: the same result as one, a deadline, and no one left over."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import KnowledgeBase, ProcessRule
from kb_tools.ingest import parser_process, pipeline, workers
from kb_tools.ingest.parsed import ParseError
from kb_tools.ingest.words import words_of
from kb_tools.ingest.workers import Closed, Workers
from kb_tools.models import Dataset
from kb_tools.settings import Settings
from kb_tools.text.dictionary import Dictionary
from kb_tools.text.tokenize import Tokenizer
from kb_tools.threads import one_ahead, side_by_side

TEXTS = [
    f"第{number}条 员工每年有{number}天年假。Employees get {number} days." for number in range(99)
]


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("a")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of all children that are started."""
    pids: list[int] = []
    child = parser_process._Child

    class Noted(child):  # type: ignore[misc,valid-type]
        def __init__(self, settings: Settings) -> None:
            super().__init__(settings)
            pids.append(self._process.pid)

    monkeypatch.setattr(parser_process, "_Child", Noted)
    return pids


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def workers_of(pid: int) -> list[int]:
    """Return the processes that a build has read for it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid and b"kb_tools.ingest" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def stored(kb: KnowledgeBase, dataset: Dataset) -> list[tuple[object, ...]]:
    """Return what was stored of every segment, without ids and times."""
    with kb.db.transaction() as conn:
        return conn.execute(
            """
            SELECT d.position, s.position, s.content, s.heading, s.keywords, s.token_count,
                   s.hash, f.length, (SELECT array_agg(t.term ORDER BY t.term)
                       FROM full_text_term t WHERE t.id = ANY(f.terms))
            FROM segment s JOIN document d ON d.id = s.document_id
            JOIN full_text_segment f ON f.segment_id = s.id
            WHERE s.dataset_id = %s ORDER BY 1, 2
            """,
            (dataset.id,),
        ).fetchall()


def test_several_processes_make_what_one_makes(
    kb: KnowledgeBase, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, several = kb.create_dataset("one"), kb.create_dataset("several")
    sources = [LCDocument(f"# 标题\n\n{text * 9}", metadata={"n": text}) for text in TEXTS]
    kb.add_documents(one.id, sources)
    assert len(started) == 1
    monkeypatch.setattr(workers, "CHILD_DOCUMENTS", 30)
    monkeypatch.setattr(workers, "_cores", lambda: 3)
    kb.add_documents(several.id, sources).raise_for_errors()
    assert len(started) == 1 + 3
    assert stored(kb, several) == stored(kb, one)
    assert not any(map(is_running, started))


def test_a_small_upload_uses_one_process_and_text_that_is_cut_already_none(
    kb: KnowledgeBase, dataset: Dataset, started: list[int]
) -> None:
    sources = [LCDocument(text) for text in TEXTS[:9]]
    kb.add_documents(dataset.id, sources, process_rule=ProcessRule.as_is())
    assert started == []
    kb.add_documents(dataset.id, sources, duplicates="keep")
    assert len(started) == 1


def test_splitting_has_a_deadline_too() -> None:
    settings = Settings(parse_timeout_seconds=3, ingest_processes=1)
    text = "".join(f"第{number}条 员工每年有{number}天年假。\n" for number in range(400_000))
    with parser_process.ParserProcess(settings) as process:
        assert process.parse(text.encode(), "txt").blocks
        with pytest.raises(ParseError, match="takes longer than 3 s"):
            process.read(text.encode(), "txt", ProcessRule.automatic())


def test_words_of_a_child_that_dies_are_cut_here(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.of("jieba")
    texts = [("", text) for text in TEXTS]
    with Workers(Settings(ingest_processes=2), documents=999, size=1) as children:
        whole = children.words(tokenizer, texts)
        for process in children._all:
            process.kill()
        monkeypatch.setattr(
            parser_process.ParserProcess, "words", lambda *_: (_ for _ in ()).throw(ParseError("x"))
        )
        assert children.words(tokenizer, texts) == whole


def test_children_cut_by_the_words_of_a_dataset() -> None:
    texts = [("", "升级云枢平台的说明")] * 99
    with Workers(Settings(ingest_processes=2), documents=999, size=1) as children:
        for words in (["云枢平台"], [], ["枢平"], ["云枢平台"]):
            tokenizer = Tokenizer("jieba", Dictionary(words))
            (first, *_) = made = children.words(tokenizer, texts)
            assert len(made) == 99
            assert first == words_of(tokenizer, texts[:1])[0]
            assert set(words) <= set(first.terms.counts)


def test_closing_ends_what_runs_and_what_waits_without_blaming_a_document() -> None:
    children, told = Workers(Settings(ingest_processes=1), documents=1, size=1), []

    def work() -> None:
        try:
            while True:
                children.read(b"x" * 100_000, "txt", ProcessRule.automatic())
        except BaseException as error:
            told.append(type(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    children.close()
    for thread in threads:
        thread.join()
    assert told == [Closed] * 4


INTERRUPTED = """
import sys
from langchain_core.documents import Document as LCDocument
from kb_tools import KnowledgeBase
from kb_tools.testing import FakeEmbeddings
class Slow(FakeEmbeddings):
    def embed_documents(self, texts):
        print("embedding", flush=True)
        import time; time.sleep(600)
with KnowledgeBase.open(sys.argv[1], embeddings=Slow()) as kb:
    dataset = kb.create_dataset("a")
    kb.add_documents(dataset.id, [LCDocument(f"{n} " * 500) for n in range(900)], progress=False)
"""


def test_an_interrupt_ends_a_build_at_once_and_leaves_documents_to_resume(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "embedding\n"
    children = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)  # the model would take ten minutes
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert children
    assert not any(map(is_running, children))
    from kb_tools.testing import FakeEmbeddings

    with KnowledgeBase.open(folder, embeddings=FakeEmbeddings()) as kb:
        assert list(kb.unfinished_documents().values()) == [900]


def test_the_next_is_worked_on_while_the_last_is_used() -> None:
    begun: list[int] = []
    for number, square in enumerate(one_ahead(lambda n: begun.append(n) or n * n, range(5))):
        assert square == number**2
        assert len(begun) <= number + 2
    assert begun == [0, 1, 2, 3, 4]


def test_side_by_side_keeps_the_order_and_never_begins_too_many() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def work(number: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01 * (number % 3))
        with lock:
            running[0] -= 1
        return number

    assert list(side_by_side(work, range(20), 3)) == list(range(20))
    assert most[0] <= 3


def test_only_the_callers_thread_reports(kb: KnowledgeBase, dataset: Dataset) -> None:
    threads = set()
    kb.add_documents(
        dataset.id,
        [LCDocument(text) for text in TEXTS],
        progress=lambda _: threads.add(threading.get_ident()),
    )
    assert threads == {threading.get_ident()}


def test_no_more_than_a_group_is_read_ahead(
    kb: KnowledgeBase, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "GROUP_DOCUMENTS", 10)
    events: list[str] = []
    read_group, complete = pipeline._read_group, pipeline._complete
    monkeypatch.setattr(
        pipeline, "_read_group", lambda *a: (events.append("read"), read_group(*a))[1]
    )
    monkeypatch.setattr(pipeline, "_complete", lambda *a: (events.append("done"), complete(*a))[1])
    kb.add_documents(
        dataset.id, [LCDocument(text) for text in TEXTS], process_rule=ProcessRule.as_is()
    )
    ahead = [events[:at].count("read") - events[:at].count("done") for at in range(len(events))]
    assert (events.count("done"), max(ahead)) == (10, 3)
