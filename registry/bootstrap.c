/* Roles and database of a fresh installation. */
#include "registry/db_impl.h"

#include <string.h>

#include "registry/sql_impl.h"

enum { BOOT_ROLES, BOOT_DATABASES };

const struct mlo_sql mlo_sql_bootstrap[] = {
    [BOOT_ROLES] = {"boot_roles", "SELECT rolname FROM pg_catalog.pg_roles WHERE rolname LIKE 'mlopt\\_%'",
                    0},
    [BOOT_DATABASES] = {"boot_databases", "SELECT 1 FROM pg_catalog.pg_database WHERE datname = $1", 1},
};
const size_t mlo_sql_bootstrap_count = MLO_COUNT(mlo_sql_bootstrap);

static enum mlo_status make_roles(struct mlo_db_conn *conn, struct mlo_error *err)
{
    static const char *const roles[] = {MLO_ROLE_OWNER, MLO_ROLE_SERVER, MLO_ROLE_WORKER};
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_bootstrap[BOOT_ROLES], NULL, &rows, err);
    for (size_t i = 0; status == MLO_OK && i < MLO_COUNT(roles); i++) {
        bool there = false;
        for (int r = 0; r < mlo_rows_count(&rows); r++)
            there = there || strcmp(mlo_rows_text(&rows, r, 0), roles[i]) == 0;
        if (there)
            continue;
        struct mlo_buf text = MLO_BUF_INIT;
        mlo_buf_printf(&text, "CREATE ROLE %s LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE", roles[i]);
        status = mlo_buf_ok(&text) ? mlo_db_exec_text(conn, mlo_buf_str(&text), err) : mlo_error_nomem(err);
        mlo_buf_clear(&text);
    }
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status make_database(struct mlo_db_conn *conn, const char *database, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows rows = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    char *quoted = NULL;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_text(&p, database);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_bootstrap[BOOT_DATABASES], &p, &rows, err));
    if (mlo_rows_count(&rows) > 0)
        goto out;
    quoted = PQescapeIdentifier(conn->pg, database, strlen(database));
    if (!quoted) {
        status = mlo_db_fail(conn, NULL, "the database's name", err);
        goto out;
    }
    mlo_buf_printf(&text, "CREATE DATABASE %s OWNER " MLO_ROLE_OWNER " TEMPLATE template0 ENCODING 'UTF8'",
                   quoted);
    status = mlo_buf_ok(&text) ? mlo_db_exec_text(conn, mlo_buf_str(&text), err) : mlo_error_nomem(err);
out:
    PQfreemem(quoted);
    mlo_buf_clear(&text);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_db_bootstrap(const char *admin_conninfo, const char *database, struct mlo_error *err)
{
    struct mlo_db *db = NULL;
    struct mlo_db_conn *conn = NULL;
    struct mlo_db_options options = {
        .conninfo = admin_conninfo, .max_connections = 1, .statement_timeout_ms = 120000};
    enum mlo_status status = mlo_db_open(&options, &db, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_acquire(db, &conn, err));
    MLO_TRY(make_roles(conn, err));
    MLO_TRY(make_database(conn, database, err));
out:
    mlo_db_release(conn);
    mlo_db_close(db);
    if (status != MLO_OK)
        mlo_error_prefix(err, "setting up the database");
    return status;
}
