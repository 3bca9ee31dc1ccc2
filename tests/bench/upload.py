#!/usr/bin/env python3
"""Uploads beside what reading, hashing and writing alone take, in turn, on the same disk.

    tests/bench/upload.py BUILD [--mb 100 --mb 1024] [--rounds 5] [--small 200] [--dir FOLDER]
    tests/bench/upload.py BUILD --memory 5120

BUILD is a build folder. A server (`mlopt up`) gets each file by one PUT from curl, into its file store. Beside it, the
plain work on the same file: read, SHA-256, write in pieces of 256 KiB, fsync, rename, fsync of the folder. The file is
in the page cache for both. The small case is one connection that sends many files of 64 KiB, one after the other.
A ratio is plain time / upload time, so 0.8 is 80% of the plain rate; its interval is a bootstrap over rounds.

--memory MB measures no time but the server's peak memory: a stream of so many megabytes in one PUT, then a model with a
file of them beside it by `mlopt push`, in pieces.
"""
import argparse, hashlib, http.client, json, os, random, signal, shutil, statistics, subprocess, tempfile, time
from urllib.parse import urlsplit

PIECE = 256 << 10


def plain(path, folder):
    """What any store must do."""
    digest = hashlib.sha256()
    temp = os.path.join(folder, "incoming")
    with open(path, "rb", buffering=0) as source, open(temp, "wb", buffering=0) as out:
        while piece := source.read(PIECE):
            digest.update(piece)
            out.write(piece)
        os.fsync(out.fileno())
    name = os.path.join(folder, digest.hexdigest())
    os.rename(temp, name)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return name


def write_random(path, size):
    with open(path, "wb") as out:
        while size > 0:
            out.write(os.urandom(min(size, 1 << 20)))
            size -= 1 << 20
    return hashlib.file_digest(open(path, "rb"), "sha256").hexdigest()


def interval(ratios, rounds=2000):
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[rounds // 40], medians[-rounds // 40]


class Server:
    def __init__(self, build, folder, blobs=None):
        env = dict(os.environ, XDG_CONFIG_HOME=folder + "/config", no_proxy="*")
        data = folder + "/data"
        store = ["--blobs", blobs] if blobs else []
        self.process = subprocess.Popen([build + "/mlopt", "up", "--data", data, "--workers", "0", "--listen", "127.0.0.1:0"] + store,
                                        stdout=subprocess.PIPE, stderr=open(folder + "/log", "w"), text=True, env=env)
        line = ""
        while not line.startswith("ready:"):
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit("mlopt up: " + open(folder + "/log").read())
        self.url = line.split()[1]
        self.token = open(data + "/token").read().strip()
        self.call("POST", "/v1/projects", json.dumps({"name": "speed"}).encode(), "application/json")

    def connection(self):
        return http.client.HTTPConnection(urlsplit(self.url).netloc)

    def call(self, method, path, body, kind, connection=None):
        connection = connection or self.connection()
        connection.request(method, path, body, {"Authorization": "Bearer " + self.token, "Content-Type": kind})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit("%s %s: %d %s" % (method, path, answer.status, text))
        return text

    def put(self, path, digest):
        subprocess.run(["curl", "-sSf", "-o", "/dev/null", "-T", path, "-H", "Authorization: Bearer " + self.token,
                        "-H", "Expect:", "%s/v1/projects/speed/blobs/sha256:%s" % (self.url, digest)], check=True)

    def memory(self):
        with open("/proc/%d/status" % self.process.pid) as lines:
            return next(line.split()[1] for line in lines if line.startswith("VmHWM"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def timed(call, *args):
    began = time.monotonic()
    call(*args)
    return time.monotonic() - began


def report(what, size, ours, plains):
    ratios = [p / o for o, p in zip(ours, plains)]
    low, high = interval(ratios)
    o, p = statistics.median(ours), statistics.median(plains)
    print("%s: upload %.3f s (%.0f MB/s), plain %.3f s (%.0f MB/s), ratio %.2f [%.2f, %.2f], n = %d" %
          (what, o, size / o / 1e6, p, size / p / 1e6, statistics.median(ratios), low, high, len(ours)), flush=True)


def large(server, folder, megabytes, rounds):
    ours, plains = [], []
    path = folder + "/file"
    for turn in range(rounds):
        digest = write_random(path, megabytes << 20)
        os.sync()
        for side in ([0, 1] if turn % 2 else [1, 0]):
            if side:
                ours.append(timed(server.put, path, digest))
            else:
                took = timed(plain, path, folder + "/plain")
                plains.append(took)
            os.sync()
        os.remove(folder + "/plain/" + digest)
        os.remove("%s/data/blobs/sha256/%s/%s/%s" % (folder, digest[:2], digest[2:4], digest))
    report("%d MB" % megabytes, megabytes << 20, ours, plains)


def small(server, folder, count, rounds, size=64 << 10):
    ours, plains = [], []
    for turn in range(rounds):
        files = []
        for i in range(count):
            path = "%s/small%d" % (folder, i)
            files.append((path, write_random(path, size)))
        connection = server.connection()

        def send():
            for path, digest in files:
                with open(path, "rb") as source:
                    server.call("PUT", "/v1/projects/speed/blobs/sha256:" + digest, source.read(), "application/octet-stream", connection)

        def keep():
            for path, digest in files:
                plain(path, folder + "/plain")

        for side in ([0, 1] if turn % 2 else [1, 0]):
            (ours if side else plains).append(timed(send if side else keep))
    report("%d files of %d KB" % (count, size >> 10), count * size, ours, plains)


def stream(megabytes):
    """A shell command that writes so many megabytes, always the same."""
    return "openssl enc -aes-128-ctr -nosalt -K %032x -iv %032x -in /dev/zero 2>/dev/null | head -c %dM" % (megabytes, 0, megabytes)


def memory(server, build, folder, megabytes):
    print("server at rest: %s KB" % server.memory(), flush=True)
    digest = subprocess.run(["bash", "-c", stream(megabytes) + " | openssl dgst -sha256 -r"], check=True, capture_output=True,
                            text=True).stdout.split()[0]
    began = time.monotonic()
    subprocess.run(["bash", "-c", stream(megabytes) + ' | curl -sSf -o /dev/null -T - -H "$1" "$2"', "-", "Authorization: Bearer " +
                    server.token, "%s/v1/projects/speed/blobs/sha256:%s" % (server.url, digest)], check=True)
    print("one PUT of %d MB: %.0f s, peak %s KB" % (megabytes, time.monotonic() - began, server.memory()), flush=True)
    path = folder + "/weights.data"
    with open(path, "wb") as out:
        out.truncate(megabytes << 20)  # sparse
    environment = dict(os.environ, MLOPT_URL=server.url, MLOPT_TOKEN=server.token, XDG_CONFIG_HOME=folder + "/config")
    began = time.monotonic()
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/models/fashion_cnn.onnx")
    subprocess.run([build + "/mlopt", "push", "speed/large", model, path], check=True, env=environment)
    print("mlopt push of %d MB: %.0f s, peak %s KB" % (megabytes, time.monotonic() - began, server.memory()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--mb", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", type=int, default=200)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--dir", default="/var/tmp")  # on a disk: $TMPDIR may be memory
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="mlopt-upload-", dir=args.dir)
    os.chmod(folder, 0o755)
    os.mkdir(folder + "/plain")
    server = Server(os.path.abspath(args.build), folder)
    try:
        if args.memory:
            memory(server, os.path.abspath(args.build), folder, args.memory)
            return
        for megabytes in args.mb or [100, 1024]:
            large(server, folder, megabytes, args.rounds)
        if args.small:
            small(server, folder, args.small, args.rounds)
        print("server's peak memory: %s KB" % server.memory())
    finally:
        server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
