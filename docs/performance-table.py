#!/usr/bin/env python3
"""Puts the figures of `nacre bench --json FILE` into performance.md and
performance-notes.md, which lie beside this script."""

import json
import pathlib
import sys

BEGIN = "<!-- results: written by performance-table.py -->\n"
BEGIN_FOR_USERS = "<!-- figures: written by performance-table.py -->\n"
END = "<!-- end of results -->"
PLACES = ["nacre", "tmpfs", "ext4", "raw"]
SEVERAL = "several callers"
FOR_USERS = [
    "pread 64 B", "pread 4 KiB", "pread 1 MiB", "pwrite 64 B", "pwrite 4 KiB", "pwrite 1 MiB",
    "append 64 B", "pwrite+fsync 4 KiB", "open+close", "stat", "stat of a missing name",
    "create+close", "rename", "unlink, 4 KiB", "mkdir", "readdir, an entry",
]


def number(value):
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}".replace(",", " ")


def figure(row, place, which):
    return row["places"].get(place, {}).get(which)


def ratio(above, below):
    return f"{above / below:.2f}" if above and below else "-"


def line(row):
    shown = "mean" if row["group"].startswith(SEVERAL) else "p50"
    values = {place: figure(row, place, shown) for place in PLACES}
    ours = [figure(row, "nacre", which) for which in ("p50", "p99", "mean")]
    cells = [row["name"] + (" (bytes)" if row["unit"] == "B" else "")]
    cells += [number(value) for value in ours]
    cells += [number(figure(row, "nacre", "quickest"))]
    cells += [number(values[place]) for place in PLACES[1:]]
    cells += [ratio(values[place], values["nacre"]) for place in ("tmpfs", "ext4")]
    cells += [ratio(values["nacre"], values["raw"]), row["target"] or "", row["verdict"] or ""]
    return "| " + " | ".join(cells) + " |"


def short_line(row):
    """For users: without what engineers look at."""
    shown = "mean" if "mean" in (row["target"] or "") else "p50"
    cells = [row["name"]] + [number(figure(row, place, shown)) for place in PLACES]
    return "| " + " | ".join(cells) + " |\n"


def told(report):
    machine, run = report["machine"], report["run"]
    return (
        f"{machine['processors']} x {machine['processor']}, Linux {machine['kernel']}; load before "
        f"{machine['load_before']:.2f}; others used {machine['used_by_others']:.1%} of the processors meanwhile. "
        f"Medians over {run['rounds']} rounds of {run['milliseconds']} ms. Nanoseconds for an operation; loop "
        f"{report['overhead']['loop_ns']:.1f} ns and clock {report['overhead']['clock_ns']:.0f} ns a sample contained.\n\n"
    )


def table(report):
    text = "| row | nacre p50 | p99 | mean | p50 of the quickest round | tmpfs | ext4 | raw | vs tmpfs | vs ext4 | vs raw | target | |\n"
    text += "|---|" + "---:|" * 10 + "---|---|\n"
    return told(report) + text + "".join(line(row) + "\n" for row in report["rows"])


def short_table(report):
    text = "| operation | Nacre | tmpfs | ext4 | raw |\n|---|---:|---:|---:|---:|\n"
    return text + "".join(short_line(row) for row in report["rows"] if row["name"] in FOR_USERS)


def put(page, begin, text):
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + END + rest.split(END, 1)[1])


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: performance-table.py FILE (of `nacre bench --json FILE`)")
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    machine = report["machine"]
    if machine["load_before"] >= 0.5 or machine["used_by_others"] >= 0.02:
        sys.exit("the machine was not idle in that run: measure again")
    here = pathlib.Path(__file__)
    put(here.with_name("performance-notes.md"), BEGIN, table(report))
    put(here.with_name("performance.md"), BEGIN_FOR_USERS, short_table(report))


if __name__ == "__main__":
    main()
