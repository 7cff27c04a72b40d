/* Scores of predictions. The plain reference is NumPy's: kalprox/calibration/blocks.py, kalprox/calibration/sequence.py,
 * kalprox/predictive/student.py and kalprox/learning/quantiles.py; tests/units/kernel hold the two equal. */
#include "score.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define CHUNK 256                                /* rows at a time, whose numbers stay in the first cache */
#define BOUND 4.0                                /* of the absolute score, in the order of the stream */
#define LARGEST 30.0                             /* of the absolute score whose powers are summed */
#define FARTHEST 1.157920892373162e+77          /* of an error in stds: its fourth power is finite */
#define MOST 4.4765466227572707e+61              /* of a prediction in a segment: its fifth power is finite */
#define USUAL 0.79788456080286535588             /* sqrt(2 / pi), the mean of the absolute score */
#define LOG_2 0.69314718055994530942
#define LOG_ROOT_2PI 0.91893853320467274178
#define ROOT_2PI 2.50662827463100050242
#define MANY 200.0                               /* degrees of freedom from which expansions are used */
#define NORMAL 1e100                             /* those that are as many as infinitely many */
#define ENOUGH 40.0                              /* those from which the series of the density's constant is exact */

/* ---- the normal score and the log density of Student's t ---------------------------------------------------------- */

INLINED double clipped(double value, double bound) { return value < -bound ? -bound : value > bound ? bound : value; }

/* 2 atanh(s) for |s| < 0.18, by its series. */
INLINED double twice_atanh(double s) {
    double r = s * s, sum = 1.0 / 21;
    sum = sum * r + 1.0 / 19, sum = sum * r + 1.0 / 17, sum = sum * r + 1.0 / 15, sum = sum * r + 1.0 / 13;
    sum = sum * r + 1.0 / 11, sum = sum * r + 1.0 / 9, sum = sum * r + 1.0 / 7, sum = sum * r + 1.0 / 5;
    sum = sum * r + 1.0 / 3, sum = sum * r + 1.0;
    return 2 * s * sum;
}

/* log(x) for positive x that are neither infinite nor subnormal, written so that compilers can vectorise it.
 *
 * x = 2^k m with m between sqrt(1/2) and sqrt(2), both of which are read from its bits. */
INLINED double log_positive(double x) {
    const uint64_t one = 0x3ff0000000000000u, root_half = 0x3fe6a09e667f3bcdu, two_to_52 = 0x4330000000000000u;
    uint64_t bits, exponent, number;
    double m, k;
    memcpy(&bits, &x, sizeof bits);
    exponent = (bits + (one - root_half)) >> 52; /* k + 1023 */
    bits -= (exponent << 52) - one;
    number = exponent | two_to_52; /* as a double, this is 2^52 + exponent */
    memcpy(&m, &bits, sizeof m);
    memcpy(&k, &number, sizeof k);
    return (k - (4503599627370496.0 + 1023)) * LOG_2 + twice_atanh((m - 1) / (m + 1));
}

/* log(1 + q) for q >= 0. */
INLINED double log_one_more(double q) {
    double near = q < 0.4 ? q : 0.4;
    return q < 0.4 ? twice_atanh(near / (2 + near)) : log_positive(1 + q);
}

/* log Gamma((nu + 1) / 2) - log Gamma(nu / 2) - log(nu / 2) / 2 for nu >= ENOUGH, by r = 1 / nu. */
INLINED double density_constant(double r) {
    double q = r * r;
    return r * (((((-31.0 / 36) * q + 17.0 / 112) * q - 1.0 / 20) * q + 1.0 / 24) * q - 1.0 / 4);
}

static double polynomial(double x, const double *coefficients, int count) {
    double value = coefficients[0];
    for (int i = 1; i < count; i++) value = value * x + coefficients[i];
    return value;
}

/* The quantile of the normal distribution for 0 < p <= 1/2: the rational approximations of Cephes (S. L. Moshier). */
static double normal_quantile(double p) {
    static const double middle[2][9] = {
        {-5.99633501014107895267e1, 9.80010754185999661536e1, -5.66762857469070293439e1, 1.39312609387279679503e1,
         -1.23916583867381258016e0},
        {1.0, 1.95448858338141759834e0, 4.67627912898881538453e0, 8.63602421390890590575e1, -2.25462687854119370527e2,
         2.00260212380060660359e2, -8.20372256168333339912e1, 1.59056225126211695515e1, -1.18331621121330003142e0}};
    static const double tail[2][9] = {
        {4.05544892305962419923e0, 3.15251094599893866154e1, 5.71628192246421288162e1, 4.40805073893200834700e1,
         1.46849561928858024014e1, 2.18663306850790267539e0, -1.40256079171354495875e-1, -3.50424626827848203418e-2,
         -8.57456785154685413611e-4},
        {1.0, 1.57799883256466749731e1, 4.53907635128879210584e1, 4.13172038254672030440e1, 1.50425385692907503408e1,
         2.50464946208309415979e0, -1.42182922854787788574e-1, -3.80806407691578277194e-2, -9.33259480895457427372e-4}};
    static const double far[2][9] = {
        {3.23774891776946035970e0, 6.91522889068984211695e0, 3.93881025292474443415e0, 1.33303460815807542389e0,
         2.01485389549179081538e-1, 1.23716634817820021358e-2, 3.01581553508235416007e-4, 2.65806974686737550832e-6,
         6.23974539184983293730e-9},
        {1.0, 6.02427039364742014255e0, 3.67983563856160859403e0, 1.37702099489081330271e0, 2.16236993594496635890e-1,
         1.34204006088543189037e-2, 3.28014464682127739104e-4, 2.89247864745380683936e-6, 6.79019408009981274425e-9}};
    if (p > 0.13533528323661269189) { /* exp(-2) */
        double w = p - 0.5, q = w * w;
        return (w + w * (q * polynomial(q, middle[0], 5) / polynomial(q, middle[1], 9))) * ROOT_2PI;
    }
    double x = sqrt(-2 * log(p)), z = 1 / x;
    const double(*of)[9] = x < 8 ? tail : far;
    return z * polynomial(z, of[0], 9) / polynomial(z, of[1], 9) - (x - log(x) / x);
}

/* The continued fraction of the regularised incomplete beta function I_x(a, b), by Lentz's method; it is multiplied by
 * x^a (1 - x)^b / (a B(a, b)). It converges fast for x < (a + 1) / (a + b + 2). */
static double beta_fraction(double a, double b, double x) {
    double c = 1, d = 1 / (1 - (a + b) * x / (a + 1)), value = d;
    for (int m = 1; m < 1000; m++) {
        double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 / (1 + even * d), c = 1 + even / c, value *= d * c;
        d = 1 / (1 + odd * d), c = 1 + odd / c, value *= d * c;
        if (fabs(d * c - 1) < 1e-16) break;
    }
    return value;
}

/* The score and the log density for fewer than MANY degrees of freedom, by the incomplete beta function. */
static void score_of_few(double z, double nu, double *score, double *log_density) {
    double square = z * z, more = log1p(square / nu), product = 1, from = nu;
    for (; from < ENOUGH; from += 2) product *= from / (from + 1);
    double constant = density_constant(1 / from) + log(product * sqrt(from / nu));
    double a = nu / 2, x = nu / (nu + square), rest = square / (nu + square);
    /* x^a (1 - x)^(1/2) / B(a, 1/2), whose B is given by the constant */
    double front = exp(constant - a * more) * sqrt(nu) / ROOT_2PI * sqrt(rest), tail;
    if (x < (a + 1) / (a + 2.5))
        tail = front / a * beta_fraction(a, 0.5, x) / 2;
    else
        tail = 0.5 - front * beta_fraction(0.5, a, rest);
    tail = tail > DBL_MIN ? tail : DBL_MIN;
    *score = z == 0 ? 0 : copysign(normal_quantile(tail), z);
    *log_density = more * (-(nu + 1) / 2) + constant - LOG_ROOT_2PI;
}

/* ---- the sums ----------------------------------------------------------------------------------------------------- */

/* Judged rows, side by side: what was predicted, what came, and the scores. `series` are the scores and their sizes in
 * the order of the stream, after those of the rows before. */
typedef struct {
    double mean[CHUNK], std[CHUNK], y[CHUNK], dof[CHUNK], weight[CHUNK], pairs[CHUNK], z[CHUNK], score[CHUNK];
    double log_density[CHUNK], bin[CHUNK], series[2][LAGS + CHUNK];
} Chunk;

/* Fill in the errors in stds, the scores and the log densities. */
INLINED void score_chunk(Chunk *c, int n) {
    double *restrict score = c->score, *restrict density = c->log_density, few = 0;
    VECTORISED(reduction(+ : few))
    for (int i = 0; i < n; i++) {
        double std = c->std[i] > DBL_MIN ? c->std[i] : DBL_MIN, nu = c->dof[i] < NORMAL ? c->dof[i] : NORMAL;
        double z = clipped((c->y[i] - c->mean[i]) / std, FARTHEST), square = z * z, log = log_one_more(square / nu);
        /* Hill's expansion of the score, and the density by its constant; normal where dof is infinite */
        double a = nu - 0.5, b = 48 * a * a, t = a * log;
        double hill = (((-0.4 * t - 3.3) * t - 24) * t - 85.5) / (0.8 * t * t + 100 + b) + t + 3;
        double value = log * (-(nu + 1) / 2) + density_constant(1 / nu);
        int normal = c->dof[i] >= NORMAL;
        c->z[i] = z;
        score[i] = normal ? z : copysign((hill / b + 1) * sqrt(t), z);
        density[i] = (normal ? -square / 2 : value) - LOG_ROOT_2PI;
        few += c->dof[i] < MANY ? 1 : 0;
    }
    for (int i = 0; few > 0 && i < n; i++)
        if (c->dof[i] < MANY) score_of_few(c->z[i], c->dof[i], score + i, density + i);
    VECTORISED()
    for (int i = 0; i < n; i++) density[i] -= log_positive(c->std[i] > DBL_MIN ? c->std[i] : DBL_MIN);
}

/* Add what does not depend on the order of the rows. */
INLINED void add_totals(Scores *s, Chunk *c, int n, const double *ends) {
    const double *restrict u = c->score, *restrict w = c->weight, *reach = ends + BINS - 1;
    double rows = 0, squares = 0, density = 0, errors = 0, squared_errors = 0, shared = 0, p1 = 0, p2 = 0, p3 = 0, p4 = 0;
    VECTORISED(reduction(+ : rows, squares, density, errors, squared_errors, shared, p1, p2, p3, p4))
    for (int i = 0; i < n; i++) {
        double error = c->y[i] - c->mean[i], h = clipped(u[i], LARGEST), square = h * h;
        rows += w[i], squares += u[i] * u[i] * w[i], density += c->log_density[i] * w[i];
        errors += error * w[i], squared_errors += error * error * w[i], shared += c->pairs[i] * w[i];
        p1 += h * w[i], p2 += square * w[i], p3 += square * h * w[i], p4 += square * square * w[i];
    }
    s->rows += rows, s->squares += squares, s->log_score += density, s->shared += shared;
    s->errors += errors, s->squared_errors += squared_errors;
    s->powers[0] += rows, s->powers[1] += p1, s->powers[2] += p2, s->powers[3] += p3, s->powers[4] += p4;
    for (int k = 0; k < LEVELS; k++) {
        double covered = 0;
        VECTORISED(reduction(+ : covered))
        for (int i = 0; i < n; i++) covered += fabs(u[i]) <= reach[k] ? w[i] : 0;
        s->covered[k] += covered;
    }
    VECTORISED()
    for (int i = 0; i < n; i++) {
        double bin = 0;
        for (int k = 0; k < BINS - 1; k++) bin += u[i] >= ends[k] ? 1 : 0;
        c->bin[i] = bin;
    }
    for (int i = 0; i < n; i++) s->pit[(int)c->bin[i]] += w[i];
}

/* Add the products of scores up to LAGS rows apart, and leave the scores of the chunk, which are bounded, in `series`. */
INLINED void add_lagged(Scores *s, Chunk *c, int n) {
    for (int k = 0; k < 2; k++) memcpy(c->series[k], s->recent[k], sizeof s->recent[k]);
    VECTORISED()
    for (int i = 0; i < n; i++) {
        double score = clipped(c->score[i], BOUND);
        c->series[0][LAGS + i] = score, c->series[1][LAGS + i] = fabs(score) - USUAL;
    }
    for (int k = 0; k < 2; k++) {
        const double *now = c->series[k] + LAGS;
        for (int lag = 0; lag <= LAGS; lag++) {
            double sum = 0;
            VECTORISED(reduction(+ : sum))
            for (int i = 0; i < n; i++) sum += now[i] * now[i - lag];
            s->lagged[k][lag] += sum;
        }
        memcpy(s->recent[k], c->series[k] + n, sizeof s->recent[k]);
    }
}

/* Write the sums over a segment for predictions that are less an origin by h more: x becomes x + h, and x^2 with it. */
static void shift_segment(double sums[VALUES][VALUES], double h) {
    for (int j = 0; j < VALUES; j++) sums[2][j] += 2 * h * sums[1][j] + h * h * sums[0][j], sums[1][j] += h * sums[0][j];
    for (int i = 0; i < VALUES; i++) sums[i][2] += 2 * h * sums[i][1] + h * h * sums[i][0], sums[i][1] += h * sums[i][0];
}

/* Join neighbouring segments, all of which are full; the length doubles. */
static void join_segments(Scores *s) {
    for (int i = 0; i < SEGMENTS / 2; i++) {
        double(*one)[VALUES] = s->segments[2 * i], (*two)[VALUES] = s->segments[2 * i + 1];
        shift_segment(two, clipped(s->origins[2 * i + 1] - s->origins[2 * i], MOST));
        for (int j = 0; j < VALUES; j++)
            for (int k = 0; k < VALUES; k++) s->segments[i][j][k] = one[j][k] + two[j][k];
        s->origins[i] = s->origins[2 * i];
        s->shares[i] = s->shares[2 * i] + s->shares[2 * i + 1];
    }
    memset(s->segments[SEGMENTS / 2], 0, sizeof s->segments / 2);
    memset(s->origins + SEGMENTS / 2, 0, sizeof s->origins / 2);
    memset(s->shares + SEGMENTS / 2, 0, sizeof s->shares / 2);
    s->length *= 2;
}

/* Add rows from `start` to `stop` of the chunk to one segment. */
INLINED void add_to_segment(Scores *s, int current, const Chunk *c, int start, int stop) {
    double(*sums)[VALUES] = s->segments[current];
    if (sums[0][0] == 0) s->origins[current] = c->mean[start];
    double origin = s->origins[current], shared = 0;
    double x1 = 0, x2 = 0, x3 = 0, x4 = 0, s1 = 0, v1 = 0, xs = 0, xv = 0, qs = 0, qv = 0, ss = 0, sv = 0, vv = 0;
    VECTORISED(reduction(+ : x1, x2, x3, x4, s1, v1, xs, xv, qs, qv, ss, sv, vv, shared))
    for (int i = start; i < stop; i++) {
        double x = clipped(c->mean[i] - origin, MOST), q = x * x;
        double u = c->series[0][LAGS + i], v = c->series[1][LAGS + i];
        x1 += x, x2 += q, x3 += q * x, x4 += q * q, s1 += u, v1 += v, xs += x * u, xv += x * v, qs += q * u, qv += q * v;
        ss += u * u, sv += u * v, vv += v * v, shared += c->pairs[i];
    }
    const double more[VALUES][VALUES] = {{stop - start, x1, x2, s1, v1},
                                         {x1, x2, x3, xs, xv},
                                         {x2, x3, x4, qs, qv},
                                         {s1, xs, qs, ss, sv},
                                         {v1, xv, qv, sv, vv}};
    for (int j = 0; j < VALUES; j++)
        for (int k = 0; k < VALUES; k++) sums[j][k] += more[j][k];
    s->shares[current] += shared;
}

INLINED void add_chunk_inlined(Scores *s, Chunk *c, int n, const double *ends) {
    score_chunk(c, n);
    add_totals(s, c, n, ends);
    add_lagged(s, c, n);
    for (int start = 0, current = 0; start < n;) {
        while (current < SEGMENTS && s->segments[current][0][0] >= s->length) current++;
        if (current == SEGMENTS) {
            join_segments(s);
            current = SEGMENTS / 2;
        }
        double room = s->length - s->segments[current][0][0];
        int stop = n - start > room ? start + (int)room : n;
        add_to_segment(s, current, c, start, stop);
        start = stop;
    }
}

DISPATCHED(add_chunk, (Scores * s, Chunk *c, int n, const double *ends), (s, c, n, ends))

int64_t kalprox_scores_size(void) { return sizeof(Scores) / sizeof(double); }

int64_t kalprox_quantiles_size(void) { return sizeof(Quantiles) / sizeof(double); }

int64_t kalprox_add_scores(double *sums, double *rows, int64_t n, const double *ends) {
    const double *mean = rows, *std = rows + n, *y = rows + 2 * n, *dof = rows + 3 * n, *together = rows + 5 * n;
    double *weight = rows + 4 * n, *score = rows + 6 * n, judged_weight = 0, undetermined = 0;
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        int counts = weight[i] > 0;
        bad += !(weight[i] >= 0 && weight[i] <= DBL_MAX) || (counts && (std[i] < 0 || !isfinite(y[i])));
    }
    if (bad > 0) return bad;
    for (int64_t i = 0; i < n; i++) {
        int judged = isfinite(mean[i]) && isfinite(std[i]) && dof[i] > 0 && weight[i] > 0;
        undetermined += judged ? 0 : weight[i];
        weight[i] = judged ? weight[i] : 0;
        judged_weight += weight[i];
        score[i] = 0;
    }
    Scores *s = (Scores *)sums;
    Chunk c;
    int64_t place[CHUNK];
    s->undetermined += undetermined;
    for (int64_t i = 0; i < n;) {
        int count = 0;
        for (; i < n && count < CHUNK; i++) {
            if (weight[i] == 0) continue;
            double others = (isnan(together[i]) ? judged_weight : together[i]) - 1;
            c.mean[count] = mean[i], c.std[count] = std[i], c.y[count] = y[i], c.dof[count] = dof[i];
            c.weight[count] = weight[i], c.pairs[count] = (others > 0 ? others : 0) / dof[i], place[count] = i;
            count++;
        }
        add_chunk(s, &c, count, ends);
        for (int k = 0; k < count; k++) score[place[k]] = c.score[k];
    }
    return 0;
}

/* ---- conformal quantiles ------------------------------------------------------------------------------------------ */

/* Move the quantiles by a batch of rows, whose intervals were issued together. */
INLINED void move_by_batch_inlined(Quantiles *q, const double *z, const double *w, int64_t n, const Steps *steps) {
    double rows = 0, below[TRACKED] = {0}, above[TRACKED] = {0};
    VECTORISED(reduction(+ : rows))
    for (int64_t i = 0; i < n; i++) rows += fabs(z[i]) <= DBL_MAX ? w[i] : 0;
    if (rows == 0) return;
    for (int k = 0; k < TRACKED; k++) {
        double low = -q->ends[k][0], high = q->ends[k][1], missed_below = 0, missed_above = 0;
        VECTORISED(reduction(+ : missed_below, missed_above))
        for (int64_t i = 0; i < n; i++) {
            double counted = fabs(z[i]) <= DBL_MAX ? w[i] : 0;
            missed_below += z[i] < low ? counted : 0;
            missed_above += z[i] > high ? counted : 0;
        }
        below[k] = missed_below, above[k] = missed_above;
    }
    double step = pow(q->rows + rows, -steps->decay), most = steps->farthest / rows;
    step = (step > steps->slowest ? step : steps->slowest) / (rows == 1 ? 1 : pow(rows, steps->shared));
    step = step < most ? step : most;
    for (int k = 0; k < TRACKED; k++) {
        double allowed = rows * steps->sides[k];
        q->ends[k][0] += step * (below[k] - allowed), q->missed[k][0] += below[k];
        q->ends[k][1] += step * (above[k] - allowed), q->missed[k][1] += above[k];
    }
    q->rows += rows;
}

DISPATCHED(move_by_batch, (Quantiles * q, const double *z, const double *w, int64_t n, const Steps *steps),
           (q, z, w, n, steps))

void kalprox_move_quantiles(double *quantiles, const double *rows, int64_t n, const double *steps) {
    const double *z = rows, *weight = rows + n, *together = rows + 2 * n;
    for (int64_t i = 0, size; i < n; i += size) {
        double length = together[i] > 1 ? together[i] : 1;
        size = length < (double)(n - i) ? (int64_t)length : n - i;
        if (together[i] > 0) move_by_batch((Quantiles *)quantiles, z + i, weight + i, size, (const Steps *)steps);
    }
}
