#!/usr/bin/env python3
"""Uploads through a server that keeps its blobs in S3, beside a plain PUT of the same file by curl, in turn.

    tests/bench/upload_s3.py BUILD [--mb 100 --mb 400] [--rounds 5] [--tls] [--stream | --unsigned | --direct] [--relay] [--apart] [--dir FOLDER]
    tests/bench/upload_s3.py BUILD --memory 5120

BUILD is a build folder. Ceph's gateway (tests/s3/ceph.sh, its store in memory) and a server (`mlopt up`) in front of it run
on this machine; the file is in the page cache. Sides of a round, in an order that turns:

    upload   curl puts the file to the server, which hashes it, checks it, stores it in S3 and writes its row
    plain    curl puts it to the gateway as one object, signed by curl itself (the body's hash is not)
    signed   the same with the body's SHA-256 in the signature, computed by openssl in that time, and checked by S3

--tls: everybody talks to the gateway by https.
--stream: our upload goes on in one request (uploads=stream), else in parts.
--unsigned: these are not signed over their SHA-256 then (payload=unsigned), as curl's body is not in "plain".
--direct: curl puts it into the bucket by an address that the server hands out (direct=yes); with the three requests to
the server for it. The gateway checks the digest.
--apart: the gateway's processes run on the first core, all others on the second, as if it were another machine.
--relay adds what any server in between costs at least:

    relay    curl's signed put, its digest known before, through a process that passes bytes on as they come: no HTTP, no
             hash, no row of its own

--memory MB as in upload.py; the gateway's store is on disk then.

A ratio is plain (signed) time / upload time, so 0.8 is 80% of curl's rate; its interval is a bootstrap over rounds.
Processor seconds of each process stand beside it: with few cores they are what the time goes to.
"""
import argparse, json, multiprocessing, os, shutil, socket, statistics, subprocess, tempfile, threading, time

import upload

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "testsecret"}
UNSIGNED = "x-amz-content-sha256: UNSIGNED-PAYLOAD"
TICK = os.sysconf("SC_CLK_TCK")


class Gateway:
    def __init__(self, folder, tls, more="", store="memstore"):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "s3", "ceph.sh")
        self.folder = folder + "/ceph"
        self.process = subprocess.Popen(["bash", source, self.folder, store], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline().split()
        if line[:1] != ["ready"]:
            raise SystemExit("no S3 server: " + " ".join(line))
        self.url = "https://127.0.0.1:" + line[2] if tls else "http://127.0.0.1:" + line[1]
        self.more = more
        self.trust = ["--cacert", self.folder + "/tls.crt"] if tls else []
        self.curl("-H", UNSIGNED, "-X", "PUT", self.url + "/speed")

    def pid(self, name):
        return int(open("%s/run/%s.pid" % (self.folder, name)).read())

    def curl(self, *args):
        subprocess.run(["curl", "-sSf", "-o", "/dev/null", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", "AKIDTEST:testsecret"] +
                       self.trust + list(args), check=True)

    def put(self, path, name):
        self.curl("-H", UNSIGNED, "-T", path, "%s/speed/plain/%s" % (self.url, name))

    def put_signed(self, path, name):
        digest = subprocess.run(["openssl", "dgst", "-sha256", "-r", path], check=True, capture_output=True, text=True).stdout.split()[0]
        self.curl("-H", "x-amz-content-sha256: " + digest, "-T", path, "%s/speed/signed/%s" % (self.url, name))

    def put_relayed(self, port):
        def put(path, name):
            through = "%s:127.0.0.1:%d" % (self.url.split("://")[1], port)
            self.curl("--connect-to", through, "-H", "x-amz-content-sha256: " + name, "-T", path, "%s/speed/relay/%s" % (self.url, name))
        return put

    def address(self):
        """For --blobs."""
        return "s3:speed/store?endpoint=%s&region=us-east-1%s" % (self.url, ("&ca=" + self.trust[1] if self.trust else "") + self.more)

    def keep_apart(self):
        for name in ("mon", "osd", "rgw"):
            subprocess.run(["taskset", "-a", "-c", "-p", "0", str(self.pid(name))], check=True, stdout=subprocess.DEVNULL)
        os.sched_setaffinity(0, {1})

    def forget(self):
        """Frees what was removed: the gateway would wait two hours."""
        subprocess.run(["./admin", "radosgw-admin", "gc", "process", "--include-all"], cwd=self.folder,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def remove(self, name):
        self.curl("-H", UNSIGNED, "-X", "DELETE", "%s/speed/%s" % (self.url, name))

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def put_direct(server):
    """An upload of one request by the bucket's address, as `mlopt push` does it; the digest is known before."""
    def put(path, digest):
        connection, digest = server.connection(), "sha256:" + digest

        def call(method, rest, body):
            body = body and json.dumps(body)
            return json.loads(server.call(method, "/v1/projects/speed/uploads" + rest, body, "application/json", connection))

        upload = call("POST", "", {"direct": True, "size": os.path.getsize(path), "digest": digest})
        if "digest" not in upload["direct"]:
            raise SystemExit("the server offers parts only")
        part = call("POST", "/%s/parts" % upload["id"], {"parts": [{"number": 1}]})["items"][0]
        headers = [word for name, value in part["headers"].items() for word in ("-H", "%s: %s" % (name, value))]
        subprocess.run(["curl", "-sSf", "-o", "/dev/null", "-H", "Expect:", "-T", path] + headers + server.trust + [part["url"]], check=True)
        call("PUT", "/%s?digest=%s" % (upload["id"], digest), None)
        connection.close()
    return put


def pass_on(source, to):
    buffer = memoryview(bytearray(64 << 10))
    while n := source.recv_into(buffer):
        to.sendall(buffer[:n])
    to.shutdown(socket.SHUT_WR)


def relay(listener, port):
    while True:
        client = listener.accept()[0]
        server = socket.create_connection(("127.0.0.1", port))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = threading.Thread(target=pass_on, args=(server, client))
        answers.start()
        pass_on(client, server)
        answers.join()
        client.close()
        server.close()


class Relay:
    def __init__(self, port):
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.process = multiprocessing.Process(target=relay, args=(listener, port), daemon=True)
        self.process.start()


def processor(pid):
    with open("/proc/%d/stat" % pid) as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def measured(call, args, pids):
    before = {name: processor(pid) for name, pid in pids.items()}
    children = os.times()
    took = upload.timed(call, *args)
    after = os.times()
    used = {name: processor(pid) - before[name] for name, pid in pids.items()}
    used["curl"] = after.children_user + after.children_system - children.children_user - children.children_system
    return took, used


def one_size(server, gateway, between, folder, megabytes, rounds):
    path, size = folder + "/file", megabytes << 20
    pids = {"mlopt": server.process.pid, "gateway": gateway.pid("rgw"), "osd": gateway.pid("osd")}
    sides = {"upload": server.put, "plain": gateway.put, "signed": gateway.put_signed}
    if between:
        pids["relay"] = between.process.pid
        sides["relay"] = gateway.put_relayed(between.port)
    times, used = {side: [] for side in sides}, {side: [] for side in sides}
    for turn in range(rounds):
        digest = upload.write_random(path, size)
        order = list(sides)
        first = turn % len(order)
        order = order[first:] + order[:first]
        for side in order if turn % 2 else order[::-1]:
            took, cpu = measured(sides[side], (path, digest), pids)
            times[side].append(took)
            used[side].append(cpu)
        for side in sides:
            gateway.remove(side + "/" + digest if side != "upload" else "store/sha256/%s/%s/%s" % (digest[:2], digest[2:4], digest))
        gateway.forget()
    print("%d MB, n = %d" % (megabytes, rounds))
    for side in sides:
        took = statistics.median(times[side])
        cpu = ", ".join("%s %.2f" % (name, statistics.median(u[name] for u in used[side])) for name in used[side][0])
        ratio = ""
        if side != "upload":
            ratios = [p / o for o, p in zip(times["upload"], times[side])]
            ratio = ", upload %.2f [%.2f, %.2f] of it" % ((statistics.median(ratios),) + upload.interval(ratios))
        if side == "relay":
            ratios = [p / o for o, p in zip(times["relay"], times["plain"])]
            ratio += ", relay %.2f [%.2f, %.2f] of plain" % ((statistics.median(ratios),) + upload.interval(ratios))
        print("  %-7s %.3f s, %4.0f MB/s; processor seconds: %s%s" % (side, took, size / took / 1e6, cpu, ratio), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--mb", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--unsigned", action="store_true")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--dir", default="/var/tmp")
    args = parser.parse_args()
    if args.unsigned and (args.stream or not args.tls):
        parser.error("--unsigned is for parts over https")
    if args.direct and (args.stream or args.unsigned):
        parser.error("--direct goes past what --stream and --unsigned are about")
    if args.relay and args.tls:
        parser.error("--relay is for http")
    more = ("&uploads=stream" if args.stream else "") + ("&payload=unsigned" if args.unsigned else "") + ("&redirect=yes&direct=yes" if args.direct else "")
    folder = tempfile.mkdtemp(prefix="mlopt-upload-", dir=args.dir)
    os.chmod(folder, 0o755)
    os.environ.update(KEYS)
    gateway = Gateway(folder, args.tls, more, "bluestore" if args.memory else "memstore")
    server = None
    if args.apart:
        gateway.keep_apart()
    try:
        server = upload.Server(os.path.abspath(args.build), folder, gateway.address())
        if args.direct:
            server.trust = gateway.trust
            server.put = put_direct(server)
        if args.memory:
            upload.memory(server, os.path.abspath(args.build), folder, args.memory)
            return
        between = Relay(int(gateway.url.rsplit(":", 1)[1])) if args.relay else None
        for megabytes in args.mb or [100, 400]:
            one_size(server, gateway, between, folder, megabytes, args.rounds)
        print("server's peak memory: %s KB" % server.memory())
    finally:
        if server:
            server.stop()
        gateway.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
