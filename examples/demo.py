"""The main job, on real files: make a knowledge base, ask it five questions, read cited answers.

python examples/demo.py [folder]
"""

import json
import re
import sys
import time
from pathlib import Path

from langchain_core.documents import Document as LCDocument

from kb_tools import KnowledgeBase, RetrievalConfig

HERE = Path(__file__).resolve().parent
WIDTH = 200


def main(folder: str) -> None:
    started = time.perf_counter()
    with KnowledgeBase.open(folder) as kb:
        handbook = kb.create_dataset("员工手册", "Rules, products and offices", exist_ok=True)
        files = sorted((HERE / "handbook").iterdir())
        if not kb.list_documents(handbook.id):
            print(f"Adding {len(files)} documents to {folder}: one to two minutes ...", flush=True)
            kb.add_documents(handbook.id, files).raise_for_errors()
        counts = kb.dataset_statistics(handbook.id)
        print(
            f"{counts.document_count} documents, {counts.segment_count} segments "
            f"({time.perf_counter() - started:.0f} s)"
        )
        for question in questions():
            print(f"\n? {question}")
            for document in kb.search_in_datasets(question, [handbook.id], RetrievalConfig(k=3)):
                print_passage(document, question)


def questions() -> list[str]:
    lines = (HERE / "questions.jsonl").read_text("utf-8").splitlines()
    return [entry["question"] for entry in map(json.loads, lines) if entry.get("demo")]


def print_passage(document: LCDocument, question: str) -> None:
    about = document.metadata
    text = nearest_part(" ".join(document.page_content.split()), question)
    print(
        f"  [{about['citation']}] {about['document_name']} · 第 {about['position']} 段 "
        f"({about['score_kind']} {about['score']:.2f})"
    )
    print(f"      {text}")


def nearest_part(text: str, question: str) -> str:
    """Return the stretch of `text` that holds most of the question's words and pairs of signs."""
    if len(text) <= 1.5 * WIDTH:
        return text
    pairs = re.findall(r"(?=([一-龥]{2}))", question)
    sought = {*re.findall(r"[a-z0-9-]{3,}", question.lower()), *pairs}

    def found(start: int) -> int:
        stretch = text[start : start + WIDTH].lower()
        return sum(len(part) for part in sought if part in stretch)

    # Of equally good stretches the last: what follows the first word is worth more than what leads.
    start = max(range(max(len(text) - WIDTH // 2, 1)), key=lambda at: (found(at), at))
    return ("…" if start else "") + text[start : start + WIDTH]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "demo-kb")
