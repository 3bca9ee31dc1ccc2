"""The tables of quantize.py, and the paired differences in them."""
import numpy as np

from quantize_nets import PLAIN

DROP, DROP_PLAIN, MARGIN = 0.3, 0.2, 0.2  # points: the most that int8 may lose, and the margin of non-inferiority
HEAD = ["model", "method", "measured on", "accuracy", "difference to float, points", "in float", "processor s", "peak MB", "taken"]
AGAINST = ["model", "method", "drop, points", "at most", "best peer", "against it, points", "within %.1f" % MARGIN, "float model against it"]


def paired(a, b):
    """The difference in accuracy of two models on the samples that both have, and its 95% interval. They share their beginning."""
    a, b = np.load(a), np.load(b)
    n = min(len(a), len(b))
    d = a[:n].astype(float) - b[:n]
    half = 1.96 * d.std(ddof=1) / n**0.5
    return {"value": d.mean(), "low": d.mean() - half, "high": d.mean() + half}


def difference(d):
    return "%+.2f [%+.2f, %+.2f]" % tuple(100 * d[k] for k in ("value", "low", "high"))


def cells(r):
    if "error" in r:
        return [r["net"], r["method"], "failed: " + r["error"].replace("|", "/")[:80], "", "", "", "", "", r["taken"]]
    a, words = r["accuracy"], ["", ""]
    if a:
        words = ["%.2f%%" % (100 * a["value"]), difference(a["difference"])]
    given = "" if r["given_back"] is None else str(r["given_back"])
    seconds = "" if r["processor_s"] is None else "%.2f" % r["processor_s"]
    return [r["net"], r["method"], r["engine"] or "", *words, given, seconds, "%.0f" % (r["peak_bytes"] / 1e6), r["taken"]]


def table(rows):
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * 3 + "---:|" * 6]
    return "\n".join(lines + ["| " + " | ".join(cells(r)) + " |" for r in rows]) + "\n"


def verdicts(rows, ours, peers):
    """Each int8 of ours against its target and the best of the peers, which the test set itself chooses; and the float model, on
    the same engine as ours, against that peer: where it does not show itself within the margin, no faithful variant can."""
    found = []
    judged = [r for r in rows if r.get("correct")]
    for r in judged:
        if r["method"] not in ours or not r["method"].startswith("int8"):
            continue
        most = DROP_PLAIN if r["net"] in PLAIN else DROP
        drop = -100 * r["accuracy"]["difference"]["value"] + 0.0
        words = [r["net"], r["method"], "%.2f" % drop, "%.1f%s" % (most, "" if drop <= most + 1e-9 else " **missed**"), "", "", "", ""]
        others = [p for p in judged if p["net"] == r["net"] and p["method"] in peers]
        if others:
            n = r["accuracy"]["samples"]
            best = max(others, key=lambda p: np.load(p["correct"])[:n].mean())
            d, source = paired(r["correct"], best["correct"]), paired(r["float"], best["correct"])
            words[4:] = [best["method"], difference(d), "yes" if 100 * d["low"] >= -MARGIN else "**no**",
                         difference(source) + ("" if 100 * source["low"] >= -MARGIN else " (no)")]
        found.append(words)
    lines = ["| " + " | ".join(AGAINST) + " |", "|---|---|---:|---:|---|---:|---|---:|"]
    return "\n".join(lines + ["| " + " | ".join(w) + " |" for w in found]) + "\n"


def splice(path, text, mark="table"):
    """Puts the table between the two marks of the page."""
    with open(path, encoding="utf-8") as f:
        page = f.read()
    begin, end = "<!-- %s -->\n" % mark, "<!-- /%s -->\n" % mark
    at, to = page.index(begin) + len(begin), page.index(end)
    with open(path, "w", encoding="utf-8") as f:
        f.write(page[:at] + text + page[to:])
