"""Commands for a dataset's own words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kb_tools.cli.options import (
    Account,
    AsJson,
    At,
    DatasetName,
    Embedder,
    Yes,
    find_dataset,
    opened,
)
from kb_tools.cli.output import confirm, print_json, say, show
from kb_tools.errors import InvalidInput, NotFound
from kb_tools.text.tokenize import fold_keyword
from kb_tools.text.words import group_of, groups_of, words_of


def dataset_words(
    dataset: DatasetName,
    add: Annotated[list[str] | None, typer.Option("--add", help="A word; repeat it.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="Take a word out.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Add a UTF-8 file: one word a line, or jieba's format."),
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Take out all that is there first.")
    ] = False,
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """List or change the words of a dataset that are kept whole: products, jargon, names.

    A change builds the dataset's full text and keywords anew; it can be searched meanwhile.

    Example: kb dataset words 员工手册 --add 云枢平台 --add K8s集群 --file words.txt
    """
    new = [*(add or ()), *(words_of(_text(file)) if file else ())]
    with opened(at, embeddings, account) as kb:
        found = find_dataset(kb, dataset)
        words = kb.get_dictionary(found.id)
        if new or remove or clear or file:
            if clear and words:
                confirm(f"take {len(words)} words out of dataset {found.name!r}?", yes)
            kept = _without([] if clear else words, remove or (), found.name)
            words = kb.set_dictionary(found.id, [*kept, *new])
            show(words, as_json, f"dataset {found.name} keeps {len(words)} words whole")
            return
    if as_json:
        print_json(words)
    else:
        say("\n".join(words) or "no words of its own: kb dataset words NAME --add WORD")


def dataset_synonyms(
    dataset: DatasetName,
    add: Annotated[
        list[str] | None, typer.Option("--add", help="Wordings with commas between; repeat it.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", help="Take out the group with this wording.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Add a UTF-8 file: a group a line, with commas.")
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Take out all that is there first.")
    ] = False,
    yes: Yes = False,
    at: At = "./kb",
    embeddings: Embedder = "local",
    account: Account = "default",
    as_json: AsJson = False,
) -> None:
    """List or change the wordings of a dataset that mean the same, for questions by words.

    Nothing is indexed anew.

    Example: kb dataset synonyms 员工手册 --add 年假,带薪年休假 --add K8s,Kubernetes
    """
    new = [*map(group_of, add or ()), *(groups_of(_text(file)) if file else ())]
    with opened(at, embeddings, account) as kb:
        found = find_dataset(kb, dataset)
        groups = kb.get_synonyms(found.id)
        if new or remove or clear or file:
            if clear and groups:
                confirm(f"take {len(groups)} groups out of dataset {found.name!r}?", yes)
            kept = _groups_without([] if clear else groups, remove or (), found.name)
            groups = kb.set_synonyms(found.id, [*kept, *new])
            show(groups, as_json, f"dataset {found.name} has {len(groups)} groups of synonyms")
            return
    if as_json:
        print_json(groups)
    else:
        lines = [", ".join(group) for group in groups]
        say("\n".join(lines) or "no synonyms: kb dataset synonyms NAME --add WORDING,WORDING")


def _groups_without(
    groups: Sequence[Sequence[str]], removed: Sequence[str], name: str
) -> list[Sequence[str]]:
    """Return the groups that are not to go. Raises NotFound for a wording in none of them."""
    gone = set(map(fold_keyword, removed))
    found = {i: gone & set(map(fold_keyword, group)) for i, group in enumerate(groups)}
    missing = gone.difference(*found.values())
    if missing:
        raise NotFound(
            f"no synonym {min(missing)!r} in dataset {name!r}; list them: kb dataset synonyms NAME"
        )
    return [group for i, group in enumerate(groups) if not found[i]]


def _without(words: Sequence[str], removed: Sequence[str], name: str) -> list[str]:
    """Return the words that are not to go. Raises NotFound for one that is not there."""
    known = {fold_keyword(word) for word in words}
    for word in removed:
        if fold_keyword(word) not in known:
            raise NotFound(
                f"no word {word!r} in dataset {name!r}; list them: kb dataset words NAME"
            )
    gone = {fold_keyword(word) for word in removed}
    return [word for word in words if fold_keyword(word) not in gone]


def _text(file: Path) -> str:
    """Return a file's text. Raises InvalidInput if it cannot be read or is not UTF-8."""
    try:
        return file.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"cannot read {str(file)!r}: {error.strerror}") from None
    except UnicodeDecodeError:  # too few words to guess what else it is
        raise InvalidInput(f"{str(file)!r} is not UTF-8; save it as UTF-8") from None
