/* Parts of a file straight to the bucket, by addresses that the server hands out. */
#ifndef MLO_CLI_DIRECT_H
#define MLO_CLI_DIRECT_H

#include "api/cli/client/client.h"

/* Sends the parts of an upload that have not arrived, several at a time. `session` is the upload's path,
 * `state` the member "direct" of what the server says of it. *some: a part arrived now or before.
 * MLO_EUNAVAILABLE when the bucket cannot be reached, or refuses. */
MLO_MUST_USE enum mlo_status mlo_client_send_parts(struct mlo_client *client, const char *session,
                                                   const json_t *state, int fd,
                                                   struct mlo_cli_progress *progress, bool *some,
                                                   struct mlo_error *err);

#endif
