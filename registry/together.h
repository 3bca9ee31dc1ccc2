/* What many requests ask all the time, asked together (gather.h): who it is, and a version with all that is
 * shown of it. The same as mlo_token_check and mlo_version_get, in one round trip for all who ask. */
#ifndef MLO_REGISTRY_TOGETHER_H
#define MLO_REGISTRY_TOGETHER_H

#include "registry/gather.h"
#include "registry/models.h"

/* The question of a token's text; MLO_EAUTH for one that is no token. Stays where it is until it is answered:
 * `ask` borrows the rest. */
struct mlo_token_question {
    struct mlo_gather_ask ask;
    struct mlo_digest hash[2];
    char hex[2][MLO_DIGEST_TEXT_SIZE];
};
MLO_MUST_USE enum mlo_status mlo_token_ask(const char *text, struct mlo_token_question *out,
                                           struct mlo_error *err);
/* Who it is, once mlo_gather_read has filled `ask`, with the failures of mlo_token_check. A use that is to be
 * noted takes a connection of `db`. */
MLO_MUST_USE enum mlo_status mlo_token_answer(struct mlo_db *db, const struct mlo_token_question *question,
                                              struct mlo_principal *out, struct mlo_error *err);

/* The question of a version, deleted ones too: valid names, and the text of a number (NULL: the latest that
 * is not archived), all borrowed. */
struct mlo_gather_ask mlo_version_ask(const char *project, const char *model, const char *number);
/* Its answer: what mlo_version_get says, appended as JSON text. As mlo_project_find for `role`;
 * MLO_ENOTFOUND, without saying what is not there, where there is none. */
MLO_MUST_USE enum mlo_status mlo_version_answer(const struct mlo_gather_ask *ask,
                                                const struct mlo_actor *actor, enum mlo_role role,
                                                struct mlo_version_info *info, struct mlo_buf *out,
                                                struct mlo_error *err);

#endif
