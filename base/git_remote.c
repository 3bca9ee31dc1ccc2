#include "base/git_remote.h"

#include <string.h>
#include <strings.h>

void mlo_git_remote_public(const char *address, struct mlo_buf *out)
{
    const char *rest = strstr(address, "://");
    if (!rest || strcspn(address, "/@") < (size_t)(rest + 1 - address))
        rest = address; /* scp's form, or a path */
    else
        rest += 3;
    bool http = strncasecmp(address, "http://", 7) == 0 || strncasecmp(address, "https://", 8) == 0;
    mlo_buf_append(out, address, (size_t)(rest - address));
    const char *at = rest + strcspn(rest, "/?#");
    while (at > rest && *at != '@') /* the last one: a password may hold others */
        at--;
    if (*at == '@') {
        if (!http) {
            mlo_buf_append(out, rest, strcspn(rest, ":@"));
            mlo_buf_putc(out, '@');
        }
        rest = at + 1;
    }
    mlo_buf_append(out, rest, http ? strcspn(rest, "?#") : strlen(rest));
}
