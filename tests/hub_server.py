"""A server on this machine that answers as the Hugging Face Hub does, and counts what it sends."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit


class HubServer:
    """Models in folders, each revision one.

    Attributes:
        models: folders by model and revision; a commit is a digest of its folder's name.
        gated: the token that opens a model.
        sent: bytes of files by name.
        requests: how often each method and kind of address was asked for.
        broken: status that every file is answered with, while it is set.
    """

    def __init__(self) -> None:
        self.models: dict[str, dict[str, Path]] = {}
        self.gated: dict[str, str] = {}
        self.sent: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.broken: int | None = None
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> HubServer:
        Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def commit(self, model: str, revision: str) -> str | None:
        """Of a branch, tag or commit; None if there is none."""
        commits = {name: hashlib.sha1(str(f).encode()).hexdigest() for name, f in self.models[model].items()}
        return commits.get(revision, revision if revision in commits.values() else None)

    def folder(self, model: str, commit: str) -> Path:
        """Of a commit."""
        return next(f for name, f in self.models[model].items() if self.commit(model, name) == commit)

    def reset(self) -> None:
        """Count from zero."""
        self.sent.clear()
        self.requests.clear()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: dict[str, Any] | None = None) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/models":
            self.hub.requests["search"] += 1
            return self._json([{"id": model} for model in self.hub.models])
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|paths-info|refs)(?:/(.+))?)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        model = (api or file or [None, None])[1]
        if model not in self.hub.models:
            return self._error(404, "RepoNotFound")
        if api:
            kind, rest = api[2], api[3] or "main"
            self.hub.requests[f"api {kind}"] += 1
            if kind == "refs":
                branches = [
                    {"name": n, "ref": f"refs/heads/{n}", "targetCommit": self.hub.commit(model, n)}
                    for n in self.hub.models[model]
                ]
                return self._json({"branches": branches, "tags": [], "converts": []})
            revision, _, below = rest.partition("/")
            if (commit := self.hub.commit(model, revision)) is None:
                return self._error(404, "RevisionNotFound")
            folder = self.hub.folder(model, commit)
            files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
            if kind == "tree":
                here = {n: s for n, s in files.items() if n.rpartition("/")[0] == below}
                return self._json([{"type": "file", "path": n, "size": s, "oid": "0" * 40} for n, s in here.items()])
            if kind == "paths-info":
                wanted = [n for n in body["paths"] if n in files]
                return self._json([{"type": "file", "path": n, "size": files[n], "oid": "0" * 40} for n in wanted])
            siblings = [{"rfilename": n, "size": s, "blobId": "0" * 40} for n, s in files.items()]
            return self._json({"id": model, "sha": commit, "siblings": siblings, "gated": model in self.hub.gated})
        self.hub.requests[f"{self.command} file"] += 1
        self._file(model, file[2], file[3])

    def _file(self, model: str, revision: str, name: str) -> None:
        token = self.hub.gated.get(model)
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            return self._error(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        if (commit := self.hub.commit(model, revision)) is None:
            return self._error(404, "RevisionNotFound")
        path = self.hub.folder(model, commit) / name
        if not path.is_file():
            return self._error(404, "EntryNotFound", {"X-Repo-Commit": commit})
        if self.hub.broken is not None and self.command == "GET":
            return self._error(self.hub.broken, "Broken")
        content, status = path.read_bytes(), 200
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if self.command == "GET" and name.endswith(".safetensors") and not self.path.endswith("?here"):
            return self._send(302, b"", {"Location": f"{self.path}?here"})  # as to the servers of large files
        if span := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(span[1]), int(span[2])
            headers["Content-Range"] = f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}"
            content, status = content[first : last + 1], 206
        if self.command == "GET":
            self.hub.sent[name] += len(content)
        self._send(status, content, headers)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code} | (headers or {}))

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


CHILD = """
import json, sys
from exor import InputError
from exor.pretrained.checkpoints import open_checkpoint

for line in sys.stdin:
    job, told = json.loads(line), {}
    try:
        checkpoint = open_checkpoint(job["source"], revision=job.get("revision"))
        told |= {"name": checkpoint.name, "commit": checkpoint.commit, "before": checkpoint.bytes_to_fetch}
        told |= {"rows": checkpoint.rows, "tokens": checkpoint.tokens, "gguf": str(checkpoint.gguf_path)}
        if job.get("file"):
            told["file"] = (checkpoint.file(job["file"]) or b"").decode()
        if job.get("read"):
            heard = []
            found = checkpoint.read(watch=lambda *now: heard.append(now))
            told |= {"fingerprint": found.fingerprint, "tied": found.tied, "heard": heard[-1:]}
            told["after"] = checkpoint.bytes_to_fetch
    except InputError as error:
        told["error"] = str(error)
    print(json.dumps(told), flush=True)
"""
