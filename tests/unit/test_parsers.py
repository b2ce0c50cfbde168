"""Each format: what survives into blocks, and what a file that cannot be read says."""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb_tools.config import ProcessRule
from kb_tools.ingest.cleaned import assemble
from kb_tools.ingest.encodings import decode
from kb_tools.ingest.euc_tw import decode_euc_tw
from kb_tools.ingest.parsed import Block, BlockKind, Limits, Parsed, ParseError
from kb_tools.ingest.parsers import format_of
from kb_tools.ingest.parsers.__main__ import parse
from kb_tools.ingest.split import split

SIMPLIFIED = "员工每年享有十五天带薪年假，可以跨年使用。"
TRADITIONAL = "員工每年享有十五天帶薪年假，可以跨年使用。"
EUC_TW = "d4dec4d6cae4c8a1cbeac8b4c4b2c4ecc5b2daa7f5aac8a1d8f5a1a2c6abc5e8e6fac8a1cbf0c6eea1a4"
JAPANESE = "社員は年次有給休暇を取得できます。"
NAV = "<nav><ul><li><a href=/>首页</a></li><li><a href=/p>产品</a></li></ul></nav>"


def read(data: bytes | str, suffix: str, limits: Limits | None = None) -> Parsed:
    content = data.encode() if isinstance(data, str) else data
    return parse(content, format_of(suffix), limits or Limits())


def texts(parsed: Parsed) -> list[str]:
    return [block.text for block in parsed.blocks]


def places(parsed: Parsed) -> list[tuple[str, str]]:
    return [(block.heading, block.text) for block in parsed.blocks]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        *((SIMPLIFIED, name) for name in ("utf-8", "utf-8-sig", "gbk", "gb18030", "hz")),
        *((SIMPLIFIED, name) for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")),
        *((TRADITIONAL, name) for name in ("big5", "gb18030", "utf-16-le", "cp950")),
        *((JAPANESE, name) for name in ("cp932", "euc_jp", "iso2022_jp", "utf-16-be")),
        ("직원은 매년 연차 휴가를 사용할 수 있습니다.", "cp949"),
        ("Les employés ont quinze jours de congés payés.", "cp1252"),
        ("名前,年齢,住所\r\n佐藤太郎,30,東京\r\n", "cp932"),
        ("姓名,年齡,城市\n張三,30,臺北\n", "big5"),
        ("年假", "gbk"),
        ("請假", "big5"),
    ],
)
def test_the_encoding_is_found(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)).text == text


def test_euc_tw_is_found_and_read() -> None:
    data = bytes.fromhex(EUC_TW)
    assert decode(data).text == decode_euc_tw(data) == TRADITIONAL
    assert decode_euc_tw(b"\x8e\xa2\xa1\xa1 \xff") == "乂 \ufffd"


def test_a_guess_is_called_a_guess() -> None:
    assert read(SIMPLIFIED.encode("gbk"), "txt").report == {
        "encoding": "gb18030",
        "encoding_guessed": True,
    }
    assert read(SIMPLIFIED, "txt").report["encoding_guessed"] is False


def test_few_broken_bytes_are_counted_not_fatal() -> None:
    parsed = read((SIMPLIFIED * 20).encode() + b"\xff\xfe", "txt")
    assert texts(parsed)[0].startswith(SIMPLIFIED)
    assert parsed.report["warnings"] == ["2 byte(s) are not valid utf-8"]


def test_a_stray_zero_byte_does_not_make_a_short_text_binary() -> None:
    assert texts(read(b"o\0er Cloud credits", "txt"))[0].replace("\0", "") == "oer Cloud credits"


def test_binary_data_is_no_text() -> None:
    with pytest.raises(ParseError, match="not text"):
        read(bytes(range(256)) * 40, "txt")


@pytest.mark.parametrize("suffix", ["txt", "md", "csv", "html", "json"])
@pytest.mark.parametrize("data", [b"", b" \n\t", b"\xef\xbb\xbf", b"\x00\x00"])
def test_an_empty_file_says_so(data: bytes, suffix: str) -> None:
    with pytest.raises(ParseError, match="no text"):
        read(data, suffix)


@pytest.mark.parametrize("suffix", ["", "exe", "ocr"])
def test_an_unsupported_format_lists_the_supported_ones(suffix: str) -> None:
    with pytest.raises(ParseError) as caught:
        read(b"x", suffix)
    supported = str(caught.value).split("supported: ")[1].split(", ")
    assert {"doc", "docx", "eml", "msg", "odt", "ppt", "pptx", "rtf", "xls", "xlsx", "xml"} <= {
        *supported
    }
    assert "ocr" not in supported


def test_too_many_characters_name_the_limit() -> None:
    with pytest.raises(ParseError, match="max_characters"):
        read("年" * 11, "txt", Limits(max_characters=10))


def test_what_was_parsed_travels_as_json() -> None:
    block = Block("姓名: \ud83d", "一 › 二", 3, BlockKind.TABLE, ("姓名",))
    parsed = Parsed((block,), "题", {"pages": 3}, {"author": "张"})
    assert Parsed.from_json(parsed.to_json()) == parsed


def test_txt_has_paragraphs_and_chapter_lines() -> None:
    text = "前言\n第二行\n\n第一章 总则\n第一条 为了……\n第二节 年假\n十五天。"
    assert places(read(text, "txt")) == [
        ("", "前言\n第二行"),
        ("第一章 总则", "第一章 总则"),
        ("第一章 总则", "第一条 为了……"),
        ("第一章 总则 › 第二节 年假", "第二节 年假"),
        ("第一章 总则 › 第二节 年假", "十五天。"),
    ]


def test_md_headings_become_paths_and_fences_stay_whole() -> None:
    text = "---\ntitle: 手册\n---\n# 一\n文\n## 二\n```\n# no heading\n\nx\n```\n# 三\n尾[链](http://a)"
    parsed = read(text, "markdown")
    assert parsed.title == "手册"
    assert places(parsed) == [
        ("一", "一"),
        ("一", "文"),
        ("一 › 二", "二"),
        ("一 › 二", "```\n# no heading\n\nx\n```"),
        ("三", "三"),
        ("三", "尾[链](http://a)"),
    ]


def test_md_table_rows_carry_their_columns() -> None:
    text = "| 姓名 | 年龄 |\n|---|--:|\n| 张三 | 3\\|0 |\n| 李四 |\n\n尾"
    assert texts(read(text, "md")) == ["姓名: 张三; 年龄: 3|0", "姓名: 李四", "尾"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_rows_carry_their_columns(delimiter: str) -> None:
    rows = [["姓名", "说明"], ["张三", '"他说\n你好"'], ["李四", "无", "多余"], []]
    text = "\n".join(delimiter.join(row) for row in rows)
    assert texts(read(text, "csv")) == [
        "姓名: 张三\n说明: 他说\n你好",
        "姓名: 李四; 说明: 无; 多余",
    ]


def test_csv_without_header_keeps_its_first_row() -> None:
    assert texts(read("张三,30\n李四,20\n", "csv")) == ["张三; 30", "李四; 20"]


def test_csv_with_a_huge_field_and_an_open_quotation_mark_is_read() -> None:
    text = "甲,乙\n1," + "长" * 300_000 + '\n2,"' + "\n3,4" * 2500
    parsed = read(text, "csv")
    assert len(parsed.blocks) == 2502
    assert "never closed" in str(parsed.report["warnings"])


def test_json_records_are_blocks_of_paths_and_values() -> None:
    text = '[{"名":"张三","地":{"市":"北京"},"爱好":["读","写"],"空":null,"价":1.10},{"名":"李四"}]'
    assert texts(read(text, "json")) == [
        "名: 张三; 地.市: 北京; 爱好: 读, 写; 价: 1.10",
        "名: 李四",
    ]


def test_json_lists_inside_an_object_stand_under_their_key() -> None:
    text = '{"title":"问答","n":NaN,"items":[{"q":"甲"},{"q":"乙"}]}'
    parsed = read(text, "json")
    assert parsed.title == "问答"
    assert places(parsed) == [("", "title: 问答; n: NaN"), ("items", "q: 甲"), ("items", "q: 乙")]


def test_json_lines_are_records() -> None:
    assert texts(read('{"a":1}\n\n{"a":2}\n', "jsonl")) == ["a: 1", "a: 2"]


@pytest.mark.parametrize(
    ("text", "place"),
    [('{"a":\n  b}', "line 2, column 3"), ('{"a":1}\n{"a":2', "line 2, column 7"), ("[", "line 1")],
)
def test_invalid_json_names_the_place(text: str, place: str) -> None:
    with pytest.raises(ParseError, match=f"invalid JSON at {place}"):
        read(text, "json")


def test_json_nested_without_end_is_refused() -> None:
    with pytest.raises(ParseError, match="nested too deeply"):
        read("[" * 100_000, "json")
    assert texts(read("[" * 400 + "1" + "]" * 400, "json"))


def test_cut_json_in_a_txt_is_just_text() -> None:
    assert texts(read('{"name": "John', "txt")) == ['{"name": "John']


def test_html_keeps_headings_lists_and_tables_and_drops_the_rest() -> None:
    page = f"""<html lang=zh><head><title>年假 - 公司</title><script>x</script></head><body>{NAV}
      <h1>年假</h1><p>十五天，<b>可跨</b>\n年。</p><ul><li>申请</li></ul><p hidden>藏</p>
      <div style="display: none">藏</div><table><tr><th>级<th>天<tr><td>一<td>十五</table>
      <pre>a\n  b</pre><footer>版权</footer></body></html>"""
    parsed = read(page, "html")
    assert (parsed.title, parsed.metadata) == ("年假 - 公司", {"language": "zh"})
    assert texts(parsed) == ["年假", "十五天，可跨年。", "申请", "级: 一; 天: 十五", "a\n  b"]
    assert {block.heading for block in parsed.blocks} == {"年假"}


def test_html_that_is_all_menu_is_kept() -> None:
    assert texts(read(f"<body>{NAV}</body>", "html")) == ["首页", "产品"]


def test_html_question_list_is_kept_whole() -> None:
    page = f"{NAV}<h1>问答</h1><dl><dt>如何请假?<dd>在系统提交。</dl><p>密码<p>重置"
    assert texts(read(page, "htm")) == ["问答", "如何请假?", "在系统提交。", "密码", "重置"]


@pytest.mark.parametrize(
    ("declared", "encoding"), [("gb2312", "gbk"), ("utf-8", "gbk"), ("gbk", "utf-8"), ("x", "big5")]
)
def test_html_with_a_wrong_declaration_is_read(declared: str, encoding: str) -> None:
    text = TRADITIONAL if encoding == "big5" else SIMPLIFIED
    page = f"<meta charset={declared}><p>{text}</p>"
    assert texts(read(page.encode(encoding), "html")) == [text]


# --- docx -----------------------------------------------------------------------------------


def docx_file(fill: Callable[..., None]) -> bytes:
    import docx

    document = docx.Document()
    fill(document)
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def handbook(document: object) -> None:
    document.add_heading("员工手册", 0)
    document.add_heading("第一章", 1)
    document.add_paragraph("年假十五天。")
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip(table._cells, ["姓名", "年龄", "张三", "30"], strict=True):
        cell.text = text
    document.add_heading("附则", 2)
    document.add_paragraph("其一", style="List Number")
    document.add_paragraph("其二", style="List Bullet")


def test_docx_keeps_headings_tables_and_lists_in_order() -> None:
    parsed = read(docx_file(handbook), "docx")
    assert parsed.title == "员工手册"
    assert places(parsed)[2:] == [
        ("员工手册 › 第一章", "年假十五天。"),
        ("员工手册 › 第一章", "姓名: 张三; 年龄: 30"),
        ("员工手册 › 第一章 › 附则", "附则"),
        ("员工手册 › 第一章 › 附则", "1. 其一"),
        ("员工手册 › 第一章 › 附则", "- 其二"),
    ]


def test_docx_with_chinese_style_names_has_headings() -> None:
    def fill(document: object) -> None:
        from docx.enum.style import WD_STYLE_TYPE

        document.styles.add_style("标题 2", WD_STYLE_TYPE.PARAGRAPH)
        document.add_paragraph("年假", style="标题 2")
        document.add_paragraph("十五天")

    assert places(read(docx_file(fill), "docx")) == [("年假", "年假"), ("年假", "十五天")]


def test_docx_text_inside_controls_and_insertions_is_read_and_deleted_text_is_not() -> None:
    body = (
        "<w:sdt><w:sdtContent><w:p><w:r><w:t>控件</w:t></w:r></w:p></w:sdtContent></w:sdt>"
        "<w:p><w:ins><w:r><w:t>新</w:t></w:r></w:ins><w:del><w:r><w:delText>旧</w:delText></w:r></w:del>"
        "<w:r><w:t>文</w:t></w:r></w:p>"
    )

    def fill(document: object) -> None:
        from docx.oxml import parse_xml

        name = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
        for child in parse_xml(f'<w:body xmlns:w="{name}">{body}</w:body>'):
            document.element.body.insert(0, child)

    assert sorted(texts(read(docx_file(fill), "docx"))) == ["控件", "新文"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04 cut", "truncated or damaged zip"),
        (b"not a zip", "truncated or damaged zip"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), "encrypted"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save it as .docx"),
    ],
)
def test_docx_that_is_none_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        read(data, "docx")


def test_docx_that_unpacks_to_too_much_is_refused_before_unpacking() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"0" * 5_000_000)
    with pytest.raises(ParseError, match="max_unpacked_bytes"):
        read(stream.getvalue(), "docx", Limits(max_unpacked_bytes=1_000_000))


# --- pdf ------------------------------------------------------------------------------------


def pdf_file(draw: Callable[..., None], *, pages: int = 1, password: str | None = None) -> bytes:
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfgen.canvas import Canvas

    pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))
    stream = io.BytesIO()
    canvas = Canvas(stream, pagesize=(600, 800), encrypt=password)
    for page in range(1, pages + 1):
        canvas.setFont("STSong-Light", 10)
        draw(canvas, page)
        canvas.showPage()
    canvas.save()
    return stream.getvalue()


def test_pdf_lines_of_a_paragraph_are_joined_as_their_script_wants() -> None:
    def draw(canvas: object, page: int) -> None:
        for y, line in (
            (700, "员工每年享有十五天" * 6),
            (686, "带薪年假。"),
            (640, "Leave may be"),
            (626, "x"),
        ):
            canvas.drawString(50, y, line)
        canvas.drawString(
            50,
            580,
            "The quick brown fox jumps over the lazy dog and so on to the margin of the page ok",
        )
        canvas.drawString(50, 566, "and back again.")
        canvas.drawString(50, 530, "一" * 50)

    found = texts(read(pdf_file(draw), "pdf"))
    assert found[0] == "员工每年享有十五天" * 6 + "带薪年假。"
    assert found[1:3] == ["Leave may be", "x"]


def test_pdf_pages_are_kept_and_running_heads_stand_once() -> None:
    def draw(canvas: object, page: int) -> None:
        canvas.drawString(50, 770, "某公司 2024 年报告")
        canvas.drawString(50, 600, f"这是{'甲乙丙丁戊'[page - 1]}页的正文。")
        canvas.drawString(300, 20, str(page))

    parsed = read(pdf_file(draw, pages=5), "pdf")
    assert texts(parsed).count("某公司 2024 年报告") == 1
    assert [block.page for block in parsed.blocks if "正文" in block.text] == [1, 2, 3, 4, 5]


def test_pdf_columns_are_read_one_after_the_other() -> None:
    def draw(canvas: object, page: int) -> None:
        for at in range(10):
            canvas.drawString(40, 700 - 14 * at, f"左栏第{at}行文字比较长所以占满了这一栏的宽")
            canvas.drawString(320, 700 - 14 * at, f"右栏第{at}行文字比较长所以占满了这一栏的宽")

    text = "".join(texts(read(pdf_file(draw), "pdf")))
    assert text.index("左栏第9行") < text.index("右栏第0行")


def test_pdf_table_rows_carry_their_columns() -> None:
    def draw(canvas: object, page: int) -> None:
        for y, row in enumerate(
            [("姓名", "年龄", "城市"), ("张三", "30", "北京"), ("李四", "25", "上海")]
        ):
            for x, text in enumerate(row):
                canvas.drawString(50 + 150 * x, 700 - 14 * y, text)

    assert texts(read(pdf_file(draw), "pdf")) == [
        "姓名: 张三; 年龄: 30; 城市: 北京",
        "姓名: 李四; 年龄: 25; 城市: 上海",
    ]


def test_pdf_bookmarks_and_chapters_become_headings() -> None:
    def draw(canvas: object, page: int) -> None:
        canvas.bookmarkPage("a")
        canvas.addOutlineEntry("Leave", "a", 0)
        for y, line in (
            (700, "Leave"),
            (660, "Fifteen days."),
            (620, "第三章 差旅"),
            (580, "实报实销。"),
        ):
            canvas.drawString(50, y, line)

    parsed = read(pdf_file(draw), "pdf")
    assert ("Leave", "Fifteen days.") in places(parsed)
    assert ("Leave › 第三章 差旅", "实报实销。") in places(parsed)


def test_pdf_names_the_pages_without_text() -> None:
    def draw(canvas: object, page: int) -> None:
        canvas.rect(10, 10, 50, 50, fill=1)
        if page == 2:
            canvas.drawString(50, 700, "只有这一页有文字。")

    parsed = read(pdf_file(draw, pages=4), "pdf")
    assert parsed.report["pages_without_text"] == [1, 3, 4]
    assert "pages 1, 3-4" in str(parsed.report["warnings"])


def test_pdf_without_any_text_asks_for_ocr() -> None:
    def draw(canvas: object, page: int) -> None:
        canvas.rect(10, 10, 50, 50, fill=1)

    with pytest.raises(ParseError, match=r"no text layer \(pages 1-3\); run OCR first"):
        read(pdf_file(draw, pages=3), "pdf")


def test_pdf_with_a_password_or_too_many_pages_or_damage_says_so() -> None:
    def draw(canvas: object, page: int) -> None:
        canvas.drawString(50, 700, "文字")

    with pytest.raises(ParseError, match="encrypted: needs a password"):
        read(pdf_file(draw, password="secret"), "pdf")
    with pytest.raises(ParseError, match="max_pages"):
        read(pdf_file(draw, pages=3), "pdf", Limits(max_pages=2))
    with pytest.raises(ParseError, match="not a readable PDF"):
        read(b"%PDF-1.4 cut", "pdf")


# --- damaged files --------------------------------------------------------------------------


def valid_files() -> dict[str, bytes]:
    def draw(canvas: object, page: int) -> None:
        canvas.drawString(50, 700, SIMPLIFIED)

    records = json.dumps([{"名": "张三", "n": [1, {"x": 2}]}] * 5, ensure_ascii=False)
    return {
        "txt": SIMPLIFIED.encode("gbk"),
        "md": "# 一\n| a | b |\n|---|---|\n| 1 | 2 |\n```\nx\n```\n".encode(),
        "csv": '姓名,年龄\n张三,30\n"李\n四",20\n'.encode(),
        "json": records.encode(),
        "html": f"<html>{NAV}<table><tr><td>a<td>b<tr><td>1<td>2</table><p>{SIMPLIFIED}".encode(),
        "docx": docx_file(handbook),
        "pdf": pdf_file(draw, pages=2),
    }


VALID = valid_files()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(VALID)), st.data())
def test_a_damaged_file_is_read_or_refused(suffix: str, data: st.DataObject) -> None:
    content = bytearray(VALID[suffix])
    for _ in range(data.draw(st.integers(0, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (bytes(content), bytes(content[:cut])):
        with suppress(ParseError):
            assert read(damaged, suffix).blocks


def test_narrow_csv_keeps_its_lines_under_its_header_in_every_segment() -> None:
    lines = [f"员工{number},{20 + number % 40},成都" for number in range(200)]
    data = "\n".join(["姓名,年龄,城市", *lines]).encode()
    rule = ProcessRule.custom(chunk_size=100, chunk_overlap=0)
    pieces = split(assemble(read(data, ".csv"), rule), rule)
    assert len(pieces) > 5
    assert all(piece.content.startswith("姓名,年龄,城市\n员工") for piece in pieces)
    assert [line for piece in pieces for line in piece.content.split("\n")[1:]] == lines
