"""The one way out to the network: bounded in time and size, https only, and never led to another host.

This machine may be asked by plain http: nothing leaves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import httpx

from gpubench import __version__
from gpubench.offers.sources import SourceError, is_safe, same_host
from gpubench.units import plain

MAX_BODY_BYTES = 64 * 1024**2
REQUEST_TIMEOUT_S = 60.0
"""For one request with its whole body; a server that drips bytes cannot hold a refresh longer."""
SILENCE_TIMEOUT_S = 15.0
MAX_RETRIES = 3
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 20.0
MAX_REDIRECTS = 3
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
"""Of one such layer a piece of 64 KB unfolds to 64 MB at most; of two in one another to far more."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class HttpTransport:
    """A transport on httpx; use as a context manager. See ``sources.Transport`` for the call.

    Args:
        sleep: Waits between tries.
    """

    def __init__(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._client = httpx.Client(
            timeout=SILENCE_TIMEOUT_S,
            follow_redirects=False,
            headers={"User-Agent": f"gpubench/{__version__}", "Accept-Encoding": "gzip"},
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close its connections."""
        self._client.close()

    def __call__(
        self,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the body of a successful answer, after at most three more tries on 429, 5xx or a cut.

        Raises:
            SourceError: On anything else; the message names host and cause.
        """
        host = urlsplit(url).hostname or url
        for attempt in range(MAX_RETRIES + 1):
            try:
                status, retry_after_s, answer = self._follow(url, params, body, headers)
            except (httpx.ReadError, httpx.RemoteProtocolError, httpx.ReadTimeout) as error:
                status, retry_after_s, answer = None, None, f"connection broke ({_words(error)})".encode()
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise SourceError(f"{host} is not reachable ({_words(error)})") from None
            if status is not None and status < 300:
                return answer
            if status is not None and status < 500 and status != 429:
                raise SourceError(f"{host} refused the request: HTTP {status}")
            if attempt < MAX_RETRIES:
                self._sleep(min(LONGEST_PAUSE_S, retry_after_s or FIRST_PAUSE_S * 2**attempt))
        cause = answer.decode() if status is None else f"HTTP {status}"
        raise SourceError(f"{host} failed {MAX_RETRIES + 1} times: {cause}")

    def _follow(
        self, url: str, params: Mapping[str, str] | None, body: Any, headers: Mapping[str, str] | None
    ) -> tuple[int, float | None, bytes]:
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        asked, host = url, urlsplit(url).hostname
        for _ in range(MAX_REDIRECTS + 1):
            if not is_safe(url):
                raise SourceError(f"{plain(url, 80)} is not https: refused")
            method = "GET" if body is None else "POST"
            with self._client.stream(method, url, params=params, json=body, headers=headers) as response:
                if response.status_code not in _REDIRECTS:
                    answer = _body_of(response, deadline) if response.status_code < 300 else b""
                    retry_after = response.headers.get("retry-after", "")
                    in_seconds = retry_after.isascii() and retry_after.isdigit()  # else a date or nonsense
                    return response.status_code, float(retry_after) if in_seconds else None, answer
                url, params = urljoin(url, response.headers.get("location", "")), None
            if not same_host(asked, url):
                raise SourceError(f"{host} redirects to another host ({plain(url, 80)}): refused")
        raise SourceError(f"{host} redirects more than {MAX_REDIRECTS} times")


def _body_of(response: httpx.Response, deadline: float) -> bytes:
    """Return the body of an answer, read piece by piece and given up past a cap."""
    encoding = response.headers.get("content-encoding", "")
    if encoding.strip().lower() not in _ENCODINGS:
        raise SourceError(f"{response.url.host} sent a body encoded as {plain(encoding, 60)!r}: refused")
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise SourceError(f"{response.url.host} sent over {MAX_BODY_BYTES:,} bytes: stopped")
        if time.monotonic() > deadline:
            raise SourceError(f"{response.url.host} took over {REQUEST_TIMEOUT_S:g} s: stopped")
    return bytes(body)


def _words(error: Exception) -> str:
    return plain(str(error), 120) or type(error).__name__
