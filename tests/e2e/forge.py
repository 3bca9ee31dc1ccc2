"""A server that passes on what another one answers, but signs (with a key of its own) that the variant is other bytes, or that
its last step had another revision or input; or that answers, by the digests that were signed, another model or dataset.
forge.py URL FILE WHAT: writes its address to FILE."""
import base64
import hashlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

upstream, out, what = sys.argv[1:]
folder = tempfile.TemporaryDirectory()
pem = folder.name + "/key.pem"
subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", pem], check=True)
public = subprocess.run(["openssl", "pkey", "-in", pem, "-pubout", "-outform", "DER"], check=True, stdout=subprocess.PIPE).stdout[-32:]
other = "ab" * 32


def sign(payload, kind):
    pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    open(folder.name + "/pae", "wb").write(pae)
    signature = subprocess.run(["openssl", "pkeyutl", "-sign", "-inkey", pem, "-rawin", "-in", folder.name + "/pae"], check=True,
                               stdout=subprocess.PIPE).stdout
    text = lambda b: base64.b64encode(b).decode()
    return {"payload": text(payload), "payloadType": kind,
            "signatures": [{"keyid": "ed25519:" + public.hex(), "sig": text(signature)}]}


def forge(answer):
    top = answer["artifact"].split(":")[1]
    for item in answer["items"]:
        kind = item["envelope"]["payloadType"]
        statement = json.loads(base64.b64decode(item["envelope"]["payload"]))
        if statement["subject"][0]["digest"]["sha256"] != top:
            continue
        if what == "bytes":
            statement["subject"][0]["digest"]["sha256"] = other
        elif what == "input":
            statement["predicate"]["buildDefinition"]["externalParameters"]["derivation"]["inputs"]["model"] = "sha256:" + other
        else:
            statement["predicate"]["buildDefinition"]["externalParameters"]["derivation"]["revision"] += 1
        item["envelope"] = sign(json.dumps(statement).encode(), kind)
    if what == "bytes":
        answer["artifact"] = "sha256:" + other


fakes = {}  # the path of a blob that the upstream does not have: its bytes


def fetch(path, token):
    request = urllib.request.Request(upstream + path, headers={"Authorization": token})
    with urllib.request.urlopen(request) as answer:
        return answer.read(), answer.headers, answer.status


def other_model(version, path, token):
    """The file in the role "model" becomes another one, with a doc_string more."""
    blobs = path.split("/models/")[0] + "/blobs/"
    file = next(f for f in version["files"] if f["role"] == "model")
    fake = fetch(blobs + file["digest"], token)[0] + b"\x32\x05other"
    file["digest"] = "sha256:" + hashlib.sha256(fake).hexdigest()
    file["size"] = len(fake)
    fakes[file["digest"]] = fake


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, token = self.path.split("?")[0], self.headers["Authorization"]
        fake = fakes.get(urllib.parse.unquote(path.split("/")[-1]))
        body, headers, status = (fake, {}, 200) if fake else fetch(self.path, token)
        numbered = path.split("/")[-2] == "versions"
        if path.endswith("/attestations") and what in ("bytes", "revision", "input"):
            value = json.loads(body)
            forge(value)
            body = json.dumps(value).encode()
        elif numbered and "/models/" in path and what == "model":
            value = json.loads(body)
            other_model(value, path, token)
            body = json.dumps(value).encode()
        elif numbered and "/datasets/" in path and what == "data":
            value = json.loads(body)
            value["metadata"]["normalize"] = "scale=1/128,mean=0.5,std=0.5"
            body = json.dumps(value).encode()
        self.send_response(status)
        for name in ("Content-Type", "ETag", "X-Mlopt-Digest", "Content-Disposition"):
            if headers.get(name):
                self.send_header(name, headers[name])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(out + ".part", "w") as f:
    f.write(f"http://127.0.0.1:{server.server_port}")
os.rename(out + ".part", out)
server.serve_forever()
