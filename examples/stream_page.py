"""
A stream with its page
======================

A process that stays on: ``kalprox stream`` reads one JSON line for each hour of a year of bike rides in Washington,
states how many rides to expect, with an interval, and learns the hour as soon as the count is there. Meanwhile it
serves a page on this machine, where its coefficients, its error and the coverage of its intervals can be watched. Here
a script plays the part of the sensors and of the browser: it sends the hours, month by month, and reads what the page
is told.

The data are those of the Bikeshare rides of 2011 (Fanaee-T and Gama), as in the package ISLP.

Run it: ``pip install "kalprox[files]" matplotlib``
"""

import csv
import gzip
import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import matplotlib.pyplot as plt

FILE = "bikeshare.csv.gz"
beside = Path(sys.argv[0]).with_name(FILE)  # of a script; a notebook looks in its own folder
with gzip.open(beside if beside.exists() else FILE, "rt", newline="") as file:
    hours = list(csv.DictReader(file))
months = [list(rows) for _, rows in itertools.groupby(hours, key=lambda row: row["mnth"])]

# %%
# The command. A stream cannot look at all rows first to find the levels of its columns, so that they are listed. With
# ``--forget 0.999`` an hour counts half after four weeks. ``--watch 0`` picks a free port, and says which.

levels = {
    "hr": "|".join(map(str, range(24))),
    "workingday": "0|1",
    "weathersit": "clear|cloudy/misty|light rain/snow|heavy rain/snow",
}
command = [
    sys.executable,
    "-m",
    "kalprox",
    "stream",
    "--target",
    "bikers",
    "--features",
    "hr,workingday,weathersit,temp",
]
command += [f"--categorical={name}={values}" for name, values in levels.items()]
command += ["--forget", "0.999", "--infer-rows", "1", "--watch", "0"]
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
process = subprocess.Popen(command, text=True, **pipes)
address = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())[0]

# %%
# Hours in, predictions out: a day at a time here, to be done sooner. Two of the hours come without their count, as when
# a sensor is late, and one with a temperature that is no number: none of them stops the process.

hours[100]["temp"], hours[200]["bikers"], hours[201]["bikers"] = "warm", None, None
for rows in months:
    for day in range(0, len(rows), 24):
        for row in rows[day : day + 24]:
            numbers = {name: row[name] and float(row[name]) for name in ("temp", "bikers") if row[name] != "warm"}
            process.stdin.write(json.dumps(row | numbers) + "\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in rows[day : day + 24]]
    time.sleep(1.1)  # the page takes a point every second
    state = json.load(urlopen(f"{address}state.json"))
    last = "{mean:4.0f}, 95% interval {lower:4.0f} to {upper:4.0f}".format(**answers[-1])
    print(f"{rows[0]['mnth']:>5}: {state['rows']:5,} hours, off by {state['error']:5.1f} rides, last prediction {last}")

# %%
# What the page is told is JSON. It is the same for everyone on this machine, and for nobody else.

state = json.load(urlopen(f"{address}state.json"))
process.stdin.close()
summary = process.stderr.read()
process.wait()
print(
    f"{state['learned']:,} hours learned, {state['predicted']} predicted only, {state['bad']} bad: {state['reasons']}"
)
print(f"95% intervals that were issued covered {state['coverage']:.1%}")
print(next(line for line in summary.splitlines() if "learned" in line))

# %%
# Two of the pictures of the page: how the effect of the temperature moved, with its interval, and the error.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
points, temp = state["points"], state["names"].index("temp")
coef, low, high = ([values[temp] for values in points[part]] for part in ("coef", "low", "high"))
fig, (above, below) = plt.subplots(2, 1, figsize=(6.4, 6), layout="constrained", sharex=True)
above.fill_between(points["rows"], low, high, color=BLUE, alpha=0.25, lw=0)
above.plot(points["rows"], coef, "o-", color=BLUE, ms=4)
above.set(ylabel="rides from the coldest\nto the warmest hour", ylim=(0, None), xlabel="hours")
below.plot(points["rows"], points["error"], "s--", color=ORANGE, ms=4)
below.set(xlabel="hours", ylabel="error (rides)", ylim=(0, None))
plt.show()
