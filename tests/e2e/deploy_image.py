"""deploy_image.py - the root folder of the container image runs: read-only, as its user, without a shell.

No container engine is needed: deploy/container-root makes the folder from the binaries under test, and chroot in mount and
process namespaces of its own takes an engine's place.
"""
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading

from inferd_test import BIN, PRESET, ROOT, TINY_BERT, Server, Skip, case, check, equal, free_port, golden_models, main

USER = 65532
# $1 root, $2 models, the rest: the program. What an engine would mount, then the root is read-only.
INSIDE = """set -e
root=$1 models=$2; shift 2
mount --bind "$root" "$root"
mount --bind "$models" "$root/models"
mount -o remount,bind,ro "$root/models"
mount -t proc proc "$root/proc"
for d in null zero urandom; do mount --bind /dev/$d "$root/dev/$d"; done
mount -o remount,bind,ro "$root"
exec chroot --userspec=65532:65532 "$root" "$@"
"""
_dir = None


def image():
    """The root, made once."""
    global _dir
    if os.geteuid() != 0:
        raise Skip("making mounts and changing the root needs root")
    if PRESET != "dev":
        raise Skip("an image of a build with sanitizers is none that anybody ships")
    if _dir:
        return _dir
    r = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        raise Skip(f"no mount or process namespaces here: {r.stderr.strip()}")
    _dir = tempfile.mkdtemp(prefix="inferd-test-")
    os.chmod(_dir, 0o755)
    root = os.path.join(_dir, "root")
    r = subprocess.run([os.path.join(ROOT, "deploy", "container-root"), root, os.path.join(BIN, "inferd"),
                        os.path.join(BIN, "inferd-worker")], capture_output=True, text=True, check=False)
    equal(r.returncode, 0, f"container-root: {r.stderr}")
    for d in ("null", "zero", "urandom"):
        open(os.path.join(root, "dev", d), "w", encoding="ascii").close()
    models = os.path.join(_dir, "models")
    os.mkdir(models)
    golden_models(models)
    for path, dirs, files in os.walk(models):
        for name in dirs + files:
            os.chmod(os.path.join(path, name), 0o755 if name in dirs else 0o644)
    return _dir


def command(*argv):
    d = image()
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", INSIDE, "sh", os.path.join(d, "root"),
            os.path.join(d, "models"), *argv]


def run(*argv):
    return subprocess.run(command(*argv), capture_output=True, text=True, timeout=60, check=False, env={"PATH": os.environ["PATH"]})


@case
def it_holds_the_programs_and_their_libraries_only():
    root = os.path.join(image(), "root")
    programs, others = [], []
    for path, _, files in os.walk(root):
        for name in files:
            full = os.path.join(path, name)
            mode = os.stat(full).st_mode
            check(not mode & (stat.S_ISUID | stat.S_ISGID), f"set-id: {full}")
            inside = full[len(root):]
            if inside.startswith("/usr/bin/"):
                programs.append(name)
            elif ".so" not in name and not inside.startswith("/dev/"):
                others.append(inside)
    equal(sorted(programs), ["inferd", "inferd-worker"], "programs")
    check(set(others) <= {"/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/ssl/certs/ca-certificates.crt"}, f"files: {others}")
    r = run("/bin/sh", "-c", "true")
    check(r.returncode != 0 and "No such file" in r.stderr, f"there is no shell: {r.returncode} {r.stderr}")


@case
def its_programs_start():
    r = run("/usr/bin/inferd", "version")
    equal(r.returncode, 0, f"version: {r.stderr}")
    check("inferd" in r.stdout, r.stdout)
    r = run("/usr/bin/inferd-worker", "--doctor")
    check("error while loading shared libraries" not in r.stderr, r.stderr)


@case
def what_the_containerfile_copies_is_enough_to_build():
    """Its own cmake line, in a copy of the tracked files without those that .dockerignore names; every input of the build is there."""
    with open(os.path.join(ROOT, "deploy", "Containerfile"), encoding="utf-8") as f:
        text = f.read()
    configure = re.search(r"^RUN (cmake --preset release.*?) \\$", text, re.M)[1].split()
    targets = re.search(r"--target ([a-z -]+?) \\$", text, re.M)[1].split()
    with open(os.path.join(ROOT, ".dockerignore"), encoding="utf-8") as f:
        left_out = [line.strip() for line in f if line.strip() and not line.startswith("#")]
    r = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if r.returncode != 0:
        raise Skip("this is no git checkout")
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        n = 0
        for name in r.stdout.splitlines():
            if not any(name == p or name.startswith(p + "/") for p in left_out):
                os.makedirs(os.path.dirname(os.path.join(d, name)), exist_ok=True)
                shutil.copy2(os.path.join(ROOT, name), os.path.join(d, name))
                n += 1
        check(n > 300, f"{n} files")
        r = subprocess.run(configure, cwd=d, capture_output=True, text=True, check=False)
        equal(r.returncode, 0, f"{configure}: {r.stderr[-1000:]}")
        build = os.path.join(d, "build", "release")
        r = subprocess.run(["ninja", "-C", build, "-t", "inputs", *targets], capture_output=True, text=True, check=False)
        equal(r.returncode, 0, f"ninja -t inputs {targets}: {r.stderr[-500:]}")
        inputs = [os.path.normpath(os.path.join(build, line)) for line in r.stdout.splitlines() if not line.startswith("ninja: ")]
        sources = [i for i in inputs if i.startswith(d) and not i.startswith(build)]
        check(len(sources) > 200, f"{len(sources)} source files are built from")
        equal([i for i in sources if not os.path.exists(i)], [], "source files that are left out")


@case
def it_refuses_a_folder_with_something_in_it():
    image()
    r = subprocess.run([os.path.join(ROOT, "deploy", "container-root"), os.path.join(_dir, "root"), os.path.join(BIN, "inferd")],
                       capture_output=True, text=True, check=False)
    equal(r.returncode, 1, "exit")
    check("is not empty" in r.stderr, r.stderr)


@case
def it_serves_with_the_strict_sandbox_on_a_read_only_root():
    class Inside(Server):
        def start(self):
            command_of_it = command("/usr/bin/inferd", "serve", "--models-dir=/models", f"--port={self.port}", "--sandbox=strict",
                                    f"--preload={TINY_BERT}")
            self.proc = subprocess.Popen(command_of_it, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE, text=True, errors="replace", env={"PATH": os.environ["PATH"]})
            threading.Thread(target=self._read_log, args=(self.proc,), daemon=True).start()
            self.wait_ready()

        def stop(self, *_, **__):
            """unshare does not hand signals on."""
            if self.proc.poll() is None:
                os.kill(self.inside_pid(), signal.SIGKILL)
            self.proc.wait(10)

        def inside_pid(self):
            """unshare's only child: the launcher, the first process of its namespace."""
            with open(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children", encoding="ascii") as f:
                return int(f.read().split()[0])

    s = Inside(models=os.path.join(image(), "models"), port=free_port())
    with s:
        r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"})
        equal(r.status, 200, f"embedding: {r.body[:300]}")
        boxed = [e for e in s.log() if e.get("event") == "worker_sandboxed"]
        check(boxed, "a worker told of its sandbox")
        for e in boxed:
            check(e["missing"] in ("", None, "namespaces"), f"strict holds, but for a user namespace in a chroot: {e}")
        with open(f"/proc/{s.inside_pid()}/status", encoding="ascii") as f:
            text = f.read()
        check(f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in text, text)
        check("CapEff:\t0000000000000000" in text, "no capability")
        os.kill(s.inside_pid(), signal.SIGTERM)
        equal(s.proc.wait(30), 0, "exit after SIGTERM")


if __name__ == "__main__":
    try:
        main()
    finally:
        if _dir:
            shutil.rmtree(_dir, ignore_errors=True)
