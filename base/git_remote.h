/* Addresses of git repositories, as people may see them. */
#ifndef MLO_BASE_GIT_REMOTE_H
#define MLO_BASE_GIT_REMOTE_H

#include "base/str.h"

/* Appends the address (a URL, the scp form "user@host:path", or a path) without what may be a secret: of
 * http and https URLs user, password, query and fragment; of all other URLs the password. The user that ssh
 * needs stays. */
void mlo_git_remote_public(const char *address, struct mlo_buf *out);

#endif
