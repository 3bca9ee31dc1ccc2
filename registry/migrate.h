/* Migrations: numbered scripts, each run once in a transaction and recorded with its SHA-256. */
#ifndef MLO_REGISTRY_MIGRATE_H
#define MLO_REGISTRY_MIGRATE_H

#include "migrations/migrations.h"
#include "registry/db.h"

/* Brings the database to the newest schema, as the owner; waits for another one doing it. *applied (may be
 * NULL) is how many scripts ran. MLO_ECONFLICT when the database is newer than this program, or when a script
 * that ran is not the one in this program. */
MLO_MUST_USE enum mlo_status mlo_migrate(struct mlo_db_conn *owner, int *applied, struct mlo_error *err);
/* The same with another set of scripts (tests). */
MLO_MUST_USE enum mlo_status mlo_migrate_set(struct mlo_db_conn *owner, const struct mlo_migration *set,
                                             size_t count, int *applied, struct mlo_error *err);
/* As any role: MLO_OK when the database has exactly this program's schema, else MLO_ECONFLICT with what to
 * do. */
MLO_MUST_USE enum mlo_status mlo_migrate_check(struct mlo_db_conn *conn, struct mlo_error *err);

#endif
