"""Numbers that JSON holds as text are read as in CSV, where their column holds numbers."""

import json

import pytest
from click.testing import CliRunner

from kalprox import KalproxRegressor
from kalprox.cli import main


@pytest.mark.parametrize("command", ["fit", "stream"])
def test_text_in_a_column_of_numbers(command, tmp_path):
    rows = [{"x": i, "y": 2 * i + i % 3} for i in range(30)]
    rows[7]["x"], rows[9]["y"], rows[11]["x"], rows[13]["x"], rows[15]["x"] = " 7 ", "18", "1.1e1", "NA", "$15"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cells = [",".join(str(row[name]) for name in "xy") + "\n" for row in rows]
    (tmp_path / "rows.csv").write_text("x,y\n" + "".join(cells))
    found = {}
    for kind in ("jsonl", "csv"):
        model, bad = tmp_path / f"{kind}.kalprox", tmp_path / f"{kind}.bad"
        how = ["--out", str(model), "--quarantine", str(bad), "--infer-rows", "5", "--quiet"]
        done = CliRunner().invoke(main, [command, str(tmp_path / f"rows.{kind}"), "-y", "y", *how])
        assert done.exit_code == 0, done.output
        rows_refused = [line.split(",")[1:4] for line in bad.read_text().splitlines()[1:]]
        found[kind] = KalproxRegressor.load(model).coef_.tolist(), rows_refused
    assert found["jsonl"] == found["csv"]
    assert found["csv"][1] == [["14", "x", "missing"], ["16", "x", "not a number"]]
