/* See curvature.c. */
#ifndef KALPROX_CURVATURE_H
#define KALPROX_CURVATURE_H
#include "kernel.h"

/* Add rows in their order to the sums over c columns: the prediction, and the first c - 1 columns of X, between whose
 * rows lie `step` numbers. `means` and `squares` (the sums of squares about these) are of c numbers, `products` are six
 * matrices of (1 + c, 1 + c). Returns 1, with nothing added, if there are too many columns. */
EXPORTED int64_t kalprox_add_curvature(double *means, double *squares, double *products, int64_t columns,
                                       const double *X, int64_t step, const double *predicted, const double *scores,
                                       int64_t rows);
#endif
