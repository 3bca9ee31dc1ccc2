/* Garbage collection: what holds bytes, the steps and what a stop between them leaves, uploads beside it. */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/upkeep_fixture.h"

static void test_gc__removes_what_nothing_refers_to(void **state)
{
    struct upkeep u;
    upkeep_open(&u, *state);
    struct mlo_version_info v = upkeep_version(&u, "cnn", "model bytes");
    upkeep_variant(&u, &v, "int8", "int8 bytes");
    upkeep_put(&u, "nobody's");
    struct mlo_gc_result r = upkeep_gc(&u, 3600);
    assert_int_equal(r.marked, 0); /* its grace is not over */
    struct mlo_gc_options dry = {.blobs = u.blobs, .dry_run = true};
    json_t *items;
    assert_mlo_ok(mlo_gc_run(u.f->conn, &root, &dry, &r, &items, &u.f->err), &u.f->err);
    assert_int_equal(r.marked, 1);
    assert_int_equal(r.marked_bytes, 8);
    assert_int_equal(json_array_size(items), 1);
    assert_true(upkeep_has(&u, "nobody's"));
    json_decref(items);
    r = upkeep_gc(&u, 0);
    assert_int_equal(r.marked, 1);
    assert_int_equal(r.removed, 1);
    assert_int_equal(r.removed_bytes, 8);
    assert_false(upkeep_has(&u, "nobody's"));
    assert_true(upkeep_has(&u, "model bytes"));
    assert_true(upkeep_has(&u, "int8 bytes"));
    struct mlo_digest gone = upkeep_digest("nobody's");
    assert_mlo_status(mlo_blob_linked(u.f->conn, u.project, &gone, NULL, &u.f->err), MLO_ENOTFOUND,
                      &u.f->err);
    upkeep_put(&u, "nobody's"); /* again: it is there again */
    assert_mlo_ok(mlo_blob_linked(u.f->conn, u.project, &gone, NULL, &u.f->err), &u.f->err);
    upkeep_clean(&u);
    const struct mlo_actor submitter = {.name = "s", .role = MLO_APPROVER};
    assert_mlo_status(mlo_gc_run(u.f->conn, &submitter, &dry, &r, NULL, &u.f->err), MLO_EFORBIDDEN,
                      &u.f->err);
    const struct mlo_actor of_project = {.name = "s", .role = MLO_ADMIN, .project_id = u.project};
    assert_mlo_status(mlo_gc_run(u.f->conn, &of_project, &dry, &r, NULL, &u.f->err), MLO_EFORBIDDEN,
                      &u.f->err);
    upkeep_close(&u);
}

/* Every kind of reference, each alone. */
static void test_gc__keeps_what_is_referred_to(void **state)
{
    struct upkeep u;
    upkeep_open(&u, *state);
    struct mlo_version_info v = upkeep_version(&u, "cnn", "model");
    upkeep_variant(&u, &v, "int8", "first int8");
    upkeep_variant(&u, &v, "int8", "second int8"); /* its name keeps its history */
    struct mlo_digest data = upkeep_put(&u, "data"), plan = upkeep_put(&u, "plan"),
                      report = upkeep_put(&u, "report"), samples = upkeep_put(&u, "samples"),
                      input = upkeep_put(&u, "input"), output = upkeep_put(&u, "output"),
                      cached = upkeep_put(&u, "cached"), decision = upkeep_put(&u, "decision");
    struct mlo_manifest_blob file = {.role = "data", .name = "d.npz", .digest = data};
    struct mlo_dataset_info dataset;
    assert_mlo_ok(mlo_dataset_version_create(u.f->conn, &root, u.project, "train", "", NULL, &file, 1,
                                             &dataset, &u.f->err),
                  &u.f->err);
    char sql[3000], hex[10][MLO_DIGEST_TEXT_SIZE], decided[MLO_DIGEST_TEXT_SIZE];
    const struct mlo_digest *all[] = {&v.artifact, &plan, &report, &samples, &input, &output, &cached};
    for (size_t i = 0; i < MLO_COUNT(all); i++)
        mlo_digest_hex(all[i], hex[i]);
    snprintf(
        sql, sizeof sql,
        "INSERT INTO plan (project_id, artifact, fingerprint, made_for, blob, size, signer, machine_class) "
        "VALUES (%lld, '\\x%s', sha256('f'), '{}', '\\x%s', 4, 'ed25519:%064d', 'm');"
        "INSERT INTO report (project_id, artifact, blob, size) VALUES (%lld, '\\x%s', '\\x%s', 6);"
        "INSERT INTO evidence (project_id, artifact, metric, unit, value, protocol, engine, machine_class, "
        "samples) VALUES (%lld, '\\x%s', 'top1', '1', 1, 'p', 'e', 'm', '\\x%s');"
        "INSERT INTO derivation (key, canonical, step, artifact, size) VALUES (sha256('k'), "
        "'{\"decisions\":[\"%s\"]}', 'quantize', '\\x%s', 6);"
        "INSERT INTO run (project, version, recipe_name, recipe, target, source, datasets, created_by) "
        "VALUES (%lld, %lld, 'r', '{}', 'any', '\\x%s', '{}', 'me');"
        "INSERT INTO job (run, project, position, name, step, kind, target, state, spec, input, output) "
        "SELECT id, project, 0, 'j', 's', 'derive', 'any', 'ready', '{}', '\\x%s', '\\x%s' FROM run",
        (long long)u.project, hex[0], hex[1], 0, (long long)u.project, hex[0], hex[2], (long long)u.project,
        hex[0], hex[3], mlo_digest_text(&decision, decided), hex[6], (long long)u.project, (long long)v.id,
        hex[0], hex[4], hex[5]);
    upkeep_sql(&u, sql);
    struct mlo_digest made = upkeep_put(&u, "made again");
    snprintf(
        sql, sizeof sql,
        "INSERT INTO attestation (project_id, artifact, derivation, signer, envelope) VALUES (%lld, '\\x%s', "
        "sha256('k'), 'ed25519:%064d', '{}');"
        "INSERT INTO reproduction (project_id, derivation, parent, artifact, made, attestation, "
        "machine_class, "
        "program, run_id, job_id, requested_by) SELECT project_id, derivation, artifact, artifact, '\\x%s', "
        "id, "
        "'m', 'mlopt', 1, 1, 'me' FROM attestation",
        (long long)u.project, hex[0], 0, mlo_digest_hex(&made, hex[7]));
    upkeep_sql(&u, sql);
    struct mlo_gc_result r = upkeep_gc(&u, 0);
    assert_int_equal(r.removed, 1); /* what a derivation made and nobody names is a cache */
    assert_false(upkeep_has(&u, "cached"));
    static const char *const kept[] = {"model",  "first int8", "second int8", "data",
                                       "plan",   "report",     "samples",     "input",
                                       "output", "decision",   "made again"};
    for (size_t i = 0; i < MLO_COUNT(kept); i++)
        assert_true(upkeep_has(&u, kept[i]));
    upkeep_sql(&u, "UPDATE run SET state = 'failed', finished_at = now()");
    r = upkeep_gc(&u, 0);
    assert_int_equal(r.removed, 2); /* input and output of a run that ended */
    assert_false(upkeep_has(&u, "input"));
    /* the version goes: its plan and its report with it; evidence stays, with its samples */
    assert_mlo_ok(upkeep_delete(&u, "cnn", 1, NULL, 0, NULL), &u.f->err);
    r = upkeep_gc(&u, 0);
    assert_int_equal(r.purged, 1);
    assert_int_equal(r.removed, 5);
    assert_false(upkeep_has(&u, "plan"));
    assert_true(upkeep_has(&u, "samples"));
    assert_true(upkeep_has(&u, "data"));
    upkeep_clean(&u);
    struct mlo_audit_result audit;
    assert_mlo_ok(mlo_audit_verify(u.f->conn, 0, NULL, &audit, &u.f->err), &u.f->err);
    assert_true(audit.intact);
    upkeep_close(&u);
}

/* Asking for a blob that will not be sent begins its grace again. */
static void test_gc__grace_begins_with_the_last_use(void **state)
{
    struct upkeep u;
    upkeep_open(&u, *state);
    struct mlo_digest d = upkeep_put(&u, "old");
    upkeep_put(&u, "older");
    upkeep_sql(&u, "UPDATE blob SET created_at = now() - interval '1 day'; "
                   "UPDATE project_blob SET used_at = now() - interval '1 day'");
    assert_mlo_ok(mlo_blob_touch(u.f->conn, u.project, &d, &u.f->err), &u.f->err);
    struct mlo_gc_result r = upkeep_gc(&u, 3600);
    assert_int_equal(r.removed, 1);
    assert_true(upkeep_has(&u, "old"));
    assert_false(upkeep_has(&u, "older"));
    upkeep_close(&u);
}

/* A backup copies all blobs of its snapshot: rows are marked meanwhile, bytes stay. */
static void test_gc__leaves_bytes_to_a_backup(void **state)
{
    struct upkeep u;
    struct mlo_db_conn *backup;
    upkeep_open(&u, *state);
    upkeep_put(&u, "nobody's");
    assert_mlo_ok(mlo_db_acquire(u.f->server, &backup, &u.f->err), &u.f->err);
    assert_mlo_ok(
        mlo_db_exec_text(backup, "SELECT pg_advisory_lock_shared(" MLO_BLOB_HOLD_KEY ")", &u.f->err),
        &u.f->err);
    struct mlo_gc_result r = upkeep_gc(&u, 0);
    assert_true(r.backup);
    assert_int_equal(r.marked, 1);
    assert_int_equal(r.removed, 0);
    assert_true(upkeep_has(&u, "nobody's"));
    assert_mlo_ok(
        mlo_db_exec_text(backup, "SELECT pg_advisory_unlock_shared(" MLO_BLOB_HOLD_KEY ")", &u.f->err),
        &u.f->err);
    mlo_db_release(backup);
    r = upkeep_gc(&u, 0);
    assert_false(r.backup);
    assert_int_equal(r.removed, 1);
    upkeep_close(&u);
}

/* Another collector is no backup: it is waited for, as long as there is time. */
static void test_gc__tells_a_collector_from_a_backup(void **state)
{
    struct upkeep u;
    struct mlo_db_conn *other;
    struct mlo_gc_result r;
    upkeep_open(&u, *state);
    upkeep_put(&u, "nobody's");
    assert_mlo_ok(mlo_db_acquire(u.f->server, &other, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_db_exec_text(other,
                                   "BEGIN; SELECT pg_advisory_xact_lock(" MLO_BLOB_COLLECTOR_KEY
                                   "), pg_advisory_xact_lock(" MLO_BLOB_HOLD_KEY ")",
                                   &u.f->err),
                  &u.f->err);
    struct mlo_gc_options o = {.blobs = u.blobs, .budget_ms = 50};
    assert_mlo_ok(mlo_gc_run(u.f->conn, &root, &o, &r, NULL, &u.f->err), &u.f->err);
    assert_false(r.backup);
    assert_true(r.more);
    assert_int_equal(r.marked, 1);
    assert_int_equal(r.removed, 0);
    assert_mlo_ok(mlo_db_exec_text(other, "COMMIT", &u.f->err), &u.f->err);
    mlo_db_release(other);
    o.budget_ms = 0;
    o.behind = r.next;
    assert_mlo_ok(mlo_gc_run(u.f->conn, &root, &o, &r, NULL, &u.f->err), &u.f->err);
    assert_false(r.more);
    assert_int_equal(r.removed, 1);
    upkeep_close(&u);
}

/* A session that could not give its turn back still answers, and takes the turn with it. */
static void test_gc__a_turn_ends_with_its_session(void **state)
{
    struct upkeep u;
    struct mlo_db_conn *lost;
    upkeep_open(&u, *state);
    upkeep_put(&u, "nobody's");
    assert_mlo_ok(mlo_db_acquire(u.f->server, &lost, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_db_exec_text(lost, "SELECT pg_advisory_lock(" MLO_BLOB_COLLECTOR_KEY ")", &u.f->err),
                  &u.f->err);
    mlo_db_give_up(lost);
    assert_mlo_ok(mlo_db_exec_text(lost, "SELECT 1", &u.f->err), &u.f->err);
    mlo_db_release(lost);
    assert_int_equal(upkeep_gc(&u, 0).removed, 1);
    upkeep_close(&u);
}

/* A plan of an artifact whose bytes were damaged is there when the right ones are back. When nothing holds
 * the artifact, both go. */
static void test_gc__keeps_the_plans_of_a_damaged_artifact(void **state)
{
    struct upkeep u;
    char sql[1000], artifact[MLO_DIGEST_TEXT_SIZE], hex[2][MLO_DIGEST_TEXT_SIZE];
    bool damaged;
    upkeep_open(&u, *state);
    struct mlo_version_info v = upkeep_version(&u, "cnn", "model");
    struct mlo_digest plan = upkeep_put(&u, "plan"), report = upkeep_put(&u, "report");
    mlo_digest_hex(&v.artifact, artifact);
    snprintf(
        sql, sizeof sql,
        "INSERT INTO plan (project_id, artifact, fingerprint, made_for, blob, size, signer, machine_class) "
        "VALUES (%lld, '\\x%s', sha256('f'), '{}', '\\x%s', 4, 'ed25519:%064d', 'm');"
        "INSERT INTO report (project_id, artifact, blob, size) VALUES (%lld, '\\x%s', '\\x%s', 6)",
        (long long)u.project, artifact, mlo_digest_hex(&plan, hex[0]), 0, (long long)u.project, artifact,
        mlo_digest_hex(&report, hex[1]));
    upkeep_sql(&u, sql);
    upkeep_damage(&u, "model");
    assert_mlo_ok(mlo_blob_quarantine(u.f->conn, u.blobs, &root, &v.artifact, &damaged, NULL, &u.f->err),
                  &u.f->err);
    assert_true(damaged);
    struct mlo_gc_result r = upkeep_gc(&u, 0);
    assert_int_equal(r.marked, 0);
    assert_true(upkeep_has(&u, "plan"));
    assert_true(upkeep_has(&u, "report"));
    /* nobody needs it any more: it is not missed, and what was attached to it goes */
    assert_mlo_ok(upkeep_delete(&u, "cnn", 1, NULL, 0, NULL), &u.f->err);
    json_t *out = upkeep_fsck(&u, false, 3600);
    assert_int_equal(json_array_size(json_object_get(out, "problems")), 1);
    json_decref(out);
    r = upkeep_gc(&u, 0);
    assert_int_equal(r.marked, 3);
    assert_int_equal(r.marked_bytes, 10);
    assert_int_equal(r.removed, 2);
    upkeep_clean(&u);
    upkeep_close(&u);
}

/* --- little time, many rows ------------------------------------------------------------------------------
 */

/* Rows that look as if they were of blobs long ago; they have no bytes, which removal does not mind. */
static void many_rows(struct upkeep *u, int count)
{
    char sql[300];
    snprintf(sql, sizeof sql,
             "INSERT INTO blob (digest, size, created_at) SELECT sha256(('row ' || i)::bytea), 1, "
             "now() - interval '30 days' FROM generate_series(1, %d) i",
             count);
    upkeep_sql(u, sql);
}

static int64_t count_of(struct upkeep *u, const struct mlo_sql *sql)
{
    struct mlo_rows rows = {0};
    assert_mlo_ok(mlo_db_exec(u->f->conn, sql, NULL, &rows, &u->f->err), &u->f->err);
    int64_t count = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return count;
}
static const struct mlo_sql count_live = {"test_live", "SELECT count(*) FROM blob WHERE removed_at IS NULL",
                                          0},
                            count_audit = {"test_audit", "SELECT count(*) FROM audit", 0};

/* Each piece goes on where the one before stopped, whether there was anything to mark there or not, and
 * removes bytes. */
static void test_gc__ends_however_little_time_a_piece_has(void **state)
{
    struct upkeep u;
    struct mlo_gc_result r;
    int64_t removed = 0, marked = 0;
    int pieces = 0;
    upkeep_open(&u, *state);
    many_rows(&u, 4000);
    upkeep_put(&u, "nobody's");
    /* held, and so looked at in vain by every pass */
    upkeep_sql(&u, "INSERT INTO evidence (project_id, artifact, metric, unit, value, protocol, engine, "
                   "machine_class, samples) SELECT (SELECT min(id) FROM project), digest, 'top1', '1', 1, "
                   "'p', 'e', 'm', digest FROM blob WHERE size = 1 ORDER BY digest LIMIT 3000");
    struct mlo_gc_options o = {.blobs = u.blobs, .budget_ms = 1};
    do {
        assert_mlo_ok(mlo_gc_run(u.f->conn, &root, &o, &r, NULL, &u.f->err), &u.f->err);
        marked += r.marked;
        removed += r.removed;
        assert_true(!r.more || r.removed || memcmp(&r.next, &o.behind, sizeof r.next) != 0);
        o.behind = r.next;
    } while (r.more && ++pieces < 1000);
    assert_false(r.more);
    assert_true(pieces > 0);
    assert_int_equal(marked, 1001);
    assert_int_equal(removed, 1001);
    assert_false(upkeep_has(&u, "nobody's"));
    assert_int_equal(count_of(&u, &count_live), 3000);
    print_message("%d pieces\n", pieces);
    upkeep_close(&u);
}

/* --- a dry run -------------------------------------------------------------------------------------------
 */

/* It says what a run would do, deletions that are due included, and neither changes, locks nor audits. */
static void test_gc__a_dry_run_only_reads(void **state)
{
    struct upkeep u;
    struct mlo_gc_result dry, r;
    struct mlo_db_conn *reader;
    upkeep_open(&u, *state);
    upkeep_version(&u, "cnn", "model");
    upkeep_put(&u, "nobody's");
    assert_mlo_ok(upkeep_delete(&u, "cnn", 1, NULL, 0, NULL), &u.f->err);
    int64_t events = count_of(&u, &count_audit);
    struct mlo_gc_options o = {.blobs = u.blobs, .dry_run = true};
    assert_mlo_ok(mlo_db_acquire(u.f->server, &reader, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_db_exec_text(reader, "SET default_transaction_read_only = on", &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_gc_run(reader, &root, &o, &dry, NULL, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_db_exec_text(reader, "RESET default_transaction_read_only", &u.f->err), &u.f->err);
    mlo_db_release(reader);
    assert_int_equal(count_of(&u, &count_audit), events);
    assert_int_equal(dry.purged, 1);
    assert_int_equal(dry.marked, 2);
    r = upkeep_gc(&u, 0);
    assert_int_equal(r.purged, dry.purged);
    assert_int_equal(r.marked, dry.marked);
    assert_int_equal(r.marked_bytes, dry.marked_bytes);
    upkeep_close(&u);
}

/* --- the same bytes are brought at that very moment ------------------------------------------------------
 */

static void test_gc__a_marked_blob_is_brought_back(void **state)
{
    struct upkeep u;
    upkeep_open(&u, *state);
    struct mlo_digest d = upkeep_put(&u, "again");
    struct mlo_rows rows = {0};
    static const struct mlo_sql mark = {
        "test_mark", "SELECT count(*) FROM blob_collect('', decode(repeat('ff', 32), 'hex'), '0')", 0};
    assert_mlo_ok(mlo_db_exec(u.f->conn, &mark, NULL, &rows, &u.f->err), &u.f->err);
    assert_int_equal(mlo_rows_i64(&rows, 0, 0), 1);
    mlo_rows_clear(&rows);
    assert_mlo_status(mlo_blob_linked(u.f->conn, u.project, &d, NULL, &u.f->err), MLO_ENOTFOUND, &u.f->err);
    /* nothing new may refer to it while it is so */
    struct mlo_version_info v = upkeep_version(&u, "cnn", "model");
    assert_mlo_status(mlo_variant_name(u.f->conn, &root, v.id, "int8", &d, NULL, 0, NULL, &u.f->err),
                      MLO_ENOTFOUND, &u.f->err);
    upkeep_put(&u, "again");
    struct mlo_gc_options o = {.blobs = u.blobs};
    struct mlo_gc_result r;
    assert_mlo_ok(mlo_gc_finish(u.f->conn, &root, &o, &r, &u.f->err), &u.f->err);
    assert_int_equal(r.removed, 0);
    assert_true(upkeep_has(&u, "again"));
    upkeep_clean(&u);
    upkeep_close(&u);
}

struct bringer {
    struct upkeep *u;
    struct mlo_digest digest;
    enum mlo_status status;
    atomic_bool done;
};

static void *bring(void *arg)
{
    struct bringer *b = arg;
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    b->status = mlo_db_acquire(b->u->f->server, &conn, &err);
    if (b->status == MLO_OK) {
        b->status = mlo_blob_record_stored(conn, b->u->blobs, &root, b->u->project, &b->digest, 5, &err);
        mlo_db_release(conn);
    }
    b->done = true;
    return NULL;
}

/* The collector holds the row and removes the bytes that the uploader stored a moment before: the uploader
 * waits, and is told to send them again, instead of a row without bytes. */
static void test_gc__bytes_that_went_are_not_recorded(void **state)
{
    struct upkeep u;
    struct mlo_db_conn *gc;
    pthread_t thread;
    upkeep_open(&u, *state);
    struct bringer b = {.u = &u, .digest = upkeep_put(&u, "again")};
    assert_mlo_ok(mlo_db_acquire(u.f->server, &gc, &u.f->err), &u.f->err);
    assert_mlo_ok(
        mlo_db_exec_text(gc, "SELECT blob_collect('', decode(repeat('ff', 32), 'hex'), '0')", &u.f->err),
        &u.f->err);
    assert_mlo_ok(mlo_db_exec_text(gc, "BEGIN; SELECT blob_going('', 10)", &u.f->err), &u.f->err);
    assert_int_equal(pthread_create(&thread, NULL, bring, &b), 0);
    for (int i = 0; i < 20; i++) {
        mlo_clock_sleep_ms(5);
        assert_false(b.done); /* it waits for the row */
    }
    assert_mlo_ok(mlo_blob_remove(u.blobs, &b.digest, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_db_exec_text(gc, "COMMIT", &u.f->err), &u.f->err); /* killed before it noted it */
    pthread_join(thread, NULL);
    assert_int_equal(b.status, MLO_EIO);
    upkeep_put(&u, "again");
    mlo_db_release(gc);
    upkeep_clean(&u);
    upkeep_close(&u);
}

/* --- many at once ----------------------------------------------------------------------------------------
 */

enum { RACERS = 4, ROUNDS = 60, CONTENTS = 6 };

struct racer {
    struct upkeep *u;
    int number;
    int acknowledged, sent_again;
    char problem[700];
};

static atomic_bool race_over;
static atomic_int race_removed;

/* Sends one of a few contents, makes a version of it, looks whether its bytes are there, and deletes it. */
static void *race(void *arg)
{
    struct racer *w = arg;
    struct upkeep *u = w->u;
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    char model[16];
    int64_t id;
    snprintf(model, sizeof model, "m%d", w->number);
    if (mlo_db_acquire(u->f->server, &conn, &err) != MLO_OK) {
        snprintf(w->problem, sizeof w->problem, "%s", err.message);
        return NULL;
    }
    for (int i = 0; i < ROUNDS && !w->problem[0]; i++) {
        char text[32];
        struct mlo_version_info v;
        struct mlo_manifest_blob b = {.role = "model", .name = "m"};
        snprintf(text, sizeof text, "content %d", (i + w->number) % CONTENTS);
        enum mlo_status status = mlo_blob_put_bytes(u->blobs, text, strlen(text), &b.digest, &err);
        if (status == MLO_OK)
            status = mlo_blob_record_stored(conn, u->blobs, &root, u->project, &b.digest, strlen(text), &err);
        if (status == MLO_OK)
            status = mlo_model_ensure(conn, &root, u->project, model, &id, &err);
        if (status == MLO_OK)
            status = mlo_version_create(conn, &root, id, "", &b, 1, &v, &err);
        if (status == MLO_EIO || status == MLO_ENOTFOUND || mlo_db_retryable(conn)) {
            w->sent_again++; /* it went between two steps: nothing was acknowledged */
            continue;
        }
        if (status == MLO_OK) { /* acknowledged */
            w->acknowledged++;
            status = mlo_blob_check(u->blobs, &b.digest, NULL, &err);
        }
        struct mlo_deletion_request r = {
            .project_id = u->project, .model = model, .version = v.number, .reason = "race"};
        if (status == MLO_OK)
            status = mlo_delete(conn, &root, &r, NULL, NULL, &err);
        if (status != MLO_OK)
            snprintf(w->problem, sizeof w->problem, "round %d: %s: %s", i, mlo_status_info(status)->code,
                     err.message);
    }
    mlo_db_release(conn);
    return NULL;
}

static void *collect(void *arg)
{
    struct racer *w = arg;
    struct mlo_gc_options o = {.blobs = w->u->blobs};
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    if (mlo_db_acquire(w->u->f->server, &conn, &err) != MLO_OK)
        return NULL;
    while (!race_over && !w->problem[0]) {
        struct mlo_gc_result r;
        if (mlo_gc_run(conn, &root, &o, &r, NULL, &err) != MLO_OK)
            snprintf(w->problem, sizeof w->problem, "gc: %s", err.message);
        else
            race_removed += (int)r.removed;
    }
    mlo_db_release(conn);
    return NULL;
}

static void test_gc__races_with_uploads_of_the_same_bytes(void **state)
{
    struct upkeep u;
    pthread_t threads[RACERS + 2];
    struct racer w[RACERS + 2];
    int acknowledged = 0;
    upkeep_open(&u, *state);
    race_over = false;
    race_removed = 0;
    for (int i = 0; i < RACERS + 2; i++) {
        w[i] = (struct racer){.u = &u, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, i < RACERS ? race : collect, &w[i]), 0);
    }
    for (int i = 0; i < RACERS + 2; i++) {
        if (i == RACERS)
            race_over = true;
        pthread_join(threads[i], NULL);
        if (w[i].problem[0])
            fail_msg("thread %d: %s", i, w[i].problem);
        acknowledged += w[i].acknowledged;
    }
    print_message("%d acknowledged, %d removed\n", acknowledged, race_removed);
    assert_true(acknowledged > 0);
    assert_true(race_removed > 0);
    upkeep_clean(&u);
    struct mlo_audit_result audit;
    assert_mlo_ok(mlo_audit_verify(u.f->conn, u.project, NULL, &audit, &u.f->err), &u.f->err);
    assert_true(audit.intact);
    upkeep_close(&u);
}

#define T(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_gc__removes_what_nothing_refers_to),
        T(test_gc__keeps_what_is_referred_to),
        T(test_gc__grace_begins_with_the_last_use),
        T(test_gc__leaves_bytes_to_a_backup),
        T(test_gc__keeps_the_plans_of_a_damaged_artifact),
        T(test_gc__ends_however_little_time_a_piece_has),
        T(test_gc__a_dry_run_only_reads),
        T(test_gc__tells_a_collector_from_a_backup),
        T(test_gc__a_turn_ends_with_its_session),
        T(test_gc__a_marked_blob_is_brought_back),
        T(test_gc__bytes_that_went_are_not_recorded),
        T(test_gc__races_with_uploads_of_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
