"""Writes the Word and PDF documents of the example handbook.

The other documents in `examples/handbook/` are plain text and are edited directly; these three are
binary, so their text lives here:

- 差旅报销规定.docx: Chinese, headings, a table of hotel limits per city
- benefits.docx: English, headings, lists and tables
- 信息安全须知.pdf: Chinese, several pages, with a text layer

Run `python examples/make_handbook.py`. It needs python-docx and reportlab, both in the `dev`
dependency group, and no font file: the PDF uses a Chinese font that every viewer knows. Dates and
ids are fixed, so a second run with the same library versions writes the same bytes.

The company, its rules and its products are invented.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import docx
from docx.document import Document as WordDocument
from docx.oxml.ns import qn
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable, Paragraph, SimpleDocTemplate, Table, TableStyle

HANDBOOK = Path(__file__).parent / "handbook"
AUTHOR = "Lanxu Sensorics"
EDITION_DATE = datetime(2025, 1, 1)
ZIP_DATE = (2025, 1, 1, 0, 0, 0)
PDF_FONT = "STSong-Light"
WORD_CHINESE_FONT = "SimSun"

# The markup of the three texts: "# " title, "## " heading, "- " list item, "| " table row (the
# first row is the header), anything else a paragraph that ends at an empty line.

TRAVEL = """
# 差旅报销规定

文件编号 FIN-05 · 第 5 版 · 2025 年 1 月 1 日起执行 · 归口部门：财务部

## 1 适用范围

本规定适用于岚序传感（Lanxu Sensorics）全部四个办公地点的员工因公出差。
居家办公的家具和网络费用不属于差旅，按《Remote work policy》执行；
培训课程的学费按各地福利规定执行，但参加培训的交通和住宿按本规定报销。

## 2 出差申请

出差前须在报销系统“青账”中提交申请。境内出差提前 3 个工作日，由直属主管批准；
跨国出差提前 14 个自然日，由直属主管和部门负责人共同批准。客户停产级故障的紧急出差可以先出发，
在 24 小时内补交申请。未经批准的出差，费用由本人承担。

## 3 住宿限额

下表为每人每晚的最高报销金额，含税和早餐。两名同性别员工同住一间的，限额提高 30%。

| 城市 | 每晚限额 | 说明 |
| 北京、上海 | 650 元 | 无 |
| 深圳、广州 | 580 元 | 无 |
| 苏州 | 420 元 | 优先入住协议酒店“湖东公寓” |
| 成都 | 450 元 | 无 |
| 中国其他城市 | 380 元 | 县级市同此标准 |
| 莱比锡 | 115 欧元 | 展会期间可上浮 |
| 埃因霍温 | 130 欧元 | 无 |
| 慕尼黑、巴黎 | 165 欧元 | 无 |
| 欧洲其他城市 | 110 欧元 | 瑞士按 190 欧元 |

展会或大型活动期间，经部门负责人事先书面同意，限额最多上浮 40%。
超出限额的部分由员工自付，不能用餐费余额抵扣。

## 4 交通

- 火车：全程 5 小时以内乘坐二等座，超过 5 小时可乘坐一等座；夜间卧铺不限时长。
- 飞机：一律经济舱。单程飞行时间超过 9 小时，且抵达后 12 小时内须开始工作的，可申请超级经济舱。
公务舱只限总裁批准的个案。
- 机票应至少提前 7 天预订；退改签费用因公造成的可报销，因私造成的自付。
- 市内交通：优先公共交通。22:00 至次日 6:00，或携带 10 公斤以上设备时，可乘坐出租车。
- 私车公用：境内每公里 1.2 元，欧洲每公里 0.30 欧元，路桥费另报，油费不再单独报销。

## 5 餐费补助

餐费按天包干，不需要票据：中国境内每天 120 元，欧洲每天 45 欧元，其他国家每天 50 美元。
出发日和返回日按一半计算。客户或展会主办方已提供午餐或晚餐的，每餐扣除当日标准的 40%。
业务招待费须单独申请，人均不超过 300 元，当天参加招待的员工不再领取该餐补助。

## 6 借款

境内出差可预借备用金，最高 5,000 元；跨国出差最高 2,000 欧元。返回后 10 个工作日内必须冲销，
逾期未冲销的从次月工资中扣回，且 6 个月内不得再次借款。

## 7 报销期限与付款

出差结束后 30 个自然日内，须在“青账”提交报销单并上传全部票据。超过 30 日的须由部门负责人说明原因；
超过 90 日的一律不予报销。财务部收到完整单据后 7 个工作日内审核，每周四统一付款。

发票抬头为“岚序传感（苏州）有限公司”，成都员工使用“岚序传感成都分公司”。
电子发票须上传原始文件，截图和照片无效。欧洲票据金额超过 250 欧元的，须载明公司名称和税号。

## 8 票据遗失

遗失票据的，可提交书面说明，每人每年不超过 3 次，每次不超过 200 元。机票、酒店发票遗失的，
须向承运人或酒店索取存根复印件。

## 9 不予报销的费用

- 房间内的迷你吧、付费电视和洗衣费，连续出差超过 6 晚的洗衣费除外，上限 100 元；
- 交通违章罚款和停车罚单；
- 同行家属的一切费用；
- 自行购买的旅行保险，公司已为所有出差员工统一投保，保额 80 万元。

## 10 虚假报销

一经查实，追回全部款项，并按《员工奖惩办法》处理；金额超过 3,000 元的，可解除劳动合同。
"""

BENEFITS = """
# Benefits in Europe

Document HR-09, edition 4. Valid for employees of Lanxu Sensorics in Leipzig and Eindhoven.
Employees in Suzhou and Chengdu find their rules in 年假与休假制度 (HR-02). Where a collective
agreement or the law is more generous, it wins.

## 1 Working time

A full week is 38 hours in Leipzig and 40 hours in Eindhoven. Overtime needs the manager's consent
and is taken as time off within 6 months; up to 40 hours may be saved in the time account. More than
40 hours are paid out with the December salary.

## 2 Annual leave

| Topic | Leipzig | Eindhoven |
| Days per year, full time | 28 working days | 27 working days |
| Extra days after 5 years of service | 1 day | 2 days |
| Unused days expire | 31 March of the next year | 1 July of the next year |
| Company closure | 24 December to 1 January, 3 days deducted | none |

Requests go through Zhujian. Ask for more than 5 days in a row at least 4 weeks ahead. The manager
answers within 3 working days. In Eindhoven only the 20 statutory days expire on 1 July; the other
days are kept for 5 years. You may buy up to 5 additional days each year, at the price of your
normal daily pay; the window is open in November.

## 3 Illness

Tell your manager before 09:00 on the first day. In Leipzig a doctor's certificate is needed from
the fourth calendar day; the electronic certificate is collected by the company, you need not send
anything. In Eindhoven you do not need a certificate, but the occupational health service calls
you within 5 working days. Pay continues in full for 6 weeks in Leipzig and at 90% for 52 weeks in
Eindhoven. Ten days a year per child are available in Leipzig for looking after a sick child.

## 4 Family

- Birth of a child: the other parent gets 10 paid days, to be used within 4 months.
- Wedding: 2 paid days. Own move: 1 paid day every 36 months.
- Bereavement: 4 paid days for a partner, parent or child, 2 days for a sibling or grandparent.
- Nursery: 120 euros a month per child until school age, against the invoice of the provider.

## 5 Pension and insurance

The company pays 4% of the gross salary into the pension plan in Leipzig and 7% in Eindhoven,
after the probation period. Employees add at least 2%. All employees have accident insurance of
150,000 euros, private time included. Spectacles for screen work are supported with 140 euros
every 24 months on the advice of the company doctor.

## 6 Getting to work

| Offer | Leipzig | Eindhoven |
| Public transport | monthly ticket paid in full | second class season ticket paid in full |
| Bicycle lease | 25 euros a month paid by the company | 35 euros a month paid by the company |
| Own car | no contribution | 0.19 euros per km, at most 60 km a day |

Public transport and the car contribution cannot be combined. Business trips are not commuting;
for them the travel expense rules (差旅报销规定, FIN-05) apply, including their higher rate per
kilometre.

## 7 Learning

Every employee has a training budget of 1,500 euros per calendar year; unused money does not move
to the next year. Courses above 800 euros need the consent of the site lead. Submit the invoice in
Qingzhang within 90 days after the last day of the course. Whoever leaves the company within 12
months after a course above 3,000 euros pays back one twelfth for each missing month. Exam days are
paid leave, up to 3 days a year.

## 8 Anniversary and bonus

- After 5 years: 500 euros. After 10 years: 1,200 euros and 2 days of leave. After 25 years: one
monthly salary.
- The yearly bonus is paid in April. The target is 8% of the base salary, for sales staff 18%.
- Ideas that save money earn 10% of the first year's saving, at most 5,000 euros.

## 9 Health and sport

The company pays half of a gym membership, at most 25 euros a month. Vaccination against influenza
is offered in October at both sites. A confidential counselling line is open around the clock; six
sessions a year are free for employees and for people in their household.

## 10 Leaving

The notice period is 3 months to the end of a quarter in Leipzig and 2 months in Eindhoven. Hand in
laptop, badge and keys at the latest on the last working day. Open leave is taken during the notice
period where possible and paid out otherwise. A reference letter is written within 14 days on
request.
"""

SECURITY = """
# 信息安全须知

文件编号 IT-01 · 第 11 版 · 归口部门：信息安全组 · 适用于全体员工、实习生和驻场供应商

## 1 账号与密码

- 登录密码至少 14 位，包含字母和数字，不得使用姓名、工号或产品型号。
- 密码不再定期更换；只有在怀疑泄露时，才须在 30 分钟内修改。
- 公司密码统一保存在密码保险箱“钥匣”（Keybox）中，禁止保存在浏览器或纸条上。
- 所有账号启用双因素认证。管理员账号必须使用硬件令牌，普通员工可使用手机应用。
- 连续输错 6 次，账号锁定 20 分钟。解锁请联系服务台“灯塔”，不得借用同事账号。
- 驻场供应商的账号有效期最长 90 天，到期由接口人重新申请。

## 2 设备

- 办公电脑离开座位即锁屏，无操作 5 分钟自动锁屏；车间终端无操作 2 分钟自动锁屏。
- 安全补丁发布后，办公电脑须在 7 天内安装，服务器须在 14 天内安装。
- 禁止使用私人 U 盘。确需移动存储的，向服务台领取带蓝色标签的加密盘，借期最长 10 天。
- 私人手机可以收公司邮件，但须安装管理应用，公司有权远程清除其中的工作数据。
- 电脑、手机或工卡丢失，须在 1 小时内拨打安全热线，分机 7788，任何时间都有人接听。
- 报废硬盘由信息安全组统一消磁，任何部门不得自行转卖或赠送。

## 3 信息分级

文件分为四级，由编写人确定，写在首页右上角。未标注的一律按“内部”处理。

| 级别 | 例子 | 存放位置 | 对外发送 |
| 公开 | 产品样本、招聘启事 | 不限 | 允许 |
| 内部 | 流程文件、会议纪要 | 墨阁 | 签保密协议后允许 |
| 机密 | 客户图纸、报价、源代码 | 墨阁加密区 | 部门负责人批准 |
| 严格机密 | 并购、工资、私钥 | 专用保险库 | 仅总裁批准 |

机密文件对外发送须加密，密码通过另一渠道告知。严格机密文件不得打印，阅读记录保存 3 年。
纸质机密文件用后放入带锁的回收箱，不得丢进普通垃圾桶。

## 4 网络与远程接入

- 在公司以外办公，必须通过 VPN“北桥”接入，连接满 12 小时自动断开。
- 同一账号最多同时登录 2 台设备。来自未备案国家的登录会被拦截，出境前 5 个工作日备案。
- 访客只能使用访客网络，不得接入办公网；供应商调试设备须走隔离的维护网段。
- 生产网与办公网之间只允许经过跳板机，操作全程录屏，录像保存 180 天。
- 禁止私自架设无线路由器、代理或远程控制软件。

## 5 邮件与钓鱼

收到可疑邮件，不点击链接，不回复，使用邮箱中的“举报”按钮，信息安全组在 2 小时内回复判断结果。
任何要求变更供应商收款账户的邮件，必须用合同上的电话回拨确认，并由两人签字。
公司每季度发送一次模拟钓鱼邮件；一年内两次点击模拟链接的员工，须参加 90 分钟的补充培训。
邮件附件上限 25 MB，更大的文件使用墨阁的分享链接，链接默认 14 天失效。

## 6 人工智能工具

只能使用墨阁首页列出的工具。“公开”和“内部”级内容可以输入；机密和严格机密内容不得输入任何外部模型。
由工具生成的代码，合并前须由至少一名同事评审，并在提交说明中注明。

## 7 事件报告

发现数据泄露、勒索软件或未授权访问，立即断网但不要关机，并在 1 小时内报告安全热线。
涉及欧洲个人数据的，数据保护官须在 72 小时内通知监管机构，因此任何人不得自行拖延或私下处理。
及时报告的员工，即使本人有过失，也不因报告而受处分；隐瞒不报的，按严重违纪处理。

## 8 培训与离职

全体员工每年 10 月 31 日前完成信息安全复训，测试 85 分及格，最多补考 2 次。
未按时完成的，11 月 1 日起只保留邮件和墨阁权限。
员工离职，账号在最后工作日 18:00 停用，邮箱保留 60 天供主管交接，之后删除。
岗位调动的员工，原岗位权限在 5 个工作日内收回。

## 9 违规处理

一级违规（如未锁屏、乱放纸质文件）口头提醒；一年内累计 3 次，由主管书面警告。
二级违规（如共用账号、私接设备）书面警告，并暂停远程办公 3 个月。
三级违规（如故意外传机密文件）解除劳动合同，必要时移送司法机关。
"""


class Block(NamedTuple):
    """One piece of a text: its kind is `title`, `heading`, `item`, `table` or `paragraph`."""

    kind: str
    text: str


MARKS = {"# ": "title", "## ": "heading", "- ": "item", "| ": "table"}


def join_lines(text: str) -> str:
    """Return the text on one line, with a space only between two Latin words."""
    return re.sub(r"(?<=[!-~])\n(?=[!-~])", " ", text).replace("\n", "")


def parse(text: str) -> Iterator[Block]:
    """Yield the blocks of a text in reading order; a table is one block with a row per line."""
    for chunk in re.split(r"\n\n|\n(?=- )", text.strip()):
        mark = next((mark for mark in MARKS if chunk.startswith(mark)), "")
        kind = MARKS.get(mark, "paragraph")
        yield Block(kind, chunk if kind == "table" else join_lines(chunk.removeprefix(mark)))


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.split("\n")]


def title_of(text: str) -> str:
    return next(block.text for block in parse(text) if block.kind == "title")


WORD_STYLES = {
    "title": "Heading 1",
    "heading": "Heading 2",
    "item": "List Bullet",
    "paragraph": "Normal",
}


def new_word_document(title: str) -> WordDocument:
    document = docx.Document()
    properties = document.core_properties
    properties.title, properties.author, properties.comments = title, AUTHOR, ""
    properties.created = properties.modified = EDITION_DATE
    for name in ("Normal", "Heading 1", "Heading 2"):
        fonts = document.styles[name].element.get_or_add_rPr().get_or_add_rFonts()
        fonts.set(qn("w:eastAsia"), WORD_CHINESE_FONT)
        # A theme font, where the template names one, would win over the font just set.
        fonts.attrib.pop(qn("w:eastAsiaTheme"), None)
    return document


def add_word_table(document: WordDocument, rows: list[list[str]]) -> None:
    table = document.add_table(rows=0, cols=len(rows[0]), style="Table Grid")
    for row in rows:
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text
    document.add_paragraph()


def with_fixed_dates(package: bytes) -> bytes:
    """Return the same archive with one date on all members: equal text gives equal bytes."""
    fixed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package)) as old, zipfile.ZipFile(fixed, "w") as new:
        for name in old.namelist():
            member = zipfile.ZipInfo(name, ZIP_DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(member, old.read(name))
    return fixed.getvalue()


def word_bytes(text: str) -> bytes:
    document = new_word_document(title_of(text))
    for block in parse(text):
        if block.kind == "table":
            add_word_table(document, rows_of(block.text))
        else:
            document.add_paragraph(block.text, style=WORD_STYLES[block.kind])
    package = io.BytesIO()
    document.save(package)
    return with_fixed_dates(package.getvalue())


def pdf_style(name: str, size: int, *, before: int = 0, indent: int = 0) -> ParagraphStyle:
    return ParagraphStyle(
        name,
        fontName=PDF_FONT,
        fontSize=size,
        leading=size * 1.6,
        spaceBefore=before,
        spaceAfter=3,
        leftIndent=indent,
        bulletFontName=PDF_FONT,
        wordWrap="CJK",
        keepWithNext=name == "heading",
    )


PDF_STYLES = {
    "title": pdf_style("title", 20),
    "heading": pdf_style("heading", 14, before=10),
    "item": pdf_style("item", 11, indent=12),
    "paragraph": pdf_style("paragraph", 11),
}
PDF_GRID = TableStyle(
    [
        ("FONT", (0, 0), (-1, -1), PDF_FONT, 10),
        ("GRID", (0, 0), (-1, -1), 0.5, colors.grey),
        ("BACKGROUND", (0, 0), (-1, 0), colors.whitesmoke),
    ]
)


def pdf_flowable(block: Block) -> Flowable:
    if block.kind == "table":
        return Table(rows_of(block.text), style=PDF_GRID, spaceBefore=4, spaceAfter=6)
    bullet = "•" if block.kind == "item" else None
    return Paragraph(block.text, PDF_STYLES[block.kind], bulletText=bullet)


def pdf_bytes(text: str) -> bytes:
    pdfmetrics.registerFont(UnicodeCIDFont(PDF_FONT))
    title = title_of(text)

    def draw_footer(canvas: Canvas, template: SimpleDocTemplate) -> None:
        canvas.setFont(PDF_FONT, 9)
        canvas.drawCentredString(A4[0] / 2, 12 * mm, f"{title} · 第 {template.page} 页 · 内部")

    pages = io.BytesIO()
    # `invariant` fixes the creation date and the document id.
    template = SimpleDocTemplate(pages, pagesize=A4, title=title, author=AUTHOR, invariant=True)
    flowables = [pdf_flowable(block) for block in parse(text)]
    template.build(flowables, onFirstPage=draw_footer, onLaterPages=draw_footer)
    return pages.getvalue()


def main() -> None:
    """Write the three documents and print their paths."""
    HANDBOOK.mkdir(exist_ok=True)
    documents = {
        "差旅报销规定.docx": word_bytes(TRAVEL),
        "benefits.docx": word_bytes(BENEFITS),
        "信息安全须知.pdf": pdf_bytes(SECURITY),
    }
    for name, content in documents.items():
        path = HANDBOOK / name
        path.write_bytes(content)
        print(path)


if __name__ == "__main__":
    main()
