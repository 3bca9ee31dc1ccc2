#include "registry/actor.h"

#include <stdarg.h>
#include <string.h>

static const char *const role_names[MLO_ROLE_COUNT] = {"viewer", "submitter", "promoter", "approver",
                                                       "admin"};

const char *mlo_role_name(enum mlo_role role)
{
    return role < MLO_ROLE_COUNT ? role_names[role] : "unknown";
}

const char *mlo_kind_name(enum mlo_principal_kind kind)
{
    static const char *const names[MLO_KIND_COUNT] = {"token", "person", "service"};
    return kind < MLO_KIND_COUNT ? names[kind] : "unknown";
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

enum mlo_status mlo_actor_require_person(const struct mlo_actor *actor, struct mlo_error *err)
{
    if (actor->kind != MLO_KIND_SERVICE)
        return MLO_OK;
    mlo_error_set(err, MLO_EFORBIDDEN, "%s is a service account: members and tokens are made by people",
                  actor->name);
    mlo_error_hint(err, "let a person do it who is an admin of the project");
    return MLO_EFORBIDDEN;
}

enum mlo_status mlo_actor_reason(const char *reason, const char *what, struct mlo_error *err)
{
    if (reason && reason[strspn(reason, " \t\r\n")] != '\0')
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "%s needs a reason", what);
    mlo_error_where(err, "field 'reason'");
    return MLO_EINVAL;
}

enum mlo_role mlo_actor_role(const struct mlo_actor *actor, const char *stage)
{
    return MLO_MAX(actor->role, actor->stage_role[mlo_stage_index(stage)]);
}

enum mlo_role mlo_principal_most(const struct mlo_principal *who)
{
    enum mlo_role most = who->role;
    for (size_t i = 0; i < MLO_COUNT(who->stage_role); i++)
        most = MLO_MAX(most, who->stage_role[i]);
    return most;
}

/* `what` (printf-like) is what the member lacks. */
static void MLO_PRINTF(3, 4)
    hint_members_set(const struct mlo_actor *actor, struct mlo_error *err, const char *what, ...)
{
    const char *slash = actor->kind == MLO_KIND_SERVICE ? strchr(actor->name, '/') : NULL;
    char lacks[80];
    va_list args;
    va_start(args, what);
    vsnprintf(lacks, sizeof lacks, what, args);
    va_end(args);
    mlo_error_hint(err,
                   "a person who is an admin of the project grants it, saying all of the member anew: mlopt "
                   "members set PROJECT %.100s%s --role ROLE%s",
                   slash ? slash + 1 : actor->name, slash ? " --service" : "", lacks);
}

enum mlo_status mlo_actor_require_stage(const struct mlo_actor *actor, int64_t project_id, const char *stage,
                                        enum mlo_role role, struct mlo_error *err)
{
    enum mlo_role has = mlo_actor_role(actor, stage);
    if (has < role) {
        mlo_error_set(err, MLO_EFORBIDDEN, "%s is a %s for %s; this needs a %s", actor->name,
                      mlo_role_name(has), stage, mlo_role_name(role));
        if (actor->kind == MLO_KIND_TOKEN)
            mlo_error_hint(err, "use a token with the role %s, or one of a member who has it for %s",
                           mlo_role_name(role), stage);
        else
            hint_members_set(actor, err, " --stage %s=%s", stage, mlo_role_name(role));
        return MLO_EFORBIDDEN;
    }
    return in_scope(actor, project_id, err);
}

enum mlo_status mlo_actor_may_rollback(const struct mlo_actor *actor, int64_t project_id, const char *stage,
                                       struct mlo_error *err)
{
    bool elsewhere = actor->only_stage && actor->only_stage[0] && strcmp(actor->only_stage, stage) != 0;
    if (actor->rollback == MLO_RIGHT_BY_ROLE)
        return mlo_actor_require_stage(actor, project_id, stage, MLO_PROMOTER, err);
    if (actor->rollback == MLO_RIGHT_GRANTED && !elsewhere)
        return in_scope(actor, project_id, err);
    mlo_error_set(err, MLO_EFORBIDDEN, "the token of %s may not roll back%s%s", actor->name,
                  elsewhere ? " " : "", elsewhere ? stage : "");
    mlo_error_hint(err, "ask an admin for a token with the right to roll back");
    return MLO_EFORBIDDEN;
}

enum mlo_status mlo_actor_may_approve(const struct mlo_actor *actor, int64_t project_id, const char *stage,
                                      struct mlo_error *err)
{
    if (actor->kind == MLO_KIND_SERVICE && !actor->may_approve) {
        mlo_error_set(err, MLO_EFORBIDDEN, "%s is a service account, and was not granted to approve",
                      actor->name);
        hint_members_set(actor, err, " --approve");
        return MLO_EFORBIDDEN;
    }
    return mlo_actor_require_stage(actor, project_id, stage, MLO_PROMOTER, err);
}
