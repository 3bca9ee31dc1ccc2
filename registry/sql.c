/* The list of all statements, and what the modules share: pages and one-row answers. */
#include "registry/sql_impl.h"

#include <pthread.h>
#include <string.h>

#include "registry/registry.h"

static struct mlo_sql_table tables[] = {
#define ROW(module) {#module, mlo_sql_##module, 0},
    MLO_SQL_MODULES(ROW)
#undef ROW
};

static void fill_counts(void)
{
    size_t n = 0; /* another file's constant is no constant expression here */
#define COUNT(module) tables[n++].count = mlo_sql_##module##_count;
    MLO_SQL_MODULES(COUNT)
#undef COUNT
}

const struct mlo_sql_table *mlo_registry_sql(size_t *count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_counts);
    *count = MLO_COUNT(tables);
    return tables;
}

static const char *cursor_text(const struct mlo_page *page)
{
    return page && page->cursor ? page->cursor : "";
}

enum mlo_status mlo_page_limit(const struct mlo_page *page, int64_t *limit, struct mlo_error *err)
{
    *limit = page && page->limit ? page->limit : MLO_PAGE_DEFAULT;
    if (*limit < 1 || *limit > MLO_PAGE_MAX) {
        mlo_error_set(err, MLO_EINVAL, "limit must be 1 to %d", MLO_PAGE_MAX);
        mlo_error_where(err, "query argument 'limit'");
        return MLO_EINVAL;
    }
    return MLO_OK;
}

enum mlo_status mlo_page_number(const struct mlo_page *page, int64_t first, int64_t *out,
                                struct mlo_error *err)
{
    *out = first;
    if (!*cursor_text(page) || mlo_str_to_i64(page->cursor, out))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "the cursor is not one that this list gave");
    mlo_error_where(err, "query argument 'cursor'");
    return MLO_EINVAL;
}

/* Rows, one more than the limit where there is another page. */
static enum mlo_status page_json(const struct mlo_rows *rows, int64_t limit, json_t **out,
                                 struct mlo_error *err)
{
    int count = mlo_rows_count(rows);
    bool more = count > limit;
    if (more)
        count = (int)limit;
    json_t *items = json_array();
    for (int r = 0; items && r < count; r++) {
        json_t *item = mlo_rows_json(rows, r);
        if (item)
            json_object_del(item, PQfname(rows->result, 0));
        if (json_array_append_new(items, item) != 0) {
            json_decref(items);
            items = NULL;
        }
    }
    if (!items)
        return mlo_error_nomem(err);
    *out = json_pack("{s:o, s:s?}", "items", items, "next", more ? mlo_rows_text(rows, count - 1, 0) : NULL);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status page_of(struct mlo_db_conn *conn, const struct mlo_sql *sql, struct mlo_params *params,
                               int64_t limit, json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    mlo_param_i64(params, limit + 1);
    enum mlo_status status = mlo_db_exec(conn, sql, params, &rows, err);
    if (status == MLO_OK)
        status = page_json(&rows, limit, out, err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_page_newest(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                struct mlo_params *filters, const struct mlo_page *page, json_t **out,
                                struct mlo_error *err)
{
    int64_t limit, below;
    enum mlo_status status;
    *out = NULL;
    MLO_TRY(mlo_page_limit(page, &limit, err));
    MLO_TRY(mlo_page_number(page, INT64_MAX, &below, err));
    mlo_param_i64(filters, below);
    status = page_of(conn, sql, filters, limit, out, err);
out:
    return status;
}

enum mlo_status mlo_page_by_name(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                 struct mlo_params *filters, const struct mlo_page *page, json_t **out,
                                 struct mlo_error *err)
{
    int64_t limit;
    *out = NULL;
    enum mlo_status status = mlo_page_limit(page, &limit, err);
    if (status != MLO_OK)
        return status;
    mlo_param_text(filters, cursor_text(page));
    return page_of(conn, sql, filters, limit, out, err);
}

enum mlo_status mlo_sql_number(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                               const struct mlo_params *params, int64_t *out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, sql, params, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "no such row");
    if (status == MLO_OK && out)
        *out = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_sql_object(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                               const struct mlo_params *params, json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    *out = NULL;
    enum mlo_status status = mlo_db_exec(conn, sql, params, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "no such row");
    if (status == MLO_OK && !(*out = mlo_rows_json(&rows, 0)))
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_sql_array(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                              const struct mlo_params *params, json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    *out = NULL;
    enum mlo_status status = mlo_db_exec(conn, sql, params, &rows, err);
    if (status == MLO_OK && !(*out = mlo_rows_json_all(&rows)))
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    return status;
}
