/* JSON: what is accepted has one canonical text, whose own canonical text it is. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    json_t *value = NULL, *again = NULL;
    struct mlo_buf text = MLO_BUF_INIT, second = MLO_BUF_INIT;
    struct mlo_digest digest, of_text;
    if (!fuzz_accepted(mlo_json_parse((const char *)data, size, "input", &value, &err), &err)) {
        FUZZ_CHECK(!value, "refused, but a value is given");
        goto out;
    }
    mlo_json_canonical(value, &text);
    FUZZ_CHECK(mlo_buf_ok(&text), "no canonical text");
    if (mlo_json_parse(text.data, text.len, "canonical", &again, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "the canonical text is not accepted: %s", err.message);
    mlo_json_canonical(again, &second);
    FUZZ_CHECK(text.len == second.len && memcmp(text.data, second.data, text.len) == 0,
               "two canonical texts: %.400s and %.400s", text.data, second.data);
    if (mlo_json_digest(value, &digest, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "no digest: %s", err.message);
    mlo_digest_of(text.data, text.len, &of_text);
    FUZZ_CHECK(mlo_digest_eq(&digest, &of_text), "the digest is not that of the canonical text");
    if (json_is_object(value)) {
        const char *s;
        int64_t i;
        double f;
        bool b;
        (void)!mlo_json_get_str(value, "name", "", &s, &err);
        (void)!mlo_json_get_i64(value, "count", NULL, &i, &err);
        (void)!mlo_json_get_f64(value, "value", NULL, &f, &err);
        (void)!mlo_json_get_bool(value, "flag", NULL, &b, &err);
    }
out:
    json_decref(value);
    json_decref(again);
    mlo_buf_clear(&text);
    mlo_buf_clear(&second);
    return 0;
}
