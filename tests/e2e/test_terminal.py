#!/usr/bin/python3
"""The command in a pseudo-terminal and without one: colours, progress, questions; the manual page; and completion in the
shells themselves, as somebody sees it who presses the tabulator.

Needs MLOPT (path of the program). What a shell or a checker is missing for is said and left out.
"""
import contextlib
import fcntl
import http.server
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

MLOPT = os.environ["MLOPT"]
SOURCE = os.environ.get("MLOPT_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
MODEL = os.path.join(SOURCE, "deploy/models/fashion_cnn.onnx")
CUTTER = os.path.join(SOURCE, "tests/e2e/cutter.py")
PATIENCE = 120  # seconds, for a state


class Terminal:
    """A program with a terminal of its own, of so many columns."""

    def __init__(self, argv, env, columns=100):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def read(self, until=None):
        """What the program writes, until it has written this (a regular expression, without escape codes) or has ended."""
        end = time.monotonic() + PATIENCE
        while until is None or not re.search(until, re.sub(r"\033\[[0-9;?]*[a-zA-Z]", "", self.seen)):
            left = end - time.monotonic()
            assert left > 0, f"no {until!r} within {PATIENCE} s in:\n{self.seen!r}"
            if not select.select([self.fd], [], [], min(left, 1))[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the other end is closed
                data = b""
            if not data:
                assert until is None, f"ended without {until!r}:\n{self.seen!r}"
                break
            self.seen += data.decode(errors="replace")
        return self.seen

    def write(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        self.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def environment(work, **more):
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "LSAN_OPTIONS", "TMPDIR") if name in os.environ}
    env.update(HOME=os.path.join(work, "home"), TERM="xterm", LC_ALL="C.UTF-8", **more)
    env["PATH"] = os.path.dirname(MLOPT) + ":" + env["PATH"]
    return env


def plain(args, env, code=0, text_in=None):
    done = subprocess.run([MLOPT, *args], env=env, input=text_in, stdin=None if text_in is not None else subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return done


def unread(args, env):
    """Who reads its output has closed it before it writes anything."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run([MLOPT, *args], env=env, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, text=True,
                              timeout=PATIENCE, check=False)
    finally:
        os.close(writer)


# --- what is made from the table of verbs ---------------------------------------------------------------------------

def check_man(work, env):
    page = os.path.join(work, "mlopt.1")
    with open(page, "w", encoding="utf-8") as file:
        file.write(plain(["help", "--man"], env).stdout)
    if shutil.which("man"):
        done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", page], env=dict(env, MANWIDTH="100"), capture_output=True,
                              text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
        text = re.sub(".\b|\033\\[[0-9;]*m", "", done.stdout)
        for part in ("mlopt promote", "--dry-run", "EXIT STATUS", "refused by a gate"):
            assert part in text, part
    else:
        print("man is not installed: the page was not formatted")
    if shutil.which("mandoc"):
        done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", page], capture_output=True, text=True, timeout=PATIENCE, check=False)
        findings = [line for line in done.stdout.splitlines() if "missing date" not in line]  # the same program, the same page
        assert not findings, findings


def check_exit_codes(env):
    """What help says stands in docs/cli.md, too."""
    block = plain(["--help"], env).stdout.split("exit codes:\n")[1]
    told = dict(re.findall(r"^ +(\d+)  (.*)$", block, re.M))
    with open(os.path.join(SOURCE, "docs/cli.md"), encoding="utf-8") as file:
        written = dict(re.findall(r"^\| (\d+) \| (.*) \|$", file.read(), re.M))
    assert told == written and told["0"] == "ok", (told, written)


# line typed, what the tabulator makes of it
COMPLETED = [
    ("mlopt promo", r"mlopt promote "),
    ("mlopt promote a/b@1 --dry", r"--dry-run "),
    ("mlopt -o json promo", r"-o json promote "),
    ("mlopt models -o js", r"-o json "),
    ("mlopt data pus", r"data push "),
    ("mlopt data push x --normal", r"--normalize"),
    ("mlopt completion fi", r"completion fish "),
]


def check_shell(name, arguments, prepare, work, env):
    if not shutil.which(name):
        print(f"{name} is not installed: its completion was not tried")
        return
    shell = Terminal([name, *arguments], dict(env, PS1="> "), 200)
    try:
        for line in prepare:
            shell.write(line + "\r")
        shell.write("echo rea''dy\r")
        shell.read(r"[\r\n]ready\r")
        for typed, expected in COMPLETED:
            shell.seen = ""
            shell.write(typed + "\t")
            shell.read(expected)
            shell.seen = ""
            shell.write("\x15echo do''ne\r")  # the line is thrown away
            shell.read(r"[\r\n]done\r")
    finally:
        shell.kill()
        shutil.rmtree(os.path.join(work, "home"), ignore_errors=True)
        os.mkdir(os.path.join(work, "home"))


def check_fish(work, env):
    if not shutil.which("fish"):
        print("fish is not installed: its completion was not tried")
        return
    script = os.path.join(work, "mlopt.fish")
    with open(script, "w", encoding="utf-8") as file:
        file.write(plain(["completion", "fish"], env).stdout)
    for typed, expected in COMPLETED:
        word = expected.split()[-1]
        done = subprocess.run(["fish", "--no-config", "-c", f"source {script}; complete -C '{typed}'"], env=env, capture_output=True,
                              text=True, timeout=PATIENCE, check=False)
        assert not done.stderr and word in [line.split("\t")[0] for line in done.stdout.splitlines()], (typed, done)
    done = subprocess.run(["fish", "--no-config", "-c", f"source {script}; complete -C 'mlopt runs log --'"], env=env, capture_output=True,
                          text=True, timeout=PATIENCE, check=False)
    assert "--job" in done.stdout and "--state" not in done.stdout and "--dry-run" not in done.stdout, done


# --- a terminal, and none -------------------------------------------------------------------------------------------

def check_colours(env):
    def shown(**more):
        terminal = Terminal([MLOPT, "engines"], dict(env, **more))
        assert terminal.end() == 0, terminal.seen
        return terminal.seen
    assert "\033[1m" in shown()
    assert "\033" not in shown(NO_COLOR="1") and "\033" not in shown(TERM="dumb")
    assert "\033" not in plain(["engines"], env).stdout
    terminal = Terminal([MLOPT, "inspekt"], env)
    assert terminal.end() == 2 and "\033[1;31merror:\033[0m" in terminal.seen and "did you mean: mlopt inspect?" in terminal.seen
    bad = plain(["inspect", "nothing.onnx"], env, 3)
    assert bad.stderr.startswith("error: ") and "\033" not in bad.stderr and not bad.stdout


def check_progress(env):
    """A bar with the time left on a terminal, never wider than it; none where stderr is no terminal."""
    bench = ["bench", MODEL, "--seconds", "0.2", "--rounds", "2"]
    columns = 60
    terminal = Terminal([MLOPT, "bench", MODEL, "--seconds", "3", "--rounds", "6"], env, columns)
    assert terminal.end() == 0, terminal.seen
    drawn = re.findall(r"\r\033\[K(bench \[[^\r\n]+)", terminal.seen)
    assert any(re.search(r"bench \[[#.]{24}\] +\d+%", line) for line in drawn), terminal.seen
    assert any(re.search(r"\d s left", line) for line in drawn), drawn
    assert max(len(line) for line in drawn) == columns - 1, drawn  # cut, and none is wider
    assert "p50" in terminal.seen.split("\r\033[K")[-1], "the bar was not taken away"
    assert not plain(bench, env).stderr.strip(), "progress where there is no terminal"
    lines = plain([*bench, "--progress", "json"], env).stderr.splitlines()
    assert lines and all(line.startswith('{"what": "bench"') or line.startswith('{"what":"bench"') for line in lines), lines
    quiet = Terminal([MLOPT, "-q", *bench], env)
    assert quiet.end() == 0 and "[#" not in quiet.seen, quiet.seen


def wait_for(path, process, log):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        if os.path.exists(path) and os.path.getsize(path):
            with open(path, encoding="utf-8") as file:
                return file.read().strip()
        time.sleep(0.05)
    with open(log, encoding="utf-8") as file:
        raise AssertionError("the service did not start:\n" + file.read())


@contextlib.contextmanager
def through(env, *how):
    """The server behind a proxy that does to connections what cutter.py says."""
    with subprocess.Popen([sys.executable, CUTTER, env["MLOPT_URL"].split("//")[1], *how], stdout=subprocess.PIPE, text=True) as proxy:
        try:
            yield dict(env, MLOPT_URL="http://127.0.0.1:" + proxy.stdout.readline().strip())
        finally:
            proxy.kill()


def check_transfer(work, env):
    """A file that takes its time shows how much came, how fast, and how long it will take."""
    with through(env, "49152", "slow") as there:
        terminal = Terminal([MLOPT, "pull", "shop/net@1", "--out", work], there)
        assert terminal.end() == 0, terminal.seen
    drawn = re.findall(r"\r\033\[K([^\r\n]+)", terminal.seen)
    assert any(re.search(r"\[[#.]{24}\] +\d+%.*[kM]B of 1\.20 MB, [\d.]+ [kM]?B/s", line) for line in drawn), terminal.seen
    assert any(re.search(r"\d s left", line) for line in drawn), drawn


def check_lost_secrets(env):
    """An answer with a secret that gets lost comes again without it: that is said, with what to do."""
    plain(["members", "set", "shop", "ci", "--service", "--role", "viewer"], env)
    ask = {"made": ["webhooks", "add", "shop", "https://hooks.invalid/in"], "new secret": ["webhooks", "rotate", "shop", "1"],
           "its text was lost": ["members", "token", "shop", "ci"]}
    hints = {"made": "mlopt webhooks rotate shop 1", "new secret": "mlopt webhooks rotate shop 1",
             "its text was lost": "mlopt members revoke shop ci "}
    for said, verb in ask.items():
        with through(env, "0", "lose") as there:
            lost = plain(verb, there, 1)
        assert said in lost.stderr and "lost" in lost.stderr and "hint: " in lost.stderr and hints[said] in lost.stderr, lost.stderr
        # nobody reads what it prints: others end without a word then
        for json_too in ([], ["-o", "json"]):
            lost = unread([*json_too, *verb], env)
            assert lost.returncode == 1 and said in lost.stderr and "was lost: cannot write to standard output: Broken pipe" in lost.stderr, lost
            assert re.search(r"hint: .*mlopt (webhooks rotate shop \d+|members revoke shop ci \d+)$", lost.stderr, re.M), lost
    assert plain(["webhooks", "list", "shop"], env).stdout.count("hooks.invalid") == 3
    assert len(plain(["webhooks", "rotate", "shop", "1"], env).stdout.strip()) > 20


def check_questions(work, env):
    """Production asks; without a terminal, --yes is needed; Ctrl-C ends with 130."""
    data, log = os.path.join(work, "data"), os.path.join(work, "up.log")
    with open(log, "w", encoding="utf-8") as out:
        up = subprocess.Popen([MLOPT, "up", "--data", data, "--listen", "127.0.0.1:0", "--workers", "0"], env=env, stdin=subprocess.DEVNULL,
                              stdout=out, stderr=subprocess.STDOUT)
    try:
        env = dict(env, MLOPT_URL=wait_for(os.path.join(data, "url"), up, log), MLOPT_TOKEN=wait_for(os.path.join(data, "token"), up, log))
        plain(["push", "shop/net", MODEL], env)
        promote = ["promote", "shop/net@1", "--variant", "source", "--to", "production", "--reason", "first"]
        refused = plain(promote, env, 2)
        assert "hint: add --yes" in refused.stderr and "production" in refused.stderr, refused.stderr
        for answer, code in (("\r", 1), ("n\r", 1), ("y\r", 0)):
            terminal = Terminal([MLOPT, *promote], env)
            terminal.read(r"\[y/N\] ")
            terminal.write(answer)
            assert terminal.end() == code, (answer, terminal.seen)
            assert ("nothing was changed" in terminal.seen) == (code == 1), terminal.seen
        no_input = Terminal([MLOPT, "--no-input", *promote], env)
        assert no_input.end() == 2 and "[y/N]" not in no_input.seen, no_input.seen
        plain(["promote", "shop/net@1", "--variant", "source", "--to", "staging", "--reason", "try", "--dry-run"], env)
        stages = plain(["-o", "json", "history", "shop/net"], env).stdout
        assert '"staging"' not in stages and '"production"' in stages, stages
        # an error of the server: what, cause or hint, and the request
        missing = plain(["runs", "log", "99"], env, 3)
        assert missing.stderr.startswith("error: there is no run 99") and "hint: mlopt runs" in missing.stderr, missing.stderr
        denied = plain(["models"], dict(env, MLOPT_TOKEN="mlopt_wrong"), 4)
        assert re.search(r"^request-id: \S+$", denied.stderr, re.M), denied.stderr
        check_lost_secrets(env)
        check_transfer(work, env)
        # a pipe that closes early ends it as it ends other programs: without a word
        assert plain(["-o", "json", "models"], env).stdout.startswith("[")
        done = unread(["models"], env)
        assert done.returncode == -signal.SIGPIPE and done.stderr == "", done
        # not so a service, which others count on
        done = unread(["up", "--data", os.path.join(work, "unread"), "--listen", "127.0.0.1:0", "--workers", "0"], env)
        assert done.returncode == 1 and "error: cannot write to standard output: Broken pipe" in done.stderr, done
        if os.path.exists("/dev/full"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([MLOPT, "models"], env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
            assert done.returncode == 1 and "No space left" in done.stderr, done
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(PATIENCE)


def check_follow(env):
    """A log that is followed over a server that is away for a moment: each line once."""
    texts = ["one\n", None, "one\ntwo\nthr", "one\ntwo\nthree\n", "one\ntwo\nthree\nfour"]
    turn = [-2]  # the first question is where the run is

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if "/log" not in self.path:
                turn[0] += 1
                answer = {"id": 7, "project": "shop", "state": "succeeded" if turn[0] == len(texts) - 1 else "running"}
            elif texts[turn[0]] is None:
                self.close_connection = True  # without a word
                return
            else:
                answer = {"items": [{"job": 3, "attempt": 1, "name": "optimize", "text": texts[turn[0]]}], "next": None}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        there = dict(env, MLOPT_URL=f"http://127.0.0.1:{server.server_port}", MLOPT_TOKEN="x")
        followed = plain(["runs", "log", "7", "--project", "shop", "--follow"], there)
        assert followed.stdout == "== job 3, optimize, attempt 1\none\ntwo\nthree\nfour\n", followed
    finally:
        server.shutdown()
        server.server_close()


def main():
    work = tempfile.mkdtemp(prefix="mlopt-terminal-")
    os.chmod(work, 0o755)  # PostgreSQL runs as another user when this one is root
    try:
        os.mkdir(os.path.join(work, "home"))
        env = environment(work)
        check_man(work, env)
        check_exit_codes(env)
        check_shell("bash", ["--norc", "--noprofile", "-i"], ["source <(mlopt completion bash)"], work, env)
        check_shell("zsh", ["-f", "-i"], ["autoload -Uz compinit; compinit -u -D", "source <(mlopt completion zsh)"], work, env)
        check_fish(work, env)
        check_colours(env)
        check_progress(env)
        check_follow(env)
        if "up" in re.findall(r"^  (\S+)", plain(["--help"], env).stdout, re.M):
            check_questions(work, env)
        print("ok")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
