/* Private to registry: the modules' statement tables, and paging. */
#ifndef MLO_REGISTRY_SQL_IMPL_H
#define MLO_REGISTRY_SQL_IMPL_H

#include "registry/db.h"
#include "registry/page.h"

/* A module X defines mlo_sql_X[] and mlo_sql_X_count; the test of all statements walks this list. */
/* clang-format off */
#define MLO_SQL_MODULES(X)                                                                                   \
    X(bootstrap) X(durable) X(migrate) X(token) X(member) X(idempotency) X(audit) X(project) X(model) X(version) X(variant)       \
    X(dataset) X(derivation) X(lineage) X(evidence) X(stage) X(release) X(plan) X(report) X(ledger)          \
    X(upload) X(keys) X(ledger_write) X(ledger_service) X(ledger_verify) X(attest) X(policy) X(gate)         \
    X(gate_evidence) X(gate_provenance) X(approval) X(quarantine) X(samples) X(facts) X(facts_rows)          \
    X(backup) X(restore) X(reproduction) X(comment) X(blob_row) X(gc) X(deletion) X(fsck) X(signature)       \
    X(gate_compatible) X(search) X(catalog) X(webhook) X(webhook_delivery) X(webhook_send)
/* clang-format on */

#define MLO_SQL_DECLARE(module)                                                                              \
    extern const struct mlo_sql mlo_sql_##module[];                                                          \
    extern const size_t mlo_sql_##module##_count;
MLO_SQL_MODULES(MLO_SQL_DECLARE)
#undef MLO_SQL_DECLARE

/* The page's limit, checked; `page` may be NULL. */
enum mlo_status mlo_page_limit(const struct mlo_page *page, int64_t *limit, struct mlo_error *err);
/* The page's cursor as a number, or `first` for the first page. */
enum mlo_status mlo_page_number(const struct mlo_page *page, int64_t first, int64_t *out,
                                struct mlo_error *err);
/* A page of a list as {"items", "next"}. The statement's last two parameters, added here to its filters, are
 * the cursor and the number of rows; its first column is the cursor, which items lack. Newest: rows with a
 * number below the cursor, falling; by name: rows with a text behind it, rising. */
enum mlo_status mlo_page_newest(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                struct mlo_params *filters, const struct mlo_page *page, json_t **out,
                                struct mlo_error *err);
enum mlo_status mlo_page_by_name(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                                 struct mlo_params *filters, const struct mlo_page *page, json_t **out,
                                 struct mlo_error *err);

/* Runs the statement and gives its first row's first column as a number; MLO_ENOTFOUND (with no message)
 * without a row. */
enum mlo_status mlo_sql_number(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                               const struct mlo_params *params, int64_t *out, struct mlo_error *err);
/* The first row as an object; MLO_ENOTFOUND without one. */
enum mlo_status mlo_sql_object(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                               const struct mlo_params *params, json_t **out, struct mlo_error *err);
/* All rows as an array. */
enum mlo_status mlo_sql_array(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                              const struct mlo_params *params, json_t **out, struct mlo_error *err);

#endif
