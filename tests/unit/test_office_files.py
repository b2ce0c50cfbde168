"""Slides, workbooks and old Office files: what survives into blocks, what the reports say."""

import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb_tools.ingest import office
from kb_tools.ingest.parsed import Limits, Parsed, ParseError
from kb_tools.ingest.parsers import format_of
from kb_tools.ingest.parsers.__main__ import parse
from kb_tools.ingest.shown import shown

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def read(data: bytes, suffix: str, limits: Limits | None = None) -> Parsed:
    return parse(data, format_of(suffix), limits or Limits())


def texts(parsed: Parsed) -> list[str]:
    return [block.text for block in parsed.blocks]


def places(parsed: Parsed) -> list[tuple[str, str]]:
    return [(block.heading, block.text) for block in parsed.blocks]


# --- pptx -----------------------------------------------------------------------------------


def pptx_file(fill: Callable[..., None]) -> bytes:
    from pptx import Presentation

    presentation = Presentation()
    fill(presentation)
    stream = io.BytesIO()
    presentation.save(stream)
    return stream.getvalue()


def add_slide(presentation: object, title: str = "", body: str = "") -> object:
    slide = presentation.slides.add_slide(presentation.slide_layouts[1 if body else 5])
    slide.shapes.title.text = title
    if body:
        slide.placeholders[1].text = body
    return slide


def add_box(shapes: object, left: int, top: int, text: str) -> None:
    from pptx.util import Inches

    box = shapes.add_textbox(Inches(left), Inches(top), Inches(1), Inches(1))
    box.text_frame.text = text


def add_table(slide: object, rows: list[list[str]]) -> object:
    from pptx.util import Inches

    size = len(rows), len(rows[0])
    table = slide.shapes.add_table(*size, Inches(1), Inches(3), Inches(5), Inches(2)).table
    for at, row in enumerate(rows):
        for column, text in enumerate(row):
            table.cell(at, column).text = text
    return table


def leave_slides(presentation: object) -> None:
    slide = add_slide(presentation, "年假", "十五天\n可跨年")
    slide.notes_slide.notes_text_frame.text = "提醒员工"
    add_table(add_slide(presentation, "表"), [["姓名", "天数"], ["张三", "15"]])


def test_pptx_slides_are_pages_under_their_titles_and_notes_are_marked() -> None:
    parsed = read(pptx_file(leave_slides), "pptx")
    assert [(b.page, b.heading, b.text) for b in parsed.blocks] == [
        (1, "年假", "年假"),
        (1, "年假", "十五天\n可跨年"),
        (1, "年假", "备注: 提醒员工"),
        (2, "表", "表"),
        (2, "表", "姓名: 张三; 天数: 15"),
    ]
    assert parsed.title == "年假"


def test_pptx_shapes_are_read_as_people_read_them_groups_too() -> None:
    def fill(presentation: object) -> None:
        slide = add_slide(presentation)
        add_box(slide.shapes, 5, 4, "四")
        group = slide.shapes.add_group_shape()
        add_box(group.shapes, 5, 2, "二")
        add_box(group.shapes, 1, 2, "一")
        add_box(slide.shapes, 1, 4, "三")

    assert texts(read(pptx_file(fill), "pptx")) == ["一", "二", "三", "四"]


def test_pptx_cells_that_span_rows_stand_in_each() -> None:
    def fill(presentation: object) -> None:
        rows = [["部门", "姓名"], ["研发", "张三"], ["", "李四"]]
        table = add_table(add_slide(presentation), rows)
        table.cell(1, 0).merge(table.cell(2, 0))

    assert texts(read(pptx_file(fill), "pptx")) == [
        "部门: 研发; 姓名: 张三",
        "部门: 研发; 姓名: 李四",
    ]


def test_pptx_charts_give_their_title_and_values() -> None:
    def fill(presentation: object) -> None:
        from pptx.chart.data import CategoryChartData
        from pptx.enum.chart import XL_CHART_TYPE

        data = CategoryChartData()
        data.categories = ["一季度", "二季度"]
        data.add_series("收入", (10, 20.5))
        kind = XL_CHART_TYPE.COLUMN_CLUSTERED
        frame = add_slide(presentation).shapes.add_chart(kind, 0, 0, 9999, 9999, data)
        frame.chart.has_title = True
        frame.chart.chart_title.text_frame.text = "收支"

    assert texts(read(pptx_file(fill), "pptx")) == [
        "收支",
        "一季度; 收入: 10",
        "二季度; 收入: 20.5",
    ]


def test_pptx_report_names_slides_without_text_and_hidden_ones() -> None:
    def fill(presentation: object) -> None:
        add_slide(presentation)
        add_slide(presentation, "藏").element.set("show", "0")

    report = read(pptx_file(fill), "pptx").report
    assert (report["pages"], report["pages_without_text"], report["hidden_slides"]) == (2, [1], [2])


def test_pptx_with_too_many_slides_names_the_limit() -> None:
    with pytest.raises(ParseError, match="2 slides, more than max_pages"):
        read(pptx_file(leave_slides), "pptx", Limits(max_pages=1))


@pytest.mark.parametrize(("suffix", "fill"), [("ppsx", "slideshow"), ("potx", "template")])
def test_pptx_saved_as_show_or_template_is_read(suffix: str, fill: str) -> None:
    data = pptx_file(leave_slides)
    changed = retyped(data, b"presentationml.presentation.main", f"presentationml.{fill}.main")
    assert "十五天\n可跨年" in texts(read(changed, suffix))


def retyped(data: bytes, old: bytes, new: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(stream, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(old, new.encode()))
    return stream.getvalue()


def test_docx_with_macros_is_read() -> None:
    import docx

    document = docx.Document()
    document.add_paragraph("年假")
    stream = io.BytesIO()
    document.save(stream)
    old = b"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main"
    new = "application/vnd.ms-word.document.macroEnabled.main"
    assert texts(read(retyped(stream.getvalue(), old, new), "docm")) == ["年假"]


# --- xlsx -----------------------------------------------------------------------------------


def xlsx_file(sheets: dict[str, list[list[object]]], change: Callable[..., object] = id) -> bytes:
    import openpyxl

    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    for name, rows in sheets.items():
        sheet = workbook.create_sheet(name)
        for row in rows:
            sheet.append(row)
    change(workbook)
    stream = io.BytesIO()
    workbook.save(stream)
    return stream.getvalue()


STAFF = [["姓名", "年龄"], ["张三", 30], ["李四", 25.5]]


def test_xlsx_rows_carry_their_columns_under_their_sheet() -> None:
    parsed = read(xlsx_file({"员工": STAFF, "空": [], "城市": [["市"], ["北京"]]}), "xlsx")
    assert places(parsed) == [
        ("员工", "员工"),
        ("员工", "姓名: 张三; 年龄: 30"),
        ("员工", "姓名: 李四; 年龄: 25.5"),
        ("城市", "城市"),
        ("城市", "市"),
        ("城市", "北京"),
    ]
    assert parsed.report == {"sheets": 2}


def test_xlsx_names_stand_below_a_title_and_go_over_two_rows() -> None:
    rows: list[list[object]] = [
        ["2024年销售报表"],
        ["制表人: 张三", None, None, "单位: 元"],
        ["地区", "收入", None, "占比"],
        [None, "2023年", "2024年", None],
        ["华北", 1, 2, 3],
        [None, 4, 5, 6],
        [],
        ["备注：未经审计"],
    ]

    def merge(workbook: object) -> None:
        for cells in ("A1:D1", "A3:A4", "B3:C3", "D3:D4", "A5:A6"):
            workbook.active.merge_cells(cells)

    assert places(read(xlsx_file({"Sheet1": rows}, merge), "xlsx")) == [
        ("2024年销售报表", "2024年销售报表"),
        ("2024年销售报表", "制表人: 张三; 单位: 元"),
        ("2024年销售报表", "地区: 华北; 收入 2023年: 1; 收入 2024年: 2; 占比: 3"),
        ("2024年销售报表", "地区: 华北; 收入 2023年: 4; 收入 2024年: 5; 占比: 6"),
        ("2024年销售报表", "备注：未经审计"),
    ]


def test_xlsx_tables_below_each_other_have_their_own_names_and_a_blank_row_ends_none() -> None:
    rows = [*STAFF, [], ["王五", 40], [], ["城市", "邮编"], ["北京", "100000"]]
    assert texts(read(xlsx_file({"Sheet1": rows}), "xlsx")) == [
        "姓名: 张三; 年龄: 30",
        "姓名: 李四; 年龄: 25.5",
        "姓名: 王五; 年龄: 40",
        "城市: 北京; 邮编: 100000",
    ]


def test_xlsx_years_are_names_of_columns() -> None:
    rows: list[list[object]] = [["项目", 2022, 2023], ["收入", 1, 2], ["成本", 3, 4]]
    assert texts(read(xlsx_file({"Sheet1": rows}), "xlsx"))[0] == "项目: 收入; 2022: 1; 2023: 2"


def test_xlsx_hidden_sheets_are_named_and_not_read() -> None:
    def hide(workbook: object) -> None:
        workbook["薪酬"].sheet_state = "hidden"

    data = xlsx_file({"员工": STAFF, "薪酬": [["张三", 99999]]}, hide)
    parsed = read(data, "xlsx")
    assert parsed.report["hidden_sheets"] == ["薪酬"]
    assert "99999" not in "".join(texts(parsed))


def test_xlsx_formulas_without_a_value_are_counted() -> None:
    parsed = read(xlsx_file({"员工": [*STAFF, ["和", "=B2+B3"]]}), "xlsx")
    assert "sheet '员工': 1 formula(s) without a value" in str(parsed.report["warnings"])


def test_xlsx_that_is_too_large_names_the_limit_and_the_place() -> None:
    with pytest.raises(ParseError, match=r"max_characters\) at row 3 of sheet '员工'"):
        read(xlsx_file({"员工": STAFF}), "xlsx", Limits(max_characters=11))
    with pytest.raises(ParseError, match="2 sheets, more than max_pages"):
        read(xlsx_file({"a": STAFF, "b": STAFF}), "xlsx", Limits(max_pages=1))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ('<row r="999999999"><c r="A999999999"><v>1</v></c></row>', "over 1,048,576 rows"),
        ('<row r="1"><c r="A1" t="inlineStr"><is><t>&j;</t></is></c></row>', "damaged"),
    ],
)
def test_xlsx_that_was_made_to_do_harm_is_refused_quickly(rows: str, reason: str) -> None:
    levels = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in pairwise("abcdefghij"))
    head = f'<!DOCTYPE x [<!ENTITY a "lol">{levels}]>' if "&j;" in rows else ""
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    content = f'{head}<worksheet xmlns="{space}"><sheetData>{rows}</sheetData></worksheet>'
    stream = io.BytesIO()
    valid = io.BytesIO(xlsx_file({"a": STAFF}))
    with zipfile.ZipFile(valid) as source, zipfile.ZipFile(stream, "w") as target:
        for name in source.namelist():
            is_sheet = name.endswith("sheet1.xml")
            target.writestr(name, content if is_sheet else source.read(name))
    with pytest.raises(ParseError, match=reason):
        read(stream.getvalue(), "xlsx")


@pytest.mark.parametrize(
    ("value", "number_format", "text"),
    [
        (30.0, "General", "30"),
        (0.1 + 0.2, "General", "0.3"),
        (13800138000, "General", "13800138000"),
        (0.125, "0.0%", "12.5%"),
        (1234.5, '"¥"#,##0.00', "¥1,234.50"),
        (1234.5, "[$￥-804]#,##0.00;[Red]-[$￥-804]#,##0.00", "￥1,234.50"),
        (-7.25, "#,##0.00_);(#,##0.00)", "-7.25"),
        (7, "00000", "00007"),
        (1.5, "0.###", "1.5"),
        (3, '0"件"', "3件"),
        (True, "General", "TRUE"),
        (date(2024, 3, 1), 'yyyy"年"m"月"d"日"', "2024年3月1日"),
        (datetime(2024, 3, 1), "yyyy-mm-dd", "2024-03-01"),
        (datetime(2024, 3, 1, 8, 30), "yyyy/m/d h:mm", "2024-03-01 08:30"),
        (time(8, 5, 9), "h:mm:ss", "08:05:09"),
        (timedelta(hours=30, minutes=5), "[h]:mm", "30:05:00"),
        (None, "General", ""),
    ],
)
def test_a_cell_reads_as_a_person_sees_it(value: object, number_format: str, text: str) -> None:
    assert shown(value, number_format) == text


# --- what is none ---------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["pptx", "xlsx"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no text"),
        (b"PK\x03\x04 cut", "truncated or damaged zip"),
        (b"not a zip", "truncated or damaged zip"),
        (OLE + "EncryptedPackage".encode("utf-16-le"), "encrypted: needs a password"),
        (OLE, "old .* file with the wrong suffix"),
    ],
)
def test_an_office_file_that_is_none_says_why(suffix: str, data: bytes, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        read(data, suffix)


@pytest.mark.parametrize("suffix", ["pptx", "xlsx"])
def test_an_office_file_without_text_or_cut_or_too_large_when_unpacked_says_so(suffix: str) -> None:
    blank = pptx_file(add_slide) if suffix == "pptx" else xlsx_file({"Sheet1": []})
    full = pptx_file(leave_slides) if suffix == "pptx" else xlsx_file({"员工": STAFF})
    with pytest.raises(ParseError, match="no text"):
        read(blank, suffix)
    with pytest.raises(ParseError, match="truncated or damaged zip"):
        read(full[: len(full) // 2], suffix)
    with pytest.raises(ParseError, match="max_unpacked_bytes"):
        read(full, suffix, Limits(max_unpacked_bytes=1000))
    with pytest.raises(ParseError, match=r"without .* content in it"):
        read(xlsx_file({"a": STAFF}) if suffix == "pptx" else pptx_file(leave_slides), suffix)


VALID = {"pptx": pptx_file(leave_slides), "xlsx": xlsx_file({"员工": STAFF, "b": STAFF})}


# --- old formats ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "better"),
    [("doc", "docx"), ("wps", "docx"), ("rtf", "docx"), ("odt", "docx"), ("xls", "xlsx"),
     ("et", "xlsx"), ("ods", "xlsx"), ("ppt", "pptx"), ("dps", "pptx"), ("odp", "pptx")],
)  # fmt: skip
def test_an_old_file_without_libreoffice_says_what_to_do(
    suffix: str, better: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office, "soffice", lambda: None)
    with pytest.raises(ParseError, match=f"install it, or save it as .{better}"):
        read(OLE, suffix)


def test_what_is_only_called_old_needs_no_libreoffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "soffice", lambda: None)
    page = "<table><tr><th>姓名<th>年龄<tr><td>张三<td>三十</table>".encode()
    assert texts(read(page, "xls")) == ["姓名: 张三; 年龄: 三十"]
    assert texts(read("姓名\t年龄\n张三\t三十\n".encode("gbk"), "xls")) == ["张三\t三十"]
    assert texts(read(xlsx_file({"员工": STAFF}), "xls"))[1] == "姓名: 张三; 年龄: 30"
    with pytest.raises(ParseError, match="encrypted: needs a password"):
        read(OLE + "EncryptedPackage".encode("utf-16-le"), "doc")


needs_office = pytest.mark.skipif(office.soffice() is None, reason="LibreOffice is not installed")


@needs_office
def test_rtf_is_read_through_libreoffice() -> None:
    parsed = read(rb"{\rtf1\ansi\ansicpg936 \'c4\'ea\'bc\'d9 fifteen days\par}", "rtf")
    assert texts(parsed) == ["年假 fifteen days"]
    assert parsed.report["converted_by"] == "LibreOffice"


@needs_office
@pytest.mark.parametrize(
    ("new", "old", "text"),
    [("pptx", "ppt", "姓名: 张三; 天数: 15"), ("xlsx", "xls", "姓名: 张三; 年龄: 30"),
     ("xlsx", "ods", "姓名: 张三; 年龄: 30"), ("pptx", "odp", "十五天\n可跨年")],
)  # fmt: skip
def test_old_and_open_documents_are_read_like_new_ones(new: str, old: str, text: str) -> None:
    saved = office.convert(VALID[new], new, old, Limits())
    parsed = read(saved, old)
    assert text in texts(parsed)
    assert parsed.report["converted_by"] == "LibreOffice"


@needs_office
def test_what_libreoffice_cannot_read_is_refused() -> None:
    with pytest.raises(ParseError, match="could not convert it; it is damaged or needs"):
        read(OLE + b"nothing" * 100, "ppt")


@needs_office
def test_libreoffice_has_a_time_limit_of_its_own() -> None:
    with pytest.raises(ParseError, match=r"LibreOffice took longer than 0.08 s"):
        read(rb"{\rtf1 x}", "rtf", Limits(timeout_seconds=0.1))


# --- damaged files --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(VALID)), st.data())
def test_a_damaged_office_file_is_read_or_refused(suffix: str, data: st.DataObject) -> None:
    content = bytearray(VALID[suffix])
    for _ in range(data.draw(st.integers(0, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (bytes(content), bytes(content[:cut])):
        with suppress(ParseError):
            assert read(damaged, suffix).blocks


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(VALID)), st.data())
def test_a_zip_with_damaged_parts_is_read_or_refused(suffix: str, data: st.DataObject) -> None:
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(VALID[suffix])) as source,
        zipfile.ZipFile(stream, "w") as target,
    ):
        names = [name for name in source.namelist() if name.endswith((".xml", ".rels"))]
        wrong = data.draw(st.sampled_from(names))
        for name in source.namelist():
            content = source.read(name)
            if name == wrong:
                start = data.draw(st.integers(0, len(content)))
                content = content[:start] + content[data.draw(st.integers(start, len(content))) :]
            target.writestr(name, content)
    with suppress(ParseError):
        assert read(stream.getvalue(), suffix).blocks
