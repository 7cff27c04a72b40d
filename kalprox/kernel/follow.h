/* See follow.c. The fields are those of `kalprox.kernel.followers`. */
#ifndef KALPROX_FOLLOW_H
#define KALPROX_FOLLOW_H
#include "filter.h"

/* What forgetting changes, row by row: see `kalprox.learning.square_root.SquareRootFilter`. */
typedef struct {
    double rows, squares, elapsed, width;
} Counts;

/* A filter, and how the rows of a model become its inputs. */
typedef struct {
    const Filter *filter;               /* all of whose k targets have the same inputs (p) */
    Counts *counts;
    const double *center, *rest;        /* (p - 1), subtracted from x; null without an intercept, and where all is 0 */
    const double *offset, *offset_rest; /* (k), subtracted from y */
    double *sizes;                      /* (p); null without forgetting */
    double left;                        /* what a row leaves of those before it */
    double walk;                        /* the variance of the step of the intercept after a row */
    double noise;                       /* the noise variance; NaN if it is learned */
} Follower;

/* How a row is learned: `own` is the variance of its noise, in units of the noise variance. */
typedef struct {
    double weight, count, own;
} Learns;

/* Predict a row x (p, or p - 1 with an intercept) with targets y (k), then learn it, unless its weight is 0.
 *
 * `found` is the mean (k), the std (k) and the error (k) in stds of the prediction, its degrees of freedom, and its std
 * in units of that of the noise. */
EXPORTED void kalprox_follow(const Follower *f, const double *x, const double *y, const Learns *how, double *found);

/* Rows that are held until they are folded together: see `kalprox.learning.row_buffer.RowBuffer`. */
typedef struct {
    int64_t inputs, targets, precise;     /* d and k, and whether a weight is a precision */
    const double *X, *y, *weights;        /* (n, d), (n, k) and (n); null if all weights are 1 */
    double *predicted;                    /* (n, 3 k + 2), each row as `kalprox_follow` fills it in */
} Rows;

/* Predict and learn a row that has been written, if there is what follows it. Returns 1, and learns nothing, if it is
 * not finite or too large. */
EXPORTED int64_t kalprox_take_row(const Rows *rows, int64_t place, const Follower *f);

/* Filters of one target that learn the same rows, and the probability of each; see `Odds` of bank_weights.py. */
typedef struct {
    int64_t members, rates;
    const Follower *const *followers; /* (members) */
    const double *rate;               /* (rates) */
    double rate_of_rates;
    double *joint;    /* (rates, members) */
    double *said;     /* (members, 3): of the last row, the mean, the std and the degrees of freedom */
    double *log_prob; /* (members): of the last row; not finite where a member says nothing */
} FollowedBank;

/* Let all filters learn a row, and move the probabilities by what they had predicted. Returns 0, and leaves the
 * probabilities, where a member says nothing. */
EXPORTED int64_t kalprox_bank_follow(const FollowedBank *b, const double *x, const double *y, const Learns *how);
#endif
