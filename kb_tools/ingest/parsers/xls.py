"""Old Excel files, read through LibreOffice as xlsx."""

from kb_tools.ingest.office import converted
from kb_tools.ingest.parsed import Parser


def create() -> Parser:
    """Return the parser."""
    return converted("xls", "xlsx")
