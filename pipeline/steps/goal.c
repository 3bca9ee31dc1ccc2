/* Goals of a search: conditions of base/condition.h with units, and what is made least. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/steps/search.h"

static const char *const AXIS_NAMES[MLO_AXES] = {"accuracy_drop", "latency", "size"};

const char *mlo_axis_name(enum mlo_axis axis)
{
    return AXIS_NAMES[axis];
}

/* What a condition may be on, and what its numbers may be written in. */
static const char *const METRICS[] = {"accuracy_drop", "latency_p50", "latency_p99", "size"};
static const struct {
    const char *name, *metric; /* the metric begins so */
    double times;
} UNITS[] = {{"us", "latency", 1}, {"ms", "latency", 1e3}, {"s", "latency", 1e6}};

static enum mlo_status bad(struct mlo_error *err, const char *part, const char *what)
{
    mlo_error_set(err, MLO_EINVAL, "\"%.120s\" in the goal %s", part, what);
    mlo_error_where(err, "option 'goal'");
    return MLO_EINVAL;
}

/* The number behind the operator with its unit, where it has one of a latency or a size, becomes a plain one.
 */
static void plain_number(const char *part, char *out, size_t size)
{
    const char *at = part + strcspn(part, "<>=");
    at += strspn(at, "<>= ");
    size_t digits = strspn(at, "0123456789."), letters = strspn(at + digits, " "), bytes;
    const char *unit = at + digits + letters;
    uint64_t whole;
    double number;
    char text[48];
    snprintf(out, size, "%s", part);
    bytes = strlen(at);
    if (!digits || digits >= sizeof text || !isalpha((unsigned char)*unit) || bytes >= sizeof text)
        return;
    snprintf(text, sizeof text, "%.*s", (int)digits, at);
    for (size_t i = 0; i < MLO_COUNT(UNITS); i++)
        if (strcmp(unit, UNITS[i].name) == 0 && mlo_str_starts(part, UNITS[i].metric) &&
            mlo_str_to_f64(text, &number))
            snprintf(out, size, "%.*s%.17g", (int)(at - part), part, number * UNITS[i].times);
    if (mlo_str_starts(part, "size") && mlo_str_to_size(at, &whole))
        snprintf(out, size, "%.*s%llu", (int)(at - part), part, (unsigned long long)whole);
}

static enum mlo_status add_condition(const char *part, struct mlo_goal *goal, struct mlo_error *err)
{
    enum mlo_status status;
    char text[200];
    if (goal->count == MLO_GOAL_CONDITIONS)
        return bad(err, part, "is one condition too many: it has at most six");
    struct mlo_condition *c = &goal->conditions[goal->count];
    plain_number(part, text, sizeof text);
    status = mlo_condition_parse(text, c, err);
    if (status != MLO_OK) {
        mlo_error_where(err, "option 'goal'");
        return status;
    }
    bool known = false;
    for (size_t i = 0; i < MLO_COUNT(METRICS); i++)
        known = known || strcmp(METRICS[i], c->metric) == 0;
    if (!known) {
        bad(err, part, "is on what a search does not measure");
        if (!mlo_error_suggest(err, c->metric, METRICS, MLO_COUNT(METRICS)))
            mlo_error_hint(err, "a goal is on accuracy_drop, latency_p50, latency_p99 and size");
        return MLO_EINVAL;
    }
    if (c->op == MLO_GE || c->op == MLO_GT)
        return bad(err, part, "asks for more of what should be little: write <=");
    if (c->param_count)
        return bad(err, part, "has parameters: the search's options batch and threads say what is measured");
    if (c->base[0] &&
        (strcmp(c->base, "source") != 0 || c->offset != 0 || strcmp(c->metric, METRICS[0]) == 0))
        return bad(err, part,
                   c->metric[0] == 'a' ? "is against the source already: write accuracy_drop<=0.5pt"
                                       : "can be so many times the source, and nothing else");
    goal->count++;
    return MLO_OK;
}

static enum mlo_status set_objective(const char *part, const char *word, struct mlo_goal *goal, bool *set,
                                     struct mlo_error *err)
{
    if (*set)
        return bad(err, part, "is a second objective: a search has one");
    *set = true;
    for (int i = 0; i < MLO_AXES; i++)
        if (strcmp(AXIS_NAMES[i], word) == 0) {
            goal->objective = (enum mlo_axis)i;
            return MLO_OK;
        }
    bad(err, part, "is nothing that a search makes least");
    if (!mlo_error_suggest(err, word, AXIS_NAMES, MLO_AXES))
        mlo_error_hint(err, "write min latency, min size or min accuracy_drop");
    return MLO_EINVAL;
}

enum mlo_status mlo_goal_parse(const char *text, struct mlo_goal *out, struct mlo_error *err)
{
    bool objective = false;
    const char *at = text;
    *out = (struct mlo_goal){.objective = MLO_AXIS_LATENCY};
    for (;;) {
        char part[160];
        at += strspn(at, " \t");
        size_t n = strcspn(at, ","), kept = n;
        while (kept && isspace((unsigned char)at[kept - 1]))
            kept--;
        if (kept == 0 || kept >= sizeof part)
            return bad(err, kept ? at : text, kept ? "is too long" : "has an empty part");
        snprintf(part, sizeof part, "%.*s", (int)kept, at);
        size_t word =
            mlo_str_starts(part, "min") && isspace((unsigned char)part[3]) ? 3 + strspn(part + 3, " \t") : 0;
        enum mlo_status status =
            word ? set_objective(part, part + word, out, &objective, err) : add_condition(part, out, err);
        if (status != MLO_OK)
            return status;
        if (!at[n])
            return MLO_OK;
        at += n + 1;
    }
}
