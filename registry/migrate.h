/* Migrations: numbered scripts, each run once in a transaction and recorded with its SHA-256. */
#ifndef MLO_REGISTRY_MIGRATE_H
#define MLO_REGISTRY_MIGRATE_H

#include "migrations/migrations.h"
#include "registry/db.h"

/* Whether its first line is "-- additive": programs that do not know the script run on what it leaves. */
bool mlo_migration_additive(const struct mlo_migration *m);
/* Brings the database to the newest schema, as the owner; waits for another one doing it, and again and again
 * for tables that are in use, so that requests go on beside it. *applied (may be NULL) is how many scripts
 * ran; none on a database that is newer by additive ones. MLO_ECONFLICT when it is newer by others, or when a
 * script that ran is not the one in this program. */
MLO_MUST_USE enum mlo_status mlo_migrate(struct mlo_db_conn *owner, int *applied, struct mlo_error *err);
/* The same with another set of scripts (tests). */
MLO_MUST_USE enum mlo_status mlo_migrate_set(struct mlo_db_conn *owner, const struct mlo_migration *set,
                                             size_t count, int *applied, struct mlo_error *err);
/* As any role: MLO_OK when this program can serve this database: it has this program's schema, or a newer one
 * by additive scripts only. Else MLO_ECONFLICT with what to do. */
MLO_MUST_USE enum mlo_status mlo_migrate_runs(struct mlo_db_conn *conn, struct mlo_error *err);
/* As any role: MLO_OK when the database has exactly this program's schema, else MLO_ECONFLICT with what to
 * do. */
MLO_MUST_USE enum mlo_status mlo_migrate_check(struct mlo_db_conn *conn, struct mlo_error *err);

#endif
