/* Circular and hyperbolic functions from correctly rounded operations (+ - * / sqrt fma) only. */
#include <math.h>

#include "graph/ops/ops_impl.h"

static const double half_pi = 0x1.921fb54442d18p+0, half_pi_low = 0x1.1a62633145c07p-54;

double mlo_math_log1p(double x)
{
    double u = 1 + x;
    if (u == 1 || isinf(u) || isnan(u))
        return x;
    return mlo_math_log(u) * (x / (u - 1)); /* what rounding 1 + x lost cancels in the quotient */
}

/* |r| <= pi/4 and a little more */
static double sine(double r)
{
    double r2 = r * r, sum = 1;
    for (int n = 20; n >= 2; n -= 2)
        sum = 1 - sum * r2 / (n * (n + 1));
    return r * sum;
}

static double cosine(double r)
{
    double r2 = r * r, sum = 1;
    for (int n = 21; n >= 1; n -= 2)
        sum = 1 - sum * r2 / (n * (n + 1));
    return sum;
}

/* x = k pi/2 + *r; k mod 4. fma is rounded once on every machine. */
static int quadrant(double x, double *r)
{
    if (fabs(x) > 0x1p50)
        x = fmod(x, 4 * half_pi);
    double k = rint(x / half_pi);
    *r = fma(-k, half_pi_low, fma(-k, half_pi, x));
    int q = (int)fmod(k, 4);
    return q < 0 ? q + 4 : q;
}

double mlo_math_sin(double x)
{
    double r;
    if (!isfinite(x))
        return NAN;
    int q = quadrant(x, &r);
    double v = q % 2 ? cosine(r) : sine(r);
    return q >= 2 ? -v : v;
}

double mlo_math_cos(double x)
{
    double r;
    if (!isfinite(x))
        return NAN;
    int q = quadrant(x, &r);
    double v = q % 2 ? sine(r) : cosine(r);
    return q == 1 || q == 2 ? -v : v;
}

double mlo_math_tan(double x)
{
    double r;
    if (!isfinite(x))
        return NAN;
    return quadrant(x, &r) % 2 ? -cosine(r) / sine(r) : sine(r) / cosine(r);
}

/* Beyond 1 by pi/2 - atan(1/x); the angle is halved twice before the series. */
double mlo_math_atan(double x)
{
    double a = fabs(x);
    if (isnan(x))
        return x;
    if (isinf(x))
        return copysign(half_pi, x);
    bool large = a > 1;
    double t = large ? 1 / a : a;
    t = t / (1 + sqrt(1 + t * t));
    t = t / (1 + sqrt(1 + t * t));
    double t2 = t * t, sum = 0;
    for (int n = 27; n >= 1; n -= 2)
        sum = 1.0 / n - sum * t2;
    double angle = 4 * t * sum;
    return copysign(large ? half_pi - (angle - half_pi_low) : angle, x);
}

double mlo_math_asin(double x)
{
    if (!(fabs(x) <= 1))
        return NAN;
    return fabs(x) == 1 ? copysign(half_pi, x) : mlo_math_atan(x / sqrt((1 - x) * (1 + x)));
}

double mlo_math_acos(double x)
{
    if (!(fabs(x) <= 1))
        return NAN;
    return x == -1 ? 2 * half_pi : 2 * mlo_math_atan(sqrt((1 - x) / (1 + x)));
}

double mlo_math_sinh(double x)
{
    double a = fabs(x);
    if (a < 0.3) { /* the difference below would cancel */
        double a2 = a * a, sum = 1;
        for (int n = 14; n >= 2; n -= 2)
            sum = 1 + sum * a2 / (n * (n + 1));
        return x * sum;
    }
    double e = mlo_math_exp(a / 2); /* halved: exp must not overflow before its half does */
    return copysign(0.5 * e * e - 0.5 / e / e, x);
}

double mlo_math_cosh(double x)
{
    double e = mlo_math_exp(fabs(x) / 2);
    return 0.5 * e * e + 0.5 / e / e;
}

double mlo_math_asinh(double x)
{
    double a = fabs(x), result;
    if (!isfinite(x))
        return x;
    if (a > 1e150)
        result = mlo_math_log(a) + 0.69314718055994531;
    else
        result = mlo_math_log1p(a + a * a / (1 + sqrt(1 + a * a)));
    return copysign(result, x);
}

double mlo_math_acosh(double x)
{
    double t = x - 1;
    if (!(x >= 1))
        return NAN;
    if (x > 1e150)
        return mlo_math_log(x) + 0.69314718055994531;
    return mlo_math_log1p(t + sqrt(t * (t + 2)));
}

double mlo_math_atanh(double x)
{
    double a = fabs(x);
    if (!(a <= 1))
        return NAN;
    return copysign(a == 1 ? INFINITY : 0.5 * mlo_math_log1p(2 * a / (1 - a)), x);
}

double mlo_math_sigmoid(double x)
{
    if (x >= 0)
        return 1 / (1 + mlo_math_exp(-x));
    double e = mlo_math_exp(x);
    return e / (1 + e);
}

double mlo_math_softplus(double x)
{
    return (x > 0 ? x : 0) + mlo_math_log1p(mlo_math_exp(-fabs(x)));
}
