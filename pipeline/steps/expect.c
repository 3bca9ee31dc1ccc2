#include <stdio.h>
#include <string.h>

#include "pipeline/steps/steps.h"

static bool param_matches(const json_t *params, const struct mlo_condition_param *want)
{
    const json_t *have = json_object_get(params, want->key);
    char text[96];
    if (json_is_integer(have))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(have));
    else if (json_is_string(have))
        snprintf(text, sizeof text, "%s", json_string_value(have));
    else
        return false;
    if (strcmp(want->key, "teacher") == 0) /* a digest, by its beginning */
        return mlo_str_starts(text, want->value);
    return strcmp(text, want->value) == 0;
}

/* The observation of the variant that a condition speaks of; a later one wins, as it is the newer. */
static const json_t *find_observation(const json_t *observations, const struct mlo_condition *c)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(observations); i++) {
        const json_t *o = json_array_get(observations, i);
        if (strcmp(mlo_json_str(o, "subject", ""), "variant") != 0 ||
            strcmp(mlo_json_str(o, "metric", ""), c->metric) != 0)
            continue;
        bool match = true;
        for (size_t p = 0; p < c->param_count && match; p++)
            match = param_matches(json_object_get(o, "params"), &c->params[p]);
        if (match)
            found = o;
    }
    return found;
}

static bool read_estimate(const json_t *o, double *value, double *low, double *high)
{
    if (!json_is_number(json_object_get(o, "value")))
        return false;
    *value = mlo_json_f64(o, "value", 0);
    *low = mlo_json_f64(o, "low", *value);
    *high = mlo_json_f64(o, "high", *value);
    return true;
}

enum mlo_status mlo_recipe_expect(const struct mlo_recipe *recipe, const json_t *observations,
                                  json_t **results, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t failed = 0;
    *results = json_array();
    if (!*results)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < recipe->expect_count; i++) {
        const struct mlo_condition *c = &recipe->expect[i];
        struct mlo_condition_facts f = {0};
        struct mlo_error why = {0};
        const json_t *o = find_observation(observations, c);
        const json_t *against = json_object_get(o, "against");
        f.have_value = o && read_estimate(o, &f.value, &f.low, &f.high);
        f.have_difference = read_estimate(json_object_get(against, "difference"), &f.difference,
                                          &f.difference_low, &f.difference_high);
        f.have_ratio =
            read_estimate(json_object_get(against, "ratio"), &f.ratio, &f.ratio_low, &f.ratio_high);
        bool ok = mlo_condition_check(c, &f, &why) == MLO_OK;
        json_t *row =
            json_pack("{s:s,s:b,s:s}", "condition", c->text, "holds", ok, "reason", ok ? "" : why.message);
        if (json_array_append_new(*results, row)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        if (!ok && failed++ == 0)
            status = mlo_error_set(err, MLO_EEXPECT, "%s", why.message);
    }
    if (failed > 1)
        mlo_error_hint(err, "%zu of %zu expectations do not hold", failed, recipe->expect_count);
out:
    return status;
}
