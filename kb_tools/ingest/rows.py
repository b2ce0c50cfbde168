"""Tables as text: one block a row, every value behind the name of its column.

"姓名: 佐藤太郎; 年龄: 30" is found by its column names and stays true when read alone. A narrow
table of short values is shorter and as clear as it came, under a header line in every segment.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from kb_tools.ingest.parsed import Block, BlockKind

_LONGEST_NAME = 60
_MOST_PLAIN_COLUMNS = 5
_LONGEST_LINE = 200
_LOOKED_AT = 200
_WIDEST_FORM = 8
# How the labels of forms end.
_LABEL = re.compile(
    r"[^\d]{0,8}(?:姓名|名称|性别|年龄|出生年月|民族|籍贯|学历|学位|专业|电话|手机|传真|邮箱|邮件|邮编|"
    r"地址|住址|部门|单位|公司|职务|职位|职称|岗位|日期|时间|编号|号码|工号|证号|账号|帐号|税号|开户行|"
    r"金额|负责人|联系人|经办人|审批人|法定代表人|备注|签名|签字|"
    r"name|gender|sex|age|phone|telephone|mobile|fax|e-?mail|address|department|company|position|"
    r"title|date|number|no\.?|id|remarks?|signature)[:：]?",
    re.I,
)
_NUMBER_OR_DATE = re.compile(r"[\s\d.,:/%+\-()（）¥￥$€°年月日]+|https?://\S+|\S+@\S+\.\S+")


def row_blocks(
    rows: Sequence[Sequence[str]],
    *,
    heading: str = "",
    page: int | None = None,
    has_header: bool | None = None,
) -> Iterator[Block]:
    """Yield a block for each row that is not blank; rows may differ in length.

    `has_header` None: the first row is looked at. A table of one row or column is just text.
    """
    rows = [row for row in rows if any(value.strip() for value in row)]
    if not rows:
        return
    if has_header is None:
        for title in title_rows(rows):
            yield Block(title, heading, page)
        rows = rows[len(title_rows(rows)) :]
        if is_form(rows):
            yield from (form_row(row, heading=heading, page=page) for row in rows)
            return
        has_header = looks_like_header(rows)
    names = column_names(rows[:1]) if has_header and len(rows) > 1 else []
    for row in rows[1:] if names else rows:
        yield row_block(names, row, heading=heading, page=page)


def column_names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a name for each column, "2024年 收入" where the names go over several rows.

    A name that spans columns stands in each of them.
    """
    width = max(map(len, rows))
    columns = ([row[at] for row in rows if at < len(row) and row[at]] for at in range(width))
    return [" ".join(" ".join(dict.fromkeys(parts)).split()) for parts in columns]


def title_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return what stands alone in the rows above a table's names: its title, its unit."""
    filled = [[value.strip() for value in row if value.strip()] for row in rows[:_LOOKED_AT]]
    if 2 * sum(len(values) > 1 for values in filled) <= len(filled):
        return []
    return [values[0] for values in takewhile(lambda values: len(values) == 1, filled)]


def is_form(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether each row is of labels with a value behind each: "姓名 | 张三 | 电话 | 138"."""
    width = max(map(len, rows), default=0)
    if len(rows) < 2 or width % 2 or width > _WIDEST_FORM:
        return False
    labels = [[v for v in row[::2] if v.strip()] for row in rows]
    known = [
        [label for label in some if _LABEL.fullmatch("".join(label.split()))] for some in labels
    ]
    below = sum(map(len, labels[1:]))
    return bool(labels[0]) and known[0] == labels[0] and 2 * sum(map(len, known[1:])) > below


def form_row(row: Sequence[str], *, heading: str = "", page: int | None = None) -> Block:
    """Return a row of a form as a block."""
    names = [" ".join(label.split()).rstrip(":：") for label in row[::2]]
    return row_block(names, [*row[1::2], *[""] * (len(row) % 2)], heading=heading, page=page)


def line_blocks(rows: Sequence[Sequence[str]], delimiter: str) -> list[Block] | None:
    """Return the rows as they came, under their header line, if the table is easily read so.

    None for a table without header, a form, many columns, or long or multi-line values.
    """
    rows = [row for row in rows if any(value.strip() for value in row)]
    if not rows or len(rows[0]) > _MOST_PLAIN_COLUMNS or not looks_like_header(rows):
        return None
    if any("\n" in value or len(value) > _LONGEST_NAME for row in rows for value in row):
        return None
    if is_form(rows):
        return None
    above, *lines = (_line(row, delimiter) for row in rows)
    return [Block(line, kind=BlockKind.TABLE, above=above) for line in lines]


def _line(row: Sequence[str], delimiter: str) -> str:
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, lineterminator="").writerow(row)
    return line.getvalue()


def row_block(
    columns: Sequence[str], values: Sequence[str], *, heading: str = "", page: int | None = None
) -> Block:
    """Return one row as a block; blank values are left out, values without a column stand alone."""
    named = tuple(columns)[: len(values)]
    names = [*named, *[""] * (len(values) - len(named))]
    cells = [
        f"{name}: {value.strip()}" if name else value.strip()
        for name, value in zip(names, values, strict=True)
        if value.strip()
    ]
    one_line = sum(map(len, cells)) <= _LONGEST_LINE and not any("\n" in cell for cell in cells)
    text = ("; " if one_line else "\n").join(cells)
    return Block(text, heading, page, BlockKind.TABLE, named)


def looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first row names the columns: short, different words, no numbers or dates."""
    first = [value.strip() for value in rows[0]]
    filled = [value for value in first if value]
    if len(rows) < 2 or len(first) < 2 or 2 * len(filled) < len(first):
        return False
    if len(set(filled)) < len(filled):
        return False
    if any(len(v) > _LONGEST_NAME or _NUMBER_OR_DATE.fullmatch(v) for v in filled):
        return False
    below = rows[1:50]
    return not any(
        value and any(len(row) > at and row[at].strip() == value for row in below)
        for at, value in enumerate(first)
    )
