"""cli_docs.py - pages that must keep up with the code: log events, metrics, options, commands, probes."""
import glob
import os
import re

from inferd_test import ROOT, case, check, main


def page(name):
    with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as f:
        return f.read()


def sources(pattern):
    out = ""
    for path in glob.glob(os.path.join(ROOT, pattern), recursive=True):
        with open(path, encoding="utf-8") as f:
            out += f.read()
    return out


@case
def every_log_event_is_in_the_page():
    events = set(re.findall(r'SUP_LOG\([^"]*?"([a-z_]+)"', sources("supervisor/**/*.[ch]")))
    events |= set(re.findall(r'log_text\([^"]*?"([a-z_]+)"', sources("supervisor/**/*.[ch]")))
    check(len(events) > 15, f"found only {events}")
    text = page("operations.md")
    missing = sorted(e for e in events if f"`{e}`" not in text)
    check(not missing, f"docs/operations.md does not explain {missing}")


@case
def the_page_invents_no_event():
    text = page("operations.md").split("## Logs")[1].split("## Limits")[0]
    code = sources("supervisor/**/*.[ch]")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [e for row in rows for e in re.findall(r"`([a-z_]+)`", row)]
    check(len(named) > 15, "rows")
    gone = [e for e in named if f'"{e}"' not in code]
    check(not gone, f"docs/operations.md explains {gone}, which the code never logs")


@case
def the_pages_metrics_exist():
    header = sources("supervisor/watch/sup_metrics.h")
    for name in set(re.findall(r"inferd_[a-z_]+_(?:total|seconds|bytes)", page("operations.md"))):
        check(f'"{name}"' in header, f"{name} is in docs/operations.md and not in SUP_METRICS")


@case
def the_pages_options_exist():
    options = set(re.findall(r"^\s*X\((\w+), (?:STR|U64|BOOL|ENUM|LIST)", sources("supervisor/sup_conf.h"), re.M))
    check(len(options) > 30, "options")
    limits = page("operations.md").split("## Limits")[1].split("## At three")[0]
    cells = [line.split("|")[2] for line in limits.splitlines() if line.startswith("| ") and "---" not in line]
    for cell in cells[1:]:
        for name in re.findall(r"`([a-z_]+)`", cell):
            check(name in options, f"{name} is in the limits of docs/operations.md and no option")


@case
def refusal_reasons_are_those_of_the_code():
    code = sources("supervisor/http/*.[ch]")
    reasons = set(re.findall(r'X\(\w+, \d+, "[A-Z_]*", "([a-z_]+)"', code))
    reasons |= set(re.findall(r'sup_http_refused\([^,]+, "([a-z_]+)"', code))
    text = page("operations.md").split("`reason` of `inferd_http_refused_total`:")[1].split("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", text))
    check(reasons == named, f"only in the code: {sorted(reasons - named)}; only in the page: {sorted(named - reasons)}")


main()
