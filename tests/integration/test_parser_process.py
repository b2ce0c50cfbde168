"""The child that parses: what it costs a document when it hangs, crashes or eats memory."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kb_tools import registry
from kb_tools.ingest.parsed import Block, Limits, PageReader, Parsed, ParseError
from kb_tools.ingest.parser_process import ParserProcess
from kb_tools.settings import Settings

PLUGIN = """
import ctypes, os, sys, time
from kb_tools.ingest.parsed import Block, Parsed

def create():
    return parse

def parse(data, limits):
    order = data.decode()
    if order == "hang":
        time.sleep(600)
    if order == "spin":
        while True:
            pass
    if order == "crash":
        ctypes.string_at(0)
    if order == "exit":
        os._exit(3)
    if order == "eat":
        eaten = [bytearray(50_000_000) for _ in range(100)]
    if order == "print":
        print("noise" * 1000)
        os.write(1, b"more noise")
        sys.stderr.write("secret")
    if order == "raise":
        raise RuntimeError("secret")
    return Parsed((Block(f"{order} {os.getpid()}"),))
"""


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> Settings:
    """The limits; a test that waits for the time to be over asks for fewer seconds."""
    seconds = getattr(request, "param", 60)
    return Settings(parse_timeout_seconds=seconds, parse_memory_bytes=700 * 1024 * 1024)


@pytest.fixture
def parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> Iterator[ParserProcess]:
    """A parser process that knows the misbehaving format "bad" of an installed plug-in."""
    (tmp_path / "bad_parser.py").write_text(PLUGIN)
    facts = tmp_path / "bad_parser-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-parser\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[kb_tools.parsers]\nbad = bad_parser:create\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ParserProcess(settings) as process:
        yield process


def child_of(parser: ParserProcess) -> int:
    return int(parser.parse(b"who", "bad").blocks[0].text.split()[1])


def test_one_child_reads_many_files(parser: ParserProcess) -> None:
    assert child_of(parser) == child_of(parser) != os.getpid()
    assert parser.parse("年假\n\n跨年".encode("gbk"), ".TXT").blocks[1].text == "跨年"


@pytest.mark.parametrize("settings", [2], indirect=True)
@pytest.mark.parametrize("order", ["hang", "spin"])
def test_a_file_that_takes_too_long_is_given_up(parser: ParserProcess, order: str) -> None:
    with pytest.raises(ParseError, match=r"takes longer than 2 s \(parse_timeout_seconds\)"):
        parser.parse(order.encode(), "bad")
    assert parser.parse("好".encode(), "txt").blocks == (Block("好"),)


def test_a_file_that_needs_too_much_memory_names_the_limit(parser: ParserProcess) -> None:
    with pytest.raises(ParseError, match=r"needs more than 700 MiB of memory"):
        parser.parse(b"eat", "bad")
    assert parser.parse("好".encode(), "txt").blocks == (Block("好"),)


def test_a_file_that_alone_is_over_the_memory_names_the_limit() -> None:
    with (
        ParserProcess(Settings(parse_memory_bytes=60 * 1024 * 1024)) as parser,
        pytest.raises(ParseError, match="needs more than 60 MiB of memory"),
    ):
        parser.parse(b"x" * 80_000_000, "txt")


@pytest.mark.parametrize(("order", "how"), [("crash", "signal 11"), ("exit", "exit code 3")])
def test_a_crash_costs_one_document(parser: ParserProcess, order: str, how: str) -> None:
    before = child_of(parser)
    with pytest.raises(ParseError, match=f"the parser crashed \\({how}\\)"):
        parser.parse(order.encode(), "bad")
    assert child_of(parser) != before


def test_a_child_that_was_killed_between_files_is_replaced(parser: ParserProcess) -> None:
    before = child_of(parser)
    os.kill(before, signal.SIGKILL)
    time.sleep(0.2)
    assert child_of(parser) != before


def test_what_libraries_print_or_raise_stays_inside(parser: ParserProcess) -> None:
    assert parser.parse(b"print", "bad").blocks[0].text.startswith("print ")
    with pytest.raises(ParseError) as caught:
        parser.parse(b"raise", "bad")
    assert str(caught.value) == "could not be read: RuntimeError"


def test_a_large_file_that_is_not_read_does_not_block(parser: ParserProcess) -> None:
    with pytest.raises(ParseError, match="crashed"):
        parser.parse(b"exit", "bad")
    with pytest.raises(ParseError, match="could not be read"):
        parser.parse(b"\xff" * 30_000_000, "bad")


def test_a_file_over_the_limit_is_refused_without_a_child() -> None:
    with (
        ParserProcess(Settings(max_file_bytes=3)) as parser,
        pytest.raises(ParseError, match="max_file_bytes"),
    ):
        parser.parse(b"four", "txt")


def test_threads_share_a_child(parser: ParserProcess) -> None:
    found: list[str] = []

    def work(number: int) -> None:
        found.extend(b.text for b in parser.parse(f"文{number}".encode(), "txt").blocks)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"文{n}" for n in range(12))


def test_close_ends_the_child_and_parse_starts_another(parser: ParserProcess) -> None:
    before = child_of(parser)
    parser.close()
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert child_of(parser) != before


def test_a_parser_registered_at_run_time_runs_in_this_process(
    parser: ParserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    def create() -> object:
        def parse(data: bytes, limits: Limits) -> Parsed:
            return Parsed((Block(f"here {os.getpid()}"),))

        return parse

    registry.register("parsers", "htm", create)
    assert parser.parse(b"x", "htm").blocks[0].text == f"here {os.getpid()}"


def pdf_file(*lines: str | None) -> bytes:
    """Return a PDF with a page for each line; None is a page that is a picture."""
    from reportlab.pdfgen.canvas import Canvas

    stream = io.BytesIO()
    canvas = Canvas(stream, pagesize=(600, 800))
    for line in lines:
        canvas.rect(10, 10, 50, 50, fill=1)
        canvas.drawString(50, 700, line or "")
        canvas.showPage()
    canvas.save()
    return stream.getvalue()


@pytest.fixture
def register_ocr(monkeypatch: pytest.MonkeyPatch) -> Callable[[PageReader], None]:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    return lambda reader: registry.register("parsers", "ocr", lambda: reader)


def test_a_registered_ocr_reads_the_pages_without_text(
    parser: ParserProcess, register_ocr: Callable[[PageReader], None]
) -> None:
    asked: list[Sequence[int]] = []

    def read_pages(data: bytes, limits: Limits, pages: Sequence[int]) -> dict[int, str]:
        asked.append(pages)
        return {2: "第二页\n\n的字", 4: " "}

    register_ocr(read_pages)
    parsed = parser.parse(pdf_file("one", None, "three", None), "pdf")
    assert [(b.page, b.text) for b in parsed.blocks] == [
        (1, "one"), (2, "第二页"), (2, "的字"), (3, "three"),
    ]  # fmt: skip
    assert asked == [[2, 4]]
    assert (parsed.report["pages_read_by_ocr"], parsed.report["pages_without_text"]) == ([2], [4])


def test_a_scan_without_any_text_is_read_by_ocr_or_says_how_that_failed(
    parser: ParserProcess, register_ocr: Callable[[PageReader], None]
) -> None:
    register_ocr(lambda data, limits, pages: {page: f"页{page}" for page in pages})
    assert [b.text for b in parser.parse(pdf_file(None, None), "pdf").blocks] == ["页1", "页2"]
    register_ocr(lambda data, limits, pages: {})
    with pytest.raises(ParseError, match=r"no text layer \(pages 1-2\); OCR found no text"):
        parser.parse(pdf_file(None, None), "pdf")


def test_an_ocr_that_fails_costs_only_its_pages(
    parser: ParserProcess, register_ocr: Callable[[PageReader], None]
) -> None:
    def read_pages(data: bytes, limits: Limits, pages: Sequence[int]) -> dict[int, str]:
        raise RuntimeError("a secret")

    register_ocr(read_pages)
    parsed = parser.parse(pdf_file("one", None), "pdf")
    assert [block.text for block in parsed.blocks] == ["one"]
    assert parsed.report["warnings"] == ["no text layer: page 2; OCR failed: RuntimeError"]


def test_an_ocr_of_another_package_runs_in_the_child(parser: ParserProcess, tmp_path: Path) -> None:
    (tmp_path / "their_ocr.py").write_text(
        "import os\n"
        "def create():\n"
        "    return lambda data, limits, pages: {1: f'by {os.getpid()}'}\n"
    )
    with (tmp_path / "bad_parser-1.0.dist-info/entry_points.txt").open("a") as lines:
        lines.write("ocr = their_ocr:create\n")
    child = child_of(parser)
    assert parser.parse(pdf_file(None), "pdf").blocks[0].text == f"by {child}"


def test_a_registered_parser_makes_a_format_of_its_suffix(
    parser: ParserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    def read_picture(data: bytes, limits: Limits) -> Parsed:
        return Parsed((Block(f"{len(data)} bytes of picture"),))

    registry.register("parsers", "png", lambda: read_picture)
    assert parser.parse(b"1234", ".PNG").blocks[0].text == "4 bytes of picture"
    with pytest.raises(ParseError, match=r"supported: .*, png,"):
        parser.parse(b"x", "gif")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_libreoffice_ends_with_the_child_that_started_it(tmp_path: Path) -> None:
    slow = tmp_path / "soffice"
    slow.write_text("#!/bin/sh\necho $$ > $(dirname $0)/pid\nsleep 600 & wait\n")
    slow.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        patch.setenv("TMPDIR", str(tmp_path))
        limits = Settings(parse_timeout_seconds=30)
        parser = ParserProcess(limits)
        thread = threading.Thread(target=lambda: swallow(parser), daemon=True)
        thread.start()
        pid = wait_for(tmp_path / "pid")
        assert list(tmp_path.glob("kb-office-*"))
        os.kill(parser._child._process.pid, signal.SIGKILL)
        thread.join(10)
    deadline = time.monotonic() + 30
    while (is_alive(pid) or list(tmp_path.glob("kb-office-*"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)
    assert not list(tmp_path.glob("kb-office-*"))


def swallow(parser: ParserProcess) -> None:
    with contextlib.suppress(ParseError):
        parser.parse(rb"{\rtf1 x}", "rtf")


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.05)
    raise AssertionError("it did not start")


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("order", ["who", "hang", "spin"])
def test_a_child_dies_with_its_parent(parser: ParserProcess, order: str) -> None:
    parent = (
        "import sys, threading\n"
        "from kb_tools.ingest.parser_process import ParserProcess\n"
        "from kb_tools.settings import Settings\n"
        "p = ParserProcess(Settings())\n"
        "print(p.parse(b'who', 'bad').blocks[0].text.split()[1], flush=True)\n"
        f"p.parse({order.encode()!r}, 'bad')\n"
        "sys.stdin.read()\n"
    )
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        time.sleep(0.3)
        assert is_alive(child)
        process.kill()
    deadline = time.monotonic() + 30
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)


def test_a_script_may_parse_anywhere_and_the_working_folder_shadows_nothing(tmp_path: Path) -> None:
    for name in ("csv", "json", "html"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    script = (
        "import sys; sys.path.pop(0)\n"
        "from kb_tools.ingest.parser_process import ParserProcess\n"
        "from kb_tools.settings import Settings\n"
        "with ParserProcess(Settings()) as parser:\n"
        "    print(parser.parse(b'a,b\\nx,y', 'csv').blocks[0].text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("x,y\n", "")
