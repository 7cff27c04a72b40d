/* The sums from which verdicts and conformal intervals are read, laid out as one vector of numbers each. */
#ifndef KALPROX_SCORE_H
#define KALPROX_SCORE_H

#include "kernel.h"

enum {
    LEVELS = 3,    /* central intervals whose coverage is counted */
    BINS = 20,     /* of the histogram of the probability integral transform */
    POWERS = 5,    /* of the scores that are summed, from 0 */
    LAGS = 10,     /* rows between two scores whose products are summed */
    SEGMENTS = 16, /* of the stream */
    VALUES = 5,    /* of a row, whose products are summed over a segment: 1, x, x^2, score, v */
    TRACKED = 5    /* levels of conformal intervals */
};

/* The sums of `kalprox.calibration.Calibration`, in the order of its fields. */
typedef struct {
    double rows, undetermined, covered[LEVELS], squares, pit[BINS], log_score, errors, squared_errors, shared;
    double powers[POWERS], recent[2][LAGS], lagged[2][LAGS + 1];
    double segments[SEGMENTS][VALUES][VALUES], origins[SEGMENTS], shares[SEGMENTS], length;
} Scores;

/* The quantiles of `kalprox.learning.quantiles.Quantiles`, in the order of its fields. */
typedef struct {
    double ends[TRACKED][2], rows, missed[TRACKED][2];
} Quantiles;

/* How quantiles move: the share of rows that each side may miss at each level, and the constants of the step. */
typedef struct {
    double sides[TRACKED], slowest, decay, shared, farthest;
} Steps;

/* The numbers of doubles in `Scores` and in `Quantiles`, by which the caller checks its own layout. */
EXPORTED int64_t kalprox_scores_size(void);
EXPORTED int64_t kalprox_quantiles_size(void);

/* Add the predictions of n rows, and what then came, to the sums.
 *
 * `rows` has seven arrays of n numbers, one after the other: the predicted mean, its std, what came, the degrees of
 * freedom, the weight, how many rows were predicted together (NaN for all rows of this call), and room for the normal
 * scores. Where a row is not judged, its weight and its score become 0. `ends` has the BINS - 1 inner ends of the bins
 * of the histogram as normal scores, ascending, and the LEVELS upper ends of the central intervals.
 *
 * Return 0, or the number of rows that can be no rows: a negative or infinite weight, or with a positive weight a
 * negative std or an observation that is not finite. Nothing is added then. */
EXPORTED int64_t kalprox_add_scores(double *sums, double *rows, int64_t n, const double *ends);

/* Move the quantiles by the standardised errors of n rows.
 *
 * `rows` has three arrays of n numbers: the standardised errors, the weights, and the length of the batch that each row
 * came in, 0 for a row for which no interval was issued. Rows of a batch follow each other. */
EXPORTED void kalprox_move_quantiles(double *quantiles, const double *rows, int64_t n, const double *steps);

#endif
