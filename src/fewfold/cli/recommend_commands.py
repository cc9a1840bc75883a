"""The commands that recommend: to users and histories, to all users, and similar items."""

import argparse
from typing import Any

import fewfold as ff
from fewfold._options import positive_integer
from fewfold.cli.commands import parts, print_note, start
from fewfold.cli.console import emit
from fewfold.cli.torchrun import joined_processes

__all__ = ["recommend", "similar"]


def _split_ids(text: str | None, ids: Any) -> list[str] | None:
    """Split "a,b,c" into ids; text that is an id itself is not split."""
    if text is None:
        return None
    if int(ids.find([text])[0]) >= 0:
        return [text]
    return parts(text)


def recommend(arguments: argparse.Namespace) -> int:
    """Recommend to users, histories, or a file of histories; under torchrun to all users."""
    start(arguments)
    with joined_processes() as leads:
        if not leads:
            arguments.quiet = True
        return _recommend(arguments, leads)


def _recommend(arguments: argparse.Namespace, leads: bool) -> int:
    ways = (arguments.users, arguments.history, arguments.histories, arguments.attributes)
    if sum(way is not None for way in (*ways, arguments.all_users or None)) != 1:
        raise ValueError(
            "name the users: one of --users a,b  --history a,b,c  --histories FILE  "
            "--attributes age=25,country=NZ  --all-users"
        )
    if bool(arguments.all_users) != (arguments.out is not None):
        raise ValueError("--all-users and --out belong together, as --all-users --out recs.parquet")
    _check_processes(arguments)
    rec = ff.Recommender.load(arguments.model)
    k = min(arguments.k, len(rec.items))
    options = _options(arguments, rec, k)
    if arguments.all_users:
        return _write_all(arguments, rec, options, leads)
    found = _found(arguments, rec, k, {**options, "explain": arguments.explain})
    unknown = list(dict.fromkeys(str(one) for row in found.unknown or [] for one in row))
    if unknown:
        listed = ", ".join(unknown[:10])
        listed += f" and {len(unknown) - 10:,} more" if len(unknown) > 10 else ""
        print_note(arguments, f"not known to the model and passed over: {listed}")
    _answer(arguments, found)
    return 0


def _check_processes(arguments: argparse.Namespace) -> None:
    """Raise if several processes would write one file, or all the same answer."""
    from fewfold.distributed.group import Group
    from fewfold.recommender.recommendation_parts import is_folder

    world = Group.current().world
    if world > 1 and not (arguments.all_users and is_folder(arguments.out)):
        raise ValueError(
            f"{world} processes recommend to all users and write a folder; pass --all-users "
            "--out recs/, or start without torchrun"
        )


def _options(arguments: argparse.Namespace, rec: Any, k: int) -> dict[str, Any]:
    """Options of the ranking."""
    options: dict[str, Any] = {
        "exclude_seen": not arguments.include_seen,
        "filter_items": _split_ids(arguments.filter_items, rec.items),
        "items": _split_ids(arguments.items, rec.items),
        "where": _where(arguments, rec),
        "diversity": ff.recommender.Diversity(
            arguments.diversity, arguments.diversity_by, _limits(arguments.at_most or [])
        ),
    }
    if arguments.diversity_by is not None and not arguments.diversity:
        raise ValueError("--diversity-by needs an amount of diversity; add --diversity 0.3")
    if arguments.recall is not None:
        options["search"] = search = rec.index(recall=arguments.recall, k=k)
        print_note(arguments, f"approximate: {search}")
    return options


def _where(arguments: argparse.Namespace, rec: Any) -> dict[str, Any] | None:
    """Conditions on item attributes; a note names values that no item has."""
    if not arguments.where:
        return None
    from fewfold.recommender.item_conditions import parse_where, unmatched_values

    where = parse_where(arguments.where, rec.attributes)
    for text in unmatched_values(rec.attributes, where):
        print_note(arguments, text)
    return where


def _limits(texts: list[str]) -> dict[str, int]:
    """Parse "section=3" and the like."""
    found = {}
    for text in texts:
        name, _, figure = text.rpartition("=")
        try:
            found[name.strip()] = positive_integer(figure)
        except argparse.ArgumentTypeError as error:
            raise ValueError(
                f"--at-most must be as section=3, got {text!r}: the limit {error}"
            ) from None
        if not name.strip():
            raise ValueError(f"--at-most must be as section=3, got {text!r}")
    return found


def _write_all(
    arguments: argparse.Namespace, rec: Any, options: dict[str, Any], leads: bool
) -> int:
    if arguments.explain:
        raise ValueError("--all-users writes no explanations; leave out --explain")
    rows = rec.recommend_all(
        arguments.out,
        min(arguments.k, len(rec.items)),
        overwrite=arguments.overwrite,
        progress=not arguments.quiet,
        **options,
    )
    if not leads:
        return 0
    emit(
        f"{arguments.out}, {rows:,} recommendations",
        {"file": arguments.out, "rows": rows} if arguments.json else None,
    )
    return 0


def _found(arguments: argparse.Namespace, rec: Any, k: int, options: dict[str, Any]) -> Any:
    """Recommend to those who were named."""
    if arguments.attributes is not None:
        some = {name: options[name] for name in ("filter_items", "items", "where", "diversity")}
        users = [_attributes(text) for text in arguments.attributes]
        return rec.recommend_from_attributes(users, k, **some)
    if arguments.users is not None:
        return rec.recommend(_users(arguments, rec), k, **options)
    if arguments.history is not None:
        lists = [_split_ids(text, rec.items) for text in arguments.history]
        found = rec.recommend_from_history(lists, k, **options)
        for row, unknown in zip(lists, found.unknown or [], strict=True):
            if row and row == unknown:  # the most popular items would look like an answer
                raise ValueError(f"the model knows no item of the history {', '.join(row)}")
        return found
    log = ff.read_log(arguments.histories)
    for remark in log.summary.remarks():
        print_note(arguments, f"{arguments.histories}: {remark}")
    items = log.items.tolist()
    rows = _rows(log.interactions, arguments.histories, rec.fitted.recipe.ordered)
    histories = {
        user: [items[i] for i in row.tolist()]
        for user, row in zip(log.users.tolist(), rows, strict=True)
    }
    return rec.recommend_from_history(histories, k, **options)


def _users(arguments: argparse.Namespace, rec: Any) -> list[str]:
    if rec.users is None:
        raise ValueError(f"{arguments.model} was saved without users; use --history")
    who = [one for text in arguments.users for one in _split_ids(text, rec.users) or []]
    if not who:
        raise ValueError("--users must name at least one user, got none")
    return who


def _attributes(text: str) -> dict[str, str]:
    """Split "age=25,country=NZ" into values by name."""
    found = {}
    for part in parts(text):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--attributes must be as age=25,country=NZ, got {text!r}")
        found[name.strip()] = value.strip()
    return found


def _rows(interactions: Any, file: str, ordered: bool) -> Any:
    """Items of each user of a file, by time if the model depends on their order."""
    if ordered and interactions.times is None:
        raise ValueError(
            f"the order of a history matters to this model, and {file} has no times; add a column "
            "named time, or pass the items in order with --history"
        )
    rows = interactions.rows(slice(None), ordered=ordered)
    return rows.values.split(rows.lengths.tolist())


def _answer(arguments: argparse.Namespace, found: Any) -> None:
    one = found.first() if len(found) == 1 else found
    emit(one, found.to_dicts() if arguments.json else None)


def similar(arguments: argparse.Namespace) -> int:
    """List similar items."""
    start(arguments)
    rec = ff.Recommender.load(arguments.model)
    excluded, k = _split_ids(arguments.filter_items, rec.items), min(arguments.k, len(rec.items))
    where = _where(arguments, rec)
    _answer(arguments, rec.similar_items(arguments.items, k, filter_items=excluded, where=where))
    return 0
