"""A server that behaves like the hub of models: API, listings in pages, files by redirects to another host, tokens, and faults on request.
Standard library.

Files are those of a Repo: {path: bytes}. Large ones (ending as LARGE says) are "LFS": their listing has a SHA-256, and resolve answers 302
to the CDN, another port of this machine, with an address that is signed. Small ones come from the hub itself, by a relative redirect to its
resolve-cache, with git's SHA-1 as ETag."""
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

LARGE = (".safetensors", ".gguf")


def git_sum(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """gated: needs a token; private: without one it does not exist. commit: 40 digits, of all files unless it is given."""

    def __init__(self, files, gated=False, private=False, commit=None, tags=()):
        self.files, self.gated, self.private = dict(files), gated, private
        self.commit = commit or hashlib.sha1("".join(p + git_sum(d) for p, d in sorted(self.files.items())).encode()).hexdigest()
        self.revisions = {"main", self.commit, *tags}


class Fault:
    """What the server does wrong, to requests for a path that contains `path`, so many times. kind: a status, or "die" and "hold" (after so
    many bytes), "flip", "longer", "wrong range", "no ranges", "no length"."""

    def __init__(self, path, kind, times=1, after=0, header=None):
        self.path, self.kind, self.times, self.after, self.header = path, kind, times, after, header or {}


class Hub:
    """repos: {"org/name": Repo}. Good tokens: tokens. page: entries of a page of a listing."""

    def __init__(self, repos, tokens=("hf_good",), page=1000):
        self.repos, self.tokens, self.page = repos, set(tokens), page
        self.faults, self.log, self.lock = [], [], threading.Lock()
        self.moved = {}  # old name -> new name
        self.plain = {}  # files by their address alone: /files/NAME
        self.no_ranges = self.no_etag = False
        self.linked = None  # the host that links to next pages name: of a mirror, that of the hub
        self.elsewhere = None  # another hub, to which a mirror redirects for files
        self.released = threading.Event()  # what answers with the fault "hold" wait for, behind their bytes
        self.hub = self._serve(HubHandler)
        self.cdn = self._serve(CdnHandler)
        self.url = f"http://127.0.0.1:{self.hub.server_port}"
        self.cdn_url = f"http://localhost:{self.cdn.server_port}"

    def _serve(self, handler):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type(handler.__name__, (handler,), {"world": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def close(self):
        for s in (self.hub, self.cdn):
            s.shutdown()
            s.server_close()

    def fault(self, *args, **kw):
        with self.lock:
            self.faults.append(Fault(*args, **kw))

    def put_back(self, fault):
        """A redirect is not what was to fail."""
        with self.lock:
            if fault is not None:
                fault.times += 1

    def take_fault(self, path):
        with self.lock:
            for f in self.faults:
                if f.times > 0 and f.path in path:
                    f.times -= 1
                    return f
        return None

    def asked(self, where, part=""):
        """Requests that one of the hosts ("hub", "cdn") got: (method, path, headers)."""
        with self.lock:
            return [r[1:] for r in self.log if r[0] == where and part in r[2]]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world, where = None, ""

    def log_message(self, *args):
        pass

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            pass  # the client was killed, or has enough

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        with self.world.lock:
            self.world.log.append((self.where, self.command, self.path, dict(self.headers)))
        fault = self.world.take_fault(self.path)
        if fault is not None and isinstance(fault.kind, int):
            self.refuse(fault.kind, fault.header.get("X-Error-Code", ""), "asked to fail", fault.header)
            return
        self.answer(urllib.parse.urlsplit(self.path), fault)

    def refuse(self, status, code="", message="", header=None):
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        for k, v in {"X-Error-Code": code, "X-Error-Message": message, **(header or {})}.items():
            if v:
                self.send_header(k, v)
        self.finish_body(body)

    def finish_body(self, body):
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value, header=None):
        self.send_response(200)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        for k, v in (header or {}).items():
            self.send_header(k, v)
        self.finish_body(json.dumps(value).encode())

    def send_file(self, data, header, fault):
        """Its bytes, or those of a range, with what is to go wrong."""
        kind = fault.kind if fault else ""
        whole, total, status, first = data, len(data), 200, 0
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if m and not self.world.no_ranges and kind != "no ranges":
            first = int(m[1])
            if first >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.finish_body(b"")
                return
            data = data[first:int(m[2]) + 1 if m[2] else total]
            status = 206
        if kind == "flip":
            data = bytes([data[0] ^ 1]) + data[1:]
        if kind == "wrong range":
            first, data = 0, whole[:len(data)]
        if kind == "longer":
            data, total = data + b"more", total + 4
        self.send_response(status)
        for k, v in header.items():
            self.send_header(k, v)
        if not self.world.no_ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{total}")
        if kind == "no length":
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind in ("die", "hold") or (kind == "no length" and fault.after):
            data = data[:fault.after]
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            self.close_connection = True
        if kind in ("die", "hold"):
            self.close_connection = True
        if kind == "hold":
            self.world.released.wait(60)


class CdnHandler(Handler):
    """Knows files by their SHA-256, and nothing of tokens."""
    where = "cdn"

    def answer(self, url, fault):
        if "Signature=" not in url.query:
            self.refuse(403, "", "no signature")
            return
        for repo in self.world.repos.values():
            for data in repo.files.values():
                if url.path == "/" + hashlib.sha256(data).hexdigest():
                    self.send_file(data, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}, fault)
                    return
        self.refuse(404)


class HubHandler(Handler):
    where = "hub"

    def token(self):
        """The token of the request: None without one; False: a wrong one."""
        value = self.headers.get("Authorization")
        return None if value is None else value.removeprefix("Bearer ") in self.world.tokens

    def answer(self, url, fault):
        parts = [urllib.parse.unquote(p) for p in url.path.split("/")[1:]]
        if parts[0] == "files":
            data = self.world.plain.get(parts[1])
            header = {} if self.world.no_etag else {"ETag": f'"{hashlib.md5(data or b"").hexdigest()}"'}
            self.send_file(data, header, fault) if data is not None else self.refuse(404)
            return
        if parts[:3] == ["api", "resolve-cache", "models"]:
            self.answer_cached("/".join(parts[3:5]), parts[5], "/".join(parts[6:]), fault)
            return
        api = parts[:2] == ["api", "models"]
        org, name, *rest = (parts[2:] if api else parts) + [""] * 2
        full = f"{org}/{name}"
        if full in self.world.moved:
            self.send_response(307)
            self.send_header("Location", self.path.replace(full, self.world.moved[full]))
            self.finish_body(b"")
            return
        repo = self.world.repos.get(full)
        if self.token() is False:
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif repo is None or (repo.private and not self.token()):
            self.refuse(401 if self.token() is None else 404, "RepoNotFound", "Repository not found")
        elif api:
            self.answer_api(repo, full, rest, urllib.parse.parse_qs(url.query))
        elif rest[0] == "resolve":
            self.answer_file(repo, full, rest[1], "/".join(p for p in rest[2:] if p), fault)
        else:
            self.refuse(404)

    def answer_api(self, repo, full, rest, query):
        what, revision = (rest[0] or "revision"), (rest[1] or "main")
        if revision not in repo.revisions:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif what == "revision":
            self.send_json({"_id": "0", "id": full, "modelId": full, "sha": repo.commit, "private": repo.private,
                            "gated": "auto" if repo.gated else False, "disabled": False, "tags": [], "downloads": 0, "likes": 0,
                            "siblings": [{"rfilename": p} for p in sorted(repo.files)]})
        elif what == "tree":
            self.answer_tree(repo, full, revision, query)
        else:
            self.refuse(404)

    def answer_tree(self, repo, full, revision, query):
        rows = []
        for path, data in sorted(repo.files.items()):
            row = {"type": "file", "oid": git_sum(data), "size": len(data), "path": path}
            if path.endswith(LARGE):
                row["oid"] = hashlib.sha1(path.encode()).hexdigest()
                row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            rows.append(row)
        rows += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": d} for d in sorted({p.rpartition("/")[0] for p in repo.files} - {""})]
        at = int(query.get("cursor", ["0"])[0])
        header = {}
        if at + self.world.page < len(rows):
            again = f"{self.world.linked or self.world.url}/api/models/{full}/tree/{revision}?recursive=true&cursor={at + self.world.page}"
            header["Link"] = f'<{again}>; rel="next"'
        self.send_json(rows[at:at + self.world.page], header)

    def redirect(self, status, to, header):
        self.send_response(status)
        for k, v in {**header, "Location": to}.items():
            self.send_header(k, v)
        self.finish_body(b"")

    def answer_cached(self, full, commit, path, fault):
        repo = self.world.repos[full]
        if repo.gated and not self.token():
            self.refuse(401, "GatedRepo", f"Access to model {full} is restricted.")
        else:
            self.send_file(repo.files[path], {"X-Repo-Commit": commit, "ETag": f'"{git_sum(repo.files[path])}"'}, fault)

    def answer_file(self, repo, full, revision, path, fault):
        if self.world.elsewhere:
            self.redirect(308, self.world.elsewhere + self.path, {})
            return
        if repo.gated and not self.token():
            self.refuse(401, "GatedRepo", f"Access to model {full} is restricted.")
            return
        if revision not in repo.revisions or path not in repo.files:
            self.refuse(404, "EntryNotFound" if revision in repo.revisions else "RevisionNotFound", "Entry not found")
            return
        data = repo.files[path]
        header = {"X-Repo-Commit": repo.commit}
        self.world.put_back(fault)
        if not path.endswith(LARGE):
            query = urllib.parse.quote(urllib.parse.urlsplit(self.path).path, safe="") + f"=&etag=%22{git_sum(data)}%22"
            self.redirect(307, f"/api/resolve-cache/models/{full}/{repo.commit}/{urllib.parse.quote(path)}?{query}", header)
            return
        sha = hashlib.sha256(data).hexdigest()
        links = (f'<{self.world.url}/api/models/{full}/xet-read-token/{repo.commit}>; rel="xet-auth", '
                 f'<https://cas-server.invalid/v1/reconstructions/{sha}>; rel="xet-reconstruction-info"')
        self.redirect(302, f"{self.world.cdn_url}/{sha}?Signature=secret-of-the-cdn",
                      {**header, "X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{sha}"', "Link": links})
