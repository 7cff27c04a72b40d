"""The tables and figures of docs/explanation/intervals.md, from the numbers of `python -m benchmarks.uncertainty`."""

from pathlib import Path
from typing import Any

from benchmarks.coverage import CLAIMS, DRAWN, KINDS
from benchmarks.page import insert
from benchmarks.table import grid
from kalprox.display.axes import FAINT, INK, LINES

__all__ = ["write_page"]

Found = dict[str, Any]
_COEFFICIENTS = ("model", "robust", "clustered")
_LOOKS = ("one look, at 400 looks", "anytime, at 400 looks")
_PREDICTIVE = ("gaussian", "conformal, in blocks", "conformal, row by row")


def write_page(page: Path, result: dict[str, Found]) -> None:
    """Insert the tables into the page, and write the figures into the folder of its name beside it."""
    parts = {}
    for name, tables in {
        "streams": _streams,
        "settings": _settings,
        "flights": _flights,
        "bikeshare": _bikeshare,
        "series": _series,
    }.items():
        if found := result.get(name):
            parts |= {key: f"\n{text}\n" for key, text in tables(found).items()}
            parts[f"{name} run"] = _run(found)
    insert(page, parts)
    _figures(result, page.with_suffix(""))


def _run(found: Found) -> str:
    seeds = f"{found['seeds']} streams of each kind, " if "seeds" in found else ""
    quick = ", --quick" if found["quick"] else ""
    return f"\n{seeds}{found['date']}, {found['cpu']}, {found['minutes']} minutes{quick}.\n"


def _share(found: Found | None, claimed: bool = True) -> str:
    """A share with its bounds, in italics if nothing is claimed."""
    if found is None:
        return ""
    text = f"{found['share']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
    return text if claimed else f"*{text}*"


# ---- streams whose truth is known -----------------------------------------------------------------------


def _streams(found: Found) -> dict[str, str]:
    kinds = [kind for kind in KINDS if kind in found]

    def cells(kind: str, columns: tuple[str, ...]) -> list[str]:
        return [_share(found[kind].get(column), kind in CLAIMS[column]) for column in columns]

    looked = [kind for kind in kinds if _LOOKS[0] in found[kind]]
    noisy = [kind for kind in kinds if "noise=inputs" in found[kind]]
    return {
        "coefficients": grid(["kind of stream", *_COEFFICIENTS], [[k, *cells(k, _COEFFICIENTS)] for k in kinds]),
        "looks": grid(["kind of stream", *_LOOKS], [[k, *cells(k, _LOOKS)] for k in looked]),
        "predictive": grid(["kind of stream", *_PREDICTIVE], [[k, *cells(k, _PREDICTIVE)] for k in kinds]),
        "noise": _noise(found, noisy),
        "verdicts": grid(
            ["kind of stream", "right word", "share", "all words"],
            [[kind, KINDS[kind], _share(found[kind]["verdict"]), _words(found[kind]["words"])] for kind in kinds],
        ),
    }


def _words(words: dict[str, int]) -> str:
    return ", ".join(f"{word} {count}" for word, count in words.items())


def _noise(found: Found, kinds: list[str]) -> str:
    """The coverage of all rows and of the noisiest tenth, and the log score, with noise="learn" and "inputs"."""
    head = [
        "kind of stream",
        "noise",
        "gaussian",
        "of the noisiest tenth",
        "conformal, of the noisiest tenth",
        "log score",
    ]
    lines = []
    for kind in kinds:
        for noise in ("learn", "inputs"):
            one = found[kind][f"noise={noise}"]
            claimed = kind == "independent" or (noise == "inputs" and kind == "sd grows with the prediction")
            shares = [_share(one[name], claimed) for name in ("gaussian", "gaussian, noisiest")]
            shares.append(_share(one["conformal, in blocks, noisiest"], False))
            lines.append([kind, noise, *shares, f"{one['log score']['share']:.3f}"])
    return grid(head, lines)


def _settings(found: Found) -> dict[str, str]:
    lines = [
        [name, measured, _share(share, "which they are not" not in name and "coef_std_" not in measured)]
        for name, shares in found.items()
        if isinstance(shares, dict)
        for measured, share in shares.items()
    ]
    return {"settings": grid(["setting", "intervals of", "coverage"], lines)}


# ---- real data ---------------------------------------------------------------------------------------------


def _flights(found: Found) -> dict[str, str]:
    lines = [
        [f"{method}, {how}", f"{one['coverage']:.4f}", f"{one['worst']:.3f}", f"{one['width']:.1f}"]
        for how in ("row by row", "in blocks")
        for method, one in found[f"conformal, {how}"].items()
    ]
    stds = [
        [
            coef_cov,
            peer,
            *(f"{found[coef_cov][key][0]:.3f} to {found[coef_cov][key][1]:.3f}" for key in ("ratio", "model")),
        ]
        for coef_cov, peer in {"robust": "HC1", "clustered": "cluster, by day"}.items()
    ]
    return {
        "flights score": f"{found['rows']:,} rows, {found['inputs']} inputs: NIS {found['nis']:.3f}, 95% intervals "
        f"cover {found['coverage']:.3f}. The verdict:\n\n> {found['text']}",
        "flights std": grid(["coef_cov", "statsmodels", "ours / theirs", "the model's / theirs"], stds),
        "flights intervals": grid(
            ["90% intervals", "coverage", "worst window of 1,000 rows", "mean width, minutes"], lines
        ),
    }


def _bikeshare(found: Found) -> dict[str, str]:
    lines = [
        [name, f"{one['log score']:.3f}", f"{one['coverage']:.3f}", one.get("verdict", "")]
        for name, one in found["models"].items()
    ]
    return {"bikeshare": grid(["model", "log score a row", "coverage of 90% intervals", "verdict"], lines)}


def _series(found: Found) -> dict[str, str]:
    head = ["data", "rows", "gaussian 90%", "conformal 90%", "std, clustered / model", "verdict", "all findings"]
    lines = []
    for name in ("TrumpApproval", "AirlinePassengers"):
        one = found[name]
        low, high = one["std, clustered / model"]
        shares = [f"{one['gaussian']:.3f}", f"{one['conformal']:.3f}", f"{low:.2f} to {high:.2f}"]
        lines.append([name, f"{one['rows']:,}", *shares, one["verdict"], ", ".join(one["findings"])])
    return {"series": grid(head, lines)}


# ---- figures -------------------------------------------------------------------------------------------------


def _figures(result: dict[str, Found], folder: Path) -> None:
    from kalprox.pages.page import Figure, render

    folder.mkdir(exist_ok=True)
    drawings = {}
    if "streams" in result:
        drawings["dependent-rows"] = lambda fig: _draw_intervals(fig, result["streams"][DRAWN])
    if "flights" in result:
        drawings["flights-coverage"] = lambda fig: _draw_windows(fig, result["flights"]["conformal, row by row"])
    for name, draw in drawings.items():
        (folder / f"{name}.svg").write_bytes(render(Figure(name, "", "", {}, draw, size=(6.4, 3.6)), "svg"))


def _draw_intervals(fig: Any, found: Found) -> None:
    """The 95% intervals of one coefficient on 50 streams of dependent rows, by the model and clustered."""
    axes = fig.subplots(1, 2, sharex=True, sharey=True)
    for ax, name, title in zip(axes, ("model", "clustered"), ('coef_cov="model"', 'coef_cov="clustered"'), strict=True):
        intervals = found[f"interval, {name}"]
        missed = [not low <= 0 <= high for low, high in intervals]
        for i, ((low, high), miss) in enumerate(zip(intervals, missed, strict=True)):
            ax.plot([low, high], [i, i], color=LINES[1][0] if miss else FAINT, linewidth=1.6 if miss else 1.2)
        ax.axvline(0, color=INK, linewidth=0.8)
        ax.set_title(f"{title}: {sum(missed)} of {len(missed)} miss", fontsize=9)
        ax.set_xlabel("interval less the true coefficient")
        ax.set_yticks([])
    axes[0].set_ylabel("streams")


def _draw_windows(fig: Any, found: Found) -> None:
    """The coverage of 90% intervals in windows along the year."""
    ax = fig.add_subplot()
    for name, (color, *_) in zip(("gaussian", "conformal"), reversed(LINES[:2]), strict=True):
        windows, share = found[name]["windows"], found[name]["coverage"]
        along = [2 * i + 0.5 for i in range(len(windows))]
        ax.plot(along, windows, label=f"{name}: {share:.3f} of all rows", color=color, linewidth=1.3)
    ax.axhline(0.9, color=INK, linewidth=0.8)
    ax.set_xlabel("flights learned, thousands")
    ax.set_ylabel("coverage of 1,000 flights")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
