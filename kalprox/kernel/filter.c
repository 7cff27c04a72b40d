/* A filter of rows: an estimate and a root of its covariance, which each row moves after it has been predicted.
 *
 * The root L is made of columns, V = L L' in units of the noise variance. For a row x of weight w, v = L'x and the sums
 * a_j = 1/w + v_1^2 + ... + v_j^2, the new column j is
 *
 *     sqrt(a_(j-1) / a_j) l_j  -  v_j / sqrt(a_(j-1) a_j) b,        b = v_1 l_1 + ... + v_(j-1) l_(j-1),
 *
 * so that an upper triangle stays one. The last b is V x, along which the estimate moves by the error over a_r.
 *
 * Reference: N. A. Carlson, "Fast triangular formulation of the square root filter", AIAA Journal 11, 1973.
 */
#include "filter.h"

#include <math.h>

INLINED double product(const double *restrict a, const double *restrict b, int64_t n) {
    double sum = 0;
    VECTORISED(reduction(+ : sum))
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

INLINED void add_multiple(double *restrict to, double factor, const double *restrict a, int64_t n) {
    VECTORISED()
    for (int64_t i = 0; i < n; i++) to[i] += factor * a[i];
}

/* Let the columns of the root learn a row: returns a_r, and leaves V x in `gain`. */
INLINED double move_root(const Filter *f, double weight) {
    double total = 1 / weight, *restrict gain = f->gain;
    for (int64_t i = 0; i < f->inputs; i++) gain[i] = 0;
    for (int64_t j = 0; j < f->columns; j++) {
        double v = f->projected[j], before = total, *restrict column = f->root + j * f->inputs;
        if (v == 0) continue;
        total += v * v;
        double keep = sqrt(before / total), take = v / sqrt(before * total);
        VECTORISED()
        for (int64_t i = 0; i < f->heights[j]; i++) {
            double old = column[i];
            column[i] = keep * old - take * gain[i];
            gain[i] += v * old;
        }
    }
    return total;
}

/* H gain, for the curvature H of the penalty. */
INLINED void bend(const Filter *f) {
    int64_t p = f->inputs;
    for (int64_t i = 0; i < p; i++)
        f->bent[i] = f->full ? product(f->curvature + i * p, f->gain, p) : f->curvature[i] * f->gain[i];
}

/* Predict a row: returns its leverage, and leaves the errors of its targets, and L'x in `projected`. */
INLINED double predict(const Filter *f, const double *x, const double *y, double *errors) {
    double leverage = 0;
    for (int64_t j = 0; j < f->columns; j++) {
        f->projected[j] = product(f->root + j * f->inputs, x, f->heights[j]);
        leverage += f->projected[j] * f->projected[j];
    }
    for (int64_t j = 0; j < f->targets; j++) errors[j] = y[j] - product(f->theta + j * f->inputs, x, f->inputs);
    return leverage;
}

/* Learn the row that was predicted last; returns x'V H V x for V before it. */
INLINED double learn(const Filter *f, double weight, const double *errors) {
    int64_t p = f->inputs;
    double total = move_root(f, weight), bent = 0;
    if (f->curvature) {
        bend(f);
        bent = product(f->gain, f->bent, p);
        *f->trace -= bent / total;
    }
    for (int64_t j = 0; j < f->targets; j++) {
        double *theta = f->theta + j * p, step = errors[j] / total, more = step * errors[j];
        if (f->curvature) {
            double slope = product(f->bent, theta, p); /* of the penalty, along the gain */
            if (f->tilt) slope += product(f->gain, f->tilt + j * p, p);
            more -= step * (2 * slope + step * bent);
        }
        f->rss[j] += more;
        add_multiple(theta, step, f->gain, p);
    }
    return bent;
}

INLINED void learn_rows_inlined(const Filter *f, int64_t rows, const double *X, const double *y, const double *weights,
                                double *errors, double *leverages, double *bends, double *rss, double *traces) {
    int64_t k = f->targets;
    for (int64_t row = 0; row < rows; row++, X += f->inputs, y += k, errors += k, rss += k) {
        for (int64_t j = 0; j < k; j++) rss[j] = f->rss[j];
        traces[row] = *f->trace, bends[row] = 0;
        leverages[row] = predict(f, X, y, errors);
        if (!weights || weights[row] > 0) bends[row] = learn(f, weights ? weights[row] : 1, errors);
    }
}

DISPATCHED(learn_rows,
           (const Filter *f, int64_t rows, const double *X, const double *y, const double *weights, double *errors,
            double *leverages, double *bends, double *rss, double *traces),
           (f, rows, X, y, weights, errors, leverages, bends, rss, traces))

void kalprox_filter_learn(const Filter *f, int64_t rows, const double *X, const double *y, const double *weights,
                          double *errors, double *leverages, double *bends, double *rss, double *traces) {
    learn_rows(f, rows, X, y, weights, errors, leverages, bends, rss, traces);
}

void kalprox_filter_learn_row(const Filter *f) {
    double *found = f->found, *errors = found + 4;
    learn_rows(f, 1, f->row, f->target, found, errors, found + 1, found + 2, errors + f->targets, found + 3);
}
