/* Promotion, rollback, history, resolving; the audit chain. */
#include <pthread.h>
#include <string.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;
static const struct mlo_actor manager = {
    .name = "rm", .role = MLO_PROMOTER, .via = "cli", .request_id = "r-1"};

struct shop {
    int64_t project_id, model_id;
};

static struct mlo_digest digest_of(const char *text)
{
    struct mlo_digest d;
    mlo_digest_of(text, strlen(text), &d);
    return d;
}

/* A model with `versions` versions, each with a variant int8. */
static struct shop shop(struct pg_fixture *f, int versions)
{
    struct shop s;
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "fashion", &s.project_id, &f->err), &f->err);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, s.project_id, "cnn", &s.model_id, &f->err), &f->err);
    for (int i = 1; i <= versions; i++) {
        char text[32];
        struct mlo_version_info v;
        struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx"};
        snprintf(text, sizeof text, "version %d", i);
        b.digest = digest_of(text);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, s.project_id, &b.digest, 9, &f->err), &f->err);
        assert_mlo_ok(mlo_version_create(f->conn, &root, s.model_id, "", &b, 1, &v, &f->err), &f->err);
        snprintf(text, sizeof text, "int8 %d", i);
        struct mlo_digest q = digest_of(text);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, s.project_id, &q, 4, &f->err), &f->err);
        assert_mlo_ok(mlo_variant_name(f->conn, &root, v.id, "int8", &q, NULL, 0, NULL, &f->err), &f->err);
    }
    return s;
}

static enum mlo_status promote(struct pg_fixture *f, const struct shop *s, int64_t version, const char *stage,
                               int64_t generation, struct mlo_move *move)
{
    struct mlo_release_choice choices[] = {{NULL, "source"}, {"cpu:avx512-vnni", "int8"}};
    struct mlo_promotion p = {.model_id = s->model_id,
                              .version = version,
                              .choices = choices,
                              .choice_count = 2,
                              .stage = stage,
                              .reason = "because",
                              .if_match = &generation};
    return mlo_stage_promote(f->conn, &manager, &p, move, &f->err);
}

static enum mlo_status rollback(struct pg_fixture *f, const struct shop *s, int64_t generation, int64_t to,
                                struct mlo_move *move)
{
    struct mlo_rollback r = {.model_id = s->model_id,
                             .stage = "production",
                             .to_release = to,
                             .reason = "it was slow",
                             .if_match = &generation};
    return mlo_stage_rollback(f->conn, &manager, &r, move, &f->err);
}

static int64_t in_production(struct pg_fixture *f, const struct shop *s)
{
    struct mlo_resolution r;
    assert_mlo_ok(mlo_stage_resolve(f->conn, s->model_id, "production", NULL, &r, &f->err), &f->err);
    return r.version;
}

static void test_stage__promote_needs_the_generation(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 2);
    struct mlo_move move;
    struct mlo_release_choice source = {"any", "source"};
    struct mlo_promotion p = {
        .model_id = s.model_id, .choices = &source, .choice_count = 1, .stage = "production", .reason = "x"};
    int64_t zero = 0;
    assert_mlo_status(mlo_stage_promote(f->conn, &manager, &p, &move, &f->err), MLO_EPRECONDITION_REQUIRED,
                      &f->err);
    assert_mlo_ok(promote(f, &s, 1, "production", 0, &move), &f->err);
    assert_true(move.generation == 1 && move.from_release == 0 && move.to_release == 1);
    assert_mlo_status(promote(f, &s, 2, "production", 0, &move), MLO_EPRECONDITION, &f->err);
    assert_non_null(strstr(f->err.message, "generation 1, not 0"));
    assert_mlo_status(promote(f, &s, 1, "production", 1, &move), MLO_ECONFLICT, &f->err);
    assert_mlo_status(promote(f, &s, 9, "production", 1, &move), MLO_ENOTFOUND, &f->err);
    assert_mlo_status(promote(f, &s, 1, "qa", 1, &move), MLO_ENOTFOUND, &f->err);
    p.if_match = &zero;
    p.stage = "staging";
    source.variant = "fp16";
    assert_mlo_status(mlo_stage_promote(f->conn, &manager, &p, &move, &f->err), MLO_ENOTFOUND, &f->err);
    source.variant = "source";
    source.target = "gpu!";
    assert_mlo_status(mlo_stage_promote(f->conn, &manager, &p, &move, &f->err), MLO_EINVAL, &f->err);
    struct mlo_actor submitter = {.name = "ci", .role = MLO_SUBMITTER};
    source.target = NULL;
    assert_mlo_status(mlo_stage_promote(f->conn, &submitter, &p, &move, &f->err), MLO_EFORBIDDEN, &f->err);
    /* nothing of what was refused left a trace */
    json_t *history;
    assert_mlo_ok(mlo_stage_history(f->conn, &root, NULL, NULL, &history, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(history, "items")), 1);
    json_decref(history);
}

static void test_stage__the_same_content_is_the_same_release(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 1);
    struct mlo_move staging, production;
    assert_mlo_ok(promote(f, &s, 1, "staging", 0, &staging), &f->err);
    assert_mlo_ok(promote(f, &s, 1, "production", 0, &production), &f->err);
    assert_true(staging.to_release == production.to_release);
}

static void test_stage__rollback_goes_back_step_by_step(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 4);
    struct mlo_move move;
    assert_mlo_status(rollback(f, &s, 0, 0, &move), MLO_ECONFLICT, &f->err);
    for (int i = 1; i <= 3; i++) /* A, B, C */
        assert_mlo_ok(promote(f, &s, i, "production", i - 1, &move), &f->err);
    assert_mlo_status(rollback(f, &s, 2, 0, &move), MLO_EPRECONDITION, &f->err);
    assert_mlo_ok(rollback(f, &s, 3, 0, &move), &f->err);
    assert_int_equal(in_production(f, &s), 2); /* B */
    assert_mlo_ok(rollback(f, &s, 4, 0, &move), &f->err);
    assert_int_equal(in_production(f, &s), 1); /* A */
    assert_mlo_status(rollback(f, &s, 5, 0, &move), MLO_ECONFLICT, &f->err);
    assert_mlo_ok(promote(f, &s, 4, "production", 5, &move), &f->err);
    json_t *stage;
    assert_mlo_ok(mlo_stage_get(f->conn, s.model_id, "production", &stage, &f->err), &f->err);
    assert_int_equal(mlo_json_i64(json_object_get(stage, "previous"), "version", 0), 1);
    assert_int_equal(mlo_json_i64(stage, "generation", 0), 6);
    json_decref(stage);
    assert_mlo_ok(rollback(f, &s, 6, 0, &move), &f->err);
    assert_int_equal(in_production(f, &s), 1); /* from D to what D replaced: A, not B or C */
    assert_mlo_ok(rollback(f, &s, 7, 3, &move), &f->err);
    assert_int_equal(in_production(f, &s), 3); /* a named one */
    assert_mlo_status(rollback(f, &s, 8, 99, &move), MLO_ECONFLICT, &f->err);
    assert_mlo_status(rollback(f, &s, 8, 3, &move), MLO_ECONFLICT, &f->err);
    int64_t generation = 8;
    struct mlo_rollback no_reason = {
        .model_id = s.model_id, .stage = "production", .reason = " ", .if_match = &generation};
    assert_mlo_status(mlo_stage_rollback(f->conn, &manager, &no_reason, &move, &f->err), MLO_EINVAL, &f->err);
}

static void test_stage__history_tells_who_and_when(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 2);
    struct mlo_move move;
    json_t *history, *then, *one;
    assert_mlo_ok(promote(f, &s, 1, "production", 0, &move), &f->err);
    mlo_clock_sleep_ms(20);
    char middle[32];
    mlo_clock_format(mlo_clock_utc_us(), middle);
    mlo_clock_sleep_ms(20);
    assert_mlo_ok(promote(f, &s, 2, "production", 1, &move), &f->err);
    assert_mlo_ok(rollback(f, &s, 2, 0, &move), &f->err);
    struct mlo_history_filter filter = {.model_id = s.model_id, .stage = "production"};
    struct mlo_page page = {.limit = 2};
    assert_mlo_ok(mlo_stage_history(f->conn, &root, &filter, &page, &history, &f->err), &f->err);
    const json_t *items = json_object_get(history, "items"), *last = json_array_get(items, 0);
    assert_int_equal(json_array_size(items), 2);
    assert_string_equal(mlo_json_str(last, "kind", ""), "rollback");
    assert_string_equal(mlo_json_str(last, "actor", ""), "rm");
    assert_string_equal(mlo_json_str(last, "via", ""), "cli");
    assert_string_equal(mlo_json_str(last, "reason", ""), "it was slow");
    assert_string_equal(mlo_json_str(last, "request_id", ""), "r-1");
    assert_int_equal(mlo_json_i64(json_object_get(last, "from"), "version", 0), 2);
    assert_int_equal(mlo_json_i64(json_object_get(last, "to"), "version", 0), 1);
    assert_int_equal(json_array_size(json_object_get(json_object_get(last, "to"), "variants")), 2);
    assert_mlo_ok(mlo_stage_move_get(f->conn, mlo_json_i64(last, "id", 0), &one, &f->err), &f->err);
    assert_true(json_equal(one, last));
    json_decref(one);
    page.cursor = mlo_json_str(history, "next", "");
    assert_mlo_ok(mlo_stage_history(f->conn, &root, &filter, &page, &one, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(one, "items")), 1);
    json_decref(one);
    json_decref(history);
    static const struct {
        int64_t release;
        size_t moves;
    } of[] = {{1, 3}, {2, 2}, {99, 0}}; /* the first one was put there, replaced, and put back */
    for (size_t i = 0; i < MLO_COUNT(of); i++) {
        struct mlo_history_filter by_release = {.model_id = s.model_id, .release = of[i].release};
        assert_mlo_ok(mlo_stage_history(f->conn, &root, &by_release, NULL, &history, &f->err), &f->err);
        assert_int_equal(json_array_size(json_object_get(history, "items")), of[i].moves);
        json_decref(history);
    }

    assert_mlo_ok(mlo_stage_at(f->conn, s.model_id, "production", middle, &then, &f->err), &f->err);
    assert_int_equal(mlo_json_i64(json_object_get(then, "to"), "version", 0), 1);
    assert_int_equal(mlo_json_i64(then, "generation", 0), 1);
    json_decref(then);
    assert_mlo_ok(mlo_stage_at(f->conn, s.model_id, "production", "2020-01-01T00:00:00Z", &then, &f->err),
                  &f->err);
    assert_true(json_is_null(then));
    assert_mlo_status(mlo_stage_at(f->conn, s.model_id, "production", "yesterday-ish", &then, &f->err),
                      MLO_EINVAL, &f->err);
    struct mlo_actor elsewhere = {.name = "e", .role = MLO_ADMIN, .project_id = s.project_id + 1};
    assert_mlo_ok(mlo_stage_history(f->conn, &elsewhere, &filter, NULL, &history, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(history, "items")), 0);
    json_decref(history);
}

static void test_stage__resolves_to_the_most_specific(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 1);
    struct mlo_move move;
    struct mlo_resolution r;
    assert_mlo_status(mlo_stage_resolve(f->conn, s.model_id, "production", NULL, &r, &f->err), MLO_ENOTFOUND,
                      &f->err);
    assert_mlo_ok(promote(f, &s, 1, "production", 0, &move), &f->err);
    assert_mlo_ok(mlo_stage_resolve(f->conn, s.model_id, "production", "cpu:avx512-fp16", &r, &f->err),
                  &f->err);
    assert_string_equal(r.variant, "int8");
    assert_mlo_ok(mlo_stage_resolve(f->conn, s.model_id, "production", "cpu:avx2", &r, &f->err), &f->err);
    assert_string_equal(r.variant, "source");
    assert_true(r.version == 1 && r.generation == 1);
}

static void test_stage__dry_run_leaves_nothing(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 1);
    struct mlo_move move;
    json_t *json;
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(promote(f, &s, 1, "production", 0, &move), &f->err);
    assert_mlo_ok(mlo_stage_move_get(f->conn, move.id, &json, &f->err), &f->err);
    assert_int_equal(mlo_json_i64(json, "generation", 0), 1);
    json_decref(json);
    assert_int_equal(mlo_db_end(f->conn, MLO_ECANCELLED, NULL), MLO_ECANCELLED);
    assert_mlo_ok(mlo_stage_get(f->conn, s.model_id, "production", &json, &f->err), &f->err);
    assert_true(json_is_null(json_object_get(json, "release")));
    json_decref(json);
}

/* --- one release for two stages at once --------------------------------------------------------------- */

struct mover {
    struct pg_fixture *f;
    const struct shop *s;
    const char *stage;
    enum mlo_status status;
    struct mlo_error err;
};

static void *promote_there(void *arg)
{
    struct mover *w = arg;
    struct mlo_db_conn *conn;
    struct mlo_release_choice source = {NULL, "source"};
    int64_t zero = 0;
    struct mlo_promotion p = {.model_id = w->s->model_id,
                              .version = 1,
                              .choices = &source,
                              .choice_count = 1,
                              .stage = w->stage,
                              .if_match = &zero};
    struct mlo_move move;
    w->status = mlo_db_acquire(w->f->server, &conn, &w->err);
    if (w->status == MLO_OK) {
        w->status = mlo_stage_promote(conn, &manager, &p, &move, &w->err);
        mlo_db_release(conn);
    }
    return NULL;
}

static int waiting(struct mlo_db_conn *conn)
{
    PGresult *result = PQexec(mlo_db_pg(conn), "SELECT count(*) FROM pg_stat_activity WHERE "
                                               "wait_event_type = 'Lock' AND datname = current_database()");
    int64_t n = -1;
    mlo_str_to_i64(PQgetvalue(result, 0, 0), &n);
    PQclear(result);
    return (int)n;
}

/* Both have seen that there is no such release yet, and wait to make it. */
static void test_stage__both_stages_get_a_new_release_at_once(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 1);
    struct mover w[] = {{.f = f, .s = &s, .stage = "staging"}, {.f = f, .s = &s, .stage = "production"}};
    struct mlo_db_conn *watch;
    pthread_t threads[2];
    assert_mlo_ok(mlo_db_acquire(f->server, &watch, &f->err), &f->err);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SELECT FROM model FOR NO KEY UPDATE", &f->err), &f->err);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, promote_there, &w[i]), 0);
    for (int i = 0; i < 60000 && waiting(watch) < 2; i++)
        mlo_clock_sleep_ms(1);
    assert_int_equal(waiting(watch), 2);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_mlo_ok(w[i].status, &w[i].err);
    }
    mlo_db_release(watch);
}

struct busy {
    struct pg_fixture *f;
    const struct shop *s;
    int failures;
};

static void *push_versions(void *arg)
{
    struct busy *w = arg;
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    if (mlo_db_acquire(w->f->server, &conn, &err) != MLO_OK) {
        w->failures = 1;
        return NULL;
    }
    for (int i = 0; i < 40; i++) {
        char text[32];
        struct mlo_version_info v;
        struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx"};
        snprintf(text, sizeof text, "busy %d", i);
        b.digest = digest_of(text);
        w->failures += mlo_blob_record(conn, &root, w->s->project_id, &b.digest, 6, &err) != MLO_OK;
        w->failures += mlo_version_create(conn, &root, w->s->model_id, "", &b, 1, &v, &err) != MLO_OK;
    }
    mlo_db_release(conn);
    return NULL;
}

static void test_stage__moves_and_uploads_do_not_deadlock(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 2);
    struct busy w = {.f = f, .s = &s};
    struct mlo_move move;
    pthread_t thread;
    assert_mlo_ok(promote(f, &s, 1, "production", 0, &move), &f->err);
    assert_mlo_ok(promote(f, &s, 2, "production", 1, &move), &f->err);
    assert_int_equal(pthread_create(&thread, NULL, push_versions, &w), 0);
    int refused = 0;
    for (int i = 2; i < 42; i++) /* to release 1, to release 2, … */
        refused += rollback(f, &s, i, i % 2 + 1, &move) != MLO_OK;
    pthread_join(thread, NULL);
    assert_int_equal(refused, 0);
    assert_int_equal(w.failures, 0);
}

/* --- audit ------------------------------------------------------------------------------------- */

static struct mlo_audit_result verify(struct pg_fixture *f, int64_t project_id,
                                      const struct mlo_audit_head *remembered)
{
    struct mlo_audit_result r;
    assert_mlo_ok(mlo_audit_verify(f->conn, project_id, remembered, &r, &f->err), &f->err);
    assert_true(r.intact == (r.problem[0] == '\0'));
    return r;
}

static void as_owner(struct pg_fixture *f, const char *text)
{
    struct mlo_db_conn *owner;
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(owner, text, &f->err), &f->err);
    mlo_db_release(owner);
}

static void append(struct pg_fixture *f, int64_t project_id, int count)
{
    for (int i = 0; i < count; i++) {
        struct mlo_audit_event event = {
            .action = i % 2 ? "test.odd" : "test.even", .object = "thing", .reason = "été"};
        assert_mlo_ok(mlo_audit_append(f->conn, project_id, &manager, &event, NULL, &f->err), &f->err);
    }
}

static void test_audit__names_a_changed_row(void **state)
{
    struct pg_fixture *f = *state;
    append(f, 0, 10);
    struct mlo_audit_result r = verify(f, 0, NULL);
    assert_true(r.intact && r.entries == 10 && r.head.seq == 10);
    as_owner(
        f,
        "UPDATE audit SET body = convert_to(replace(convert_from(body, 'UTF8'), '\"rm\"', '\"me\"'), 'UTF8') "
        "WHERE seq = 4");
    r = verify(f, 0, NULL);
    assert_false(r.intact);
    assert_int_equal(r.bad_seq, 4);
    assert_non_null(strstr(r.problem, "entry 4"));
    assert_non_null(strstr(r.problem, "changed"));
    /* also when the hash is made to fit: the next one does not link */
    as_owner(f, "UPDATE audit SET hash = sha256(prev_hash || int8send(seq) || body) WHERE seq = 4");
    assert_int_equal(verify(f, 0, NULL).bad_seq, 5);
    /* and bytes that are no text any more still list */
    json_t *list;
    as_owner(f, "UPDATE audit SET body = '\\xff00' WHERE seq = 4");
    assert_mlo_ok(mlo_audit_list(f->conn, 0, NULL, NULL, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 10);
    json_decref(list);
}

static void test_audit__names_a_deleted_row(void **state)
{
    struct pg_fixture *f = *state;
    append(f, 0, 10);
    as_owner(f, "DELETE FROM audit WHERE seq = 7");
    struct mlo_audit_result r = verify(f, 0, NULL);
    assert_int_equal(r.bad_seq, 7);
    assert_non_null(strstr(r.problem, "missing"));
}

static void test_audit__finds_a_cut_tail(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_audit_head remembered;
    append(f, 0, 10);
    assert_mlo_ok(mlo_audit_head(f->conn, 0, &remembered, &f->err), &f->err);
    as_owner(f, "DELETE FROM audit WHERE seq > 8");
    struct mlo_audit_result r = verify(f, 0, NULL);
    assert_int_equal(r.bad_seq, 9);
    assert_non_null(strstr(r.problem, "cut"));
    /* the head cut back as well: only who remembers a head can tell */
    as_owner(f, "UPDATE audit_head SET (seq, hash) = (SELECT seq, hash FROM audit WHERE seq = 8) WHERE "
                "project_id = 0");
    assert_true(verify(f, 0, NULL).intact);
    assert_int_equal(verify(f, 0, &remembered).bad_seq, 9);
    /* rewritten up to the same length */
    append(f, 0, 2);
    assert_true(verify(f, 0, NULL).intact);
    r = verify(f, 0, &remembered);
    assert_int_equal(r.bad_seq, 10);
    assert_non_null(strstr(r.problem, "rewritten"));
}

static void test_audit__every_change_is_written(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f, 2);
    struct mlo_move move;
    char text[MLO_TOKEN_TEXT_SIZE];
    int64_t token;
    assert_mlo_ok(promote(f, &s, 1, "production", 0, &move), &f->err);
    assert_mlo_ok(promote(f, &s, 2, "production", 1, &move), &f->err);
    assert_mlo_ok(rollback(f, &s, 2, 0, &move), &f->err);
    assert_mlo_ok(mlo_token_create(f->conn, &root, "t", MLO_VIEWER, s.project_id, 0, text, &token, &f->err),
                  &f->err);
    assert_mlo_ok(mlo_token_revoke(f->conn, &root, token, &f->err), &f->err);
    static const char *const expected[] = {
        "token.revoke",   "token.create", "stage.rollback", "stage.promote", "stage.promote", "variant.name",
        "version.create", "variant.name", "version.create", "model.create",  "project.create"};
    json_t *list;
    assert_mlo_ok(mlo_audit_list(f->conn, s.project_id, NULL, NULL, &list, &f->err), &f->err);
    const json_t *items = json_object_get(list, "items");
    assert_int_equal(json_array_size(items), MLO_COUNT(expected));
    for (size_t i = 0; i < MLO_COUNT(expected); i++)
        assert_string_equal(mlo_json_str(json_array_get(items, i), "action", ""), expected[i]);
    const json_t *moved = json_array_get(items, 2);
    assert_string_equal(mlo_json_str(moved, "object", ""), "fashion/cnn:production");
    assert_string_equal(mlo_json_str(moved, "reason", ""), "it was slow");
    assert_int_equal(mlo_json_i64(json_object_get(moved, "before"), "version", 0), 2);
    assert_int_equal(mlo_json_i64(json_object_get(moved, "after"), "version", 0), 1);
    assert_int_equal(mlo_json_i64(moved, "seq", 0), move.audit_seq);
    json_decref(list);
    assert_true(verify(f, s.project_id, NULL).intact);
    struct mlo_audit_filter filter = {.action = "stage.", .who = "rm"};
    struct mlo_page page = {.limit = 2};
    assert_mlo_ok(mlo_audit_list(f->conn, s.project_id, &filter, &page, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 2);
    page.cursor = mlo_json_str(list, "next", "");
    json_t *rest;
    assert_mlo_ok(mlo_audit_list(f->conn, s.project_id, &filter, &page, &rest, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(rest, "items")), 1);
    json_decref(rest);
    json_decref(list);
}

static void test_audit__rolled_back_change_leaves_no_entry(void **state)
{
    struct pg_fixture *f = *state;
    append(f, 0, 3);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    append(f, 0, 2);
    assert_int_equal(mlo_db_end(f->conn, MLO_ECANCELLED, NULL), MLO_ECANCELLED);
    append(f, 0, 1);
    struct mlo_audit_result r = verify(f, 0, NULL);
    assert_true(r.intact && r.entries == 4);
}

static void test_audit__a_long_chain_is_checked_fast(void **state)
{
    struct pg_fixture *f = *state;
    for (int part = 0; part < 10; part++) /* each well within the time that one statement has */
        as_owner(f, "DO $$ BEGIN FOR i IN 1..2000 LOOP PERFORM audit_append(0, "
                    "convert_to('{\"action\":\"test\",\"n\":' || i || "
                    "',\"pad\":\"' || repeat('x', 300) || '\"}', 'UTF8')); END LOOP; END $$");
    uint64_t begin_ns = mlo_clock_ns();
    struct mlo_audit_result r = verify(f, 0, NULL);
    double seconds = (double)(mlo_clock_ns() - begin_ns) / 1e9;
    print_message("verified %.0f entries per minute\n", (double)r.entries / seconds * 60);
    assert_true(r.intact && r.entries == 20000);
}

#define WITH_DB(test) cmocka_unit_test_setup_teardown(test, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DB(test_stage__promote_needs_the_generation),
        WITH_DB(test_stage__the_same_content_is_the_same_release),
        WITH_DB(test_stage__rollback_goes_back_step_by_step),
        WITH_DB(test_stage__history_tells_who_and_when),
        WITH_DB(test_stage__resolves_to_the_most_specific),
        WITH_DB(test_stage__dry_run_leaves_nothing),
        WITH_DB(test_stage__both_stages_get_a_new_release_at_once),
        WITH_DB(test_stage__moves_and_uploads_do_not_deadlock),
        WITH_DB(test_audit__names_a_changed_row),
        WITH_DB(test_audit__names_a_deleted_row),
        WITH_DB(test_audit__finds_a_cut_tail),
        WITH_DB(test_audit__every_change_is_written),
        WITH_DB(test_audit__rolled_back_change_leaves_no_entry),
        WITH_DB(test_audit__a_long_chain_is_checked_fast),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
