"""A stand-in for the Hugging Face hub: what huggingface_hub asks of it to make, fill and fetch a model, and no more."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_stand_in"
FULL = "anna/full"  # a model that cannot be made
TIRED = "anna/tired"  # one that the hub cannot give
GONE = "anna/gone"  # one at which it breaks off


class StandIn(ThreadingHTTPServer):
    """Models by their names, each a dictionary of files; the last request of each kind."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.stored: dict[str, bytes] = {}
        self.private: dict[str, bool] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: Any = None, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def allowed(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self.answer({"error": "Invalid credentials"}, 401)
        return False

    def do_POST(self) -> None:
        given, hub = self.body(), self.server
        if not self.allowed():
            return
        if self.path == "/api/repos/create":
            asked = json.loads(given)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            if name == FULL:
                self.answer({"error": "Storage is full"}, 413)
                return
            known = name in hub.models
            hub.models.setdefault(name, {})
            hub.private.setdefault(name, bool(asked.get("private")) or asked.get("visibility") == "private")
            self.answer({"url": f"{hub.url}/{name}", "name": name}, 409 if known else 200)
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.path.endswith("/info/lfs/objects/batch"):
            found = [
                {**each, "actions": {"upload": {"href": f"{hub.url}/storage/{each['oid']}", "header": {}}}}
                for each in json.loads(given)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": found})
        elif "/preupload/" in self.path:
            files = json.loads(given)["files"]
            kinds = {each["path"]: "lfs" if each["path"].endswith("safetensors") else "regular" for each in files}
            self.answer(
                {"files": [{"path": path, "uploadMode": kind, "shouldIgnore": False} for path, kind in kinds.items()]}
            )
        elif "/commit/" in self.path:
            name = "/".join(self.path.split("/")[3:5])
            for line in given.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    hub.models[name][value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    hub.models[name][value["path"]] = hub.stored[value["oid"]]
            url = f"{hub.url}/{name}/commit/{revision(hub.models[name])}"
            self.answer({"success": True, "commitOid": revision(hub.models[name]), "commitUrl": url, "hookOutput": ""})
        else:
            self.answer({"error": f"not known here: POST {self.path}"}, 404)

    def do_PUT(self) -> None:
        content = self.body()
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.server.stored[self.path.rpartition("/")[2]] = content
        self.answer({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, parts = self.server, self.path.partition("?")[0].strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        files = hub.models.get(name)
        if name == GONE:
            self.close_connection = True
        elif name == TIRED:
            self.answer({"error": "Try again later"}, 403)
        elif files is None:
            self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif parts[0] == "api" and "tree" in parts:
            self.answer(
                [{"type": "file", "path": each, "size": len(files[each]), "oid": "0"} for each in sorted(files)]
            )
        elif parts[0] == "api":
            siblings = [{"rfilename": each} for each in sorted(files)]
            self.answer({"id": name, "sha": revision(files), "siblings": siblings, "tags": [], "private": False})
        elif parts[2] == "resolve" and "/".join(parts[4:]) in files:
            content = files["/".join(parts[4:])]
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": revision(files)}
            self.answer(content, headers=headers)
        else:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})


def revision(files: dict[str, bytes]) -> str:
    """A commit's name: 40 digits that depend on all files."""
    return hashlib.sha1(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()


@contextmanager
def standing_in() -> Iterator[StandIn]:
    """The stand-in, listening on this machine."""
    with StandIn() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
