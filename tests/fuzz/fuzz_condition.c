/* Conditions: what is accepted means the same when read again from its own text, and can be judged. */
#include <math.h>

#include "tests/fuzz/fuzz.h"

static const struct mlo_condition_facts all = {.have_value = true,
                                               .have_difference = true,
                                               .have_ratio = true,
                                               .value = 0.9,
                                               .low = 0.89,
                                               .high = 0.91,
                                               .difference = -0.01,
                                               .difference_low = -0.02,
                                               .difference_high = 0.001,
                                               .ratio = 0.8,
                                               .ratio_low = 0.7,
                                               .ratio_high = 0.9};
static const struct mlo_condition_facts none;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_condition first, second;
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (!fuzz_accepted(mlo_condition_parse(text, &first, &err), &err))
        goto out;
    FUZZ_CHECK(isfinite(first.factor) && isfinite(first.offset), "'%s' holds no number", text);
    FUZZ_CHECK(memchr(first.text, 0, sizeof first.text), "the text does not end");
    if (mlo_condition_parse(first.text, &second, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "'%s' is not accepted again: %s", first.text, err.message);
    FUZZ_CHECK(strcmp(first.metric, second.metric) == 0 && first.op == second.op &&
                   strcmp(first.base, second.base) == 0 && first.factor == second.factor &&
                   first.offset == second.offset && first.param_count == second.param_count,
               "'%s' means something else in its own text", text);
    fuzz_accepted(mlo_condition_check(&first, &all, &err), &err);
    FUZZ_CHECK(mlo_condition_check(&first, &none, &err) == MLO_EEXPECT, "'%s' holds without facts", text);
out:
    free(text);
    return 0;
}
