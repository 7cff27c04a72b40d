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

/* H a into `bent`, for the curvature H of the penalty. */
INLINED void bend(const Filter *f, const double *a) {
    int64_t p = f->inputs;
    for (int64_t i = 0; i < p; i++) f->bent[i] = f->full ? product(f->curvature + i * p, a, p) : f->curvature[i] * a[i];
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
        bend(f, f->gain);
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

double kalprox_filter_bent(const Filter *f) {
    if (!f->curvature) return 0;
    for (int64_t i = 0; i < f->inputs; i++) f->gain[i] = 0;
    for (int64_t j = 0; j < f->columns; j++) add_multiple(f->gain, f->projected[j], f->root + j * f->inputs, f->heights[j]);
    bend(f, f->gain);
    return product(f->gain, f->bent, f->inputs);
}

void kalprox_filter_fade(const Filter *f, double left) {
    double stretch = 1 / sqrt(left);
    for (int64_t j = 0; j < f->columns; j++)
        for (int64_t i = 0; i < f->heights[j]; i++) f->root[j * f->inputs + i] *= stretch;
    for (int64_t j = 0; j < f->targets; j++) f->rss[j] *= left;
}

void kalprox_filter_scale_penalty(const Filter *f, double share) {
    for (int64_t i = 0; i < (f->full ? f->inputs * f->inputs : f->inputs); i++) f->curvature[i] *= share;
    for (int64_t i = 0; f->tilt && i < f->inputs * f->targets; i++) f->tilt[i] *= share;
}

/* The root times U^-1, for the Cholesky factor U of I + lost L'H L. */
INLINED void narrow_root(const Filter *f, double lost) {
    int64_t p = f->inputs, r = f->columns;
    for (int64_t j = 0; j < r; j++) {
        double *u = f->work + j * r;
        bend(f, f->root + j * p);
        for (int64_t i = 0; i <= j; i++) u[i] = (i == j) + lost * product(f->root + i * p, f->bent, f->heights[i]);
    }
    for (int64_t j = 0; j < r; j++) {
        double *u = f->work + j * r, *column = f->root + j * p;
        for (int64_t i = 0; i < j; i++) {
            u[i] = (u[i] - product(f->work + i * r, u, i)) / f->work[i + i * r];
            add_multiple(column, -u[i], f->root + i * p, f->heights[i]);
        }
        u[j] = sqrt(u[j] - product(u, u, j));
        for (int64_t i = 0; i < f->heights[j]; i++) column[i] /= u[j];
    }
    *f->trace = 0;
    for (int64_t j = 0; j < r; j++) {
        bend(f, f->root + j * p);
        *f->trace += product(f->root + j * p, f->bent, f->heights[j]);
    }
}

INLINED void keep_penalty_inlined(const Filter *f, double left) {
    int64_t p = f->inputs, r = f->columns, bends = 0;
    double lost = 1 - left, *move = f->gain, *push = f->projected;
    for (int64_t i = 0; i < (f->full ? p * p : p); i++) bends = bends || f->curvature[i];
    if (bends) narrow_root(f, lost);
    for (int64_t k = 0; k < f->targets; k++) {
        double *theta = f->theta + k * p;
        bend(f, theta);
        if (f->tilt) add_multiple(f->bent, 1, f->tilt + k * p, p);
        for (int64_t i = 0; i < p; i++) move[i] = 0;
        for (int64_t j = 0; j < r; j++) {
            push[j] = -lost * product(f->root + j * p, f->bent, f->heights[j]);
            add_multiple(move, push[j], f->root + j * p, f->heights[j]);
        }
        add_multiple(theta, 1, move, p);
        f->rss[k] += product(push, push, r) - 2 * left * product(f->bent, move, p);
        bend(f, move);
        f->rss[k] -= product(f->bent, move, p);
    }
}

DISPATCHED(keep_penalty, (const Filter *f, double left), (f, left))

void kalprox_filter_keep_penalty(const Filter *f, double left) { keep_penalty(f, left); }

/* Add a a' to V, for an upper triangle as the root; a, which is overwritten, is rotated into it from the last entry on. */
INLINED void widen_root(const Filter *f, double *a, int64_t entries) {
    for (int64_t j = entries - 1; j >= 0; j--) {
        double *column = f->root + j * f->inputs, length = sqrt(column[j] * column[j] + a[j] * a[j]);
        if (a[j] == 0) continue;
        double keep = column[j] / length, take = a[j] / length;
        for (int64_t i = 0; i <= j; i++) {
            double old = column[i];
            column[i] = keep * old + take * a[i];
            a[i] = keep * a[i] - take * old;
        }
    }
}

int64_t kalprox_filter_walk(const Filter *f, double variance) {
    int64_t p = f->inputs, triangle = f->columns == p;
    double h = f->curvature ? *f->curvature : 0, *g = f->gain;
    for (int64_t j = 0; j < f->columns; j++) triangle = triangle && f->heights[j] <= j + 1;
    if (h ? !triangle : f->heights[0] > 1) return 0;
    for (int64_t i = 0; i < p; i++) g[i] = i == 0;
    for (int64_t j = 0; h && j < p; j++) add_multiple(g, -h * f->root[j * p], f->root + j * p, f->heights[j]);
    double share = variance / (1 + variance * h * g[0]);
    for (int64_t k = 0; h && k < f->targets; k++) {
        double *theta = f->theta + k * p;
        add_multiple(theta, -share * (h * theta[0] + (f->tilt ? f->tilt[k * p] : 0)), g, p);
    }
    for (int64_t i = 0; i < p; i++) g[i] *= sqrt(share);
    widen_root(f, g, h ? p : 1);
    return 1;
}
