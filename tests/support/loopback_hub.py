"""A Hugging Face Hub on the loopback interface: what huggingface_hub asks for, and faults on demand.

Large files (.safetensors, .gguf, .bin) are kept as the Hub keeps them: the answer redirects to a second host, which
must never see a token.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Fault = Callable[["_Handler"], bool]
"""Answers a request in place of the server; False lets the server answer after all."""


@dataclass
class Repo:
    """A repository: files by path, revisions by name."""

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    @property
    def commit(self) -> str:
        """A commit that changes with the files."""
        digest = hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(self.files.items())))
        return digest.hexdigest()

    def resolve(self, revision: str) -> str | None:
        """Return the commit a revision names; None where there is no such revision."""
        if revision in ("main", self.commit):
            return self.commit
        return revision if revision in self.revisions.values() else self.revisions.get(revision)


def folder_files(folder: Path) -> dict[str, bytes]:
    """Read a folder as a repository's files."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class LoopbackHub:
    """The server; use it as a context manager.

    Attributes:
        repos: Repositories by `org/name`.
        tokens: Known tokens, each with the gated and private repositories it may read.
        faults: (method, path without query) -> Fault; `path` may end in `*`.
        requests: (method, path, token or "") of every request so far, in order.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.tokens: dict[str, set[str]] = {}
        self.faults: dict[tuple[str, str], Fault] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.released = threading.Event()
        """Set at the end; a fault that stalls waits for it."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> LoopbackHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering; the port refuses connections from then on."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def storage_url(self) -> str:
        """Another host by name, the same server: where large files lie."""
        return f"http://localhost:{self._server.server_port}/storage"

    def add(self, repo: str, folder: Path | None = None, **files: bytes) -> Repo:
        """Publish a folder's files, or some given ones, as a repository."""
        self.repos[repo] = Repo(folder_files(folder) if folder else dict(files))
        return self.repos[repo]

    def fault(self, method: str, path: str, fault: Fault) -> None:
        """Have `fault` answer each `method` request for `path`."""
        self.faults[method, path] = fault

    def asked(self, method: str = "", part: str = "") -> list[str]:
        """Return the paths of the requests so far with this method and this part in their path."""
        return [path for verb, path, _ in self.requests if method in ("", verb) and part in path]


def status(code: int, **headers: str) -> Fault:
    """Return a fault that answers with a status and headers (`X_Error_Code` becomes `X-Error-Code`)."""

    def answer(handler: _Handler) -> bool:
        handler.reply(code, b"", {name.replace("_", "-"): value for name, value in headers.items()})
        return True

    return answer


def page(handler: _Handler) -> bool:
    """Answer with a login page, as networks in hotels do."""
    handler.reply(200, b"<!doctype html><title>Welcome</title>", {"Content-Type": "text/html"})
    return True


def stall(handler: _Handler) -> bool:
    """Say nothing until the server ends."""
    handler.server.hub.released.wait()  # type: ignore[attr-defined]
    return True


def short_body(handler: _Handler) -> bool:
    """Send half of a file, and say that it is all of it."""
    data = handler.data()
    handler.reply(200, data[: len(data) // 2], {})
    return True


def stalled_body(handler: _Handler) -> bool:
    """Send half of a file, then nothing more and no end."""
    data = handler.data()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    return stall(handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Keep the tests' output clean."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    @property
    def hub(self) -> LoopbackHub:
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    def reply(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a whole answer; a HEAD gets the headers alone."""
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def data(self) -> bytes:
        """Return the whole file that the path names."""
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[0] == "storage":
            return self._stored(parts[1])
        return self.hub.repos["/".join(parts[:2])].files[unquote("/".join(parts[4:]))]

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.hub.requests.append((self.command, self.path, token))
        for (method, pattern), fault in list(self.hub.faults.items()):
            matches = path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern
            if method == self.command and matches and fault(self):
                self.close_connection = True
                return
        if path.startswith("/storage/"):
            self._body(self._stored(path.removeprefix("/storage/")), {})
        elif token and token not in self.hub.tokens:
            self.reply(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif path.startswith("/api/models/"):
            self._describe([unquote(part) for part in path.removeprefix("/api/models/").split("/")], token)
        elif "/resolve/" in path:
            self._resolve(path, token)
        else:
            self.reply(404, b"", {})

    def _repo(self, name: str, token: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and name not in self.hub.tokens.get(token, set())):
            self.reply(404 if token else 401, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        return repo

    def _describe(self, parts: list[str], token: str) -> None:
        name, rest = "/".join(parts[:2]), parts[2:]
        if (repo := self._repo(name, token)) is None:
            return
        commit = repo.resolve("/".join(rest[1:]) if rest else "main")
        if commit is None:
            self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        sizes = "blobs" in parse_qs(urlsplit(self.path).query)
        files: list[dict[str, Any]] = [
            {"rfilename": path} | ({"size": len(data)} if sizes else {}) for path, data in sorted(repo.files.items())
        ]
        answer = {"id": name, "modelId": name, "sha": commit, "siblings": files, "gated": repo.gated, "tags": []}
        self.reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _resolve(self, path: str, token: str) -> None:
        name, _, rest = path.strip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        if (repo := self._repo(name, token)) is None:
            return
        if repo.gated and name not in self.hub.tokens.get(token, set()):
            self.reply(403 if token else 401, b"", {"X-Error-Code": "GatedRepo"})
            return
        commit, data = repo.resolve(unquote(revision)), repo.files.get(unquote(file))
        if commit is None or data is None:
            self.reply(404, b"", {"X-Error-Code": "RevisionNotFound" if commit is None else "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": commit}
        if file.endswith((".safetensors", ".gguf", ".bin")):
            digest = hashlib.sha256(data).hexdigest()
            large = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
            self.reply(302, b"", headers | large | {"Location": f"{self.hub.storage_url}/{digest}"})
        else:
            blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
            self._body(data, headers | {"ETag": f'"{blob}"'})

    def _stored(self, digest: str) -> bytes:
        every = (data for repo in self.hub.repos.values() for data in repo.files.values())
        return next(data for data in every if hashlib.sha256(data).hexdigest() == digest)

    def _body(self, data: bytes, headers: dict[str, str]) -> None:
        span = self.headers.get("Range", "").removeprefix("bytes=")
        if not span:
            self.reply(200, data, headers)
            return
        start = int(span.partition("-")[0])
        if start >= len(data):
            self.reply(416, b"", headers)
            return
        self.reply(206, data[start:], headers | {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})
