"""Every script of examples/ runs as it stands, prints what its text says, and draws a figure."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parent.parent / "examples"
H200 = Path(__file__).parent.parent / "benchmarks" / "results" / "2026-11-19-h200.json"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))

# What the text of a script says of its output. Sampled numbers come from fixed seeds.
SHOWN = {
    "ab_test.py": [
        r"3695 people, 80% of them with free care",
        r"excludes zero after 775 people: \[0\.03 2\.24\]",
        r"after 3675 people it is \[0\.53 1\.5 \], and the usual interval \[0\.71 1\.32\]",
        r"usual 3[67]\.\d%, anytime [23]\.\d%",  # at most 5% is promised
    ],
    "bandit.py": [
        r"Thompson, width 0\.3 +regret +2\d\d, reward of the last 500 rounds 0\.9\d",
        r"UCB, width 0\.3 +regret +[23]\d\d, .*\nepsilon-greedy, 5% +regret +[4-6]\d\d, .*\nat random +regret +16\d\d",
        r"Thompson, width 0\.3: regret 2\d\d, with rewards 200 rounds late [45]\d\d\n",
        r"1797 decisions, 0 of which wait",
    ],
    "bikeshare_noise.py": [
        r"one noise level +87\.\d% +100\.0% +41\.\d% +15\d and 15\d",  # more than half of the rush hour is lost
        r'noise="inputs" +(89|90)\.\d% +8[89]\.\d% +9[56]\.\d% +1\d and 5\d\d',
        r'noise="inputs": drifting, correlated, unequal spread',
    ],
    "choose_alpha.py": [
        r"chose 78: error 58\.2 on other patients",
        r"the best of all alphas: 58\.1; hardly any penalty, alpha=0\.1: 88\.\d",
        r"mean 0\.9%, at most 3\.\d%",
    ],
    "classes_stream.py": [
        r"after +1 digits .* 4: 0\.1\d\d ± 0\.1\d\d, 5: 0\.1",
        r"after 1794 digits .* 4: 0\.6\d\d ± 0\.1\d\d, 5: 0\.00\d .* 9: 0\.0\d\d ± 0\.01\d",
        r"under-confident: .* Use .*a smaller alpha\. Over 1,793 rows",
        r"\ncalibrated: .* Over 1,796 rows",
        r"alpha=1: log loss 0\.237, .*\nalpha=0\.1: log loss 0\.229, ",
    ],
    "conformal_intervals.py": [
        r"gaussian +2\.8% +5\.8% +56\.6",
        r"conformal +4\.8% +4\.9% +55\.4",
        r"drifting, correlated, unequal spread, heavy tails, skewed",
    ],
    "dask_flights.py": [
        r"327,346 rows of 17 columns: 45 MB\n12 triangles of 2\.9 kB: 35 kB",
        r"largest difference of a coefficient: \de-1\d minutes\n.* standard error: 0\.0%",
        r"at 19 h is 3\.\d times the naive one",
        r"clustered by day: 17\.\d to 23\.\d\n.*as if independent: 19\.3 to 20\.9",
    ],
    "delayed_targets.py": [
        r"4,226 hours, 70% of them without",
        r"complete hours only +1,273 +30% +69\.\d +83\.\d%\n",
        r'missing="impute" +4,224 +100% +71\.\d +84\.\d% +83\.\d% +189 +186\n',
        r'missing="marginalize" +4,224 +100% +70\.\d +84\.\d% +84\.\d% +182 +189\n',
        r"complete .* 0\.49\d ± 0\.025\n.*impute.* 2 wait, .* 0\.28\d ± .*\n.*marginalize.* 0\.4[34]\d ± 0\.026",
    ],
    "dependent_rows.py": [
        r"578 weights of 50 chicks",
        r'correlated: .* only with coef_cov="clustered"',
        r"diet 2 adds +1\.61 +0\.30 +1\.13 +1\.[01]\d\n",
        r"independent: 1\.01 to 2\.21 g a day\n.*by chick: -0\.75 to 3\.97 g a day",
    ],
    "drift_bikeshare.py": [
        r"forget=1\.0: mean log score -5\.4[45]\d\n",
        r"forget=0\.998: mean log score -5\.28\d\n",  # the best of the fixed ways
        r"forget=auto: mean log score -5\.23\d\n",
        r"auto: .*\. The coefficients rest on about [\d,]+ rows",
    ],
    "flights_stream.py": [
        r"as late as it left: 18\.92 minutes\n.*kalprox: 17\.77 minutes\ninside the 95% interval: 94\.8%",
        r"after 327,346 flights\n(.*\n)+ +dep_delay +1\.0210 +0\.0008",
        r"by the week: 87\.8% to 98\.7%",
        r"drifting: .* Over 327,341 rows",
        r"inside on 1 July: 85\.1%",
    ],
    "forgetting.py": [
        r"forget=1\.0: mean error in 2001 2\.63 ppm, growth 1\.34 ppm a year\n +found: drifting, correlated",
        r"forget=0\.99: mean error in 2001 -0\.22 ppm, growth 1\.63 ppm a year\n +found: correlated\n",
        r"with forget=\"auto\"",
    ],
    "gpu_fleet.py": [
        r"173 routes of 256 flights: 50 differ",
        r"LGA-BTV: -8\.\d minutes, std 1\.\d\nEWR-MSN: \+7\.\d minutes",
    ],
    "growth_curve.py": [
        r"final weight +699\.64151 +16\.302298 +699\.64151 +16\.302298",
        r"shape +1\.2792484 +0\.68761936 +1\.2792484 +0\.68761936",
        r" 9 +740 +157 +337 to 1143\n(.*\n)+ +13 +724 +22 +675 to 774",
    ],
    "hospitals_merge.py": [
        r"442\ncoefficients agree with those of all rows to \de-1\d\nstandard errors agree to \de-1\d\ncalibrated",
        r"hospital 4, 113 patients +1\.02, 95% interval +0\.01 to +2\.03",
        r"merged +1\.12, 95% interval +0\.67 to +1\.56\nall rows together +1\.12, 95% interval +0\.67 to +1\.56",
    ],
    "late_flights.py": [
        r"share so far: 0\.5482\nlog loss, kalprox: 0\.5130",
        r"from the batch: 1\.1\d standard errors, 0\.2\d in the median",
        r"yesterday +2\.1\d\d +0\.23\d +0\.026",
        r"correlated: .* the log odds differ 1\.0\d times as much as stated",
        r"farthest from the line: (0\.9|1\.0) percentage points",
    ],
    "michaelis_menten.py": [
        r"converged: True",
        r"Vm +212\.6837 +6\.9471\d* .*\nK +0\.064121\d* +0\.00828\d+ ",
        r"not judged",
    ],
    "network_stream.py": [
        r"linear +error +32\.\d bikes, log score -4\.9\d, 8\d% in 90%",
        r"network +error +2[234]\.\d bikes, log score -4\.[56]\d, 8\d% in 90%",
    ],
    "own_model.py": [
        r"dips at 27\.0 and 44\.8 months",
        r"44\.311089 months, std error 0\.944080; NIST: 44\.311089, 0\.944080",
        r"26\.887614 months, std error 0\.416129; NIST: 26\.887614, 0\.416129",
        r"successive residuals: 0\.18\n.*: 1\.2",
    ],
    "river_pipeline.py": [
        r"after the first 1,000 hours: \{'kalprox': 1\.74, 'River': 2\.34\}",
        r"90% intervals cover 0\.88\d",
        r"temp: 7\.0\d \+- 0\.7\d?",
        r"correlated: .* Over 2,498 rows",
    ],
    "sparse_sensors.py": [
        r"8454 hours, 126 readings each",
        r"as it is: 5\.97 F\n.*no penalty: 4\.51 F\nfrom the 81 .*: 4\.56 F",
        r"five readings, 5\.13 F: temp JFK -0 h, temp LGA -12 h, dewp",
        r"five of 126 readings: 58% .*\n38 of 126 readings: 92%",
        r"correlated: ",
    ],
    "stream_page.py": [
        r"Dec: 8,645 hours, off by  72\.2 rides, last prediction   53, 95% interval  -96 to  201",
        r"8,642 hours learned, 2 predicted only, 1 bad: \[\['temp', 'not a number', 1\]\]\n",
        r"intervals that were issued covered 91\.4%\n8,645 rows: 8,642 rows learned, 0 of them by a late target",
    ],
    "spectroscopy.py": [
        r"area +1\.5543827 +0\.015408051 +NIST +1\.5543827 +0\.015408051\n",
        r"middle +451\.54122 +0\.046800519 +NIST +451\.54122 +0\.046800519\n",
        r"bell curve +noise 0\.0068, middle 451\.54 nm, std error 0\.047\npower +noise 0\.0048, middle 451\.53 nm",
        r"bell curve: observed / fitted is between 0\.\d+ and \d\.?\d*e\+3\d\n",
        r"power: observed / fitted is between 0\.49 and 1\.4\n",
        r"correlation of neighbouring residuals 0\.48\npower: .* 0\.46",
    ],
}

# Runs a script, and then tells of each figure how many colours it has, and of each of its axes the labels.
RUN = """
import runpy, sys
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
plt.show = lambda: None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
for number in plt.get_fignums():
    figure = plt.figure(number)
    figure.canvas.draw()
    colours = len(np.unique(np.asarray(figure.canvas.buffer_rgba()).reshape(-1, 4), axis=0))
    print(f"FIGURE {colours} {figure.get_figwidth():g}")
    for ax in figure.axes:
        print(f"AXES {ax.get_xlabel()!r} {ax.get_ylabel()!r} {[label.get_text() for label in ax.get_yticklabels()]}")
"""

# What the extras of kalprox install, beside numpy and scipy.
EXTRAS = {
    "estimator": {"sklearn"},
    "files": {"sklearn", "pyarrow"},
    "jax": {"jax"},
    "dask": {"sklearn", "pyarrow", "dask", "distributed"},
    "report": {"matplotlib"},
    "river": {"sklearn", "river"},
}


def test_every_script_is_listed():
    assert len(SCRIPTS) >= 12
    assert set(SHOWN) == {path.name for path in SCRIPTS}, "say in SHOWN what each script prints"


@pytest.mark.slow  # `make docs`, which builds the gallery, runs every script too
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_example_prints_what_it_says_and_draws_a_figure(script):
    run = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", RUN, script], capture_output=True, text=True, timeout=1800
    )
    assert run.returncode == 0, run.stderr
    for pattern in SHOWN[script.name]:
        assert re.search(pattern, run.stdout), f"{pattern}\n{run.stdout}"
    figures = re.findall(r"^FIGURE (\d+) (\S+)$", run.stdout, re.MULTILINE)
    assert figures, "no figure"
    for colours, width in figures:
        assert int(colours) > 50, "a figure is blank"
        assert float(width) <= 6.4, "a wider figure is not readable on a phone"
    axes = re.findall(r"^AXES (.*)$", run.stdout, re.MULTILINE)
    assert axes
    for ax in axes:
        assert not re.search(r" '' \[(''(, )?)*\]$", ax), f"no label on the vertical axis: {ax}"
        assert not ax.startswith("''"), f"no label on the horizontal axis: {ax}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_example_says_what_to_install(script):
    tree = ast.parse(script.read_text())
    text = ast.get_docstring(tree)
    title, line, *_ = text.splitlines()
    assert line == "=" * len(title), "a title and its underline come first"
    assert len(title) <= 50
    install = re.search(r"Run it: ``pip install ([^`]+)``", text)
    named = set(re.findall(r'[\w-]+(?=[\s"]|$)', install.group(1)))
    extras = re.search(r"kalprox\[([\w,]+)\]", install.group(1)).group(1).split(",")
    given = {"kalprox", "numpy", "scipy", *named}.union(*(EXTRAS[extra] for extra in extras))
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported - set(sys.stdlib_module_names) <= given


def test_the_fleet_shows_what_was_measured():
    if not H200.exists():
        pytest.skip("the benchmarks are not part of a source distribution")
    measured = [
        (row["filters"], row["d"], row["dtype"], round(row["rows_a_second"] / 1e6), round(row["rms_z"], 3))
        for row in json.loads(H200.read_text())["fleet"]
    ]
    tree = ast.parse((EXAMPLES / "gpu_fleet.py").read_text())
    (shown,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "H200"
    )
    assert shown == measured
