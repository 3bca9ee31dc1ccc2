#include "base/suggest.h"

#include <stdlib.h>
#include <string.h>

#include "base/macros.h"

enum { LONGEST = 63 };

static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t d[LONGEST + 1][LONGEST + 1];
    for (size_t i = 0; i <= n; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        for (size_t j = 1; j <= m; j++) {
            size_t best = MLO_MIN(d[i - 1][j], d[i][j - 1]) + 1;
            best = MLO_MIN(best, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = MLO_MIN(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *mlo_suggest(const char *word, const char *const *candidates, size_t count)
{
    size_t n = strlen(word), best = n / 3 + 2;
    const char *found = NULL;
    if (n > LONGEST)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t m = strlen(candidates[i]);
        if (m > LONGEST)
            continue;
        size_t d = distance(word, n, candidates[i], m);
        if (d < best) {
            best = d;
            found = candidates[i];
        }
    }
    return found;
}

bool mlo_error_suggest(struct mlo_error *err, const char *word, const char *const *candidates, size_t count)
{
    const char *near = mlo_suggest(word, candidates, count);
    if (near)
        mlo_error_hint(err, "did you mean '%s'?", near);
    return near != NULL;
}

const void *mlo_named_row(const char *name, const void *rows, size_t count, size_t row_bytes)
{
    for (size_t i = 0; i < count; i++) {
        const char *row = (const char *)rows + i * row_bytes;
        if (strcmp(*(const char *const *)(const void *)row, name) == 0)
            return row;
    }
    return NULL;
}

void mlo_buf_names(struct mlo_buf *buf, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        mlo_buf_printf(buf, "%s%s", i ? ", " : "", names[i]);
}
