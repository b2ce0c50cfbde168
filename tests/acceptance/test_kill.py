"""SIGKILL in the middle of a build: the next one finishes it, once, as if nothing had happened.

`KB_KILLS` sets how often (default 4).
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

KILLS = int(os.environ.get("KB_KILLS", "4"))
DOCUMENTS = 200

BUILD = """
import sys
from pathlib import Path
from kb_tools import KnowledgeBase, ProcessRule
from kb_tools.testing import FakeEmbeddings

with KnowledgeBase.open(sys.argv[1], embeddings=FakeEmbeddings()) as kb:
    dataset = kb.create_dataset("a", exist_ok=True)
    kb.resume_builds()
    if not kb.list_documents(dataset.id):
        rule = ProcessRule.custom(chunk_size=100, chunk_overlap=10)
        kb.add_documents(dataset.id, sorted(Path(sys.argv[2]).iterdir()), process_rule=rule)
"""


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
def test_a_build_that_is_killed_at_any_moment_ends_like_one_that_was_not(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(DOCUMENTS):
        text = "".join(f"第{number}条第{part}款, 员工每年有{part}天假。" for part in range(30))
        (files / f"{number:03}.md").write_text(f"# 规定{number}\n\n{text}", "utf-8")
    clean, killed = tmp_path / "clean", tmp_path / "killed"
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", BUILD, str(clean), str(files)], check=True)
    whole = time.monotonic() - started
    moments = random.Random(7)
    for _ in range(KILLS):
        build = subprocess.Popen([sys.executable, "-c", BUILD, str(killed), str(files)])
        time.sleep(moments.uniform(0.3, 1.0) * whole)
        build.send_signal(signal.SIGKILL)
        build.wait()
    subprocess.run([sys.executable, "-c", BUILD, str(killed), str(files)], check=True)
    assert state(killed) == state(clean)
