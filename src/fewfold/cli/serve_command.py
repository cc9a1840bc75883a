"""The command `fewfold serve`: its options, and the settings they make."""

import argparse
import os
from pathlib import Path
from typing import Any

from fewfold._options import Option, number, positive_integer
from fewfold.cli.commands import print_note
from fewfold.cli.options import in_group, named, recall_share, seconds
from fewfold.serve.settings import Access, Limits, LogFormat, Network, ServeSettings

__all__ = ["SERVE", "serve"]

_NETWORK, _LIMITS = Network(), Limits()


def _port(text: str) -> Any:
    return number(text, int, lambda n: 0 <= n < 65536, "a port from 0 (any free one) to 65535")


def _interval(text: str) -> Any:
    return number(text, float, lambda x: 0 <= x < 1e6, "seconds, 0 or more")


def _limit(name: str, what: str, default: int) -> Option:
    return Option(name, f"{what} (default: {default:,})", default, positive_integer, "N")


SERVE = (
    *in_group(
        "the server",
        Option("host", f"address to listen on (default: {_NETWORK.host})", _NETWORK.host,
               named, "ADDRESS"),
        Option("port", f"port; 0 for any free one (default: {_NETWORK.port})", _NETWORK.port,
               _port, "N"),
        Option("workers", "processes that answer (default: 1)", 1, positive_integer, "N"),
        Option("recall", "search approximately, with this recall", None, recall_share, "SHARE"),
        Option("journal", "file of the feedback (default: beside the model)", None, named, "FILE",
               ),
        Option("feedback", "accept feedback", True, switch=True, hidden=True,
               off="accept no feedback"),
        Option("watch", "seconds between two looks for a new model; 0: never (default: 1)", 1.0,
               _interval, "SECONDS"),
    ),
    *in_group(
        "access",
        Option("api-key-file", "file with the key that requests must carry", None, named, "FILE"),
        Option("auth", "demand a key", True, switch=True, hidden=True,
               off="demand no key, though other machines can connect"),
        Option("cors", "origin whose pages may call the API; may repeat", metavar="ORIGIN",
               many=True),
    ),
    *in_group(
        "limits",
        _limit("max-body", "bytes of a body", _LIMITS.body),
        _limit("max-k", "items of an answer", _LIMITS.k),
        _limit("max-history", "items of a history", _LIMITS.history),
        _limit("max-ids", "ids of a request", _LIMITS.ids),
        _limit("max-queries", "queries of a request", _LIMITS.queries),
        _limit("max-concurrent", "requests in progress in a worker", _LIMITS.concurrent),
        Option("time-limit", f"time for an answer (default: {_LIMITS.seconds:g}s)",
               _LIMITS.seconds, seconds, "TIME"),
        Option("idle-limit", f"time between two requests of a connection (default: "
               f"{_LIMITS.idle:g}s)", _LIMITS.idle, seconds, "TIME"),
    ),
    *in_group(
        "the log",
        Option("log-json", "log events and requests as JSON lines", False, switch=True),
        Option("log-ids", "write ids of users and items into the log", False, switch=True),
    ),
)  # fmt: skip


def serve(arguments: argparse.Namespace) -> int:
    """Serve a model over HTTP."""
    from fewfold.recommender.artifact.hub import HubAddress, local_folder
    from fewfold.serve import server
    from fewfold.serve.bundled_model import bundled_model

    network = Network(arguments.host, arguments.port, arguments.workers)
    access = Access(_key(arguments, network), tuple(arguments.cors or ()))
    limits = Limits(
        arguments.max_body, arguments.max_k, arguments.max_history, arguments.max_ids,
        arguments.max_queries, arguments.max_concurrent, arguments.time_limit, arguments.idle_limit,
    )  # fmt: skip
    if arguments.model is None:
        print_note(arguments, "no model given: serving one of the bundled data")
        beside = model = bundled_model(quiet=arguments.quiet)
    else:
        model, address = local_folder(arguments.model), HubAddress.parse(arguments.model)
        beside = model if address is None else Path(address.name.rpartition("/")[2])
    settings = ServeSettings(
        model.absolute(), _journal(arguments, beside), arguments.recall, arguments.watch,
        arguments.threads, network, access, limits,
        LogFormat(arguments.log_json, arguments.log_ids),
    )  # fmt: skip
    if not network.loopback and access.key is None:
        print_note(arguments, "anyone who can connect may ask: --no-auth")
    server.run(settings, quiet=arguments.quiet)
    return 0


def _key(arguments: argparse.Namespace, network: Network) -> str | None:
    """Return the key of the file or the environment; an error if one is missing."""
    key: str | None = os.environ.get("FEWFOLD_API_KEY")
    if arguments.api_key_file is not None:
        try:
            key = Path(arguments.api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--api-key-file {arguments.api_key_file}: {error}") from None
        if not key:
            raise ValueError(f"--api-key-file {arguments.api_key_file} is empty; write a key to it")
    if not arguments.auth:
        if arguments.api_key_file is not None:
            raise ValueError("--no-auth and --api-key-file contradict each other; drop one of them")
        return None
    if not key and not network.loopback:
        raise ValueError(
            f"other machines can connect to {network.host}, so a key is needed: --api-key-file "
            "FILE, or FEWFOLD_API_KEY in the environment; or allow everybody with --no-auth"
        )
    return key or None


def _journal(arguments: argparse.Namespace, model: Path) -> Path | None:
    if not arguments.feedback:
        if arguments.journal is not None:
            raise ValueError("--no-feedback and --journal contradict each other; drop one of them")
        return None
    if arguments.journal is not None:
        return Path(arguments.journal).absolute()
    where = model.absolute()
    return where.with_name(f"{where.name}.journal.jsonl")
