"""Folders and globs: what is added from them, under which names, and what is said of the rest."""

import os
from pathlib import Path

import pytest
from langchain_core.documents import Document as LCDocument

from kb_tools import BuildFailed, InvalidInput, KnowledgeBase
from kb_tools.assets.documents import Batch
from kb_tools.ingest import sources
from kb_tools.ingest.folders import files_of
from kb_tools.models import Dataset, SkipKind, Skipped


@pytest.fixture
def dataset(kb: KnowledgeBase) -> Dataset:
    return kb.create_dataset("a")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with files that can be added, and others."""
    texts = {
        "b.md": "# 乙", "a/readme.md": "甲 readme", "c/readme.md": "丙 readme",
        "a/deep/er/x.txt": "深", ".git/config.txt": "hidden", "a/.secret.md": "hidden",
        "a/~$b.docx": "lock", "a/photo.xyz": "?", "LICENSE": "?",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(text, "utf-8")
    return tmp_path / "docs"


def names(batch: Batch) -> list[str]:
    return [state.name for state in batch.states]


def left_out(batch: Batch) -> dict[str, SkipKind]:
    return {skipped.name: skipped.kind for skipped in batch.skipped}


def test_a_folder_is_read_to_its_leaves_in_sorted_order(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    batch = kb.add_documents(dataset.id, docs).raise_for_errors()
    assert names(batch) == ["a/deep/er/x.txt", "a/readme.md", "b.md", "c/readme.md"]
    document = kb.get_document(batch.document_ids[1])
    assert (document.name, document.source, document.extension) == ("a/readme.md",) * 2 + ("md",)
    found = kb.search_in_datasets("丙 readme", [dataset.id])[0]
    assert found.metadata["document_name"] == "c/readme.md"
    assert str(docs) not in str(found.metadata)


def test_what_a_folder_holds_besides_documents_is_named(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    batch = kb.add_documents(dataset.id, f"{docs}/")
    assert left_out(batch) == {
        ".git": SkipKind.HIDDEN,
        "a/.secret.md": SkipKind.HIDDEN,
        "a/~$b.docx": SkipKind.HIDDEN,
        "a/photo.xyz": SkipKind.UNSUPPORTED,
        "LICENSE": SkipKind.UNSUPPORTED,
    }
    assert "'.xyz'" in next(s.reason for s in batch.skipped if s.name == "a/photo.xyz")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.md", ["b.md"]),
        ("*/*.md", ["a/readme.md", "c/readme.md"]),
        ("**/*.md", ["a/readme.md", "b.md", "c/readme.md"]),
        ("**", ["a/deep/er/x.txt", "a/readme.md", "b.md", "c/readme.md"]),
        ("a/**/[xy].*", ["deep/er/x.txt"]),
        ("?/**/readme.md", ["a/readme.md", "c/readme.md"]),
    ],
)
def test_a_glob_names_files_by_their_path_below_its_fixed_part(
    kb: KnowledgeBase, dataset: Dataset, docs: Path, pattern: str, found: list[str]
) -> None:
    assert names(kb.add_documents(dataset.id, docs / pattern)) == found


def test_a_relative_glob_starts_in_the_working_folder(
    kb: KnowledgeBase, dataset: Dataset, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(docs)
    assert names(kb.add_documents(dataset.id, ["*.md", "c"])) == ["b.md", "readme.md"]


def test_a_file_that_is_named_like_a_glob_is_a_file(
    kb: KnowledgeBase, dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "a[1].txt").write_text("一")
    assert names(kb.add_documents(dataset.id, tmp_path / "a[1].txt")) == ["a[1].txt"]


def test_a_glob_or_folder_without_files_is_refused_by_name(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    (docs / "empty" / "more").mkdir(parents=True)
    for place, reason in (("*.pdf", "matches no file"), ("empty", "holds no file")):
        with pytest.raises(InvalidInput, match=rf"{reason}"):
            kb.add_documents(dataset.id, [docs / "b.md", docs / place])
    with pytest.raises(InvalidInput, match="empty"):
        kb.add_documents(dataset.id, iter([docs / "b.md", docs / "empty"]))
    assert kb.list_documents(dataset.id) == []


def test_links_that_loop_dangle_or_lead_to_folders_are_named_and_not_followed(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    (docs / "loop.md").symlink_to("loop.md")
    (docs / "dangling.md").symlink_to("nowhere.md")
    (docs / "a" / "up").symlink_to("..")
    (docs / "linked.md").symlink_to("b.md")
    os.mkfifo(docs / "pipe.md")
    for place in (docs, docs / "**/*"):
        batch = kb.add_documents(dataset.id, place, duplicates="keep")
        assert names(batch)[-1] == "linked.md"
        kinds = left_out(batch)
        assert kinds["loop.md"] is kinds["dangling.md"] is SkipKind.UNREADABLE
        assert kinds["a/up"] is kinds["pipe.md"] is SkipKind.UNSUPPORTED


def test_what_cannot_be_read_below_a_folder_is_an_error_of_the_batch_not_a_crash(
    kb: KnowledgeBase, dataset: Dataset, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read, really_list = sources._from_file, os.listdir

    def read(file, *rest):  # type: ignore[no-untyped-def]
        if file.name == "b.md":
            raise PermissionError(13, "Permission denied")
        return really_read(file, *rest)

    def listdir(path):  # type: ignore[no-untyped-def]
        if str(path).endswith("/c"):
            raise PermissionError(13, "Permission denied")
        return really_list(path)

    monkeypatch.setattr(sources, "_from_file", read)
    monkeypatch.setattr(os, "listdir", listdir)
    batch = kb.add_documents(dataset.id, docs)
    assert names(batch) == ["a/deep/er/x.txt", "a/readme.md"]
    assert {skipped.name for skipped in batch.unreadable} == {"b.md", "c"}
    with pytest.raises(BuildFailed, match=r"b\.md: cannot be read: Permission denied"):
        batch.raise_for_errors()


def test_the_files_of_a_database_are_not_documents(docs: Path) -> None:
    data = docs / "kb" / "postgres"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("18")
    (data / "pg_ident.txt").write_text("x")
    entries = [entry for entry in files_of(str(docs / "kb"))]
    assert [entry.name for entry in entries] == ["postgres"]
    assert isinstance(entries[0], Skipped)


def test_a_named_file_of_an_unsupported_format_is_a_document_in_error(
    kb: KnowledgeBase, dataset: Dataset, docs: Path
) -> None:
    batch = kb.add_documents(dataset.id, docs / "a" / "photo.xyz")
    assert "unsupported format" in (batch.failed[0].error or "")
    assert batch.skipped == []


def test_an_iterator_of_sources_is_read_as_it_goes(kb: KnowledgeBase, dataset: Dataset) -> None:
    taken, totals = [], []

    def passages():  # type: ignore[no-untyped-def]
        for number in range(1200):
            taken.append(number)
            yield LCDocument(f"passage {number}")

    def watch(built):  # type: ignore[no-untyped-def]
        totals.append((len(taken), built.document_total))

    batch = kb.add_documents(dataset.id, passages(), progress=watch)
    assert len(batch.document_ids) == 1200
    assert totals[:3] == [(500, 500), (1000, 1000), (1200, 1200)]
