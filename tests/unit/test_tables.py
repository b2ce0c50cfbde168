"""Tables that are not simple grids: every row still carries the right names, and none is lost."""

import io
from collections.abc import Callable, Sequence

import pytest

from kb_tools.ingest.parsed import Limits
from kb_tools.ingest.parsers import format_of
from kb_tools.ingest.parsers.__main__ import parse

TITLE_ABOVE = [
    ["2024年收费标准", "", ""],
    ["项目", "单价", "备注"],
    ["水费", "3.5", "每吨"],
    ["电费", "0.6", "每度"],
]
FORM = [["姓名", "张三", "性别", "男"], ["联系电话", "138", "部门", "研发"]]
FORM_TEXTS = ["姓名: 张三; 性别: 男", "联系电话: 138; 部门: 研发"]
TWO_ROWS_OF_NAMES = [
    "部门: 销售; 2023 收入: 10; 2023 支出: 5",
    "部门: 研发; 2023 收入: 1; 2023 支出: 9",
]


def texts(data: bytes | str, suffix: str) -> list[str]:
    content = data.encode() if isinstance(data, str) else data
    return [block.text for block in parse(content, format_of(suffix), Limits()).blocks]


def html_file(rows: Sequence[Sequence[str]]) -> bytes:
    cells = ("".join(f"<td>{value}</td>" for value in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>".encode()


def docx_file(rows: Sequence[Sequence[str]], change: Callable[..., object] = id) -> bytes:
    import docx

    document = docx.Document()
    table = document.add_table(rows=len(rows), cols=len(rows[0]))
    for cells, values in zip(table.rows, rows, strict=True):
        for cell, value in zip(cells.cells, values, strict=True):
            cell.text = value
    change(table)
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def pptx_file(rows: Sequence[Sequence[str]], change: Callable[..., object] = id) -> bytes:
    from pptx import Presentation
    from pptx.util import Inches

    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[6])
    size = (Inches(1), Inches(1), Inches(6), Inches(3))
    table = slide.shapes.add_table(len(rows), len(rows[0]), *size).table
    for at, row in enumerate(rows):
        for column, value in enumerate(row):
            table.cell(at, column).text = value
    change(table)
    stream = io.BytesIO()
    presentation.save(stream)
    return stream.getvalue()


def xlsx_file(rows: Sequence[Sequence[object]]) -> bytes:
    import openpyxl

    workbook = openpyxl.Workbook()
    for row in rows:
        workbook.active.append(list(row))
    stream = io.BytesIO()
    workbook.save(stream)
    return stream.getvalue()


def csv_file(rows: Sequence[Sequence[str]]) -> bytes:
    return "\n".join(",".join(row) for row in rows).encode()


def pdf_file(pages: Sequence[Sequence[tuple[int, int, str]]], title: str = "") -> bytes:
    """A PDF with texts at places (x, y) of its pages."""
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfgen.canvas import Canvas

    pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))
    stream = io.BytesIO()
    canvas = Canvas(stream, pagesize=(600, 800))
    canvas.setTitle(title)
    for page in pages:
        canvas.setFont("STSong-Light", 10)
        for x, y, text in page:
            canvas.drawString(x, y, text)
        canvas.showPage()
    canvas.save()
    return stream.getvalue()


@pytest.mark.parametrize(("make", "suffix"), [(html_file, "html"), (docx_file, "docx")])
def test_a_title_in_the_table_is_not_taken_for_its_names(
    make: Callable[..., bytes], suffix: str
) -> None:
    assert texts(make(TITLE_ABOVE), suffix) == [
        "2024年收费标准",
        "项目: 水费; 单价: 3.5; 备注: 每吨",
        "项目: 电费; 单价: 0.6; 备注: 每度",
    ]


def test_csv_names_below_a_title_stand_above_each_row() -> None:
    data = csv_file([*TITLE_ABOVE[:1], ["", "", ""], *TITLE_ABOVE[1:]])
    parsed = parse(data, format_of("csv"), Limits())
    assert [block.text for block in parsed.blocks] == [
        "2024年收费标准",
        "水费,3.5,每吨",
        "电费,0.6,每度",
    ]
    assert {block.above for block in parsed.blocks[1:]} == {"项目,单价,备注"}


@pytest.mark.parametrize(
    ("make", "suffix"),
    [(html_file, "html"), (docx_file, "docx"), (xlsx_file, "xlsx"), (csv_file, "csv")],
)
def test_a_form_has_its_labels_beside_the_values(make: Callable[..., bytes], suffix: str) -> None:
    assert texts(make(FORM), suffix) == FORM_TEXTS


def test_a_table_of_people_is_no_form() -> None:
    rows = [["姓名", "电话"], ["张三", "138"], ["李四", "139"]]
    assert texts(html_file(rows), "html") == ["姓名: 张三; 电话: 138", "姓名: 李四; 电话: 139"]


# Cells over rows and columns


def test_html_cells_over_rows_and_columns_keep_the_others_in_their_place() -> None:
    page = """<table><thead><tr><th rowspan=2>班级<th colspan=2>上午<th>下午</tr>
      <tr><th>一<th>二<th>三</tr></thead><tbody><tr><td rowspan=2>一班<td>语文<td>数学<td>体育</tr>
      <tr><td>英语<td colspan=2>物理</tr></tbody></table>"""
    assert texts(page, "html") == [
        "班级: 一班; 上午 一: 语文; 上午 二: 数学; 下午 三: 体育",
        "班级: 一班; 上午 一: 英语; 上午 二: 物理",
    ]


def test_html_names_over_two_rows_are_found_without_marks() -> None:
    page = """<table><tr><td rowspan=2>部门<td colspan=2>2023</tr><tr><td>收入<td>支出</tr>
      <tr><td>销售<td>10<td>5</tr><tr><td>研发<td>1<td>9</tr></table>"""
    assert texts(page, "html") == TWO_ROWS_OF_NAMES


def test_html_names_beside_the_values_are_names() -> None:
    page = "<table><tr><th>甲<td>1<th>乙<td>2</tr><tr><th>丙<td colspan=3>3</tr></table>"
    assert texts(page, "html") == ["甲: 1; 乙: 2", "丙: 3"]


@pytest.mark.parametrize("span", ["0", "-1", "x", "99999999"])
def test_html_spans_that_no_table_has_do_no_harm(span: str) -> None:
    page = (
        f"<table><tr><td rowspan={span} colspan={span}>甲<td>乙</tr><tr><td>丙<td>丁</tr></table>"
    )
    assert {"甲", "乙", "丙", "丁"} <= set("".join(texts(page, "html")))


def merged(table: object) -> None:
    """Let the first cell span two rows, and the second two columns."""
    table.cell(0, 0).merge(table.cell(1, 0))
    table.cell(0, 1).merge(table.cell(0, 2))


@pytest.mark.parametrize(("make", "suffix"), [(docx_file, "docx"), (pptx_file, "pptx")])
def test_names_over_two_rows_are_joined(make: Callable[..., bytes], suffix: str) -> None:
    rows = [
        ["部门", "2023", ""], ["", "收入", "支出"], ["销售", "10", "5"], ["研发", "1", "9"],
    ]  # fmt: skip
    assert texts(make(rows, merged), suffix) == TWO_ROWS_OF_NAMES


# Workbooks


def test_xlsx_remark_below_a_table_is_no_row_of_it() -> None:
    rows = [
        ["", "城市", "人口"],
        ["", "北京", 2189],
        ["", "上海", 2487],
        [],
        ["", "说明：截至年底。"],
    ]
    assert texts(xlsx_file(rows), "xlsx")[-1] == "说明：截至年底。"


def test_xlsx_long_numbers_keep_their_digits() -> None:
    rows = [["卡号", "姓名"], [6222021234567890000.0, "张三"], [1.5e300, "李四"]]
    assert texts(xlsx_file(rows), "xlsx") == [
        "卡号: 6222021234567890000; 姓名: 张三",
        "卡号: 1.5e+300; 姓名: 李四",
    ]


# Tables of a PDF over pages


def pdf_table(page: int, *, rows: int = 3, names: bool = True) -> list[tuple[int, int, str]]:
    """A part of a table whose rows differ from page to page in their numbers only."""
    numbers = range(page * 40, page * 40 + rows)
    lines = [["编号", "城市"]] * names + [[f"第{n}号", f"城市{n}"] for n in numbers]
    return [
        (50 + 200 * column, 700 - 14 * at, text)
        for at, line in enumerate(lines)
        for column, text in enumerate(line)
    ]


@pytest.mark.parametrize("repeated", [True, False])
def test_pdf_rows_on_every_page_carry_the_names_and_none_is_lost(repeated: bool) -> None:
    pages = [pdf_table(page, names=repeated or not page) for page in range(5)]
    assert texts(pdf_file(pages), "pdf") == [
        f"编号: 第{number}号; 城市: 城市{number}"
        for page in range(5)
        for number in range(page * 40, page * 40 + 3)
    ]


def test_pdf_page_numbers_of_any_form_stand_once_or_never() -> None:
    pages = [
        [
            (50, 600, f"这是{name}页的正文。"),
            (50, 20, f"第 {at} 页 共 5 页"),
            (300, 780, f"- {at} -"),
        ]
        for at, name in enumerate("甲乙丙丁戊", 3)
    ]
    found = texts(pdf_file(pages), "pdf")
    assert sum("共" in text for text in found) == 1
    assert not any(text.startswith("-") for text in found)
    assert sum("正文" in text for text in found) == 5


def test_pdf_paragraph_does_not_go_on_over_a_page_without_text() -> None:
    line = "员工每年享有十五天" * 6
    assert texts(pdf_file([[(50, 700, line)], [], [(50, 700, "另一段。")]]), "pdf") == [
        line,
        "另一段。",
    ]


@pytest.mark.parametrize(
    ("title", "kept"),
    [
        ("untitled", ""), ("(anonymous)", ""), ("Microsoft Word - 新建.docx", ""),
        ("无标题文档", ""), ("PowerPoint 演示文稿", ""), ("Untitled Ventures", "Untitled Ventures"),
        ("员工手册", "员工手册"),
    ],
)  # fmt: skip
def test_pdf_title_that_a_program_made_up_is_none(title: str, kept: str) -> None:
    parsed = parse(pdf_file([[(50, 700, "正文")]], title), format_of("pdf"), Limits())
    assert parsed.title == kept
