#include "registry/actor.h"

#include <string.h>

static const char *const role_names[MLO_ROLE_COUNT] = {"viewer", "submitter", "promoter", "approver",
                                                       "admin"};

const char *mlo_role_name(enum mlo_role role)
{
    return role < MLO_ROLE_COUNT ? role_names[role] : "unknown";
}

bool mlo_role_parse(const char *text, enum mlo_role *out)
{
    for (size_t i = 0; text && i < MLO_ROLE_COUNT; i++) {
        if (strcmp(text, role_names[i]) == 0) {
            *out = (enum mlo_role)i;
            return true;
        }
    }
    return false;
}

/* A token that is bound to a project touches no other. */
static enum mlo_status in_scope(const struct mlo_actor *actor, int64_t project_id, struct mlo_error *err)
{
    if (actor->project_id && actor->project_id != project_id) {
        mlo_error_set(err, MLO_EFORBIDDEN, "the token of %s is bound to another project", actor->name);
        mlo_error_hint(err, "use a token of this project, or one for all projects");
        return MLO_EFORBIDDEN;
    }
    return MLO_OK;
}

enum mlo_status mlo_actor_require(const struct mlo_actor *actor, int64_t project_id, enum mlo_role role,
                                  struct mlo_error *err)
{
    if (actor->role < role) {
        mlo_error_set(err, MLO_EFORBIDDEN, "%s is a %s; this needs a %s", actor->name,
                      mlo_role_name(actor->role), mlo_role_name(role));
        mlo_error_hint(err, "use a token with the role %s", mlo_role_name(role));
        return MLO_EFORBIDDEN;
    }
    return in_scope(actor, project_id, err);
}

enum mlo_status mlo_actor_may_rollback(const struct mlo_actor *actor, int64_t project_id,
                                       struct mlo_error *err)
{
    if (actor->rollback == MLO_RIGHT_BY_ROLE)
        return mlo_actor_require(actor, project_id, MLO_PROMOTER, err);
    if (actor->rollback == MLO_RIGHT_GRANTED)
        return in_scope(actor, project_id, err);
    mlo_error_set(err, MLO_EFORBIDDEN, "the token of %s may not roll back", actor->name);
    mlo_error_hint(err, "ask an admin for a token with the right to roll back");
    return MLO_EFORBIDDEN;
}
