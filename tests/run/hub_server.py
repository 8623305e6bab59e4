"""A model hub on the loopback: what push and pull need of one, and no more."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class Hub:
    """Repositories by name, each a list of revisions: {file: content}."""

    def __init__(self):
        self.repositories = {}
        self.requests = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                length = int(self.headers.get("Content-Length") or 0)
                hub.post(self, unquote(self.path), self.rfile.read(length))

            def do_GET(self):
                hub.get(self, unquote(self.path).partition("?")[0])

            do_HEAD = do_GET  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def revision(self, name, number=-1):
        """The name of a revision, and its files."""
        files = self.repositories[name][number]
        facts = json.dumps({key: hashlib.sha256(data).hexdigest() for key, data in files.items()})
        return hashlib.sha1(facts.encode()).hexdigest(), files

    def find(self, name, wanted):
        for number in range(len(self.repositories.get(name, []))):
            if self.revision(name, number)[0] == wanted:
                return self.revision(name, number)
        return self.revision(name) if self.repositories.get(name) and wanted == "main" else None

    def post(self, handler, path, body):
        self.requests.append(("POST", path))
        if path == "/api/repos/create":
            record = json.loads(body)
            name = f"{record.get('organization')}/{record['name']}"
            self.repositories.setdefault(name, [])
            return answer(handler, {"url": f"{self.address}/{name}", "name": name})
        if path == "/api/validate-yaml":
            return answer(handler, {"errors": [], "warnings": []})
        _, _, _, owner, repository, job, *_ = path.split("/")
        name = f"{owner}/{repository}"
        if job == "preupload":
            files = json.loads(body)["files"]
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in files
            ]
            return answer(handler, {"files": modes})
        if job == "commit":
            lines = [json.loads(line) for line in body.splitlines() if line.strip()]
            new = dict(self.repositories[name][-1]) if self.repositories[name] else {}
            for line in lines:
                if line["key"] == "file":
                    new[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.repositories[name].append(new)
            oid, _ = self.revision(name)
            url = f"{self.address}/{name}/commit/{oid}"
            return answer(handler, {"success": True, "commitOid": oid, "commitUrl": url})
        return answer(handler, {"error": f"no {job}"}, 404)

    def get(self, handler, path):
        self.requests.append((handler.command, path))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name = "/".join(parts[2:4])
            found = self.find(name, parts[5] if len(parts) > 5 else "main")
            if found is None:
                return answer(handler, {"error": "Repository not found"}, 404, "RepoNotFound")
            oid, files = found
            if parts[4:5] == ["tree"]:
                tree = [
                    {
                        "type": "file",
                        "path": file,
                        "size": len(data),
                        "oid": hashlib.sha1(data).hexdigest(),
                    }
                    for file, data in files.items()
                ]
                return answer(handler, tree)
            siblings = [{"rfilename": file} for file in files]
            return answer(
                handler,
                {
                    "_id": "0",
                    "id": name,
                    "modelId": name,
                    "sha": oid,
                    "siblings": siblings,
                    "tags": [],
                },
            )
        if len(parts) < 4:  # a page for people
            return answer(handler, {})
        owner, repository, _, wanted, *rest = parts
        found = self.find(f"{owner}/{repository}", wanted)
        content = None if found is None else found[1].get("/".join(rest))
        if content is None:
            return answer(handler, {"error": "Entry not found"}, 404, "EntryNotFound")
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        handler.send_header("X-Repo-Commit", found[0])
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(content)
        return None


def answer(handler, record, status=200, kind=None):
    data = json.dumps(record).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    if kind is not None:
        handler.send_header("X-Error-Code", kind)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
