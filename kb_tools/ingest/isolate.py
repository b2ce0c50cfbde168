"""Do work on many things in one transaction, so that one bad thing costs only itself."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from psycopg import Connection

from kb_tools.errors import KnowledgeBaseError
from kb_tools.resources import Resources

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


def together_or_alone(
    kb: Resources,
    items: Sequence[Item],
    work: Callable[[Connection, Sequence[Item]], None],
    fail: Callable[[Connection, Item, str], None],
) -> list[Item]:
    """Do `work` on all items in one transaction; if that fails, on each alone. Return those done.

    `fail` notes the reason of an item that fails alone. A database that does not answer is no
    item's fault: BackendError and our other errors are raised.
    """
    if not items:
        return []
    try:
        with kb.db.transaction() as conn:
            work(conn, items)
    except KnowledgeBaseError:
        raise
    except Exception as error:
        if len(items) > 1:
            return [done for item in items for done in together_or_alone(kb, [item], work, fail)]
        reason = f"could not be stored: {type(error).__name__}"
        logger.warning("%s", reason)
        with kb.db.transaction() as conn:
            fail(conn, items[0], reason)
        return []
    return list(items)
