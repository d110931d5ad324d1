"""A hub of a few repositories on a local port: the routes that huggingface_hub asks for, and their error headers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`repositories`: id → file → content. `requests` collects paths, `tokens` the Authorization headers."""

    url: str
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: bool = False
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def downloaded(self) -> set[str]:
        """Names of the files whose content was asked for."""
        return {
            path.split("/resolve/")[1].split("/", 1)[1]
            for path in self.requests
            if path.startswith("GET /") and "/resolve/" in path
        }


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub("")

    class Handler(BaseHTTPRequestHandler):
        # HTTP/1.0 on purpose: a connection that is kept open would outlive the server.

        def log_message(self, *_: object) -> None:
            """Silence."""

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            hub.tokens.add(self.headers.get("Authorization"))
            parts = self.path.split("?")[0].strip("/").split("/")
            is_api = parts[:2] == ["api", "models"]
            repo = "/".join(parts[2:4] if is_api else parts[:2])
            rest = parts[4:] if is_api else parts[2:]
            if hub.broken:
                # Not a 5xx: the library tries those again for half a minute.
                self.reply(409, b"{}")
            elif repo not in hub.repositories:
                self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif repo in hub.gated:
                self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"})
            elif len(rest) > 1 and rest[1] not in ("main", COMMIT):
                self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif is_api:
                self.api(repo, hub.repositories[repo], rest)
            else:
                content = hub.repositories[repo]["/".join(rest[2:])]
                self.reply(200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT})

        def api(self, repo: str, files: dict[str, bytes], rest: list[str]) -> None:
            if rest[:1] == ["tree"]:
                tree = [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in files.items()
                ]
                self.reply(200, json.dumps(tree).encode())
                return
            info = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files], "tags": []}
            self.reply(200, json.dumps(info).encode())

        def reply(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
