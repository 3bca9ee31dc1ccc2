#include "registry/comment.h"

#include "registry/sql_impl.h"

enum { ON_VERSION, ON_RELEASE, COMMENT_ADD, COMMENT_GET, COMMENTS_VERSION, COMMENTS_RELEASE };

#define COLUMNS                                                                                              \
    "c.id, c.text, c.actor, c.via, c.at, c.audit_seq, coalesce(v.number, rv.number) AS version, "            \
    "r.seq AS release"
#define TABLES                                                                                               \
    "comment c LEFT JOIN version v ON v.id = c.version_id LEFT JOIN release r ON r.id = c.release_id "       \
    "LEFT JOIN version rv ON rv.id = r.version_id"

const struct mlo_sql mlo_sql_comment[] = {
    [ON_VERSION] = {"comment_on_version",
                    "SELECT p.id, p.name || '/' || m.name || '@' || v.number, v.id FROM version v "
                    "JOIN model m ON m.id = v.model_id JOIN project p ON p.id = m.project_id "
                    "WHERE v.model_id = $1 AND v.id = $2",
                    2},
    [ON_RELEASE] = {"comment_on_release",
                    "SELECT p.id, p.name || '/' || m.name || ' release ' || r.seq, r.id FROM release r "
                    "JOIN model m ON m.id = r.model_id JOIN project p ON p.id = m.project_id "
                    "WHERE r.model_id = $1 AND r.seq = $2",
                    2},
    [COMMENT_ADD] = {"comment_add",
                     "INSERT INTO comment (model_id, version_id, release_id, text, actor, via, audit_seq) "
                     "VALUES ($1, $2, $3, $4, $5, $6, " MLO_AUDIT_LAST("$7") ") RETURNING id",
                     7},
    [COMMENT_GET] = {"comment_get", "SELECT " COLUMNS " FROM " TABLES " WHERE c.id = $1", 1},
    [COMMENTS_VERSION] =
        {"comments_version",
         "SELECT c.id AS cursor_key, " COLUMNS " FROM (SELECT * FROM comment WHERE version_id = $1 "
         "UNION ALL SELECT k.* FROM comment k JOIN release kr ON kr.id = k.release_id "
         "WHERE kr.version_id = $1) c LEFT JOIN version v ON v.id = c.version_id "
         "LEFT JOIN release r ON r.id = c.release_id LEFT JOIN version rv ON rv.id = r.version_id "
         "WHERE c.id < $2 ORDER BY c.id DESC LIMIT $3",
         3},
    [COMMENTS_RELEASE] = {"comments_release",
                          "SELECT c.id AS cursor_key, " COLUMNS " FROM " TABLES
                          " WHERE r.model_id = $1 AND r.seq = $2 AND c.id < $3 ORDER BY c.id DESC LIMIT $4",
                          4},
};
const size_t mlo_sql_comment_count = MLO_COUNT(mlo_sql_comment);

/* Characters of a text that is fit to be shown; 0: it says nothing, -1: it is not fit. */
static int64_t length(const char *text)
{
    int64_t count = 0;
    bool says = false;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if ((*c < 0x20 && *c != '\n' && *c != '\t' && *c != '\r') || *c == 0x7f)
            return -1;
        says = says || *c > ' ';
        count += (*c & 0xc0) != 0x80;
    }
    return says ? count : 0;
}

static enum mlo_status check(const char *text, struct mlo_error *err)
{
    int64_t count = length(text);
    enum mlo_status status = MLO_OK;
    if (count < 0)
        status =
            mlo_error_set(err, MLO_EINVAL, "a comment holds no control characters but line ends and tabs");
    else if (count == 0 || count > MLO_COMMENT_MAX)
        status = mlo_error_set(err, MLO_EINVAL, "a comment has 1 to %d characters, not %lld", MLO_COMMENT_MAX,
                               (long long)count);
    if (status != MLO_OK)
        mlo_error_where(err, "field 'text'");
    return status;
}

/* Project, name for people, and the id of what it is on. */
static enum mlo_status find(struct mlo_db_conn *conn, const struct mlo_comment_on *on, struct mlo_rows *rows,
                            struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, on->model_id);
    mlo_param_i64(&p, on->version_id ? on->version_id : on->release);
    enum mlo_status status =
        mlo_db_exec(conn, &mlo_sql_comment[on->version_id ? ON_VERSION : ON_RELEASE], &p, rows, err);
    if (status == MLO_OK && mlo_rows_count(rows) == 0)
        status = on->version_id ? mlo_error_set(err, MLO_ENOTFOUND, "there is no such version")
                                : mlo_error_set(err, MLO_ENOTFOUND, "the model has no release %lld",
                                                (long long)on->release);
    return status;
}

enum mlo_status mlo_comment_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                const struct mlo_comment_on *on, const char *text, json_t **out,
                                struct mlo_error *err)
{
    struct mlo_rows place = {0}, added = {0};
    struct mlo_params add = MLO_PARAMS_INIT, get = MLO_PARAMS_INIT;
    json_t *after = NULL;
    enum mlo_status status = check(text, err);
    if (status != MLO_OK)
        return status;
    status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_unlock_early(conn, err));
    MLO_TRY(find(conn, on, &place, err));
    int64_t project = mlo_rows_i64(&place, 0, 0);
    MLO_TRY(mlo_actor_require(actor, project, MLO_SUBMITTER, err));
    after = json_pack("{s:s}", "text", text);
    if (!after) {
        status = mlo_error_set(err, MLO_EINVAL, "the comment is not UTF-8");
        goto out;
    }
    struct mlo_audit_event event = {
        .action = "comment.add", .object = mlo_rows_text(&place, 0, 1), .after = after};
    MLO_TRY(mlo_audit_queue(conn, project, actor, &event, NULL, err));
    mlo_param_i64(&add, on->model_id);
    mlo_param_id(&add, on->version_id);
    mlo_param_id(&add, on->version_id ? 0 : mlo_rows_i64(&place, 0, 2));
    mlo_param_text(&add, text);
    mlo_param_text(&add, actor->name);
    mlo_param_text(&add, actor->via ? actor->via : "system");
    mlo_param_i64(&add, project);
    MLO_TRY(mlo_db_queue(conn, &mlo_sql_comment[COMMENT_ADD], &add, &added, err));
out:
    json_decref(after);
    mlo_rows_clear(&place);
    status = mlo_db_end(conn, status, err); /* sends what is queued, with its COMMIT */
    if (status == MLO_OK) {
        mlo_param_i64(&get, mlo_rows_i64(&added, 0, 0));
        status = mlo_sql_object(conn, &mlo_sql_comment[COMMENT_GET], &get, out, err);
    }
    mlo_rows_clear(&added);
    return status;
}

enum mlo_status mlo_comment_list(struct mlo_db_conn *conn, const struct mlo_comment_on *on,
                                 const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    struct mlo_rows place = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = find(conn, on, &place, err);
    mlo_rows_clear(&place);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&p, on->version_id ? on->version_id : on->model_id);
    if (!on->version_id)
        mlo_param_i64(&p, on->release);
    return mlo_page_newest(conn, &mlo_sql_comment[on->version_id ? COMMENTS_VERSION : COMMENTS_RELEASE], &p,
                           page, out, err);
}
