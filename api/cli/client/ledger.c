/* What `mlopt audit verify` checks of a ledger, on this machine: see registry/ledger_check.h. */
#include "api/cli/client/ledger.h"

#include <string.h>

#include "registry/ledger_service.h"

static const json_t *key_named(const json_t *keys, const char *fingerprint)
{
    json_t *key;
    size_t i;
    json_array_foreach((json_t *)keys, i, key)
    {
        if (strcmp(mlo_json_str(key, "fingerprint", ""), fingerprint) == 0)
            return key;
    }
    return NULL;
}

/* Whether a key was seen before, or is vouched for by one that was. The signatures themselves are checked
 * with the ledger. */
static bool trusted(const json_t *keys, const json_t *key, const json_t *seen)
{
    for (size_t steps = 0; key && steps <= json_array_size(keys); steps++) {
        if (json_object_get(seen, mlo_json_str(key, "fingerprint", "")))
            return true;
        key = key_named(keys, mlo_json_str(key, "endorser", ""));
    }
    return false;
}

/* The keys of the server, each seen here before or vouched for by one that was. */
static enum mlo_status fetch_keys(struct mlo_client *client, json_t *heads, const char *accepted,
                                  json_t **keys, struct mlo_error *err)
{
    struct mlo_buf name = MLO_BUF_INIT;
    json_t *answer = NULL, *key, *seen;
    size_t i;
    enum mlo_status status;
    mlo_buf_printf(&name, "%s /keys", mlo_client_url(client)); /* no project can have that name */
    MLO_TRY(mlo_client_get(client, "/v1/keys", &answer, err));
    *keys = json_incref(json_object_get(answer, "items"));
    seen = json_object_get(heads, mlo_buf_str(&name));
    json_array_foreach(*keys, i, key)
    {
        const char *fingerprint = mlo_json_str(key, "fingerprint", "?");
        if (json_object_size(seen) == 0 || trusted(*keys, key, seen) || mlo_str_eq(accepted, fingerprint))
            continue;
        status = mlo_error_set(err, MLO_EDIGEST,
                               "the server signs with a key that was not seen here before, and that "
                               "no known key vouches for: %s",
                               fingerprint);
        mlo_error_hint(err, "ask its admin; when it is meant to be: mlopt audit verify --accept-key %s",
                       fingerprint);
        goto out;
    }
    json_t *now = json_object();
    json_array_foreach(*keys, i, key)
        json_object_set_new(now, mlo_json_str(key, "fingerprint", "?"), json_true());
    if (json_object_set_new(heads, mlo_buf_str(&name), now) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(answer);
    mlo_buf_clear(&name);
    return status;
}

static void head_name(struct mlo_client *client, const char *project, struct mlo_buf *out)
{
    mlo_buf_printf(out, "%s %s ledger", mlo_client_url(client), project);
}

static enum mlo_status fetch_commits(struct mlo_client *client, struct mlo_client_ledger *out,
                                     struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *page = NULL, *row;
    size_t i;
    char id[MLO_GIT_ID_TEXT_SIZE];
    enum mlo_status status;
    mlo_client_path(&path, "/v1/projects/%s/audit?limit=1", out->project);
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &page, err));
    out->written_to = mlo_json_i64(json_array_get(json_object_get(page, "items"), 0), "seq", 0);
    mlo_buf_reset(&path);
    mlo_client_path(&path, "/v1/projects/%s/ledger?limit=200", out->project);
    size_t base = path.len;
    for (;;) {
        json_decref(page);
        page = NULL;
        MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &page, err));
        json_array_foreach(json_object_get(page, "items"), i, row)
        {
            if (out->clone && strcmp(mlo_json_str(row, "id", ""), mlo_git_id_text(&out->clone_tip, id)) == 0)
                out->clone_found = true;
            MLO_TRY(mlo_ledger_check_commit(out->check, row, err));
        }
        const char *cursor = mlo_json_str(page, "next", NULL);
        if (!cursor)
            break;
        path.len = base;
        mlo_client_path(&path, "&cursor=%s", cursor);
    }
out:
    json_decref(page);
    mlo_buf_clear(&path);
    return status;
}

enum mlo_status mlo_client_ledger_open(struct mlo_client *client, const char *project, const char *clone,
                                       const char *accepted_key, json_t *heads, struct mlo_client_ledger *out,
                                       struct mlo_error *err)
{
    struct mlo_buf name = MLO_BUF_INIT;
    json_t *keys = NULL;
    enum mlo_status status = MLO_OK;
    *out = (struct mlo_client_ledger){.project = project, .clone = clone};
    if (strcmp(project, "-") == 0) { /* the installation itself has no ledger */
        keys = json_array();
        out->check = mlo_ledger_check_new(keys, NULL);
        out->clone = NULL;
        status = out->check ? MLO_OK : mlo_error_nomem(err);
        goto out;
    }
    if (clone)
        MLO_TRY(mlo_ledger_tip(clone, &out->clone_tip, err));
    MLO_TRY(fetch_keys(client, heads, accepted_key, &keys, err));
    head_name(client, project, &name);
    const json_t *seen = json_object_get(heads, mlo_buf_str(&name));
    if (mlo_git_id_parse(mlo_json_str(seen, "id", ""), &out->remembered.id))
        out->remembered.n = mlo_json_i64(seen, "n", 0);
    out->check = mlo_ledger_check_new(keys, &out->remembered);
    if (!out->check) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(fetch_commits(client, out, err));
out:
    json_decref(keys);
    mlo_buf_clear(&name);
    return status;
}

void mlo_client_ledger_end(struct mlo_client *client, struct mlo_client_ledger *ledger, json_t *heads)
{
    struct mlo_buf name = MLO_BUF_INIT;
    struct mlo_ledger_result *result = &ledger->result;
    char id[MLO_GIT_ID_TEXT_SIZE];
    mlo_ledger_check_end(ledger->check, result);
    if (result->intact && ledger->clone && !ledger->clone_found) {
        result->intact = false;
        snprintf(
            result->problem, sizeof result->problem,
            "the clone %.120s is at %s, which is no commit of the ledger: one of them was rewritten, or the "
            "ledger was cut",
            ledger->clone, mlo_git_id_text(&ledger->clone_tip, id));
    }
    head_name(client, ledger->project, &name);
    if (result->intact && result->head.n)
        json_object_set_new(heads, mlo_buf_str(&name),
                            json_pack("{s:I, s:s}", "n", (json_int_t)result->head.n, "id",
                                      mlo_git_id_text(&result->head.id, id)));
    mlo_buf_clear(&name);
}

json_t *mlo_client_ledger_json(const struct mlo_client_ledger *ledger)
{
    const struct mlo_ledger_result *result = &ledger->result;
    char id[MLO_GIT_ID_TEXT_SIZE] = "";
    if (result->head.n)
        mlo_git_id_text(&result->head.id, id);
    return json_pack("{s:b, s:I, s:s, s:o, s:s, s:I}", "ok", result->intact, "commits",
                     (json_int_t)result->commits, "head", id, "bad_commit",
                     result->bad_commit ? json_integer(result->bad_commit) : json_null(), "problem",
                     result->problem, "remembered", (json_int_t)ledger->remembered.n);
}

void mlo_client_ledger_close(struct mlo_client_ledger *ledger)
{
    mlo_ledger_check_free(ledger->check);
    ledger->check = NULL;
}
