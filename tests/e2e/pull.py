"""pull.py - `inferd pull`, `rm`, `verify` and the list of a folder, against a hub on loopback that misbehaves."""
import contextlib
import hashlib
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from email.utils import formatdate

from inferd_hub import Fault, Hub
from inferd_test import BIN, GOLDEN, SLOW, case, check, equal, main

INFERD = os.path.join(BIN, "inferd")
ENV = {k: v for k, v in os.environ.items() if k not in ("HF_TOKEN", "HF_ENDPOINT") and not k.startswith("INFERD_")}
STAGING = ".inferd-staging"
SMALL = {"config.json": b'{"a": 1}', "README.md": b"hello", "model-Q8_0.gguf": b"Q" * 5000, "model-Q4_K_M.gguf": b"4" * 4000}
BIG = random.Random(7).randbytes(40 << 20)  # three pieces


@contextlib.contextmanager
def place():
    with Hub() as hub, tempfile.TemporaryDirectory(prefix="inferd-pull-") as d:
        yield hub, os.path.join(d, "models")


def command(hub, models, *words):
    return [INFERD, "pull", *words, "--models-dir", models, "--hub", hub.url]


def pull(hub, models, *words, env=None, timeout=60, **kw):
    return subprocess.run(command(hub, models, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout * SLOW, env={**ENV, **(env or {})}, check=False, **kw)


def good(r):
    equal(r.returncode, 0, r.stderr[-1500:])
    return r


def bad(r, *says):
    check(r.returncode == 1, f"status {r.returncode}: {r.stderr[-500:]}")
    for s in says:
        check(s in r.stderr, f"'{s}' in {r.stderr[-700:]}")
    return r


def local(cmd, models, *words):
    return subprocess.run([INFERD, cmd, *words, "--models-dir", models], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60 * SLOW, env=ENV, check=False)


def tree(root):
    out = {}
    for base, _, files in os.walk(root):
        for f in files:
            with open(os.path.join(base, f), "rb") as fp:
                out[os.path.relpath(os.path.join(base, f), root)] = fp.read()
    return out


def without_receipt(files):
    return {k: v for k, v in files.items() if not k.startswith(".inferd-")}


@case
def one_set_of_weights_appears_as_a_whole():
    with place() as (hub, models):
        repo = hub.repo("a/b", SMALL)
        r = good(pull(hub, models, "a/b"))
        check("a/b: pulled, 2 files" in r.stdout and repo.commit in r.stdout and "gguf:Q4_K_M" in r.stdout, r.stdout)
        check("100 %" in r.stderr, "plain lines when there is no terminal: " + r.stderr)
        have = tree(os.path.join(models, "a/b"))
        equal(without_receipt(have), {k: SMALL[k] for k in ("config.json", "model-Q4_K_M.gguf")}, "files")
        receipt = json.loads(have[".inferd-download-complete.json"])
        equal((receipt["version"], receipt["source"]), (2, {"owner": "a", "name": "b", "variant": "auto"}), "receipt")
        equal((receipt["commit"], receipt["revision"], receipt["format"], receipt["from"]),
              (repo.commit, "main", "gguf:Q4_K_M", hub.url), "receipt")
        equal({a["path"]: (a["size"], a["sha256"]) for a in receipt["artifacts"]},
              {k: (len(v), hashlib.sha256(v).hexdigest()) for k, v in without_receipt(have).items()}, "artifacts")
        check(not os.path.exists(os.path.join(models, STAGING)), "the staging folder is gone")
        check(all(repo.commit in p for p in hub.paths("cdn")), "every file is of the commit")
        equal(set(hub.seen("cdn", "accept-encoding")), {"identity"}, "encoding")


@case
def a_second_pull_fetches_nothing_and_a_new_commit_replaces():
    with place() as (hub, models):
        hub.repo("a/b", SMALL)
        good(pull(hub, models, "a/b"))
        hub.forget()
        r = good(pull(hub, models, "a/b", "--json", "--quiet"))
        check(json.loads(r.stdout)["unchanged"] is True and not hub.paths("cdn") and not r.stderr, r.stdout + r.stderr)
        good(pull(hub, models, "a/b", "--again"))
        check(hub.paths("cdn"), "--again fetches")
        hub.repo("a/b", {"new-Q8_0.gguf": b"n" * 2000})
        check(json.loads(good(pull(hub, models, "a/b", "--json")).stdout)["unchanged"] is False, "changed")
        equal(without_receipt(tree(os.path.join(models, "a/b"))), {"new-Q8_0.gguf": b"n" * 2000}, "only the new one")
        os.remove(os.path.join(models, "a/b/new-Q8_0.gguf"))
        good(pull(hub, models, "a/b"))
        check("new-Q8_0.gguf" in tree(os.path.join(models, "a/b")), "a missing file is pulled again")


@case
def variants_have_folders_of_their_own():
    with place() as (hub, models):
        hub.repo("a/b", {**SMALL, "model.safetensors": b"s" * 3000})
        good(pull(hub, models, "a/b", "a/b:Q8_0", "a/b:safetensors"))
        equal(sorted(os.listdir(os.path.join(models, "a"))), ["b", "b--Q8_0", "b--safetensors"], "folders")
        check("model.safetensors" in os.listdir(os.path.join(models, "a/b--safetensors")), "safetensors")
        bad(pull(hub, models, "a/b:gguf:Q2_K"), "no variant 'gguf:Q2_K'", "safetensors, model-Q4_K_M.gguf, model-Q8_0.gguf")
        bad(pull(hub, models, "a/b", "--variant", "Q3_K_M"), "no variant 'Q3_K_M'")
        check(not os.path.exists(os.path.join(models, "a/b--gguf-Q2_K")), "nothing was made")


@case
def shards_come_from_the_index():
    with place() as (hub, models):
        index = {"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors"}}
        files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(), "m-1.safetensors": b"1" * 2000,
                 "m-2.safetensors": b"2" * 2000, "m-3.safetensors": b"3" * 2000, "1_Pooling/config.json": b"{}", "x.bin": b"x"}
        hub.repo("a/b", files)
        good(pull(hub, models, "a/b"))
        equal(sorted(without_receipt(tree(os.path.join(models, "a/b")))),
              ["1_Pooling/config.json", "config.json", "m-1.safetensors", "m-2.safetensors", "model.safetensors.index.json"], "files")
        files["model.safetensors.index.json"] = b'{"weight_map": {"x": "../../evil.safetensors"}}'
        hub.repo("a/c", files)
        bad(pull(hub, models, "a/c"), "no .safetensors of the repository")


@case
def revisions_are_resolved_once():
    with place() as (hub, models):
        main_repo = hub.repo("a/b", SMALL)
        old = hub.repo("a/b", {"old-Q8_0.gguf": b"o" * 1500}, revision="refs/pr/1")
        r = good(pull(hub, models, "a/b@refs/pr/1"))
        check(old.commit in r.stdout and main_repo.commit not in r.stdout, r.stdout)
        check("refs%2Fpr%2F1" in hub.paths("hub")[0], hub.paths("hub")[0])
        good(pull(hub, models, f"a/b@{main_repo.commit}"))
        bad(pull(hub, models, "a/b@nope"), "a/b@nope is not at this hub", "404")


@case
def big_files_come_in_parts_and_the_token_stays_home():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG}).gated = "s3cret-token"
        bad(pull(hub, models, "a/b"), "--token-file FILE or set HF_TOKEN", "401")
        bad(pull(hub, models, "a/b", env={"HF_TOKEN": "wrong"}), "does not let this token in")
        hub.forget()
        with tempfile.NamedTemporaryFile("w", suffix=".token") as f:
            f.write("s3cret-token\n")
            f.flush()
            good(pull(hub, models, "a/b", "--token-file", f.name))
        equal(tree(os.path.join(models, "a/b"))["m-Q8_0.gguf"], BIG, "bytes")
        ranges = [r for r in hub.seen("cdn", "range")]
        check(len(ranges) == 3, f"ranges: {ranges}")
        equal(set(hub.seen("hub", "authorization")), {"Bearer s3cret-token"}, "the hub gets the token")
        equal(hub.seen("cdn", "authorization"), [], "the second origin never does")
        check(not any("s3cret" in p for p in hub.paths("cdn")), "nor in a URL")
        shutil.rmtree(models)
        good(pull(hub, models, "a/b", env={"HF_TOKEN": "s3cret-token"}))
        # no token is kept anywhere on the disk
        check(not any(b"s3cret" in data for data in tree(models).values()), "the token is not written down")


@case
def the_token_is_no_word_of_the_command_line():
    with place() as (hub, models):
        r = pull(hub, models, "a/b", "--token", "x")
        equal(r.returncode, 2, r.stderr)
        for text, says in (("", "empty"), ("two words\n", "one word"), ("x" * 8186, "8186 bytes, at most 8185"), ("x" * 9000, "bytes")):
            with tempfile.NamedTemporaryFile("w") as f:
                f.write(text)
                f.flush()
                r = pull(hub, models, "a/b", "--token-file", f.name)
                check(r.returncode in (1, 2) and says in r.stderr, r.stderr)


@case
def the_longest_token_arrives_whole():
    longest = "t" * (8192 - len("Bearer "))
    with place() as (hub, models), tempfile.NamedTemporaryFile("w") as f:
        hub.repo("a/b", {"m-Q8_0.gguf": b"x" * 3000}).gated = longest
        f.write(longest + "\n")
        f.flush()
        good(pull(hub, models, "a/b", "--token-file", f.name))
        equal(set(hub.seen("hub", "authorization")), {f"Bearer {longest}"}, "the hub gets all of it")
        shutil.rmtree(models)
        good(pull(hub, models, "a/b", env={"HF_TOKEN": longest}))
        r = pull(hub, models, "a/b", env={"HF_TOKEN": longest + "t"})
        check(r.returncode == 2 and "8186 bytes, at most 8185" in r.stderr, r.stderr)


def credentials(*words, secret=""):
    r = subprocess.run([INFERD, "credentials", *words], input=secret, capture_output=True, text=True, timeout=60 * SLOW, env=ENV, check=False)
    equal(r.returncode, 0, r.stderr)


@case
def the_vaults_credential_is_taken_for_its_origin():
    longest = "v" * (8192 - len("Bearer "))
    with place() as (hub, models), tempfile.TemporaryDirectory() as d:
        vault, master, other, config = (os.path.join(d, n) for n in ("vault", "master", "other", "inferd.json"))
        hub.repo("a/b", {"m-Q8_0.gguf": b"x" * 3000}).gated = longest
        hub.repo("a/open", {"m-Q8_0.gguf": b"y" * 3000})
        credentials("make-key", master)
        credentials("make-key", other)
        words, env = ("--vault-dir", vault, "--key-file", master), {"INFERD_VAULT_DIR": vault, "INFERD_VAULT_KEY_FILE": master}
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"vault_dir": vault, "vault_key_file": master}, f)

        def sent(want, *more, env=None, ref="a/b", ok=True):
            shutil.rmtree(models, ignore_errors=True)
            hub.forget()
            r = pull(hub, models, ref, *more, env=env)
            (good if ok else bad)(r)
            equal(set(hub.seen("hub", "authorization")), set(want), f"{more} {env}: {r.stderr}")
            equal(hub.seen("cdn", "authorization"), [], "the second origin")
            check("vvvv" not in r.stdout + r.stderr, "nothing prints it")
            return r.stderr

        credentials("set", "https://elsewhere.example", *words, secret="for another machine")
        check("inferd credentials set" in sent([], *words, ok=False), "nothing is kept for this hub")
        credentials("set", hub.url, *words, secret=longest)
        for more, e in ((words, None), ((), env), (("--config", config), None), ((), {"INFERD_CONFIG": config})):
            sent([f"Bearer {longest}"], *more, env=e)
        # the order: a file, a vault of the command line, HF_TOKEN, a vault of the environment
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("of-the-file")
            f.flush()
            sent(["Bearer of-the-file"], *words, "--token-file", f.name, env={"HF_TOKEN": "of-env"}, ok=False)
        sent([f"Bearer {longest}"], *words, env={"HF_TOKEN": "of-env"})
        sent(["Bearer of-env"], env={**env, "HF_TOKEN": "of-env"}, ok=False)
        # what cannot be opened: an error when it was named here, else a word and no credential
        r = pull(hub, models, "a/open", "--vault-dir", vault, "--key-file", other)
        bad(r, "does not open", hub.url.removeprefix("http://"))
        check("goes on without" in sent([], env={**env, "INFERD_VAULT_KEY_FILE": other}, ref="a/open"), "it says so")
        check("goes on without" in sent([], env={**env, "INFERD_VAULT_DIR": vault + "-absent"}, ref="a/open"), "it says so")
        equal(sent([], env={"INFERD_VAULT_DIR": vault}, ref="a/open").count("vault"), 0, "sealed: nothing to say")
        for more, says in ((("--vault-dir", vault), "no master key is named"), (("--key-file", master), "no folder of keys is named")):
            r = pull(hub, models, "a/open", *more)
            check(r.returncode == 2 and says in r.stderr, r.stderr)
        # offline asks nobody, not the vault either
        good(pull(hub, models, "a/open"))
        good(pull(hub, models, "a/open", "--offline", "--vault-dir", vault + "-absent"))


@case
def what_breaks_is_tried_again():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG, "config.json": b"{}"})
        hub.faults += [Fault("hub", "/api/", status=503), Fault("hub", "/api/", status=429, headers={"Retry-After": "1"}),
                       Fault("hub", "/api/", status=503, headers={"Retry-After": formatdate(time.time() + 3, usegmt=True)}),
                       Fault("hub", "/api/", status=503, headers={"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
                       Fault("cdn", "m-Q8_0", cut=300000), Fault("cdn", "m-Q8_0", cut=5 << 20),
                       Fault("cdn", "m-Q8_0", status=500), Fault("cdn", "config.json", cut=0)]
        begin = time.monotonic()
        good(pull(hub, models, "a/b"))
        check(time.monotonic() - begin >= 2, "Retry-After is waited for")
        equal(tree(os.path.join(models, "a/b"))["m-Q8_0.gguf"], BIG, "bytes")
        check(all(f.times == 0 for f in hub.faults), "every fault was met")


@case
def what_stays_broken_is_told():
    rows = ((Fault("hub", "/api/", status=503, times=99), ("503", "the hub is not well")),
            (Fault("hub", "/api/", status=429, times=99, headers={"Retry-After": "4000"}), ("429", "4000 s")),
            (Fault("hub", "/api/", status=503, times=99, headers={"Retry-After": formatdate(time.time() + 3600, usegmt=True)}),
             ("503", "which is not waited for")),
            (Fault("cdn", "Q4_K_M", status=503, times=99), ("model-Q4_K_M.gguf", "503", "after 2 attempts")),
            (Fault("cdn", "Q4_K_M", status=404, times=99), ("model-Q4_K_M.gguf", "404")),
            (Fault("cdn", "Q4_K_M", cut=100, times=99), ("model-Q4_K_M.gguf", "after 2 attempts")),
            (Fault("hub", "/api/", body=b"<html>", times=9), ("no JSON object",)),
            (Fault("hub", "/resolve/", location="/resolve/", times=99), ("redirects",)),
            (Fault("hub", "/resolve/", location="ftp://127.0.0.1/x", times=99), ("no http(s) URL",)),
            (Fault("hub", "/resolve/", location="http://user@127.0.0.1/x", times=99), ("no http(s) URL",)),
            (Fault("hub", "/resolve/", location="file:///etc/passwd", times=99), ("no http(s) URL",)),
            (Fault("hub", "/resolve/", location="http://192.0.2.7/x", times=99), ("over https only",)))
    for fault, says in rows:
        with place() as (hub, models):
            hub.repo("a/b", SMALL)
            hub.faults.append(fault)
            bad(pull(hub, models, "a/b", "--retries", "1"), *says)
            check(not os.path.exists(os.path.join(models, "a")), f"{says}: nothing has a name")


@case
def a_failed_pull_leaves_the_model_that_was_there():
    with place() as (hub, models):
        hub.repo("a/b", SMALL)
        good(pull(hub, models, "a/b"))
        before = tree(os.path.join(models, "a/b"))
        hub.repo("a/b", {"new-Q8_0.gguf": b"n" * 2000}).lie["new-Q8_0.gguf"] = {
            "lfs": {"sha256": "0" * 64, "size": 2000}}
        bad(pull(hub, models, "a/b"), "not what was announced, twice", "published was 0000")
        equal(tree(os.path.join(models, "a/b")), before, "as it was")
        check("new-Q8_0" not in local("list", models).stdout, "half of it is no model")
        equal(local("verify", models, "a/b").returncode, 0, "whole")


@case
def lies_are_refused():
    rows = (({"lfs": {"sha256": "0" * 64, "size": 4000}}, ("published was 0000",)),
            ({"lfs": {"sha256": hashlib.sha256(SMALL["model-Q4_K_M.gguf"]).hexdigest(), "size": 3999}}, ("a size of 4000 instead of 3999",)),
            ({"lfs": {"sha256": hashlib.sha256(SMALL["model-Q4_K_M.gguf"]).hexdigest(), "size": 4001}}, ("a size of 4000 instead of 4001",)),
            ({"lfs": {"sha256": "xyz", "size": 4000}}, ("hexadecimal",)),
            ({"size": 1 << 50, "lfs": None}, ("--max-artifact-bytes",)),
            ({"size": None, "lfs": None}, ("tells no size",)),
            ({"blobId": None, "lfs": None}, ("tells no hash",)),
            ({"rfilename": "../../evil.gguf"}, ("no plain path",)),
            ({"rfilename": "/etc/evil.gguf"}, ("no plain path",)),
            ({"rfilename": "config.json"}, ("twice",)))
    for lie, says in rows:
        with place() as (hub, models):
            hub.repo("a/b", SMALL).lie["model-Q4_K_M.gguf"] = lie
            bad(pull(hub, models, "a/b"), *says)
            check(not os.path.exists(os.path.join(models, "a")), f"{says}: nothing has a name")
    with place() as (hub, models):  # a small file's hash is git's
        hub.repo("a/b", SMALL).lie["config.json"] = {"blobId": "0" * 40}
        bad(pull(hub, models, "a/b"), "config.json", "published was 0000")


@case
def bounds_hold():
    with place() as (hub, models):
        hub.repo("a/b", SMALL)
        bad(pull(hub, models, "a/b", "--max-artifact-bytes", "3999"), "--max-artifact-bytes")
        bad(pull(hub, models, "a/b", "--max-model-bytes", "4001"), "--max-model-bytes")
        hub.repos["a/b", "main"].listing = b'{"sha": "' + b"0" * (17 << 20) + b'"}'
        bad(pull(hub, models, "a/b"), "more than 16777216 bytes")
        siblings = ",".join('{"rfilename": "f%d"}' % i for i in range(50001))
        hub.repos["a/b", "main"].listing = ('{"sha": "%s", "siblings": [%s]}' % ("0" * 40, siblings)).encode()
        bad(pull(hub, models, "a/b"), "more than 50000 files")
        siblings = ",".join('{"rfilename": "f%d"}' % i for i in range(40000))
        hub.repos["a/b", "main"].listing = ('{"sha": "%s", "siblings": [%s]}' % ("0" * 40, siblings)).encode()
        bad(pull(hub, models, "a/b"), "no weights that are run here")


@case
def a_file_that_changes_midway_is_fetched_anew_or_refused():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG})
        # the second request's answer is of another content: other ETag, same size
        hub.faults.append(Fault("cdn", "m-Q8_0", body=BIG[::-1], after=1))
        good(pull(hub, models, "a/b"))
        equal(tree(os.path.join(models, "a/b"))["m-Q8_0.gguf"], BIG, "bytes")
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG})
        hub.faults += [Fault("cdn", "m-Q8_0", body=bytes([i]) * len(BIG), after=1) for i in range(40)]
        bad(pull(hub, models, "a/b"), "not what was announced, twice in a row")


@case
def a_server_without_ranges_serves_too():
    with place() as (hub, models):
        hub.no_ranges = True
        hub.repo("a/b", {"m-Q8_0.gguf": BIG})
        hub.faults.append(Fault("cdn", "m-Q8_0", cut=20 << 20, after=4))
        good(pull(hub, models, "a/b"))
        equal(tree(os.path.join(models, "a/b"))["m-Q8_0.gguf"], BIG, "bytes")


def start_slow(hub, models):
    hub.faults.append(Fault("cdn", "m-Q8_0", slow=0.01, times=99))
    p = subprocess.Popen(command(hub, models, "a/b"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=ENV)
    end = time.monotonic() + 30 * SLOW
    while time.monotonic() < end and p.poll() is None:
        for path in (os.path.join(b, f) for b, _, fs in os.walk(models) for f in fs if f.endswith(".part")):
            if os.stat(path).st_blocks * 512 > 4 << 20:
                return p, path
        time.sleep(0.01)
    raise AssertionError("nothing arrived: " + p.stderr.read())


@case
def a_killed_pull_goes_on_where_it_was():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG})
        p, _ = start_slow(hub, models)
        p.kill()
        p.wait()
        p.stdout.close()
        p.stderr.close()
        check(not os.path.exists(os.path.join(models, "a")), "nothing has a name yet")
        check(local("list", models).stdout == "", "and nothing is a model")
        time.sleep(0.3)
        hub.forget()
        good(pull(hub, models, "a/b"))
        equal(tree(os.path.join(models, "a/b"))["m-Q8_0.gguf"], BIG, "bytes")
        asked = sum(int(r[6:].split("-")[1]) - int(r[6:].split("-")[0]) + 1 for r in hub.seen("cdn", "range"))
        check(0 < asked < len(BIG) - (3 << 20), f"{asked} of {len(BIG)} bytes were asked for again")
        check(hub.seen("cdn", "if-range"), "with If-Range")


@case
def a_terminal_gets_a_bar():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG[:6 << 20]})
        hub.faults.append(Fault("cdn", "m-Q8_0", slow=0.025))
        near, far = pty.openpty()
        p = subprocess.Popen(command(hub, models, "a/b"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=far,
                             env={**ENV, "TERM": "xterm"})
        os.close(far)
        seen = b""
        with contextlib.suppress(OSError):  # its end is an error on Linux
            while block := os.read(near, 4096):
                seen += block
        out, _ = p.communicate(timeout=60 * SLOW)
        os.close(near)
        equal(p.returncode, 0, seen[-500:])
        check(b"a/b: pulled" in out, out)
        check(re.search(rb"a/b \[[#.]+\] +\d+ % .* of 6.0 MiB 0/1 ", seen), seen[-800:])
        check(re.search(rb"[KM]iB/s, \d:\d\d left", seen), seen[-800:])


@case
def ctrl_c_ends_with_130_and_keeps_what_came():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG})
        p, part = start_slow(hub, models)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=20 * SLOW)
        equal(p.returncode, 130, err)
        check("the same command goes on" in err and os.path.exists(part), err)


@case
def a_complete_part_is_hashed_all_the_same():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG})
        p, part = start_slow(hub, models)
        p.kill()
        p.communicate()
        time.sleep(0.3)
        with open(part, "wb") as f:  # all bytes are there, says the map, and one word of them is wrong
            f.write(BIG[:20 << 20] + b"spoiled" + BIG[(20 << 20) + 7:])
        with open(part + ".map", "r+b") as f:
            f.seek(-24, os.SEEK_END)
            f.write(struct.pack("<3Q", 16 << 20, 16 << 20, 8 << 20))
        hub.forget()
        good(pull(hub, models, "a/b"))
        equal(tree(os.path.join(models, "a/b"))["m-Q8_0.gguf"], BIG, "bytes")
        equal(len(hub.paths("cdn")), 3, "it was fetched anew")


@case
def two_pulls_of_one_model_do_not_meet():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG})
        hub.repo("a/c", SMALL)
        p, _ = start_slow(hub, models)
        bad(pull(hub, models, "a/b"), "is being pulled by another process")
        bad(local("rm", models, "a/b"), "no model 'a/b'")
        good(pull(hub, models, "a/c"))
        _, err = p.communicate(timeout=120 * SLOW)
        equal(p.returncode, 0, err)


@case
def a_full_disk_is_told_and_the_pull_goes_on_later():
    with place() as (hub, models):
        hub.repo("a/b", {"m-Q8_0.gguf": BIG})
        r = pull(hub, models, "a/b", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20)))
        bad(r, "no room for 'm-Q8_0.gguf'", "the same pull goes on")
        good(pull(hub, models, "a/b"))
    with place() as (hub, models):
        os.mkdir(models)
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", models],
                                               capture_output=True, check=False).returncode != 0:
            return  # the row above stands
        try:
            hub.repo("a/b", {"m-Q8_0.gguf": BIG})
            bad(pull(hub, models, "a/b"), "40 MiB are yet to come", "79 MiB free")
            equal(hub.paths("cdn"), [], "nothing was fetched")
        finally:
            subprocess.run(["umount", models], check=True)


@case
def single_files_and_folders():
    with place() as (hub, models):
        hub.files["x/tiny.gguf"] = BIG
        good(pull(hub, models, f"{hub.url}/files/x/tiny.gguf?sig=2", env={"HF_TOKEN": "t0ken"}))
        equal(tree(os.path.join(models, "local/tiny"))["tiny.gguf"], BIG, "bytes")
        equal(hub.seen("hub", "authorization") + hub.seen("cdn", "authorization"), [], "the token is for the hub's lists")
        hub.forget()
        r = good(pull(hub, models, f"{hub.url}/files/x/tiny.gguf?sig=2", "--json"))
        check(json.loads(r.stdout)["unchanged"], r.stdout)
        hub.files["x/tiny.gguf"] = BIG[: 1 << 20]
        check(not json.loads(good(pull(hub, models, f"{hub.url}/files/x/tiny.gguf?sig=2", "--json")).stdout)["unchanged"], "other size")
        bad(pull(hub, models, f"{hub.url}/files/none.gguf"), "404")
        good(pull(hub, models, f"file:{GOLDEN}/minilm"))
        have = without_receipt(tree(os.path.join(models, "local/minilm")))
        check("model.safetensors" in have and "config.json" in have and "cases.json" not in have, sorted(have))
        src = os.path.join(os.path.dirname(models), "one.gguf")
        with open(src, "wb") as f:
            f.write(BIG)
        good(pull(hub, models, f"file:{src}"))
        equal(tree(os.path.join(models, "local/one"))["one.gguf"], BIG, "bytes")
        bad(pull(hub, models, "file:/nowhere.gguf"), "No such file")
        equal(local("verify", models, "local/one", "local/minilm", "local/tiny").returncode, 0, "whole")


@case
def models_are_listed_verified_and_removed():
    with place() as (hub, models):
        repo = hub.repo("a/b", SMALL)
        good(pull(hub, models, "a/b"))
        os.makedirs(os.path.join(models, "mine"))
        shutil.copy(os.path.join(models, "a/b/model-Q4_K_M.gguf"), os.path.join(models, "mine/own.gguf"))
        text = local("list", models).stdout
        row = next(line for line in text.splitlines() if line.startswith("a/b/model-Q4_K_M.gguf"))
        check(f"a/b@{repo.commit[:12]}" in row and "whole" in row, text)
        check(next(line for line in text.splitlines() if line.startswith("mine/")).split()[-2:] == ["own", "-"], text)
        one = json.loads(local("list", models, "--json").stdout.splitlines()[0])
        equal((one["model"], one["commit"], one["from"]), ("a/b/model-Q4_K_M.gguf", repo.commit, hub.url), "json")
        r = local("verify", models, "a/b")
        equal((r.returncode, r.stdout), (0, "a/b: ok, 2 files, 2 of them hashed\n"), r.stderr)
        with open(os.path.join(models, "a/b/config.json"), "wb") as f:
            f.write(b'{"a": 2}')
        bad(local("verify", models, "a/b/model-Q4_K_M.gguf"), "'config.json' has the hash")
        with open(os.path.join(models, "a/b/config.json"), "ab") as f:
            f.write(b" ")
        bad(local("verify", models, "a/b"), "has 9 bytes, its receipt says 8")
        check("differs" in local("list", models).stdout, "it differs")
        receipt = os.path.join(models, "a/b/.inferd-download-complete.json")
        with open(receipt, "wb") as f:
            f.write(b'{"version": 9, "artifacts": []}')
        bad(local("verify", models, "a/b"), "receipt version 9 is not supported")
        bad(local("rm", models, "mine"), "was not pulled")
        bad(local("rm", models, "../x"), "there is no model")
        good(local("rm", models, "a/b"))
        equal(sorted(os.listdir(models)), ["mine"], "what is left")
        bad(local("rm", models, "a/b"), "there is no model")
        bad(local("verify", models, "mine"), "no receipt")


@case
def offline_asks_nobody():
    with place() as (hub, models):
        hub.repo("a/b", SMALL)
        bad(pull(hub, models, "a/b", "--offline"), "offline")
        good(pull(hub, models, "a/b"))
        hub.forget()
        good(pull(hub, models, "a/b", "--offline"))
        bad(pull(hub, models, "a/b@v9", "--offline"), "offline")
        os.remove(os.path.join(models, "a/b/config.json"))
        bad(pull(hub, models, "a/b", "--offline"), "not here as a whole")
        equal(hub.paths("hub"), [], "nobody was asked")


@case
def a_folder_of_ones_own_is_not_replaced():
    with place() as (hub, models):
        hub.repo("a/b", SMALL)
        os.makedirs(os.path.join(models, "a/b"))
        with open(os.path.join(models, "a/b/mine"), "w", encoding="ascii") as f:
            f.write("mine")
        bad(pull(hub, models, "a/b"), "was not pulled")
        equal(tree(os.path.join(models, "a/b")), {"mine": b"mine"}, "it stays")


@case
def wrong_command_lines_say_why():
    with place() as (hub, models):
        for words, says in ((["nope"], "bge-m3"), ([], "REF"), (["a/b", "--hub", "http://example.com"], "expected https"),
                            (["a/b", "--sandbox", "x"], "strict, permissive or off"), (["a/b", "--retries", "99"], "20"),
                            (["http://example.com/x.gguf"], "use https"), (["a/../b"], "name")):
            r = subprocess.run([INFERD, "pull", "--models-dir", models, *words], stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, timeout=30 * SLOW, env=ENV, check=False)
            check(r.returncode == 2 and says in r.stderr, f"{words}: {r.returncode} {r.stderr}")
        r = subprocess.run([INFERD, "list", "--models-dir", models, "--server", "http://127.0.0.1:1"], capture_output=True,
                           text=True, env=ENV, check=False)
        equal(r.returncode, 2, r.stderr)


@case
def an_unreachable_hub_is_told():
    with tempfile.TemporaryDirectory(prefix="inferd-pull-") as d:
        r = subprocess.run([INFERD, "pull", "a/b", "--models-dir", d, "--hub", "http://127.0.0.1:9", "--retries", "0"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENV, timeout=30 * SLOW, check=False)
        bad(r, "http://127.0.0.1:9")


if __name__ == "__main__":
    main()
