"""Real files, from the folder that KB_FILES_DIR names: each gives its text or its reason."""

import csv
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from kb_tools.config import ProcessRule
from kb_tools.ingest.cleaned import assemble
from kb_tools.ingest.office import soffice
from kb_tools.ingest.parsed import ParseError
from kb_tools.ingest.parser_process import ParserProcess
from kb_tools.ingest.split import split
from kb_tools.settings import Settings
from kb_tools.text.tokens import count_tokens

FOLDER = Path(os.environ.get("KB_FILES_DIR", ""))
MANIFEST = FOLDER / "manifest.tsv"
REASONS = {
    "encrypted_r6_userpw.pdf": "encrypted: needs a password",
    "encrypted.docx": "encrypted: needs a password",
    "empty_zero_bytes.txt": "no text",
    "whitespace_only.txt": "no text",
    "truncated.docx": "truncated or damaged zip",
    "scan_no_text.pdf": r"no text layer \(pages 1-3\); run OCR first",
}
if soffice() is None:
    REASONS["old_word.doc"] = r"install it, or save it as \.docx"
if find_spec("olefile") is None:
    REASONS["zh_mail.msg"] = r"kb-tools\[msg\]"

pytestmark = pytest.mark.skipif(not MANIFEST.is_file(), reason="KB_FILES_DIR names no manifest.tsv")


def expected_texts() -> dict[str, str]:
    if not MANIFEST.is_file():
        return {"KB_FILES_DIR": ""}
    with MANIFEST.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["name"]: row["expected_text"] for row in rows}


@pytest.fixture(scope="module")
def parser() -> Iterator[ParserProcess]:
    with ParserProcess(Settings(parse_timeout_seconds=60)) as process:
        yield process


@pytest.mark.parametrize(("name", "expected"), expected_texts().items())
def test_file_gives_its_text_in_one_piece_or_its_reason(
    parser: ParserProcess, name: str, expected: str
) -> None:
    data, suffix = (FOLDER / name).read_bytes(), Path(name).suffix
    if name in REASONS:
        with pytest.raises(ParseError, match=REASONS[name]):
            parser.parse(data, suffix)
        return
    rule = ProcessRule.automatic()
    cleaned = assemble(parser.parse(data, suffix), rule)
    pieces = split(cleaned, rule)
    assert any(expected in piece.content for piece in pieces)
    assert all(cleaned.text[p.start : p.end] == p.content for p in pieces)
    assert all(count_tokens(p.content) <= rule.chunk_size for p in pieces)
