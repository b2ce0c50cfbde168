"""XML, feeds and mail: what survives into blocks, and what is refused."""

import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from email.message import EmailMessage

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb_tools.ingest.mail import Mail, parsed_mail
from kb_tools.ingest.parsed import Limits, Parsed, ParseError
from kb_tools.ingest.parsers import format_of
from kb_tools.ingest.parsers.__main__ import parse

TEXT = "员工每年享有十五天带薪年假，可以跨年使用。"
FEED = """<rss version="2.0"><channel><title>公司新闻</title><language>zh</language>
<image><url>http://a/logo.png</url></image>
<item><title>年假</title><link>http://a/1</link><guid>1</guid>
<description><![CDATA[<p>十五天，<b>可跨</b>年。</p>]]></description><author>张三</author></item>
<item><title>差旅</title><description>实报实销。</description></item></channel></rss>"""


def read(data: bytes | str, suffix: str, limits: Limits | None = None) -> Parsed:
    content = data.encode() if isinstance(data, str) else data
    return parse(content, format_of(suffix), limits or Limits())


def texts(parsed: Parsed) -> list[str]:
    return [block.text for block in parsed.blocks]


def places(parsed: Parsed) -> list[tuple[str, str]]:
    return [(block.heading, block.text) for block in parsed.blocks]


# --- xml ------------------------------------------------------------------------------------


def test_a_feed_is_articles_under_their_titles() -> None:
    parsed = read(FEED, "rss")
    assert (parsed.title, parsed.metadata) == ("公司新闻", {"language": "zh"})
    assert places(parsed) == [
        ("公司新闻", "公司新闻"),
        ("公司新闻", "language: zh"),
        ("公司新闻 › 年假", "年假"),
        ("公司新闻 › 年假", "十五天，可跨年。"),
        ("公司新闻 › 年假", "link: http://a/1; author: 张三"),
        ("公司新闻 › 差旅", "差旅"),
        ("公司新闻 › 差旅", "实报实销。"),
    ]


def test_records_are_rows_with_their_attributes_and_small_parts() -> None:
    text = (
        '<员工表><员工 工号="1"><姓名>张三</姓名><地址><市>北京</市></地址></员工>'
        '<员工 工号="2"><姓名>李四</姓名></员工></员工表>'
    )
    assert places(read(text, "xml")) == [
        ("员工表 › 员工", "工号: 1; 姓名: 张三; 地址.市: 北京"),
        ("员工表 › 员工", "工号: 2; 姓名: 李四"),
    ]


def test_a_book_has_chapters_and_paragraphs() -> None:
    chapter = "<chapter><title>年假</title><para>十<b>五</b>天</para></chapter>"
    parsed = read(f"<book><title>手册</title>{chapter}</book>", "xml")
    assert places(parsed)[1:] == [("手册 › 年假", "年假"), ("手册 › 年假", "十五天")]


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [("gb2312", "gbk"), ("utf-8", "gbk"), ("gbk", "utf-8"), ("utf-16", "utf-16"), ("x", "gbk")],
)
def test_xml_with_a_wrong_declaration_is_read(declared: str, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{declared}"?><a><p>{TEXT}</p></a>'
    assert texts(read(text.encode(encoding), "xml")) == [TEXT]


def test_entities_of_the_file_are_read_and_those_from_outside_are_refused() -> None:
    own = '<!DOCTYPE a [<!ENTITY c "某公司">]><a><b>&c;年假</b></a>'
    assert texts(read(own, "xml")) == ["b: 某公司年假"]
    for declared in ('<!ENTITY c SYSTEM "/etc/passwd">', '<!ENTITY % p SYSTEM "http://a/">%p;'):
        with pytest.raises(ParseError, match="refused: its entities"):
            read(f"<!DOCTYPE a [{declared}]><a>&c;</a>", "xml")


@pytest.mark.parametrize("wide", [True, False])
def test_entities_that_blow_up_are_refused_at_once(wide: bool) -> None:
    if wide:
        text = f'<!DOCTYPE a [<!ENTITY x "{"A" * 100_000}">]><a>{"&x;" * 5000}</a>'
    else:
        levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
        text = f'<!DOCTYPE a [<!ENTITY l0 "lol">{levels}]><a>&l11;</a>'
    began = time.monotonic()
    with pytest.raises(ParseError, match="refused: its entities"):
        read(text, "xml")
    assert time.monotonic() - began < 5


def test_damaged_xml_is_read_as_far_as_it_goes_and_says_so() -> None:
    parsed = read("<a><p>年假十五天", "xml")
    assert texts(parsed) == ["年假十五天"]
    assert "damaged XML" in str(parsed.report["warnings"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [("", "no text"), ("<a/>", "no text"), ("words", "not a readable XML"), ("<a>" * 9999, "XML")],
)
def test_xml_that_is_none_says_why(data: str, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        read(data, "xml")


def test_a_page_called_xml_is_a_page() -> None:
    assert places(read("<html><body><h1>年假</h1><p>十五天</p></body></html>", "xml"))[1] == (
        "年假",
        "十五天",
    )


# --- eml ------------------------------------------------------------------------------------


def message(body: str = "年假十五天。", charset: str = "utf-8") -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = "年假通知"
    mail["From"] = "张三 <zhang@a.cn>"
    mail["To"] = "全体员工 <all@a.cn>"
    mail["Date"] = "Mon, 4 Mar 2024 08:30:00 +0800"
    mail.set_content(body, charset=charset)
    return mail


def test_mail_says_who_wrote_what_when_to_whom_and_names_attachments() -> None:
    mail = message("各位:\n\n年假十五天。", "gb2312")
    mail.add_attachment(b"x", maintype="application", subtype="pdf", filename="制度.pdf")
    parsed = read(mail.as_bytes(), "eml")
    persons = "发件人: 张三 <zhang@a.cn>; 收件人: 全体员工 <all@a.cn>; 日期: 2024-03-04 08:30"
    assert texts(parsed) == ["年假通知", f"{persons}; 附件: 制度.pdf", "各位:", "年假十五天。"]
    assert {block.heading for block in parsed.blocks} == {parsed.title} == {"年假通知"}
    assert parsed.report["attachments"] == ["制度.pdf"]


def test_mail_in_english_has_english_labels() -> None:
    data = b"Subject: Leave\nFrom: a@b.com\n\nFifteen days."
    assert texts(read(data, "eml")) == ["Leave", "From: a@b.com", "Fifteen days."]


def test_mail_whose_plain_part_says_nothing_gives_its_page() -> None:
    mail = message("请用网页查看")
    table = "<table><tr><th>级<th>天<tr><td>一<td>十五</table>"
    mail.add_alternative(f"<p>{TEXT * 3}</p>{table}", subtype="html")
    assert texts(read(mail.as_bytes(), "eml"))[2:] == [TEXT * 3, "级: 一; 天: 十五"]


def test_mail_inside_a_mail_stands_under_it() -> None:
    outer = message("见下")
    outer.add_attachment(message())
    assert places(read(outer.as_bytes(), "eml"))[-1] == ("年假通知 › 年假通知", "年假十五天。")


@pytest.mark.parametrize("charset", [None, "utf-8", "gb2312", "x-unknown"])
def test_mail_with_bytes_of_an_undeclared_encoding_is_read(charset: str | None) -> None:
    kind = f"Content-Type: text/plain; charset={charset}\n" if charset else ""
    data = f"Subject: 年假通知\nFrom: 张三 <a@b.cn>\n{kind}\n{TEXT}".encode("gbk")
    assert texts(read(data, "eml")) == ["年假通知", "发件人: 张三 <a@b.cn>", TEXT]


def test_mail_headers_in_pieces_are_joined() -> None:
    data = "Subject: =?gb2312?B?1tA=?=\n =?gb2312?B?ufo=?= =?utf-8?Q?=E5=B9=B4?=\n\nx"
    assert read(data, "eml").title == "中国年"


@pytest.mark.parametrize(
    ("data", "reason"),
    [("", "no text"), ("just words", "no header of a mail"), ("From: a@b.cn\n\n", "no text")],
)
def test_mail_that_is_none_says_why(data: str, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        read(data, "eml")


# --- msg ------------------------------------------------------------------------------------


def ole_file(streams: Sequence[tuple[str, bytes]]) -> bytes:
    """Return an OLE file with these streams, all in its root; nothing of ours writes such files."""
    entries = [_entry("Root Entry", 5, 1, 0xFFFFFFFE, 0)]
    sectors: list[bytes] = []
    table: list[int] = []
    for at, (name, data) in enumerate(streams, 1):
        padded = data.ljust(4096, b"\0")  # shorter ones lie elsewhere
        count = -(-len(padded) // 512)
        right = at + 1 if at < len(streams) else 0xFFFFFFFF
        entries.append(_entry(name, 2, 0xFFFFFFFF, len(sectors), len(padded), right))
        table += [len(sectors) + n + 1 for n in range(count - 1)] + [0xFFFFFFFE]
        sectors += [padded[n * 512 : n * 512 + 512].ljust(512, b"\0") for n in range(count)]
    first = len(sectors)
    folder = b"".join(entries)
    folder += _entry("", 0, 0xFFFFFFFF, 0, 0) * (-len(entries) % 4)
    parts = [folder[n : n + 512] for n in range(0, len(folder), 512)]
    table += [first + n + 1 for n in range(len(parts) - 1)] + [0xFFFFFFFE, 0xFFFFFFFD]
    table += [0xFFFFFFFF] * (-len(table) % 128)
    assert len(table) == 128
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    head += struct.pack("<HHHHH6xIIIIIIIIII", 0x3E, 3, 0xFFFE, 9, 6, 0, 1, first, 0, 4096,
                        0xFFFFFFFE, 0, 0xFFFFFFFE, 0, first + len(parts))  # fmt: skip
    head += b"\xff" * (512 - len(head))
    return head + b"".join(sectors) + b"".join(parts) + struct.pack("<128I", *table)


def _entry(
    name: str, kind: int, child: int, start: int, size: int, right: int = 0xFFFFFFFF
) -> bytes:
    encoded = name.encode("utf-16-le") + b"\0\0" if name else b""
    return (
        encoded.ljust(64, b"\0")
        + struct.pack("<HBBIII", len(encoded), kind, 1, 0xFFFFFFFF, right, child)
        + bytes(36)
        + struct.pack("<IQ", start, size)
    )


def msg_file(*, code_page: int, encoding: str, kind: str = "001E") -> bytes:
    number = struct.pack("<HHIQ", 3, 0x3FFD, 0, code_page)
    return ole_file([
        ("__properties_version1.0", bytes(32) + number),
        (f"__substg1.0_0037{kind}", "年假通知".encode(encoding)),
        (f"__substg1.0_0C1A{kind}", "張三".encode(encoding)),
        (f"__substg1.0_1000{kind}", "員工每年享有十五天帶薪年假。".encode(encoding)),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("code_page", "encoding", "kind"),
    [
        (950, "big5", "001E"),
        (936, "gbk", "001E"),
        (1252, "big5", "001E"),
        (950, "utf-16-le", "001F"),
    ],
)
def test_msg_is_read_in_its_code_page_or_in_another(
    code_page: int, encoding: str, kind: str
) -> None:
    pytest.importorskip("olefile")
    parsed = read(msg_file(code_page=code_page, encoding=encoding, kind=kind), "msg")
    assert texts(parsed) == ["年假通知", "发件人: 張三", "員工每年享有十五天帶薪年假。"]


def test_msg_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "olefile", None)
    with pytest.raises(ParseError, match=r'pip install "kb-tools\[msg\]"'):
        read(b"x", "msg")


@pytest.mark.parametrize("data", [b"x", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"x" * 5000])
def test_msg_that_is_none_says_so(data: bytes) -> None:
    pytest.importorskip("olefile")
    with pytest.raises(ParseError, match="not a readable msg"):
        read(data, "msg")


def test_a_mail_without_subject_and_text_is_no_text() -> None:
    with pytest.raises(ParseError, match="no text"):
        parsed_mail(Mail(sender="张三", to="李四"), Limits())


# --- damaged files --------------------------------------------------------------------------

VALID = {
    "xml": FEED.encode("gbk"),
    "eml": message().as_bytes(),
    "msg": msg_file(code_page=950, encoding="big5"),
}


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
