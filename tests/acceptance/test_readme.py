"""The README is true: its session gives what it shows, its commands and links exist."""

import doctest
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_session_gives_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = README.split("## A session")[1].split("```python\n")[1].split("```")[0]
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    session = session.replace("\n\n", "\n<BLANKLINE>\n")
    test = doctest.DocTestParser().get_doctest(session, {}, "README", "README.md", 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed = runner.run(test, clear_globs=False).failed
    test.globs["kb"].close()
    assert not failed


def test_every_make_target_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets


def test_every_file_it_links_to_exists() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link


def test_its_figures_are_those_of_the_last_evaluation() -> None:
    measured = (ROOT / "benchmarks" / "results" / "quality.md").read_text("utf-8")
    table = measured.split("## nDCG@10\n\n")[1].split("\n\n")[0]
    assert table in README


def test_its_times_are_those_of_the_last_measurement() -> None:
    measured = (ROOT / "benchmarks" / "results" / "search.md").read_text("utf-8")
    table = measured.split("## In short\n\n")[1].split("\n\n")[0]
    assert table in README
