import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg import sql
from rich.cells import cell_len
from typer.main import get_command
from typer.testing import CliRunner, Result

from kb_tools import KnowledgeBase, Settings
from kb_tools.cli import app
from kb_tools.cli.output import print_table
from kb_tools.db import Database
from kb_tools.storage import migrate
from kb_tools.testing import FakeEmbeddings

Run = Callable[..., Result]
HOSTILE = "\x1b[31mred\x1b[0m \x9b31m\x07 \u202ereversed\u202c"


@pytest.fixture
def run(server_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Run `kb` in a folder of its own, on a schema of its own, with fake embeddings."""
    schema = f"kb_{uuid4().hex}"
    really_open = KnowledgeBase.open
    monkeypatch.setenv("KB_AT", str(server_folder))
    monkeypatch.setenv("KB_DB_SCHEMA", schema)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(
        KnowledgeBase,
        "open",
        lambda at, *, embeddings, account: really_open(
            at, embeddings=FakeEmbeddings(), account=account
        ),
    )
    monkeypatch.chdir(tmp_path)

    def run(*args: str, input: str | None = None) -> Result:
        result = CliRunner().invoke(app, args, input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    yield run
    with Database.open(server_folder, Settings()) as database, database.direct() as conn:
        conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def data(result: Result) -> Any:
    """What a command with --json printed."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def handbook(run: Run) -> str:
    """A dataset of two files; the name that commands take."""
    Path("leave.md").write_text("# 年假\n\n年假可以跨年。\n")
    Path("travel.txt").write_text("差旅费三十天内报销。\n")
    assert run("add", "员工手册", "leave.md", "travel.txt", "--create").exit_code == 0
    return "员工手册"


def documents_of(run: Run, dataset: str) -> dict[str, str]:
    return {d["name"]: d["id"] for d in data(run("document", "list", dataset, "--json"))}


def test_first_steps_lead_to_a_cited_answer(run: Run, handbook: str) -> None:
    assert run("init").stdout.startswith("ready: ")
    answer = run("search", "年假可以跨年吗?")
    assert answer.exit_code == 0
    assert answer.stdout.startswith("[1] leave.md · 第 1 段\n年假")


def test_formats_are_added_and_a_broken_file_is_named(run: Run) -> None:
    Path("a.md").write_text("# 年假\n年假可以跨年。")
    Path("b.html").write_text("<h1>差旅</h1><p>差旅费三十天内报销, 需要发票。</p>")
    Path("c.csv").write_text("城市,标准\n北京,500\n")
    Path("d.json").write_text('{"加班": "另付工资"}')
    Path("broken.pdf").write_bytes(b"no pdf at all")
    result = run("add", "手册", "a.md", "b.html", "c.csv", "d.json", "broken.pdf", "--create")
    assert result.exit_code == 1
    assert "error: broken.pdf: " in result.stderr
    assert len([line for line in result.stdout.splitlines() if "completed" in line]) == 4


def test_broken_file_is_named_in_json_too(run: Run) -> None:
    Path("broken.pdf").write_bytes(b"no pdf at all")
    result = run("add", "手册", "broken.pdf", "--create", "--json")
    assert result.exit_code == 1
    (document,) = json.loads(result.stdout)["documents"]
    assert (document["name"], document["status"]) == ("broken.pdf", "error")
    assert document["error"]


def test_missing_file_is_one_line(run: Run, handbook: str) -> None:
    assert_one_line(run("add", handbook, "nowhere.md"), "nowhere.md")


def test_a_folder_is_added_again_and_what_was_left_out_is_listed(run: Run) -> None:
    Path("docs/a").mkdir(parents=True)
    Path("docs/a/leave.md").write_text("年假可以跨年。")
    Path("docs/photo.xyz").write_text("?")
    first = run("add", "手册", "docs/", "--create")
    assert first.exit_code == 0
    assert "a/leave.md" in first.stdout
    assert "skipped 1: 1 unsupported" in first.stdout
    Path("docs/b.md").write_text("病假要有证明。")
    again = data(run("add", "手册", "docs/**/*.md", "--json"))
    assert [state["name"] for state in again["documents"]] == ["b.md"]
    assert [(s["name"], s["kind"]) for s in again["skipped"]] == [("a/leave.md", "duplicate")]


def test_a_changed_file_is_replaced_when_asked(run: Run) -> None:
    for text in ("年假可以跨年。", "年假不可跨年。"):
        Path("leave.md").write_text(text)
        assert run("add", "手册", "leave.md", "--create", "--duplicates", "replace").exit_code == 0
    assert len(documents_of(run, "手册")) == 1
    assert "不可" in run("search", "年假").stdout


def test_failed_documents_are_listed_with_their_reason_and_the_way_out(run: Run) -> None:
    Path("a.md").write_text("年假")
    Path("b.md").write_text("")
    assert run("add", "手册", "a.md", "b.md", "--create").exit_code == 1
    for option in (["--failed"], ["--status", "error"]):
        listed = run("document", "list", "手册", *option)
        assert "b.md" in listed.stdout
        assert "a.md" not in listed.stdout
        assert "b.md: no text" in listed.stderr
        assert "add the file again" in listed.stderr


def test_status_tells_what_waits_for_a_build(run: Run, handbook: str) -> None:
    assert data(run("status", "--json"))[0]["unfinished"] == 0
    with (
        KnowledgeBase.open(
            os.environ["KB_AT"], embeddings=FakeEmbeddings(), account="default"
        ) as kb,
        kb.db.transaction() as conn,
    ):
        conn.execute("UPDATE document SET enabled = false, status = 'waiting'")
    assert "2 documents wait for: kb add '员工手册' --resume" in run("status").stderr
    assert data(run("status", "--json"))[0]["unfinished"] == 2
    assert run("add", handbook, "--resume").exit_code == 0
    assert run("status").stderr == ""


def test_metadata_and_rule_of_an_upload_are_kept(run: Run, handbook: str) -> None:
    Path("c.txt").write_text("规定。" * 400)
    options = ("--chunk-size", "100", "--chunk-overlap", "0", "--metadata", "author=王")
    assert run("add", handbook, "c.txt", *options).exit_code == 0
    document = data(run("document", "list", handbook, "--search", "c.txt", "--json"))[0]
    assert document["metadata"]["author"] == "王"
    assert document["process_rule"]["chunk_size"] == 100
    assert document["segment_count"] > 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--chunk-size", "5"], "chunk_size"),
        (["--metadata", "author"], "'author'"),
        (["--as-is", "--chunk-size", "100"], "--as-is"),
    ],
)
def test_wrong_upload_option_is_one_line(
    run: Run, handbook: str, options: list[str], named: str
) -> None:
    assert_one_line(run("add", handbook, "leave.md", *options), named)


def test_dataset_is_created_listed_changed_and_deleted(run: Run) -> None:
    made = data(run("dataset", "create", "手册", "--description", "规章", "-k", "8", "--json"))
    assert (
        run("dataset", "update", "手册", "--name", "制度", "--retriever", "keyword").exit_code == 0
    )
    (listed,) = data(run("dataset", "list", "--json"))
    assert (listed["id"], listed["name"], listed["description"]) == (made["id"], "制度", "规章")
    assert listed["retrieval_config"] == {"k": 8, "retriever": "keyword"}
    assert data(run("dataset", "delete", "制度", "--yes", "--json")) == {"deleted": made["id"]}
    assert "no datasets" in run("dataset", "list").stdout


def test_deleting_asks_first(run: Run, handbook: str) -> None:
    refused = run("dataset", "delete", handbook, input="n\n")
    assert refused.exit_code == 1
    assert "with 2 documents?" in refused.stderr
    assert run("dataset", "delete", handbook, input="y\n").exit_code == 0
    assert data(run("dataset", "list", "--json")) == []


def test_deleting_without_anyone_to_ask_deletes_nothing(run: Run, handbook: str) -> None:
    assert run("dataset", "delete", handbook).exit_code == 1
    assert len(data(run("dataset", "list", "--json"))) == 1


def test_documents_are_listed_newest_first_and_deleted(run: Run, handbook: str) -> None:
    ids = documents_of(run, handbook)
    assert list(ids) == ["travel.txt", "leave.md"]
    assert ids["leave.md"] in run("document", "list", handbook).stdout
    assert "leave.md" in run("document", "delete", ids["leave.md"], "--yes").stdout
    assert list(documents_of(run, handbook)) == ["travel.txt"]
    assert_one_line(run("document", "delete", ids["leave.md"], "--yes"), ids["leave.md"])


def test_segments_are_listed_in_order_with_every_field(run: Run, handbook: str) -> None:
    document_id = documents_of(run, handbook)["leave.md"]
    assert "年假可以跨年。" in run("segment", "list", document_id).stdout
    (segment,) = data(run("segment", "list", document_id, "--json"))
    assert (segment["position"], segment["heading"], segment["status"]) == (1, "年假", "completed")
    assert data(run("segment", "list", document_id, "--search", "差旅", "--json")) == []


def test_documents_are_switched_renamed_rebuilt_and_deleted_together(
    run: Run, handbook: str
) -> None:
    ids = documents_of(run, handbook)
    both = list(ids.values())
    assert "travel.txt, leave.md" in run("document", "disable", *both).stdout
    assert [d["enabled"] for d in data(run("document", "list", handbook, "--json"))] == [False] * 2
    assert "disabled" in run("document", "show", both[0]).stdout
    assert_one_line(run("document", "enable", both[0], "nowhere"), "'nowhere'")
    assert len(data(run("document", "enable", *both, "--json"))) == 2
    assert "renamed to 假期.md" in run("document", "rename", ids["leave.md"], "假期.md").stdout
    assert run("document", "rebuild", *both, "--chunk-size", "100").stdout.count("completed") == 2
    assert "with 2 segments?" in run("document", "delete", *both, input="n\n").stderr
    assert data(run("document", "delete", *both, "--yes", "--json")) == {"deleted": both}


def test_manual_changes_are_named_before_a_rebuild_gives_them_up(run: Run, handbook: str) -> None:
    Path("two.md").write_text("# 年假\n年假有十天。\n# 病假\n病假要证明。\n")
    run("add", handbook, "two.md")
    document_id = documents_of(run, handbook)["two.md"]
    run("segment", "edit", f"{document_id}:1", "--content", "年假有五天。")
    assert_one_line(run("document", "rebuild", document_id, "--as-is"), "segment 1 edited")
    discard = ("document", "rebuild", document_id, "--as-is", "--discard-edits")
    assert run(*discard, input="n\n").exit_code == 1
    assert run(*discard, "--yes").exit_code == 0
    (segment,) = data(run("segment", "list", document_id, "--json"))
    assert "年假有十天" in segment["content"]


def test_segments_are_added_edited_switched_and_deleted_with_a_history(
    run: Run, handbook: str
) -> None:
    document_id = documents_of(run, handbook)["leave.md"]
    made = data(
        run("segment", "add", document_id, "--content", "病假要证明。", "--keyword", "病", "--json")
    )
    assert (made["position"], made["keywords"]) == (2, ["病"])
    Path("new.txt").write_text("病假要医院证明。")
    run("segment", "edit", f"{document_id}:2", "--file", "new.txt", "--by", "王")
    run("segment", "edit", made["id"], "--no-keywords")
    assert "病假要医院证明。" in run("segment", "show", f"{document_id}:2").stdout
    assert "disabled" in run("segment", "disable", made["id"]).stdout
    assert data(run("segment", "enable", made["id"], "--json"))["enabled"]
    revisions = data(run("segment", "history", f"{document_id}:2", "--json"))
    assert [r["action"] for r in revisions] == [
        "enabled",
        "disabled",
        "edited",
        "edited",
        "created",
    ]
    assert revisions[3]["edited_by"] == "王"
    assert "医院" in run("segment", "history", document_id).stdout
    assert "病假要医院证明" in run("segment", "delete", made["id"], input="n\n").stderr
    deleted = data(run("segment", "delete", made["id"], "--yes", "--json"))
    assert deleted["id"] in run("segment", "undo", deleted["id"]).stdout
    assert data(run("segment", "show", made["id"], "--json"))["content"] == "病假要医院证明。"


def test_the_text_of_a_segment_comes_from_stdin_too(run: Run, handbook: str) -> None:
    document_id = documents_of(run, handbook)["leave.md"]
    assert run("segment", "add", document_id, "--file", "-", input="加班另付。").exit_code == 0
    assert "加班另付。" in run("segment", "show", f"{document_id}:2").stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["edit", "<document>:1"], "--content"),
        (["edit", "<document>:9", "--content", "x"], "no segment 9"),
        (["edit", "<document>:x", "--content", "x"], "DOCUMENT:NUMBER"),
        (["add", "<document>"], "--content"),
        (["add", "<document>", "--content", "x", "--file", "y"], "not both"),
        (["add", "<document>", "--file", "nowhere"], "'nowhere'"),
        (["undo", "999"], "'999'"),
        (["history", "nothing"], "'nothing'"),
    ],
)
def test_wrong_segment_command_is_one_line(
    run: Run, handbook: str, arguments: list[str], named: str
) -> None:
    document_id = documents_of(run, handbook)["leave.md"]
    given = [argument.replace("<document>", document_id) for argument in arguments]
    assert_one_line(run("segment", *given), named)


def test_statistics_show_what_was_asked_and_what_was_not_found(run: Run, handbook: str) -> None:
    run("search", "年假", "--retriever", "full_text")
    run("search", "zzz", "--retriever", "full_text")
    printed = run("dataset", "stats", handbook).stdout
    assert "hits by source: cli 1" in printed
    assert "last questions without a hit:" in printed
    counts = data(run("dataset", "stats", handbook, "--json"))
    assert [query["query"] for query in counts["recent_queries"]] == ["zzz", "年假"]
    assert counts["most_hit_segments"][0]["document_name"] == "leave.md"


def test_doctor_names_what_is_wrong_and_ends_with_1_until_it_is_mended(
    run: Run, handbook: str, server_folder: Path
) -> None:
    assert "nothing is wrong" in run("doctor").stdout
    with Database.open(server_folder, Settings()) as database, database.transaction() as conn:
        conn.execute("UPDATE document SET token_count = 0")
    sick = run("doctor", "--json")
    assert sick.exit_code == 1
    report = json.loads(sick.stdout)
    assert (report["ok"], report["findings"][0]["count"]) == (False, 2)
    assert "kb doctor --repair" in run("doctor", "--sample", "1").stderr
    assert "totals" in run("doctor", "--repair").stdout
    assert run("doctor").exit_code == 0


def test_status_shows_datasets_and_batches(run: Run, handbook: str) -> None:
    (row,) = data(run("status", "--json"))
    assert (row["name"], row["documents"], row["completed"]) == ("员工手册", 2, 2)
    Path("new.txt").write_text("新规定。")
    batch = data(run("add", handbook, "new.txt", "--json"))["batch"]
    assert data(run("status", batch, "--json"))["documents"][0]["status"] == "completed"
    assert "completed" in run("status", batch).stdout
    assert_one_line(run("status", "no-such-batch"), "no-such-batch")


def test_search_narrows_to_datasets_and_tells_why_nothing_came(run: Run, handbook: str) -> None:
    run("dataset", "create", "空")
    found = data(run("search", "年假", "--in", handbook, "-k", "1", "--json"))
    assert [document["document_name"] for document in found["documents"]] == ["leave.md"]
    assert (found["reason"], found["degraded"], found["cut"]) == (None, [], 0)
    nothing = data(run("search", "年假", "--in", "空", "--json"))
    assert (nothing["reason"], nothing["documents"]) == ("nothing_enabled", [])
    assert "no enabled content" in run("search", "年假", "--in", "空").stdout


def test_hit_shows_scores_and_every_field(run: Run, handbook: str) -> None:
    assert "leave.md" in run("hit", "年假").stdout
    hits = data(run("hit", "年假", "--json"))["hits"]
    assert hits[0]["document"]["name"] == "leave.md"
    assert hits[0]["score_kind"] == "fused"
    assert hits[0]["score"] > 0


def test_hit_without_hits_says_why(run: Run, handbook: str) -> None:
    assert "没有检索到" in run("hit", "zzz", "--retriever", "keyword").stdout


@pytest.mark.parametrize(
    "command",
    [
        ["search", "?", "--in", "nothing"],
        ["hit", "?", "--in", "nothing"],
        ["add", "nothing", "leave.md"],
        ["document", "list", "nothing"],
        ["dataset", "update", "nothing"],
        ["dataset", "delete", "nothing", "--yes"],
    ],
)
def test_unknown_dataset_is_one_line_that_names_the_known(
    run: Run, handbook: str, command: list[str]
) -> None:
    result = run(*command)
    assert_one_line(result, "no dataset 'nothing'")
    assert "员工手册" in result.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--retriever", "hybrit"], "hybrit"),
        (["-k", "0"], "k:"),
        (["--retriever", "keyword", "--threshold", "0.5"], "score_threshold"),
    ],
)
def test_wrong_search_option_is_one_line(
    run: Run, handbook: str, options: list[str], named: str
) -> None:
    assert_one_line(run("search", "年假", *options), named)


def assert_one_line(result: Result, named: str) -> None:
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert named in result.stderr


def test_words_of_a_dataset_are_added_listed_and_taken_out(run: Run, handbook: str) -> None:
    assert "no words" in run("dataset", "words", handbook).stdout
    Path("words.txt").write_text("差旅费 100 n\n云枢平台\n")
    changed = run("dataset", "words", handbook, "--add", "K8s集群", "--file", "words.txt")
    assert changed.stdout == "dataset 员工手册 keeps 3 words whole\n"
    assert run("search", "差旅费", "--retriever", "full_text").stdout.startswith("[1] travel.txt")
    assert data(run("dataset", "words", handbook, "--remove", "k8S集群", "--json")) == [
        "差旅费", "云枢平台",
    ]  # fmt: skip
    assert run("dataset", "words", handbook).stdout == "差旅费\n云枢平台\n"


def test_words_are_cleared_only_when_that_is_confirmed(run: Run, handbook: str) -> None:
    run("dataset", "words", handbook, "--add", "差旅费")
    assert run("dataset", "words", handbook, "--clear", input="n\n").exit_code == 1
    assert data(run("dataset", "words", handbook, "--json")) == ["差旅费"]
    assert run("dataset", "words", handbook, "--clear", "--yes").exit_code == 0
    assert data(run("dataset", "words", handbook, "--json")) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--add", "。。"], "'。。'"),
        (["--remove", "云枢"], "no word '云枢'"),
        (["--file", "bad.txt"], "line 2: 。"),
        (["--file", "missing.txt"], "missing.txt"),
        (["--file", "gbk.txt"], "'gbk.txt' is not UTF-8"),
    ],
)
def test_words_that_cannot_be_used_are_one_line(
    run: Run, handbook: str, options: list[str], named: str
) -> None:
    Path("bad.txt").write_text("云枢平台 3 nz\n。\n")
    Path("gbk.txt").write_bytes("云枢平台".encode("gbk"))
    assert_one_line(run("dataset", "words", handbook, *options), named)


def test_synonyms_of_a_dataset_are_added_listed_and_taken_out(run: Run, handbook: str) -> None:
    assert "no synonyms" in run("dataset", "synonyms", handbook).stdout
    Path("groups.txt").write_text("# leave\n年假，带薪年休假\n\n差旅费, 出差费用\n")
    changed = run(
        "dataset", "synonyms", handbook, "--add", "K8s,Kubernetes", "--file", "groups.txt"
    )
    assert changed.stdout == "dataset 员工手册 has 3 groups of synonyms\n"
    found = run("search", "出差费用", "--retriever", "full_text")
    assert found.stdout.startswith("[1] travel.txt")
    assert data(run("dataset", "synonyms", handbook, "--remove", "KUBERNETES", "--json")) == [
        ["年假", "带薪年休假"], ["差旅费", "出差费用"],
    ]  # fmt: skip
    assert run("dataset", "synonyms", handbook).stdout == "年假, 带薪年休假\n差旅费, 出差费用\n"
    assert run("dataset", "synonyms", handbook, "--clear", input="n\n").exit_code == 1
    assert data(run("dataset", "synonyms", handbook, "--clear", "--yes", "--json")) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--add", "年假"], "2 to 16 different wordings"),
        (["--add", "年假=>假"], "no direction"),
        (["--add", "年假,假", "--add", "假,休假"], "'假' stands in two groups"),
        (["--remove", "年假"], "no synonym '年假'"),
        (["--file", "bad.txt"], "line 2: "),
    ],
)
def test_synonyms_that_cannot_be_used_are_one_line(
    run: Run, handbook: str, options: list[str], named: str
) -> None:
    Path("bad.txt").write_text("年假,休假\n。,年休\n")
    assert_one_line(run("dataset", "synonyms", handbook, *options), named)


def test_another_account_sees_nothing(run: Run, handbook: str) -> None:
    assert data(run("dataset", "list", "--account", "other", "--json")) == []
    assert_one_line(run("search", "年假", "--in", handbook, "--account", "other"), "none yet")


def test_migrate_twice_changes_nothing(run: Run) -> None:
    first = data(run("migrate", "--json"))["applied"]
    assert first == [migration.name for migration in migrate.migrations()]
    assert "nothing" in run("migrate").stdout


def test_printed_sql_makes_the_schema_that_migrate_makes(run: Run, server_folder: Path) -> None:
    script = run("migrate", "--sql").stdout
    assert all(f"-- {migration.name}" in script for migration in migrate.migrations())
    with Database.open(server_folder, Settings()) as database:
        with database.direct() as conn:
            conn.execute(script.removeprefix("BEGIN;").rstrip().removesuffix("COMMIT;"))
        migrate.require_current(database, Settings().db_schema)
    assert data(run("migrate", "--json")) == {"applied": []}


def test_printed_sql_grants_a_role_what_it_needs(run: Run) -> None:
    assert "GRANT" not in run("migrate", "--sql").stdout
    assert 'TO "my_app";' in run("migrate", "--sql", "--role", "my_app").stdout
    assert_one_line(run("migrate", "--role", "my_app"), "--role goes with --sql")


def test_nothing_from_a_document_steers_the_terminal(run: Run) -> None:
    Path("a\x1b[31m\n\u202eb.txt").write_text(f"年假 {HOSTILE}")
    run("dataset", "create", f"手册{HOSTILE}")
    dataset = data(run("dataset", "list", "--json"))[0]["id"]
    outputs = [run("add", dataset, str(next(Path.cwd().iterdir())), "--as-is")]
    document_id = next(iter(documents_of(run, dataset).values()))
    outputs += [run("segment", "edit", f"{document_id}:1", "--content", HOSTILE, "--by", "x\x1b")]
    outputs += [run("segment", "edit", f"{document_id}:1", "--content", f"年假 {HOSTILE}")]
    outputs += [
        run(*command, *form)
        for form in ([], ["--json"])
        for command in (
            ["search", "年假"], ["hit", "年假"], ["dataset", "list"], ["document", "list", dataset],
            ["segment", "list", document_id], ["status"], ["segment", "history", document_id],
            ["segment", "show", f"{document_id}:1"], ["dataset", "stats", dataset],
            ["search", "年假", "--in", HOSTILE],
        )
    ]  # fmt: skip
    outputs += [run("dataset", "delete", dataset, input="n\n")]
    for output in outputs:
        controls = {c for c in output.output if not c.isprintable()} - {"\n"}
        assert not controls, output.output


def test_tables_fit_eighty_columns(run: Run, handbook: str) -> None:
    Path("很长的文件名" * 10 + ".txt").write_text("长内容 " * 100)
    run("add", handbook, str(next(Path.cwd().glob("很长*"))))
    document_id = documents_of(run, handbook)["leave.md"]
    run("segment", "edit", f"{document_id}:1", "--content", "长内容 " * 100)
    for command in (
        ["dataset", "list"], ["document", "list", handbook], ["segment", "list", document_id],
        ["hit", "年假"], ["status"], ["segment", "history", document_id],
        ["dataset", "stats", handbook], ["document", "show", document_id],
    ):  # fmt: skip
        lines = run(*command).stdout.splitlines()
        assert max(cell_len(line) for line in lines) <= 80
        assert len(lines) > 2


def test_long_cells_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"content": "x" * 1000}], "none")
    assert capsys.readouterr().out.count("x") == 119


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name)


COMMANDS = list(_commands(get_command(app)))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_shows_an_example_and_json(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert f"Example: kb {' '.join(command)}" in result.stdout
    assert "--json" in result.stdout


def test_help_shows_the_first_steps() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert "kb init" in result.stdout
    assert "kb add handbook" in result.stdout


def test_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("kb_tools")


@pytest.mark.parametrize("command", [["dataset", "list"], ["migrate"], ["init", "--json"]])
def test_password_of_a_server_that_does_not_answer_is_never_printed(command: list[str]) -> None:
    url = "postgresql://me:MySecret@127.0.0.1:1/db"
    result = _process(*command, "--kb", url, KB_CONNECT_TIMEOUT_SECONDS="1")
    assert result.returncode == 1
    assert "MySecret" not in result.stdout + result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_terminal_without_chinese_gets_escapes_not_a_traceback() -> None:
    result = _process("--help", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert "\\u5e74\\u5047" in result.stdout


def _process(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kb_tools.cli", *args],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
