/* Conditions on evidence, as recipes' expectations and policies' gates write them:
 *
 *     top1 >= source - 0.5pt
 *     latency.p50[batch=1,threads=1] <= 0.8 * source
 *     size <= 1500000
 *     top1 >= 0.9
 *
 * Grammar:  METRIC [ '[' KEY=VALUE {',' KEY=VALUE} ']' ]  OP  RIGHT
 *           OP     is  >=  <=  >  <
 *           RIGHT  is  NUMBER['%'|'pt']
 *                  or  [NUMBER '*'] BASE  [ ('+'|'-') NUMBER ('pt'|'%'|'') ]
 *           BASE   is  source | production | staging
 * Units (DESIGN.md section 2): `pt` is percentage points (0.01 of a fraction), `%` after a base is relative
 * to it (source - 5% is 0.95 * source); a bare `90%` on the right is 0.9. */
#ifndef MLO_BASE_CONDITION_H
#define MLO_BASE_CONDITION_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { MLO_CONDITION_PARAMS = 6 };

enum mlo_condition_op { MLO_GE, MLO_LE, MLO_GT, MLO_LT };

struct mlo_condition_param {
    char key[24], value[32];
};

struct mlo_condition {
    char text[160];  /* as written */
    char metric[48]; /* "latency.p50" */
    struct mlo_condition_param params[MLO_CONDITION_PARAMS];
    size_t param_count;
    enum mlo_condition_op op;
    char base[16]; /* "source", …; "" for an absolute condition */
    double factor; /* of the base; 1 unless written */
    double offset; /* added to factor * base; or the absolute right side */
};

/* Parses one condition; errors point at the column. */
MLO_MUST_USE enum mlo_status mlo_condition_parse(const char *text, struct mlo_condition *out,
                                                 struct mlo_error *err);

/* What is known of the left side: its value with a 95% interval, and its comparison with the base on paired
 * data (a difference or a ratio), each only where it was measured. */
struct mlo_condition_facts {
    bool have_value, have_difference, have_ratio;
    double value, low, high;
    double difference, difference_low, difference_high; /* metric - base */
    double ratio, ratio_low, ratio_high;                /* metric / base */
};

/* The numbers of a judgement: what was compared with what. */
struct mlo_condition_verdict {
    bool judged; /* false: what it needs was not measured; the rest is empty */
    bool holds;
    char what[96];           /* "top1", "top1 - source", "latency.p99 / production" */
    double value, low, high; /* of `what`, with its 95% interval */
    double bound;            /* the end of the interval that is against the claim */
    double limit;            /* what the bound must reach, or stay below */
    const char *op;          /* ">="… */
};
void mlo_condition_judge(const struct mlo_condition *condition, const struct mlo_condition_facts *facts,
                         struct mlo_condition_verdict *out);

/* Whether the condition holds, each time by the bound of the interval that is against the claim:
 * absolute: low (>=) or high (<=) of the value; factor 1 with an offset: the bound of the difference; a
 * factor without offset: the bound of the ratio. MLO_EEXPECT with the numbers in the message when it does not
 * hold, or when what it needs was not measured. */
MLO_MUST_USE enum mlo_status mlo_condition_check(const struct mlo_condition *condition,
                                                 const struct mlo_condition_facts *facts,
                                                 struct mlo_error *err);

#endif
