/* Recipes in YAML. What is accepted is accepted again in its canonical form, and is the same recipe. Bytes
 * after a NUL are a setting that is applied to it. */
#include "pipeline/steps/steps.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_recipe *recipe = NULL, *again = NULL;
    struct mlo_buf text = MLO_BUF_INIT, second = MLO_BUF_INIT;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t length = nul ? (size_t)(nul - data) : size;
    char *setting = nul ? strndup((const char *)nul + 1, size - length - 1) : NULL;
    if (!fuzz_accepted(mlo_recipe_parse((const char *)data, length, "r.yaml", &recipe, &err), &err)) {
        FUZZ_CHECK(!recipe, "refused, but a recipe is given");
        goto out;
    }
    if (setting)
        fuzz_accepted(mlo_recipe_set(recipe, setting, &err), &err);
    mlo_json_canonical(recipe->canonical, &text);
    if (mlo_recipe_parse(text.data, text.len, "canonical", &again, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "the canonical form is not accepted: %s\n%s", err.message, text.data);
    mlo_json_canonical(again->canonical, &second);
    FUZZ_CHECK(text.len == second.len && memcmp(text.data, second.data, text.len) == 0,
               "another recipe:\n%s\n%s", text.data, second.data);
out:
    free(setting);
    mlo_recipe_free(recipe);
    mlo_recipe_free(again);
    mlo_buf_clear(&text);
    mlo_buf_clear(&second);
    return 0;
}
