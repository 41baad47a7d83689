"""All network access: limited in time and size, https only, without redirects to another host.

Plain http is allowed only to this machine, without a proxy.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from threading import Thread
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_auth_from_url

from gpubench import __version__
from gpubench.offers.sources import SourceError, is_safe, same_host
from gpubench.units import count, plain

MAX_BODY_BYTES = 64 * 1024**2
REQUEST_TIMEOUT_S = 60.0
"""Time limit of one request including its body; a slow server cannot delay a refresh by more than this."""
SILENCE_TIMEOUT_S = 15.0  # without a byte received
MAX_RETRIES = 3
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 20.0
MAX_REDIRECTS = 3
PIECE_BYTES = 64 * 1024
# Accepted encodings. One layer expands 64 KB to at most 64 MB; two nested layers could expand it far more.
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

# The status, the requested pause [s], and the body if the request succeeded.
_Answer = tuple[int, float | None, bytes]


class HttpTransport:
    """A transport based on requests. Use it as a context manager; see ``sources.Transport`` for the call.

    Args:
        sleep: The function that waits between attempts.
        within_s: Time limit of all requests together; with a limit, each is tried once. None for no limit.
    """

    def __init__(self, *, sleep: Callable[[float], None] = time.sleep, within_s: float | None = None) -> None:
        self._sleep = sleep
        self._deadline_s = None if within_s is None else time.monotonic() + within_s
        self._within_s = within_s
        self._session = _Session()
        self._session.headers.update({"User-Agent": f"gpubench/{__version__}", "Accept-Encoding": "gzip"})
        self._session.auth = _ByUrl()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def __call__(
        self,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the body of a successful answer, after up to three retries on 429, 5xx or a lost connection.

        With a time limit on all requests, there are no retries.

        Raises:
            SourceError: If no attempt succeeds.
        """
        host, attempts = _host(url), (MAX_RETRIES + 1 if self._deadline_s is None else 1)
        for attempt in range(attempts):
            try:
                status, retry_after_s, answer = self._in_time(url, params, body, headers)
                cause = f"HTTP {status}"
            except (requests.RequestException, ValueError) as error:  # a ValueError: an invalid URL
                if not _was_cut(error):
                    raise SourceError(f"{host} is not reachable ({_words(error)})") from None
                status, retry_after_s, cause = None, None, f"connection broke ({_words(error)})"
            if status is not None and status < 300:
                return answer
            if status is not None and status < 500 and status != 429:
                raise SourceError(f"{host} refused the request: HTTP {status}")
            if attempt < attempts - 1:
                self._sleep(min(LONGEST_PAUSE_S, retry_after_s or FIRST_PAUSE_S * 2**attempt))
        raise SourceError(f"{host} failed {count(attempts, 'time')}: {cause}")

    def _in_time(self, url: str, *request: Any) -> _Answer:
        # The limit needs a thread: a read blocks until its chunk is complete, and a slow server can send a
        # chunk byte by byte.
        ended: Future[_Answer] = Future()

        def follow() -> None:
            try:
                ended.set_result(self._follow(url, *request))
            except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
                ended.set_exception(error)

        Thread(target=follow, daemon=True).start()
        now_s = time.monotonic()
        left_s = REQUEST_TIMEOUT_S if self._deadline_s is None else max(0.0, self._deadline_s - now_s)
        if not wait([ended], left_s).done:
            raise _too_slow(url, self._within_s)
        return ended.result()

    def _follow(
        self, url: str, params: Mapping[str, str] | None, body: Any, headers: Mapping[str, str] | None
    ) -> _Answer:
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        if not is_safe(url):
            raise SourceError(f"{plain(url, 80)} is not https: refused")
        first_url = self._session.prepare_request(requests.Request("GET", url)).url or ""
        for _ in range(MAX_REDIRECTS + 1):
            method = "GET" if body is None else "POST"
            request = self._session.prepare_request(
                requests.Request(method, url, params=params, json=body, headers=headers)
            )
            # Check the URL as parsed by requests: with a backslash, parsers disagree on the host.
            target = request.url or ""
            if not same_host(first_url, target):
                raise SourceError(f"{_host(first_url)} redirects to another host ({plain(url, 80)}): refused")
            if not is_safe(target):
                raise SourceError(f"{plain(url, 80)} is not https: refused")
            with self._send(request, target) as response:
                if response.status_code not in _REDIRECTS:
                    answer = _body_of(response, deadline) if response.status_code < 300 else b""
                    retry_after = response.headers.get("retry-after", "")
                    in_seconds = retry_after.isascii() and retry_after.isdigit()  # else a date or nonsense
                    return response.status_code, float(retry_after) if in_seconds else None, answer
                url, params = urljoin(url, response.headers.get("location", "")), None
        raise SourceError(f"{_host(first_url)} redirects more than {MAX_REDIRECTS} times")

    def _send(self, request: requests.PreparedRequest, url: str) -> requests.Response:
        # Send a request with the proxy and certificates of the environment; no proxy for this machine.
        no_proxy = {"no_proxy": _host(url)} if url.startswith("http:") else {}
        settings = self._session.merge_environment_settings(
            url, no_proxy, stream=True, verify=None, cert=None
        )
        return self._session.send(request, timeout=SILENCE_TIMEOUT_S, allow_redirects=False, **settings)


class _Session(requests.Session):
    """A session that leaves redirects to its caller, because requests would read their entire bodies."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None: no redirect is followed."""


class _ByUrl(AuthBase):
    """Sends a password only if the URL contains it; by default, requests would use ~/.netrc too."""

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        name, password = get_auth_from_url(r.url or "")
        return HTTPBasicAuth(name, password)(r) if name else r


def _body_of(response: requests.Response, deadline: float) -> bytes:
    host = _host(response.url)
    encoding = response.headers.get("content-encoding", "")
    if encoding.strip().lower() not in _ENCODINGS:
        raise SourceError(f"{host} sent a body encoded as {plain(encoding, 60)!r}: refused")
    response.raw.enforce_content_length = True  # urllib3 1 accepts a truncated body as complete
    body = bytearray()
    for piece in response.iter_content(PIECE_BYTES):
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise SourceError(f"{host} sent over {MAX_BODY_BYTES:,} bytes: stopped")
        if time.monotonic() > deadline:
            raise _too_slow(response.url)
    return bytes(body)


def _too_slow(url: str, limit_s: float | None = None) -> SourceError:
    return SourceError(f"{_host(url)} took over {limit_s or REQUEST_TIMEOUT_S:g} s: stopped")


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


def _was_cut(error: Exception) -> bool:
    # Return whether an established connection broke or timed out, so a retry may help. A subclass of
    # ConnectionError means that no connection was established.
    return isinstance(error, (requests.ReadTimeout, requests.exceptions.ChunkedEncodingError)) or (
        type(error) is requests.ConnectionError
        and isinstance(_root(error), (ConnectionResetError, BrokenPipeError, TimeoutError))
    )


def _root(error: BaseException) -> BaseException:
    # Return the root cause of an error; the outer exceptions of requests quote the URL, perhaps with keys.
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _words(error: Exception) -> str:
    root = _root(error)
    return plain(str(root), 120) or type(root).__name__
