"""The measured JSON of `maxsim bench forward` as text, for a terminal and for the documentation."""

from typing import Any

__all__ = ["as_lines", "as_markdown"]

# The printed table has 110 columns at the most.
SHORT_NAMES = {"late-interaction-kernels": "l-i-kernels"}


def as_lines(measured: dict[str, Any]) -> list[str]:
    """The table for a terminal; times in ms, 'of limit' the share of what the machine allows."""
    lines = [
        f"{'case':<34}{'ours ms':>9}{'graph ms':>9}{'limit ms':>9}{'of limit':>9}"
        f"  {'best rival':<13}{'its ms':>8}{'ours/it':>9}{'host µs':>8}"
    ]
    for row in measured["rows"]:
        rival, rival_ms, ratio = _best_rival(row)
        lines.append(
            f"{row['case']:<34}{_ms(row['ours_ms']):>9}{_ms(row.get('graph_ms')):>9}{_ms(row['limit_ms']):>9}"
            f"{row['share_of_limit']:>9.0%}  {SHORT_NAMES.get(rival, rival):<13}{_ms(rival_ms):>8}"
            f"{'' if ratio is None else f'{ratio:.2f}':>9}{row['host_us']:>8.0f}"
        )
    return lines


def as_markdown(measured: dict[str, Any]) -> str:
    """Everything measured, as tables for the documentation."""
    parts = [_machine(measured), _cases(measured)]
    if any("baselines" in row for row in measured["rows"]):
        parts.append(_paper(measured))
    tables = measured.get("tables", {})
    if tables.get("memory"):
        parts.append(_memory(tables["memory"]))
    if tables.get("odd_lengths"):
        parts.append(_odd_lengths(tables["odd_lengths"]))
    if tables.get("numerics"):
        parts.append(_numerics(tables["numerics"]))
    if tables.get("traffic"):
        parts.append(_traffic(tables["traffic"]))
    return "\n\n".join(parts) + "\n"


def _machine(measured: dict[str, Any]) -> str:
    ceilings = measured["ceilings"]
    matmul = ", ".join(f"{rate:.0f} in {name}" for name, rate in ceilings["matmul_tflop_per_s"].items())
    return (
        f"{measured['gpu']}, driver {measured['driver']}, torch {measured['torch']}, "
        f"triton {measured['triton']}, {measured['date'][:10]}. "
        f"Limits measured in the same run: {ceilings['read_tb_per_s']:.2f} TB/s read, "
        f"{ceilings['copy_tb_per_s']:.2f} TB/s copied, {matmul} TFLOP/s. An empty kernel shows "
        f"{ceilings['empty_kernel_us']:.1f} µs by the same clock."
    )


def _cases(measured: dict[str, Any]) -> str:
    lines = [
        "| case | kernel | ours ms | graph ms | limit ms | of limit "
        "| best rival | its ms | ours / it | host µs |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for row in measured["rows"]:
        rival, rival_ms, ratio = _best_rival(row)
        function = row.get("rival_functions", {}).get(rival)
        who = f"{rival}: {function}" if function else rival
        lines.append(
            f"| {row['case']} | {row['kernel']} | {_ms(row['ours_ms'])} | {_ms(row.get('graph_ms'))} | "
            f"{_ms(row['limit_ms'])} | {row['share_of_limit']:.0%} | {who} | "
            f"{_ms(rival_ms)} | {'' if ratio is None else f'{ratio:.2f}'} | {row['host_us']:.0f} |"
        )
    return "\n".join(lines)


def _paper(measured: dict[str, Any]) -> str:
    rows = [row for row in measured["rows"] if "baselines" in row]
    # In the order of their first appearance.
    others = dict.fromkeys(name for row in rows for name in (*row["baselines"], *row["rivals"]))
    columns = [*others, "ours", "limit"]
    lines = [
        "One query against 1,000 documents, milliseconds:\n",
        f"| rows × tokens | {' | '.join(columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    for row in rows:
        times = {**row["baselines"], **row["rivals"], "ours": row["ours_ms"], "limit": row["limit_ms"]}
        lines.append(f"| {row['case']} | {' | '.join(_ms(times.get(column)) for column in columns)} |")
    return "\n".join(lines)


def _memory(table: list[dict[str, Any]]) -> str:
    lines = [
        "Peak memory beside the inputs, 1024 query rows, documents of 1024 tokens:\n",
        "| documents | their GB | ours MB | share of documents | ours ms | naive fp16 GB | similarities GB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for entry in table:
        naive = entry["naive_error"] or f"{entry['naive_peak_bytes'] / 1e9:.1f}"
        lines.append(
            f"| {entry['documents']:,} | {entry['documents_bytes'] / 1e9:.1f} | "
            f"{entry['ours_peak_bytes'] / 1e6:.1f} | {entry['ours_share_of_documents']:.3%} | "
            f"{entry['ours_ms']:.1f} | {naive} | {entry['naive_similarity_bytes'] / 1e9:.0f} |"
        )
    return "\n".join(lines)


def _odd_lengths(table: list[dict[str, Any]]) -> str:
    lines = [
        "Document lengths from 1000 to 1050, odd ones and 1000, 1024 and 1050:\n",
        "| query rows | fastest ns a token | slowest | at | slowest / fastest | compilations |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rows in sorted({entry["rows"] for entry in table}):
        entries = sorted((e for e in table if e["rows"] == rows), key=lambda e: e["ns_per_token"])
        best, worst = entries[0]["ns_per_token"], entries[-1]["ns_per_token"]
        lines.append(
            f"| {rows} | {best:.4f} | {worst:.4f} | {entries[-1]['tokens']} tokens | {worst / best:.3f} | "
            f"{sum(entry['compilations'] for entry in entries)} |"
        )
    return "\n".join(lines)


def _numerics(table: list[dict[str, Any]]) -> str:
    lines = [
        "Largest relative error against float64 over fresh draws of 1,000 documents, and the least agreement "
        "of the 20 best:\n",
        "| dtype | rows × tokens | ours | naive, half precision | ours: top 20 | naive: top 20 |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {entry['dtype']} | {entry['rows']}x{entry['tokens']} | {entry['ours_error']:.1e} | "
        f"{entry['naive_error']:.1e} | {entry['ours_top20']:.0%} | {entry['naive_top20']:.0%} |"
        for entry in table
    ]
    return "\n".join(lines)


def _traffic(table: list[dict[str, Any]]) -> str:
    lines = [
        "Bytes from and to the GPU's memory in one call:\n",
        "| case | counted MB | read MB | written MB | read / counted | by |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for entry in table:
        by_ncu = entry["by"] == "ncu"
        read, written, ratio = (
            (
                f"{entry['read_bytes'] / 1e6:.1f}",
                f"{entry['write_bytes'] / 1e6:.1f}",
                f"{entry['measured_over_counted']:.3f}",
            )
            if by_ncu
            else ("", "", "")
        )
        how = "ncu" if by_ncu else f"counted only: {entry['why_not_measured']}"
        lines.append(
            f"| {entry['case']} | {entry['counted_bytes'] / 1e6:.1f} | {read} | {written} | {ratio} | {how} |"
        )
    return "\n".join(lines)


def _best_rival(row: dict[str, Any]) -> tuple[str, float | None, float | None]:
    """(name, milliseconds, ours / it) of the fastest rival; blanks where there is none."""
    rivals: dict[str, float] = row["rivals"]
    if not rivals:
        return "", None, None
    name = min(rivals, key=lambda rival: rivals[rival])
    return name, rivals[name], row["ours_ms"] / rivals[name]


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if value < 1 else f"{value:.3f}"
