"""SIGKILL in the middle of a build: the next one finishes it, once, as if nothing had happened.

`KB_KILLS` sets how often (default 3): of the process that builds, and of its PostgreSQL.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kb_tools import KnowledgeBase
from kb_tools.testing import FakeEmbeddings

KILLS = int(os.environ.get("KB_KILLS", "3"))
DOCUMENTS = 200

# Builds what is missing; with a fourth word, makes datasets all the while and prints those made.
BUILD = """
import sys, threading, time
from pathlib import Path
from kb_tools import BackendError, KnowledgeBase, ProcessRule
from kb_tools.testing import FakeEmbeddings

def make_datasets():
    number = 0
    while not ended.wait(0.02):
        number += 1
        try:
            print("made", kb.create_dataset(f"{sys.argv[3]}-{number}").name, flush=True)
        except BackendError:
            pass

with KnowledgeBase.open(sys.argv[1], embeddings=FakeEmbeddings()) as kb:
    dataset = kb.create_dataset("a", exist_ok=True)
    ended, maker = threading.Event(), threading.Thread(target=make_datasets)
    print("building", flush=True)
    try:
        if sys.argv[3:]:
            maker.start()
        kb.resume_builds()
        there = {document.name for document in kb.list_documents(dataset.id, limit=1000)}
        files = [file for file in sorted(Path(sys.argv[2]).iterdir()) if file.name not in there]
        rule = ProcessRule.custom(chunk_size=100, chunk_overlap=10)
        kb.add_documents(dataset.id, files, process_rule=rule)
        if sys.argv[3:]:
            sys.stdin.readline()
    finally:
        ended.set()
        if sys.argv[3:]:
            maker.join()
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of small documents."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(DOCUMENTS):
        text = "".join(f"第{number}条第{part}款, 员工每年有{part}天假。" for part in range(30))
        (files / f"{number:03}.md").write_text(f"# 规定{number}\n\n{text}", "utf-8")
    return files


def start(*words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", BUILD, *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def build(folder: Path, files: Path) -> float:
    """Build all to the end; return how many seconds it took after opening."""
    process = start(folder, files)
    assert process.stdout is not None
    process.stdout.readline()
    started = time.monotonic()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return time.monotonic() - started


def workers_of(pid: int) -> list[Path]:
    """Return the folders in /proc of the processes that a build has read for it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid and b"kb_tools.ingest" in (folder / "cmdline").read_bytes():
                found.append(folder)
        except OSError:  # it ended
            continue
    return found


def await_end(processes: list[Path]) -> None:
    """Wait until none of the processes is left; the test's time limit ends it if one stays."""
    while any(folder.exists() and (folder / "cmdline").read_bytes() for folder in processes):
        time.sleep(0.05)


def state(folder: Path) -> dict[str, object]:
    """Return all that a build makes, without ids and times."""
    with KnowledgeBase.open(folder, embeddings=FakeEmbeddings()) as kb:
        kb.resume_builds()
        with kb.db.transaction() as conn:
            rows = {
                "documents": "SELECT name, status, enabled, character_count FROM document",
                "segments": """SELECT d.name, s.position, s.content, s.keywords, s.status, s.enabled
                               FROM segment s JOIN document d ON d.id = s.document_id""",
                "terms": "SELECT term, df FROM full_text_term WHERE df > 0",
                "statistics": "SELECT segments, round(length) FROM full_text_statistics",
                "vectors": "SELECT embedding::text FROM vector_1",
                "builders": "SELECT count(*) FROM document WHERE builder IS NOT NULL",
            }
            return {name: sorted(conn.execute(sql).fetchall()) for name, sql in rows.items()}


@pytest.mark.timeout(1200)
def test_a_build_that_is_killed_at_any_moment_ends_like_one_that_was_not(
    tmp_path: Path, files: Path
) -> None:
    clean, killed = tmp_path / "clean", tmp_path / "killed"
    whole = build(clean, files)
    moments = random.Random(7)
    for _ in range(KILLS):
        process = start(killed, files)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(moments.uniform(0.0, 1.0) * whole)
        children = workers_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        await_end(children)
    build(killed, files)
    assert state(killed) == state(clean)


@pytest.mark.timeout(1200)
def test_a_build_whose_postgresql_is_killed_ends_like_one_whose_was_not_and_loses_no_write(
    tmp_path: Path, files: Path
) -> None:
    clean, killed, some = tmp_path / "clean", tmp_path / "killed", tmp_path / "some"
    whole = build(clean, files)
    some.mkdir()
    moments, made, names = random.Random(11), set(), sorted(files.iterdir())
    for number in range(KILLS):
        for name in names[number::KILLS]:
            (some / name.name).hardlink_to(name)
        process = start(killed, some, number)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(moments.uniform(0.0, 1.5) * whole / KILLS)
        pid = (killed / "postgres" / "data" / "postmaster.pid").read_text().split()[0]
        os.kill(int(pid), signal.SIGKILL)
        output, errors = process.communicate("\n")
        made |= {line.split()[1] for line in output.splitlines() if line.startswith("made")}
        # It went on by itself, or it said what happened and what to do.
        said = errors.rstrip().rpartition("\n")[2]
        assert process.returncode == 0 or said.startswith("kb_tools.errors."), errors
    build(killed, some)
    assert state(killed) == state(clean)
    with KnowledgeBase.open(killed, embeddings=FakeEmbeddings()) as kb:
        kept = {dataset.name for dataset in kb.list_datasets(limit=100_000)}
    assert made
    assert made <= kept
