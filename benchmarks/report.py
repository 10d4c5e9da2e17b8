"""Render measurements as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import contenders as c
import training
from contenders import OFF, OURS

Measurement = dict[str, Any]


def render(results: dict[str, Any]) -> str:
    """Render the whole report as Markdown."""
    measured = results["measurements"]
    tables = {
        "dense": ("From logits", _ratios_and_memory(measured, "dense", c.CE)),
        "linear": ("From hidden states", _ratios_and_memory(measured, "linear", c.HEAD)),
        "on_off": ("The number term: on against off", _on_off(measured)),
        "criteria": ("All criteria", _criteria(measured)),
        "bandwidth": ("Share of the memory bandwidth", _bandwidth(results)),
        "integrations": ("Training steps", _integrations(measured)),
    }
    parts = [_machine(results)]
    parts += [f"### {title}\n\n{body}" for title, body in tables.values() if body]
    if results["skipped"]:
        lines = [f"- {skipped['what']}: {skipped['reason']}" for skipped in results["skipped"]]
        parts.append("Not measured:\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def insert(text: str, page: Path, device: str) -> None:
    """Insert the report between a page's markers of a device."""
    begin, end = f"<!-- benchmark {device}: begin -->", f"<!-- benchmark {device}: end -->"
    content = page.read_text()
    if content.count(begin) != 1 or content.count(end) != 1:
        raise ValueError(f"{page}: expected one line {begin} and one line {end}")
    before, rest = content.split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n{text}{end}{after}")


def _integrations(measured: Sequence[Measurement]) -> str:
    found = _of(measured, table="integrations")
    if not found:
        return ""
    text = "Forward, backward and AdamW, over the stock model's:\n\n"
    return text + markdown(*training.table(found))


def _ratios_and_memory(measured: Sequence[Measurement], table: str, baseline: str) -> str:
    found = _of(measured, table=table)
    if not found:
        return ""
    names = [baseline, *(name for name in dict.fromkeys(m["contender"] for m in found) if name != baseline)]
    times, peaks = [], []
    for case in _cases(found):
        by_name = {m["contender"]: m for m in found if m["case"] == case}
        base = by_name[baseline]
        ratios = [
            f"{by_name[name]['median_ms'] / base['median_ms']:.2f}" if name in by_name else "-"
            for name in names[1:]
        ]
        times.append([*_describe(case), f"{base['median_ms']:.0f} ms", *ratios])
        if any(m["memory_buffers"] is not None for m in by_name.values()):
            buffers = [by_name.get(name, {}).get("memory_buffers") for name in names]
            peaks.append([*_describe(case), *("-" if b is None else f"{max(b, 0):.2f}" for b in buffers)])
    heading = _headings(found[0]["case"])
    text = f"Time over that of `{baseline}`, forward and backward:\n\n" + markdown([*heading, *names], times)
    if peaks:
        beyond = "inputs and their gradients" if table == "linear" else "the logits"
        text += f"\n\nPeak memory beyond {beyond}, in logits-sized buffers:\n\n"
        text += markdown([*heading, *names], peaks)
    return text


def _on_off(measured: Sequence[Measurement]) -> str:
    found = {(str(m["case"]), m["contender"]): m for m in _of(measured, table="on_off")}
    rows = []
    for (case, name), off in found.items():
        if name.endswith(OFF):
            on, shape = found[case, name.removesuffix(OFF)], off["case"]
            ratios = [f"{on[time] / off[time]:.3f}" for time in ("median_ms", "least_ms")]
            sizes = [f"{shape[key]:,}" for key in ("numbers", "vocab_size", "tokens")]
            rows.append([on["contender"], *sizes, f"{off['median_ms']:.1f} ms", *ratios])
    heading = ["path", "\\|N\\|", "V", "tokens", "off", "on / off", "of the fastest rounds"]
    return markdown(heading, sorted(rows)) if rows else ""


def _criteria(measured: Sequence[Measurement]) -> str:
    found = {
        (m["case"]["numbers"], m["criterion"] or m["contender"]): m for m in _of(measured, table="criteria")
    }
    sizes = sorted({numbers for numbers, _ in found})
    heading = ["criterion"]
    for numbers in sizes:
        n = f"\\|N\\| = {numbers:,}"
        heading += [
            f"{n}: time over `{c.CE}`",
            f"{n}: over {OURS}{OFF}",
            f"{n}: memory (logits-sized buffers)",
        ]
    rows = []
    for name in dict.fromkeys(m["criterion"] for m in found.values() if m["criterion"]):
        row = [name]
        for numbers in sizes:
            if (numbers, name) not in found:  # a criterion of digits is not measured for more tokens
                row += ["-"] * 3
                continue
            mine = found[numbers, name]
            for baseline in (c.CE, OURS + OFF):
                row.append(f"{mine['median_ms'] / found[numbers, baseline]['median_ms']:.2f}")
            buffers = mine["memory_buffers"]
            row.append("-" if buffers is None else f"{buffers:.2f}")
        rows.append(row)
    return markdown(heading, rows) if rows else ""


def _bandwidth(results: dict[str, Any]) -> str:
    found = _of(results["measurements"], table="dense")
    if "bandwidth_gb_s" not in results["machine"] or not found:
        return ""
    names = list(dict.fromkeys(m["contender"] for m in found))
    rows = []
    for case in _cases(found):
        # Two reads and one write of the logits, in milliseconds.
        least = 3 * c.Case(**case).logits_bytes / (results["machine"]["bandwidth_gb_s"] * 1e6)
        shares = {m["contender"]: f"{least / m['median_ms']:.2f}" for m in found if m["case"] == case}
        rows.append([*_describe(case), *(shares.get(name, "-") for name in names)])
    text = "Two reads and one write of the logits at the speed of a copy, over the time measured:\n\n"
    return text + markdown([*_headings(found[0]["case"]), *names], rows)


def _of(measured: Sequence[Measurement], **fields: Any) -> list[Measurement]:
    return [m for m in measured if all(m[field] == value for field, value in fields.items())]


def _cases(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    return list({str(m["case"]): m["case"] for m in found}.values())


def _headings(case: dict[str, Any]) -> list[str]:
    return ["V", "tokens", "numbers" if case["hidden"] is None else "hidden"]


def _describe(case: dict[str, Any]) -> list[str]:
    last = f"{case['share']:.0%}".replace("%", " %") if case["hidden"] is None else f"{case['hidden']:,}"
    return [f"{case['vocab_size']:,}", f"{case['tokens']:,}", last]


def _machine(results: dict[str, Any]) -> str:
    machine, options = results["machine"], results["options"]
    warning = "**Tiny shapes (`--quick`): the figures mean nothing.**\n\n" if options["quick"] else ""
    shown = ", ".join(f"{name} {value}" for name, value in machine.items())
    return f"{warning}{options['dtype']}; {shown}."


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
