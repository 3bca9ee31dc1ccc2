#!/usr/bin/python3
"""The pages in a real browser, on a real service: `mlopt up` with a model, a run and moves.

Needs MLOPT (path of the program). MLOPT_SHOTS=DIR also takes screenshots there: those of docs/images, and every page as
light-…, dark-… and narrow-… to be looked at. MLOPT_AXE=FILE, an axe.min.js (in the package axe-playwright-python of PyPI,
say), has accessibility checked by axe-core, too. Skipped only where chromium or its driver is not installed.

`test_pages.py --example` tests nothing: with MLOPT_SHOTS it takes the pictures whose numbers should be those of a whole
evaluation, of a service that runs and has the example of deploy/quickstart.sh (MLOPT_URL, MLOPT_TOKEN).
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
SOURCE = os.environ.get("MLOPT_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
IMAGES = "/usr/share/datasets/fashion-mnist"
PATIENCE = 600  # seconds, for what takes a moment where the machine has nothing else to do
NORMALIZE = "scale=1/255,mean=0.2860,std=0.3530"
# the shape of the shipped recipe, with a short evaluation and benchmark
RECIPE = """name: int8-cpu
target: any
data: {calibrate: fashion/calibration, evaluate: fashion/test}
steps:
  - optimize: {}
  - quantize: {scheme: int8, form: qdq, calibrator: minmax, per_channel: true}
  - evaluate: {metrics: [top1], compare_to: source}
  - benchmark: {batch: [1], threads: 1, compare_to: source}
  - report: {samples: 4, evaluate_samples: 16}
"""

if not (os.path.exists(CHROMIUM) and os.path.exists(DRIVER)):
    print("chromium is not installed: skipped")
    sys.exit(77)

from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import (  # noqa: E402
    NoSuchElementException, StaleElementReferenceException, WebDriverException)
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402


class Stand:
    """A service of its own, the program as its client, and a browser."""

    def __init__(self, work):
        self.work, self.mlopt = work, os.environ["MLOPT"]
        self.data = os.path.join(work, "data")
        self.log = open(os.path.join(work, "up.log"), "w+", encoding="utf-8")
        self.up = subprocess.Popen([self.mlopt, "up", "--data", self.data, "--listen", "127.0.0.1:0"],
                                   stdout=self.log, stderr=subprocess.STDOUT)
        self.url, self.token = self.wait_for("url"), self.wait_for("token")
        self.browser = None

    def wait_for(self, name):
        path = os.path.join(self.data, name)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if os.path.exists(path) and os.path.getsize(path):
                with open(path, encoding="utf-8") as file:
                    return file.read().strip()
            if self.up.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError("the service did not start:\n" + self.log_text())

    def log_text(self):
        self.log.flush()
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def run(self, *args, check=True):
        env = dict(os.environ, MLOPT_URL=self.url, MLOPT_TOKEN=self.token)
        done = subprocess.run([self.mlopt, *args], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"mlopt {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def open_browser(self):
        options = Options()
        options.binary_location = CHROMIUM
        flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--no-first-run", "--window-size=1240,860",
                 "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        # Chromium's sandbox wants an unprivileged user with namespaces of its own; containers often forbid them
        if os.geteuid() == 0 or subprocess.call(["unshare", "-Ur", "true"], stderr=subprocess.DEVNULL) != 0:
            flags.append("--no-sandbox")
        for flag in flags:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for left in (4, 3, 2, 1, 0):  # the driver and the browser give each other a fixed time to start
            options.add_argument("--user-data-dir=" + os.path.join(self.work, f"browser{left}"))
            try:
                self.browser = webdriver.Chrome(service=Service(DRIVER), options=options)
                break
            except WebDriverException:
                if not left:
                    raise
                time.sleep(2)
        self.browser.set_page_load_timeout(PATIENCE)
        self.browser.set_script_timeout(PATIENCE)

    def size(self, width, height):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def go(self, path):
        self.browser.get(self.url + path)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def leave_by(self, act):
        """Does what loads another page, and waits for that page.

        The page left behind is known by a mark on its window: asking the driver about one of its elements while the
        pages change ends in whatever error the browser thinks of.
        """
        self.browser.execute_script("window.leaving = true")
        act()
        WebDriverWait(self.browser, PATIENCE, 0.1, ignored_exceptions=[WebDriverException]).until(
            lambda browser: browser.execute_script("return !window.leaving && document.readyState === 'complete'"))

    def press(self, selector):
        self.leave_by(lambda: self.one(selector).click())

    def type(self, text):
        ActionChains(self.browser).send_keys(text).perform()

    def tab_to(self, selector):
        """On by the keyboard alone, from where the focus is; each place that it comes to must be seen to have it."""
        for _ in range(400):
            self.type(Keys.TAB)
            there, seen, what = self.browser.execute_script("""
                var e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
                return [e.matches(arguments[0]), e === document.body || (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0 &&
                        r.width > 0 && r.bottom > 0 && r.top < innerHeight), e.outerHTML.slice(0, 160)]""", selector)
            assert seen, "the focus is not seen: " + what
            if there:
                return
        raise AssertionError("the keyboard does not come to " + selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def shot(self, name, width=1240):
        folder = os.environ.get("MLOPT_SHOTS")
        if not folder:
            return
        os.makedirs(folder, exist_ok=True)
        self.size(width, max(320, self.browser.execute_script("return document.documentElement.scrollHeight")))
        self.browser.save_screenshot(os.path.join(folder, name + ".png"))
        self.size(width, 860)

    def close(self):
        if self.browser:
            self.browser.quit()
        if not self.up:
            return
        if self.up.poll() is None:
            self.up.send_signal(signal.SIGINT)
            try:
                self.up.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.up.kill()
        self.log.close()


class Example(Stand):
    """A service that runs already, and has the example."""

    def __init__(self, work):
        self.work, self.mlopt, self.up, self.log = work, os.environ["MLOPT"], None, None
        self.url, self.token = os.environ["MLOPT_URL"], os.environ["MLOPT_TOKEN"]
        self.browser = None


def fill(stand):
    """Datasets for a run, where they are installed: what a browser does not send. True: they are there."""
    if not os.path.isdir(IMAGES):
        return False
    for name, part, count in (("calibration", "train", "256"), ("test", "t10k", "500")):
        stand.run("data", "push", "fashion/" + name, f"{IMAGES}/{part}-images-idx3-ubyte.gz",
                  f"{IMAGES}/{part}-labels-idx1-ubyte.gz", "--count", count, "--normalize", NORMALIZE)
    return True


def check_sign_in(stand):
    stand.go("/runs")
    assert "/login" in stand.browser.current_url, stand.browser.current_url
    stand.one("input[name=token]").send_keys("mlopt_wrong")
    stand.press("button.primary")
    assert "not a token" in stand.one("[role=alert]").text
    stand.one("input[name=token]").send_keys(stand.token)
    stand.press("button.primary")
    assert stand.browser.current_url.endswith("/runs"), stand.browser.current_url
    cookie = stand.browser.get_cookie("mlopt_session")
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict", cookie


def upload(stand, description):
    """From the first page, by the form: the project and the model come with the first upload."""
    stand.go("/")
    stand.press("a[href^='/upload']")
    stand.one("input[name=project]").send_keys("fashion")
    stand.one("input[name=model]").send_keys("cnn")
    stand.one("input[name=description]").send_keys(description)
    stand.one("input[name=model_file]").send_keys(os.path.join(SOURCE, "deploy/models/fashion_cnn.onnx"))
    stand.press("form.tall button")


def check_upload(stand):
    upload(stand, ("" if os.environ.get("MLOPT_SHOTS") else "<script>window.pwned = 1</script> ") + "a small residual CNN")
    assert "/models/fashion/cnn?version=1" in stand.browser.current_url, stand.one("main").text
    assert "a small residual CNN" in stand.one("main").text


def check_submit(stand):
    """A recipe with a mistake is refused with the place, and keeps what was typed; then it runs. Its number."""
    stand.press("a[href^='/submit/']")
    assert {option.text for option in stand.all("select[name=data_evaluate] option")} == {
        "as the recipe says", "fashion/calibration", "fashion/test"}
    stand.one("details summary").click()
    stand.one("textarea[name=recipe]").send_keys(RECIPE.replace("minmax", "minimax"))
    stand.press("form.tall button")
    assert "did you mean" in stand.one("[role=alert]").text, stand.one("main").text
    text = stand.one("textarea[name=recipe]")
    assert "minimax" in text.get_attribute("value")
    text.clear()
    text.send_keys(RECIPE)
    stand.press("form.tall button")  # the first job runs, and then the project is paused: what follows waits
    assert "/runs/fashion/" in stand.browser.current_url, stand.one("main").text
    run = int(stand.browser.current_url.rsplit("/", 1)[1])
    until = time.monotonic() + PATIENCE
    while not any(job["attempts"] for job in json.loads(stand.run("runs", str(run), "-o", "json"))["jobs"]):
        assert time.monotonic() < until, "no job was begun"
        time.sleep(0.1)
    stand.run("queue", "set", "fashion", "--pause")
    while any(job["state"] == "running" for job in json.loads(stand.run("runs", str(run), "-o", "json"))["jobs"]):
        assert time.monotonic() < until, "the first job does not end"
        time.sleep(0.1)
    return run


def check_home(stand, run):
    """What waits is on the first page, by project and class."""
    stand.go("/")
    facts = stand.one("#now").text
    assert "Jobs that run" in facts and "Jobs that wait" in facts, facts
    if run:
        row = stand.one("#waiting tbody tr").text
        assert "fashion" in row and "any" in row, row
        assert "The oldest waits for" in facts, facts
    stand.shot("home")


def as_owner(stand, script, text=""):
    """What the page is not led to otherwise; `text` is :'t' of the script. False: there is no psql."""
    psql = shutil.which("psql") or next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin/psql"))), None)
    if not psql:
        return False
    subprocess.run([psql, "-X", "-q", "-1", "-h", os.path.join(stand.data, "pg/socket"), "-U", "mlopt_owner", "-d", "mlopt", "-v", "ON_ERROR_STOP=1",
                    "-v", f"t={text}"], input=script + ";\n", text=True, check=True, timeout=PATIENCE)
    return True


def write_log(stand, job, part, text):
    """What a step writes on stderr, as its worker keeps it. False: there is no psql."""
    return as_owner(stand, f"insert into mlopt.attempt_log (job, number, part, text) values ({job}, 1, {part}, :'t')", text)


def check_log(stand, run):
    """What is new of a log is appended behind what the page has, at the place that the reader chose."""
    jobs = json.loads(stand.run("runs", str(run), "-o", "json"))["jobs"]
    job = next(j["id"] for j in jobs if j["attempts"])
    if not write_log(stand, job, 100, "".join(f"line {i}\n" for i in range(200))):
        print("psql is not installed: the live log was not looked at")
        return
    pre, text = f"#log-{job}-1 pre", "return document.querySelector(arguments[0]).textContent"
    wait = WebDriverWait(stand.browser, PATIENCE, 0.1)
    wait.until(lambda _: stand.all(pre))
    stand.browser.execute_script("document.querySelector(arguments[0]).parentNode.open = true", pre)
    stand.browser.execute_script("var p = document.querySelector(arguments[0]); p.here = true; p.scrollTop = 40", pre)
    write_log(stand, job, 101, "<b>news</b> äöü\n")
    wait.until(lambda browser: "<b>news</b> äöü\n" in browser.execute_script(text, pre))
    here, top = stand.browser.execute_script("var p = document.querySelector(arguments[0]); return [p.here, p.scrollTop]", pre)
    assert here and top == 40, (here, top)
    # whoever is at the end stays there; more than the page holds leaves a gap, which it says
    stand.browser.execute_script("var p = document.querySelector(arguments[0]); p.scrollTop = p.scrollHeight", pre)
    write_log(stand, job, 102, "x" * 50000 + "\nthe end\n")
    wait.until(lambda browser: browser.execute_script(text, pre).endswith("the end\n"))
    assert "bytes are left out here" in stand.browser.execute_script(text, pre)
    left = stand.browser.execute_script("var p = document.querySelector(arguments[0]); return p.scrollHeight - p.clientHeight - p.scrollTop", pre)
    assert left <= 4, left
    told = stand.browser.execute_async_script(
        "var done = arguments[0]; fetch(document.querySelector('#logs .all a').href).then(a => a.text()).then(done)")
    assert "line 0\n" in told and told.endswith("the end\n") and f"== job {job}, " in told, told[:200]
    # while nothing happens nothing is asked for; and where there is no stream of events the page asks by itself
    fetched = "return performance.getEntriesByType('resource').filter(e => e.initiatorType === 'fetch').length"
    before = stand.browser.execute_script(fetched)
    time.sleep(3.5)
    assert stand.browser.execute_script(fetched) - before <= 1, "the page asks although nothing happens"
    without = stand.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": "window.EventSource = undefined"})
    stand.go(f"/runs/fashion/{run}")
    write_log(stand, job, 103, "and on\n")
    wait.until(lambda browser: browser.execute_script(text, pre).endswith("and on\n"))
    stand.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", without)
    stand.go(f"/runs/fashion/{run}")
    check_many_jobs(stand, run, job)


def check_many_jobs(stand, run, job):
    """What goes on is further back than a page of jobs: picture and table of times go there together, and the table stays open."""
    shown = """return ["live", "times"].map(id => document.getElementById(id).dataset.from).concat(
        document.querySelector(".waterfall .job").textContent, document.querySelector("#trace tbody td").textContent,
        document.getElementById("trace").open, document.activeElement.matches("#trace > summary"))"""
    names = [j["name"] for j in json.loads(stand.run("runs", str(run), "-o", "json"))["jobs"]]
    stand.browser.execute_script("document.getElementById('trace').open = true; document.querySelector('#trace > summary').focus()")
    assert stand.browser.execute_script(shown) == ["0", "0", names[0], names[0], True, True], stand.browser.execute_script(shown)
    as_owner(stand, f"""update mlopt.job set position = position + 1000 where run = {run};
        insert into mlopt.job overriding system value select (jsonb_populate_record(null::mlopt.job, to_jsonb(j) ||
            jsonb_build_object('id', 1000000 + n, 'position', n, 'name', 'early-' || n))).*
            from mlopt.job j, generate_series(0, 15) n where j.run = {run} and j.position = 1000;
        update mlopt.job set position = position - 984 where run = {run} and position >= 1000""")
    write_log(stand, job, 104, "further back\n")
    there = ["16", "16", names[0], names[0], True, True]
    WebDriverWait(stand.browser, PATIENCE, 0.1).until(lambda browser: browser.execute_script(shown) == there)
    as_owner(stand, f"""delete from mlopt.job where id >= 1000000; update mlopt.job set position = position + 1000 where run = {run};
        update mlopt.job set position = position - 1016 where run = {run}""")


def check_live_run(stand, run):
    """The page follows the run to its end without being loaded, and what was opened and scrolled to stays."""
    stand.go(f"/runs/fashion/{run}")
    assert len(stand.all("#jobs tbody tr")) >= 4 and stand.all("[data-live]")
    assert len(stand.all("svg.dag g.job")) == 5 and len(stand.all("svg.dag path.edge")) >= 4
    if not os.environ.get("MLOPT_SHOTS"):  # a picture is of what the steps wrote
        check_log(stand, run)
        stand.go(f"/runs/fashion/{run}")
    stand.browser.execute_script("window.here = true; document.querySelector('#logs').here = true")
    stand.run("queue", "set", "fashion", "--resume")
    # elements come and go while the page refreshes itself
    moving = [StaleElementReferenceException, NoSuchElementException]
    WebDriverWait(stand.browser, PATIENCE, 0.3, ignored_exceptions=moving).until(
        lambda _: not stand.all("[data-live]") and any(word in stand.one(".facts").text for word in ("succeeded", "failed", "cancelled")))
    assert "succeeded" in stand.one(".facts").text, stand.one("main").text
    assert stand.browser.execute_script("return window.here && document.querySelector('#logs').here"), "the page was loaded again"
    assert not stand.all("form[action$='/cancel']"), "the form outside of the live part was left behind"
    stand.shot("run")


def check_model(stand, run):
    stand.go("/models/fashion/cnn")
    assert stand.browser.execute_script("return window.pwned") is None
    rows = stand.all("#variants tbody tr")
    if run:
        text = stand.one("#variants").text
        assert all(part in text for part in ("int8-cpu", "%", "×")), text
        assert "µs" in text or "ms" in text, text
        assert len(stand.all("svg.lineage g.node")) >= 4
        assert len(stand.all("svg.lineage path.edge")) >= 3
    assert rows and "source" in rows[0].text


def check_variant(stand, run):
    """From the table to one variant with its evidence, and to several side by side."""
    stand.go("/models/fashion/cnn")
    last = [a for a in stand.all("#variants a") if "/variant/" in a.get_attribute("href")][-1]
    name = last.text
    stand.go("/" + last.get_attribute("href").split("/", 3)[3])
    assert stand.one("h1").text == name and stand.all("#names tbody tr"), stand.one("main").text
    if run:
        text = stand.one("#evidence").text
        assert all(part in text for part in ("top1", "latency.p50", "fashion/test", "batch 1, 1 thread")), text
        shares = stand.one("#shares").text
        assert "Conv" in shares and "int8" in shares and "%" in shares, shares
        assert len(stand.all("svg.profile rect")) >= 4
        stand.one("#profile details summary").click()
        nodes = stand.one("#nodes tbody").text
        assert "int8" in nodes and "/stem/Conv" in nodes, nodes
        stand.one("#profile details summary").click()
        stand.shot("variant")
    stand.go("/compare/fashion/cnn")
    Select(stand.one("select[name=a]")).select_by_visible_text("1/source")
    Select(stand.one("select[name=b]")).select_by_visible_text("1/" + name)
    stand.press("form.filters button")
    assert [a.text for a in stand.all("#compared thead a")] == ["1/source", "1/" + name], stand.one("main").text
    if run:
        assert "top1" in stand.one("#compared").text and "batch 1, 1 thread" in stand.one("#compared").text, stand.one("#compared").text
        assert "{" not in stand.one("#compared").text and len(stand.all("svg.plot circle")) == 2, stand.one("main").text
        stand.shot("compare")


def check_report(stand, run):
    """The variant's page leads to what explains it; the page's policy lets its own style through."""
    if not run:
        return
    stand.go("/models/fashion/cnn")
    links = [a for a in stand.all("#variants a") if a.text == "Report"]
    assert len(links) == 1, stand.one("#variants").text
    stand.go("/" + links[0].get_attribute("href").split("/", 3)[3])
    text = stand.one("main").text
    assert all(part in text for part in ("int8-cpu", "Precision", "Tensors, the noisiest first", "Worst samples", "top1")), text
    assert len(stand.all("svg.histogram")) >= 12 and len(stand.all("svg.histogram .mark")) >= 4
    panel = stand.one("section.panel")
    assert panel.value_of_css_property("border-radius") == "9px", "the style sheet was refused"
    assert stand.one("details").get_attribute("open") is None
    stand.shot("report")
    json_link = [a.get_attribute("href") for a in stand.all("a") if a.get_attribute("href").endswith("/json")]
    stand.go(f"/runs/fashion/{run}")
    own = [a for a in stand.all("#jobs a") if a.text == "Report"]
    assert len(own) == 1 and own[0].get_attribute("href").endswith(f"?run={run}"), stand.one("#jobs").text
    stand.go("/" + own[0].get_attribute("href").split("/", 3)[3])
    assert "Tensors, the noisiest first" in stand.one("main").text
    assert [a.get_attribute("href") for a in stand.all("a") if a.get_attribute("href").endswith(f"/json?run={run}")] == [
        link + f"?run={run}" for link in json_link]


def promote(stand, stage, variant, reason):
    stand.go("/models/fashion/cnn")
    Select(stand.one("select[name=stage]")).select_by_visible_text(stage)
    Select(stand.one("select[name=variant0]")).select_by_visible_text(variant)
    stand.one("form[action$='/promote'] input[name=reason]").send_keys(reason)
    stand.press("form[action$='/promote'] button")
    assert stand.browser.current_url.endswith("/promotions/fashion/cnn"), stand.one("main").text


def check_moves(stand, run):
    promote(stand, "production", "source", "first release")
    # without a run the second release is another version
    if run:
        promote(stand, "staging", "int8-cpu", "smaller and faster")
        promote(stand, "production", "int8-cpu", "staging looked good")
    else:
        upload(stand, "the same again")
        promote(stand, "production", "source", "staging looked good")
    moves = len(stand.all("table.moves tbody tr"))
    why = "practising the way back" if os.environ.get("MLOPT_SHOTS") else "practising <b>the way</b> back"
    stand.one("form.back input[name=reason]").send_keys(why)
    stand.press("form.back button")
    rows = stand.all("table.moves tbody tr")
    assert len(rows) == moves + 1 and "rollback" in rows[0].text and why in rows[0].text, rows[0].text
    stand.press("form.filters button")  # what is in force now
    assert "held" in stand.one(".answer").text, stand.one("main").text
    stand.shot("promotions")
    stand.go("/models/fashion/cnn")
    stand.shot("model")


def sign_in(stand, token):
    stand.browser.delete_all_cookies()
    stand.go("/login")
    stand.one("input[name=token]").send_keys(token)
    stand.press("button.primary")


def make_token(stand, name, role):
    stand.go("/tokens")
    stand.one("form[action='/tokens'] input[name=name]").send_keys(name)
    Select(stand.one("form[action='/tokens'] select[name=role]")).select_by_visible_text(role)
    Select(stand.one("form[action='/tokens'] select[name=project]")).select_by_visible_text("fashion")
    stand.press("form[action='/tokens'] button")
    return stand.one("#made").text


def check_members(stand):
    """Of one project, by an admin of that project: one is added, gets a token, and is taken away."""
    admin = make_token(stand, "ada", "admin")
    sign_in(stand, admin)
    stand.go("/projects")
    stand.press("a[href='/members/fashion']")
    assert stand.one("h1").text == "Members of fashion"
    for name, staging in (("rosa", "promoter"), ("ci", "the same")):
        stand.go("/members/fashion")
        stand.one("input[name=name]").send_keys(name)
        Select(stand.one("select[name=kind]")).select_by_visible_text("service" if name == "ci" else "person")
        Select(stand.one("select[name=role]")).select_by_visible_text("submitter")
        Select(stand.one("select[name=staging]")).select_by_visible_text(staging)
        stand.press("form.filters button")
        assert stand.one("h1").text == name and "submitter" in stand.one(".facts").text, stand.one("main").text
        stand.one("input[name=token_name]").send_keys("laptop")
        stand.press("form[action$='/token'] button")
        assert stand.one("#made").text.startswith("mlopt_") and "laptop" in stand.one("#tokens").text
    stand.press("button[aria-label='Revoke laptop']")
    assert "revoked" in stand.one("#tokens").text and stand.one("h1").text == "ci", stand.one("main").text
    stand.shot("member")
    stand.go("/members/fashion")
    assert "promoter of staging" in stand.one("#members").text and "service account" in stand.one("#members").text
    stand.shot("members")
    stand.go("/members/fashion/ci")
    stand.press("form[action$='/remove'] button")
    assert "ci" not in stand.one("#members").text and "rosa" in stand.one("#members").text
    sign_in(stand, stand.token)
    stand.press("a[href='/projects']")
    stand.go("/tokens?project=fashion")
    assert "laptop" in stand.one("#tokens").text and "ada" in stand.one("#tokens").text


def check_gates(stand, run):
    """A gate refuses until somebody else approves what was shown; another is a claim that does not hold."""
    policy = os.path.join(stand.work, "gates.yaml")
    with open(policy, "w", encoding="utf-8") as file:
        file.write("stages:\n  production:\n" + ("    - evidence: top1 >= source - 5pt\n" if run else "") +
                   "    - approvals: 1\n      role: approver\n")
    stand.run("policy", "set", "fashion/cnn", policy, "--reason", "four eyes")
    anna, paul = make_token(stand, "anna", "approver"), make_token(stand, "paul", "promoter")
    assert {"anna", "paul"} <= {cell.text.split("\n")[0] for cell in stand.all("#tokens tbody td:first-child")}
    stand.shot("tokens")
    last = "int8-cpu" if run else "source"

    def ask_by_keyboard(stage_button):
        stand.go("/models/fashion/cnn")
        for field, text in (("select[name=stage]", "production"), ("select[name=variant0]", last),
                            ("form[action$='/promote'] input[name=reason]", "measured, wanted")):
            stand.tab_to(field)
            stand.type(text)
        stand.tab_to(f"form[action$='/promote'] {stage_button}")
        stand.leave_by(lambda: stand.type(Keys.ENTER))

    def ask(stage_button):
        stand.go("/models/fashion/cnn")
        Select(stand.one("select[name=stage]")).select_by_visible_text("production")
        Select(stand.one("select[name=variant0]")).select_by_visible_text(last)
        stand.one("form[action$='/promote'] input[name=reason]").send_keys("measured, wanted")
        stand.press(f"form[action$='/promote'] {stage_button}")

    # what was rolled back is in quarantine: an approver lets it out
    sign_in(stand, anna)
    stand.go("/promotions/fashion/cnn")
    if stand.all("form[action$='/quarantine']"):
        stand.one("form[action$='/quarantine'] input[name=reason]").send_keys("looked at it")
        stand.press("form[action$='/quarantine'] button")
    sign_in(stand, paul)
    assert not stand.all("nav a[href='/tokens']")
    ask("button.primary")
    assert "The gates refused" in stand.one("[role=alert]").text and stand.all("#gates tr.refuses"), stand.one("main").text
    assert "Not while a gate refuses" in stand.one("main").text
    found = []
    axe_of(stand, "gates", found)  # an answer to a form has no address
    assert not found, found
    stand.shot("gates")
    sign_in(stand, anna)
    ask_by_keyboard("button.plain")  # looks at the gates
    stand.tab_to("form[action$='/approve'] input[name=reason]")
    stand.type("looked at the worst samples")
    stand.tab_to("form[action$='/approve'] button")
    stand.leave_by(lambda: stand.type(Keys.ENTER))
    sign_in(stand, paul)
    ask_by_keyboard("button.primary")
    assert stand.browser.current_url.endswith("/promotions/fashion/cnn"), stand.one("main").text
    newest = stand.one("table.moves tbody tr").text
    assert "paul" in newest and "measured, wanted" in newest, newest
    stand.go("/" + stand.all("table.moves tbody tr")[0].find_elements(By.CSS_SELECTOR, "a[href^='/release/']")[-1].get_attribute("href").split("/", 3)[3])
    assert stand.all(".decision tr.holds") and last in stand.one("#parts").text, stand.one("main").text
    stand.shot("release")
    stand.go("/promotions/fashion/cnn")
    stand.tab_to("form.back input[name=reason]")
    stand.type("and back")
    stand.tab_to("form.back button")
    stand.leave_by(lambda: stand.type(Keys.ENTER))
    assert "rollback" in stand.one("table.moves tbody tr").text
    sign_in(stand, stand.token)


def check_time_travel(stand):
    """What production held at each of its moves, and before the first one."""
    stand.go("/promotions/fashion/cnn")
    times = [row.find_element(By.CSS_SELECTOR, "time").get_attribute("datetime") for row in stand.all("table.moves tbody tr")]
    assert len(times) >= 4, times
    stand.go("/promotions/fashion/cnn?stage=production&at=2001-01-01T00:00:00")
    assert "was empty" in stand.one(".answer").text, stand.one(".answer").text
    stand.go("/promotions/fashion/cnn?stage=production&at=" + times[0].replace("+", "%2B"))
    assert "held" in stand.one(".answer").text, stand.one(".answer").text


def check_audit(stand):
    stand.go("/audit/fashion")
    assert "verified" in stand.one("#verify").text
    stand.one("input[name=action]").send_keys("stage.")
    stand.press("form.filters button")
    assert all("stage." in row.text for row in stand.all("#audit tbody tr"))
    stand.go("/audit/fashion")
    stand.one("input[name=who]").send_keys("paul")
    stand.press("form.filters button")
    assert all("paul" in row.text for row in stand.all("#audit tbody tr")) and len(stand.all("#audit tbody tr")) >= 2
    stand.one("#audit details summary").click()
    assert "before" in stand.one("#audit details").text
    stand.shot("audit")
    for name, moment in (("since", "2001-01-31T12:00:00"), ("until", "2101-01-31T12:00:00")):
        stand.browser.execute_script("document.querySelector(arguments[0]).value = arguments[1]", f"input[name={name}]", moment)
    stand.press("form.filters button")
    assert len(stand.all("#audit tbody tr")) >= 2
    assert "2001-01-31T12:00" in stand.one("input[name=since]").get_attribute("value")


def pages(run):
    last = "int8-cpu" if run else "source"
    return ["/", "/models/fashion/cnn", f"/variant/fashion/cnn/1/{last}", f"/compare/fashion/cnn?a=1/source&b=1/{last}",
            "/promotions/fashion/cnn", "/release/fashion/cnn/1", "/runs", "/projects", "/datasets", "/tokens", "/tokens?project=fashion",
            "/members/fashion", "/members/fashion/rosa", "/workers", "/usage/fashion", "/schedules/fashion", "/search/fashion", "/audit", "/audit/fashion", "/upload",
            "/submit/fashion/cnn", "/audit/-", "/login", "/docs/api", "/docs/api/schemas"] + (
                [f"/runs/fashion/{run}", f"/report/fashion/cnn/1/{last}"] if run else [])


def check_size_and_keys(stand, run):
    """No page is over 100 KB; all that can be pressed is reached by the keyboard, in the order of the page."""
    for page in pages(run):
        stand.go(page)
        size = stand.browser.execute_script("return performance.getEntriesByType('navigation')[0].decodedBodySize")
        assert 0 < size <= 100_000, (page, size)
        wrong = stand.browser.execute_script("""
            return Array.from(document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary'))
              .filter(e => e.getClientRects().length && (e.tabIndex !== 0 || getComputedStyle(e).visibility === 'hidden'))
              .map(e => e.outerHTML.slice(0, 120))""")
        assert not wrong, (page, wrong)


def shot_all(stand, run, folder, width=1240):
    """Each page, to be looked at: pictures of an address without what is special in a file's name."""
    if os.environ.get("MLOPT_SHOTS"):
        for page in pages(run):
            stand.go(page)
            stand.shot(f"{folder}-{page.strip('/').translate(str.maketrans('/?&=', '----')) or 'home'}", width)


def check_narrow(stand, run):
    """At 380 px nothing but tables and pictures scrolls sideways."""
    stand.size(380, 800)
    for name in pages(run):
        stand.go(name)
        width = stand.browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= 380, (name, width)
    stand.go("/models/fashion/cnn")
    stand.shot("model-narrow", 380)
    shot_all(stand, run, "narrow", 380)
    stand.size(1240, 860)


def axe_of(stand, what, found):
    """What axe-core finds serious on the page that is open, added to `found`; nothing where there is no axe-core."""
    path = os.environ.get("MLOPT_AXE")
    if not path:
        return
    with open(path, encoding="utf-8") as file:
        stand.browser.execute_script(file.read())
    result = stand.browser.execute_async_script("var done = arguments[0]; axe.run().then(done, function (e) { done({error: String(e)}); });")
    assert "violations" in result, (what, result)
    found += [(what, v["id"], v["impact"], v["nodes"][0]["html"][:160], v["nodes"][0]["failureSummary"][:200])
              for v in result["violations"] if v["impact"] in ("serious", "critical")]


def check_axe(stand, run):
    """No serious finding of axe-core on any page, in both colours, wide and narrow."""
    if not os.environ.get("MLOPT_AXE"):
        print("MLOPT_AXE is not set: axe-core did not look at the pages")
        return
    found, looked = [], 0
    for scheme, width in (("light", 1240), ("dark", 1240), ("light", 380)):
        stand.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        stand.size(width, 860)
        for page in pages(run):
            stand.go(page)
            axe_of(stand, (scheme, width, page), found)
            looked += 1
    stand.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    stand.size(1240, 860)
    assert not found, "\n".join(map(str, found))
    print(f"axe-core looked {looked} times: nothing serious")


def check_dark(stand, run):
    stand.go("/")
    light = stand.browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    shot_all(stand, run, "light")
    stand.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                  {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    dark = stand.browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert light != dark, dark
    shot_all(stand, run, "dark")


def check_sign_out(stand):
    stand.go("/")
    stand.press("form.who button")
    assert "/login" in stand.browser.current_url
    stand.go("/runs")
    assert "/login" in stand.browser.current_url


def show_example(work):
    stand = Example(work)
    try:
        stand.open_browser()
        sign_in(stand, stand.token)
        for name, page, width in (("model", "/models/fashion/cnn", 1240), ("model-narrow", "/models/fashion/cnn", 380),
                                  ("variant", "/variant/fashion/cnn/1/int8-cpu", 1240), ("run", "/runs/fashion/1", 1240),
                                  ("compare", "/compare/fashion/cnn?a=1/source&b=1/int8-cpu", 1240)):
            stand.size(width, 860)
            stand.go(page)
            stand.shot(name, width)
        stand.go("/promotions/fashion/cnn")
        stand.press("form.filters button")  # what is in force now
        stand.shot("promotions")
    finally:
        stand.close()


def main():
    work = tempfile.mkdtemp(prefix="mlopt-pages-")
    os.chmod(work, 0o755)  # PostgreSQL runs as another user when this one is root
    stand = None
    try:
        if "--example" in sys.argv:
            show_example(work)
            return
        stand = Stand(work)
        run = fill(stand)
        stand.open_browser()
        check_sign_in(stand)
        check_upload(stand)
        run = check_submit(stand) if run else None
        check_home(stand, run)
        if run:
            check_live_run(stand, run)
        check_model(stand, run)
        check_variant(stand, run)
        check_report(stand, run)
        check_moves(stand, run)
        check_members(stand)
        check_gates(stand, run)
        check_time_travel(stand)
        check_audit(stand)
        check_size_and_keys(stand, run)
        check_narrow(stand, run)
        check_axe(stand, run)
        check_dark(stand, run)
        check_sign_out(stand)
        bad = [line for line in stand.browser.get_log("browser")
               if line["level"] == "SEVERE" and "401" not in line["message"] and "409" not in line["message"] and "422" not in line["message"]]
        assert not bad, bad
        print("ok")
    finally:
        if stand:
            stand.close()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
