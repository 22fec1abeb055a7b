"""deploy.py - what lies in deploy/: manifests, the systemd unit, alerts and the dashboard, each checked by the tool that reads it.

Kubernetes' own kinds are checked against its schemas (PyPI: kubernetes-validate), KEDA's and the Prometheus operator's against
those of npm packages (@kubernetes-models/*), the Gateway API's and its Inference Extension's against the definitions in the Go
modules that publish them (without their CEL rules), alerts by promtool (Debian: prometheus).
"""
import copy
import ctypes
import ctypes.util
import json
import os
import re
import shutil
import subprocess
import tempfile

from inferd_test import BIN, PRESET, ROOT, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, equal, golden_models, main

KUBE = os.path.join(ROOT, "deploy", "kubernetes")
UNIT = os.path.join(ROOT, "deploy", "systemd", "inferd.service")
RULES = os.path.join(ROOT, "deploy", "prometheus", "rules.yaml")
BOARD = os.path.join(ROOT, "deploy", "grafana", "inferd.json")
KUBERNETES = "1.32"  # the oldest version that the manifests promise to suit
COMPONENTS = ("cuda", "gateway", "hpa", "keda", "prometheus")

try:
    import yaml
except ImportError:
    yaml = None
try:
    import jsonschema
except ImportError:
    jsonschema = None
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None


def need_yaml():
    if yaml is None:
        raise Skip("the yaml package is not installed (tests/run makes a venv with it)")


def documents(path):
    need_yaml()
    with open(path, encoding="utf-8") as f:
        return [d for d in yaml.safe_load_all(f) if d]


def manifests():
    """Every object of deploy/kubernetes as it is written: [(file, object)]."""
    out = []
    for folder, _, files in os.walk(KUBE):
        for name in sorted(files):
            if name.endswith(".yaml"):
                path = os.path.join(folder, name)
                out += [(os.path.relpath(path, KUBE), d) for d in documents(path)]
    check(len(out) >= 15, f"found {len(out)} objects")
    return out


def built(components=()):
    """What kubectl would apply, with the image and components of an overlay."""
    if not shutil.which("kubectl"):
        raise Skip("kubectl is not installed")
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        shutil.copytree(KUBE, os.path.join(d, "base"))
        os.mkdir(os.path.join(d, "overlay"))
        with open(os.path.join(d, "overlay", "kustomization.yaml"), "w", encoding="utf-8") as f:
            json.dump({"resources": ["../base"], "components": [f"../base/components/{c}" for c in components]}, f)
        r = subprocess.run(["kubectl", "kustomize", os.path.join(d, "overlay")], capture_output=True, text=True, check=False)
        equal(r.returncode, 0, f"kubectl kustomize: {r.stderr}")
    need_yaml()
    return [x for x in yaml.safe_load_all(r.stdout) if x]


# ------------------------------------------------------------------- Kubernetes

OTHERS = {  # groups whose kinds Kubernetes' own schemas do not have
    "kustomize.config.k8s.io": (), "keda.sh": (), "monitoring.coreos.com": (),
    "gateway.networking.k8s.io": (), "inference.networking.k8s.io": (), "inference.networking.x-k8s.io": (),
}


def is_own_kind(o):
    return o["apiVersion"].split("/")[0] not in OTHERS


@case
def kubernetes_kinds_are_valid():
    if kubernetes_validate is None:
        raise Skip("kubernetes-validate is not installed (tests/run makes a venv with it)")
    seen = set()
    for name, o in manifests() + [("built", x) for x in (built(COMPONENTS) if shutil.which("kubectl") else [])]:
        if not is_own_kind(o):
            continue
        seen.add(o["kind"])
        try:
            kubernetes_validate.validate(o, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as e:
            check(False, f"{name}: {o['kind']} {o['metadata']['name']}: {e.message}")
    check({"Deployment", "Pod", "Service", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler"} <= seen, f"kinds: {seen}")


@case
def the_schema_check_can_fail():
    if kubernetes_validate is None:
        raise Skip("kubernetes-validate is not installed (tests/run makes a venv with it)")
    bad = documents(os.path.join(KUBE, "deployment.yaml"))[0]
    bad["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    try:
        kubernetes_validate.validate(bad, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError:
        return
    check(False, "a misspelt field was not seen")


def npm_verdicts(objects):
    modules = os.environ.get("INFERD_TEST_NODE")
    if not modules or not os.path.isdir(os.path.join(modules, "node_modules", "@kubernetes-models")):
        raise Skip("@kubernetes-models is not installed (tests/run makes a node folder with it)")
    r = subprocess.run(["node", os.path.join(ROOT, "tests", "e2e", "inferd_deploy.mjs"), modules], input=json.dumps(objects),
                       capture_output=True, text=True, check=False)
    equal(r.returncode, 0, f"node: {r.stderr[-1000:]}")
    return [json.loads(line) for line in r.stdout.splitlines()]


@case
def keda_and_the_prometheus_operator_take_theirs():
    verdicts = npm_verdicts([o for _, o in manifests()])
    equal(sorted(v["kind"] for v in verdicts), ["ScaledObject", "ServiceMonitor"], "kinds")
    for v in verdicts:
        equal(v["error"], None, f"{v['kind']} {v['name']}")
    bad = next(o for _, o in manifests() if o["kind"] == "ScaledObject")
    bad["spec"]["pollingInterval"] = "soon"
    check(npm_verdicts([bad])[0]["error"], "a wrong type is seen")


def closed(schema):
    """A schema of a CustomResourceDefinition that refuses fields it does not name, as `kubectl --validate=strict` does."""
    if isinstance(schema, list):
        return [closed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: closed(v) for k, v in schema.items()}
    if isinstance(out.get("properties"), dict) and "additionalProperties" not in out and not out.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = False
    return out


def crd_schemas():
    """{(apiVersion, kind): schema} of what tests/run fetched from the modules that publish them."""
    folder = os.environ.get("INFERD_TEST_CRDS")
    if not folder or jsonschema is None:
        raise Skip("the schemas of the Gateway API are not there (tests/run fetches them from Go's module proxy), or jsonschema is not installed")
    out = {}
    for name in sorted(os.listdir(folder)):
        for crd in documents(os.path.join(folder, name)) if name.endswith(".yaml") else []:
            spec = crd["spec"]
            for v in spec["versions"]:
                out[f"{spec['group']}/{v['name']}", spec["names"]["kind"]] = closed(v["schema"]["openAPIV3Schema"])
    return out


def crd_errors(schemas, o):
    schema = dict(schemas[o["apiVersion"], o["kind"]])
    schema["properties"] = {**schema["properties"], "metadata": {"type": "object"}}
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in jsonschema.Draft202012Validator(schema).iter_errors(o)]


@case
def gateway_objects_are_what_their_definitions_say():
    schemas = crd_schemas()
    objects = [o for name, o in manifests() if "components/gateway/" in name and (o["apiVersion"], o["kind"]) in schemas]
    equal({o["kind"] for o in objects}, {"InferencePool", "InferenceObjective", "HTTPRoute"}, "kinds")
    for o in objects:
        equal(crd_errors(schemas, o), [], f"{o['kind']} {o['metadata']['name']}")
    for kind, path, value in (("InferencePool", "targetPorts", [{"number": 0}]), ("InferencePool", "selecter", {}),
                              ("InferenceObjective", "priority", "high"), ("HTTPRoute", "rules", [{"matches": [{"path": {"type": "Glob"}}]}])):
        bad = copy.deepcopy(next(o for o in objects if o["kind"] == kind))
        bad["spec"][path] = value
        check(crd_errors(schemas, bad), f"{kind} with {path} {value} was not refused")


@case
def gateway_objects_point_at_the_pool():
    objects = [o for name, o in manifests() if "components/gateway/" in name]
    pool = next(o for o in objects if o["kind"] == "InferencePool")
    refs = [o["spec"].get("poolRef") or o["spec"].get("rules", [{}])[0].get("backendRefs", [None])[0] for o in objects if "spec" in o and o is not pool]
    equal(len(refs), 3, "objects that point at a pool")
    for ref in refs:
        equal((ref["group"], ref["name"]), (pool["apiVersion"].split("/")[0], pool["metadata"]["name"]), "the pool")


@case
def the_pool_and_the_policy_choose_the_pods():
    objects = built(COMPONENTS)
    one = {o["kind"]: o for o in objects}
    labels = one["Deployment"]["spec"]["template"]["metadata"]["labels"]
    port = next(p for p in one["Deployment"]["spec"]["template"]["spec"]["containers"][0]["ports"] if p["name"] == "http")
    for kind, selector in (("InferencePool", one["InferencePool"]["spec"]["selector"]["matchLabels"]),
                           ("Service", one["Service"]["spec"]["selector"]),
                           ("NetworkPolicy", one["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]),
                           ("PodDisruptionBudget", one["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])):
        check(set(selector.items()) <= set(labels.items()), f"{kind} selects {selector}, pods have {labels}")
    equal(one["InferencePool"]["spec"]["targetPorts"], [{"number": port["containerPort"]}], "the pool's port")
    equal(one["NetworkPolicy"]["spec"].get("egress") or [], [], "nothing goes out")
    check("Egress" in one["NetworkPolicy"]["spec"]["policyTypes"], "egress is restricted")
    equal(len(one["NetworkPolicy"]["spec"]["ingress"]), 3, "clients, the picker and Prometheus may come in")
    limits = one["Deployment"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    equal(limits.get("nvidia.com/gpu"), "1", "the cuda component")


def pods():
    for name, o in manifests():
        if o["kind"] == "Pod":
            yield name, o["spec"]
        elif o["kind"] == "Deployment":
            yield name, o["spec"]["template"]["spec"]


@case
def pods_are_closed_and_the_sandbox_still_has_what_it_needs():
    n = 0
    for name, spec in pods():
        check(spec["enableServiceLinks"] is False, f"{name}: INFERD_PORT of a Service would be refused as an option's wrong value")
        check(spec["automountServiceAccountToken"] is False, f"{name}: no token")
        check(spec["securityContext"]["runAsNonRoot"], f"{name}: root")
        equal(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"}, f"{name}: seccomp")
        for c in spec["containers"] + spec.get("initContainers", []):
            if "inferd" not in c["image"]:
                continue
            n += 1
            s = c["securityContext"]
            equal((s["allowPrivilegeEscalation"], s["readOnlyRootFilesystem"], s["capabilities"]), (False, True, {"drop": ["ALL"]}), name)
            check(all(m.get("readOnly") for m in c["volumeMounts"]), f"{name}: every mount is read-only")
            check("memory" in c["resources"]["limits"], f"{name}: a limit of memory")
    equal(n, 2, "containers of inferd")


@case
def the_files_options_and_probes_are_those_of_the_server():
    """The very configuration file, command lines and probe paths of the manifests, on a server here."""
    spec = dict(pods())["deployment.yaml"]
    c = spec["containers"][0]
    with open(os.path.join(KUBE, "inferd.json"), encoding="utf-8") as f:
        conf = json.load(f)
    check(conf["drain_grace_ms"] / 1000 + c["lifecycle"]["preStop"]["sleep"]["seconds"] < spec["terminationGracePeriodSeconds"],
          "a pod is given time to drain")
    equal(conf["port"], c["ports"][0]["containerPort"], "port")
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        models = os.path.join(d, "models")
        os.mkdir(models)
        golden_models(models)
        path = os.path.join(d, "inferd.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({**conf, "host": "127.0.0.1", "allow_insecure_public_bind": False}, f)
        with Server(models=models, config=path, preload=[TINY_BERT]) as s:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                equal(s.get(c[probe]["httpGet"]["path"]).status, 200, probe)
            side = dict(pods())["sidecar.yaml"]["initContainers"][0]
            for probe in ("startupProbe", "livenessProbe"):
                argv = side[probe]["exec"]["command"]
                argv = [os.path.join(BIN, os.path.basename(argv[0]))] + [TINY_BERT if a == "all-MiniLM-L6-v2" else a for a in argv[1:]]
                r = subprocess.run(argv, capture_output=True, text=True, check=False,
                                   env={**os.environ, "INFERD_SERVER": f"http://127.0.0.1:{s.port}"})
                equal(r.returncode, 0, f"{argv}: {r.stderr}")


# ---------------------------------------------------------------------- systemd

def systemd_analyze(*argv):
    if not shutil.which("systemd-analyze"):
        raise Skip("systemd-analyze is not installed")
    return subprocess.run(["systemd-analyze", *argv], capture_output=True, text=True, check=False)


@case
def the_unit_is_valid_and_narrow():
    r = systemd_analyze("verify", UNIT)
    equal((r.returncode, r.stderr.strip()), (0, ""), "systemd-analyze verify")
    with open(UNIT, encoding="utf-8") as f:
        all_of_it = re.sub(r"^#(?=[A-Z]\w+=)", "", f.read(), flags=re.M)
    check("\nLoadCredential=inferd-vault-key:" in all_of_it, "the vault's key can be a credential")
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        path = os.path.join(d, "inferd.service")
        with open(path, "w", encoding="utf-8") as f:
            f.write(all_of_it)
        r = systemd_analyze("verify", path)
        equal((r.returncode, r.stderr.strip()), (0, ""), "systemd-analyze verify, with what is commented out")
    r = systemd_analyze("security", "--offline=yes", "--threshold=25", UNIT)
    if "unrecognized option" in r.stderr:
        raise Skip("this systemd-analyze cannot judge a file")
    equal(r.returncode, 0, f"exposure above 2.5: {r.stdout[-200:]} {r.stderr}")


def calls_of(words):
    """System calls of a SystemCallFilter, groups opened."""
    out, todo, seen = set(), list(words), set()
    while todo:
        w = todo.pop()
        if not w.startswith("@"):
            out.add(w)
        elif w not in seen:
            seen.add(w)
            r = systemd_analyze("syscall-filter", w)
            equal(r.returncode, 0, f"group {w}: {r.stderr}")
            todo += [line.strip() for line in r.stdout.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return out


@case
def a_server_runs_behind_the_units_call_filter():
    if PRESET != "dev":
        raise Skip("sanitizers make calls of their own")
    if not ctypes.util.find_library("seccomp"):
        raise Skip("libseccomp is not installed")
    with open(UNIT, encoding="utf-8") as f:
        words = re.search(r"^SystemCallFilter=(.*)$", f.read(), re.M)[1].split()
    names = calls_of(words)
    check(len(names) > 200, f"{len(names)} calls")
    lib = ctypes.CDLL(ctypes.util.find_library("seccomp"), use_errno=True)
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
    lib.seccomp_load.argtypes = [ctypes.c_void_p]
    ctx = lib.seccomp_init(0x00050000 | 1)  # what is not named fails with EPERM, as the unit says
    for name in sorted(names):
        nr = lib.seccomp_syscall_resolve_name(name.encode())
        if nr >= 0:
            equal(lib.seccomp_rule_add(ctx, 0x7fff0000, nr, 0), 0, name)

    def load():
        if lib.seccomp_load(ctx) != 0:
            os._exit(99)

    class Behind(Server):
        def start(self):
            real = subprocess.Popen
            try:
                subprocess.Popen = lambda *a, **k: real(*a, **{**k, "preexec_fn": load})
                super().start()
            finally:
                subprocess.Popen = real

    with Behind(sandbox="strict") as s:
        with open(f"/proc/{s.proc.pid}/status", encoding="ascii") as f:
            check("Seccomp:\t2" in f.read(), "the filter is in force")
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"}).status, 200, "embedding")
        equal(s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 4}).status, 200, "completion")
        boxed = [e for e in s.log() if e.get("event") == "worker_sandboxed"]
        check(boxed and all(not e["missing"] for e in boxed), f"every layer holds: {boxed}")


# ------------------------------------------------------- alerts and the dashboard

def promtool():
    """promtool: installed, or unpacked once from its Debian package into the user's cache (19 MB, nothing is installed)."""
    found = shutil.which("promtool")
    if found:
        return found
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "inferd", "promtool")
    path = os.path.join(cache, "usr", "bin", "promtool")
    if os.path.exists(path):
        return path
    if not shutil.which("apt-get"):
        raise Skip("promtool is not installed")
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        r = subprocess.run(["apt-get", "download", "-q", "prometheus"], cwd=d, capture_output=True, text=True, check=False, timeout=120)
        debs = [n for n in os.listdir(d) if n.endswith(".deb")]
        if r.returncode != 0 or not debs:
            raise Skip(f"promtool is not installed and its package cannot be had: {r.stderr.strip().splitlines()[-1:]}")
        subprocess.run(["dpkg", "-x", debs[0], "x"], cwd=d, check=True)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.move(os.path.join(d, "x", "usr", "bin", "promtool"), path)
    return path


def metric_table():
    """{name: (kind, labels)} of SUP_METRICS."""
    with open(os.path.join(ROOT, "supervisor", "watch", "sup_metrics.h"), encoding="utf-8") as f:
        text = f.read()
    rows = re.findall(r'X\(\w+, "([a-z_:]+)", (COUNTER|GAUGE|HISTOGRAM), ("\w+"|NULL), ("\w+"|NULL)', text)
    check(len(rows) > 50, f"{len(rows)} metrics")
    return {name: (kind, {x.strip('"') for x in (a, b) if x != "NULL"}) for name, kind, a, b in rows}


def check_expression(expr, table, extra, where):
    """Every metric of a PromQL expression exists, under the suffix its kind has, with the labels it is asked for."""
    n = 0
    expr = re.sub(r'"[^"]*"', '""', expr)
    for name, labels in re.findall(r"\b((?:inferd|vllm|instance)[a-z_:0-9]*)(?:\{([^}]*)\})?", expr):
        if name in extra or name == "instance":  # the label's name
            continue
        base = name
        if name not in table:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            check(base in table and table[base][0] == "HISTOGRAM", f"{where}: no metric {name}")
        else:
            check(table[name][0] != "HISTOGRAM", f"{where}: {name} is a histogram, without a suffix it has no series")
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels):
            check(label in table[base][1] | {"instance", "job", "namespace", "le"}, f"{where}: {base} has no label {label}")
        if table[base][0] == "COUNTER":
            check(re.search(rf"(rate|increase)\({re.escape(name)}\b", expr), f"{where}: the counter {name} is used without rate or increase")
        n += 1
    return n


@case
def alerts_are_valid_and_fire():
    tool = promtool()
    for argv in (["check", "rules", RULES], ["test", "rules", os.path.join(os.path.dirname(RULES), "rules_test.yaml")]):
        r = subprocess.run([tool, *argv], capture_output=True, text=True, check=False)
        equal(r.returncode, 0, f"promtool {argv[0]} {argv[1]}: {r.stdout[-1500:]} {r.stderr[-500:]}")


@case
def alerts_name_metrics_that_exist_and_are_all_tested():
    table = metric_table()
    rules = [r for g in documents(RULES)[0]["groups"] for r in g["rules"]]
    recorded = {r["record"] for r in rules if "record" in r}
    n = sum(check_expression(r["expr"], table, recorded, r.get("alert") or r["record"]) for r in rules)
    check(n >= 15, f"{n} uses of metrics")
    alerts = {r["alert"] for r in rules if "alert" in r}
    for r in rules:
        if "alert" in r:
            check(r["labels"]["severity"] in ("critical", "warning", "info"), r["alert"])
            check(r["annotations"].get("summary") and r["annotations"].get("description"), f"{r['alert']} says what and why")
    cases = [c for t in documents(os.path.join(os.path.dirname(RULES), "rules_test.yaml"))[0]["tests"] for c in t["alert_rule_test"]]
    equal({c["alertname"] for c in cases if c.get("exp_alerts")}, alerts, "alerts that a test sees fire")
    equal({c["alertname"] for c in cases if not c.get("exp_alerts")}, alerts, "alerts that a test sees quiet")
    scaler = next(o for _, o in manifests() if o["kind"] == "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    check(check_expression(scaler, table, (), "ScaledObject") == 1, "the scaler's metric")
    hpa = next(o for _, o in manifests() if o["kind"] == "HorizontalPodAutoscaler")["spec"]["metrics"][0]["pods"]["metric"]["name"]
    check(hpa in table, f"the autoscaler's metric {hpa}")


def expressions(board):
    for p in board["panels"]:
        for t in p.get("targets", []):
            yield f"panel '{p['title']}'", t["expr"]


@case
def the_dashboard_asks_for_what_exists():
    with open(BOARD, encoding="utf-8") as f:
        board = json.load(f)
    table = metric_table()
    n = sum(check_expression(e, table, (), where) for where, e in expressions(board))
    check(n >= 25, f"{n} uses of metrics")
    equal(len({p["id"] for p in board["panels"]}), len(board["panels"]), "panel ids")
    taken = set()
    for p in board["panels"]:
        g = p["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        check(g["x"] + g["w"] <= 24 and not cells & taken, f"'{p['title']}' lies on another panel")
        taken |= cells
    names = {v["name"] for v in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__rate_interval"}
    equal(used, names, "variables")
    live = board_names_on_a_server()
    check(set(table) == live, f"table and /metrics differ: {set(table) ^ live}")


def board_names_on_a_server():
    with Server() as s:
        text = s.get("/metrics").body.decode()
    return set(re.findall(r"^# TYPE (\S+) ", text, re.M))


@case
def the_dashboards_expressions_parse():
    tool = promtool()
    need_yaml()
    with open(BOARD, encoding="utf-8") as f:
        board = json.load(f)
    rules = [{"record": f"panel:x{i}", "expr": e.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$model", ".*")}
             for i, (_, e) in enumerate(expressions(board))]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as f:
        yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}, f)
        f.flush()
        r = subprocess.run([tool, "check", "rules", f.name], capture_output=True, text=True, check=False)
    equal(r.returncode, 0, f"promtool check rules: {r.stdout[-1500:]} {r.stderr[-500:]}")


if __name__ == "__main__":
    main()
