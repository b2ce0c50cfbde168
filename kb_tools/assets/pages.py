"""A page of a list: what a caller may ask for."""

from typing import TypedDict

from kb_tools.errors import InvalidInput
from kb_tools.text.characters import storable


class Page(TypedDict):
    """Only entries that hold `search`, without the first `offset`, at most `limit`."""

    search: str | None
    offset: int
    limit: int


def page_of(search: str | None, offset: int, limit: int) -> Page:
    """Return the page. Raises InvalidInput if offset is negative or limit below 1."""
    if offset < 0 or limit < 1:
        raise InvalidInput(f"offset is at least 0 and limit at least 1; got {offset} and {limit}")
    return Page(search=storable(search) if search else None, offset=offset, limit=limit)
