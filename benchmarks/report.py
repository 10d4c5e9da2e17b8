"""Render measurements as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import contenders as c
import training
from contenders import COMPILED, IN_PLACE, OFF, OURS, OURS_LINEAR

Measurement = dict[str, Any]
PATHS = [OURS, OURS + COMPILED, OURS + IN_PLACE, OURS_LINEAR]


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


def render_ratios(results: dict[str, Any]) -> str:
    """Render the comparison of two source trees as Markdown."""
    measured = results["measurements"]
    if not measured:
        return f"{_machine(results)}\n\nNothing was measured.\n"
    rows = []
    for m in measured:
        case = m["case"]
        hidden = "" if case["hidden"] is None else f"{case['hidden']:,}"
        share = f"{case['numbers']:,}, {case['share']:.0%} of labels".replace("%", " %")
        name = ", ".join(filter(None, (m["contender"], m["criterion"])))
        figures = [
            f"{m['new_ms']:.2f} ms",
            f"{m['ratio']:.3f}",
            f"{m['ratio_of_fastest']:.3f}",
            str(m["rounds"]),
        ]
        rows.append([name, f"{case['vocab_size']:,}", f"{case['tokens']:,}", hidden, share, *figures])
    heading = ["contender", "V", "tokens", "hidden", "numbers", "new", "new / old", "of fastest", "rounds"]
    ratios = [m["ratio"] for m in measured]
    fastest = statistics.geometric_mean(m["ratio_of_fastest"] for m in measured)
    summary = (
        f"New over old, {len(ratios)} rows: geometric mean {statistics.geometric_mean(ratios):.3f} (of the "
        f"fastest rounds {fastest:.3f}), from {min(ratios):.3f} to {max(ratios):.3f}."
    )
    return f"{_machine(results)}\n\n{_markdown(heading, rows)}\n\n{summary}\n"


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
    text = "Forward, backward and AdamW, over the stock model's; with the callback, a step that it measures, "
    text += "of which by default there is one in ten:\n\n"
    return text + _markdown(*training.table(found))


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
    text = f"Time over that of `{baseline}`, forward and backward:\n\n" + _markdown([*heading, *names], times)
    if peaks:
        beyond = "inputs and their gradients" if table == "linear" else "the logits"
        text += f"\n\nPeak memory beyond {beyond}, in logits-sized buffers:\n\n"
        text += _markdown([*heading, *names], peaks)
    return text


def _on_off(measured: Sequence[Measurement]) -> str:
    found = _of(measured, table="on_off")
    if not found:
        return ""
    rows = []
    for case in _cases(found):
        for path in PATHS:
            pairs = _pairs([m for m in found if m["case"] == case], path, path + OFF)
            for on, off in pairs:
                ratio, least = on["median_ms"] / off["median_ms"], on["least_ms"] / off["least_ms"]
                shape = [f"{case['numbers']:,}", f"{case['vocab_size']:,}", f"{case['tokens']:,}"]
                rows.append([path, *shape, f"{off['median_ms']:.1f} ms", f"{ratio:.3f}", f"{least:.3f}"])
    return _markdown(
        ["path", "\\|N\\|", "V", "tokens", "off", "on / off", "of the fastest rounds"], sorted(rows)
    )


def _criteria(measured: Sequence[Measurement]) -> str:
    found = _of(measured, table="criteria")
    if not found:
        return ""
    names = list(dict.fromkeys(m["criterion"] for m in found if m["criterion"]))
    sizes = sorted({m["case"]["numbers"] for m in found})
    rows = []
    for name in names:
        row = [name]
        for numbers in sizes:
            for baseline in (c.CE, OURS + OFF):
                pairs = _criterion_over(measured, name, baseline, numbers)
                row += [f"{mine['median_ms'] / other['median_ms']:.2f}" for mine, other in pairs] or ["-"]
            buffers = [m["memory_buffers"] for m in found if _is(m, name, numbers)]
            row += [f"{b:.2f}" if b is not None else "-" for b in buffers] or ["-"]
        rows.append(row)
    heading = ["criterion"]
    for numbers in sizes:
        n = f"\\|N\\| = {numbers:,}"
        heading += [
            f"{n}: time over `{c.CE}`",
            f"{n}: over {OURS}{OFF}",
            f"{n}: memory (logits-sized buffers)",
        ]
    return _markdown(heading, rows)


def _is(measurement: Measurement, criterion: str | None, numbers: int) -> bool:
    return measurement["criterion"] == criterion and measurement["case"]["numbers"] == numbers


def _criterion_over(
    measured: Sequence[Measurement], criterion: str, baseline: str, numbers: int
) -> list[tuple[Measurement, Measurement]]:
    found = _of(measured, table="criteria")
    # The baseline is another criterion, or a contender without one.
    others = {str(m["case"]): m for m in found if (m["criterion"] or m["contender"]) == baseline}
    return [
        (m, others[str(m["case"])]) for m in found if _is(m, criterion, numbers) and str(m["case"]) in others
    ]


def _bandwidth(results: dict[str, Any]) -> str:
    found = _of(results["measurements"], table="dense")
    if "bandwidth_gb_s" not in results["machine"] or not found:
        return ""
    names = list(dict.fromkeys(m["contender"] for m in found))
    rows = []
    for case in _cases(found):
        by_name = {m["contender"]: _roofline(m, results) for m in found if m["case"] == case}
        rows.append([*_describe(case), *(f"{by_name[n]:.2f}" if n in by_name else "-" for n in names)])
    text = "Two reads and one write of the logits at the speed of a copy, over the time measured:\n\n"
    return text + _markdown([*_headings(found[0]["case"]), *names], rows)


def _roofline(measurement: Measurement, results: dict[str, Any]) -> float:
    """Return the share of the memory bandwidth that two reads and one write of the logits achieve."""
    case = c.Case(**measurement["case"])
    moved = 3 * case.logits_bytes
    return moved / (results["machine"]["bandwidth_gb_s"] * 1e9) / (measurement["median_ms"] / 1e3)


def _pairs(found: Sequence[Measurement], name: str, baseline: str) -> list[tuple[Measurement, Measurement]]:
    """Pair the measurements of two contenders on the same case."""
    found = [m for m in found if m["criterion"] is None]
    others = {str(m["case"]): m for m in found if m["contender"] == baseline}
    mine = [m for m in found if m["contender"] == name]
    return [(m, others[str(m["case"])]) for m in mine if str(m["case"]) in others]


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


def _markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
