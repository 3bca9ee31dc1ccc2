/* Cron expressions: what is accepted has times, which follow each other and match its bits. */
#include "base/cron.h"
#include "tests/fuzz/fuzz.h"

static bool later(const struct mlo_minute *a, const struct mlo_minute *b)
{
    int64_t x = mlo_minute_day(a) * 1440 + a->hour * 60 + a->minute;
    return x > mlo_minute_day(b) * 1440 + b->hour * 60 + b->minute;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_cron cron;
    struct mlo_minute at = {2026, 1, 1, 0, 0}, next;
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (!fuzz_accepted(mlo_cron_parse(text, &cron, &err), &err))
        goto out;
    FUZZ_CHECK(!(cron.minutes >> 60) && !(cron.hours >> 24) && !(cron.days & 1) && !(cron.months & 1) &&
                   !(cron.months >> 13) && !(cron.weekdays >> 7),
               "'%s' has bits that are no times", text);
    for (int i = 0; i < 4; i++, at = next) {
        FUZZ_CHECK(mlo_cron_next(&cron, &at, &next), "'%s' was accepted and has no time", text);
        FUZZ_CHECK(later(&next, &at), "'%s' goes back", text);
        FUZZ_CHECK(cron.minutes >> next.minute & 1 && cron.hours >> next.hour & 1 &&
                       cron.months >> next.month & 1,
                   "'%s' runs at another time", text);
    }
out:
    free(text);
    return 0;
}
