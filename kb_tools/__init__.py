"""A knowledge base for LangChain and LangGraph agents: documents in, cited answers out.

    from kb_tools import KnowledgeBase, RetrievalConfig

    kb = KnowledgeBase.open("./kb")
    handbook = kb.create_dataset("员工手册", exist_ok=True)
    kb.add_documents(handbook.id, ["leave.md", "travel.pdf"])
    print(kb.search_in_datasets("年假可以跨年吗?", [handbook.id]).text)

Names are loaded when they are first used, so `import kb_tools` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kb_tools import citations as citations
    from kb_tools.assets.documents import Batch as Batch
    from kb_tools.config import ProcessRule as ProcessRule
    from kb_tools.config import RetrievalConfig as RetrievalConfig
    from kb_tools.errors import BackendError as BackendError
    from kb_tools.errors import BuildFailed as BuildFailed
    from kb_tools.errors import InvalidInput as InvalidInput
    from kb_tools.errors import InvalidState as InvalidState
    from kb_tools.errors import KnowledgeBaseError as KnowledgeBaseError
    from kb_tools.errors import MissingDependency as MissingDependency
    from kb_tools.errors import NotFound as NotFound
    from kb_tools.errors import UnknownName as UnknownName
    from kb_tools.hit_testing import HitTest as HitTest
    from kb_tools.knowledge_base import KnowledgeBase as KnowledgeBase
    from kb_tools.nodes.dataset_retrieval import RetrievalState as RetrievalState
    from kb_tools.registry import register as register
    from kb_tools.search import SearchResult as SearchResult
    from kb_tools.settings import Settings as Settings

_HOMES = {
    "BackendError": "errors",
    "Batch": "assets.documents",
    "BuildFailed": "errors",
    "HitTest": "hit_testing",
    "InvalidInput": "errors",
    "InvalidState": "errors",
    "KnowledgeBase": "knowledge_base",
    "KnowledgeBaseError": "errors",
    "MissingDependency": "errors",
    "NotFound": "errors",
    "ProcessRule": "config",
    "RetrievalConfig": "config",
    "RetrievalState": "nodes.dataset_retrieval",
    "SearchResult": "search",
    "Settings": "settings",
    "UnknownName": "errors",
    "citations": "",
    "register": "registry",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'kb_tools' has no attribute {name!r}")
    if not _HOMES[name]:
        return import_module(f"kb_tools.{name}")
    return getattr(import_module(f"kb_tools.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
