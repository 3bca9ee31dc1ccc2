#include "registry/migrate.h"

#include <string.h>

#include "registry/sql_impl.h"

/* One migration at a time, whoever starts it. */
#define LOCK_KEY "7021733"

/* A script that begins so only adds to the schema: migrations/README.md has the rule. */
#define ADDITIVE "-- additive"

enum { LOCK_PAUSE_MS = 2000, LOCK_PATIENCE_S = 600 };

enum { MIGRATION_LIST, MIGRATION_ADD };

const struct mlo_sql mlo_sql_migrate[] = {
    [MIGRATION_LIST] = {"migration_list",
                        /* by jsonb: an older database has no such column */
                        "SELECT number, name, digest, coalesce((to_jsonb(m) ->> 'additive')::boolean, false) "
                        "FROM mlopt.schema_migration m ORDER BY number",
                        0},
    [MIGRATION_ADD] = {"migration_add",
                       "INSERT INTO mlopt.schema_migration (number, name, digest, additive) "
                       "VALUES ($1, $2, $3, $4)",
                       4},
};
const size_t mlo_sql_migrate_count = MLO_COUNT(mlo_sql_migrate);

bool mlo_migration_additive(const struct mlo_migration *m)
{
    return mlo_str_starts(m->text, ADDITIVE) && strchr(" :\r\n", m->text[strlen(ADDITIVE)]);
}

static void digest_of(const struct mlo_migration *m, struct mlo_digest *out)
{
    mlo_digest_of(m->text, m->size, out);
}

/* Compares what ran with what we have; *done is how many of the set ran. `newer`: further ones that only add
 * may have run too. */
static enum mlo_status compare(struct mlo_db_conn *conn, const struct mlo_migration *set, size_t count,
                               bool newer, size_t *done, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_migrate[MIGRATION_LIST], NULL, &rows, err);
    for (int r = 0; status == MLO_OK && r < mlo_rows_count(&rows); r++) {
        int64_t number = mlo_rows_i64(&rows, r, 0);
        const char *name = mlo_rows_text(&rows, r, 1);
        struct mlo_digest ran, ours;
        if ((size_t)r >= count && newer && mlo_rows_bool(&rows, r, 3))
            continue;
        if ((size_t)r >= count) {
            status = mlo_error_set(err, MLO_ECONFLICT,
                                   "the database has migration %04lld (%s), this program knows %04d at most",
                                   (long long)number, name, count ? set[count - 1].number : 0);
            mlo_error_hint(err, "it was made by a newer mlopt: use that one, or a newer one");
            break;
        }
        digest_of(&set[r], &ours);
        if (number != set[r].number || !mlo_rows_digest(&rows, r, 2, &ran) || !mlo_digest_eq(&ran, &ours)) {
            status =
                mlo_error_set(err, MLO_ECONFLICT,
                              "migration %04lld (%s) of the database is not the one in this program (%s)",
                              (long long)number, name, set[r].name);
            mlo_error_hint(
                err, "a migration that ran must never be edited: add a new one, or use the program that "
                     "made this database");
        }
    }
    *done = status == MLO_OK ? MLO_MIN((size_t)mlo_rows_count(&rows), count) : 0;
    mlo_rows_clear(&rows);
    return status;
}

/* The table of what ran; older databases have it without its last column. */
static const char make_list[] =
    "CREATE SCHEMA IF NOT EXISTS mlopt;"
    "CREATE TABLE IF NOT EXISTS mlopt.schema_migration ("
    "  number integer PRIMARY KEY, name text NOT NULL,"
    "  digest bytea NOT NULL CHECK (octet_length(digest) = 32),"
    "  applied_at timestamptz NOT NULL DEFAULT now());"
    "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_attribute WHERE attname = 'additive' "
    "AND attrelid = 'mlopt.schema_migration'::regclass) THEN "
    "ALTER TABLE mlopt.schema_migration "
    "ADD COLUMN additive boolean NOT NULL DEFAULT false; END IF; END $$";

/* `m` NULL: the table of what ran. */
static enum mlo_status apply(struct mlo_db_conn *conn, const struct mlo_migration *m, struct mlo_error *err)
{
    struct mlo_digest digest;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    status = mlo_db_exec_text(conn, "SET LOCAL lock_timeout = '500ms'", err);
    if (status == MLO_OK)
        status = mlo_db_exec_text(conn, m ? m->text : make_list, err);
    if (status == MLO_OK && m) {
        struct mlo_params p = MLO_PARAMS_INIT;
        digest_of(m, &digest);
        mlo_param_i64(&p, m->number);
        mlo_param_text(&p, m->name);
        mlo_param_digest(&p, &digest);
        mlo_param_bool(&p, mlo_migration_additive(m));
        status = mlo_db_exec(conn, &mlo_sql_migrate[MIGRATION_ADD], &p, NULL, err);
    }
    return mlo_db_end(conn, status, err);
}

/* A change of a table waits for who reads it, perhaps a backup for an hour, and behind a lock that is waited
 * for all requests wait. So it is waited for shortly, and again later. */
static enum mlo_status apply_patiently(struct mlo_db_conn *conn, const struct mlo_migration *m,
                                       struct mlo_error *err)
{
    uint64_t until = mlo_clock_ns() + LOCK_PATIENCE_S * 1000000000ull;
    for (;;) {
        enum mlo_status status = apply(conn, m, err);
        bool locked = status != MLO_OK && strcmp(mlo_db_sqlstate(conn), "55P03") == 0;
        if (locked && mlo_clock_ns() < until) {
            mlo_clock_sleep_ms(LOCK_PAUSE_MS);
            continue;
        }
        if (status != MLO_OK)
            mlo_error_prefix(err, "migration %s", m ? m->name : "0000 (the table of migrations)");
        if (locked)
            mlo_error_hint(err, "a long transaction (a backup?) keeps the table: pg_stat_activity has it");
        return status;
    }
}

enum mlo_status mlo_migrate_set(struct mlo_db_conn *owner, const struct mlo_migration *set, size_t count,
                                int *applied, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t done = 0;
    if (applied)
        *applied = 0;
    mlo_db_unhurried(owner, true);
    MLO_TRY(mlo_db_exec_text(owner, "SET statement_timeout = 0; SELECT pg_advisory_lock(" LOCK_KEY ")", err));
    MLO_TRY(apply_patiently(owner, NULL, err));
    MLO_TRY(compare(owner, set, count, true, &done, err));
    for (size_t i = done; i < count; i++) {
        MLO_TRY(apply_patiently(owner, &set[i], err));
        if (applied)
            (*applied)++;
    }
out:;
    struct mlo_error ignored = {0};
    enum mlo_status unlocked =
        mlo_db_exec_text(owner, "SELECT pg_advisory_unlock(" LOCK_KEY "); RESET statement_timeout", &ignored);
    MLO_UNUSED(unlocked); /* a connection that is gone has let go of it */
    mlo_db_unhurried(owner, false);
    return status;
}

enum mlo_status mlo_migrate(struct mlo_db_conn *owner, int *applied, struct mlo_error *err)
{
    size_t count;
    const struct mlo_migration *set = mlo_migrations(&count);
    return mlo_migrate_set(owner, set, count, applied, err);
}

static enum mlo_status check(struct mlo_db_conn *conn, bool newer, struct mlo_error *err)
{
    size_t count, done = 0;
    const struct mlo_migration *set = mlo_migrations(&count);
    enum mlo_status status = compare(conn, set, count, newer, &done, err);
    if (status == MLO_OK && done < count) {
        status = mlo_error_set(err, MLO_ECONFLICT, "the database has %zu of this program's %zu migrations",
                               done, count);
        mlo_error_hint(err, "run `mlopt migrate`");
    }
    return status;
}

enum mlo_status mlo_migrate_check(struct mlo_db_conn *conn, struct mlo_error *err)
{
    return check(conn, false, err);
}

enum mlo_status mlo_migrate_runs(struct mlo_db_conn *conn, struct mlo_error *err)
{
    return check(conn, true, err);
}
