"""The transport with a real server on this machine: retries, caps, redirects, and one line for each failure."""

from __future__ import annotations

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from patience import Stopwatch

from gpubench.offers import transport as transports
from gpubench.offers.sources import SourceError
from gpubench.offers.transport import HttpTransport


class Server:
    """Answers each path by a function of (handler, number of the request for that path)."""

    def __init__(self) -> None:
        self.routes = {}
        self.seen = []
        self.connects = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.seen.append((self.command, self.path, dict(self.headers)))
                path = self.path.partition("?")[0]
                nth = sum(p.partition("?")[0] == path for _, p, _ in outer.seen)
                outer.routes[path](self, nth)

            def do_POST(self):
                self.body = self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_CONNECT(self):
                outer.connects.append(self.path)
                self.send_error(403)

            def log_message(self, *_args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def count(self, path):
        return sum(p.partition("?")[0] == path for _, p, _ in self.seen)


def answer(status, body=b"", **headers):
    def reply(handler, _nth=0):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return reply


def after(count, first, then):
    return lambda handler, nth: (first if nth <= count else then)(handler, nth)


@pytest.fixture
def server():
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def transport(pauses, monkeypatch):
    monkeypatch.setattr(transports, "MAX_BODY_BYTES", 100_000)
    with HttpTransport(sleep=pauses.append) as opened:
        yield opened


def test_a_good_answer_returns_its_bytes_and_the_query_is_sent(server, transport):
    server.routes["/x"] = answer(200, b'{"a": 1}')
    assert (
        transport(f"{server.url}/x", params={"$filter": "a eq 'b'"}, headers={"Authorization": "Bearer k"})
        == b'{"a": 1}'
    )
    method, path, headers = server.seen[0]
    assert method == "GET"
    assert path == "/x?%24filter=a+eq+%27b%27"
    assert headers["Authorization"] == "Bearer k"
    assert headers["User-Agent"].startswith("gpubench/")


def test_a_body_is_posted_as_json(server, transport):
    server.routes["/x"] = lambda handler, _nth: answer(200, handler.body)(handler)
    assert transport(f"{server.url}/x", body={"q": [1]}) == b'{"q": [1]}'


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_transient_failure_is_retried_with_growing_pauses(server, transport, pauses, status):
    server.routes["/x"] = after(2, answer(status), answer(200, b"ok"))
    assert transport(f"{server.url}/x") == b"ok"
    assert pauses == [1.0, 2.0]


@pytest.mark.parametrize("status", [429, 500])
def test_a_lasting_failure_ends_after_three_retries(server, transport, pauses, status):
    server.routes["/x"] = answer(status)
    with pytest.raises(SourceError, match=rf"127\.0\.0\.1 failed 4 times: HTTP {status}"):
        transport(f"{server.url}/x")
    assert server.count("/x") == 4
    assert pauses == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_not_retried(server, transport, pauses, status):
    server.routes["/x"] = answer(status)
    with pytest.raises(SourceError, match=f"request: HTTP {status}"):
        transport(f"{server.url}/x")
    assert server.count("/x") == 1
    assert pauses == []


@pytest.mark.parametrize(
    ("value", "pause"), [("7", 7.0), ("9999", 20.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0), ("-5", 1.0)]
)
def test_the_server_may_ask_for_a_longer_pause_within_reason(server, transport, pauses, value, pause):
    server.routes["/x"] = after(1, answer(429, Retry_After=value), answer(200, b"ok"))
    transport(f"{server.url}/x")
    assert pauses == [pause]


def test_dropped_connection_is_retried_and_a_persistent_drop_is_reported(server, transport):
    def cut(handler, _nth):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    server.routes["/x"] = after(1, cut, answer(200, b"whole"))
    assert transport(f"{server.url}/x") == b"whole"
    server.routes["/y"] = cut
    with pytest.raises(SourceError, match="4 times: connection broke"):
        transport(f"{server.url}/y")


def test_an_endless_body_is_stopped_by_size(server, transport):
    def endless(handler, _nth):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        except OSError:
            handler.close_connection = True

    server.routes["/x"] = endless
    with pytest.raises(SourceError, match="sent over 100,000 bytes"):
        transport(f"{server.url}/x")
    assert server.count("/x") == 1


def test_a_compressed_body_is_unpacked_once_and_a_nested_bomb_never(server, transport):
    """Two layers of gzip turn 2 KB into 1 GB before any byte could be counted."""
    packed = gzip.compress(b"{}" * 100)
    server.routes["/good"] = answer(200, packed, Content_Encoding="gzip")
    server.routes["/large"] = answer(200, gzip.compress(b"0" * 200_000), Content_Encoding="GZIP")
    server.routes["/twice"] = answer(200, gzip.compress(packed), Content_Encoding="gzip, gzip")
    server.routes["/other"] = answer(200, packed, Content_Encoding="br")
    assert transport(f"{server.url}/good") == b"{}" * 100
    for path, words in (
        ("large", "sent over 100,000"), ("twice", "encoded as 'gzip, gzip'"), ("other", "as 'br'"),
    ):  # fmt: skip
        with pytest.raises(SourceError, match=words):
            transport(f"{server.url}/{path}")


def dripping(head, drop):
    def drip(handler, _nth):
        handler.wfile.write(head)
        try:
            while True:
                handler.wfile.write(drop)
                handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            handler.close_connection = True

    return drip


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4000\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"x"),
    ],
)
def test_a_slowly_dripping_answer_is_stopped_by_time(server, transport, monkeypatch, head, drop):
    """The answer would never end on its own, whether the head, a chunk or the body drips."""
    monkeypatch.setattr(transports, "REQUEST_TIMEOUT_S", 0.5)
    server.routes["/x"] = dripping(head, drop)
    watch = Stopwatch()
    with pytest.raises(SourceError, match=r"took over 0\.5 s"):
        transport(f"{server.url}/x")
    assert watch.free_s() < 3


def test_a_silent_server_times_out(server, pauses, monkeypatch):
    over = threading.Event()
    server.routes["/x"] = lambda handler, _nth: over.wait()
    monkeypatch.setattr(transports, "SILENCE_TIMEOUT_S", 0.3)
    with (
        HttpTransport(sleep=pauses.append) as transport,
        pytest.raises(SourceError, match="4 times: connection broke"),
    ):
        transport(f"{server.url}/x")
    over.set()


def test_a_redirect_on_the_same_host_is_followed(server, transport):
    server.routes["/x"] = answer(302, Location="/y")
    server.routes["/y"] = answer(200, b"moved")
    assert transport(f"{server.url}/x") == b"moved"


def test_the_body_of_a_redirect_is_not_read(server, transport):
    """The body may be endless."""
    server.routes["/x"] = dripping(
        b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 90000\r\n\r\n", b"x"
    )
    server.routes["/y"] = answer(200, b"moved")
    assert transport(f"{server.url}/x") == b"moved"


@pytest.mark.parametrize(
    "target", ["http://localhost:1/y", "https://evil.example/y", "//evil.example/y", "file:///etc/passwd"]
)
def test_a_redirect_to_another_host_is_refused_before_any_request(server, transport, target):
    server.routes["/x"] = answer(301, Location=target)
    with pytest.raises(SourceError, match="to another host"):
        transport(f"{server.url}/x")


def test_url_with_an_ambiguous_host_is_judged_by_the_host_actually_contacted(server, transport):
    """Some URL parsers take the host after the backslash, others the host before it."""
    for url in ("http://prices.example\\@127.0.0.1/x", f"https://prices.example\\@{server.url[7:]}/x"):
        server.routes["/x"] = answer(302, Location=url)
        with pytest.raises(SourceError, match="to another host"):
            transport(f"{server.url}/x")
    with pytest.raises(SourceError, match="is not https"):
        transport("http://prices.example\\@127.0.0.1/x")


def test_a_redirect_that_is_no_url_is_one_line(server, transport):
    server.routes["/x"] = answer(302, Location="https://[y")
    with pytest.raises(SourceError, match=r"^127\.0\.0\.1 is not reachable \(.*\)$"):
        transport(f"{server.url}/x")


def test_redirects_in_a_circle_end(server, transport):
    server.routes["/x"] = answer(302, Location="/x")
    with pytest.raises(SourceError, match="more than 3 times"):
        transport(f"{server.url}/x")


@pytest.mark.parametrize(
    "url",
    ["http://prices.example/x", "ftp://localhost/x", "file:///etc/passwd", "http://127.0.0.1.evil.example/"],
)
def test_plain_http_is_refused_except_to_this_machine(url):
    with HttpTransport() as strict, pytest.raises(SourceError, match="is not https"):
        strict(url)


def test_a_closed_port_is_unreachable_and_not_retried(transport, pauses):
    with pytest.raises(SourceError, match="is not reachable"):
        transport("http://127.0.0.1:9/x")
    assert pauses == []


def test_an_error_does_not_show_the_query_which_may_hold_a_key(transport):
    with pytest.raises(SourceError) as raised:
        transport("http://127.0.0.1:9/x", params={"key": "s3cret"})
    assert "s3cret" not in str(raised.value)


def test_api_key_is_sent_as_given_regardless_of_netrc(server, transport, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.routes["/x"] = answer(200)
    transport(f"{server.url}/x", headers={"Authorization": "Bearer k"})
    transport(f"{server.url}/x")
    transport(server.url.replace("//", "//a:b@") + "/x")
    assert [headers.get("Authorization") for _, _, headers in server.seen] == ["Bearer k", None, "Basic YTpi"]


def test_proxy_is_used_only_for_requests_to_other_hosts(server, transport, monkeypatch):
    """The server acts as the proxy: a request to another host reaches it as CONNECT."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, server.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.routes["/x"] = answer(200, b"here")
    assert transport(f"{server.url}/x") == b"here"
    assert [path for _, path, _ in server.seen] == ["/x"]
    with pytest.raises(SourceError, match=r"^prices\.example is not reachable"):
        transport("https://prices.example/x")
    assert server.connects == ["prices.example:443"]
