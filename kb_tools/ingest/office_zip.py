"""Check an Office file (docx, pptx, xlsx: a zip of XML) before a library unpacks it."""

import io
import zipfile

from kb_tools.ingest.parsed import Limits, ParseError

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # how old Office files and encrypted new ones begin
ENCRYPTED = "encrypted: needs a password; save the file without one"
_PROGRAMS = {"docx": "Word", "pptx": "PowerPoint", "xlsx": "Excel"}
_CONTENT = {"docx": "document", "pptx": "presentation", "xlsx": "workbook"}


def check(data: bytes, suffix: str, limits: Limits) -> None:
    """Raise ParseError, with its reason, if `data` cannot be a file of the format `suffix`."""
    if data.startswith(OLE):
        if is_encrypted(data):
            raise ParseError(ENCRYPTED)
        raise ParseError(
            f"an old {_PROGRAMS[suffix]} file with the wrong suffix: save it as .{suffix}"
        )
    if not data.strip():
        raise ParseError("no text: the file is empty")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            refuse_too_large(archive, limits)
            names = archive.namelist()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError):
        raise damaged(suffix) from None
    if not any(name.endswith(".xml") and _CONTENT[suffix] in name for name in names):
        raise ParseError(
            f"not a readable {suffix}: a zip file without {_PROGRAMS[suffix]}'s content in it"
        )


def damaged(suffix: str) -> ParseError:
    """Return the error for a file that is cut or broken."""
    return ParseError(f"not a readable {suffix} (truncated or damaged zip)")


def is_encrypted(data: bytes) -> bool:
    """Tell whether an OLE file is a wrapped docx, pptx or xlsx that needs a password."""
    return "EncryptedPackage".encode("utf-16-le") in data


def refuse_too_large(archive: zipfile.ZipFile, limits: Limits) -> None:
    """Raise ParseError, before anything is unpacked, if the whole would be over the limit."""
    size = sum(entry.file_size for entry in archive.infolist())
    if size > limits.max_unpacked_bytes:
        raise ParseError(
            f"too large: {size:,} bytes when unpacked, more than max_unpacked_bytes "
            f"({limits.max_unpacked_bytes:,})"
        )
