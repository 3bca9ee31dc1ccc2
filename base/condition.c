#include "base/condition.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/suggest.h"

static const char *const OP_TEXT[] = {[MLO_GE] = ">=", [MLO_LE] = "<=", [MLO_GT] = ">", [MLO_LT] = "<"};
static const char *const BASES[] = {"source", "production", "staging"};

struct scan {
    const char *text, *at;
    struct mlo_error *err;
};

static enum mlo_status fail(struct scan *s, const char *expected)
{
    enum mlo_status status = mlo_error_set(
        s->err, MLO_EINVAL, "the condition \"%.120s\" is not understood: expected %s at column %d", s->text,
        expected, (int)(s->at - s->text) + 1);
    mlo_error_hint(s->err, "write for example \"top1 >= source - 0.5pt\" or "
                           "\"latency.p50[batch=1,threads=1] <= 0.8 * source\"");
    return status;
}

static void skip_space(struct scan *s)
{
    while (isspace((unsigned char)*s->at))
        s->at++;
}

static bool take(struct scan *s, const char *word)
{
    skip_space(s);
    if (!mlo_str_starts(s->at, word))
        return false;
    s->at += strlen(word);
    return true;
}

/* Characters of `extra`, letters and digits, into out. */
static bool take_word(struct scan *s, const char *extra, char *out, size_t size)
{
    skip_space(s);
    size_t n = 0;
    while (isalnum((unsigned char)s->at[n]) || (s->at[n] && strchr(extra, s->at[n])))
        n++;
    if (n == 0 || n >= size)
        return false;
    memcpy(out, s->at, n);
    out[n] = '\0';
    s->at += n;
    return true;
}

static bool take_number(struct scan *s, double *out)
{
    skip_space(s);
    char text[40];
    size_t n = strspn(s->at, "0123456789.");
    if (n > 0 && (s->at[n] == 'e' || s->at[n] == 'E')) {
        size_t sign = s->at[n + 1] == '-' || s->at[n + 1] == '+';
        size_t digits = strspn(s->at + n + 1 + sign, "0123456789");
        if (digits)
            n += 1 + sign + digits;
    }
    if (n == 0 || n >= sizeof text)
        return false;
    memcpy(text, s->at, n);
    text[n] = '\0';
    if (!mlo_str_to_f64(text, out))
        return false;
    s->at += n;
    return true;
}

static enum mlo_status parse_params(struct scan *s, struct mlo_condition *c)
{
    if (!take(s, "["))
        return MLO_OK;
    do {
        if (c->param_count == MLO_CONDITION_PARAMS)
            return fail(s, "at most six parameters");
        struct mlo_condition_param *p = &c->params[c->param_count];
        if (!take_word(s, "_-.", p->key, sizeof p->key))
            return fail(s, "a parameter name");
        if (!take(s, "="))
            return fail(s, "'='");
        if (!take_word(s, "_-.:/", p->value, sizeof p->value))
            return fail(s, "a parameter value");
        c->param_count++;
    } while (take(s, ","));
    return take(s, "]") ? MLO_OK : fail(s, "']'");
}

static enum mlo_status parse_op(struct scan *s, struct mlo_condition *c)
{
    /* the two-character operators come first in the table */
    for (size_t i = 0; i < MLO_COUNT(OP_TEXT); i++) {
        if (take(s, OP_TEXT[i])) {
            c->op = (enum mlo_condition_op)i;
            return MLO_OK;
        }
    }
    return fail(s, "one of >= <= > <");
}

static enum mlo_status parse_base(struct scan *s, struct mlo_condition *c)
{
    if (!take_word(s, "_-", c->base, sizeof c->base))
        return fail(s, "a number, 'source', 'production' or 'staging'");
    for (size_t i = 0; i < MLO_COUNT(BASES); i++)
        if (strcmp(c->base, BASES[i]) == 0)
            return MLO_OK;
    enum mlo_status status = mlo_error_set(
        s->err, MLO_EINVAL,
        "the condition \"%.120s\" compares with '%s'; it can compare with source, production or staging",
        s->text, c->base);
    mlo_error_suggest(s->err, c->base, BASES, MLO_COUNT(BASES));
    return status;
}

static enum mlo_status parse_right(struct scan *s, struct mlo_condition *c)
{
    double number = 1;
    c->factor = 1;
    if (take_number(s, &number)) {
        if (take(s, "*")) {
            c->factor = number;
        } else {
            c->offset = take(s, "pt") || take(s, "%") ? number / 100 : number;
            return MLO_OK;
        }
    }
    enum mlo_status status = parse_base(s, c);
    if (status != MLO_OK)
        return status;
    double sign = take(s, "-") ? -1 : take(s, "+") ? 1 : 0;
    if (sign == 0)
        return MLO_OK;
    if (!take_number(s, &number))
        return fail(s, "a number such as 0.5pt or 5%");
    if (take(s, "%"))
        c->factor *= 1 + sign * number / 100;
    else
        c->offset = sign * (take(s, "pt") ? number / 100 : number);
    return MLO_OK;
}

enum mlo_status mlo_condition_parse(const char *text, struct mlo_condition *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct scan s = {text, text, err};
    *out = (struct mlo_condition){0};
    if (strlen(text) >= sizeof out->text)
        return mlo_error_set(err, MLO_EINVAL, "a condition may have at most %zu characters",
                             sizeof out->text - 1);
    snprintf(out->text, sizeof out->text, "%s", text);
    if (!take_word(&s, "_.-", out->metric, sizeof out->metric))
        return fail(&s, "the name of a metric");
    MLO_TRY(parse_params(&s, out));
    MLO_TRY(parse_op(&s, out));
    MLO_TRY(parse_right(&s, out));
    skip_space(&s);
    if (*s.at)
        status = fail(&s, "the end");
    else if (out->base[0] && out->offset != 0 && out->factor != 1) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "the condition \"%.120s\" scales and shifts '%s' at once; use one of the two",
                               text, out->base);
    }
out:
    return status;
}

static bool holds(enum mlo_condition_op op, double low, double high, double right)
{
    switch (op) {
    case MLO_GE:
        return low >= right;
    case MLO_GT:
        return low > right;
    case MLO_LE:
        return high <= right;
    case MLO_LT:
        break;
    }
    return high < right;
}

static void judge(const struct mlo_condition *c, const char *against, double value, double low, double high,
                  double limit, struct mlo_condition_verdict *out)
{
    bool upper = c->op == MLO_LE || c->op == MLO_LT;
    out->judged = true;
    out->holds = holds(c->op, low, high, limit);
    if (against)
        snprintf(out->what, sizeof out->what, "%s %s %s", c->metric, against, c->base);
    else
        snprintf(out->what, sizeof out->what, "%s", c->metric);
    out->value = value;
    out->low = low;
    out->high = high;
    out->bound = upper ? high : low;
    out->limit = limit;
    out->op = OP_TEXT[c->op];
}

void mlo_condition_judge(const struct mlo_condition *condition, const struct mlo_condition_facts *facts,
                         struct mlo_condition_verdict *out)
{
    const struct mlo_condition *c = condition;
    *out = (struct mlo_condition_verdict){0};
    if (!c->base[0]) {
        if (facts->have_value)
            judge(c, NULL, facts->value, facts->low, facts->high, c->offset, out);
    } else if (c->offset == 0 && facts->have_ratio) {
        judge(c, "/", facts->ratio, facts->ratio_low, facts->ratio_high, c->factor, out);
    } else if (c->factor == 1 && facts->have_difference) {
        judge(c, "-", facts->difference, facts->difference_low, facts->difference_high, c->offset, out);
    }
}

enum mlo_status mlo_condition_check(const struct mlo_condition *condition,
                                    const struct mlo_condition_facts *facts, struct mlo_error *err)
{
    const struct mlo_condition *c = condition;
    struct mlo_condition_verdict v;
    mlo_condition_judge(c, facts, &v);
    if (v.judged && v.holds)
        return MLO_OK;
    if (v.judged) {
        bool upper = c->op == MLO_LE || c->op == MLO_LT;
        return mlo_error_set(err, MLO_EEXPECT,
                             "\"%s\" does not hold: %s is %.6g (95%% interval %.6g to %.6g), so its %s bound "
                             "%.6g is not %s %.6g",
                             c->text, v.what, v.value, v.low, v.high, upper ? "upper" : "lower", v.bound,
                             v.op, v.limit);
    }
    enum mlo_status status =
        mlo_error_set(err, MLO_EEXPECT, "\"%s\" cannot be checked: %s%s%s was not measured", c->text,
                      c->metric, c->base[0] ? " against " : "", c->base);
    mlo_error_hint(err, "add a step that measures %s%s%s to the recipe", c->metric,
                   c->base[0] ? " with compare_to: " : "", c->base);
    return status;
}
