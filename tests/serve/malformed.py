"""Requests that are wrong in some way, drawn at random: of the protocol, the path or the body."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.serve.sockets import request

__all__ = ["Wrong", "wrong_requests"]


class Wrong(NamedTuple):
    """A request.

    Attributes:
        data: bytes to send.
        framed: whether the end of the request is clear, so that the connection goes on.
        fine: whether it may be answered with 200 or 201 as well.
    """

    data: bytes
    framed: bool = True
    fine: bool = True


POSTS = ("/v1/recommendations", "/v1/feedback")
GETS = (
    "/v1/users/u1/recommendations", "/v1/users", "/v1/users/u1", "/v1/items", "/v1/items/a1",
    "/v1/items/a1/similar", "/v1/model", "/v1/anchors", "/v1/stats", "/v1/health/live",
    "/v1/health/ready", "/metrics", "/openapi.json", "/docs", "/", "/page/index.html",
)  # fmt: skip
FIELDS = {
    "/v1/recommendations": (
        "user", "history", "k", "items", "exclude", "exclude_seen", "where", "diversity",
        "at_most", "explain", "fallback",
    ),
    "/v1/feedback": ("user", "item", "time", "recommendation"),
}  # fmt: skip
# Of every kind of JSON, the extremes; as text, since not all of it can be written from Python.
VALUES = (
    "null", "true", "false", "0", "-0", "-1", "1.5", "-1e308", "1e308", "1e309", "-1e999", "1e-400",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551615",
    "18446744073709551616", "1" * 400, "0." + "3" * 400, '""', '" "', '"a1"', '"u1"', '"\\u0000"',
    '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"' + "x" * 5000 + '"', '"\\n\\t"', "[]",
    "[[]]", "[null]", "[1,2,3]", '["a1"]', '["a1","a1","unheard",7]', '["a1",2.5]', '["a1",{}]',
    '["\\ud800"]', "[1e999]", "[18446744073709551616]", "[true]", "{}", '{"a":{}}', '{"":""}',
    '{"taste":"a"}', '{"taste":["a","b"]}', '{"taste":[]}', '{"taste":null}', '{"taste":{}}',
    '{"year":{"min":1990,"max":1995}}', '{"year":{"min":1e308}}',
    '{"year":{"min":1995,"max":1990}}',
    '{"year":{"least":3}}', '{"taste":{"min":"a"}}', '{"nothing":3}', '{"taste":0}', '{"taste":-1}',
    '{"taste":3}', '{"taste":1e30}', '{"amount":0.5}', '{"amount":0.5,"by":"taste"}',
    '{"amount":0.5,"by":"nothing"}', '{"amount":0.5,"by":5}', '{"amount":7}', '{"by":"taste"}',
    "0.5", "1", "2", "[" * 3000 + "]" * 3000, '{"a":' * 1500 + "1" + "}" * 1500, '"2024-05-01"',
    '"2024-13-41T99:99"', '"0001-01-01T00:00:00+23:59"', '"9999-12-31T23:59:59-23:59"', "-1e11",
    "253402300800", '"none"', '"popular"', '"yes"', '"1"',
)  # fmt: skip
NOT_JSON = (
    b"", b" ", b"\x00", b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"{", b"[", b"]", b"{}{}", b"{},",
    b"nul", b"NaN", b"Infinity", b"-Infinity", b"+1", b"01", b".5", b"1.", b"1e", b"'a'", b'"',
    b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\\x"', b'"\\u12"', b'"\n"', b"{a:1}",
    b'{"user":}', b'{"user" "u1"}', b'{"user":"u1",}', b'["a",]', b"[" * 5000, b'{"a":' * 1500,
    b'{"user":"u1"}\x00', b'/**/{"user":"u1"}', b'{"user":"u1"', b"user=u1&k=3", b"<xml/>",
)  # fmt: skip
IDS = (
    "a/b", "../../etc/passwd", "..", ".", "\U0001f600", "\x00", "a\x00b", "\n", "%", "%2", "%zz",
    "%25", "%u0041", "%ff", "%c0%af", "%ed%a0%80", "%f5%80%80%80", "%00", "%2e%2e%2f", "..%2f..%2f",
    "%2F", "%5c", "a;b", "a b", "a+b", "?", "#", "a?k=3", "日本", "similar",
    "recommendations", "x" * 4000, "%41" * 1500, "/" * 200, "%2f" * 200, " ", "null", "-1", "1e5",
    "NaN", "9" * 300, "<script>alert(1)</script>", "' or 1=1 --", "${jndi:ldap://x}", "{{7*7}}",
)  # fmt: skip
TRICKS = (
    "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/%2e%2e%2fapp.py",
    "/page/..%5capp.py", "/page//etc/passwd", "/page/%2fetc%2fpasswd", "/page/....//app.py",
    "/page/.%00./app.py", "/page/index.html%00.js", "/page/index.html/", "/page/%ff", "/page",
    "/page/" + "a" * 5000, "/page/" + "a/" * 2000, "/page/C:/windows", "/docs/../app.py",
    "/docs/%2e%2e/app.py", "/docs/..%2f..%2fsettings.py", "//page/index.html", "/./page/index.html",
    "/v1", "/v1/", "/v1//", "/v2/items", "/v1/items/", "/v1/users/", "/v1/users//recommendations",
    "/V1/ITEMS", "/%76%31/items", "/v1%2fitems", "/v1/items%2fa1", "/v1/health", "/v1/admin",
    "/favicon.ico", "/.git/config", "/metrics/", "/openapi.json/x", "/page/__pycache__", "*",
)  # fmt: skip
QUERIES = (
    "k=", "k=0", "k=-1", "k=1.5", "k=1e3", "k=%00", "k=3&k=4", "K=3", "k", "=", "&&&", "k=3;x=1",
    "k=" + "9" * 300, "k=%ff", "%ff=1", "search=%ff", "search=" + "a" * 1500, "limit=0", "limit=x",
    "search=" + "%F0%9F%98%80" * 200, "search=%0a%0d", "search=%00", "explain=maybe", "explain=2",
    "exclude_seen=", "fallback=all", "fallback=popular%00", "k=true", "k=[1]", "k[]=1", "a.b=1",
    "&".join(f"x{n}=1" for n in range(150)), "__proto__=1", "k=3&search=a", "limit=1e999", "?k=3",
    "k=3#x", "callback=alert", "search=%", "search=%u0041", "k=%D9%A3",
    "limit=99999999999999999999",
)  # fmt: skip
HEADERS = (
    b"content-type: \xff\xfe", b"content-type:", b"content-type: application/json;;;charset=",
    b"authorization: Bearer", b"authorization: \xff", b"x-api-key: " + b"k" * 5000,
    b"accept: \xff/\x80", b"accept-encoding: gzip;q=\xe9", b"range: bytes=9-1,-0,x-",
    b"range: bytes=" + b"0-1," * 500, b"range: bytes=-99999999999999999999",
    b"if-modified-since: \xff", b"if-none-match: " + b'"x",' * 500, b"if-range: x",
    b"origin: null", b"origin: https://\xff", b"cookie: " + b"a=b; " * 800, b"expect: something",
    b"x-forwarded-for: ' or 1=1", b"x-http-method-override: DELETE", b"content-encoding: gzip",
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13", b"te: trailers",
    b"connection: keep-alive, upgrade\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA",
    b"transfer-encoding-x: chunked", b"x: " + b"\x80" * 3000, b"host: second",
    b"x-" + b"y" * 2000 + b": 1",
)  # fmt: skip
BROKEN = (
    b"\r\n", b"\n\n\n\n", b"\x00" * 50,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 80,
    b"hello\r\n\r\n", b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1 \r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n", b" GET / HTTP/1.1\r\n\r\n",
    b"G\x00T / HTTP/1.1\r\n\r\n", b"GET / HTTQ/1.1\r\n\r\n", b"GET / http/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /v1/items/a b HTTP/1.1\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET v1/items HTTP/1.1\r\nhost: x\r\n\r\n", b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nhost: x\r\n\r\n", b"CONNECT /v1 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"CONNECT a.example:443 HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nhost\r\n\r\n",
    b"GET / HTTP/1.1\r\n: x\r\n\r\n", b"GET / HTTP/1.1\r\nho st: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost : x\r\n\r\n", b"GET / HTTP/1.1\r\nx: a\x00b\r\n\r\n",
    b"GET / HTTP/1.1\r\nx: a\r\n b\r\n\r\n", b"GET / HTTP/1.1\rx: a\r\r",
    b"GET / HTTP/1.1\r\nx: a\rb: c\r\n\r\n", b"GET / HTTP/1.1\r\n\xff: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"x%d: 1\r\n" % n for n in range(300)) + b"\r\n",
    b"GET / HTTP/1.1\r\nx: " + b"y" * 600_000 + b"\r\n\r\n",
    b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n\r\n", b"y" * 600_000,
)  # fmt: skip
LENGTHS = (
    b"-1", b"+5", b"0x10", b"5, 6", b"1e3", b"", b" ", b"5 5", b"99999999999999999999999", b"five",
    b"18446744073709551615", b"18446744073709551616", b"\xb2", b"5\r\ncontent-length: 6",
    b"1000000",
    b"3", b"0",
)  # fmt: skip
CHUNKS = (
    b"ZZ\r\n{}\r\n0\r\n\r\n", b"2\r\n{}", b"2\r\n{}\r\n", b"2\r\n{}x\r\n0\r\n\r\n",
    b"-2\r\n{}\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\n{}", b"fffffffffffffffff\r\n{}", b"7fffffffffffffff\r\n{}", b"\r\n\r\n",
    b"2;" + b"x" * 20_000 + b"\r\n{}\r\n0\r\n\r\n", b"2 \r\n{}\r\n0\r\n\r\n", b"0\r\n",
    b"0\r\nx\r\n\r\n",
    b"0\r\n" + b"".join(b"t%d: 1\r\n" % n for n in range(2000)) + b"\r\n", b"\n2\n{}\n0\n\n",
    b"2\r\n{}\r\n0\r\ncontent-length: 5\r\n\r\n", b"00000000000000000000002\r\n{}\r\n0\r\n\r\n",
    b"1\r\n{\r\n" * 300 + b"0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n",
)  # fmt: skip
CODINGS = (
    b"chunked", b"Chunked", b"chunked, chunked", b"gzip, chunked", b"chunked, gzip", b"identity",
    b"xchunked", b"chunked\r\ncontent-length: 5", b"\x0bchunked",
    b"chunked\r\ntransfer-encoding: x",
)  # fmt: skip


def _post(target: str, text: str) -> bytes:
    """A request; feedback is about a user of whom other tests know nothing."""
    if target == "/v1/feedback":
        text = text.replace('"u1"', '"w1"')
    return request("POST", target, text.encode())


def _field_of_wrong_type(draw: random.Random) -> Wrong:
    """A body whose fields, one or several, have values of any kind."""
    target = draw.choice(POSTS)
    base = {"user": '"u1"'} if target == POSTS[0] else {"user": '"u1"', "item": '"a1"'}
    for field in draw.sample(FIELDS[target], draw.choice((1, 1, 1, 2, 3))):
        base[field] = draw.choice(VALUES)
    text = "{" + ",".join(f'"{name}":{value}' for name, value in base.items()) + "}"
    if draw.random() < 0.2:
        text = f"[{text},{text}]"
    return Wrong(_post(target, text))


def _unknown_or_repeated_field(draw: random.Random) -> Wrong:
    target = draw.choice(POSTS)
    name = draw.choice(("K", "users", "", "x" * 3000, "a.b", "\x00", "$ref", "日本", "__class__"))
    value = draw.choice(VALUES)
    if draw.random() < 0.3:
        return Wrong(_post(target, f'{{"user":"u1","item":"a1","user":{value}}}'))
    return Wrong(_post(target, f'{{"user":"u1",{json.dumps(name)}:{value}}}'), fine=False)


def _not_json(draw: random.Random) -> Wrong:
    return Wrong(request("POST", draw.choice(POSTS), draw.choice(NOT_JSON)), fine=False)


def _damaged_json(draw: random.Random) -> Wrong:
    """A good body of which bytes were changed, lost or repeated."""
    whole: dict[str, Any] = {
        "history": ["a1", "b2"], "k": 3, "items": ["a2", "a3"], "exclude": ["c1"], "explain": True,
        "where": {"taste": ["a"], "year": {"min": 1990}}, "diversity": 0.3, "at_most": {"taste": 2},
    }  # fmt: skip
    event = {"user": "w1", "item": "a1", "time": "2024-05-01T10:00:00Z", "recommendation": "r"}
    target, body = draw.choice(list(zip(POSTS, (whole, event), strict=True)))
    data = bytearray(json.dumps(body).encode())
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                del data[at : at + draw.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + draw.randint(1, 20)]
            case _:
                data[at:at] = draw.choice((b'"', b"{", b"[", b",", b"\x00", b"\\", b"\xf0\x9f"))
        if not data:
            break
    return Wrong(request("POST", target, bytes(data)))


def _odd_id(draw: random.Random) -> Wrong:
    one = draw.choice(IDS)
    if draw.random() < 0.5 or not one.isascii() or not one.isprintable() or " " in one:
        one = quote(one, safe="")
    form = draw.choice(
        ("/v1/users/{}", "/v1/users/{}/recommendations", "/v1/items/{}", "/v1/items/{}/similar")
    )
    query = "" if draw.random() < 0.7 else "?" + draw.choice(QUERIES)
    return Wrong(request("GET", form.format(one) + query))


def _trick(draw: random.Random) -> Wrong:
    method = draw.choice(("GET", "GET", "GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"))
    return Wrong(request(method, draw.choice(TRICKS), None if method == "GET" else b"{}"))


def _query(draw: random.Random) -> Wrong:
    return Wrong(request("GET", f"{draw.choice(GETS)}?{draw.choice(QUERIES)}"))


def _method(draw: random.Random) -> Wrong:
    method = draw.choice(
        ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "X" * 40)
    )
    return Wrong(request(method, draw.choice((*GETS, *POSTS)), b'{"user":"w1"}'))


def _header(draw: random.Random) -> Wrong:
    target = draw.choice((*GETS, *POSTS))
    body = b'{"user":"w1","item":"a1"}' if target in POSTS else None
    method = "POST" if body else "GET"
    return Wrong(request(method, target, body, draw.choice(HEADERS)))


def _broken(draw: random.Random) -> Wrong:
    return Wrong(draw.choice(BROKEN), framed=False)


def _length(draw: random.Random) -> Wrong:
    head = request("POST", draw.choice(POSTS), None, "content-type: application/json")[:-2]
    return Wrong(
        head + b"content-length: " + draw.choice(LENGTHS) + b'\r\n\r\n{"user":"w1"}', framed=False
    )


def _chunked(draw: random.Random) -> Wrong:
    head = request("POST", draw.choice(POSTS), None, "content-type: application/json")[:-2]
    coding = draw.choice(CODINGS) if draw.random() < 0.5 else b"chunked"
    chunks = draw.choice(CHUNKS)
    return Wrong(head + b"transfer-encoding: " + coding + b"\r\n\r\n" + chunks, framed=False)


def _cut(draw: random.Random) -> Wrong:
    """A good request that ends in the middle."""
    whole = request("POST", draw.choice(POSTS), b'{"user":"w1","item":"a1"}')
    return Wrong(whole[: draw.randrange(1, len(whole))], framed=False)


def _noise(draw: random.Random) -> Wrong:
    return Wrong(draw.randbytes(draw.randint(1, 300)), framed=False)


# The kinds that end a connection cost most, and have fewer cases.
KINDS: tuple[tuple[Callable[[random.Random], Wrong], int], ...] = (
    (_field_of_wrong_type, 30), (_unknown_or_repeated_field, 8), (_not_json, 6),
    (_damaged_json, 12), (_odd_id, 14), (_trick, 5), (_query, 6), (_method, 4), (_header, 5),
    (_broken, 2), (_length, 2), (_chunked, 3), (_cut, 2), (_noise, 1),
)  # fmt: skip


def wrong_requests(count: int, seed: int) -> Iterator[Wrong]:
    """So many requests of all kinds."""
    draw = random.Random(seed)
    kinds, weights = zip(*KINDS, strict=True)
    for kind in draw.choices(kinds, weights, k=count):
        yield kind(draw)
