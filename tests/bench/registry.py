#!/usr/bin/env python3
"""The registry at 2,000 models x 50 versions x 5 tags: search, creating a version, moving a pointer; with --mlflow, MLflow's
server beside it on the same PostgreSQL. Starts `mlopt up` (and MLflow) on a folder of its own, fills the tables by SQL from the
same formulas, asks over HTTP on one connection, the servers in turn, and prints p50 and p99 in milliseconds.

    tests/bench/registry.py --mlopt build/mlopt [--mlflow] [--models 2000] [--rounds 100] [--json FILE]

Needs psycopg2; with --mlflow, MLflow (requirements-mlflow.txt)."""
import argparse
import hashlib
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.parse

import psycopg2

VERSIONS = 50
TAGS = {"team": 20, "env": 3, "owner": 200, "ticket": 10000, "quality": 5}  # name: how many values it has
# what a version has is a function of its number n; R(k) is the k-th pseudo-random number below 2^31 of it
R = "((hashint8extended(n, {}) & 2147483647))"
METRICS = {"top1": 1, "loss": 2, "latency": 3}
PARAMS = {"lr": "(ARRAY[0.1, 0.03, 0.01, 0.003, 0.001])[1 + {} % 5]", "batch": "(32 * (1 + {} % 8))::float8"}
# env 'dev' is never of the quality 'q4': each is common, both together never
TAG_VALUE = "CASE WHEN {k} = 'quality' AND {r1} % 3 = 0 THEN 'q' || {r} % 4 ELSE substr({k}, 1, 1) || {r} % {n} END"


def tag_sql(name):
    r = R.format(10 + list(TAGS).index(name))
    return TAG_VALUE.format(k="'%s'" % name, r=r, r1=R.format(11), n=TAGS[name]) if name == "quality" else (
        "'%s' || %s %% %d" % (name[0], r, TAGS[name]))


def wait(what, ready, process, seconds=300):
    until = time.time() + seconds
    while time.time() < until:
        if process.poll() is not None:
            sys.exit(f"{what} ended with {process.returncode}")
        if ready():
            return
        time.sleep(0.2)
    sys.exit(f"{what} was not ready in {seconds} s")


burst = {"pids": None, "until": 0.0}  # --realtime: who, and when it must end


def schedule(policy, priority):
    """All threads of these processes, of what they started, and of this one."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents.setdefault(int(open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()[1]), []).append(int(entry))
            except OSError:
                pass
    todo, seen = list(burst["pids"]) + [os.getpid()], set()
    while todo:
        pid = todo.pop()
        if pid in seen:
            continue
        seen.add(pid)
        todo += parents.get(pid, [])
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                os.sched_setscheduler(int(task), policy, os.sched_param(priority))
        except OSError:  # it ended
            pass


def breathe():
    """In the real-time class for 0.7 s at most, then 0.5 s for the others of this machine."""
    if burst["pids"] is None or time.time() < burst["until"]:
        return
    schedule(os.SCHED_OTHER, 0)
    time.sleep(0.5)
    schedule(os.SCHED_FIFO, 10)
    burst["until"] = time.time() + 0.7


class Server:
    def __init__(self, port, headers):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        self.headers = headers

    def __call__(self, method, path, body=None, headers=None, raw=None):
        """The answer's JSON, its ETag and the milliseconds that it took."""
        data = raw if raw is not None else json.dumps(body) if body is not None else None
        every = dict(self.headers, **(headers or {}))
        if raw is None and body is not None:
            every["Content-Type"] = "application/json"
        breathe()
        for last in (False, True):
            try:
                begin = time.perf_counter()
                self.connection.request(method, path, data, every)
                answer = self.connection.getresponse()
                text = answer.read()
                took = (time.perf_counter() - begin) * 1e3
                break
            except (http.client.RemoteDisconnected, ConnectionError):  # it was idle for too long
                self.connection.close()
                if last:
                    raise
        if answer.status >= 300:
            sys.exit(f"{method} {path}: {answer.status} {text[:500]}")
        return (json.loads(text) if text[:1] in (b"{", b"[") else None), answer.getheader("ETag"), took


def fill_mlopt(db, models):
    versions = models * VERSIONS
    with db.cursor() as c:
        c.execute("SET search_path = mlopt; SET synchronous_commit = off")
        c.execute("INSERT INTO project (name, created_by) VALUES ('bench', 'bench') RETURNING id")
        project = c.fetchone()[0]
        c.execute("INSERT INTO model (project_id, name, created_by, next_version) SELECT %s, 'net' || m, 'bench', %s "
                  "FROM generate_series(0, %s) m", (project, VERSIONS + 1, models - 1))
        tags = ", ".join(f"'{k}', {tag_sql(k)}" for k in TAGS)
        metrics = ", ".join(f"'{k}', {R.format(i)} / 2147483648.0" for k, i in METRICS.items())
        params = ", ".join(f"'{k}', {v.format(R.format(30 + i))}" for i, (k, v) in enumerate(PARAMS.items()))
        c.execute(f"""CREATE TEMP TABLE filled AS SELECT n, md5(n::text) || '00000000' AS commit,
            jsonb_build_object({tags}) AS tags, jsonb_build_object({metrics}) AS metrics, jsonb_build_object({params}) AS params
            FROM generate_series(0, {versions - 1}) n""")
        c.execute("""INSERT INTO version (model_id, number, manifest_digest, manifest, created_by)
            SELECT m.id, f.n / %s + 1, sha256(f.n::text::bytea), json_build_object('facts', json_build_object('code',
            json_build_object('commit', f.commit, 'dirty', false), 'metrics', f.metrics, 'params', f.params, 'tags', f.tags),
            'files', json_build_array(json_build_object('digest', 'sha256:' || encode(sha256(f.n::text::bytea), 'hex'), 'name',
            'm.onnx', 'role', 'model', 'size', 1)))::text, 'bench'
            FROM filled f JOIN model m ON m.name = 'net' || f.n %% %s AND m.project_id = %s ORDER BY f.n""",
                  (models, models, project))
        c.execute("""INSERT INTO fact_name (project_id, kind, name) SELECT %s, k, n FROM (VALUES ('model', ''), ('version', ''),
            ('author', ''), ('code', 'commit')) v (k, n) UNION SELECT %s, x.k, x.n FROM filled f, LATERAL (SELECT 'tag', key FROM
            jsonb_object_keys(f.tags) key UNION SELECT 'metric', key FROM jsonb_object_keys(f.metrics) key UNION SELECT 'param',
            key FROM jsonb_object_keys(f.params) key) x (k, n) WHERE f.n = 0""", (project, project))
        c.execute("""INSERT INTO version_fact (version_id, name_id, text, number) SELECT v.id, n.id, x.t, x.v FROM filled f
            JOIN model m ON m.name = 'net' || f.n %% %s AND m.project_id = %s JOIN version v ON v.model_id = m.id AND v.number =
            f.n / %s + 1, LATERAL (SELECT 'model', '', m.name, NULL::float8 UNION ALL SELECT 'version', '', '', v.number UNION ALL
            SELECT 'author', '', 'bench', NULL UNION ALL SELECT 'code', 'commit', f.commit, NULL UNION ALL SELECT 'tag', key,
            value, NULL FROM jsonb_each_text(f.tags) UNION ALL SELECT 'metric', key, '', value::float8 FROM
            jsonb_each_text(f.metrics) UNION ALL SELECT 'param', key, value, value::float8 FROM jsonb_each_text(f.params))
            x (k, name, t, v) JOIN fact_name n ON n.project_id = %s AND n.kind = x.k AND n.name = x.name""",
                  (models, project, models, project))
        c.execute("SELECT count(*) FROM version_fact")
        print(f"mlopt: {versions} versions, {c.fetchone()[0]} facts", file=sys.stderr)
        c.execute("DROP TABLE filled")
        c.execute("VACUUM ANALYZE")


def fill_mlflow(db, models):
    with db.cursor() as c:
        c.execute("INSERT INTO registered_models (workspace, name, creation_time, last_updated_time) SELECT 'default', 'net' || m, m, "
                  "m FROM generate_series(0, %s) m", (models - 1,))
        c.execute("INSERT INTO model_versions (workspace, name, version, creation_time, last_updated_time, current_stage, source, "
                  "status) SELECT 'default', 'net' || n %% %s, n / %s + 1, n, n, 'None', 's3://bucket/' || n, 'READY' "
                  "FROM generate_series(0, %s) n", (models, models, models * VERSIONS - 1))
        for name in TAGS:
            c.execute(f"INSERT INTO model_version_tags (workspace, name, version, key, value) SELECT 'default', 'net' || n % {models}, "
                      f"n / {models} + 1, '{name}', {tag_sql(name)} FROM generate_series(0, {models * VERSIONS - 1}) n")
        c.execute("VACUUM ANALYZE")
        print(f"MLflow: {models * VERSIONS} versions, {models * VERSIONS * len(TAGS)} tags", file=sys.stderr)


def start_mlflow(connect, socket, work, log, models):
    """MLflow's server with two workers on a database of its own in the same PostgreSQL (`connect` gives a connection to one by its
    name, `socket` is its folder), filled: a Server with its `port` and `process`."""
    connect("postgres").cursor().execute("CREATE DATABASE mlflow")
    port = 20000 + os.getpid() % 20000
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"postgresql+psycopg2://mlopt_admin@/mlflow?host={socket}",
         "--default-artifact-root", f"{work}/artifacts", "--host", "127.0.0.1", "--port", str(port), "--workers", "2"],
        stdout=log, stderr=log, env=dict(os.environ, MLFLOW_DISABLE_TELEMETRY="true"))
    server = Server(port, {})
    server.port, server.process = port, process

    def there():
        try:
            return server("GET", "/health") is not None
        except OSError:
            server.connection.close()
            return False
    try:
        wait("MLflow", there, process)
        fill_mlflow(connect("mlflow"), models)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return server


def q(**arguments):
    return urllib.parse.urlencode({k: v for k, v in arguments.items() if v})


SEARCHES = {  # what: (filter, order) of random values; the first four are asked of MLflow as well
    "one tag": lambda r, m: (f"tag.team = t{r.randrange(20)}", None),
    "two tags": lambda r, m: (f"tag.team = t{r.randrange(20)} and tag.env = e{r.randrange(3)}", None),
    "a rare tag": lambda r, m: (f"tag.ticket = t{r.randrange(10000)}", None),
    "a model's versions": lambda r, m: (f"model = net{r.randrange(m)}", None),
    "all, newest": lambda r, m: ("", None),
    "a metric's range": lambda r, m: (f"metric.top1 >= {r.random():.4f}", None),
    "range, tag, by metric": lambda r, m: (
        f"metric.top1 >= {r.random():.4f} and tag.owner = o{r.randrange(200)}", "metric.loss:asc"),
    "two ranges, by metric": lambda r, m: (
        f"metric.latency < {0.1 + 0.9 * r.random():.4f}, metric.top1 >= {r.random():.4f}", "metric.top1"),
    "param, tag, not": lambda r, m: (f"param.lr <= 0.01 and tag.quality = q{r.randrange(5)} and tag.env != e1", None),
    "a commit's beginning": lambda r, m: (f"commit ~ {r.randrange(16 ** 5):05x}", None),
    "common tags that exclude each other": lambda r, m: ("tag.env = e0 and tag.quality = q4", None),
}
DEEP = {"deep pages, newest": ("", ""), "deep pages, by metric": ("", "metric.top1"),
        "deep pages, filtered": ("metric.top1 >= 0.2 and param.lr <= 0.03", "metric.loss:asc")}


def deep_cursors(ask, rounds):
    """Cursors from all depths, by walking through all pages once."""
    found = {}
    for what, (text, order) in DEEP.items():
        cursors, cursor = [], None
        while True:
            page = ask("GET", "/v1/projects/bench/search?" + q(filter=text, order=order, limit="500", cursor=cursor))[0]
            cursor = page["next"]
            if not cursor or len(cursors) >= 120:
                break
            cursors.append(cursor)
        found[what] = cursors
    return found


def quantile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlopt", default="build/mlopt")
    parser.add_argument("--mlflow", action="store_true")
    parser.add_argument("--models", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--slow-rounds", type=int, default=20, help="of MLflow's searches")
    parser.add_argument("--realtime", action="store_true",
                        help="measure in bursts of the real-time class, on a machine that others keep busy (needs root)")
    parser.add_argument("--json")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        os.chmod(work, 0o711)  # PostgreSQL runs as another user when this is root
        children = []
        try:
            run(a, work, children)
        except BaseException:
            if burst["pids"] is not None:
                schedule(os.SCHED_OTHER, 0)
            print("".join(open(os.path.join(work, "log")).readlines()[-15:]), file=sys.stderr)
            raise
        finally:
            for child in reversed(children):
                child.terminate()
                child.wait()


def run(a, work, children):
    data = os.path.join(work, "data")
    log = open(os.path.join(work, "log"), "w")
    up = subprocess.Popen([a.mlopt, "up", "--data", data, "--listen", "127.0.0.1:0", "--log-level", "error"], stdout=log, stderr=log)
    children.append(up)
    wait("mlopt up", lambda: os.path.exists(f"{data}/url") and os.path.getsize(f"{data}/url"), up)
    port = int(open(f"{data}/url").read().strip().rsplit(":", 1)[1].rstrip("/"))
    mlopt = Server(port, {"Authorization": "Bearer " + open(f"{data}/token").read().strip()})
    socket = open(f"{data}/pg/cluster/postmaster.pid").read().split("\n")[4]

    def connect(name):
        db = psycopg2.connect(host=socket, user="mlopt_admin", dbname=name)
        db.autocommit = True
        return db

    print("filling", file=sys.stderr)
    fill_mlopt(connect("mlopt"), a.models)
    mlflow = None
    if a.mlflow:
        mlflow = start_mlflow(connect, socket, work, log, a.models)
        children.append(mlflow.process)

    if a.realtime:
        burst["pids"] = [child.pid for child in children]
    times = {}
    note = lambda who, what, ms: times.setdefault((what, who), []).append(ms)
    rng = random.Random(1)

    # --- search
    for i in range(a.rounds + 5):
        for what, make in SEARCHES.items():
            text, order = make(rng, a.models)
            took = mlopt("GET", "/v1/projects/bench/search?" + q(filter=text, order=order, limit="50"))[2]
            if i >= 5:  # the first prepare statements
                note("mlopt", what, took)
    for what, cursors in deep_cursors(mlopt, a.rounds).items():
        text, order = DEEP[what]
        for _ in range(a.rounds):
            path = q(filter=text, order=order, limit="50")
            # a page of 50 that begins where one of 500 ended: the cursor is a place, not a page
            note("mlopt", what, mlopt("GET", f"/v1/projects/bench/search?{path}&cursor={rng.choice(cursors)}")[2])
    peers = {"one tag": lambda: f"tags.team = 't{rng.randrange(20)}'",
             "two tags": lambda: f"tags.team = 't{rng.randrange(20)}' and tags.env = 'e{rng.randrange(3)}'",
             "a rare tag": lambda: f"tags.ticket = 't{rng.randrange(10000)}'",
             "a model's versions": lambda: f"name = 'net{rng.randrange(a.models)}'",
             "all, newest": lambda: ""}
    if mlflow:
        for i in range(a.slow_rounds + 1):
            for what, make in peers.items():
                took = mlflow("GET", "/api/2.0/mlflow/model-versions/search?" + q(
                    filter=make(), max_results="50", order_by="creation_timestamp DESC"))[2]
                if i:
                    note("MLflow", what, took)

    # --- creating versions, of bytes that are there already; and moving a pointer between two of them
    digests = []
    for i in range(a.rounds + 5):
        data = b"version %d" % i
        digests.append("sha256:" + hashlib.sha256(data).hexdigest())
        mlopt("PUT", f"/v1/projects/bench/blobs/{digests[-1]}", raw=data)
    tags = {k: f"{k[0]}1" for k in TAGS}
    if mlflow:
        mlflow("POST", "/api/2.0/mlflow/registered-models/create", {"name": "created"})
    for i, digest in enumerate(digests):
        took = mlopt("POST", "/v1/projects/bench/models/created/versions",
                     {"files": [{"role": "model", "name": "m.onnx", "digest": digest}],
                      "facts": {"tags": tags, "metrics": {"top1": i / 1000}}})[2]
        if i >= 5:
            note("mlopt", "create a version", took)
        if mlflow:
            took = mlflow("POST", "/api/2.0/mlflow/model-versions/create",
                          {"name": "created", "source": f"s3://bucket/created/{i}",
                           "tags": [{"key": k, "value": v} for k, v in tags.items()]})[2]
            if i >= 5:
                note("MLflow", "create a version", took)
    etag = mlopt("GET", "/v1/projects/bench/models/created/stages/production")[1]
    for i in range(a.rounds + 5):
        _, _, took = mlopt("POST", "/v1/projects/bench/models/created/promotions",
                           {"stage": "production", "version": 1 + i % 2, "variants": {"any": "source"}, "reason": "benchmark"},
                           headers={"If-Match": etag})
        etag = '"%d"' % (int(etag.strip('"')) + 1)
        if i >= 5:
            note("mlopt", "move a pointer", took)
        if mlflow:
            took = mlflow("POST", "/api/2.0/mlflow/registered-models/alias",
                          {"name": "created", "alias": "production", "version": str(1 + i % 2)})[2]
            if i >= 5:
                note("MLflow", "move a pointer", took)

    if a.realtime:
        schedule(os.SCHED_OTHER, 0)
        burst["pids"] = None
    print_table(times, a)


def print_table(times, a):
    rows = []
    names = list(dict.fromkeys(what for what, _ in times))
    every = [ms for (what, who), values in times.items() if who == "mlopt" and (what in SEARCHES or what in DEEP) for ms in values]
    times[("all searches", "mlopt")] = every
    names.insert(len(SEARCHES) + len(DEEP), "all searches")
    print("| | mlopt p50, p99 (ms) | MLflow p50, p99 (ms) | MLflow / mlopt, medians |\n|---|---:|---:|---:|")
    for what in names:
        ours, theirs = times[(what, "mlopt")], times.get((what, "MLflow"))
        row = {"what": what, "n": len(ours), "p50": quantile(ours, .5), "p99": quantile(ours, .99)}
        text = f"| {what} | {row['p50']:.1f}, {row['p99']:.1f} |"
        if theirs:
            row.update(mlflow_n=len(theirs), mlflow_p50=quantile(theirs, .5), mlflow_p99=quantile(theirs, .99))
            text += f" {row['mlflow_p50']:.1f}, {row['mlflow_p99']:.1f} | {row['mlflow_p50'] / row['p50']:.1f} |"
        else:
            text += " | |"
        rows.append(row)
        print(text)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
