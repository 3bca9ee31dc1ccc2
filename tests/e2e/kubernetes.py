"""What the manifests of deploy/kubernetes name is there: kubernetes.py FOLDER MLOPT SOURCE. Prints what is wrong and ends
with 1; prints the query of each ScaledJob's trigger as "query CLASS TEXT" lines otherwise. A check of references and of
what the program takes; the shapes are checked by the published schemas (kubernetes_schemas.py)."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

folder, mlopt, source = sys.argv[1:4]
wrong = []
# Each is easily made, and must be found: the file, what stands there, what is put in its place.
MISTAKES = [
    ("base/server.yaml", "- --drain\n", "- --drains\n"),
    ("base/server.yaml", "path: /readyz", "path: /ready"),
    ("base/server.yaml", "GracePeriodSeconds: 60", "GracePeriodSeconds: 45"),
    ("base/server.yaml", "targetPort: http", "targetPort: web"),
    ("base/server.yaml", "key: access-key-id", "key: access-key"),
    ("base/server.yaml", "name: AWS_ACCESS_KEY_ID", "name: AWS_ACCESS_ID"),
    ("base/server.yaml", "minAvailable: 1", "minAvailable: 2"),
    ("base/server.yaml", "- name: metrics", "- name: figures"),
    ("base/server.yaml", "0.0.0.0:9640", "0.0.0.0:9641"),
    ("base/network.yaml", "{protocol: TCP, port: metrics}", "{protocol: TCP, port: http}"),
    ("base/workers.yaml", "serviceAccountName: mlopt-worker", "serviceAccountName: worker"),
    ("base/workers.yaml", "- --exit-when-idle", "- --require-isolation"),
    ("base/workers.yaml", "- --max-scratch\n              - \"20480\"\n", ""),
    ("base/workers.yaml", "sizeLimit: 50Gi", "sizeLimit: 40Gi"),
    ("base/workers.yaml", "ephemeral-storage: 60Gi", "ephemeral-storage: 50Gi"),
    ("base/workers.yaml", "strategy: accurate", "strategy: default"),
    ("base/workers.yaml", "image: mlopt-worker", "image: mlopt"),
    ("base/workers.yaml", "memory: 8Gi, ephemeral", "memory: 6Gi, ephemeral"),
    ("base/workers.yaml", '"20480"', '"10240"'),
    ("base/config.yaml", "cuda:sm80", "cuda:sm90"),
    ("base/network.yaml", "component: upkeep", "component: keep"),
    ("base/upkeep.yaml", "args: [fsck,", "args: [check,"),
    ("base/config.yaml", "gpu-target:", "gpu:"),
    ("base/kustomization.yaml", "  - network.yaml\n", ""),
    ("overlays/example/secrets.yaml", "scaler:", "scale:"),
    ("overlays/example/isolation.yaml", "value: --require-isolation", "value: --isolation"),
]


def check(holds, text):
    if not holds:
        wrong.append(text)


def load(path):
    with open(path, encoding="utf-8") as f:
        return [d for d in yaml.load_all(f, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if d]


def kustomization(path):
    k = load(os.path.join(path, "kustomization.yaml"))[0]
    listed = [r for r in k.get("resources", []) if r.endswith(".yaml")] + [p["path"] for p in k.get("patches", [])]
    there = [f for f in os.listdir(path) if f.endswith(".yaml") and f != "kustomization.yaml"]
    check(sorted(listed) == sorted(there), f"{path}: the kustomization lists {sorted(listed)}, there are {sorted(there)}")
    return k


# --- the program's own tables ----------------------------------------------------------------------

text = ""
for top in ("api", "base", "registry", "pipeline", "engines"):
    for root, _, files in os.walk(os.path.join(source, top)):
        for name in files:
            if name.endswith(".c"):
                with open(os.path.join(root, name), encoding="utf-8") as f:
                    text += f.read()
with open(os.path.join(source, "api/http/routes.c"), encoding="utf-8") as f:
    routes = set(re.findall(r'"(/[^"]*)"', f.read()))
options = {}


def options_of(verb):
    if verb not in options:
        run = subprocess.run([mlopt, verb, "--help"], capture_output=True, text=True, check=False)
        options[verb] = run.returncode == 0 and dict(re.findall(r"^ +(?:-\w, )?--([a-z-]+)(?: ([A-Z|a-z:]+))? ", run.stdout, re.M))
    return options[verb]


def mebibytes(size):
    return int(size.removesuffix("Gi")) * 1024


def figure(args, option):
    return int(args[args.index(option) + 1]) if option in args else 0


def arguments(args, who, env):
    verb, taken = args[0], options_of(args[0])
    check(taken, f"{who}: mlopt has no {verb}")
    if not taken:
        return
    rest = args[1:]
    while rest:
        word = rest.pop(0)
        name = word[2:]
        if not word.startswith("--") or name not in taken:
            wrong.append(f"{who}: mlopt {verb} has no {word}")
        elif taken[name]:
            check(rest and not rest[0].startswith("--"), f"{who}: {word} has no value")
            value = rest.pop(0) if rest else ""
            for used in re.findall(r"\$\((\w+)\)", value):
                check(used in env, f"{who}: {word} uses {used}, which is not set")


# --- the manifests --------------------------------------------------------------------------------

def look_at(folder):
    base_path, example_path = os.path.join(folder, "base"), os.path.join(folder, "overlays/example")
    base_k, example_k = kustomization(base_path), kustomization(example_path)
    base = [d for r in base_k["resources"] for d in load(os.path.join(base_path, r))]
    secrets = load(os.path.join(example_path, "secrets.yaml"))
    check(base_k["namespace"] == example_k["namespace"] == base[0]["metadata"]["name"], "the namespaces differ")

    def called(document):
        return f"{document['kind']} {document['metadata']['name']}"

    every = base + secrets
    names = [called(d) for d in every]
    for name in names:
        check(names.count(name) == 1, f"{name} is there {names.count(name)} times")

    def find(kind, name, who):
        for d in every:
            if d["kind"] == kind and d["metadata"]["name"] == name:
                return d
        wrong.append(f"{who}: there is no {kind} {name}")
        return None

    def key_of(kind, ref, who):
        d = find(kind, ref["name"], who)
        if d:
            check(ref["key"] in {**d.get("data", {}), **d.get("stringData", {})}, f"{who}: {kind} {ref['name']} has no {ref['key']}")

    def template(d):
        spec = d.get("spec", {})
        if d["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if d["kind"] == "ScaledJob":
            spec = spec["jobTargetRef"]
        return spec.get("template")

    # pods

    def container(c, spec, who, images):
        check(c["image"] in images, f"{who}: no image {c['image']}")
        env = {}
        for e in c.get("env", []):
            env[e["name"]] = e
            # the names that it uses for itself, in arguments, aside: the program, or libpq, reads the variable
            read = f'"{e["name"]}"' in text or any(f"$({e['name']})" in a for a in c.get("args", []))
            check(read, f"{who}: nothing reads {e['name']}")
            ref = e.get("valueFrom", {})
            if "configMapKeyRef" in ref:
                key_of("ConfigMap", ref["configMapKeyRef"], who)
            if "secretKeyRef" in ref:
                key_of("Secret", ref["secretKeyRef"], who)
            check("value" not in e or not re.search("PASS|SECRET|TOKEN|DATABASE", e["name"]), f"{who}: {e['name']} is written down")
        if "command" not in c:
            arguments(list(c["args"]), who, env)
        ports = {p["name"] for p in c.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = c.get(probe, {}).get("httpGet")
            if get:
                check(get["path"] in routes, f"{who}: no route {get['path']}")
                check(get["port"] in ports, f"{who}: {probe} asks a port {get['port']} that is not named")
        closed = c.get("securityContext", {})
        check(closed.get("allowPrivilegeEscalation") is False and closed.get("readOnlyRootFilesystem") is True and
              closed.get("capabilities", {}).get("drop") == ["ALL"], f"{who}: its rights are not closed")
        check("memory" in c["resources"]["limits"] and {"cpu", "memory"} <= set(c["resources"]["requests"]), f"{who}: no resources")
        listens = {int(args[args.index(o) + 1].rsplit(":", 1)[1]) for args in [c.get("args", [])] for o in ("--listen", "--metrics") if o in args}
        check(listens == {p["containerPort"] for p in c.get("ports", [])}, f"{who}: it listens on {sorted(listens)}")
        volumes = {v["name"] for v in spec.get("volumes", [])}
        for m in c.get("volumeMounts", []):
            check(m["name"] in volumes, f"{who}: no volume {m['name']}")
        return ports

    def pod(d, t, images):
        spec, who = t["spec"], called(d)
        find("ServiceAccount", spec["serviceAccountName"], who)
        check(spec["automountServiceAccountToken"] is False, f"{who}: it gets a token of Kubernetes")
        rights = spec["securityContext"]
        check(rights["runAsNonRoot"] is True and rights["runAsUser"] == 64800, f"{who}: not the image's user")
        check(rights["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost"), f"{who}: no filter of calls")
        for v in spec.get("volumes", []):
            if "secret" in v:
                find("Secret", v["secret"]["secretName"], who)
        ports = set()
        for c in spec.get("initContainers", []) + spec["containers"]:
            ports |= container(c, spec, f"{who}, {c['name']}", images)
            args = c.get("args", [])
            needs = figure(args, "--drain") + figure(args, "--finish")
            check(spec.get("terminationGracePeriodSeconds", 30) > needs, f"{who}: it may take {needs} s to end, and is killed before")
        mounted = {m["name"] for c in spec.get("initContainers", []) + spec["containers"] for m in c.get("volumeMounts", [])}
        check(mounted == {v["name"] for v in spec.get("volumes", [])}, f"{who}: a volume is mounted nowhere")
        return ports

    def fits(selector, labels):
        return all(labels.get(k) == v for k, v in selector.items())

    images = {i["name"] for i in base_k["images"]}
    check(images == {i["name"] for i in example_k["images"]}, "the overlay names other images")
    with open(os.path.join(source, "deploy/container/Containerfile"), encoding="utf-8") as f:
        stages = set(re.findall(r"^FROM .* AS (\w+)$", f.read(), re.M))
    check({i.replace("mlopt-", "") for i in images} <= stages, f"images {images} are no stages of the Containerfile")
    pods = []
    for d in base:
        t = template(d)
        if t:
            pods.append((d, t["metadata"]["labels"], pod(d, t, images), t["spec"]))
    check(len(pods) == 5, f"{len(pods)} kinds of pods")

    def selected(labels):
        return [p for p in pods if fits(labels, p[1])]

    outside = {"postgresql"}  # pods that are not ours

    def named_pods(selector, who):
        labels = selector.get("matchLabels", {})
        if labels and labels.get("app.kubernetes.io/name") not in outside:
            check(selected(labels), f"{who}: no pod has the labels {labels}")
        return selected(labels)

    for d in base:
        who, spec = called(d), d.get("spec", {})
        if d["kind"] == "Deployment":
            check(fits(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]), f"{who}: it selects other pods")
            check(len(selected(spec["selector"]["matchLabels"])) == 1, f"{who}: it selects other pods too")
            for s in spec["template"]["spec"]["topologySpreadConstraints"]:
                named_pods(s["labelSelector"], who)
        if d["kind"] == "PodDisruptionBudget":
            named_pods(spec["selector"], who)
            server = find("Deployment", "mlopt-server", who)
            check(spec["minAvailable"] < server["spec"]["replicas"], f"{who}: no node could be emptied")
        if d["kind"] == "Service":
            of = named_pods({"matchLabels": spec["selector"]}, who)
            for port in spec["ports"]:
                check(all(port["targetPort"] in p[2] for p in of), f"{who}: no port {port['targetPort']}")
        if d["kind"] == "NetworkPolicy":
            of = named_pods(spec["podSelector"], who)
            for rule in spec.get("ingress", []) + spec.get("egress", []):
                for peer in rule.get("from", []) + rule.get("to", []):
                    if "podSelector" in peer:
                        named_pods(peer["podSelector"], who)
                for port in rule["ports"]:
                    check(isinstance(port["port"], int) or any(port["port"] in p[2] for p in of), f"{who}: no port {port['port']}")
        if d["kind"] == "ScaledJob":
            check(spec["scalingStrategy"]["strategy"] == "accurate", f"{who}: what is claimed is not counted any more")
            args = template(d)["spec"]["containers"][0]["args"]
            check(args[0] == "worker" and "--exit-when-idle" in args, f"{who}: its pods never end")
            for trigger in spec["triggers"]:
                auth = find("TriggerAuthentication", trigger["authenticationRef"]["name"], who)
                for ref in auth["spec"]["secretTargetRef"]:
                    key_of("Secret", ref, who)
                print("query", template(d)["metadata"]["labels"]["mlopt.dev/class"], trigger["metadata"]["query"])
            limits = template(d)["spec"]["containers"][0]["resources"]["limits"]
            # MiB: the job's folder, checkpoints and kernels (half of that each), and the cache of blobs
            scratch, cache = figure(args, "--max-scratch"), figure(args, "--cache")
            sizes = {v["name"]: mebibytes(v["emptyDir"]["sizeLimit"]) for v in template(d)["spec"]["volumes"]}
            check(scratch and 2 * scratch + cache <= sizes["work"], f"{who}: a job may fill more than its volume")
            check(sum(sizes.values()) < mebibytes(limits["ephemeral-storage"]), f"{who}: its volumes are more than its disk")
            gpu = template(d)["metadata"]["labels"]["mlopt.dev/class"] == "gpu"
            room = mebibytes(limits["memory"]) << 20, scratch << 20
            offered = [find("ConfigMap", "mlopt", who)["data"]["gpu-target"]] if "$(MLOPT_GPU_TARGET)" in args else []
            for trigger in spec["triggers"]:
                query = trigger["metadata"]["query"]
                counted = re.search(r"memory_bytes <= (\d+) AND j.disk_bytes <= (\d+)", query)
                check(counted and tuple(map(int, counted.groups())) == room, f"{who}: its query counts what has no room in its pods")
                check(re.findall(r"'(cuda:\w+)'", query) == offered, f"{who}: its query counts other targets than its pods offer")
            check(("nvidia.com/gpu" in limits) == gpu, f"{who}: GPUs")
            check(("nvidia.com/gpu.present" in template(d)["spec"]["nodeSelector"]) == gpu, f"{who}: nodes")
    reached = {port["port"] for d in base if d["kind"] == "NetworkPolicy" for rule in d["spec"].get("ingress", []) for port in rule["ports"]}
    for d, _, ports, _ in pods:
        check(ports <= reached, f"{called(d)}: nobody may reach {sorted(ports - reached)}")
    policies = [d["spec"] for d in base if d["kind"] == "NetworkPolicy"]
    check(any(p["podSelector"] == {} and set(p["policyTypes"]) == {"Ingress", "Egress"} and "ingress" not in p for p in policies),
          "nothing is closed by default")
    for d, labels, _, _ in pods:
        own = [p for p in policies if p["podSelector"] and fits(p["podSelector"]["matchLabels"], labels)]
        check(any("egress" in p for p in own), f"{called(d)}: it reaches nothing")

    # the overlay

    for patch in example_k["patches"]:
        target = patch.get("target")
        for d in load(os.path.join(example_path, patch["path"])):
            if not target:
                find(d["kind"], d["metadata"]["name"], patch["path"])
                continue
            of = [b for b in base if b["kind"] == target["kind"]]
            check(of, f"{patch['path']}: no {target['kind']}")
            for b in of:
                at, operations = b, d if isinstance(d, list) else [d]
                for o in operations:
                    at = b
                    for step in o["path"].split("/")[1:-1]:
                        at = at[int(step)] if isinstance(at, list) else at.get(step)
                        if at is None:
                            wrong.append(f"{patch['path']}: {called(b)} has no {o['path']}")
                            break
                    last = o["path"].split("/")[-1]
                    check(at is None or last == "-" or o["op"] == "add" or last in at, f"{patch['path']}: no {o['path']}")
                    if at is not None and isinstance(o["value"], str) and o["value"].startswith("--"):
                        arguments(at + [o["value"]], patch["path"], {"MLOPT_BLOBS", "MLOPT_GPU_TARGET"})
    for s in secrets:
        for key, value in s["stringData"].items():
            check("EXAMPLE" in value, f"Secret {s['metadata']['name']}: {key} is no example")
    check(not [d for d in base if d["kind"] == "Secret"], "a Secret in the base")
    return len(every)


# --- what must be found ----------------------------------------------------------------------------


def mistaken(file, before, after, to):
    """A process that goes on below with a copy of the manifests that has a mistake in it, and says nothing."""
    child = os.fork()
    if child == 0:
        os.makedirs(to)
        shutil.copytree(folder, to, dirs_exist_ok=True)
        with open(os.path.join(to, file), encoding="utf-8") as f:
            right = f.read()
        if before not in right:
            os._exit(2)
        with open(os.path.join(to, file), "w", encoding="utf-8") as f:
            f.write(right.replace(before, after))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        return True
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    check(code != 2, f"'{before}' is not in {file}")
    check(code != 0, f"nobody sees '{after}' instead of '{before}' in {file}")
    return False


for used in ("server", "worker", "migrate", "gc", "fsck"):
    options_of(used)
with tempfile.TemporaryDirectory() as scratch:
    for number, mistake in enumerate(MISTAKES):
        copy = os.path.join(scratch, str(number))
        if mistaken(*mistake, copy):
            try:
                wrong.clear()
                look_at(copy)
            finally:  # whatever was raised: the folder is the parent's to remove
                os._exit(1 if wrong or sys.exc_info()[0] else 0)
documents = look_at(folder)
if wrong:
    print("\n".join(dict.fromkeys(wrong)), file=sys.stderr)
    sys.exit(1)
print(f"{documents} documents, {len(MISTAKES)} mistakes found", file=sys.stderr)
