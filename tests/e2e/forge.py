"""A server that passes on what another one answers, but signs (with a key of its own) that the variant is other bytes, or that
its last step had another revision. forge.py URL FILE WHAT: writes its address to FILE."""
import base64
import http.server
import json
import os
import subprocess
import sys
import tempfile
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
        else:
            statement["predicate"]["buildDefinition"]["externalParameters"]["derivation"]["revision"] += 1
        item["envelope"] = sign(json.dumps(statement).encode(), kind)
    if what == "bytes":
        answer["artifact"] = "sha256:" + other


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        request = urllib.request.Request(upstream + self.path, headers={"Authorization": self.headers["Authorization"]})
        with urllib.request.urlopen(request) as answer:
            body, headers, status = answer.read(), answer.headers, answer.status
        if self.path.split("?")[0].endswith("/attestations"):
            value = json.loads(body)
            forge(value)
            body = json.dumps(value).encode()
        self.send_response(status)
        for name in ("Content-Type", "ETag", "X-Mlopt-Digest", "Content-Disposition"):
            if headers[name]:
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
