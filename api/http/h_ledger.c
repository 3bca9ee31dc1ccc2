/* Ledgers: their commits as JSON, and their repositories as stock git reads them over plain HTTP (git's
 * "dumb" protocol: files). Signing keys. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/http/handlers_impl.h"

static enum mlo_status ledger_of(const struct mlo_request *req, struct mlo_ledger **out,
                                 struct mlo_error *err)
{
    *out = mlo_http_options(req->http)->ledger;
    if (*out)
        return MLO_OK;
    mlo_error_set(err, MLO_EUNAVAILABLE, "this server keeps no ledgers");
    mlo_error_hint(err, "start it with --ledger DIR, and the key of this installation there (ledger.key)");
    return MLO_EUNAVAILABLE;
}

/* --- commits ------------------------------------------------------------------------------------ */

enum mlo_status h_ledger(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_ledger *ledger = mlo_http_options(req->http)->ledger;
    struct mlo_error why = {0};
    struct mlo_page page;
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    /* what is there is shown also by a server that can write none */
    if (ledger && !mlo_request_query(req, "cursor") &&
        mlo_ledger_freshen(ledger, req->conn, project, &why) != MLO_OK)
        mlo_log_error(MLO_LOG_WARN, "a ledger could not be written", &why);
    MLO_TRY(mlo_ledger_list(req->conn, project, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

/* --- the repository ------------------------------------------------------------------------------ */

static bool hex(const char *text, size_t length)
{
    return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

static enum mlo_status no_file(struct mlo_error *err)
{
    return mlo_error_set(err, MLO_ENOTFOUND, "the repository has no such file");
}

/* A file of the project's repository; its names are checked by the caller. */
static enum mlo_status reply_git_file(struct mlo_request *req, const char *file, const char *content_type,
                                      struct mlo_error *err)
{
    struct mlo_ledger *ledger;
    struct stat st;
    int64_t project;
    char *repository = NULL, *path = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(ledger_of(req, &ledger, err));
    repository = mlo_ledger_repository(ledger, mlo_request_param(req, "p"));
    path = repository ? mlo_fs_join(repository, file, NULL) : NULL;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        status = no_file(err);
        goto out;
    }
    MLO_TRY(mlo_reply_file(req, fd, (uint64_t)st.st_size, mlo_fs_basename(file), content_type, err));
out:
    free(repository);
    free(path);
    return status;
}

enum mlo_status h_git_head(struct mlo_request *req, struct mlo_error *err)
{
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    mlo_buf_puts(&req->out, "ref: refs/heads/main\n");
    MLO_TRY(mlo_reply_out(req, 200, "text/plain; charset=utf-8", err));
out:
    return status;
}

/* Written up to date before it is shown, so that a clone holds what was promoted a moment ago. The tip is the
 * repository's, not the database's: another server's commit may be recorded before its objects are here. */
enum mlo_status h_git_refs(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_ledger *ledger;
    struct mlo_error none = {0};
    struct mlo_git_id tip;
    char id[MLO_GIT_ID_TEXT_SIZE], *repository = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(ledger_of(req, &ledger, err));
    MLO_TRY(mlo_ledger_freshen(ledger, req->conn, project, err));
    repository = mlo_ledger_repository(ledger, mlo_request_param(req, "p"));
    MLO_TRY(repository ? MLO_OK : mlo_error_nomem(err));
    status = mlo_ledger_tip(repository, &tip, &none);
    if (status == MLO_OK) {
        mlo_buf_printf(&req->out, "%s\trefs/heads/main\n", mlo_git_id_text(&tip, id));
    } else if (status != MLO_ENOTFOUND) { /* nothing was promoted yet */
        *err = none;
        goto out;
    }
    MLO_TRY(mlo_reply_out(req, 200, "text/plain; charset=utf-8", err));
out:
    free(repository);
    return status;
}

enum mlo_status h_git_packs(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_ledger *ledger;
    int64_t project;
    char *repository = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(ledger_of(req, &ledger, err));
    repository = mlo_ledger_repository(ledger, mlo_request_param(req, "p"));
    MLO_TRY(repository ? MLO_OK : mlo_error_nomem(err));
    mlo_ledger_packs_list(repository, &req->out);
    MLO_TRY(mlo_reply_out(req, 200, "text/plain; charset=utf-8", err));
out:
    free(repository);
    return status;
}

enum mlo_status h_git_object(struct mlo_request *req, struct mlo_error *err)
{
    const char *folder = mlo_request_param(req, "dir"), *file = mlo_request_param(req, "file");
    char path[128];
    if (!hex(folder, 2) || !hex(file, 38))
        return no_file(err);
    snprintf(path, sizeof path, "objects/%s/%s", folder, file);
    return reply_git_file(req, path, "application/x-git-loose-object", err);
}

enum mlo_status h_git_pack(struct mlo_request *req, struct mlo_error *err)
{
    const char *file = mlo_request_param(req, "file");
    char id[48] = "", path[128];
    bool pack = mlo_str_ends(file, ".pack");
    if (mlo_str_starts(file, "pack-"))
        snprintf(id, sizeof id, "%.40s", file + 5);
    if (!hex(id, 40) || strcmp(file + 45, pack ? ".pack" : ".idx") != 0)
        return no_file(err);
    snprintf(path, sizeof path, "objects/pack/%s", file);
    return reply_git_file(
        req, path, pack ? "application/x-git-packed-objects" : "application/x-git-packed-objects-toc", err);
}

/* --- keys ----------------------------------------------------------------------------------------- */

static enum mlo_status reply_keys(struct mlo_request *req, int status_code, struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    json_t *keys = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_keys_list(conn, &keys, err));
    MLO_TRY(mlo_reply_json(req, status_code, mlo_list_of(keys), err));
out:
    return status;
}

enum mlo_status h_keys(struct mlo_request *req, struct mlo_error *err)
{
    return reply_keys(req, 200, err);
}

enum mlo_status h_allowed_signers(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    json_t *keys = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_keys_list(conn, &keys, err));
    mlo_keys_allowed_signers(keys, &req->out);
    MLO_TRY(mlo_reply_out(req, 200, "text/plain; charset=utf-8", err));
out:
    json_decref(keys);
    return status;
}

enum mlo_status h_key_rotate(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_ledger *ledger;
    struct mlo_db_conn *conn;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    MLO_TRY(ledger_of(req, &ledger, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_ledger_rotate(ledger, conn, &actor, err));
    MLO_TRY(reply_keys(req, 201, err));
out:
    return status;
}

enum mlo_status h_key_revoke(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    const char *fingerprint, *from = NULL;
    json_t *body;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "fingerprint", NULL, &fingerprint, err));
    MLO_TRY(mlo_json_get_str(body, "from", "", &from, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_keys_revoke(conn, &actor, fingerprint, *from ? from : NULL, err));
    MLO_TRY(reply_keys(req, 200, err));
out:
    return status;
}
