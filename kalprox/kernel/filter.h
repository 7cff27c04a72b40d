/* See filter.c. The fields are those of `kalprox.kernel.filter.Pointers`. */
#ifndef KALPROX_FILTER_H
#define KALPROX_FILTER_H
#include "kernel.h"

typedef struct {
    int64_t inputs, columns, targets; /* p, r and k */
    int64_t full;                     /* whether the curvature is a matrix */
    double *root;                     /* (p, r), by columns */
    const int64_t *heights;           /* (r), not falling: how many entries at the top of each column may not be 0 */
    double *theta;                    /* (p, k), by columns */
    double *curvature;                /* (p) or (p, p), of the penalty; null without one */
    double *tilt;                     /* (p, k), by columns: the slope of the penalty at theta = 0; null if it is 0 */
    double *rss, *trace;              /* (k) and (1): the residual sums of squares without the penalty, and tr(V H) */
    double *projected, *gain, *bent;  /* (r), (p), (p): working memory */
    double *row, *target, *found;     /* (p), (k) and (k + k + 4): of one row, see `kalprox_filter_learn_row` */
    double *work;                     /* (r, r): working memory; null without a curvature */
} Filter;

/* Learn rows X (rows, p) with targets y (rows, k), less what is not estimated, and weights (null if all are 1).
 *
 * For each row, as it is before it is learned: the error (k) of its prediction, its leverage x'V x, x'V H V x, and the
 * rss (k) and the trace of the filter. A row of weight 0 is not learned. */
EXPORTED void kalprox_filter_learn(const Filter *f, int64_t rows, const double *X, const double *y, const double *weights,
                                   double *errors, double *leverages, double *bends, double *rss, double *traces);

/* Learn `row` with `target`, to which the first number of `found` is the weight; it is followed by its leverage, its
 * x'V H V x and the trace, and by its errors and the rss. */
EXPORTED void kalprox_filter_learn_row(const Filter *f);

/* x'V H V x for the row x that was predicted last, and not learned. */
double kalprox_filter_bent(const Filter *f);

/* Multiply the weights of all rows so far by a number. The penalty stays as it is if it is restored afterwards. */
EXPORTED void kalprox_filter_fade(const Filter *f, double left);

/* Let the first coordinate take a step of this variance; see `Filter.walk`. Returns 0, and does nothing, unless the root
 * is an upper triangle, or its first column has but one entry and there is no penalty on the first coordinate. */
EXPORTED int64_t kalprox_filter_walk(const Filter *f, double variance);

/* Multiply the penalty by a number. */
EXPORTED void kalprox_filter_scale_penalty(const Filter *f, double share);

/* Restore the penalty, which faded with the rows to this share of it; see `Filter.keep_penalty`. */
EXPORTED void kalprox_filter_keep_penalty(const Filter *f, double left);
#endif
