"""Structure-aware mutations of model folders, checkpoints and anchor tables.

Every mutation takes the bytes of a file and a `random.Random` and returns the new bytes and whether
a reader may rightly give other answers for them (learned numbers or ids changed in a valid way).
"""

import copy
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Mutated", "mutate_header", "mutate_json", "mutate_tensors", "pack", "unpack"]

Mutated = tuple[bytes, bool, str]
_RAW = "@raw:"  # a string that stands for JSON text which `json.dumps` does not write
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**30, 0.5, -0.5, 1e-300, "", "x", "0"),
    *([], {}, [1], [[]], {"a": 1}, "\ud800", "a\x00b", "x" * 5000),
    *(f"{_RAW}NaN", f"{_RAW}Infinity", f"{_RAW}-Infinity", f"{_RAW}1e999", f"{_RAW}{'9' * 5000}"),
    *(f"{_RAW}{'[' * 3000}{']' * 3000}", f"{_RAW}1.0", f"{_RAW}-0", f"{_RAW}1e2"),
)
_SIZES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_FORMATS = {"F64": "d", "I64": "q", "U64": "Q", "F32": "f", "I32": "i", "U32": "I", "F16": "e",
            "I16": "h", "U16": "H", "I8": "b", "U8": "B", "BOOL": "B"}  # fmt: skip

Tensors = dict[str, tuple[str, list[int], bytes]]  # dtype, shape, data


def unpack(data: bytes) -> tuple[Tensors, dict[str, str]]:
    """The tensors of a safetensors file, and its metadata."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    rest = data[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], rest[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }, metadata


def pack(tensors: Tensors, metadata: dict[str, str], change: Callable[[Any], None] = id) -> bytes:
    """A safetensors file; `change` may alter the header before it is written."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data, end = [], 0
    order = sorted(tensors, key=lambda name: (-_SIZES.get(tensors[name][0], 1), name))
    for name in order:
        dtype, shape, raw = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(raw)]}
        end += len(raw)
        data.append(raw)
    change(header)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data)


def dumped(document: Any) -> bytes:
    """JSON text, also of what is not JSON."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    parts = text.split(f'"{_RAW}')
    raw = parts[0] + "".join(part.replace('"', "", 1) for part in parts[1:])
    return raw.encode("utf-8", "surrogatepass")


def mutate_json(data: bytes, draw: random.Random, record: tuple[str, ...] = ()) -> Mutated:
    """One change of a value, a type or a key, or of the text."""
    kind = draw.choice(("value", "value", "value", "value", "nudge", "key", "key", "text"))
    if kind == "text":
        return _text(data, draw)
    document = json.loads(data)
    where, holder, key = _place(document, draw)
    if holder is None:
        return dumped(draw.choice(_VALUES)), False, "the whole document"
    if kind == "key":
        return _key(document, holder, key, where, draw)
    old = holder[key]
    if kind == "nudge" and isinstance(old, int | float) and not isinstance(old, bool):
        holder[key] = draw.choice((old + 1, old - 1, -old, old * 2, float(old), str(old)))
    else:
        holder[key] = copy.deepcopy(draw.choice(_VALUES))
    return dumped(document), False, f"{where} = {str(holder[key])[:40]!r}, was {str(old)[:40]!r}"


def _place(document: Any, draw: random.Random) -> tuple[str, Any, Any]:
    places: list[tuple[str, Any, Any]] = []

    def walk(value: Any, path: str) -> None:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in list(entries):
            places.append((f"{path}.{key}", value, key))
            if isinstance(inner, dict | list):
                walk(inner, f"{path}.{key}")

    if isinstance(document, dict | list):
        walk(document, "")
    return draw.choice(places) if places else ("", None, None)


def _key(document: Any, holder: Any, key: Any, where: str, draw: random.Random) -> Mutated:
    how = draw.choice(("drop", "rename", "add", "twice"))
    may = how in ("drop", "rename") and str(key) == "users.safetensors"  # it is optional
    if how == "twice" and isinstance(holder, dict):
        text = dumped(document).decode("utf-8", "surrogatepass")
        name = json.dumps(key, ensure_ascii=False)
        again = f"{name}: {json.dumps(draw.choice([0, 'x', None]))}, {name}:"
        return text.replace(f"{name}:", again, 1).encode(), False, f"{where} twice"
    if how == "drop" or not isinstance(holder, dict):
        del holder[key]
    elif how == "rename":
        holder[draw.choice((f"{key}_", str(key).upper(), ""))] = holder.pop(key)
    else:
        holder[draw.choice(("extra", "kind", "", "\ud800"))] = draw.choice(_VALUES[:30])
    return dumped(document), may, f"{how} {where}"


def _text(data: bytes, draw: random.Random) -> Mutated:
    at = draw.randrange(len(data)) if data else 0
    return draw.choice(
        (
            (data[:at], False, f"cut to {at} bytes"),
            (b"\xef\xbb\xbf" + data, False, "a byte order mark"),
            (data[:at] + b"\xff" + data[at:], False, f"not UTF-8 at {at}"),
            (data + b"{}", False, "something after the end"),
            (b"", False, "empty"),
            (data + b" " * 100_000, False, "blanks after the end"),
        )
    )


def mutate_tensors(data: bytes, draw: random.Random) -> Mutated:
    """One change of a tensor: its name, dtype, shape or values."""
    tensors, metadata = unpack(data)
    name = draw.choice(sorted(tensors))
    dtype, shape, raw = tensors[name]
    how = draw.choice(("name", "dtype", "shape", "values", "values", "values", "header"))
    if how == "header":
        return mutate_header(data, draw)
    if how == "name":
        return _name(tensors, metadata, name, draw)
    if how == "dtype":
        fits = [d for d in _SIZES if d != dtype and (len(raw) % _SIZES[d] == 0)]
        new = draw.choice(fits)
        if draw.random() < 0.5 and dtype in _FORMATS and new in _FORMATS:  # the same numbers
            try:
                raw = _cast(raw, dtype, new)
            except (struct.error, OverflowError, ValueError):
                raw = raw[: _count(shape) * _SIZES[new]].ljust(_count(shape) * _SIZES[new], b"\0")
        else:
            shape = [len(raw) // _SIZES[new]]
        tensors[name] = (new, shape, raw)
        return pack(tensors, metadata), False, f"{name} from {dtype} to {new} {shape}"
    if how == "shape":
        new_shape, new_raw = _reshaped(dtype, shape, raw, draw)
        tensors[name] = (dtype, new_shape, new_raw)
        same = new_shape == shape
        return pack(tensors, metadata), same, f"{name} from {shape} to {new_shape}"
    new_raw, what = _values(name, dtype, raw, draw)
    tensors[name] = (dtype, shape, new_raw)
    return pack(tensors, metadata), True, f"{name} ({dtype}): {what}"


def _name(tensors: Tensors, metadata: dict[str, str], name: str, draw: random.Random) -> Mutated:
    how = draw.choice(("drop", "rename", "add", "swap", "attribute", "metadata"))
    if how == "drop":
        del tensors[name]
    elif how == "rename":
        tensors[draw.choice((f"{name}.x", name.upper(), "", f"{name}.data"))] = tensors.pop(name)
    elif how == "add":
        extra = draw.choice(("extra", "vae.extra", "table.extra", "ids", "learned", "slots", "x.1"))
        tensors[extra] = draw.choice(
            (
                ("F32", [2], bytes(8)),
                ("F32", [], bytes(4)),
                ("U8", [0], b""),
                ("I64", [1], bytes(8)),
            )
        )
        name = extra
    elif how == "attribute":
        tensors["attribute:000:x.data"] = ("U8", [0], b"")
        if draw.random() < 0.5:
            tensors["attribute:000:x.offsets"] = ("I64", [2], bytes(16))
    elif how == "swap" and len(tensors) > 1:
        other = draw.choice([one for one in sorted(tensors) if one != name])
        tensors[name], tensors[other] = tensors[other], tensors[name]
        name = f"{name} and {other}"
    else:
        metadata = {**metadata, draw.choice(("extra", "format", "")): "x"}
    return pack(tensors, metadata), how == "swap", f"{how} {name}"


def _reshaped(
    dtype: str, shape: list[int], raw: bytes, draw: random.Random
) -> tuple[list[int], bytes]:
    size = _SIZES[dtype]
    row = size * _count(shape[1:]) if shape else size
    options: list[tuple[list[int], bytes]] = [
        ([*shape, 1], raw), ([1, *shape], raw), ([_count(shape)], raw), ([], raw[:size]),
        (shape[::-1], raw), ([0, *shape[1:]], b""), ([*shape, 0], b""),
    ]  # fmt: skip
    if shape and shape[0]:
        options += [
            ([shape[0] - 1, *shape[1:]], raw[:-row] if row else raw),
            ([shape[0] + 1, *shape[1:]], raw + bytes(row)),
            ([shape[0] * 2, *shape[1:]], raw + raw),
            ([1, *shape[1:]], raw[:row]),
        ]
    return draw.choice(options)


_FLOATS = (
    *(float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e30, 1e19, 1e-45, 0.0, -0.0),
    *(1.0, -1.0, 1e6, -1e9),
)


def _values(name: str, dtype: str, raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    size = _SIZES[dtype]
    count = len(raw) // size
    if count == 0:
        return raw, "nothing"
    at = draw.randrange(count)
    if dtype in ("F16", "F32", "F64"):
        value = draw.choice(_FLOATS)
        if dtype == "F16" and abs(value) > 6e4:
            value = float("inf")
        one = struct.pack(f"<{_FORMATS[dtype]}", value)
        many = draw.random() < 0.3
        new = one * count if many else raw[: at * size] + one + raw[(at + 1) * size :]
        return new, f"{'all' if many else at} = {value}"
    how = draw.choice(("code", "code", "repeat", "swap", "shuffle", "all", "bit"))
    parts = [raw[i : i + size] for i in range(0, len(raw), size)]
    other = draw.randrange(count)
    if how == "code":
        parts[at] = draw.choice((b"\xff" * size, b"\x00" * size, b"\x7f" * size,
                                 bytes([draw.randrange(256)]) + parts[at][1:]))  # fmt: skip
    elif how == "repeat":
        parts[at] = parts[other]
    elif how == "swap":
        parts[at], parts[other] = parts[other], parts[at]
    elif how == "shuffle":
        draw.shuffle(parts)
    elif how == "all":
        parts = [parts[at]] * count
    else:
        bit = bytearray(parts[at])
        bit[draw.randrange(size)] ^= 1 << draw.randrange(8)
        parts[at] = bytes(bit)
    return b"".join(parts), f"{how} at {at}"


def mutate_header(data: bytes, draw: random.Random) -> Mutated:
    """A change of what the file says of itself: its length, names, offsets, sizes."""
    tensors, metadata = unpack(data)
    name = draw.choice(sorted(tensors))
    huge = draw.choice((2**31, 2**40, 2**62, 2**64))

    def shape(header: Any) -> None:
        header[name]["shape"] = [huge, *header[name]["shape"][1:]]

    def offsets(header: Any) -> None:
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = draw.choice(
            ([begin, end + 8], [begin + 8, end + 8], [end, begin], [-1, end], [begin], "x",
             [begin, huge], [begin, end, end], [begin + 0.5, end])
        )  # fmt: skip

    def dtype(header: Any) -> None:
        header[name]["dtype"] = draw.choice(("F31", "", None, 4, "C64", "F8_E4M3", "f32", "U64"))

    def negative(header: Any) -> None:
        header[name]["shape"] = draw.choice(([-1], "x", None, [1.5], [[1]], [True]))

    def keys(header: Any) -> None:
        header[draw.choice((name, "x"))] = draw.choice((None, [], {}, "x", 1, {"dtype": "F32"}))

    def meta(header: Any) -> None:
        header["__metadata__"] = draw.choice((None, [], {"a": 1}, "x", {"format": None}))

    length = int.from_bytes(data[:8], "little")
    at = draw.randrange(len(data))
    changed = [
        (pack(tensors, metadata, change), False, f"header, {change.__name__} of {name}")
        for change in (shape, offsets, dtype, negative, keys, meta)
    ]
    whole = [
        (huge.to_bytes(9, "little")[:8] + data[8:], False, f"header of {huge} bytes"),
        ((length - 1).to_bytes(8, "little") + data[8:], False, "header one byte shorter"),
        (data[:at], False, f"cut to {at} bytes"),
        (data + b"more", False, "bytes after the end"),
        (data[: 8 + at % length] + b"\xff" + data[9 + at % length :], False, "header not UTF-8"),
        (b"", False, "empty"),
        (bytes(8), False, "header of no bytes"),
    ]
    return draw.choice(changed + whole)


def giant(file: Path, draw: random.Random, size: int) -> str:
    """Make a file that says it has a giant tensor, and has: with a hole instead of bytes."""
    tensors, metadata = unpack(file.read_bytes())
    name = draw.choice(sorted(tensors))
    dtype, shape, _ = tensors.pop(name)
    each = _SIZES[dtype] * max(_count(shape[1:]), 1)
    rows = size // each

    def last(header: Any) -> None:
        ends = [entry["data_offsets"][1] for n, entry in header.items() if n != "__metadata__"]
        end = max(ends, default=0)
        header[name] = {
            "dtype": dtype, "shape": [rows, *shape[1:]], "data_offsets": [end, end + rows * each]
        }  # fmt: skip

    with file.open("wb") as stream:
        stream.write(pack(tensors, metadata, last))
        stream.truncate(stream.tell() + rows * each)
    return f"{name} of {rows} rows with a hole of {rows * each} bytes"


def _count(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _cast(raw: bytes, old: str, new: str) -> bytes:
    numbers = struct.unpack(f"<{len(raw) // _SIZES[old]}{_FORMATS[old]}", raw)
    whole = new[0] not in "F"
    values = [int(number) if whole else float(number) for number in numbers]
    return struct.pack(f"<{len(values)}{_FORMATS[new]}", *values)
