#!/usr/bin/env python3
"""A way to a server that loses the first answer to every POST: the request gets there, and the connection breaks.

    python3 tests/e2e/lossy.py http://127.0.0.1:8080

Prints its own address; ends with its standard input."""
import http.client
import http.server
import sys
import threading
import urllib.parse

upstream = urllib.parse.urlparse(sys.argv[1]).netloc
seen = set()


class Lossy(http.server.BaseHTTPRequestHandler):
    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server = http.client.HTTPConnection(upstream, timeout=120)
        server.request(self.command, self.path, body or None, dict(self.headers))
        answer = server.getresponse()
        data = answer.read()
        server.close()
        self.close_connection = True
        if self.command == "POST" and (self.path, body) not in seen:
            seen.add((self.path, body))
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name not in ("Connection", "Content-Length", "Transfer-Encoding", "Date", "Server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if self.command != "HEAD" else b"")

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

    def log_message(self, *args):
        pass


listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lossy)
threading.Thread(target=listener.serve_forever, daemon=True).start()
print(f"http://127.0.0.1:{listener.server_port}", flush=True)
sys.stdin.read()
