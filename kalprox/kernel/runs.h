/* See runs.c. The fields are those of `kalprox.kernel.runs.Pointers`. */
#ifndef KALPROX_RUNS_H
#define KALPROX_RUNS_H
#include "kernel.h"

/* What is not learned, and is the same for all rows: see `kalprox.learning.run_lengths`. */
typedef struct {
    double outlier_rows, fewest_outliers, outlier_scale, surprise, farthest, widest, smallest;
} RunConstants;

/* What is given with a row; `outliers` is changed by it. */
typedef struct {
    double y, weight, count, time, hazard, outliers, rows, known, new_dof;
} RunRow;

/* The arrays of a `RunLengths`, whose places of the first kind come first. */
typedef struct {
    int64_t kinds, places, inputs;                    /* places (r) of each kind, m */
    double *theta, *root;                             /* (kinds r, m) and (kinds r, m, m) */
    double *rss, *dof, *size, *start, *time, *weight; /* (kinds r) each */
    double *moments;                                  /* (3) */
    const RunConstants *constants;
    RunRow *row;
    double *u;    /* (m), the inputs of the row */
    double *work; /* (kinds r, 2 m + 5) */
} Runs;

/* Learn the row. */
EXPORTED void kalprox_runs_learn(const Runs *f);
#endif
