/* The sums of `kalprox.calibration.curvature.Curvature`: scores times squares and products of columns. */
#include "curvature.h"

#include <math.h>

#define FIRST 16          /* rows after which the mean and the spread of a column are known well enough */
#define FARTHEST 3.0      /* the bound of a standardised value */
#define SCORE_BOUND 4.0   /* the bound of a score */
#define LARGEST 1e60      /* the bound of what a value may differ from the mean of its column */
#define WIDEST 24         /* values of a row: 1, the prediction and 20 columns, padded with zeros to multiples of 8 */
#define TOGETHER 16       /* rows, which stay in the first cache */

/* z, z^2 and z^4 for the values z of some rows, or u z, u^2 z^2 and u^4 z^4 for their scores u. */
typedef struct { double z[TOGETHER][WIDEST], q[TOGETHER][WIDEST], f[TOGETHER][WIDEST]; } Powers;

INLINED double bounded(double x, double most) { return x < -most ? -most : x > most ? most : x; }

/* Standardise a value by the rows before it, of which there are `rows`, and let their mean and squares learn it. */
INLINED double standardised(double x, double rows, double *mean, double *squares) {
    double error = isfinite(x) ? bounded(x - *mean, LARGEST) : 0, variance = *squares / (rows > 0 ? rows : 1);
    int known = rows >= FIRST && variance > 0 && isfinite(x);
    *mean += error / (rows + 1);
    *squares += error * error * (rows / (rows + 1));
    return known ? bounded(error / sqrt(variance), FARTHEST) : 0;
}

/* Add A'B to sums (size, size), for A and B of some rows. The sums of a row of A'B stay in registers. */
INLINED void add_product(double *sums, int64_t size, const double (*a)[WIDEST], const double (*b)[WIDEST], int rows,
                         const int width) {
    for (int64_t i = 0; i < size; i++, sums += size) {
        double total[WIDEST] = {0};
        for (int r = 0; r < rows; r++) {
            double factor = a[r][i];
            VECTORISED()
            for (int j = 0; j < width; j++) total[j] += factor * b[r][j];
        }
        for (int64_t j = 0; j < size; j++) sums[j] += total[j];
    }
}

INLINED void add_products(double *products, int64_t size, const Powers *p, const Powers *with_u, int rows,
                          const int width) {
    int64_t all = size * size;
    add_product(products, size, p->z, p->z, rows, width);
    add_product(products + all, size, p->q, p->z, rows, width);
    add_product(products + 2 * all, size, p->q, p->q, rows, width);
    add_product(products + 3 * all, size, p->z, with_u->z, rows, width);
    add_product(products + 4 * all, size, p->q, with_u->q, rows, width);
    add_product(products + 5 * all, size, p->f, with_u->f, rows, width);
}

INLINED void add_curvature_inlined(double *restrict means, double *restrict squares, double *restrict products,
                                   int64_t columns, const double *X, int64_t step, const double *predicted,
                                   const double *scores, int64_t rows) {
    Powers plain = {0}, with_u = {0};
    double seen = products[0];
    int64_t size = columns + 1;
    if (rows > 0 && seen == 0) /* before the first row */
        for (int64_t j = 0; j < columns; j++) {
            double first = j ? X[j - 1] : predicted[0];
            means[j] = isfinite(first) ? first : 0;
        }
    for (int64_t start = 0; start < rows; start += TOGETHER) {
        int some = rows - start < TOGETHER ? (int)(rows - start) : TOGETHER;
        for (int r = 0; r < some; r++, seen++) {
            const double *x = X + (start + r) * step;
            double u = bounded(scores[start + r], SCORE_BOUND), *z = plain.z[r];
            z[0] = 1;
            z[1] = standardised(predicted[start + r], seen, means, squares);
            for (int64_t j = 1; j < columns; j++) z[j + 1] = standardised(x[j - 1], seen, means + j, squares + j);
            for (int64_t j = 0; j < size; j++) {
                double q = z[j] * z[j], f = q * q;
                plain.q[r][j] = q, plain.f[r][j] = f;
                with_u.z[r][j] = u * z[j], with_u.q[r][j] = u * u * q, with_u.f[r][j] = u * u * u * u * f;
            }
        }
        if (size <= 8) add_products(products, size, &plain, &with_u, some, 8);
        else if (size <= 16) add_products(products, size, &plain, &with_u, some, 16);
        else add_products(products, size, &plain, &with_u, some, 24);
    }
}

DISPATCHED(add_curvature,
           (double *restrict means, double *restrict squares, double *restrict products, int64_t columns,
            const double *X, int64_t step, const double *predicted, const double *scores, int64_t rows),
           (means, squares, products, columns, X, step, predicted, scores, rows))

int64_t kalprox_add_curvature(double *means, double *squares, double *products, int64_t columns, const double *X,
                              int64_t step, const double *predicted, const double *scores, int64_t rows) {
    if (columns + 1 > WIDEST) return 1;
    add_curvature(means, squares, products, columns, X, step, predicted, scores, rows);
    return 0;
}
