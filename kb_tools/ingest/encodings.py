"""Find out how bytes are written, and say so.

In this order: a byte order mark, strict UTF-8, then every likely encoding, each judged by the text
it gives: common Chinese characters, kana and Hangul speak for it, rare ones and holes against it.
A declaration counts as one more vote: it is often wrong. "First that decodes" is no test: most
Big5 text is valid GB18030.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kb_tools.ingest.euc_tw import decode_euc_tw
from kb_tools.ingest.parsed import NO_TEXT, ParseError

if TYPE_CHECKING:
    from kb_tools.models import Json

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CANDIDATES = (
    "gb18030", "big5hkscs", "cp950", "cp932", "euc_jp", "euc-tw", "cp949", "cp1252",
)  # fmt: skip
_WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
# What a declaration says, and what its writers really use.
_MEANT = {
    "gb2312": "gb18030", "gbk": "gb18030", "gb_2312-80": "gb18030", "cp936": "gb18030",
    "x-gbk": "gb18030", "big5": "big5hkscs", "big5-hkscs": "big5hkscs", "x-x-big5": "big5hkscs",
    "shift_jis": "cp932", "shift-jis": "cp932", "sjis": "cp932", "windows-31j": "cp932",
    "x-sjis": "cp932", "euc-jp": "euc_jp", "euc-kr": "cp949", "ks_c_5601-1987": "cp949",
    "iso-8859-1": "cp1252", "latin1": "cp1252", "latin-1": "cp1252", "us-ascii": "cp1252",
    "windows-1252": "cp1252", "x-euc-tw": "euc-tw", "euctw": "euc-tw", "unicode": "utf-16",
}  # fmt: skip
_FITS_ALL = ("cp125", "iso8859", "mac")  # any bytes are valid in these, so that proves nothing
_SAMPLE_BYTES = 65_536
_DECLARED_BONUS = 0.1
_STRAY_ZEROS = 3  # so few in a short text are a slip of a program, not a sign of binary data
_GOOD_ENOUGH = 0.3
_LOST_PENALTY = 20

# The characters that make up most running text, simplified and traditional.
_COMMON = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种"
    "事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第"
    "公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合"
    "回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女变四神总"
    "何电数安少报才结反受目太量再感建务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听"
    "白却界达光放强即像难且权思王象完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带"
    "导争运笔请姓职班级单价货币付款订购申批准假休薪险税费姓名年龄地址城市省县街号客服邮箱部门员工手册密码登录"
    "這個們來國為說時對會過後發裡種經麼學現當沒動還進樣開實無與長機關點業將兩間問並應戰頭體見產變數總電報結計場務難"
    "區隊決馬書則聽達強權設記類據邊該張規萬術領確傳師觀讓識帶導爭運請職級單價貨幣訂購準險稅費齡縣號郵門員冊碼錄臺灣"
    "給話內處義幾認條係氣題爾別戰樂車東風飛魚鳥黃線網習試驗語詞讀寫買賣錢銀鐵銷廣東廠縣鄉鎮歷歲眾聲聯職藝蘇術衛"
    "髙橋佐藤鈴木田中渡辺伊山本村林加吉佐々木京都府阪区町県駅円様氏株式会社込売読書働歳気仮込対応発関変経済労価値図"
)
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa\u30fc]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_HANZI = re.compile("[\u4e00-\u9fff]")
_WIDE_MARK = re.compile(
    "[\u2010-\u203b\u2160-\u217f\u2190-\u21ff\u2460-\u257f\u25a0-\u2606\u3000-\u303f\uff01-\uff5e"
    "\uffe5\u3105-\u3129]"
)
_HALF_KANA = re.compile("[\uff61-\uff9f]")
_LETTER = re.compile("(?<=[A-Za-z])[\u00c0-\u024f]|[\u00c0-\u024f](?=[a-z])")
_LATIN_MARK = re.compile("[\u00a0-\u00bf\u20ac\u2122]")
_LOST = re.compile("[\ufffd\x00-\x08\x0e-\x1f\x7f-\x9f\ue000-\uf8ff]|[\U000f0000-\U0010ffff]")
_OUTSIDE_ASCII = re.compile("[^\x00-\x7f]")


@dataclass(frozen=True)
class Decoded:
    """Text, the encoding it was read with, and whether that was a guess."""

    text: str
    encoding: str
    guessed: bool
    lost: int = 0

    @property
    def report(self) -> "dict[str, Json]":
        """What the document's report says about it."""
        facts: dict[str, Json] = {"encoding": self.encoding, "encoding_guessed": self.guessed}
        if self.lost:
            facts["warnings"] = [f"{self.lost} byte(s) are not valid {self.encoding}"]
        return facts


def decode(data: bytes, declared: str | None = None) -> Decoded:
    """Return the text of `data`; `declared` is what the file says of itself, if anything.

    Raises ParseError if there is no text, or if this is no text file.
    """
    decoded = _decode(data, declared)
    if not decoded.text.strip("\ufeff\x00 \t\r\n\x0b\x0c"):
        raise ParseError(NO_TEXT)
    return decoded


def decode_as(data: bytes, declared: str | None) -> str:
    """Return a short text, such as a header: as declared if that is possible, else as guessed."""
    name = _canonical(declared)
    if name and name.startswith(_FITS_ALL):
        return _decode(data, name).text
    try:
        if name:
            return decode_euc_tw(data) if name == "euc-tw" else data.decode(name)
        return data.decode()
    except UnicodeDecodeError:
        return _decode(data, None).text


def _decode(data: bytes, declared: str | None) -> Decoded:
    if not data.strip(b"\x00 \t\r\n\x0b\x0c"):
        return Decoded("", "utf-8", guessed=False)
    for mark, name in _MARKS:
        if data.startswith(mark):
            return _read(data, name, guessed=False)
    if wide := _wide(data):
        return _read(data, wide, guessed=True)
    if _is_utf8(data):
        return _seven_bit(data) or Decoded(data.decode(), "utf-8", guessed=False)
    return _best(data, _canonical(declared))


def _wide(data: bytes) -> str | None:
    """Return UTF-16 or UTF-32 when zero bytes stand where ASCII characters leave them."""
    sample = data[:_SAMPLE_BYTES]
    if b"\x00" not in sample:
        return None
    names = [name for name in _WIDE if len(data) % (4 if "32" in name else 2) == 0]
    scored = [(_score_of(sample, name), name) for name in names]
    score, name = max(scored, default=(0.0, ""))
    ascii_share = sample.count(0) / len(sample)
    if score > _GOOD_ENOUGH or (name and ascii_share > 0.2 and score >= 0):
        return name
    if ascii_share > 0.02 and sample.count(0) > _STRAY_ZEROS:
        raise ParseError("not text: the file holds binary data")
    return None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _seven_bit(data: bytes) -> Decoded | None:
    """Return text written in 7 bits with escapes (ISO-2022, HZ), which is valid ASCII as well."""
    if b"\x1b$" in data:
        names: tuple[str, ...] = ("iso2022_jp_2", "iso2022_kr")
    elif b"~{" in data and b"~}" in data:
        names = ("hz",)
    else:
        return None
    for name in names:
        try:
            text = data.decode(name)
        except UnicodeDecodeError:
            continue
        if _score(text) > _GOOD_ENOUGH:
            return Decoded(text, name, guessed=True)
    return None


def _best(data: bytes, declared: str | None) -> Decoded:
    names = [*([declared] if declared else []), "utf-8", *_CANDIDATES]
    if len(data) % 2 == 0:
        names += ["utf-16-le", "utf-16-be"]
    sample = data[:_SAMPLE_BYTES]
    scores = {name: _score_of(sample, name, declared) for name in names}
    name = max(scores, key=scores.__getitem__)
    if scores[name] < _GOOD_ENOUGH and (other := _by_statistics(sample)):
        name = other if _score_of(sample, other) > scores[name] - _GOOD_ENOUGH else name
    if scores.get(name, 0.0) < -1:
        raise ParseError("not text: the file holds binary data")
    return _read(data, name, guessed=name != declared)


def _by_statistics(sample: bytes) -> str | None:
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    return best.encoding if best else None


def _canonical(declared: str | None) -> str | None:
    if not declared:
        return None
    name = declared.strip().strip("\"'").lower()
    name = _MEANT.get(name, name)
    if name == "euc-tw":
        return name
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    return codec.name if "".encode(codec.name) in (b"", codecs.BOM_UTF16_LE) else None


def _read(data: bytes, name: str, *, guessed: bool) -> Decoded:
    text = _decode_loosely(data, name)
    lost = text.count("\ufffd") if "\ufffd".encode() not in data else 0
    return Decoded(text, name.removesuffix("-sig"), guessed, lost)


def _decode_loosely(data: bytes, name: str) -> str:
    if name == "euc-tw":
        return decode_euc_tw(data)
    return data.decode(name, errors="replace")


def _score_of(sample: bytes, name: str, declared: str | None = None) -> float:
    try:
        text = _decode_loosely(sample, name)
    except (UnicodeError, LookupError):
        return float("-inf")
    if len(sample) == _SAMPLE_BYTES:
        text = text[:-4]  # the sample may end inside a character
    return _score(text) + (_DECLARED_BONUS if name == declared else 0.0)


def _score(text: str) -> float:
    """Return how much `text` looks like writing: 1 at best, negative for noise."""
    outside = len(_OUTSIDE_ASCII.findall(text))
    lost = len(_LOST.findall(text))
    if not outside + lost:
        return _GOOD_ENOUGH
    return (sum(_weights(text)) - _LOST_PENALTY * lost) / (outside + lost)


def _weights(text: str) -> Iterator[float]:
    hanzi = _HANZI.findall(text)
    common = sum(character in _COMMON for character in hanzi)
    yield 1.0 * common + 0.25 * (len(hanzi) - common)
    yield _weighed(_KANA, text, 0.9)
    yield _weighed(_HANGUL, text, 0.7)
    yield _weighed(_WIDE_MARK, text, 0.6)
    yield _weighed(_HALF_KANA, text, -0.2)
    yield _weighed(_LETTER, text, 0.6)
    yield _weighed(_LATIN_MARK, text, 0.1)


def _weighed(pattern: re.Pattern[str], text: str, weight: float) -> float:
    return weight * _count(pattern.finditer(text))


def _count(matches: Iterable[object]) -> int:
    return sum(1 for _ in matches)
