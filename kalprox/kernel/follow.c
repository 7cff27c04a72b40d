/* Single rows in a `SquareRootFilter`, and in a bank of them: what `follow` says, in one call.
 *
 * The row is predicted, the rows before it fade, it is learned, and the intercept takes its next step. */
#include "follow.h"

#include <math.h>

#define PI 3.14159265358979323846
#define ROUNDING 1.4901161193847656e-08 /* the root of the smallest difference of two numbers near 1 */
#define MOST 1e70                       /* the largest value, which `kalprox.base.checks` knows too */
#define MANY_DOF 1e7                    /* more degrees of freedom are infinitely many */

static void fade(const Follower *f, double left) {
    const Filter *filter = f->filter;
    kalprox_filter_fade(filter, left);
    for (int64_t i = 0; i < filter->inputs; i++) f->sizes[i] *= left;
    f->counts->rows *= left, f->counts->squares *= left * left, f->counts->width /= left;
}

static void take_input(const Follower *f, const double *x) {
    double *row = f->filter->row;
    int64_t first = f->center != 0;
    if (first) row[0] = 1;
    for (int64_t i = 0; i < f->filter->inputs - first; i++) {
        double value = f->center ? x[i] - f->center[i] : x[i];
        row[i + first] = f->rest ? value - f->rest[i] : value;
    }
}

/* The noise variance of each target, and its degrees of freedom. */
static double noise_of(const Follower *f, double fading, double *variance) {
    const Filter *filter = f->filter;
    double rows = f->counts->rows / fading, dof = rows - (double)filter->columns + *filter->trace;
    int learned = isnan(f->noise), enough = dof > ROUNDING * rows;
    for (int64_t j = 0; j < filter->targets; j++) {
        double rss = filter->rss[j] > 0 ? filter->rss[j] : 0;
        variance[j] = learned ? (enough ? rss / fading / dof : NAN) : f->noise;
    }
    return learned ? dof : INFINITY;
}

static double in_stds(double error, double std) {
    if (std == 0) return error == 0 ? 0 : copysign(INFINITY, error);
    return isfinite(std) ? error / std : NAN;
}

void kalprox_follow(const Follower *f, const double *x, const double *y, const Learns *how, double *found) {
    const Filter *filter = f->filter;
    Counts *counts = f->counts;
    int64_t k = filter->targets;
    double *mean = found, *std = mean + k, *error = std + k, *dof = error + k, *scale = dof + 1;
    double fading = f->sizes && counts->rows ? counts->squares / counts->rows : 1, spread = fading / counts->elapsed;
    double weight = how->weight, rows = how->count, squares = how->count, left = 1;
    *dof = noise_of(f, fading, std);
    if (f->left != 1 && weight > 0) { /* a row that counts n times stands for n rows in turn */
        left = pow(f->left, how->count);
        rows = (1 - left) / (1 - f->left), squares = (1 - left * left) / (1 - f->left * f->left);
        weight = weight == how->count ? rows : weight;
        fade(f, left);
        if (filter->curvature) kalprox_filter_scale_penalty(filter, left); /* the penalty fades too, until the end */
    }
    take_input(f, x);
    if (f->sizes)
        for (int64_t i = 0; i < filter->inputs; i++) f->sizes[i] += weight * (filter->row[i] * filter->row[i]);
    for (int64_t j = 0; j < k; j++) filter->target[j] = (y[j] - f->offset[j]) - f->offset_rest[j];
    filter->found[0] = weight;
    kalprox_filter_learn_row(filter);
    double bent = weight > 0 || spread == 1 ? filter->found[2] : kalprox_filter_bent(filter);
    if (left != 1 && filter->curvature) {
        kalprox_filter_scale_penalty(filter, 1 / left);
        kalprox_filter_keep_penalty(filter, left);
    }
    double s = left * (spread * filter->found[1] + (1 - spread) * bent) + how->own;
    counts->rows += rows, counts->squares += squares, counts->elapsed = weight > 0 ? 1 : counts->elapsed;
    if (f->walk && weight > 0) kalprox_filter_walk(filter, f->walk);
    *scale = sqrt(s);
    for (int64_t j = 0; j < k; j++) {
        double missed = filter->found[4 + j];
        std[j] = sqrt(std[j] * s), mean[j] = y[j] - missed;
        error[j] = in_stds(y[j] - mean[j], std[j]);
    }
}

int64_t kalprox_take_row(const Rows *rows, int64_t place, const Follower *f) {
    const double *x = rows->X + place * rows->inputs, *y = rows->y + place * rows->targets;
    double weight = rows->weights ? rows->weights[place] : 1, squares = 0;
    Learns how = {weight, rows->precise ? 1 : weight, rows->precise ? 1 / weight : 1};
    for (int64_t i = 0; i < rows->inputs; i++) squares += x[i] * x[i];
    for (int64_t j = 0; j < rows->targets; j++) squares += y[j] * y[j];
    if (!(weight <= MOST && (weight > 1 ? weight : 1) * squares < MOST * MOST)) return 1;
    if (f) kalprox_follow(f, x, y, &how, rows->predicted + place * (3 * rows->targets + 2));
    return 0;
}

/* The log density of Student's t distribution with this mean, std and degrees of freedom. */
static double log_density(double y, const double *said) {
    double dof = said[2] < MANY_DOF ? said[2] : MANY_DOF, z = (y - said[0]) / said[1];
    double constant = lgamma((dof + 1) / 2) - lgamma(dof / 2) - 0.5 * log(PI * dof) - log(said[1]);
    return constant - (dof + 1) / 2 * log1p(z * z / dof);
}

/* Multiply the probabilities by the densities, and share a part of each among the members, and among the rates. */
static void move_odds(const FollowedBank *b, double count, double most) {
    int64_t members = b->members, rates = b->rates;
    double left_of_rates = pow(1 - b->rate_of_rates, count), total = 0;
    for (int64_t m = 0; m < rates; m++) {
        double *joint = b->joint + m * members, left = pow(1 - b->rate[m], count), sum = 0;
        for (int64_t k = 0; k < members; k++) sum += joint[k] *= exp(count * (b->log_prob[k] - most));
        for (int64_t k = 0; k < members; k++) joint[k] = left * joint[k] + (1 - left) / (double)members * sum;
    }
    for (int64_t k = 0; k < members; k++) {
        double sum = 0;
        for (int64_t m = 0; m < rates; m++) sum += b->joint[m * members + k];
        for (int64_t m = 0; m < rates; m++) {
            double *joint = b->joint + m * members + k;
            *joint = left_of_rates * *joint + (1 - left_of_rates) / (double)rates * sum;
        }
        total += sum;
    }
    for (int64_t i = 0; i < rates * members; i++) b->joint[i] /= total;
}

int64_t kalprox_bank_follow(const FollowedBank *b, const double *x, const double *y, const Learns *how) {
    double most = -INFINITY;
    int64_t all = 1;
    for (int64_t k = 0; k < b->members; k++) {
        double found[5], *said = b->said + 3 * k;
        kalprox_follow(b->followers[k], x, y, how, found);
        said[0] = found[0], said[1] = found[1], said[2] = found[3];
        b->log_prob[k] = log_density(*y, said);
        all = all && isfinite(b->log_prob[k]);
        most = b->log_prob[k] > most ? b->log_prob[k] : most;
    }
    if (all) move_odds(b, how->count, most);
    return all;
}
