/* The posterior of the row at which the current run began: what `RunLengths.learn` says, for one row in place.
 *
 * Places of weight 0 are free: they are neither read nor moved.
 */
#include "runs.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

/* What is known of a run before it learns the row. */
typedef struct {
    double error, leverage, variance, log_density, good;
} Judged;

INLINED double larger(double a, double b) { return a > b ? a : b; }

INLINED double smaller(double a, double b) { return a < b ? a : b; }

static int64_t place_of(const double *values, int64_t first, int64_t n, int most) {
    int64_t found = first;
    for (int64_t k = first + 1; k < first + n; k++)
        if (most ? values[k] > values[found] : values[k] < values[found]) found = k;
    return found;
}

/* How far the variance of coefficient j may grow from that of a run: the most, relative to what it is. */
static double room(const Runs *f, const double *root, int64_t j) {
    double variance = 0;
    for (int64_t i = 0; i < f->inputs; i++) variance += root[i * f->inputs + j] * root[i * f->inputs + j];
    return f->constants->widest / larger(variance, 1 / f->constants->widest);
}

/* A run of each kind begins in a free place, from what the most probable one knows. */
static void begin(const Runs *f, int64_t lead) {
    const RunRow *row = f->row;
    int64_t m = f->inputs, all = f->kinds * f->places;
    const double *root = f->root + lead * m * m;
    double size = f->size[lead], level = larger(smaller(room(f, root, 0), size), 1);
    for (int64_t k = 0; k < all; k++) f->weight[k] *= 1 - row->hazard;
    for (int64_t kind = 0; kind < f->kinds; kind++) {
        int64_t new = place_of(f->weight, kind * f->places, f->places, 0);
        double *moved = f->root + new * m * m;
        memcpy(f->theta + new * m, f->theta + lead * m, (size_t)m * sizeof(double));
        for (int64_t j = 0; j < m; j++) {
            double widen = kind ? 1 : larger(smaller(room(f, root, j), size / (double)m), 1);
            widen = sqrt(j ? widen : level);
            for (int64_t i = 0; i < m; i++) moved[i * m + j] = root[i * m + j] * widen;
        }
        f->start[new] = row->rows, f->time[new] = row->time;
        f->weight[new] = row->hazard / (double)f->kinds;
        f->rss[new] = f->rss[lead] / f->dof[lead] * row->new_dof, f->dof[new] = row->new_dof;
        f->size[new] = kind ? size : smaller(size, (double)m);
    }
}

/* What run k had predicted; leaves root u in v, and root'v in gain. */
INLINED void judge(const Runs *f, int64_t k, double *restrict v, double *restrict gain, Judged *judged) {
    int64_t m = f->inputs;
    const RunRow *row = f->row;
    const double *root = f->root + k * m * m, *theta = f->theta + k * m;
    double leverage = 0, error = row->y;
    for (int64_t j = 0; j < m; j++) gain[j] = 0;
    for (int64_t i = 0; i < m; i++, root += m) {
        double sum = 0;
        VECTORISED(reduction(+ : sum))
        for (int64_t j = 0; j < m; j++) sum += root[j] * f->u[j];
        VECTORISED()
        for (int64_t j = 0; j < m; j++) gain[j] += sum * root[j];
        v[i] = sum, leverage += sum * sum;
        error -= theta[i] * f->u[i];
    }
    double s = 1 + row->weight * leverage, after = f->dof[k] + row->count, rss = f->rss[k];
    double spread = log(s) + after * log(rss + error * error * (row->weight / s)) - f->dof[k] * log(rss);
    double log_density = lgamma(after / 2) - lgamma(f->dof[k] / 2) - 0.5 * spread;
    *judged = (Judged){error, leverage, s, log_density, 1};
}

static double power_of(const Runs *f) {
    double n = f->moments[0], second = f->moments[1], fourth = f->moments[2];
    if (f->row->new_dof > 1) return 1;
    double kurtosis = second > 0 ? n * fourth / (second * second) : 3;
    return kurtosis < 3 + sqrt(24 / n) ? 1 : 2 / (kurtosis - 1);
}

/* Count the squared error of the most probable run, in units of its variance. */
static void count_error(const Runs *f, double squared) {
    if (!(squared <= f->constants->farthest)) return;
    f->moments[0] += 1, f->moments[1] += squared, f->moments[2] += squared * squared;
}

static double log_of_sum(double a, double b) {
    double most = larger(a, b);
    return most + log1p(exp(-fabs(a - b)));
}

/* Weigh every run by how probable it is that the row is an outlier, and learn how many rows are. */
static void allow_outliers(const Runs *f, int64_t lead, Judged *judged) {
    const RunConstants *constants = f->constants;
    RunRow *row = f->row;
    double scale = constants->outlier_scale * sqrt(f->rss[lead] / f->dof[lead] * row->count / row->weight);
    double error = judged[lead].error, far = error / scale;
    double cauchy = log(scale * (1 + far * far) * sqrt(PI * row->weight / row->count));
    double outlier = log(row->outliers) - row->count * cauchy, other = log1p(-row->outliers);
    for (int64_t k = 0; k < f->kinds * f->places; k++) {
        if (f->weight[k] == 0) continue;
        double either = log_of_sum(judged[k].log_density + other, outlier);
        judged[k].good = exp(judged[k].log_density + other - either);
        judged[k].log_density = either;
    }
    count_error(f, row->weight * error * error * f->dof[lead] / (judged[lead].variance * f->rss[lead]));
    double share = (1 - judged[lead].good - row->outliers) / (constants->outlier_rows + row->rows);
    row->outliers = larger(row->outliers + share, constants->fewest_outliers);
}

/* Let a run of few rows explain a row that surprises it by its coefficients, not by its noise. */
static void widen(const Runs *f, int64_t k, double *v, double *gain, Judged *judged) {
    int64_t m = f->inputs;
    double squared = judged->error * judged->error;
    double far = f->row->weight * squared * f->dof[k] / (judged->variance * f->rss[k]);
    if (k >= f->places || !(f->row->rows - f->start[k] < (double)m) || !(far > f->constants->surprise)) return;
    double factor = far / f->constants->surprise, stretch = sqrt(factor), *root = f->root + k * m * m;
    for (int64_t i = 0; i < m * m; i++) root[i] *= stretch;
    for (int64_t i = 0; i < m; i++) v[i] *= stretch, gain[i] *= factor;
    judged->leverage *= factor;
}

/* Run k learns the row. */
INLINED void learn(const Runs *f, int64_t k, const double *v, const double *restrict gain, const Judged *judged) {
    int64_t m = f->inputs;
    double weight = f->row->weight * judged->good, counted = f->row->count * judged->good;
    double s = 1 + weight * judged->leverage, step = weight / s, *restrict root = f->root + k * m * m;
    double potter = step / (1 + 1 / sqrt(s)), squared = judged->error * judged->error;
    for (int64_t j = 0; j < m; j++) f->theta[k * m + j] += gain[j] * (step * judged->error);
    for (int64_t i = 0; i < m; i++, root += m) {
        double moved = v[i] * potter;
        VECTORISED()
        for (int64_t j = 0; j < m; j++) root[j] -= moved * gain[j];
    }
    f->dof[k] += counted, f->size[k] += counted;
    f->rss[k] = larger(f->rss[k] + squared * step, f->dof[k] * f->constants->smallest);
}

/* Multiply the weights by the densities, to this power. */
static void weigh(const Runs *f, const Judged *judged, double power) {
    int64_t all = f->kinds * f->places;
    double most = -INFINITY, total = 0;
    for (int64_t k = 0; k < all; k++)
        if (f->weight[k] > 0) most = larger(most, judged[k].log_density * power);
    for (int64_t k = 0; k < all; k++)
        if (f->weight[k] > 0) total += f->weight[k] *= exp(judged[k].log_density * power - most);
    for (int64_t k = 0; k < all; k++) f->weight[k] /= total;
}

/* Of a kind without a free place, give up the run whose weight is lost the least by moving to the next one. */
static void make_room(const Runs *f, int64_t first) {
    double *start = f->start, *weight = f->weight, rows = f->row->rows + 1, known = f->row->known, least = 0;
    int64_t given_up = -1, heir = -1;
    for (int64_t k = first; k < first + f->places; k++)
        if (weight[k] == 0) return;
    for (int64_t k = first; k < first + f->places; k++) {
        int64_t next = -1; /* the run that began next, or the next one of those that began together */
        for (int64_t other = first; other < first + f->places; other++) {
            int later = start[other] > start[k] || (start[other] == start[k] && other > k);
            if (later && (next < 0 || start[other] < start[next])) next = other;
        }
        if (next < 0) continue;
        double loss = weight[k] * (start[next] - start[k]) / (rows - start[k]);
        if (start[k] <= known && start[next] > known) loss = INFINITY;
        if (given_up >= 0 && (loss > least || (loss == least && start[k] > start[given_up]))) continue;
        least = loss, given_up = k, heir = next;
    }
    weight[heir] += weight[given_up];
    weight[given_up] = 0;
}

INLINED void learn_row_inlined(const Runs *f) {
    int64_t m = f->inputs, all = f->kinds * f->places, lead = place_of(f->weight, 0, all, 1);
    double *v = f->work, *gain = v + all * m;
    Judged *judged = (Judged *)(gain + all * m);
    begin(f, lead);
    for (int64_t k = 0; k < all; k++)
        if (f->weight[k] > 0) judge(f, k, v + k * m, gain + k * m, judged + k);
    double power = 1;
    if (f->row->outliers > 0) {
        power = power_of(f);
        allow_outliers(f, lead, judged);
    }
    for (int64_t k = 0; k < all; k++) {
        if (f->weight[k] == 0) continue;
        if (f->row->outliers > 0) widen(f, k, v + k * m, gain + k * m, judged + k);
        learn(f, k, v + k * m, gain + k * m, judged + k);
    }
    weigh(f, judged, power);
    for (int64_t kind = 0; kind < f->kinds; kind++) make_room(f, kind * f->places);
}

DISPATCHED(learn_row, (const Runs *f), (f))

void kalprox_runs_learn(const Runs *f) { learn_row(f); }
