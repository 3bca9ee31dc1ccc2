/* The statements that workers sign of what they make, as the client reads them. */
#ifndef MLO_CLI_STATEMENT_H
#define MLO_CLI_STATEMENT_H

#include "api/cli/client/client.h"

/* One statement, its signature checked. */
struct mlo_statement {
    json_t *value; /* NULL: the envelope does not hold */
    struct mlo_public_key signer;
    struct mlo_error why;
};

/* Of an item of a list of attestations. Always fills `out`; json_decref its value. */
void mlo_statement_open(const json_t *item, struct mlo_statement *out);
/* Of a resource descriptor: 64 hex digits, "" where there is none. Borrowed. */
const char *mlo_statement_sha256(const json_t *resource);
const json_t *mlo_statement_subject(const json_t *statement);
const json_t *mlo_statement_definition(const json_t *statement);
/* The digest of the model that it was made of. */
const char *mlo_statement_parent(const json_t *statement);
/* Those of the variant that `name` says, and of all that it came from: {artifact, items}, yours. `source`
 * becomes the digest of the upload, in hex. */
MLO_MUST_USE enum mlo_status mlo_statements_fetch(struct mlo_client *client, const char *name,
                                                  struct mlo_client_ref *ref, json_t **out, char source[72],
                                                  struct mlo_error *err);

#endif
