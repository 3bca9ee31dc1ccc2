#include "base/accept.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/macros.h"
#include "base/str.h"

double mlo_accept_quality(const char *list, const char *name)
{
    double best = -1;
    size_t length = strlen(name);
    while (list && *list) {
        list += strspn(list, " \t,");
        const char *end = list + strcspn(list, ",");
        if (strcspn(list, " \t;,") == length && strncasecmp(list, name, length) == 0) {
            double q = 1;
            for (const char *p = memchr(list, ';', (size_t)(end - list)); p;
                 p = memchr(p + 1, ';', (size_t)(end - p - 1))) {
                const char *key = p + 1 + strspn(p + 1, " \t");
                char text[8];
                if (strncasecmp(key, "q=", 2) != 0)
                    continue;
                snprintf(text, sizeof text, "%.*s", (int)MLO_MIN(strcspn(key + 2, " \t;,"), sizeof text - 1),
                         key + 2);
                q = mlo_str_to_f64(text, &q) && q >= 0 && q <= 1 ? q : 1;
            }
            best = MLO_MAX(best, q);
        }
        list = end;
    }
    return best;
}
