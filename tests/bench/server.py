#!/usr/bin/env python3
"""The HTTP server at 2,000 models x 50 versions: reads of a version over 64 kept connections (wrk), with --mlflow next to MLflow's
server on the same PostgreSQL, in turn, and the searches of MLflow's client; the same reads at half the rate, each round next to one
of a server that answers the same bytes and does nothing for it: what the machine itself adds to the p99; the pages, how long the
server takes and how many bytes they have; memory and connections to the database under load and after it.

    tests/bench/server.py --mlopt build/mlopt [--mlflow] [--models 2000] [--rounds 7] [--seconds 4] [--long 60] [--json FILE]

Needs wrk (Debian's) and psycopg2; with --mlflow, MLflow (requirements-mlflow.txt). The data set is registry.py's."""
import argparse
import hashlib
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import psycopg2

import registry
from registry import VERSIONS, Server, fill_mlopt, q, wait

LUA = """
local models, prefix, middle = %d, %s, %s
local pause = tonumber(os.getenv("PAUSE_MS"))
local thread = 1
function setup(t) t:set("seed", thread) thread = thread + 1 end
function init(args) math.randomseed(seed * 7919) end
if pause > 0 then
  function delay() return math.random(0, math.floor(2 * pause)) end
end
function request()
  return wrk.format("GET", prefix .. math.random(0, models - 1) .. middle .. math.random(1, %d))
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %%d %%d %%f %%f %%f %%d\\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), latency.max, e.connect + e.read + e.write + e.status + e.timeout))
end
"""
# one thread that answers whatever comes with the same bytes
IDLE = """
import selectors, socket, sys
body = sys.stdin.buffer.read()
answer = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body
ear = socket.create_server(("127.0.0.1", 0), backlog=128)
print(ear.getsockname()[1], flush=True)
look = selectors.DefaultSelector()
look.register(ear, selectors.EVENT_READ)
while True:
    for key, _ in look.select():
        if key.fileobj is ear:
            look.register(ear.accept()[0], selectors.EVENT_READ)
        elif key.fileobj.recv(8192):
            key.fileobj.sendall(answer)
        else:
            look.unregister(key.fileobj)
            key.fileobj.close()
"""
# what MLflow's client searches: the call, its arguments for a number below that of models, and what stands before a model's name
SEARCHES = {"models, the first 100": ("registered-models", lambda n, at: {}),
            "models, LIKE": ("registered-models", lambda n, at: {"filter": f"name LIKE '{at}net{n % 100}%'"}),
            "a model by its name": ("registered-models", lambda n, at: {"filter": f"name = '{at}net{n}'"}),
            "a model's versions": ("model-versions", lambda n, at: {"filter": f"name = '{at}net{n}'", "max_results": 50}),
            "versions by a tag": ("model-versions", lambda n, at: {"filter": f"tags.team = 't{n % 20}'", "max_results": 50}),
            "versions by a rare tag": ("model-versions", lambda n, at: {"filter": f"tags.ticket = 't{n % 10000}'", "max_results": 50})}
PAGES = {"home": "/", "home, searched": "/?q=net19", "a model": "/models/bench/net7", "a version": "/models/bench/net7?version=3",
         "busy model": "/models/bench/busy", "promotion log": "/promotions/bench/busy", "in force at a time":
         "/promotions/bench/busy?stage=production&at=2030-01-01T00:00:00Z", "release": "/release/bench/busy/2", "runs": "/runs",
         "a run": "/runs/bench/1", "audit": "/audit/bench", "audit, filtered": "/audit/bench?action=stage.&who=admin",
         "search": "/search/bench", "search, by metric": "/search/bench?filter=tag.team+%3D+t3+and+metric.top1+%3E%3D+0.5&order=metric.loss:asc",
         "variant": "/variant/bench/net7/3/source", "compare": "/compare/bench/net7?a=1/source&a=2/source", "projects": "/projects",
         "datasets": "/datasets", "workers": "/workers", "usage": "/usage/bench", "tokens": "/tokens"}


def fill_files(db):
    """Each version has a file of its own, of which there are no bytes."""
    with db.cursor() as c:
        c.execute("SET search_path = mlopt; SET synchronous_commit = off")
        c.execute("INSERT INTO blob (digest, size) SELECT manifest_digest, 5 FROM version ON CONFLICT DO NOTHING")
        c.execute("INSERT INTO version_blob (version_id, role, name, digest, size, media_type) SELECT id, 'model', 'm.onnx', "
                  "manifest_digest, 5, 'application/octet-stream' FROM version")
        c.execute("INSERT INTO variant (version_id, name, artifact, size, named_by) SELECT id, 'source', manifest_digest, 5, 'bench' "
                  "FROM version")
        c.execute("VACUUM ANALYZE")


def fill_history(ask):
    """A model with many versions, moves and runs, by the API; so the audit log is long, too."""
    recipe = "name: bench\nsteps:\n  - benchmark: {batch: [1]}\n"
    for i in range(60):
        data = b"busy %d" % i
        own = "sha256:" + hashlib.sha256(data).hexdigest()
        ask("PUT", f"/v1/projects/bench/blobs/{own}", raw=data)
        ask("POST", "/v1/projects/bench/models/busy/versions", {"files": [{"role": "model", "name": "m.onnx", "digest": own}],
                                                                "description": "one of many"})
    etag = ask("GET", "/v1/projects/bench/models/busy/stages/production")[1]
    for i in range(300):
        ask("POST", "/v1/projects/bench/models/busy/promotions", {"stage": "production", "version": 1 + i % 60, "variants":
            {"any": "source"}, "reason": "it is better than what was there before"}, headers={"If-Match": etag})
        etag = '"%d"' % (int(etag.strip('"')) + 1)
    for i in range(200):
        ask("POST", "/v1/projects/bench/runs", {"model": "busy", "version": 1 + i % 60, "recipe": recipe})


class Wrk:
    def __init__(self, work, name, port, models, prefix, middle, headers):
        self.script = os.path.join(work, name + ".lua")
        with open(self.script, "w") as f:
            f.write(LUA % (models, json.dumps(prefix), json.dumps(middle), VERSIONS))
        self.command = ["wrk", "-s", self.script, f"http://127.0.0.1:{port}"]
        for header in headers:
            self.command += ["-H", header]

    def __call__(self, connections, seconds, pause_ms=0.0):
        """`pause_ms`: the mean of what a connection waits before each request."""
        run = subprocess.run(self.command + ["-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "60s"],
                             capture_output=True, text=True, env=dict(os.environ, PAUSE_MS=str(pause_ms)))
        found = re.search(r"RESULT (\S+) (\S+) (\S+) (\S+) (\S+) (\S+)", run.stdout)
        if not found:
            sys.exit(f"wrk: {run.stdout} {run.stderr}")
        n, us, p50, p99, most, errors = (float(x) for x in found.groups())
        if errors:
            sys.exit(f"{self.script}: {errors:.0f} of {n:.0f} requests failed\n{run.stdout}")
        return {"rate": n / us * 1e6, "p50": p50 / 1e3, "p99": p99 / 1e3, "max": most / 1e3}


def memory_mb(pid, key="VmRSS"):
    return int(re.search(key + r":\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1)) / 1024


def page(port, path, cookie):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    begin = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    text = answer.read()
    took = (time.perf_counter() - begin) * 1e3
    connection.close()
    if answer.status != 200:
        sys.exit(f"{path}: {answer.status} {text[:300]}")
    return took, len(text)


def sign_in(port, token):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/login", "token=" + token, {"Content-Type": "application/x-www-form-urlencoded"})
    return connection.getresponse().getheader("Set-Cookie").split(";")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlopt", default="build/mlopt")
    parser.add_argument("--mlflow", action="store_true")
    parser.add_argument("--models", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=4, help="of a round")
    parser.add_argument("--searches", type=int, default=12, help="of each kind, where MLflow's server is asked the same")
    parser.add_argument("--long", type=int, default=60, help="seconds of load before memory is read for the last time")
    parser.add_argument("--json")
    a = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("wrk is not installed")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        os.chmod(work, 0o711)  # PostgreSQL runs as another user when this is root
        children = []
        try:
            run(a, work, children)
        except BaseException:
            print("".join(open(os.path.join(work, "log")).readlines()[-15:]), file=sys.stderr)
            raise
        finally:
            for child in reversed(children):
                child.terminate()
                child.wait()


def run(a, work, children):
    data = os.path.join(work, "data")
    log = open(os.path.join(work, "log"), "w")
    up = subprocess.Popen([a.mlopt, "up", "--data", data, "--listen", "127.0.0.1:0", "--workers", "0", "--log-level", "error"], stdout=log,
                          stderr=log)
    children.append(up)
    wait("mlopt up", lambda: os.path.exists(f"{data}/url") and os.path.getsize(f"{data}/url"), up)
    port = int(open(f"{data}/url").read().strip().rsplit(":", 1)[1].rstrip("/"))
    token = open(f"{data}/token").read().strip()
    ask = Server(port, {"Authorization": "Bearer " + token})
    socket = open(f"{data}/pg/cluster/postmaster.pid").read().split("\n")[4]

    def connect(name):
        db = psycopg2.connect(host=socket, user="mlopt_admin", dbname=name)
        db.autocommit = True
        return db

    at_rest = memory_mb(up.pid)
    print("filling", file=sys.stderr)
    db = connect("mlopt")
    fill_mlopt(db, a.models)
    fill_files(db)
    fill_history(ask)
    with db.cursor() as c:
        c.execute("VACUUM ANALYZE")
    servers = {"mlopt": Wrk(work, "mlopt", port, a.models, "/v1/projects/bench/models/net", "/versions/",
                            ["Authorization: Bearer " + token])}
    if a.mlflow:
        mlflow = registry.start_mlflow(connect, socket, work, log, a.models)
        children.append(mlflow.process)
        servers["MLflow"] = Wrk(work, "mlflow", mlflow.port, a.models, "/api/2.0/mlflow/model-versions/get?name=net", "&version=", [])

    result = {"load": os.getloadavg()[0], "pages": {}, "reads": {name: [] for name in servers}, "searches": {}}

    # --- pages, each first on a connection to the database that has not prepared its statements
    cookie = sign_in(port, token)
    for name, path in PAGES.items():
        first, size = page(port, path, cookie)
        again = [page(port, path, cookie)[0] for _ in range(20)]
        result["pages"][name] = {"first": first, "p50": statistics.median(again), "max": max(again), "bytes": size}

    # --- MLflow's searches of both, in turn
    for what, (call, arguments) in SEARCHES.items() if a.mlflow else ():
        took, found = {"mlopt": [], "MLflow": []}, {}
        for i in range(a.searches + 1):
            for who, server, at in (("mlopt", ask, "bench."), ("MLflow", mlflow, "")):
                n = i * 7919 % a.models
                answer, _, ms = server("GET", f"/api/2.0/mlflow/{call}/search?" + q(**arguments(n, at)))
                found.setdefault(i, set()).add(len(answer.get("registered_models", answer.get("model_versions", []))))
                if i:  # the first prepares statements
                    took[who].append(ms)
        if any(len(counts) != 1 for counts in found.values()) or not any(max(counts) for counts in found.values()):
            sys.exit(f"{what}: the servers found {found}")
        result["searches"][what] = {who: {"p50": statistics.median(ms), "max": max(ms)} for who, ms in took.items()}

    # --- reads of a version, the servers in turn
    connections = []
    for i in range(a.rounds + 1):
        for name, wrk in servers.items():
            figures = wrk(64, a.seconds)
            if i:  # the first prepares statements
                result["reads"][name].append(figures)
            time.sleep(0.5)
        with db.cursor() as c:
            c.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'mlopt server%'")
            connections.append(c.fetchone()[0])
    top = statistics.median(r["rate"] for r in result["reads"]["mlopt"])
    idle = subprocess.Popen([sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    children.append(idle)
    idle.stdin.write(json.dumps(ask("GET", "/v1/projects/bench/models/net7/versions/3")[0]).encode())
    idle.stdin.close()
    paced = {"mlopt, at half the rate": servers["mlopt"],
             "the same bytes, at half the rate": Wrk(work, "idle", int(idle.stdout.readline()), a.models, "/net", "/", [])}
    for _ in range(a.rounds):
        for name, wrk in paced.items():
            result["reads"].setdefault(name, []).append(wrk(64, a.seconds, 2 * 64e3 / top))
    under_load = memory_mb(up.pid)
    if a.long:
        servers["mlopt"](64, a.long)
    result["memory"] = {"at rest": at_rest, "after reads": under_load, "after long": memory_mb(up.pid), "peak": memory_mb(up.pid, "VmHWM")}
    result["connections"] = max(connections)
    show(a, result)


def show(a, result):
    print(f"load of the machine before it: {result['load']:.1f}\n")
    print("| 64 connections | reads/s | p50 ms | p99 ms | p99, of the best and the worst round |\n|---|---:|---:|---:|---:|")
    middle = {}
    for name, rounds in result["reads"].items():
        middle[name] = {key: statistics.median(r[key] for r in rounds) for key in ("rate", "p50", "p99")}
        m = middle[name]
        p99 = sorted(r["p99"] for r in rounds)
        print(f"| {name} | {m['rate']:.0f} | {m['p50']:.2f} | {m['p99']:.2f} | {p99[0]:.2f}, {p99[-1]:.2f} |")
    if "MLflow" in middle:
        ratios = sorted(o["rate"] / t["rate"] for o, t in zip(result["reads"]["mlopt"], result["reads"]["MLflow"]))
        print(f"\nrate over MLflow's, by round: {ratios[0]:.0f} to {ratios[-1]:.0f}, median {statistics.median(ratios):.0f}")
    print("\n| page | first ms | p50 ms | largest of 20 | KB |\n|---|---:|---:|---:|---:|")
    for name, p in result["pages"].items():
        print(f"| {name} | {p['first']:.1f} | {p['p50']:.1f} | {p['max']:.1f} | {p['bytes'] / 1000:.1f} |")
    if result["searches"]:
        print("\n| MLflow's searches | mlopt p50, max (ms) | MLflow p50, max (ms) | MLflow / mlopt, medians |\n|---|---:|---:|---:|")
    for what, by in result["searches"].items():
        ours, theirs = by["mlopt"], by["MLflow"]
        print(f"| {what} | {ours['p50']:.1f}, {ours['max']:.1f} | {theirs['p50']:.1f}, {theirs['max']:.1f} | "
              f"{theirs['p50'] / ours['p50']:.1f} |")
    m = result["memory"]
    print(f"\nserver's memory: {m['at rest']:.1f} MB at rest, {m['after reads']:.1f} MB after the reads, {m['after long']:.1f} MB after "
          f"{a.long} s more, {m['peak']:.1f} MB at most; {result['connections']} connections to the database at most")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
