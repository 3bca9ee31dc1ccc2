/* Elementary functions from additions, multiplications and divisions only. */
#include <math.h>
#include <string.h>

#include "graph/ops/ops_impl.h"

static const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;

/* x = k ln2 + r, |r| <= ln2/2; e^r by its Taylor series to the 14th power (remainder below 1e-18). */
double mlo_math_exp(double x)
{
    if (isnan(x))
        return x;
    if (x > 709.8)
        return INFINITY;
    if (x < -745.2)
        return 0;
    double k = floor(x * 1.4426950408889634 + 0.5);
    double r = (x - k * ln2_high) - k * ln2_low;
    double sum = 1;
    for (int n = 14; n >= 1; n--)
        sum = 1 + sum * r / n;
    return ldexp(sum, (int)k);
}

void mlo_math_exps(double *x, size_t n)
{
    enum { TOGETHER = 8 };
    for (size_t i = 0; i < n; i += TOGETHER) {
        double k[TOGETHER], r[TOGETHER], sum[TOGETHER];
        bool plain = n - i >= TOGETHER; /* results are normal numbers */
        for (size_t j = 0; plain && j < TOGETHER; j++)
            plain = x[i + j] >= -700 && x[i + j] <= 700;
        for (size_t j = i; !plain && j < n && j < i + TOGETHER; j++)
            x[j] = mlo_math_exp(x[j]);
        if (!plain)
            continue;
        for (size_t j = 0; j < TOGETHER; j++) {
            k[j] = floor(x[i + j] * 1.4426950408889634 + 0.5);
            r[j] = (x[i + j] - k[j] * ln2_high) - k[j] * ln2_low;
            sum[j] = 1;
        }
        for (int m = 14; m >= 1; m--)
            for (size_t j = 0; j < TOGETHER; j++)
                sum[j] = 1 + sum[j] * r[j] / m;
        for (size_t j = 0; j < TOGETHER; j++) {
            const uint64_t bits = (uint64_t)(1023 + (int64_t)k[j]) << 52; /* 2^k: such a product is exact */
            double power;
            memcpy(&power, &bits, sizeof power);
            x[i + j] = sum[j] * power;
        }
    }
}

/* x = m 2^k, m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m-1)/(m+1)). */
double mlo_math_log(double x)
{
    if (isnan(x) || x < 0)
        return NAN;
    if (x == 0)
        return -INFINITY;
    if (isinf(x))
        return x;
    int k;
    double m = frexp(x, &k);
    if (m < 0.70710678118654752) {
        m *= 2;
        k--;
    }
    double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
    for (int n = 27; n >= 1; n -= 2)
        sum = sum * t2 + 1.0 / n;
    return k * ln2_high + (2 * t * sum + k * ln2_low);
}

double mlo_math_tanh(double x)
{
    double a = fabs(x), result;
    if (isnan(x))
        return x;
    if (a > 22) {
        result = 1;
    } else if (a < 0.05) { /* the quotient below would cancel */
        double x2 = a * a;
        result = a * (1 - x2 * (1.0 / 3 - x2 * (2.0 / 15 - x2 * (17.0 / 315 - x2 * (62.0 / 2835)))));
    } else {
        double e = mlo_math_exp(-2 * a);
        result = (1 - e) / (1 + e);
    }
    return copysign(result, x);
}

/* Below 6: the all-positive series erf x = 2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (1 3 5 … (2n+1)), which
 * does not cancel. From there on it is 1 to double precision. */
double mlo_math_erf(double x)
{
    double a = fabs(x);
    if (isnan(x))
        return x;
    if (a >= 6)
        return copysign(1, x);
    double term = a, sum = a;
    for (int n = 1; n < 200 && term > sum * 1e-17; n++) {
        term *= 2 * a * a / (2 * n + 1);
        sum += term;
    }
    return copysign(1.1283791670955126 * mlo_math_exp(-a * a) * sum, x);
}

double mlo_math_pow(double x, double y)
{
    bool whole = floor(y) == y;
    if (y == 0 || x == 1)
        return 1;
    if (isnan(x) || isnan(y))
        return NAN;
    if (whole && fabs(y) <= 64) { /* exact for what is exact */
        double result = 1, base = x;
        for (unsigned n = (unsigned)fabs(y); n; n >>= 1) {
            if (n & 1)
                result *= base;
            base *= base;
        }
        return y < 0 ? 1 / result : result;
    }
    if (y == 0.5 && x >= 0)
        return sqrt(x);
    if (x == 0 || isinf(x) || isinf(y)) {
        double a = fabs(x);
        bool grows = (a > 1) == (y > 0);
        if (a == 1)
            return 1;
        double result = grows ? INFINITY : 0;
        return x < 0 && whole && !isinf(y) && fmod(y, 2) != 0 ? -result : result;
    }
    if (x < 0 && !whole)
        return NAN;
    double result = mlo_math_exp(y * mlo_math_log(fabs(x)));
    return x < 0 && fmod(y, 2) != 0 ? -result : result;
}
