/* Models, versions and aliases as MLflow's client asks for them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/http/mlflow_impl.h"

#define SEARCH_MODELS_DEFAULT 100
#define SEARCH_VERSIONS_DEFAULT 10000
#define SEARCH_MODELS_MAX 1000 /* what MLflow's own server lets one ask for */
#define SEARCH_VERSIONS_MAX 200000
#define LIST_MAX 16 /* texts of an argument that is a list */

/* --- what is asked ----------------------------------------------------------------------------- */

static enum mlo_status required(const struct mlo_request *req, const char *name, const char **out,
                                struct mlo_error *err)
{
    *out = mlo_request_query(req, name);
    if (*out)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "the argument '%s' is missing", name);
    mlo_error_where(err, "query argument '%s'", name);
    return MLO_EINVAL;
}

struct texts {
    const char *name, *items[LIST_MAX];
    size_t count;
    bool more; /* than there is room for */
};

static enum MHD_Result take_text(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct texts *texts = cls;
    MLO_UNUSED(kind);
    if (strcmp(key, texts->name) != 0 || !value || !*value)
        return MHD_YES;
    if (texts->count == LIST_MAX)
        texts->more = true;
    else
        texts->items[texts->count++] = value;
    return MHD_YES;
}

/* An argument that may come several times. */
static enum mlo_status query_list(const struct mlo_request *req, const char *name, struct texts *out,
                                  struct mlo_error *err)
{
    *out = (struct texts){.name = name};
    MHD_get_connection_values(req->connection, MHD_GET_ARGUMENT_KIND, take_text, out);
    if (!out->more)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%s' comes more than %d times", name, LIST_MAX);
    mlo_error_where(err, "query argument '%s'", name);
    return MLO_EINVAL;
}

static enum mlo_status find_model(struct mlo_request *req, const char *name, int64_t *model,
                                  struct mlo_error *err)
{
    const struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    char project_name[104], model_name[104];
    int64_t project;
    enum mlo_status status;
    if (!mlo_catalog_name_parse(name, project_name, model_name))
        return mlo_error_set(err, MLO_ENOTFOUND, "no name");
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_project_find(conn, &actor, project_name, req->route->role, &project, err));
    MLO_TRY(mlo_model_find(conn, project, model_name, model, err));
out:
    return status;
}

enum mlo_status mlo_mlflow_find(struct mlo_request *req, const char *name, int64_t *model,
                                struct mlo_error *err)
{
    enum mlo_status status = find_model(req, name, model, err);
    if (status != MLO_ENOTFOUND)
        return status;
    mlo_error_set(err, MLO_ENOTFOUND, "Registered Model with name=%.200s not found", name);
    mlo_error_hint(err, "a name is PROJECT.MODEL, dots of the project doubled; search lists them");
    return MLO_ENOTFOUND;
}

enum mlo_status mlo_mlflow_find_version(struct mlo_request *req, const char *name, const char *version,
                                        struct mlo_version_info *out, struct mlo_error *err)
{
    int64_t model, number;
    enum mlo_status status;
    MLO_TRY(mlo_mlflow_find(req, name, &model, err));
    if (!mlo_str_to_i64(version, &number) || number < 1) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "Model Version (name=%.200s, version=%.40s) not found",
                               name, version);
        mlo_error_hint(err, "a version is a number");
        goto out;
    }
    status = mlo_version_find(req->conn, model, number, out, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_prefix(err, "Model Version (name=%.200s, version=%lld) not found", name, (long long)number);
out:
    return status;
}

/* --- models and versions ----------------------------------------------------------------------- */

/* Ids without those that are 0 or there already. */
struct ids {
    int64_t *items;
    size_t count;
};

static void add_id(struct ids *ids, int64_t id)
{
    for (size_t i = 0; i < ids->count; i++)
        if (ids->items[i] == id)
            return;
    if (id)
        ids->items[ids->count++] = id;
}

/* The newest version that is not archived, and those in the stages: what MLflow calls the latest versions. */
static void latest_ids(const json_t *model, struct ids *ids)
{
    json_t *stage;
    size_t i;
    json_array_foreach(json_object_get(model, "stages"), i, stage) add_id(ids, mlo_json_i64(stage, "id", 0));
    add_id(ids, mlo_json_i64(model, "latest", 0));
}

/* Models as MLflow shows them; *out is a new array. */
static enum mlo_status show_models(struct mlo_request *req, const json_t *rows, json_t **out,
                                   struct mlo_error *err)
{
    struct ids ids = {mlo_arena_alloc(req->arena, (json_array_size(rows) * 3 + 1) * sizeof(int64_t)), 0};
    json_t *versions = NULL, *row;
    size_t i;
    enum mlo_status status;
    *out = json_array();
    if (!ids.items || !*out)
        return mlo_error_nomem(err);
    json_array_foreach((json_t *)rows, i, row)
    {
        struct ids own = {ids.items + ids.count, 0}; /* of different models they are different */
        latest_ids(row, &own);
        ids.count += own.count;
    }
    MLO_TRY(mlo_catalog_versions_of(req->conn, ids.items, ids.count, &versions, err));
    json_array_foreach((json_t *)rows, i, row)
    {
        if (json_array_append_new(*out, mlo_mlflow_model(row, versions)) != 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
out:
    json_decref(versions);
    return status;
}

static enum mlo_status show_versions(const json_t *rows, json_t **out, struct mlo_error *err)
{
    json_t *row;
    size_t i;
    *out = json_array();
    json_array_foreach((json_t *)rows, i, row) if (json_array_append_new(*out, mlo_mlflow_version(row)) !=
                                                   0) return mlo_error_nomem(err);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

/* The one row of a model, in an array that is yours. */
static enum mlo_status model_row(struct mlo_request *req, const char *name, json_t **out,
                                 struct mlo_error *err)
{
    const struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_catalog what = {.limit = 1};
    bool more;
    enum mlo_status status;
    *out = NULL;
    MLO_TRY(mlo_mlflow_find(req, name, &what.model_id, err));
    MLO_TRY(mlo_catalog_models(req->conn, &actor, &what, out, &more, err));
    if (json_array_size(*out) == 0) /* it was deleted at this very moment */
        status = mlo_error_set(err, MLO_ENOTFOUND, "Registered Model with name=%.200s not found", name);
out:
    return status;
}

enum mlo_status h_mlflow_model(struct mlo_request *req, struct mlo_error *err)
{
    const char *name;
    json_t *rows = NULL, *models = NULL;
    enum mlo_status status;
    MLO_TRY(required(req, "name", &name, err));
    MLO_TRY(model_row(req, name, &rows, err));
    MLO_TRY(show_models(req, rows, &models, err));
    status = mlo_reply_json(req, 200, json_pack("{s:O}", "registered_model", json_array_get(models, 0)), err);
out:
    json_decref(rows);
    json_decref(models);
    return status;
}

static enum mlo_status reply_version(struct mlo_request *req, int64_t id, struct mlo_error *err)
{
    json_t *rows = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_catalog_versions_of(req->conn, &id, 1, &rows, err));
    MLO_TRY(mlo_reply_json(
        req, 200, json_pack("{s:o}", "model_version", mlo_mlflow_version(json_array_get(rows, 0))), err));
out:
    json_decref(rows);
    return status;
}

static enum mlo_status asked_version(struct mlo_request *req, struct mlo_version_info *out, const char **name,
                                     struct mlo_error *err)
{
    const char *version;
    enum mlo_status status;
    MLO_TRY(required(req, "name", name, err));
    MLO_TRY(required(req, "version", &version, err));
    MLO_TRY(mlo_mlflow_find_version(req, *name, version, out, err));
out:
    return status;
}

enum mlo_status h_mlflow_version(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_version_info info;
    const char *name;
    enum mlo_status status;
    MLO_TRY(asked_version(req, &info, &name, err));
    MLO_TRY(reply_version(req, info.id, err));
out:
    return status;
}

enum mlo_status h_mlflow_download_uri(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_version_info info;
    const char *name;
    enum mlo_status status;
    MLO_TRY(asked_version(req, &info, &name, err));
    char *uri = mlo_arena_printf(req->arena, "mlflow-artifacts:/%s/%lld", name, (long long)info.number);
    MLO_TRY(uri ? mlo_reply_json(req, 200, json_pack("{s:s}", "artifact_uri", uri), err)
                : mlo_error_nomem(err));
out:
    return status;
}

enum mlo_status h_mlflow_alias(struct mlo_request *req, struct mlo_error *err)
{
    const char *name, *alias;
    json_t *rows = NULL, *stage;
    size_t i;
    int64_t id = 0;
    enum mlo_status status;
    MLO_TRY(required(req, "name", &name, err));
    MLO_TRY(required(req, "alias", &alias, err));
    MLO_TRY(model_row(req, name, &rows, err));
    json_array_foreach(json_object_get(json_array_get(rows, 0), "stages"), i,
                       stage) if (strcmp(mlo_json_str(stage, "stage", ""), alias) == 0) id =
        mlo_json_i64(stage, "id", 0);
    if (id) {
        MLO_TRY(reply_version(req, id, err));
        goto out;
    }
    status = mlo_error_set(err, MLO_ENOTFOUND, "Registered model alias %.100s not found", alias);
    mlo_error_hint(err, "the aliases of a model are the stages that hold a version: staging, production");
out:
    json_decref(rows);
    return status;
}

/* The version that MLflow means by a stage, 0: none. False: there is no such stage. */
static bool stage_version(const json_t *model, const char *stage, int64_t *id)
{
    static const struct {
        const char *name, *member; /* of the model; NULL: one of its stages */
    } names[] = {{"production", NULL}, {"staging", NULL}, {"none", "loose"}, {"archived", "archived"}};
    json_t *held;
    size_t at;
    *id = 0;
    for (size_t i = 0; i < MLO_COUNT(names); i++) {
        if (strcasecmp(stage, names[i].name) != 0)
            continue;
        if (names[i].member)
            *id = mlo_json_i64(model, names[i].member, 0);
        else
            json_array_foreach(json_object_get(model, "stages"), at,
                               held) if (strcmp(mlo_json_str(held, "stage", ""), names[i].name) == 0) *id =
                mlo_json_i64(held, "id", 0);
        return true;
    }
    return false;
}

static enum mlo_status reply_latest(struct mlo_request *req, const char *name, const struct texts *stages,
                                    struct mlo_error *err)
{
    int64_t room[LIST_MAX + 3], id;
    struct ids ids = {room, 0};
    json_t *model = NULL, *rows = NULL, *versions = NULL;
    enum mlo_status status;
    MLO_TRY(model_row(req, name, &model, err));
    for (size_t i = 0; i < stages->count; i++) {
        if (!stage_version(json_array_get(model, 0), stages->items[i], &id)) {
            status = mlo_error_set(err, MLO_EINVAL, "there is no stage '%.60s'", stages->items[i]);
            mlo_error_where(err, "argument 'stages'");
            mlo_error_hint(err, "the stages are Production, Staging, Archived and None");
            goto out;
        }
        add_id(&ids, id);
    }
    if (!stages->count)
        latest_ids(json_array_get(model, 0), &ids);
    MLO_TRY(mlo_catalog_versions_of(req->conn, ids.items, ids.count, &rows, err));
    MLO_TRY(show_versions(rows, &versions, err));
    status = mlo_reply_json(req, 200, json_pack("{s:O}", "model_versions", versions), err);
out:
    json_decref(model);
    json_decref(rows);
    json_decref(versions);
    return status;
}

enum mlo_status h_mlflow_latest(struct mlo_request *req, struct mlo_error *err)
{
    struct texts stages;
    const char *name;
    enum mlo_status status;
    MLO_TRY(required(req, "name", &name, err));
    MLO_TRY(query_list(req, "stages", &stages, err));
    MLO_TRY(reply_latest(req, name, &stages, err));
out:
    return status;
}

/* The same, asked by POST: what the client tries first. */
enum mlo_status h_mlflow_latest_post(struct mlo_request *req, struct mlo_error *err)
{
    struct texts stages = {.name = "stages"};
    const char *name;
    json_t *body, *item;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "name", NULL, &name, err));
    json_t *list = json_object_get(body, "stages");
    bool good = !list || json_is_null(list) || (json_is_array(list) && json_array_size(list) <= LIST_MAX);
    json_array_foreach(list, i, item)
    {
        good = good && json_is_string(item);
        if (good)
            stages.items[stages.count++] = json_string_value(item);
    }
    if (!good) {
        status = mlo_error_set(err, MLO_EINVAL, "'stages' must be an array of at most %d texts", LIST_MAX);
        mlo_error_where(err, "field 'stages'");
        goto out;
    }
    MLO_TRY(reply_latest(req, name, &stages, err));
out:
    return status;
}

/* --- search ------------------------------------------------------------------------------------ */

/* A search, and where it goes on. A token says which search it is of. */
struct search {
    enum mlo_mlflow_kind kind;
    struct mlo_catalog what;
    struct mlo_catalog_key after;
    json_t *conditions;
    char id[17]; /* hex of the digest of what is searched */
    bool nothing;
};

static void search_id(struct search *s)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest digest;
    mlo_json_canonical(s->conditions, &text);
    mlo_buf_printf(&text, "|%d|%d|%d", (int)s->kind, (int)s->what.order, s->what.falling);
    mlo_digest_of(mlo_buf_str(&text), text.len, &digest);
    mlo_hex(digest.bytes, 8, s->id);
    mlo_buf_clear(&text);
}

/* ID~NUMBER~VERSION~NAME */
static enum mlo_status read_token(struct search *s, const char *token, struct mlo_error *err)
{
    char number[24], version[24], project[104], model[104];
    const char *at = token;
    if (!token)
        return MLO_OK;
    if (strncmp(at, s->id, 16) != 0 || at[16] != '~')
        goto bad;
    at += 17;
    size_t n = strcspn(at, "~");
    if (n >= sizeof number || !at[n])
        goto bad;
    snprintf(number, sizeof number, "%.*s", (int)n, at);
    at += n + 1;
    n = strcspn(at, "~");
    if (n >= sizeof version || !at[n] || strlen(at + n + 1) >= sizeof s->after.name)
        goto bad;
    snprintf(version, sizeof version, "%.*s", (int)n, at);
    snprintf(s->after.name, sizeof s->after.name, "%s", at + n + 1);
    if (!mlo_str_to_i64(number, &s->after.number) || !mlo_str_to_i64(version, &s->after.version) ||
        s->after.version < 0 || !mlo_catalog_name_parse(s->after.name, project, model))
        goto bad;
    s->what.after = &s->after;
    return MLO_OK;
bad:
    mlo_error_set(err, MLO_EINVAL, "the page_token is not one that this search gave");
    mlo_error_where(err, "query argument 'page_token'");
    mlo_error_hint(err, "go on with the same filter and order_by, or begin without a token");
    return MLO_EINVAL;
}

static char *next_token(const struct mlo_request *req, const struct search *s, const json_t *last)
{
    return mlo_arena_printf(req->arena, "%s~%lld~%lld~%s", s->id, (long long)mlo_json_i64(last, "key", 0),
                            (long long)mlo_json_i64(last, "version", 0), mlo_json_str(last, "name", ""));
}

/* A search for one name looks at that model alone. */
static enum mlo_status narrow(struct mlo_request *req, struct search *s, struct mlo_error *err)
{
    json_t *condition;
    size_t i;
    json_array_foreach(s->conditions, i, condition)
    {
        if (strcmp(mlo_json_str(condition, "field", ""), "name") != 0 ||
            strcmp(mlo_json_str(condition, "op", ""), "=") != 0)
            continue;
        enum mlo_status status = find_model(req, mlo_json_str(condition, "text", ""), &s->what.model_id, err);
        s->nothing = status == MLO_ENOTFOUND;
        return s->nothing ? MLO_OK : status;
    }
    return MLO_OK;
}

static enum mlo_status read_search(struct mlo_request *req, struct search *s, struct mlo_error *err)
{
    static const enum mlo_catalog_order orders[] = {[MLO_MLFLOW_NAME] = MLO_CATALOG_NAME,
                                                    [MLO_MLFLOW_VERSION] = MLO_CATALOG_VERSION,
                                                    [MLO_MLFLOW_CREATED] = MLO_CATALOG_CREATED,
                                                    [MLO_MLFLOW_CHANGED] = MLO_CATALOG_CHANGED};
    const bool versions = s->kind == MLO_MLFLOW_VERSIONS;
    struct mlo_mlflow_order order;
    struct mlo_db_conn *conn;
    struct texts entries;
    int64_t most;
    enum mlo_status status;
    MLO_TRY(mlo_request_query_i64(req, "max_results",
                                  versions ? SEARCH_VERSIONS_DEFAULT : SEARCH_MODELS_DEFAULT, 1,
                                  versions ? SEARCH_VERSIONS_MAX : SEARCH_MODELS_MAX, &most, err));
    MLO_TRY(mlo_mlflow_filter(s->kind, mlo_request_query(req, "filter"), &s->conditions, err));
    MLO_TRY(query_list(req, "order_by", &entries, err));
    MLO_TRY(mlo_mlflow_order(s->kind, entries.items, entries.count, &order, err));
    s->what = (struct mlo_catalog){.conditions = s->conditions,
                                   .order = orders[order.by],
                                   .falling = order.falling,
                                   .limit = MLO_MIN(most, MLO_CATALOG_PAGE_MAX)};
    search_id(s);
    MLO_TRY(read_token(s, mlo_request_query(req, "page_token"), err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(narrow(req, s, err));
out:
    return status;
}

static enum mlo_status search(struct mlo_request *req, enum mlo_mlflow_kind kind, struct mlo_error *err)
{
    const bool versions = kind == MLO_MLFLOW_VERSIONS;
    const struct mlo_actor actor = mlo_request_actor(req);
    struct search s = {.kind = kind};
    json_t *rows = NULL, *items = NULL, *answer;
    bool more = false;
    enum mlo_status status;
    MLO_TRY(read_search(req, &s, err));
    if (!s.nothing)
        MLO_TRY(versions ? mlo_catalog_versions(req->conn, &actor, &s.what, &rows, &more, err)
                         : mlo_catalog_models(req->conn, &actor, &s.what, &rows, &more, err));
    MLO_TRY(versions ? show_versions(rows, &items, err) : show_models(req, rows, &items, err));
    answer = json_pack("{s:O}", versions ? "model_versions" : "registered_models", items);
    if (more) { /* else there is none, as MLflow has it */
        const char *token = next_token(req, &s, json_array_get(rows, json_array_size(rows) - 1));
        json_object_set_new(answer, "next_page_token", token ? json_string(token) : NULL);
    }
    status = mlo_reply_json(req, 200, answer, err);
out:
    json_decref(rows);
    json_decref(items);
    json_decref(s.conditions);
    return status;
}

enum mlo_status h_mlflow_models(struct mlo_request *req, struct mlo_error *err)
{
    return search(req, MLO_MLFLOW_MODELS, err);
}

enum mlo_status h_mlflow_versions(struct mlo_request *req, struct mlo_error *err)
{
    return search(req, MLO_MLFLOW_VERSIONS, err);
}

/* What the client asks before it downloads: none of the ways that this has. */
enum mlo_status h_mlflow_server(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_reply_json(req, 200,
                          json_pack("{s:s, s:b, s:b, s:b, s:b}", "store_type", "mlopt", "workspaces_enabled",
                                    0, "trace_archival_enabled", 0, "multipart_uploads_enabled", 0,
                                    "multipart_downloads_enabled", 0),
                          err);
}
